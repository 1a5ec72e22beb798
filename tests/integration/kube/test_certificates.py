"""Replicas share one CA, and the API server is told of it again whenever somebody overwrites it."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from inferencecache.kube import Client, Key, Manager, Secret
from inferencecache.kube.certificates import (
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
                await asyncio.wait_for(asyncio.gather(*(replica.wait_loaded() for replica in replicas)), 20)
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
                version = (await client.get_manifest(kind, Key("", name)))["metadata"]["resourceVersion"]
                await asyncio.sleep(0.5)
                assert (await client.get_manifest(kind, Key("", name)))["metadata"]["resourceVersion"] == version
    finally:
        await client.delete(kind, Key("", name))
