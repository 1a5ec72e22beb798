"""Serving certificates of a webhook listener, renewed without a restart (decision A8).

A listener has one `ServingCertificate`: a TLS context that presents whatever is loaded last. It is fed from one of two
sources. `watch_files` follows a mounted pair, as cert-manager writes it. `SelfMadeCertificates` is a reconciler that
keeps a CA and a certificate in a Secret which all replicas share, and the CA in the `caBundle` of webhook
configurations.

A rotation must fail no request, so what trusts goes ahead of what is trusted:

    new CA, bundle = old + new ──── OVERLAP ────▶ certificate from the new CA ──── old CA expires ────▶ bundle = new

Whoever writes the Secret first wins; a replica that loses the race reads what the winner wrote and serves that.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

import structlog

from inferencecache.kube import pki
from inferencecache.kube.client import Client
from inferencecache.kube.controller import Result
from inferencecache.kube.errors import AlreadyExists, Conflict, Invalid, NotFound
from inferencecache.kube.kinds import ObjectMeta, Secret, View
from inferencecache.kube.manager import Manager
from inferencecache.kube.pki import Pair
from inferencecache.kube.resource import Key, Manifest, Resource, ResourceType

CA_LIFETIME: Final = timedelta(days=365)
SERVING_LIFETIME: Final = timedelta(days=90)
OVERLAP: Final = timedelta(hours=1)
"""How long a CA is trusted before it signs; far longer than any API server takes to see a new `caBundle`."""

_RECHECK: Final = timedelta(minutes=10)
_ATTEMPTS: Final = 5
_log = structlog.stdlib.get_logger(__name__)


class ServingCertificate:
    """What a TLS listener presents. `context` stays the same object for the listener's whole life.

    It holds no certificate itself. Each handshake is handed on to a context that was made for the present pair: one
    that was loaded anew would keep the old pair beside the new if their keys differ in type, and present either.
    """

    def __init__(self) -> None:
        self.context = pki.server_context()
        self.context.sni_callback = self._on_handshake
        self._current: ssl.SSLContext | None = None
        self._pair: Pair | None = None
        self._loaded = asyncio.Event()

    @property
    def loaded(self) -> bool:
        """Whether there is a certificate to present."""
        return self._pair is not None

    async def wait_loaded(self) -> None:
        """Wait for the first certificate."""
        await self._loaded.wait()

    def load(self, pair: Pair) -> bool:
        """Present this pair from the next handshake on; true if it is another one. Raises `ValueError` if unusable."""
        if pair == self._pair:
            return False
        self._current = pki.server_context(pair)
        self._pair = pair
        self._loaded.set()
        _log.info("serving certificate loaded", not_after=pair.x509.not_valid_after_utc.isoformat())
        return True

    def _on_handshake(self, connection: ssl.SSLObject, _name: str | None, _outer: ssl.SSLContext) -> None:
        if self._current is not None:
            connection.context = self._current

    def complaint(self) -> str | None:
        """A ready check: why the listener cannot be reached yet, or no longer."""
        if self._pair is None:
            return "the webhook listener has no certificate yet"
        if self._pair.x509.not_valid_after_utc <= datetime.now(UTC):
            return "the certificate of the webhook listener has expired"
        return None


# ------------------------------------------------------------------------------------------------------ from files


def read_files(folder: Path) -> Pair | None:
    """The pair `tls.crt`, `tls.key` of a folder; None if either is missing or empty."""
    try:
        pair = Pair((folder / "tls.crt").read_bytes(), (folder / "tls.key").read_bytes())
    except OSError:
        return None
    return pair if pair.certificate and pair.key else None


async def watch_files(
    folder: Path, certificate: ServingCertificate, *, period: timedelta = timedelta(seconds=5)
) -> None:
    """Load a mounted pair, and load it anew whenever it changes, until cancelled.

    Two files are not replaced at one moment. A pair that does not fit together is passed over until it does, and what
    was served before goes on being served.
    """
    complained: Pair | None = None
    while True:
        pair = await asyncio.to_thread(read_files, folder)
        if pair is not None and pair != complained:
            try:
                certificate.load(pair)
                complained = None
            except ValueError as error:
                complained = pair
                _log.warning("certificate files are not usable (yet)", folder=str(folder), error=str(error))
        await asyncio.sleep(period.total_seconds())


# -------------------------------------------------------------------------------------------------------- self-made


@dataclass(frozen=True, slots=True)
class Authority:
    """What the Secret holds: the CA that signs, all CAs that are trusted, and the certificate that is served."""

    ca: Pair
    bundle: bytes
    serving: Pair

    @classmethod
    def read(cls, secret: Manifest) -> Authority | None:
        """The content of a Secret; None if it is incomplete or unreadable, and so has to be made anew."""
        data = secret.get("data") or {}
        with contextlib.suppress(KeyError, ValueError):
            raw = {name: base64.b64decode(data[name], validate=True) for name in cls.names}
            ca, serving = Pair(raw["ca.crt"], raw["ca.key"]), Pair(raw["tls.crt"], raw["tls.key"])
            ca.check()
            serving.check()
            pki.split(raw["ca-bundle.crt"])
            return cls(ca, raw["ca-bundle.crt"], serving)
        return None

    names: ClassVar = ("ca.crt", "ca.key", "ca-bundle.crt", "tls.crt", "tls.key")

    @property
    def data(self) -> dict[str, str]:
        """`data` of the Secret."""
        values = (self.ca.certificate, self.ca.key, self.bundle, self.serving.certificate, self.serving.key)
        return {name: base64.b64encode(value).decode() for name, value in zip(self.names, values, strict=True)}


def due(authority: Authority | None, hosts: Sequence[str], *, now: datetime) -> Authority:
    """What the Secret should hold at `now`; the given value itself when nothing is due."""
    if authority is None or authority.ca.x509.not_valid_after_utc <= now:
        ca = pki.make_ca("webhook-ca", now=now, lifetime=CA_LIFETIME)
        return Authority(ca, ca.certificate, pki.issue(ca, hosts, now=now, lifetime=SERVING_LIFETIME))
    if pki.renewal_of(authority.ca.x509) <= now:
        authority = replace(authority, ca=pki.make_ca("webhook-ca", now=now, lifetime=CA_LIFETIME))
    trusted = [authority.ca.x509]
    trusted += [one for one in pki.split(authority.bundle) if one not in trusted and one.not_valid_after_utc > now]
    bundle = pki.joined(trusted)
    if bundle != authority.bundle:
        authority = replace(authority, bundle=bundle)
    leaf = authority.serving.x509
    useless = leaf.not_valid_after_utc <= now or not any(pki.is_issued_by(leaf, one) for one in trusted)
    wanted = (
        useless
        or pki.renewal_of(leaf) <= now
        or not set(hosts) <= pki.hosts_of(leaf)
        or not pki.is_issued_by(leaf, authority.ca.x509)
    )
    # A certificate that nobody can use any more is not worth waiting for trust to spread.
    trust_has_spread = now >= pki.made_at(authority.ca.x509) + OVERLAP or trusted == [authority.ca.x509]
    if wanted and (useless or trust_has_spread):
        authority = replace(authority, serving=pki.issue(authority.ca, hosts, now=now, lifetime=SERVING_LIFETIME))
    return authority


class MutatingWebhookConfiguration(View, frozen=True):
    """Whether it changed is all that is read."""

    resource: ClassVar[Resource] = ResourceType(
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        namespaced=False,
    )
    metadata: ObjectMeta = ObjectMeta()


class ValidatingWebhookConfiguration(View, frozen=True):
    """Whether it changed is all that is read."""

    resource: ClassVar[Resource] = ResourceType(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        namespaced=False,
    )
    metadata: ObjectMeta = ObjectMeta()


class SelfMadeCertificates:
    """Keeps a Secret, the listener's certificate and `caBundle`s in step; every replica runs one.

    Args:
        secret: where the CA and the certificate are kept.
        hosts: names (and addresses) under which the API server calls the listener.
        mutating, validating: names of the webhook configurations whose every webhook calls this listener.
    """

    def __init__(
        self,
        client: Client,
        certificate: ServingCertificate,
        *,
        secret: Key,
        hosts: Sequence[str],
        mutating: Sequence[str] = (),
        validating: Sequence[str] = (),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._certificate = certificate
        self._secret = secret
        self._hosts = list(hosts)
        self._configurations = [(MutatingWebhookConfiguration, name) for name in mutating]
        self._configurations += [(ValidatingWebhookConfiguration, name) for name in validating]  # type: ignore[misc]
        self._now = now

    def install(self, manager: Manager) -> None:
        """Run with a manager, on every replica, awake to each change of the Secret and of the configurations."""
        controller = manager.controller("webhook-certificates", self, workers=1, leader_only=False)
        informer = manager.cache.informer(
            Secret, namespace=self._secret.namespace, fields=f"metadata.name={self._secret.name}"
        )
        controller.watches(Secret, lambda _: [self._secret], informer=informer)
        for kind, name in self._configurations:
            one = manager.cache.informer(kind, fields=f"metadata.name={name}")
            controller.watches(kind, lambda _: [self._secret], informer=one)
        controller.enqueue(self._secret)

    async def reconcile(self, _: Key) -> Result:
        """Make or rotate what is due, serve it, and have it trusted."""
        authority = await self._settle()
        for kind, name in self._configurations:
            await self._trust(kind.resource, name, authority.bundle)
        # Trusted first, served second: a fresh CA is of no use to a server that does not know it.
        self._certificate.load(authority.serving)
        return Result(requeue_after=_RECHECK)

    async def _settle(self) -> Authority:
        for _ in range(_ATTEMPTS):
            try:
                secret: Manifest | None = await self._client.get_manifest(Secret.resource, self._secret)
            except NotFound:
                secret = None
            known = Authority.read(secret) if secret is not None else None
            wanted = await asyncio.to_thread(due, known, self._hosts, now=self._now())
            if wanted == known:
                return wanted
            with contextlib.suppress(AlreadyExists, Conflict):  # another replica was faster: read what it wrote
                await self._write(secret, wanted)
                _log.info("webhook certificates written", secret=str(self._secret), anew=known is None)
                return wanted
        raise Conflict(f"Secret {self._secret} changes faster than it can be written", status=409)

    async def _write(self, secret: Manifest | None, wanted: Authority) -> None:
        if secret is None:
            metadata = {"namespace": self._secret.namespace, "name": self._secret.name}
            await self._client.create(
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": metadata,
                    "type": "kubernetes.io/tls",
                    "data": wanted.data,
                }
            )
        else:
            await self._client.replace(Secret.resource, self._secret, {**secret, "data": wanted.data})

    async def _trust(self, resource: Resource, name: str, bundle: bytes) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                configuration = await self._client.get_manifest(resource, Key("", name))
                patch = ca_bundle_patch(configuration, bundle)
                if patch:
                    await self._client.patch(resource, Key("", name), patch, type="json")
                    _log.info("caBundle written", kind=resource.kind, configuration=name)
            except NotFound:
                _log.debug("webhook configuration not installed", kind=resource.kind, configuration=name)
                return
            except (Conflict, Invalid):  # its webhooks were changed meanwhile: a failed `test` is answered with 422
                if attempt == _ATTEMPTS:
                    raise
            else:
                return


def ca_bundle_patch(configuration: Manifest, bundle: bytes) -> list[dict[str, Any]]:
    """The JSON patch that gives every webhook of a configuration this `caBundle`; empty if all have it."""
    encoded = base64.b64encode(bundle).decode()
    patch: list[dict[str, Any]] = []
    for index, webhook in enumerate(configuration.get("webhooks") or []):
        if webhook["clientConfig"].get("caBundle") != encoded:
            patch.append({"op": "test", "path": f"/webhooks/{index}/name", "value": webhook["name"]})
            patch.append({"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": encoded})
    return patch
