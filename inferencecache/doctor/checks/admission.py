"""Check 13: whether the API server can ask the webhooks: what it asks, whom it trusts, who answers with what.

Where Pods start unwired while every backend is well, the fault is here, and nothing else tells of it: most webhooks of
Pods are passed over in silence when they cannot be called (`failurePolicy: Ignore`), and the others refuse what nobody
did wrong.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from cryptography.x509 import Certificate

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.doctor.checks.reads import api_failure, unread
from inferencecache.doctor.findings import Check, Finding
from inferencecache.doctor.installation import CERTIFICATE_SECRET, EndpointSlice, Installation, Webhook
from inferencecache.doctor.observe import Observations
from inferencecache.kube import pki
from inferencecache.kube.kinds import Service
from inferencecache.kube.resource import Key

OVERDUE: Final = 5 / 6
"""The part of its life after which a certificate should long have been renewed; that is due at two thirds."""

_CHECK: Final = Check.ADMISSION
_CONTROLLER: Final = "inference-cache-controller-manager"
_RENEWER: Final = f"the controller renews it, or cert-manager where that keeps it; see the log of {_CONTROLLER}"
_REAPPLY: Final = "apply the installation of this version again"


def check_admission(seen: Observations) -> Iterator[Finding]:
    """WH001 to WH010; nothing if one namespace alone is looked at."""
    there = seen.installation
    if there is None:
        return
    yield from _configurations(there, seen)
    if there.service_key is not None:
        yield from _service(there, there.service_key)
        yield from _certificate(there, there.service_key, seen.now)


def _configurations(there: Installation, seen: Observations) -> Iterator[Finding]:
    off = _switched_off(there, seen)
    for group in off:
        yield Finding(
            "WH009",
            _CHECK,
            group,
            "its kinds are installed and none of its webhooks: if that half was not switched off on purpose, "
            + _REAPPLY,
        )
    halves = tuple(f".{group}" for group in _with_kinds(seen) if group not in off)
    for expected, found in zip(there.shipped, there.configurations, strict=True):
        kind = expected.resource.kind
        resource = f"{kind.lower()}/{expected.metadata.name}"
        if found.failure:
            yield api_failure(_CHECK, kind, found.failure)
        elif found.item is None:
            yield Finding(
                "WH001", _CHECK, resource, f"it is not there, so the API server asks nothing of it: {_REAPPLY}"
            )
        else:
            wanted = [one for one in expected.webhooks if one.name.endswith(halves)]
            complaints = list(_webhooks(resource, wanted, found.item.webhooks, seen.now))
            yield from complaints or [
                Finding("WH010", _CHECK, resource, f"{len(found.item.webhooks)} webhooks, with a caBundle each")
            ]


def _with_kinds(seen: Observations) -> list[str]:
    """The groups of the halves whose kinds are installed."""
    halves = {CacheBackend.resource.group: seen.caches_installed, KVCachePool.resource.group: seen.bindings.served}
    return [group for group, installed in halves.items() if installed]


def _switched_off(there: Installation, seen: Observations) -> list[str]:
    """Groups with kinds and without any webhook. A chart leaves the kinds of a half that is switched off later."""
    found = [one.item for one in there.configurations if one.item is not None]
    if len(found) < len(there.shipped):
        return []
    names = [webhook.name for one in found for webhook in one.webhooks]
    return [group for group in _with_kinds(seen) if not any(name.endswith(f".{group}") for name in names)]


def _webhooks(resource: str, wanted: Sequence[Webhook], present: Sequence[Webhook], now: datetime) -> Iterator[Finding]:
    by_name = {one.name: one for one in present}
    missing = [one.name for one in wanted if one.name not in by_name]
    if missing:
        yield Finding("WH002", _CHECK, resource, f"it lacks {', '.join(missing)}: {_REAPPLY}")
    differing = [said for one in wanted if one.name in by_name and (said := _differs(one, by_name[one.name]))]
    if differing:
        yield Finding("WH003", _CHECK, resource, f"{'; '.join(differing)}. Unless that is meant, {_REAPPLY}")
    untrusting: dict[str, list[str]] = {}
    for one in present:
        if why := _distrust(one.client_config.ca_bundle, now):
            untrusting.setdefault(why, []).append(one.name)
    for why, names in untrusting.items():
        yield Finding(
            "WH004",
            _CHECK,
            resource,
            f"caBundle {why} in {', '.join(names)}: the API server cannot call them. The controller writes it, or "
            f"cert-manager where that keeps the certificates; see the log of {_CONTROLLER}",
        )


def _differs(wanted: Webhook, found: Webhook) -> str:
    """How a webhook is not as shipped, in what decides over when it is asked and what follows from no answer."""
    ways = []
    if found.failure_policy != wanted.failure_policy:
        ways.append(f"failurePolicy {found.failure_policy} and not {wanted.failure_policy}")
    if set(found.rules) != set(wanted.rules):
        ways.append("other rules")
    called, ours = found.client_config.service, wanted.client_config.service
    if called is not None and ours is not None and called.path != ours.path:
        ways.append(f"path {called.path} and not {ours.path}")
    return f"{wanted.name} has {', '.join(ways)}" if ways else ""


def _distrust(bundle: str, now: datetime) -> str:
    """Why nobody is trusted by a caBundle; empty if somebody is."""
    if not bundle:
        return "is empty"
    certificates = _certificates(bundle)
    if not certificates:
        return "holds no certificate"
    if not any(_valid(one, now) for one in certificates):
        latest = max(one.not_valid_after_utc for one in certificates)
        return f"holds no certificate that is valid now (the last one until {latest:%Y-%m-%d})"
    return ""


def _service(there: Installation, key: Key) -> Iterator[Finding]:
    resource = f"service/{key}"
    if there.service.failure:
        yield api_failure(_CHECK, Service.resource.kind, there.service.failure)
    elif there.service.missing:
        yield Finding("WH005", _CHECK, resource, f"the webhooks are called through it, and it is not there: {_REAPPLY}")
    elif there.endpoints.failure or there.endpoints.unreadable:
        yield from unread(_CHECK, EndpointSlice.resource.kind, there.endpoints)
    elif ready := sum(one.ready for one in there.endpoints.items):
        yield Finding("WH010", _CHECK, resource, f"{ready} ready endpoint{'s' if ready > 1 else ''}")
    else:
        yield Finding(
            "WH005",
            _CHECK,
            resource,
            "no endpoint is ready, so Pods start unwired and our kinds cannot be changed: see the Pods of "
            f"{_CONTROLLER}",
        )


def _certificate(there: Installation, key: Key, now: datetime) -> Iterator[Finding]:
    where = Key(key.namespace, CERTIFICATE_SECRET)
    resource = f"secret/{where}"
    secret = there.certificate
    if secret.item is None:
        why = secret.failure or "it is not there, so the certificate is kept elsewhere, or was not made yet"
        yield Finding("WH008", _CHECK, resource, f"the serving certificate was not looked at: {why}")
        return
    chain = _certificates(secret.item.data.certificate)
    why = _unusable(chain, there, key, now)
    if why:
        yield Finding("WH006", _CHECK, resource, f"{why}: the API server refuses it. {_RENEWER}")
    elif _spent(chain[0], now) > OVERDUE:
        yield Finding(
            "WH007",
            _CHECK,
            resource,
            f"valid until {chain[0].not_valid_after_utc:%Y-%m-%d %H:%M} UTC, and its renewal is overdue: {_RENEWER}",
        )
    else:
        yield Finding("WH010", _CHECK, resource, f"trusted, and valid until {chain[0].not_valid_after_utc:%Y-%m-%d}")


def _unusable(chain: Sequence[Certificate], there: Installation, key: Key, now: datetime) -> str:
    """Why the API server would not take a certificate chain, leaf first; empty if it would."""
    if not chain:
        return "tls.crt holds no certificate"
    leaf, host = chain[0], f"{key.name}.{key.namespace}.svc"
    if not _valid(leaf, now):
        return (
            f"the certificate is valid from {leaf.not_valid_before_utc:%Y-%m-%d} to {leaf.not_valid_after_utc:%Y-%m-%d}"
        )
    if host not in pki.hosts_of(leaf):
        return f"the certificate is not of the name {host}"
    bundles = {
        webhook.client_config.ca_bundle
        for found in there.configurations
        if found.item is not None
        for webhook in found.item.webhooks
    }
    if not all(_trusted(chain, _certificates(bundle), now) for bundle in bundles if bundle):
        return "the certificate is not issued by the CA in caBundle"
    return ""


def _trusted(chain: Sequence[Certificate], authorities: Sequence[Certificate], now: datetime) -> bool:
    """Whether a chain, leaf first and intermediates in any order, leads to a CA that is valid now."""
    roots = [one for one in authorities if _valid(one, now)]
    current, rest = chain[0], list(chain[1:])
    while True:
        if any(current == root or pki.is_issued_by(current, root) for root in roots):
            return True
        issuer = next((one for one in rest if _valid(one, now) and pki.is_issued_by(current, one)), None)
        if issuer is None:
            return False
        rest.remove(issuer)
        current = issuer


def _certificates(encoded: str) -> list[Certificate]:
    """The certificates of base64 text around PEM; none if it is anything else."""
    try:
        return pki.split(base64.b64decode(encoded, validate=True))
    except (binascii.Error, ValueError):
        return []


def _valid(certificate: Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _spent(certificate: Certificate, now: datetime) -> float:
    """Which part of its life is over."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return (now - begin) / (end - begin)
