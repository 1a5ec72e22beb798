"""The doctor looks at an installation's own parts, and names what is broken in them, one seeded fault at a time."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from inferencecache.api.kinds import crds
from inferencecache.cli.install import (
    CERTIFICATE_SECRET,
    MUTATING_CONFIGURATION,
    VALIDATING_CONFIGURATION,
    WEBHOOK_SERVICE,
    webhook_configurations,
)
from inferencecache.doctor.checks import examine
from inferencecache.doctor.findings import Check, Finding
from inferencecache.doctor.installation import (
    CustomResourceDefinition,
    EndpointSlice,
    MutatingConfiguration,
    ValidatingConfiguration,
    shipped,
)
from inferencecache.doctor.observe import Scope, observe
from inferencecache.kube import pki
from inferencecache.kube.certificates import SelfMadeCertificates, ServingCertificate
from inferencecache.kube.client import Client
from inferencecache.kube.connection import connect
from inferencecache.kube.envtest import ControlPlane, install_crds
from inferencecache.kube.errors import NotFound
from inferencecache.kube.kinds import Secret, Service
from inferencecache.kube.resource import Key
from tests.integration.doctor.test_doctor import READER_RULES, reader
from tests.integration.kube.waiting import eventually
from tests.integration.server.test_auth import Accounts
from tests.integration.server.test_auth import kubeconfig as kubeconfig_of

ABOUT = (Check.ADMISSION, Check.KINDS)
MUTATING, VALIDATING = Key("", MUTATING_CONFIGURATION), Key("", VALIDATING_CONFIGURATION)
POD_WEBHOOK = 1  # its place in the mutating configuration


@dataclass(frozen=True)
class Installed:
    """The webhooks of an installation whose namespace is a test's, in good health."""

    client: Client
    namespace: str

    @property
    def service(self) -> Key:
        return Key(self.namespace, WEBHOOK_SERVICE)

    @property
    def secret(self) -> Key:
        return Key(self.namespace, CERTIFICATE_SECRET)

    async def endpoint(self, *, ready: bool) -> None:
        """Play the controller of EndpointSlices."""
        await self.client.apply(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": "slice",
                    "namespace": self.namespace,
                    "labels": {"kubernetes.io/service-name": WEBHOOK_SERVICE},
                },
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["10.1.2.3"], "conditions": {"ready": ready}}],
                "ports": [{"port": 9443}],
            }
        )

    async def serve(self, *, made: timedelta = timedelta(), days: float = 90, ca: pki.Pair | None = None) -> None:
        """Put another certificate into the Secret, by its own CA unless another is given."""
        data = (await self.client.get(Secret, self.secret)).data
        own = pki.Pair(*(base64.b64decode(data[name]) for name in ("ca.crt", "ca.key")))
        host = f"{WEBHOOK_SERVICE}.{self.namespace}.svc"
        pair = pki.issue(ca or own, [host], now=datetime.now(UTC) - made, lifetime=timedelta(days=days))
        changed = {"data": {"tls.crt": base64.b64encode(pair.certificate).decode()}}
        await self.client.patch(Secret.resource, self.secret, changed)

    async def found(self, client: Client | None = None) -> list[Finding]:
        """What the doctor says of it."""
        scope = Scope(config_only=True, webhooks=shipped(webhook_configurations()))
        report = examine(await observe(client or self.client, scope))
        return [one for one in report.findings if one.check in ABOUT]


@pytest.fixture
async def installed(client: Client, namespace: str) -> AsyncIterator[Installed]:
    """An installation whose certificates the controller's own code has made."""
    await install_crds(client, crds())
    installation = Installed(client, namespace)
    for configuration in webhook_configurations():
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"]["service"]["namespace"] = namespace
        await client.apply(configuration)
    service = {"metadata": {"name": WEBHOOK_SERVICE, "namespace": namespace}, "spec": {"ports": [{"port": 443}]}}
    await client.apply({"apiVersion": "v1", "kind": "Service", **service})
    await installation.endpoint(ready=True)
    certificates = SelfMadeCertificates(
        client,
        ServingCertificate(),
        secret=installation.secret,
        hosts=[f"{WEBHOOK_SERVICE}.{namespace}.svc"],
        mutating=[MUTATING.name],
        validating=[VALIDATING.name],
    )
    await certificates.reconcile(installation.secret)
    try:
        yield installation
    finally:
        for kind, key in ((MutatingConfiguration, MUTATING), (ValidatingConfiguration, VALIDATING)):
            with contextlib.suppress(NotFound):
                await client.delete(kind.resource, key)


async def test_an_installation_in_good_health_is_ok(installed: Installed) -> None:
    found = await installed.found()
    assert {one.code for one in found} == {"WH010", "CD004"}
    assert {one.resource for one in found if one.code == "WH010"} == {
        f"mutatingwebhookconfiguration/{MUTATING.name}",
        f"validatingwebhookconfiguration/{VALIDATING.name}",
        f"service/{installed.service}",
        f"secret/{installed.secret}",
    }
    assert len([one for one in found if one.code == "CD004"]) == len(crds())


async def _delete(client: Client, kind: Any, key: Key) -> None:
    await client.delete(kind.resource, key)


async def _patch(client: Client, kind: Any, key: Key, op: str, path: str, **value: Any) -> None:
    await client.patch(kind.resource, key, [{"op": op, "path": path, **value}], type="json")


Seed = Callable[[Installed], Awaitable[None]]
_WEBHOOKS = f"/webhooks/{POD_WEBHOOK}"
_BACKENDS = Key("", "cachebackends.inferencecache.io")
_FIELD = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/engineSelector"

FAULTS: dict[str, tuple[Seed, str, str]] = {
    "no mutating configuration": (
        lambda i: _delete(i.client, MutatingConfiguration, MUTATING),
        "WH001",
        f"mutatingwebhookconfiguration/{MUTATING.name}",
    ),
    "no webhook of Pods": (
        lambda i: _patch(i.client, MutatingConfiguration, MUTATING, "remove", _WEBHOOKS),
        "WH002",
        f"mutatingwebhookconfiguration/{MUTATING.name}",
    ),
    "a policy that lets everything pass": (
        lambda i: _patch(
            i.client, ValidatingConfiguration, VALIDATING, "replace", "/webhooks/0/failurePolicy", value="Ignore"
        ),
        "WH003",
        f"validatingwebhookconfiguration/{VALIDATING.name}",
    ),
    "no caBundle": (
        lambda i: _patch(i.client, MutatingConfiguration, MUTATING, "remove", f"{_WEBHOOKS}/clientConfig/caBundle"),
        "WH004",
        f"mutatingwebhookconfiguration/{MUTATING.name}",
    ),
    "no endpoints": (
        lambda i: _delete(i.client, EndpointSlice, Key(i.namespace, "slice")),
        "WH005",
        "service/{service}",
    ),
    "no ready endpoint": (lambda i: i.endpoint(ready=False), "WH005", "service/{service}"),
    "no Service": (lambda i: _delete(i.client, Service, i.service), "WH005", "service/{service}"),
    "an expired certificate": (lambda i: i.serve(made=timedelta(days=2), days=1), "WH006", "secret/{secret}"),
    "a certificate of a stranger": (
        lambda i: i.serve(ca=pki.make_ca("stranger", now=datetime.now(UTC), lifetime=timedelta(days=9))),
        "WH006",
        "secret/{secret}",
    ),
    "a certificate that nobody renews": (
        lambda i: i.serve(made=timedelta(days=80), days=90),
        "WH007",
        "secret/{secret}",
    ),
    "no Secret": (lambda i: _delete(i.client, Secret, i.secret), "WH008", "secret/{secret}"),
    "no kind": (
        lambda i: _delete(i.client, CustomResourceDefinition, Key("", "pdtopologies.inferencecache.io")),
        "CD001",
        "customresourcedefinition/pdtopologies.inferencecache.io",
    ),
    "a version that is not served": (
        lambda i: _patch(
            i.client,
            CustomResourceDefinition,
            Key("", "prompttemplates.inferencecache.io"),
            *("replace", "/spec/versions/0/served"),
            value=False,
        ),
        "CD002",
        "customresourcedefinition/prompttemplates.inferencecache.io",
    ),
    "a kind of an older version": (
        lambda i: _patch(i.client, CustomResourceDefinition, _BACKENDS, "remove", _FIELD),
        "CD003",
        f"customresourcedefinition/{_BACKENDS.name}",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_seeded_fault_is_named_and_nothing_else(installed: Installed, fault: str) -> None:
    seed, code, resource = FAULTS[fault]
    expected = (code, resource.format(service=installed.service, secret=installed.secret))

    async def named() -> set[tuple[str, str]]:
        return {(one.code, one.resource) for one in await installed.found() if one.code not in ("WH010", "CD004")}

    await seed(installed)
    try:
        # The API server takes a moment to stop serving a kind.
        await eventually(named, lambda found: found == {expected})
    finally:
        if code.startswith("CD"):  # others use this control plane, too
            await install_crds(installed.client, crds())


async def test_what_one_may_not_read_is_said_and_a_key_is_no_such_loss(
    installed: Installed, control_plane: ControlPlane, accounts: Accounts, tmp_path: Path
) -> None:
    namespace = installed.namespace
    config = kubeconfig_of(control_plane, await accounts.token("reader"), tmp_path / "reader.kubeconfig")
    async with await connect(config) as connection:
        client = Client(connection, field_manager="reader")

        async def named() -> set[tuple[str, str]]:
            return {(one.code, one.resource) for one in await installed.found(client)}

        forbidden = {
            ("API001", resource)
            for resource in (
                "MutatingWebhookConfiguration",
                "ValidatingWebhookConfiguration",
                "CustomResourceDefinition",
            )
        }
        await reader(installed.client, namespace, READER_RULES[:1])
        await eventually(named, lambda found: found == forbidden)
        await reader(installed.client, namespace, READER_RULES)
        found = await eventually(named, lambda found: not any(code == "API001" for code, _ in found))
    assert ("WH008", f"secret/{installed.secret}") in found
    assert {code for code, _ in found} == {"WH008", "WH010", "CD004"}
