from __future__ import annotations

import subprocess
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from inferencecache.api.kvcachebackend import LEADER_VARIABLES, KVCacheBackend
from inferencecache.controllers.kvcachebackend.leader import SEED_SCRIPT, replicas_for_now, wanted_replicas
from inferencecache.controllers.kvcachebackend.render import render
from inferencecache.controllers.mooncake.policy import EMPTY_POLICY
from inferencecache.controllers.mooncake.policy import render as policy_of
from inferencecache.kube.resource import Manifest
from tests.unit.controllers.kvcachebackend.made import SETTINGS, external, managed

ALONE = {"electionBackend": "None"}
PLAIN = {**ALONE, "multiTenancy": False}


def rendered(backend: KVCacheBackend, kind: str, name: str = "dram-leader") -> Manifest:
    (found,) = [one for one in render(backend, SETTINGS) if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def pod_spec(**leader: Any) -> dict[str, Any]:
    spec: dict[str, Any] = rendered(managed(leader=leader), "Deployment")["spec"]["template"]["spec"]
    return spec


def container(**leader: Any) -> dict[str, Any]:
    (found,) = pod_spec(**leader)["containers"]
    return dict(found)


BEGINNING = ["-rpc_port=50051", "-metrics_port=9003", "-default_kv_lease_ttl=5m"]
ELECTION = [
    "-enable_ha=true",
    "-ha_backend_type=k8s",
    "-ha_backend_connstring=pools/dram-leader",
    "-rpc_address=$(KUBERNETES_POD_IP)",
    "-cluster_id=dram-leader",
]
FREE = ["-allocation_strategy=free_ratio_first"]
TENANTS = [
    "-enable_multi_tenants=true",
    "-tenant_quota_connector_uri=/var/lib/mooncake/tenant-quota-policy.yaml",
]
OFFLOAD = ["-enable_offload=true", "-offload_on_evict=true"]
POD = ["-pod_name=$(KUBERNETES_POD_NAME)", "-pod_namespace=$(KUBERNETES_POD_NAMESPACE)"]
TIER = {"localDisks": [{"path": "/cache", "capacity": "1Ti"}]}


@pytest.mark.parametrize(
    ("leader", "group", "parts"),
    [
        ({}, {}, [BEGINNING, ELECTION, FREE, TENANTS, POD]),
        (ALONE, {}, [BEGINNING, FREE, TENANTS]),
        (PLAIN, {}, [BEGINNING, FREE]),
        ({"multiTenancy": False}, {}, [BEGINNING, ELECTION, FREE, POD]),
        ({**PLAIN, "allocationStrategy": "Random"}, {}, [BEGINNING, ["-allocation_strategy=random"]]),
        ({}, TIER, [BEGINNING, ELECTION, FREE, TENANTS, OFFLOAD, POD]),
        (
            {**PLAIN, "extraArgs": {"eviction_ratio": "0.1", "default_kv_lease_ttl": "9m"}},
            TIER,
            [BEGINNING, FREE, OFFLOAD, ["-default_kv_lease_ttl=9m", "-eviction_ratio=0.1"]],
        ),
    ],
    ids=["default", "alone", "plain", "elected without tenants", "random", "disk tier", "extra"],
)
def test_the_flags_are_those_of_the_contract_in_its_order(
    leader: dict[str, Any], group: dict[str, Any], parts: list[list[str]]
) -> None:
    deployment = rendered(managed(group, leader=leader), "Deployment")
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    assert found["command"] == ["mooncake_master"]
    assert found["args"] == [*chain.from_iterable(parts)]


def test_the_leader_listens_where_its_service_and_its_probes_look() -> None:
    found = container()
    assert found["name"] == "leader"
    ports = {port["name"]: port["containerPort"] for port in found["ports"]}
    assert ports == {"rpc": 50051, "admin": 9003}
    service = rendered(managed(), "Service")["spec"]
    assert [(one["name"], one["port"], one["targetPort"], one["protocol"]) for one in service["ports"]] == [
        ("rpc", 50051, "rpc", "TCP"),
        ("admin", 9003, "admin", "TCP"),
    ]
    assert service["type"] == "ClusterIP"
    template = rendered(managed(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= template.items()
    assert found["readinessProbe"] == {
        "httpGet": {"path": "/get_all_segments", "port": "admin"},
        "periodSeconds": 5,
        "failureThreshold": 3,
    }
    assert found["livenessProbe"] == {
        "httpGet": {"path": "/health", "port": "admin"},
        "periodSeconds": 10,
        "failureThreshold": 6,
    }
    assert found["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert "securityContext" not in found
    assert "hostNetwork" not in pod_spec()


def test_every_object_is_marked_and_belongs_to_the_namespace_of_the_stores() -> None:
    objects = render(managed({}, {}), SETTINGS)
    assert [(one["kind"], one["metadata"]["name"]) for one in objects] == [
        ("ServiceAccount", "dram-leader"),
        ("Role", "dram-leader"),
        ("RoleBinding", "dram-leader"),
        ("ServiceAccount", "dram-member"),
        ("Role", "dram-member"),
        ("RoleBinding", "dram-member"),
        ("Service", "dram-leader"),
        ("Deployment", "dram-leader"),
        ("DaemonSet", "dram-member-0"),
        ("DaemonSet", "dram-member-1"),
    ]
    for one in objects:
        metadata = one["metadata"]
        assert metadata["namespace"] == "pools"
        assert metadata["labels"]["resource.gpustack.ai/type"] == "kvcachebackends"
        assert metadata["labels"]["app.kubernetes.io/part-of"] == "gpustack-operator-worker"
        role = "leader" if metadata["name"].endswith("-leader") else "member"
        assert metadata["annotations"] == {
            "note.gpustack.ai/backend": "dram",
            "note.gpustack.ai/role": role,
        }
    leader = next(one for one in objects if one["kind"] == "Deployment")
    identity = {
        "app.kubernetes.io/name": "kv-cache-backend",
        "app.kubernetes.io/instance": "dram",
        "app.kubernetes.io/component": "leader",
    }
    assert leader["spec"]["selector"]["matchLabels"] == identity


def test_an_external_backend_renders_nothing() -> None:
    assert render(external(), SETTINGS) == []


# ------------------------------------------------------------------------------------------------------ multi-tenancy


def test_a_leader_with_tenants_starts_from_a_file_it_may_rewrite() -> None:
    spec = pod_spec()
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["tenant-quota-policy"] == {"name": "tenant-quota-policy", "emptyDir": {}}
    seed = volumes["tenant-quota-policy-seed"]["configMap"]
    assert seed == {"name": "dram-tenant-quota-policy", "optional": True, "defaultMode": 0o644}
    (leader,), (init,) = spec["containers"], spec["initContainers"]
    writable = {"name": "tenant-quota-policy", "mountPath": "/var/lib/mooncake"}
    assert leader["volumeMounts"] == [writable]
    assert init["volumeMounts"] == [
        writable,
        {
            "name": "tenant-quota-policy-seed",
            "mountPath": "/etc/mooncake/tenant-quota-policy",
            "readOnly": True,
        },
    ]
    assert init["name"] == "seed-tenant-quota-policy"
    assert init["image"] == leader["image"] == "store:1"
    assert init["command"] == ["sh", "-c", SEED_SCRIPT]
    assert {one["name"]: one["value"] for one in init["env"]} == {
        "POLICY_SEED": "/etc/mooncake/tenant-quota-policy/tenant-quota-policy.yaml",
        "POLICY_FILE": "/var/lib/mooncake/tenant-quota-policy.yaml",
        "POLICY_EMPTY": EMPTY_POLICY,
    }


def test_a_leader_without_tenants_has_no_policy_file() -> None:
    spec = pod_spec(multiTenancy=False)
    assert "volumes" not in spec
    assert "initContainers" not in spec
    assert "volumeMounts" not in spec["containers"][0]


def seeded(directory: Path, seed: Path) -> subprocess.CompletedProcess[bytes]:
    env = {
        "PATH": "/usr/bin:/bin",
        "POLICY_SEED": str(seed),
        "POLICY_FILE": str(directory / "policy.yaml"),
        "POLICY_EMPTY": EMPTY_POLICY,
    }
    return subprocess.run(["sh", "-c", SEED_SCRIPT], env=env, capture_output=True, check=False)


def test_the_seed_becomes_the_policy_over_whatever_was_there(tmp_path: Path) -> None:
    seed = tmp_path / "seed.yaml"
    seed.write_text(policy_of([("team-a", 5)]))
    (tmp_path / "policy.yaml").write_text("of the leader before")
    assert seeded(tmp_path, seed).returncode == 0
    assert (tmp_path / "policy.yaml").read_text() == seed.read_text()


def test_without_a_seed_the_policy_is_the_empty_one(tmp_path: Path) -> None:
    assert seeded(tmp_path, tmp_path / "none").returncode == 0
    assert (tmp_path / "policy.yaml").read_text() == EMPTY_POLICY


def test_a_seed_that_cannot_be_copied_fails_the_container(tmp_path: Path) -> None:
    assert seeded(tmp_path, tmp_path).returncode != 0, "a directory cannot be copied like a file"
    assert not (tmp_path / "policy.yaml").exists()


# ----------------------------------------------------------------------------------------------------------- election


def test_only_an_elected_leader_has_an_account_and_knows_its_pod() -> None:
    spec = pod_spec()
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("dram-leader", True)
    fields = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in spec["containers"][0]["env"]}
    assert fields == {
        "KUBERNETES_POD_NAME": "metadata.name",
        "KUBERNETES_POD_NAMESPACE": "metadata.namespace",
        "KUBERNETES_POD_IP": "status.podIP",
    }
    assert fields.keys() == LEADER_VARIABLES
    alone = pod_spec(**ALONE)
    assert alone["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in alone
    assert alone["containers"][0]["env"] == []
    kinds = {one["kind"] for one in render(managed(leader=ALONE), SETTINGS)}
    assert kinds == {"Service", "Deployment", "DaemonSet"}


def test_leaders_may_take_their_lease_and_members_only_look_at_it() -> None:
    def allowed(name: str) -> set[tuple[str, str, str]]:
        rules = rendered(managed(), "Role", name)["rules"]
        return {
            (resource, verb, ",".join(rule.get("resourceNames", [])))
            for rule in rules
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    assert allowed("dram-leader") == {
        ("leases", "create", ""),
        ("leases", "get", "dram-leader"),
        ("leases", "update", "dram-leader"),
        ("pods", "patch", ""),
    }
    assert allowed("dram-member") == {("leases", "get", "dram-leader")}
    for name in ("dram-leader", "dram-member"):
        binding = rendered(managed(), "RoleBinding", name)
        assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": "pools"}]


@pytest.mark.parametrize(
    ("leader", "replicas"),
    [({}, 1), ({"replicas": 3}, 3), ({"replicas": 3, **ALONE}, 1), ({"replicas": 5}, 5)],
)
def test_without_an_election_there_is_one_leader(leader: dict[str, Any], replicas: int) -> None:
    declared = managed(leader=leader).managed
    assert declared is not None
    assert wanted_replicas(declared) == replicas


def test_a_single_leader_is_stopped_before_the_next_starts_and_several_make_way_for_each_other() -> None:
    single = rendered(managed(), "Deployment")["spec"]
    assert (single["replicas"], single["strategy"]) == (1, {"type": "Recreate"})
    assert "progressDeadlineSeconds" not in single
    several = rendered(managed(leader={"replicas": 3}), "Deployment")["spec"]
    assert several["replicas"] == 3
    assert several["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 3}}
    assert several["progressDeadlineSeconds"] == 2147483647


def live(*, elects: bool, replicas: int = 1, rolled_out: bool = True) -> Manifest:
    args = ["-enable_ha=true"] if elects else []
    return {
        "metadata": {"generation": 4},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"args": args}]}}},
        "status": {"observedGeneration": 4 if rolled_out else 3, "replicas": replicas, "updatedReplicas": replicas},
    }


@pytest.mark.parametrize(
    ("there", "replicas"),
    [
        (None, 3),
        (live(elects=False), 1),
        (live(elects=True, rolled_out=False), 1),
        (live(elects=True), 3),
        (live(elects=True, replicas=2, rolled_out=False), 3),
    ],
    ids=["none", "unelected", "elected not yet there", "elected", "several already"],
)
def test_spares_come_only_beside_a_leader_that_holds_an_election(there: Manifest | None, replicas: int) -> None:
    """A Deployment scales the Pods of its old template before it replaces them."""
    declared = managed(leader={"replicas": 3}).managed
    assert declared is not None
    assert replicas_for_now(declared, there) == replicas


# ------------------------------------------------------------------------------------------------------ what users add


def test_what_a_user_adds_to_the_leader_reaches_it() -> None:
    leader = {
        **ALONE,
        "extraEnv": [{"name": "MC_LOG_LEVEL", "value": "WARNING"}, {"name": "EMPTY"}],
        "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "nodeSelector": {"role": "infra"},
    }
    declared = managed(leader=leader, image="mine:2", imagePullSecrets=[{"name": "registry"}])
    spec = rendered(declared, "Deployment")["spec"]["template"]["spec"]
    (found,) = spec["containers"]
    assert found["env"] == [{"name": "MC_LOG_LEVEL", "value": "WARNING"}, {"name": "EMPTY", "value": ""}]
    assert found["resources"] == leader["resources"]
    assert spec["tolerations"] == leader["tolerations"]
    assert spec["nodeSelector"] == {"role": "infra"}
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert {found["image"], spec["initContainers"][0]["image"]} == {"mine:2"}


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("store", "Always"),
        ("store:latest", "Always"),
        ("registry:5000/store", "Always"),
        ("store:latest@sha256:00", "Always"),
        ("store:1", "IfNotPresent"),
        ("registry:5000/team/store:1", "IfNotPresent"),
        ("store@sha256:00", "IfNotPresent"),
    ],
)
def test_the_pull_policy_follows_from_the_tag_unless_it_is_given(image: str, policy: str) -> None:
    def found(**spec: Any) -> set[str]:
        template = rendered(managed(image=image, **spec), "Deployment")["spec"]["template"]["spec"]
        return {one["imagePullPolicy"] for one in (*template["containers"], *template["initContainers"])}

    assert found() == {policy}
    assert found(imagePullPolicy="Never") == {"Never"}
