"""What runs for a managed store (spec 04 §8)."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.adapters.registry import Workload, load_adapters
from inferencecache.api.cachebackend import CacheBackend
from tests.unit.adapters.objects import backend

BLOCK = {"Redis": "redis", "LMCacheServer": "lmCacheServer", "Mooncake": "mooncake"}


def store(provider: str, *, autoscaled: bool = False, **block: Any) -> CacheBackend:
    storage = {"provider": provider, "ownership": "Managed", BLOCK[provider]: block or None}
    return backend(remoteStorage=storage, autoscaling={"maxReplicas": 3} if autoscaled else None)


def render(wanted: CacheBackend) -> Workload:
    before = wanted.model_dump()
    workload = load_adapters()[1].select(wanted.spec.remote_storage).render(wanted)
    assert workload is not None
    workload.pod_spec["containers"][0].setdefault("resources", {})["mark"] = 1
    assert wanted.model_dump() == before
    del workload.pod_spec["containers"][0]["resources"]["mark"]
    return workload


def test_lmcache_server_defaults() -> None:
    workload = render(store("LMCacheServer"))
    (server,) = workload.pod_spec["containers"]
    assert server["image"] == "lmcache/standalone:v0.4.7"
    assert (server["command"], server["args"]) == (["lmcache_server"], ["0.0.0.0", "65432", "cpu"])
    assert server["readinessProbe"]["tcpSocket"] == {"port": "lmcache"}
    assert server["resources"] == {"requests": {"memory": "4Gi"}, "limits": {"memory": "8Gi"}}
    assert workload.service_spec == {
        "type": "ClusterIP",
        "ports": [{"name": "lmcache", "port": 65432, "protocol": "TCP", "targetPort": "lmcache"}],
    }


def test_redis_defaults() -> None:
    (server,) = render(store("Redis")).pod_spec["containers"]
    assert "command" not in server
    assert server["args"][:3] == ["redis-server", "--save", ""]
    assert server["ports"] == [{"name": "redis", "containerPort": 6379, "protocol": "TCP"}]
    probe = server["readinessProbe"]
    assert (probe["initialDelaySeconds"], probe["periodSeconds"], probe["failureThreshold"]) == (3, 10, 6)


@pytest.mark.parametrize(
    ("resources", "bytes_"),
    [
        (None, 6871947674),
        ({}, 6871947674),
        ({"requests": {"memory": "4Gi"}}, 6871947674),
        ({"limits": {"memory": "8Gi"}}, 6871947674),
        ({"limits": {"memory": "4Gi"}}, 3435973837),
        ({"limits": {"memory": "100Mi"}}, 83886080),
        ({"limits": {"memory": 1}}, 1),
    ],
)
def test_redis_memory_follows_the_limit(resources: Any, bytes_: int) -> None:
    args = render(store("Redis", image="r@sha256:0", resources=resources)).pod_spec["containers"][0]["args"]
    assert args[args.index("--maxmemory") + 1] == str(bytes_)


def test_mooncake_defaults() -> None:
    workload = render(store("Mooncake"))
    assert workload.pod_spec["hostNetwork"] is True
    assert workload.pod_spec["dnsPolicy"] == "ClusterFirstWithHostNet"
    (master,) = workload.pod_spec["containers"]
    assert [port["name"] for port in master["ports"]] == ["mooncake-rpc", "mooncake-meta", "metrics"]
    assert workload.service_spec["clusterIP"] == "None"
    assert [port["port"] for port in workload.service_spec["ports"]] == [50051, 8080]


@pytest.mark.parametrize("provider", ["LMCacheServer", "Mooncake"])
def test_command_replaces_the_whole_argument_vector(provider: str) -> None:
    (server,) = render(store(provider, command=["python3", "-m", "x"], image="mine:1")).pod_spec["containers"]
    assert (server["image"], server["command"], server["args"]) == ("mine:1", ["python3"], ["-m", "x"])


@pytest.mark.parametrize(
    ("given", "autoscaled", "rendered"),
    [
        ({}, False, {}),
        ({"limits": {"memory": "1Gi"}}, True, {"limits": {"memory": "1Gi"}, "requests": {"cpu": "250m"}}),
        ({"requests": {"cpu": 0}}, True, {"requests": {"cpu": "250m"}}),
        ({"limits": {"cpu": "1"}}, True, {"limits": {"cpu": "1"}, "requests": {"cpu": "250m"}}),
        ({"limits": {"cpu": "100m"}}, True, {"limits": {"cpu": "100m"}, "requests": {"cpu": "100m"}}),
        ({"requests": {"cpu": "750m"}}, True, {"requests": {"cpu": "750m"}}),
        (None, True, {"requests": {"memory": "4Gi", "cpu": "250m"}, "limits": {"memory": "8Gi"}}),
    ],
)
def test_resources(given: Any, autoscaled: bool, rendered: dict[str, Any]) -> None:
    block = {} if given is None else {"resources": given}
    server = render(store("LMCacheServer", autoscaled=autoscaled, **block)).pod_spec["containers"][0]
    assert server.get("resources", {}) == rendered


def test_external_stores_render_nothing() -> None:
    wanted = backend(remoteStorage={"provider": "Redis", "ownership": "External", "endpoint": "r:1"})
    assert load_adapters()[1].select(wanted.spec.remote_storage).render(wanted) is None
