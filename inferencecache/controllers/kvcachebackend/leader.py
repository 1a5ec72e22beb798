"""The leader: a Deployment of `mooncake_master` behind a Service (spec 10 §14).

Only one leader ever serves. A single one is replaced by stopping it first, as two would split the store. With an
election there may be spares, of which none is ready before it has won; their Deployment counts as rolled out with one
available replica, so it must be allowed to go below that, or the old leader would never make way for the new one.

A leader with tenants starts from a policy file, which it rewrites itself. So the file is on a volume of its own, and an
init container puts it there: a copy of the ConfigMap that the pools render, or the empty policy when there is none.
"""

from __future__ import annotations

from typing import Any, Final

from inferencecache.api import kvcache as k
from inferencecache.api import kvcachebackend as b
from inferencecache.api.kvcachebackend import KVCacheBackend, Leader, Managed
from inferencecache.controllers.kvcachebackend import accounts
from inferencecache.controllers.kvcachebackend.objects import (
    ADMIN_PORT,
    COMPONENT_LEADER,
    RPC_PORT,
    Settings,
    child,
    downward,
    environment,
    identity,
    image_fields,
    leader_name,
    pod_template,
)
from inferencecache.controllers.mooncake.policy import EMPTY_POLICY
from inferencecache.kube.kinds import Deployment, Service
from inferencecache.kube.resource import Manifest

CONTAINER: Final = "leader"
INIT_CONTAINER: Final = "seed-tenant-quota-policy"
_POLICY_VOLUME: Final = "tenant-quota-policy"
_POLICY_DIRECTORY: Final = "/var/lib/mooncake"
POLICY_FILE: Final = f"{_POLICY_DIRECTORY}/{k.POLICY_KEY}"
_SEED_VOLUME: Final = "tenant-quota-policy-seed"
_SEED_DIRECTORY: Final = "/etc/mooncake/tenant-quota-policy"
_NEVER: Final = 2**31 - 1

SEED_SCRIPT: Final = """\
set -e
if [ -e "$POLICY_SEED" ]; then
  cp "$POLICY_SEED" "$POLICY_FILE"
else
  printf '%s' "$POLICY_EMPTY" > "$POLICY_FILE"
fi
"""
"""Whether there is a seed is asked, not whether copying it failed: a copy that fails must fail the container, or the
leader would start with nobody's quota."""

_ALLOCATION: Final = {b.ALLOCATION_FREE_RATIO_FIRST: "free_ratio_first", b.ALLOCATION_RANDOM: "random"}


def service(backend: KVCacheBackend, settings: Settings) -> Manifest:
    """Where clients and members find the leader that serves."""
    ports = [
        {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
        for name, port in (("rpc", RPC_PORT), ("admin", ADMIN_PORT))
    ]
    spec = {"type": "ClusterIP", "selector": identity(backend.metadata.name, COMPONENT_LEADER), "ports": ports}
    name = leader_name(backend.metadata.name)
    return child(Service.resource, backend, settings, name, component=COMPONENT_LEADER, spec=spec)


def deployment(backend: KVCacheBackend, managed: Managed, settings: Settings, replicas: int) -> Manifest:
    """The leaders."""
    spec: dict[str, Any] = {
        "replicas": replicas,
        "selector": {"matchLabels": identity(backend.metadata.name, COMPONENT_LEADER)},
        "strategy": {"type": "Recreate"},
        "template": pod_template(backend, COMPONENT_LEADER, _pod_spec(backend, managed, settings)),
    }
    if replicas > 1:
        spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": replicas}}
        # Spares are never ready, which would otherwise count as a rollout that makes no progress.
        spec["progressDeadlineSeconds"] = _NEVER
    name = leader_name(backend.metadata.name)
    return child(Deployment.resource, backend, settings, name, component=COMPONENT_LEADER, spec=spec)


def wanted_replicas(managed: Managed) -> int:
    """How many leaders there are in the end: without an election one, whatever is asked for."""
    return managed.leader.replicas if managed.elects else 1


def replicas_for_now(managed: Managed, live: Manifest | None) -> int:
    """How many leaders to have until the next pass, seeing the Deployment as it is.

    A change of replicas reaches the Pods of the old template first. As long as leaders run that hold no election there
    is one of them, and spares come when the elected one has taken its place.
    """
    wanted = wanted_replicas(managed)
    if wanted == 1 or live is None:
        return wanted
    status, spec = live.get("status") or {}, live["spec"]
    settled = (
        status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0)
        and status.get("replicas", 0) == status.get("updatedReplicas", 0) > 0
    )
    if spec.get("replicas", 1) > 1:
        return wanted
    return wanted if settled and _elects(spec) else 1


def _elects(spec: dict[str, Any]) -> bool:
    containers = spec["template"]["spec"].get("containers") or [{}]
    return "-enable_ha=true" in (containers[0].get("args") or ())


def _pod_spec(backend: KVCacheBackend, managed: Managed, settings: Settings) -> dict[str, Any]:
    leader, name = managed.leader, backend.metadata.name
    image = image_fields(backend, backend.spec.image or settings.image)
    spec: dict[str, Any] = {
        **accounts.pod_fields(leader_name(name), mounted=managed.elects),
        "containers": [_container(backend, managed, settings, image)],
        "dnsPolicy": "ClusterFirst",
    }
    if leader.multi_tenancy:
        spec["initContainers"] = [_seeding(image)]
        seed = {"name": k.policy_config_map(name), "optional": True, "defaultMode": 0o644}
        spec["volumes"] = [
            {"name": _POLICY_VOLUME, "emptyDir": {}},
            {"name": _SEED_VOLUME, "configMap": seed},
        ]
    if leader.node_selector:
        spec["nodeSelector"] = dict(leader.node_selector)
    if leader.tolerations:
        spec["tolerations"] = [toleration.manifest() for toleration in leader.tolerations]
    return spec


def _container(backend: KVCacheBackend, managed: Managed, settings: Settings, image: dict[str, str]) -> dict[str, Any]:
    leader = managed.leader
    identity_env = [
        downward("KUBERNETES_POD_NAME", "metadata.name"),
        downward("KUBERNETES_POD_NAMESPACE", "metadata.namespace"),
        downward("KUBERNETES_POD_IP", "status.podIP"),
    ]
    container: dict[str, Any] = {
        "name": CONTAINER,
        **image,
        "command": ["mooncake_master"],
        "args": args(backend.metadata.name, managed, settings.namespace),
        "env": environment(identity_env if managed.elects else (), leader.extra_env),
        "ports": [
            {"name": "rpc", "containerPort": RPC_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        # The first is refused by a leader that does not serve, the second answered by any that lives.
        "readinessProbe": _probe("/get_all_segments", period=5, failures=3),
        "livenessProbe": _probe("/health", period=10, failures=6),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if leader.multi_tenancy:
        container["volumeMounts"] = [{"name": _POLICY_VOLUME, "mountPath": _POLICY_DIRECTORY}]
    if leader.resources is not None:
        container["resources"] = leader.resources.manifest()
    return container


def args(backend: str, managed: Managed, namespace: str) -> list[str]:
    """The flags of `mooncake_master`, in the contract's order; of two that are alike the later counts."""
    leader: Leader = managed.leader
    lease = leader_name(backend)
    election = [
        "-enable_ha=true",
        "-ha_backend_type=k8s",
        f"-ha_backend_connstring={namespace}/{lease}",
        "-rpc_address=$(KUBERNETES_POD_IP)",
        f"-cluster_id={lease}",
    ]
    tenants = ["-enable_multi_tenants=true", f"-tenant_quota_connector_uri={POLICY_FILE}"]
    pod = ["-pod_name=$(KUBERNETES_POD_NAME)", "-pod_namespace=$(KUBERNETES_POD_NAMESPACE)"]
    return [
        f"-rpc_port={RPC_PORT}",
        f"-metrics_port={ADMIN_PORT}",
        "-default_kv_lease_ttl=5m",
        *(election if managed.elects else ()),
        f"-allocation_strategy={_ALLOCATION.get(leader.allocation_strategy, 'free_ratio_first')}",
        *(tenants if leader.multi_tenancy else ()),
        *(("-enable_offload=true", "-offload_on_evict=true") if managed.has_disk_tier else ()),
        *(pod if managed.elects else ()),
        *(f"-{name}={value}" for name, value in sorted(leader.extra_args.items())),
    ]


def _seeding(image: dict[str, str]) -> dict[str, Any]:
    return {
        "name": INIT_CONTAINER,
        **image,
        "command": ["sh", "-c", SEED_SCRIPT],
        "env": [
            {"name": "POLICY_SEED", "value": f"{_SEED_DIRECTORY}/{k.POLICY_KEY}"},
            {"name": "POLICY_FILE", "value": POLICY_FILE},
            {"name": "POLICY_EMPTY", "value": EMPTY_POLICY},
        ],
        "volumeMounts": [
            {"name": _POLICY_VOLUME, "mountPath": _POLICY_DIRECTORY},
            {"name": _SEED_VOLUME, "mountPath": _SEED_DIRECTORY, "readOnly": True},
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "admin"}, "periodSeconds": period, "failureThreshold": failures}
