"""The control plane for tests: restartable, with users of its own, and clear about what is missing."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from inferencecache.kube.client import Client
from inferencecache.kube.connection import connect
from inferencecache.kube.envtest import ControlPlane, ControlPlaneError, find_binaries, install_crds
from inferencecache.kube.errors import Forbidden, TransportError
from inferencecache.kube.kinds import ConfigMap, Namespace
from inferencecache.kube.resource import Key, Manifest

GADGETS: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gadgets.envtest.example.net"},
    "spec": {
        "group": "envtest.example.net",
        "scope": "Namespaced",
        "names": {"kind": "Gadget", "plural": "gadgets", "singular": "gadget"},
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}


def test_missing_binaries_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ControlPlaneError, match=r"hack/get-control-plane\.sh") as caught:
        find_binaries()
    assert str(tmp_path / "assets") in str(caught.value)


async def test_definitions_are_served_once_installed(client: Client, namespace: str) -> None:
    await install_crds(client, [GADGETS])
    gadget = {"apiVersion": "envtest.example.net/v1", "kind": "Gadget", "metadata": {"name": "g"}}
    await client.create({**gadget, "metadata": {"name": "g", "namespace": namespace}})


async def test_a_plane_outlives_its_api_server_and_has_users_of_its_own() -> None:
    with ControlPlane() as plane:
        async with await connect(plane.admin) as connection:
            client = Client(connection, field_manager="test")
            await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kept"}})

            plane.add_user("reader", "readers")
            await asyncio.to_thread(plane.stop_apiserver)
            with pytest.raises(TransportError):
                await Client(connection, field_manager="test", timeout=timedelta(seconds=1)).get(
                    Namespace, Key("", "kept")
                )
            await asyncio.to_thread(plane.start_apiserver)
            assert (await client.get(Namespace, Key("", "kept"))).metadata.name == "kept"
        async with await connect(plane.kubeconfig("reader")) as connection:
            with pytest.raises(Forbidden, match='User "reader" cannot list'):
                await Client(connection, field_manager="test").list(ConfigMap)
    assert not plane.folder.exists()
