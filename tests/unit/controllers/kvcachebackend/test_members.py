from __future__ import annotations

from typing import Any

import pytest

from inferencecache.api.kvcachebackend import MEMBER_VARIABLES, KVCacheBackend
from inferencecache.controllers.kvcachebackend.render import render
from inferencecache.kube.resource import Manifest
from tests.unit.controllers.kvcachebackend.made import GIB, SETTINGS, managed

BUFFER = 16 << 20
TIER = {"localDisks": [{"path": "/var/lib/kvcache", "capacity": "4Ti"}]}


def group(backend: KVCacheBackend, position: int = 0) -> Manifest:
    return [one for one in render(backend, SETTINGS) if one["kind"] == "DaemonSet"][position]


def pod_spec(backend: KVCacheBackend, position: int = 0) -> dict[str, Any]:
    spec: dict[str, Any] = group(backend, position)["spec"]["template"]["spec"]
    return spec


def container(backend: KVCacheBackend, position: int = 0) -> dict[str, Any]:
    (found,) = pod_spec(backend, position)["containers"]
    return dict(found)


def environment(backend: KVCacheBackend) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container(backend)["env"]}


def test_a_member_is_configured_by_its_environment() -> None:
    found = container(managed())
    assert found["command"] == ["mc_store_rest_server"]
    assert found["args"] == ["--port=8080"]
    assert found["env"] == [
        {"name": "MOONCAKE_LOCAL_HOSTNAME", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "MOONCAKE_TE_META_DATA_SERVER", "value": "P2PHANDSHAKE"},
        {"name": "MOONCAKE_MASTER", "value": "dram-leader.pools.svc:50051"},
        {"name": "MOONCAKE_PROTOCOL", "value": "tcp"},
        {"name": "MOONCAKE_GLOBAL_SEGMENT_SIZE", "value": str(4 * GIB)},
        {"name": "MOONCAKE_LOCAL_BUFFER_SIZE", "value": str(BUFFER)},
        {"name": "MC_TE_METRIC", "value": "1"},
    ]
    assert found["readinessProbe"]["tcpSocket"] == {"port": "http"}
    assert found["ports"] == [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]


def test_every_group_has_a_workload_a_selector_and_a_port_of_its_own() -> None:
    backend = managed({"nodeSelector": {"a": "1"}}, {"nodeSelector": {"b": "2"}, "image": "other:3"})
    first, second = (group(backend, n) for n in (0, 1))
    assert [one["metadata"]["name"] for one in (first, second)] == ["dram-member-0", "dram-member-1"]
    selectors = [one["spec"]["selector"]["matchLabels"] for one in (first, second)]
    assert [one["app.kubernetes.io/component"] for one in selectors] == ["member-0", "member-1"]
    for one, selector in zip((first, second), selectors, strict=True):
        assert selector.items() <= one["spec"]["template"]["metadata"]["labels"].items()
    assert [pod_spec(backend, n)["nodeSelector"] for n in (0, 1)] == [{"a": "1"}, {"b": "2"}]
    assert [container(backend, n)["args"] for n in (0, 1)] == [["--port=8080"], ["--port=8081"]]
    assert [container(backend, n)["image"] for n in (0, 1)] == ["store:1", "other:3"]


def test_members_follow_the_lease_only_where_there_is_an_election() -> None:
    def master(**leader: Any) -> str:
        return environment(managed(leader=leader))["MOONCAKE_MASTER"]

    service = "dram-leader.pools.svc:50051"
    assert master(memberAddressing="Lease") == "k8s://pools/dram-leader"
    assert master(memberAddressing="Lease", electionBackend="None") == service
    assert master(memberAddressing="Service") == service
    assert pod_spec(managed())["serviceAccountName"] == "dram-member"
    assert pod_spec(managed(leader={"electionBackend": "None"}))["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("given", "requested"),
    [
        ({}, 4 * GIB + BUFFER),
        ({"localBufferSize": "1Gi"}, 5 * GIB),
        ({"localBufferSize": "0"}, 4 * GIB),
        ({"medium": "VRAM"}, BUFFER),
        ({"medium": "VRAM", "localBufferSize": "512Mi"}, GIB // 2),
        ({"capacityPerMember": "4G"}, 4 * 10**9 + BUFFER),
    ],
)
def test_a_member_requests_the_memory_it_lends_and_its_buffer(given: dict[str, Any], requested: int) -> None:
    assert container(managed(given))["resources"] == {"requests": {"memory": str(requested)}}


@pytest.mark.parametrize(
    ("protocol", "spelled"),
    [
        ("Auto", "tcp"),
        ("TCP", "tcp"),
        ("RDMA", "rdma"),
        ("EFA", "efa"),
        ("CANN", "ascend"),
        ("ROCM", "hip"),
        ("MUSA", "musa"),
        ("MACA", "maca"),
    ],
)
def test_only_host_fabrics_get_the_hosts_network_and_what_it_takes(protocol: str, spelled: str) -> None:
    backend = managed(transport={"protocol": protocol})
    assert environment(backend)["MOONCAKE_PROTOCOL"] == spelled
    spec, found = pod_spec(backend), container(backend)
    if spelled in ("rdma", "efa"):
        assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
        assert found["securityContext"] == {"capabilities": {"add": ["IPC_LOCK", "SYS_RESOURCE"]}}
    else:
        assert "hostNetwork" not in spec
        assert "securityContext" not in found
        assert "limits" not in found["resources"]


@pytest.mark.parametrize(
    ("protocol", "count", "device"),
    [
        ("RDMA", None, {"device.gpustack.ai/rdma.shared": "1"}),
        ("RDMA", 1, {"device.gpustack.ai/rdma.shared": "1"}),
        ("RDMA", 4, {"device.gpustack.ai/rdma": "4"}),
        ("EFA", None, {"vpc.amazonaws.com/efa": "1"}),
        ("EFA", 2, {"vpc.amazonaws.com/efa": "2"}),
    ],
)
def test_a_host_fabric_asks_for_its_interfaces(protocol: str, count: int | None, device: dict[str, str]) -> None:
    given = {"transport": {"protocol": protocol}} | ({"fabricInterfaceCount": count} if count else {})
    resources = container(managed(given))["resources"]
    assert resources["limits"] == device
    assert device.items() <= resources["requests"].items()


def test_a_groups_own_transport_wins() -> None:
    backend = managed({"transport": {"protocol": "TCP"}}, {}, transport={"protocol": "RDMA"})
    assert environment(backend)["MOONCAKE_PROTOCOL"] == "tcp"
    assert "hostNetwork" in pod_spec(backend, 1)


def test_what_a_user_adds_to_a_group_reaches_its_members() -> None:
    given = {
        "extraArgs": {"b": "2", "a": "x=y"},
        "extraEnv": [{"name": "MC_LOG_LEVEL", "value": "ERROR"}],
        "tolerations": [{"operator": "Exists"}],
    }
    found = container(managed(given))
    assert found["args"] == ["--port=8080", "-D", "a=x=y", "-D", "b=2"]
    assert found["env"][-1] == {"name": "MC_LOG_LEVEL", "value": "ERROR"}
    assert pod_spec(managed(given))["tolerations"] == [{"operator": "Exists"}]


def test_what_the_operator_renders_is_reserved_and_stands_whatever_was_stored() -> None:
    """The API server takes no variable twice."""
    added = [{"name": name, "value": "mine"} for name in sorted({*MEMBER_VARIABLES, "MC_LOG_LEVEL"})]
    found = environment(managed({**TIER, "extraEnv": added}))
    rendered = environment(managed(TIER))
    assert rendered.keys() == MEMBER_VARIABLES - {"MOONCAKE_CONFIG_PATH"}
    assert found == {**rendered, "MC_LOG_LEVEL": "mine", "MOONCAKE_CONFIG_PATH": "mine"}
    names = [one["name"] for one in container(managed({**TIER, "extraEnv": added}))["env"]]
    assert len(names) == len(set(names))


def test_a_disk_tier_is_a_directory_that_has_to_be_there() -> None:
    backend = managed(TIER)
    env = environment(backend)
    assert env["MOONCAKE_OFFLOAD_ENABLED"] == "true"
    assert env["MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"] == "/var/lib/kvcache"
    assert env["MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"] == str(4096 * GIB)
    assert env["MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE"] == str(4096 * GIB)
    (volume,) = pod_spec(backend)["volumes"]
    assert volume["hostPath"] == {"path": "/var/lib/kvcache", "type": "Directory"}
    assert container(backend)["volumeMounts"] == [{"name": volume["name"], "mountPath": "/var/lib/kvcache"}]
    assert "lifecycle" not in container(backend)


def test_a_leaving_member_hands_its_disk_tier_over_before_it_is_ended() -> None:
    backend = managed({}, TIER, managed={"scaleIn": {"gracePeriodSeconds": 30}})
    assert pod_spec(backend, 1)["terminationGracePeriodSeconds"] == 90
    python, flag, script = container(backend, 1)["lifecycle"]["preStop"]["exec"]["command"]
    assert (python, flag) == ("python3", "-c")
    compile(script, "preStop", "exec")
    assert "127.0.0.1:8081/api/unmount_local_disk" in script
    assert '{"grace_period_seconds": 30}' in script
    assert "lifecycle" not in container(backend, 0)
    assert "terminationGracePeriodSeconds" not in pod_spec(backend, 0)
