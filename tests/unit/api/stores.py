"""Hypothesis strategies for KVCacheBackends: a working store with fields changed to words that matter, good and bad."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

_QUANTITIES = st.sampled_from(["0", "1", "500m", "1Gi", "4Gi", "1.5", "-1", "8Ei", "1e30", 0, 2**40])
_RESOURCES = st.dictionaries(
    st.sampled_from(["cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "hugepages-", "nvidia.com/gpu", "foo", ""]),
    _QUANTITIES,
    max_size=2,
)
_LABELS = st.dictionaries(
    st.sampled_from(["kv-cache", "example.com/pool", "a/b/c", "", "-x", "UPPER.example.com/x", "x" * 64]),
    st.sampled_from(["dram", "", "bad value", "-a", "x" * 64]),
    max_size=2,
)
_TEXTS = st.sampled_from(["", "a", "1", "ü $(X) '\"\n", "$(KUBERNETES_POD_IP)"])
_FLAGS = st.dictionaries(
    st.sampled_from(["eviction_ratio", "enable_ha", "no-enable-ha", "a b", "", "x=y", "--z", "V"]), _TEXTS, max_size=2
)
_ENV = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(
                ["A", "a.b", "1A", "A B", "A=B", "MOONCAKE_MASTER", "KUBERNETES_POD_IP", "ü", "..x", "~"]
            )
        },
        optional={"value": _TEXTS},
    ),
    max_size=2,
    unique_by=lambda one: one["name"],
)
_IMAGES = st.sampled_from(["img:1", "registry.example.net/a/b@sha256:00", " img", "img ", "", "a b"])
# Handed on to Pods as they are: what Kubernetes takes depends on its version, and the status says if it takes one not.
_TOLERATIONS = st.sampled_from(
    [[], [{"operator": "Exists"}], [{"key": "gpu", "value": "a", "effect": "NoExecute", "tolerationSeconds": 60}]]
)
_DISKS = st.lists(
    st.fixed_dictionaries(
        {
            "path": st.sampled_from(["/data", "/", "/a/../b", "/a:b", "rel", "/ü x", "/data/"]),
            "capacity": _QUANTITIES,
        }
    ),
    max_size=2,
)
_PROTOCOLS = st.sampled_from(["Auto", "TCP", "RDMA", "EFA", "CANN", "ROCM", "MUSA", "MACA"])
_LEADER = {
    "replicas": st.integers(1, 5),
    "electionBackend": st.sampled_from(["Kubernetes", "None"]),
    "memberAddressing": st.sampled_from(["Service", "Lease"]),
    "allocationStrategy": st.sampled_from(["Random", "FreeRatioFirst"]),
    "multiTenancy": st.booleans(),
    "extraArgs": _FLAGS,
    "extraEnv": _ENV,
    "resources": st.fixed_dictionaries({}, optional={"requests": _RESOURCES, "limits": _RESOURCES}),
    "tolerations": _TOLERATIONS,
    "nodeSelector": _LABELS,
}
_GROUP = {
    "nodeSelector": _LABELS,
    "medium": st.sampled_from(["DRAM", "VRAM"]),
    "capacityPerMember": _QUANTITIES,
    "localBufferSize": _QUANTITIES,
    "image": _IMAGES,
    "transport": st.fixed_dictionaries({"protocol": _PROTOCOLS}),
    "extraArgs": _FLAGS,
    "extraEnv": _ENV,
    "tolerations": _TOLERATIONS,
    "fabricInterfaceCount": st.sampled_from([1, 2, 64]),
    "localDisks": _DISKS,
}
_SPEC = {
    "image": _IMAGES,
    "imagePullPolicy": st.sampled_from(["Always", "IfNotPresent", "Never"]),
    "imagePullSecrets": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["a", "A_b", ""])}), max_size=2),
    "transport": st.fixed_dictionaries({"protocol": _PROTOCOLS}),
}
_BASE: Json = {"nodeSelector": {"kv-cache": "dram"}, "medium": "DRAM", "capacityPerMember": "1Gi"}


@st.composite
def likely_stores(draw: st.DrawFn) -> Json:
    """The spec of a managed store with up to four fields changed, of which many are then admitted."""
    groups = [copy.deepcopy(_BASE) for _ in range(draw(st.integers(1, 2)))]
    leader: Json = {}
    spec: Json = {"connection": {"managed": {"leader": leader, "members": groups}}}
    places: list[tuple[Json, dict[str, st.SearchStrategy[Any]]]] = [
        (spec, _SPEC),
        (leader, _LEADER),
        *((group, _GROUP) for group in groups),
    ]
    for _ in range(draw(st.integers(0, 4))):
        block, fields = draw(st.sampled_from(places))
        name = draw(st.sampled_from(sorted(fields)))
        block[name] = draw(fields[name])
    if draw(st.booleans()):
        spec["connection"]["managed"]["scaleIn"] = {"gracePeriodSeconds": draw(st.sampled_from([0, 30, 3600]))}
    return spec
