"""Observations for tests: a healthy installation, from which each situation differs in one thing."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.api.kinds import crds
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.cli.install import NAMESPACE, WEBHOOK_SERVICE, webhook_configurations
from inferencecache.doctor.events import PodEvent, Reference
from inferencecache.doctor.installation import (
    CertificateSecret,
    CustomResourceDefinition,
    EndpointSlice,
    Installation,
    service_of,
    shipped,
)
from inferencecache.doctor.observe import Observations
from inferencecache.doctor.reading import Found, Read
from inferencecache.doctor.server import Address, Answer, Health, ServerAnswers
from inferencecache.kube import pki
from inferencecache.kube.kinds import Pod, Service

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
RECENTLY, LONG_AGO = NOW - timedelta(seconds=30), NOW - timedelta(hours=3)
MANAGED = {"provider": "LMCacheServer", "ownership": "Managed"}
EXTERNAL = {"provider": "Redis", "ownership": "External", "endpoint": "redis.ns:6379"}


def stamp(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


def condition(kind: str, status: str = "True", reason: str = "Fine", message: str = "told") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": stamp(NOW)}


def meta(name: str, *, namespace: str | None = "ns", uid: str = "", **more: Any) -> dict[str, Any]:
    return {"name": name, "uid": uid or f"uid-{name}", **({"namespace": namespace} if namespace else {}), **more}


def backend(name: str = "kv", *, status: dict[str, Any] | None = None, **spec: Any) -> CacheBackend:
    """A managed backend in good health; `status` replaces fields of it, and None takes one away."""
    told = {
        "endpoint": "kv.ns.svc:65432",
        "matchedEnginePods": 1,
        "firstKVEventObservedAt": stamp(LONG_AGO),
        "indexParticipation": {"prefixCount": 7, "lastEventAt": stamp(RECENTLY)},
        "conditions": [condition("Ready"), condition("FunctionalProbeOK")],
        **(status or {}),
    }
    defaults = {
        "runtime": "VLLM",
        "type": "LMCache",
        "remoteStorage": MANAGED,
        "engineSelector": {"matchLabels": {"app": "engine"}},
        "observation": {"modelID": "m"},
    }
    wanted = {key: value for key, value in {**defaults, **spec}.items() if value is not None}
    return CacheBackend.decode({"metadata": meta(name), "spec": wanted, "status": told})


def pod(name: str = "engine-0", *, labels: dict[str, str] | None = None, phase: str = "Running", **given: str) -> Pod:
    """An engine Pod; keyword arguments are annotations of ours, with underscores. Without any it is wired to `kv`."""
    if given:
        annotations = {f"inferencecache.io/{key.replace('_', '-')}": value for key, value in given.items() if value}
    else:
        annotations = {"inferencecache.io/injected-by": "ns/kv", "inferencecache.io/injected-by-uid": "uid-kv"}
    return msgspec.convert(
        {
            "metadata": meta(name, labels=labels or {"app": "engine"}, annotations=annotations),
            "status": {"phase": phase},
        },
        Pod,
    )


UNWIRED = {"nothing": ""}
"""For `pod(**UNWIRED)`: no annotation of ours."""


def event(reason: str, *, pod: str = "engine-0", at: datetime | None = RECENTLY, message: str = "told") -> PodEvent:
    reference = Reference(kind="Pod", namespace="ns", name=pod, uid=f"uid-{pod}")
    return PodEvent(f"{reason}-{pod}", reason, message, reference, at)


def tenant(*conditions: dict[str, str], entries: int | None = 5, quota: int | None = 10) -> CacheTenant:
    return CacheTenant.decode(
        {
            "metadata": meta("t"),
            "spec": {"tenantID": "team-a", "quota": {"maxIndexEntries": quota}},
            "status": {"indexEntries": entries, "conditions": list(conditions)},
        }
    )


def policy(name: str = "p") -> CachePolicy:
    return CachePolicy.decode({"metadata": meta(name), "spec": {}})


def snapshot(updated: datetime | None = RECENTLY, *, replica: str = "engine-0") -> dict[str, Any]:
    row = {"replicaId": replica, "tenant": "ns", "lastUpdate": stamp(updated)} if updated else None
    return {"replicas": [row] if row else None, "tenants": None, "totalPrefixes": 7, "hotPrefixes": 0}


def server(**changed: Any) -> ServerAnswers:
    """A server in good health that was shown a token."""
    address = Address("10.0.0.1")
    well = ServerAnswers(
        address,
        health=Health("SERVING"),
        snapshot=Answer(address.url("/snapshot"), 200, document=snapshot()),
        policy=Answer(address.url("/policy"), 405),
        probe=Answer(address.url("/probe"), 405),
        token_sent=True,
    )
    return replace(well, **changed)


def answered(path: str, **how: Any) -> Answer:
    return Answer(Address("10.0.0.1").url(path), **how)


def store(phase: str = "Ready", *conditions: dict[str, str], used_by: tuple[str, ...] = (), **metadata: Any) -> Any:
    used = [{"kind": "KVCachePool", "namespace": "", "name": name} for name in used_by]
    status = {"phase": phase, "phaseMessage": "told", "conditions": list(conditions), "usedBy": used}
    return KVCacheBackend.decode({"metadata": meta("store", namespace=None, **metadata), "status": status})


def pool(phase: str = "Ready", *conditions: dict[str, str], **metadata: Any) -> KVCachePool:
    spec = {"backends": ["store"], "quota": {"total": "1Gi"}}
    status = {"phase": phase, "phaseMessage": "told", "conditions": list(conditions)}
    return KVCachePool.decode({"metadata": meta("pool", namespace=None, **metadata), "spec": spec, "status": status})


def binding(
    phase: str = "Ready",
    *conditions: dict[str, str],
    pool: str = "pool",
    usage: str | None = "1Mi",
    grant: str | None = "2Mi",
    over: bool = False,
    used_by: tuple[str, ...] = (),
    **metadata: Any,
) -> KVCachePoolBinding:
    spec = {
        "poolRef": {"name": pool},
        "quota": {"ceiling": "2Mi"},
        "domain": {"name": "d", "blockSize": 16, "dtype": "bfloat16"},
    }
    figures = {"usage": usage, "effectiveQuota": grant, "overQuota": over}
    used = [{"kind": "CacheBackend", "namespace": "", "name": name} for name in used_by]
    status = {"phase": phase, "phaseMessage": "told", "conditions": list(conditions), "usedBy": used, **figures}
    return KVCachePoolBinding.decode({"metadata": meta("b", **metadata), "spec": spec, "status": status})


CA = pki.make_ca("ca", now=LONG_AGO, lifetime=timedelta(days=365))
WEBHOOK_HOST = f"{WEBHOOK_SERVICE}.{NAMESPACE}.svc"
Document = dict[str, Any]
Edit = Callable[[Document], None]


def base64_of(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def serving(ca: pki.Pair = CA, host: str = WEBHOOK_HOST, *, made: datetime = LONG_AGO, days: float = 90) -> bytes:
    """A serving certificate."""
    return pki.issue(ca, [host], now=made, lifetime=timedelta(days=days)).certificate


def behind_an_intermediate() -> bytes:
    """A serving certificate that an intermediate of `CA` issued, with that."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "between")])
    between = pki.make_ca("between", now=LONG_AGO, lifetime=timedelta(days=300))
    key, signer = (load_pem_private_key(pair.key, None) for pair in (between, CA))
    assert isinstance(signer, EllipticCurvePrivateKey)
    certificate = (
        x509.CertificateBuilder(CA.x509.subject, name, key.public_key(), 7, LONG_AGO, LONG_AGO + timedelta(days=300))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(signer, hashes.SHA256())
    )
    return serving(between) + certificate.public_bytes(Encoding.PEM)


def webhooks_of(document: Document) -> list[Document]:
    found: list[Document] = document["webhooks"]
    return found


def installation(
    webhooks: Edit | None = None,
    *,
    crd: Edit | None = None,
    endpoints: Read[EndpointSlice] | tuple[bool | None, ...] = (True,),
    certificate: bytes | Found[CertificateSecret] | None = None,
    bundle: bytes = CA.certificate,
    **changed: Any,
) -> Installation:
    """One in good health. `webhooks` and `crd` change each webhook configuration and each CRD as they are found."""
    found = []
    for document in webhook_configurations():
        for webhook in webhooks_of(document):
            webhook["clientConfig"]["caBundle"] = base64_of(bundle)
        if webhooks is not None:
            webhooks(document)
        found.append(Found(shipped([document])[0]))
    definitions = {}
    for kind in crds():
        document = msgspec.json.decode(msgspec.json.encode(kind))
        document["status"] = {"conditions": [condition("NamesAccepted"), condition("Established")]}
        if crd is not None:
            crd(document)
        definitions[document["metadata"]["name"]] = Found(msgspec.convert(document, CustomResourceDefinition))
    if isinstance(endpoints, tuple):
        slices = [{"endpoints": [{"conditions": {"ready": ready}} for ready in endpoints]}]
        endpoints = read(*msgspec.convert(slices, list[EndpointSlice]))
    if not isinstance(certificate, Found):
        pem = base64_of(serving() if certificate is None else certificate)
        certificate = Found(msgspec.convert({"data": {"tls.crt": pem}}, CertificateSecret))
    well = Installation(
        shipped=shipped(webhook_configurations()),
        configurations=tuple(found),
        service_key=service_of(found),
        service=Found(Service()),
        endpoints=endpoints,
        certificate=certificate,
        kinds=definitions,
    )
    return replace(well, **changed)


def read(*items: Any) -> Read[Any]:
    return Read(items)


def failed(why: str = "forbidden", *, served: bool = True) -> Read[Any]:
    return Read(failure=why, served=served)


def seen(**changed: Any) -> Observations:
    """A healthy installation of both halves."""
    well = Observations(
        now=NOW,
        server=server(),
        backends=read(backend()),
        policies=read(policy()),
        tenants=read(tenant()),
        pods=read(pod()),
        dials={"kv.ns.svc:65432": ""},
        stores=read(store(used_by=("pool",))),
        pools=read(pool()),
        bindings=read(binding()),
        installation=installation(),
    )
    return replace(well, **changed)
