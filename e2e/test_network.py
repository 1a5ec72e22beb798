"""The shipped NetworkPolicies, enforced: who reaches which port, and who does not (spec 09 §2.5, §8 step 21).

Visitors are Pods that carry the labels of this or that part and try to connect. Those with the labels of a part of the
product are never ready, so that no Service takes them for the part itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.conftest import ROOT
from e2e.pools import STORES, is_ready
from e2e.world import ENGINE_IMAGE, SERVER, STORES_IMAGE, Manifest, World, until

APP = "app.kubernetes.io/name"
COMPONENT = "app.kubernetes.io/component"
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()
    print("reached")
except OSError as error:
    print("refused:", error)
"""


def part(component: str) -> dict[str, str]:
    """The labels of a part of the product."""
    return {APP: "inference-cache", COMPONENT: component}


def pod(name: str, labels: dict[str, str], container: Manifest) -> Manifest:
    """A Pod that may run anywhere and is never ready."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "main",
                    "readinessProbe": {"exec": {"command": ["false"]}, "periodSeconds": 3600},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    **container,
                }
            ],
        },
    }


def address_of(world: World, name: str) -> str:
    """A Pod's address, once its program runs."""

    def running() -> str:
        status = world.get("pod", name)["status"]
        assert status["phase"] == "Running", status
        return str(status["podIP"])

    return until(running)


class Visitors:
    """Makes visitors and ends them."""

    def __init__(self) -> None:
        self._made: list[tuple[World, str]] = []

    def start(self, world: World, name: str, labels: dict[str, str], container: Manifest | None = None) -> str:
        """Start a Pod, by default one that does nothing. Its address."""
        self._made.append((world, name))
        idle = {"image": ENGINE_IMAGE, "args": ["sleep"]}
        world.apply(pod(name, labels, container or idle))
        return address_of(world, name)

    def end(self) -> None:
        for world, name in self._made:
            world.delete("pod", name, "--force", "--grace-period=0", "--ignore-not-found")


@pytest.fixture
def visitors() -> Iterator[Visitors]:
    visitors = Visitors()
    yield visitors
    visitors.end()


def reaches(world: World, visitor: str, address: str, port: int) -> bool:
    """Whether a visitor can connect; what kept it from trying is an error."""
    said = world.kubectl("exec", visitor, "--", "python", "-c", CONNECT, address, str(port)).strip()
    assert said.startswith(("reached", "refused")), said
    return said == "reached"


def stays_so(world: World, visitor: str, address: str, wanted: dict[int, bool]) -> None:
    """Wait until a visitor reaches just these ports: rules follow a Pod's start after a moment."""

    def seen() -> bool:
        found = {port: reaches(world, visitor, address, port) for port in wanted}
        assert found == wanted
        return True

    until(seen, within=90)


def address(world: World, component: str) -> str:
    """Of the Pod of a part, which must be one."""
    (found,) = [
        each for each in world.ready_pods(f"{COMPONENT}={component}") if each["metadata"].get("ownerReferences")
    ]
    return str(found["status"]["podIP"])


def test_the_snapshot_port_answers_the_controller_and_nobody_else(
    world: World, installed: World, visitors: Visitors
) -> None:
    server = address(installed, "server")
    visitors.start(installed, "visitor-controller", part("controller"))
    visitors.start(installed, "visitor-neighbour", {APP: "inference-cache"})
    visitors.start(world, "visitor-stranger", {"app": "engine"})
    visitors.start(world, "visitor-impostor", part("controller"))  # the labels, in another namespace
    stays_so(installed, "visitor-controller", server, {9090: True, 8080: True, 8081: True})
    for where, name in ((installed, "visitor-neighbour"), (world, "visitor-stranger"), (world, "visitor-impostor")):
        stays_so(where, name, server, {9090: True, 8080: True, 8081: False})
    # By the Service as well: its address is changed before the policy is asked.
    service = installed.get("service", SERVER)["spec"]["clusterIP"]
    stays_so(world, "visitor-stranger", service, {9090: True, 8080: True, 8081: False})


def test_the_controller_is_reached_at_its_three_ports(world: World, installed: World, visitors: Visitors) -> None:
    controller = address(installed, "controller")
    visitors.start(world, "visitor-prometheus", {"app": "prometheus"})
    stays_so(world, "visitor-prometheus", controller, {9443: True, 8080: True, 8081: True})


def test_another_port_of_the_controller_is_closed_even_when_something_listens_there(
    world: World, installed: World, visitors: Visitors
) -> None:
    listen = {"image": ENGINE_IMAGE, "command": ["python", "-m", "http.server", "6060"]}
    open_to_all = visitors.start(installed, "visitor-open", {"app": "other"}, listen)
    controller = visitors.start(installed, "visitor-debug", part("controller"), listen)
    visitors.start(world, "visitor-stranger", {"app": "engine"})
    stays_so(world, "visitor-stranger", open_to_all, {6060: True})
    stays_so(world, "visitor-stranger", controller, {6060: False})


def test_the_admin_port_of_a_store_is_for_the_controller_and_its_own_namespace(
    world: World, installed: World, visitors: Visitors, pool: str
) -> None:
    is_ready(world, "kvcachebackend", pool)
    stores = world.elsewhere(STORES)
    (leader,) = [each for each in stores.ready_pods("") if each["metadata"]["name"].startswith(f"{pool}-leader-")]
    ports = {port["name"]: port["containerPort"] for port in leader["spec"]["containers"][0]["ports"]}
    admin, rpc = ports["admin"], ports["rpc"]
    visitors.start(installed, "visitor-controller", part("controller"))
    visitors.start(stores, "visitor-store", {"app": "store"})
    visitors.start(world, "visitor-stranger", {"app": "engine"})
    stays_so(world, "visitor-stranger", leader["status"]["podIP"], {rpc: True, admin: False})
    stays_so(installed, "visitor-controller", leader["status"]["podIP"], {rpc: True, admin: True})
    stays_so(stores, "visitor-store", leader["status"]["podIP"], {rpc: True, admin: True})


def test_the_index_store_answers_servers_and_calls_nobody(world: World, installed: World, visitors: Visitors) -> None:
    text = installed.cluster.kubectl("kustomize", str(ROOT / "manifests" / "overlays" / "valkey-index"))
    (policy,) = [
        each
        for each in yaml.safe_load_all(text)
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "inference-cache-index-store"
    ]
    installed.apply(policy)
    try:
        redis: dict[str, Any] = {
            "image": STORES_IMAGE,
            "command": ["redis-server", "--port", "6379", "--protected-mode", "no", "--save", "", "--dir", "/tmp"],
            "ports": [{"name": "valkey", "containerPort": 6379}],
        }
        store = visitors.start(installed, "visitor-valkey", part("index-store"), redis)
        visitors.start(installed, "visitor-server", part("server"))
        visitors.start(installed, "visitor-controller", part("controller"))
        visitors.start(world, "visitor-stranger", {"app": "engine"})
        stays_so(installed, "visitor-server", store, {6379: True})
        stays_so(installed, "visitor-controller", store, {6379: False})
        stays_so(world, "visitor-stranger", store, {6379: False})

        # From within: the store's image has no Python, its shell can connect.
        server = address(installed, "server")
        call = f"timeout 3 bash -c 'exec 3<>/dev/tcp/{server}/8080' 2>/dev/null && echo reached || echo refused"
        until(lambda: installed.kubectl("exec", "visitor-valkey", "--", "sh", "-c", call).strip() == "refused")
    finally:
        installed.delete("networkpolicy", "inference-cache-index-store")
