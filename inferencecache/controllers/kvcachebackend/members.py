"""The members: for each group a DaemonSet of store processes, one on every node that its selector matches.

A group's position in the spec is its identity: the DaemonSet's name, its selector and the port of its HTTP interface
follow from it. Two groups on the host's network of one node therefore do not take each other's port.

The process is configured by environment variables; what a user adds goes into its arguments. A member is reached at
its Pod's address, which it tells the leader itself. Its HTTP interface listens once its memory is mounted, so being
ready means to be part of the store.

The DaemonSet replaces nothing itself: `replacing` does, which can tell a member that has to change from a group that
only got more nodes.
"""

from __future__ import annotations

from typing import Any, Final

from inferencecache.api import kvcachebackend as b
from inferencecache.api.kvcache import TRANSPORTS
from inferencecache.api.kvcachebackend import KVCacheBackend, LocalDisk, Managed, MemberGroup
from inferencecache.controllers.kvcachebackend import accounts
from inferencecache.controllers.kvcachebackend.objects import (
    RPC_PORT,
    Settings,
    child,
    downward,
    environment,
    group_component,
    group_name,
    identity,
    image_fields,
    leader_address,
    leader_name,
    members_name,
    pod_template,
)
from inferencecache.controllers.kvcachebackend.replacing import with_fingerprint
from inferencecache.kube.kinds import DaemonSet
from inferencecache.kube.resource import Manifest

CONTAINER: Final = "member"
FIRST_PORT: Final = 8080
DEFAULT_BUFFER: Final = 16 << 20
"""Bytes of a member's own transfer buffer. Engines bring theirs; a member needs it for its HTTP interface only."""

_METADATA: Final = "P2PHANDSHAKE"
_DISK_VOLUME: Final = "local-disk"
_TERMINATION_MARGIN: Final = 60

_SHARED_RDMA: Final = "device.gpustack.ai/rdma.shared"
_EXCLUSIVE_RDMA: Final = "device.gpustack.ai/rdma"
_EFA: Final = "vpc.amazonaws.com/efa"
_FABRICS: Final = frozenset({"rdma", "efa"})

_HAND_OVER: Final = """\
import json, urllib.request
body = json.dumps({{"grace_period_seconds": {seconds}}}).encode()
url = "http://127.0.0.1:{port}/api/unmount_local_disk"
urllib.request.urlopen(urllib.request.Request(url, body, {{"Content-Type": "application/json"}}))
"""


def daemon_sets(backend: KVCacheBackend, managed: Managed, settings: Settings) -> list[Manifest]:
    """The groups in their order."""
    return [_daemon_set(backend, managed, settings, position) for position in range(len(managed.members))]


def _daemon_set(backend: KVCacheBackend, managed: Managed, settings: Settings, position: int) -> Manifest:
    name, component = backend.metadata.name, group_component(position)
    spec = {
        "selector": {"matchLabels": identity(name, component)},
        "updateStrategy": {"type": "OnDelete"},
        "template": with_fingerprint(pod_template(backend, component, _pod_spec(backend, managed, settings, position))),
    }
    return child(DaemonSet.resource, backend, settings, group_name(name, position), component=component, spec=spec)


def _pod_spec(backend: KVCacheBackend, managed: Managed, settings: Settings, position: int) -> dict[str, Any]:
    group = managed.members[position]
    spec: dict[str, Any] = {
        **accounts.pod_fields(members_name(backend.metadata.name), mounted=managed.elects),
        "nodeSelector": dict(group.node_selector),
        "containers": [_container(backend, managed, settings, position)],
        "dnsPolicy": "ClusterFirst",
    }
    if _transport(backend, group) in _FABRICS:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if group.tolerations:
        spec["tolerations"] = [toleration.manifest() for toleration in group.tolerations]
    disk = _disk(group)
    if disk is not None:
        # The directory has to be there: one that the kubelet makes belongs to root, and the store could not write it.
        spec["volumes"] = [{"name": _DISK_VOLUME, "hostPath": {"path": disk.path, "type": "Directory"}}]
        grace = _grace(managed)
        if grace:
            spec["terminationGracePeriodSeconds"] = grace + _TERMINATION_MARGIN
    return spec


def _container(backend: KVCacheBackend, managed: Managed, settings: Settings, position: int) -> dict[str, Any]:
    group, port = managed.members[position], FIRST_PORT + position
    transport = _transport(backend, group)
    extra = [part for name, value in sorted(group.extra_args.items()) for part in ("-D", f"{name}={value}")]
    container: dict[str, Any] = {
        "name": CONTAINER,
        **image_fields(backend, group.image or backend.spec.image or settings.image),
        "command": ["mc_store_rest_server"],
        "args": [f"--port={port}", *extra],
        "env": environment(_variables(backend, managed, settings, group, transport), group.extra_env),
        "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
        "readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 5, "failureThreshold": 3},
        "resources": _resources(group, transport),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if transport in _FABRICS:
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK", "SYS_RESOURCE"]}}
    disk = _disk(group)
    if disk is not None:
        container["volumeMounts"] = [{"name": _DISK_VOLUME, "mountPath": disk.path}]
        grace = _grace(managed)
        if grace:
            script = _HAND_OVER.format(seconds=grace, port=port)
            container["lifecycle"] = {"preStop": {"exec": {"command": ["python3", "-c", script]}}}
    return container


def _variables(
    backend: KVCacheBackend, managed: Managed, settings: Settings, group: MemberGroup, transport: str
) -> list[dict[str, Any]]:
    values = {
        "MOONCAKE_TE_META_DATA_SERVER": _METADATA,
        "MOONCAKE_MASTER": _leader(backend, managed, settings),
        "MOONCAKE_PROTOCOL": transport,
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": str(int(group.capacity_per_member)),
        "MOONCAKE_LOCAL_BUFFER_SIZE": str(_buffer(group)),
        "MC_TE_METRIC": "1",
    }
    # MOONCAKE_DEVICE stays unset: unset means every device, and no value does.
    disk = _disk(group)
    if disk is not None:
        size = str(int(disk.capacity))
        values |= {
            "MOONCAKE_OFFLOAD_ENABLED": "true",
            "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": disk.path,
            "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": size,
            "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE": size,
        }
    return [
        downward("MOONCAKE_LOCAL_HOSTNAME", "status.podIP"),
        *({"name": name, "value": value} for name, value in values.items()),
    ]


def _leader(backend: KVCacheBackend, managed: Managed, settings: Settings) -> str:
    name = backend.metadata.name
    if managed.elects and managed.leader.member_addressing == b.ADDRESSING_LEASE:
        return f"k8s://{settings.namespace}/{leader_name(name)}"
    return leader_address(name, settings.namespace, RPC_PORT)


def _resources(group: MemberGroup, transport: str) -> dict[str, Any]:
    # Memory of an accelerator is taken by allocating it; nothing in Kubernetes accounts for it.
    lent = int(group.capacity_per_member) if group.medium != b.MEDIUM_VRAM else 0
    resources: dict[str, Any] = {"requests": {"memory": str(lent + _buffer(group))}}
    device = _device(transport, group.fabric_interface_count or 1)
    if device:
        name, count = device
        resources["requests"][name] = str(count)
        resources["limits"] = {name: str(count)}
    return resources


def _device(transport: str, count: int) -> tuple[str, int] | None:
    """The fabric interfaces to ask for. The plugin that grants them also makes them appear in the container."""
    match transport:
        case "rdma":
            return (_EXCLUSIVE_RDMA if count > 1 else _SHARED_RDMA), count
        case "efa":
            return _EFA, count
    return None


def _buffer(group: MemberGroup) -> int:
    return DEFAULT_BUFFER if group.local_buffer_size is None else int(group.local_buffer_size)


def _transport(backend: KVCacheBackend, group: MemberGroup) -> str:
    return TRANSPORTS.get((group.transport or backend.spec.transport).protocol, "tcp")


def _disk(group: MemberGroup) -> LocalDisk | None:
    return group.local_disks[0] if group.local_disks else None


def _grace(managed: Managed) -> int:
    return (managed.scale_in and managed.scale_in.grace_period_seconds) or 0
