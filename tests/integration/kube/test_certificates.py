"""Replicas share one CA, and the API server is told of it again whenever somebody overwrites it."""

from __future__ import annotations

import asyncio
import base64
import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY

from inferencecache.kube import Client, Key, Manager, Secret, pki
from inferencecache.kube.certificates import (
    CA_LIFETIME,
    Authority,
    SelfMadeCertificates,
    ServingCertificate,
    ValidatingWebhookConfiguration,
)
from inferencecache.kube.envtest import ControlPlane
from tests.integration.kube.widgets import connected, eventually, options, running


def configuration(name: str) -> dict[str, Any]:
    webhook = {
        "name": "nothing.example.io",
        "clientConfig": {"url": "https://127.0.0.1:1/validate"},
        "rules": [{"apiGroups": ["none.example.io"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [webhook],
    }


async def test_replicas_converge_on_one_ca_and_restore_an_overwritten_bundle(
    control_plane: ControlPlane, client: Client, namespace: str
) -> None:
    name, secret = f"certs-{namespace}", Key(namespace, "webhook-server-cert")
    kind = ValidatingWebhookConfiguration.resource
    await client.create(configuration(name))
    replicas = [ServingCertificate() for _ in range(3)]

    async def bundle() -> str:
        live = await client.get_manifest(kind, Key("", name))
        return str(live["webhooks"][0]["clientConfig"].get("caBundle", ""))

    try:
        async with connected(control_plane) as one:
            managers = [Manager(one, options=options(metrics_address="0", health_address="0")) for _ in replicas]
            for manager, certificate in zip(managers, replicas, strict=True):
                made = SelfMadeCertificates(one, certificate, secret=secret, hosts=["localhost"], validating=[name])
                made.install(manager)
            async with running(managers[0]), running(managers[1]), running(managers[2]):
                await asyncio.wait_for(asyncio.gather(*(replica.wait_loaded() for replica in replicas)), 60)
                authority = Authority.read(await client.get_manifest(Secret.resource, secret))
                assert authority is not None
                wanted = base64.b64encode(authority.bundle).decode()

                async def in_step() -> bool:
                    return await bundle() == wanted and all(r._pair == authority.serving for r in replicas)

                await eventually("one CA everywhere", in_step)
                await client.patch(kind, Key("", name), configuration(name))  # as a re-applied manifest would
                await eventually("the bundle restored", in_step)
                await client.delete(Secret.resource, secret)

                async def anew() -> bool:
                    now = Authority.read(await client.get_manifest(Secret.resource, secret))
                    return now is not None and now != authority and all(r._pair == now.serving for r in replicas)

                await eventually("a deleted Secret made anew", anew)

                def passes() -> float:
                    labels = {"controller": "webhook-certificates", "result": "requeue_after"}
                    return REGISTRY.get_sample_value("controller_runtime_reconcile_total", labels) or 0.0

                before = passes()
                label = {"metadata": {"labels": {"looked": "at"}}}
                version = (await client.patch(kind, Key("", name), label))["metadata"]["resourceVersion"]

                async def looked_at() -> bool:
                    return passes() >= before + len(replicas)

                await eventually("all replicas have looked again", looked_at)
                assert (await client.get_manifest(kind, Key("", name)))["metadata"]["resourceVersion"] == version
    finally:
        await client.delete(kind, Key("", name))


async def test_a_change_of_the_ca_fails_no_handshake_with_what_the_api_server_knew_before(
    client: Client, namespace: str
) -> None:
    """A year of rotations, shifted so that what is served at each step is valid on the day of the test."""
    name = f"ca-{namespace}"
    kind = ValidatingWebhookConfiguration.resource
    today = datetime.now(UTC)
    now = today
    certificate = ServingCertificate()
    made = SelfMadeCertificates(
        client,
        certificate,
        secret=Key(namespace, "changeover"),
        hosts=["localhost"],
        validating=[name],
        now=lambda: now,
    )

    async def bundle() -> bytes:
        live = await client.get_manifest(kind, Key("", name))
        return base64.b64decode(live["webhooks"][0]["clientConfig"]["caBundle"])

    async def shake_hands(trusted: bytes) -> None:
        """As the API server would: by host name, trusting this bundle and nothing else."""
        context = ssl.create_default_context(cadata=trusted.decode())
        _, writer = await asyncio.open_connection(
            "127.0.0.1", server.sockets[0].getsockname()[1], ssl=context, server_hostname="localhost"
        )
        writer.close()

    await client.create(configuration(name))
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=certificate.context)
    try:
        first_renewal = CA_LIFETIME * 2 / 3
        sizes, knew = [], b""
        for moment in (
            today - first_renewal - timedelta(hours=2),  # the first CA
            today - timedelta(days=1),  # its certificate renewed
            today - timedelta(hours=2) + timedelta(minutes=1),  # the second CA: trusted, but not yet used
            today - timedelta(minutes=30),  # a certificate of the second CA
        ):
            now = moment
            await made.reconcile(Key("", ""))
            knows = await bundle()
            sizes.append(len(pki.split(knows)))
            if moment >= today - timedelta(days=1):
                await shake_hands(knew)
                await shake_hands(knows)
            knew = knows
        assert sizes == [1, 1, 2, 2]
        old, new = sorted(pki.split(knew), key=pki.made_at)
        await shake_hands(pki.joined([new]))
        with pytest.raises(ssl.SSLCertVerificationError):  # so the order did matter
            await shake_hands(pki.joined([old]))
    finally:
        server.close()
        await client.delete(kind, Key("", name))
