"""The verdict on a KVCacheBackend: its connection, its leader's flags, its members, and what a claim holds (spec 10).

A member group is known by its position: its workload, its port and its segments follow from it. So groups are added and
taken away at the end of the list; one that turned up at another position would be taken for another group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from inferencecache.api.core import LocalObjectReference
from inferencecache.api.endpoint import EndpointError, parse_address
from inferencecache.api.kvcache import ENDPOINT_ADMIN, ENDPOINT_CLIENT, listed
from inferencecache.api.kvcachebackend import (
    ADDRESSING_LEASE,
    LEADER_VARIABLES,
    MEMBER_SETTINGS,
    MEMBER_VARIABLES,
    EnvValue,
    External,
    KVCacheBackend,
    Leader,
    Managed,
    MemberGroup,
)
from inferencecache.webhooks.validation.findings import (
    Verdict,
    Violation,
    duplicate,
    forbidden,
    invalid,
    newly_introduced,
    required,
)
from inferencecache.webhooks.validation.kubernetes import is_label_value, is_qualified_name
from inferencecache.webhooks.validation.kvcachequota import positive_bytes
from inferencecache.webhooks.validation.overrides import env_name_complaints
from inferencecache.webhooks.validation.resources import container_findings
from inferencecache.webhooks.validation.text import breaks

_CONNECTION: Final = "spec.connection"
_MANAGED: Final = f"{_CONNECTION}.managed"
_LEADER: Final = f"{_MANAGED}.leader"
_MEMBERS: Final = f"{_MANAGED}.members"
_MULTI_TENANCY: Final = f"{_LEADER}.multiTenancy"
_ENDPOINTS: Final = f"{_CONNECTION}.external.endpoints"

LONGEST_NAME: Final = 63 - len("-leader")
"""The leader's Service bears the backend's name and a suffix, and a Service's name is a label."""

_DNS_1035 = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
_FLAG = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

RESERVED_FLAGS: Final = frozenset(
    {
        *("enable_multi_tenants", "tenant_quota_connector_uri", "tenant_quota_connector_type"),
        *("rpc_port", "port", "metrics_port", "rpc_address", "rpc_interface", "config_path"),
        *("allocation_strategy", "cluster_id", "enable_ha", "ha_backend_type", "ha_backend_connstring"),
        *("etcd_endpoints", "enable_oplog", "enable_offload", "offload_on_evict", "pod_name", "pod_namespace"),
        *("enable_cxl", "cxl_path", "cxl_size", "memory_allocator"),
        # They read other flags from elsewhere, reserved ones too.
        *("flagfile", "fromenv", "tryfromenv"),
    }
)
"""Flags of mooncake_master that the operator sets itself, or that would take the store out of its hands (§14)."""
_RESERVED_PREFIXES: Final = ("enable_snapshot", "snapshot_")


def validate_kv_cache_backend(new: KVCacheBackend, old: KVCacheBackend | None = None) -> Verdict:
    """Judge a backend; with `old`, judge what an update introduces, being deleted or not."""
    found = list(_judge(new))
    if old is not None:
        found = [*newly_introduced(found, _judge(old)), *_kept_tenancy(new, old), *_kept_groups(new, old)]
    return Verdict(tuple(found), tuple(_warnings(new)))


def _judge(backend: KVCacheBackend) -> Iterator[Violation]:
    connection = backend.spec.connection
    yield from _image("spec.image", backend.spec.image)
    yield from _pull_secrets(backend.spec.image_pull_secrets)
    if connection.managed is None and connection.external is None:
        yield required("backend-connection", _CONNECTION, "needs exactly one of managed and external: set one")
    elif connection.managed is not None and connection.external is not None:
        yield forbidden(
            "backend-connection",
            f"{_CONNECTION}.external",
            "a store is run by the operator or by somebody else: remove external or managed",
        )
    if connection.managed is not None:
        yield from _name(backend)
        yield from _leader(connection.managed.leader)
        yield from _members(connection.managed)
    if connection.external is not None:
        yield from _endpoints(connection.external)


def _name(backend: KVCacheBackend) -> Iterator[Violation]:
    """Decision F10. A generated name is judged by its prefix."""
    meta = backend.metadata
    name = meta.name or (f"{meta.generate_name}x" if meta.generate_name else "")
    if name and (len(name) > LONGEST_NAME or not _DNS_1035.fullmatch(name)):
        yield invalid(
            "backend-name",
            "metadata.name",
            meta.name or meta.generate_name,
            f"<name>-leader must be usable as a Service name: at most {LONGEST_NAME} characters of a-z, 0-9 and '-', "
            "starting with a letter and ending with a letter or digit; choose another name",
        )


def _image(field: str, image: str | None) -> Iterator[Violation]:
    if image and image != image.strip():
        yield invalid("backend-image", field, image, "an image may not have blanks around it: remove them")


def _pull_secrets(secrets: Sequence[LocalObjectReference]) -> Iterator[Violation]:
    seen: set[str] = set()
    for index, secret in enumerate(secrets):
        field = f"spec.imagePullSecrets[{index}].name"
        if not secret.name:
            yield required("backend-secrets", field, "name a Secret in the namespace where stores run")
        elif secret.name in seen:
            yield duplicate("backend-secrets", field, secret.name, "the list has this Secret already: remove one")
        seen.add(secret.name)


# ---------------------------------------------------------------------------------------------------------- leader


def _leader(leader: Leader) -> Iterator[Violation]:
    yield from _flags(f"{_LEADER}.extraArgs", leader.extra_args, is_reserved)
    yield from _env(f"{_LEADER}.extraEnv", leader.extra_env, LEADER_VARIABLES)
    yield from _node_selector(f"{_LEADER}.nodeSelector", leader.node_selector)
    if leader.resources is not None:
        yield from container_findings(f"{_LEADER}.resources", leader.resources)


def _flags(field: str, flags: Mapping[str, str], reserved: Callable[[str], bool]) -> Iterator[Violation]:
    for name in sorted(flags):
        if not _FLAG.fullmatch(name):
            yield invalid(
                "backend-flags", f"{field}[{name}]", name, "give the flag's name alone: no dashes before it, no '='"
            )
        elif reserved(name):
            yield forbidden("backend-flags", f"{field}[{name}]", "the operator sets this itself: remove it")


def is_reserved(flag: str) -> bool:
    """Whether a flag of mooncake_master is not the user's to set, in any spelling that the program takes for it.

    The program reads `-` as `_` in names, and `no` before a name switches that flag off.
    """
    plain = flag.replace("-", "_")
    return any(
        name in RESERVED_FLAGS or name.startswith(_RESERVED_PREFIXES) for name in (plain, plain.removeprefix("no"))
    )


def _env(field: str, variables: Iterable[EnvValue], reserved: Collection[str]) -> Iterator[Violation]:
    for index, variable in enumerate(variables):
        for complaint in env_name_complaints(variable.name):
            yield invalid("backend-env", f"{field}[{index}].name", variable.name, complaint)
        if variable.name in reserved:
            yield forbidden("backend-env", f"{field}[{index}].name", "the operator sets this itself: remove it")


def _node_selector(field: str, labels: Mapping[str, str]) -> Iterator[Violation]:
    for key, value in sorted(labels.items()):
        if not is_qualified_name(key):
            yield invalid("backend-nodes", field, key, "is no key of a label: write name or prefix.example.com/name")
        if not is_label_value(value):
            yield invalid(
                "backend-nodes",
                f"{field}[{key}]",
                value,
                "is no value of a label: at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both "
                "ends",
            )


# --------------------------------------------------------------------------------------------------------- members


def _members(managed: Managed) -> Iterator[Violation]:
    with_disks: list[int] = []
    for index, group in enumerate(managed.members):
        yield from _group(f"{_MEMBERS}[{index}]", group)
        if group.local_disks:
            with_disks.append(index)
    for index in with_disks[1:]:
        yield forbidden(
            "backend-disks",
            f"{_MEMBERS}[{index}].localDisks",
            f"members[{with_disks[0]}] has a disk tier already, and a store has one: remove either",
        )


def _group(field: str, group: MemberGroup) -> Iterator[Violation]:
    yield from _node_selector(f"{field}.nodeSelector", group.node_selector)
    yield from positive_bytes("backend-capacity", f"{field}.capacityPerMember", group.capacity_per_member)
    if group.local_buffer_size is not None:
        yield from positive_bytes("backend-buffer", f"{field}.localBufferSize", group.local_buffer_size)
    yield from _image(f"{field}.image", group.image)
    yield from _flags(f"{field}.extraArgs", group.extra_args, MEMBER_SETTINGS.__contains__)
    yield from _env(f"{field}.extraEnv", group.extra_env, MEMBER_VARIABLES)
    if len(group.local_disks) > 1:
        yield invalid(
            "backend-disks",
            f"{field}.localDisks",
            [disk.path for disk in group.local_disks],
            "a member moves objects to one directory: keep one entry",
        )
    for index, disk in enumerate(group.local_disks):
        here = f"{field}.localDisks[{index}]"
        if not disk.path.startswith("/") or ".." in disk.path.split("/") or breaks(disk.path):
            why = "must be an absolute path, without '..' and without control characters"
            yield invalid("backend-disks", f"{here}.path", disk.path, why)
        yield from positive_bytes("backend-disks", f"{here}.capacity", disk.capacity)


# -------------------------------------------------------------------------------------------------------- external


def _endpoints(external: External) -> Iterator[Violation]:
    given = {endpoint.name for endpoint in external.endpoints}
    for name in (ENDPOINT_CLIENT, ENDPOINT_ADMIN):
        if name not in given:
            yield required("backend-endpoints", _ENDPOINTS, f"the {name} address is missing: add an entry named {name}")
    for index, endpoint in enumerate(external.endpoints):
        try:
            parse_address(endpoint.address)
        except EndpointError as error:
            yield invalid("backend-endpoints", f"{_ENDPOINTS}[{index}].address", endpoint.address, str(error))


# ---------------------------------------------------------------------------------------------------------- update


def _kept_tenancy(new: KVCacheBackend, old: KVCacheBackend) -> Iterator[Violation]:
    """A pool lets go of a store by taking its quotas out of the ledger, so the ledger stays while one holds it (§4.3).

    Whoever is in the list counts, whether or not it still exists.
    """
    holders = old.status.used_by
    if old.multi_tenant and new.multi_tenant is False and holders:
        yield forbidden(
            "backend-tenancy",
            _MULTI_TENANCY,
            f"cannot be switched off while the store is used by {listed(holders)}: their quotas "
            "are in its ledger; delete them first",
        )


def _kept_groups(new: KVCacheBackend, old: KVCacheBackend) -> Iterator[Violation]:
    if new.managed is None or old.managed is None:
        return
    now, then = new.managed.members, old.managed.members
    are, were = [_identity(group) for group in now], [_identity(group) for group in then]
    moved = {identity: at for at, identity in reversed([*enumerate(were)]) if are[at : at + 1] != [identity]}
    for index, (group, before) in enumerate(zip(now, then, strict=False)):
        if are[index] == were[index]:
            continue
        came_from = moved.get(are[index])
        if came_from is not None:
            yield forbidden(
                "backend-order",
                f"{_MEMBERS}[{index}]",
                f"this group was members[{came_from}], and a group is known by its position: keep the order, and add "
                "and remove at the end",
            )
        elif group.medium != before.medium:
            yield forbidden(
                "backend-medium",
                f"{_MEMBERS}[{index}].medium",
                "cannot be changed: the group's segments are in the other memory; add a group at the end",
            )


def _identity(group: MemberGroup) -> object:
    """What a group is known by besides its position: the same memory of the same nodes."""
    return frozenset(group.node_selector.items()), group.medium


# -------------------------------------------------------------------------------------------------------- warnings


def _warnings(backend: KVCacheBackend) -> Iterator[str]:
    managed = backend.managed
    if managed is None or managed.elects:
        return
    if managed.leader.replicas > 1:
        yield "leader.replicas above 1 needs electionBackend Kubernetes: one leader will run"
    if managed.leader.member_addressing == ADDRESSING_LEASE:
        yield "leader.memberAddressing Lease needs electionBackend Kubernetes: members will use the leader's Service"
