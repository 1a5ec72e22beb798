"""The choice of two replicas as a table, over an index that answers from a dict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server import affinity, policy
from inferencecache.server.index import Code, Outcome, Query, ReplicaScore
from inferencecache.server.pdroute import (
    PDRouter,
    Pool,
    TopologiesDocument,
    TopologiesError,
    Topology,
    parse,
)
from inferencecache.server.policy import PolicyStore
from inferencecache.wire.limits import LARGEST_DOCUMENT
from inferencecache.wire.v1alpha1.inferencecache_pb2 import LookupPDRouteRequest, LookupPDRouteResponse


class DictIndex:
    """`held` is who holds a hash of a scheme, best first, with matched tokens; `pressures` who reported which."""

    def __init__(self, held: dict[tuple[str, bytes], list[tuple[str, int]]], pressures: dict[str, float]) -> None:
        self._held = held
        self._pressures = pressures

    def match(self, query: Query, now_us: int) -> Outcome:
        holders = self._held.get((query.scope.hash_scheme, query.exact), [])
        scores = [ReplicaScore(replica_id, 1.0, matched, 1.0, 1, 1) for replica_id, matched in holders]
        return Outcome(Code.PREFIX_MATCH if scores else Code.UNKNOWN_MODEL, scores)

    def pressures(self, tenant: str, model: str, now_us: int) -> dict[str, float]:
        return self._pressures


TOPOLOGY = Topology(
    namespace="t",
    name="pd",
    prefill_pools=[Pool("a", ["p2", "p1"]), Pool("b", ["p3"])],
    decode_pools=[Pool("c", ["d1", "d2"]), Pool("d", ["d3"])],
    transport="NIXL",
)


def route(
    *,
    held: dict[tuple[str, bytes], list[tuple[str, int]]] | None = None,
    pressures: dict[str, float] | None = None,
    prefix_hash: bytes = b"",
    ref: str = "t/pd",
    tenant: str = "t",
    topology: Topology = TOPOLOGY,
    policies: PolicyStore | None = None,
) -> LookupPDRouteResponse:
    router = PDRouter(DictIndex(held or {}, pressures or {}), policies or PolicyStore())
    router.replace(TopologiesDocument(1, [topology]))
    return router.route(
        LookupPDRouteRequest(model_id="m", tenant_id=tenant, prefix_hash=prefix_hash, pd_topology_ref=ref), 0
    )


H = b"\x01" * 8


@pytest.mark.parametrize(
    ("held", "pressures", "prefix_hash", "prefill", "reason"),
    [
        pytest.param({("vllm", H): [("p3", 64)]}, {}, H, "p3", "PREFIX_MATCH", id="the holder"),
        pytest.param({("vllm", H): [("p3", 640), ("p1", 64)]}, {}, H, "p3", "PREFIX_MATCH", id="the best holder"),
        pytest.param({("vllm", H): [("d1", 640), ("p1", 64)]}, {}, H, "p1", "PREFIX_MATCH", id="of the pool only"),
        pytest.param({("sglang", H): [("p2", 64)]}, {}, H, "p2", "PREFIX_MATCH", id="under any known scheme"),
        pytest.param(
            {("vllm", H): [("p3", 63)]}, {}, H, affinity.pick(H, ["p1", "p2", "p3"]), "AFFINITY_HINT",
            id="a match below the policy's floor is none",
        ),
        pytest.param({}, {}, H, affinity.pick(H, ["p1", "p2", "p3"]), "AFFINITY_HINT", id="no holder: by prompt"),
        pytest.param({}, {"p1": 0.9, "p2": 0.1}, b"", "p2", "AFFINITY_HINT", id="no prefix: the least pressed"),
        pytest.param({}, {"p1": 0.9, "p2": 0.8}, b"", "p3", "AFFINITY_HINT", id="unreported is half pressed"),
        pytest.param({("vllm", b""): [("p3", 64)]}, {}, b"", "p1", "AFFINITY_HINT", id="an empty hash is none"),
    ],
)  # fmt: skip
def test_prefill(
    held: dict[tuple[str, bytes], list[tuple[str, int]]],
    pressures: dict[str, float],
    prefix_hash: bytes,
    prefill: str,
    reason: str,
) -> None:
    answer = route(held=held, pressures=pressures, prefix_hash=prefix_hash)
    assert (answer.prefill_replica_id, answer.reason_code) == (prefill, reason)


@pytest.mark.parametrize(
    ("pressures", "prefix_hash", "decode"),
    [
        pytest.param({"d1": 0.9, "d2": 0.2, "d3": 0.3}, H, "d2", id="the least pressed"),
        pytest.param({"d1": 0.6, "d2": 0.7}, H, "d3", id="unreported is half pressed"),
        pytest.param({"d1": 0.4}, H, "d1", id="a known light load before an unknown one"),
        pytest.param({"d1": 0.1, "d2": 0.9, "d3": 0.1}, b"", "d1", id="a tie without a prompt goes by id"),
        pytest.param(
            {"d1": 0.1, "d2": 0.9, "d3": 0.1}, H, affinity.pick(H, ["d1", "d3"]), id="a tie is decided by the prompt"
        ),
        pytest.param({"p1": 0.0}, b"", "d1", id="other pools do not count"),
    ],
)
def test_decode(pressures: dict[str, float], prefix_hash: bytes, decode: str) -> None:
    assert route(pressures=pressures, prefix_hash=prefix_hash).decode_replica_id == decode


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"ref": "t/other"}, id="unknown topology"),
        pytest.param({"ref": "pd"}, id="no namespace"),
        pytest.param({"ref": ""}, id="no reference"),
        pytest.param({"tenant": "u"}, id="another tenant's"),
        pytest.param({"tenant": ""}, id="no tenant"),
        pytest.param({"topology": Topology("t", "pd", [Pool("a")], [Pool("b", ["d"])])}, id="no prefill replica"),
        pytest.param({"topology": Topology("t", "pd", [Pool("a", ["p"])], [])}, id="no decode replica"),
    ],
)
def test_without_a_pair_there_is_no_hint_and_nothing_else(options: dict[str, Any]) -> None:
    assert route(**options) == LookupPDRouteResponse(reason_code="NO_HINT")


def test_the_reserved_tenant_gets_no_hint() -> None:
    reserved = policy.RESERVED_TENANT
    router = PDRouter(DictIndex({}, {}), PolicyStore())
    router.replace(
        TopologiesDocument(1, [Topology("inferencecache.io", "probe", [Pool("a", ["p"])], [Pool("b", ["d"])])])
    )
    answer = router.route(LookupPDRouteRequest(tenant_id=reserved, pd_topology_ref=f"{reserved}/pd"), 0)
    assert answer == LookupPDRouteResponse(reason_code="NO_HINT")


@pytest.mark.parametrize("transport", ["Mooncake", "NIXL", "Direct"])
def test_the_transport_is_the_topologys(transport: str) -> None:
    body = {
        "version": 1,
        "topologies": [
            {
                "namespace": "t",
                "name": "pd",
                "transport": transport,
                "prefillPools": [{"name": "a", "replicas": ["p"]}],
                "decodePools": [{"name": "b", "replicas": ["d"]}],
            }
        ],
    }
    (topology,) = parse(json.dumps(body).encode()).topologies
    assert route(topology=topology).transport_hint == transport
    del body["topologies"][0]["transport"]  # type: ignore[index]
    (topology,) = parse(json.dumps(body).encode()).topologies
    assert route(topology=topology).transport_hint == "Direct"


def test_a_topology_that_names_its_scheme_asks_under_no_other() -> None:
    held = {("vllm", H): [("p1", 64)], ("sglang", H): [("p3", 64)]}
    topology = Topology("t", "pd", TOPOLOGY.prefill_pools, TOPOLOGY.decode_pools, hash_scheme="sglang")
    assert route(held=held, prefix_hash=H, topology=topology).prefill_replica_id == "p3"


def test_the_tenants_policy_moves_the_floor() -> None:
    policies = PolicyStore()
    policies.replace(policy.parse(b'{"version":7,"policies":[{"namespace":"t","minimumMatchedTokens":16}]}'))
    answer = route(held={("vllm", H): [("p3", 16)]}, prefix_hash=H, policies=policies)
    assert (answer.prefill_replica_id, answer.reason_code) == ("p3", "PREFIX_MATCH")


def test_a_push_takes_the_place_of_all_topologies() -> None:
    router = PDRouter(DictIndex({}, {}), PolicyStore())
    request = LookupPDRouteRequest(tenant_id="t", pd_topology_ref="t/pd")
    router.replace(TopologiesDocument(1, [TOPOLOGY]))
    assert router.route(request, 0).reason_code == "AFFINITY_HINT"
    router.replace(TopologiesDocument(1, []))
    assert router.route(request, 0).reason_code == "NO_HINT"


@given(st.lists(st.sampled_from("abcdef"), min_size=1), st.lists(st.sampled_from("uvwxyz"), min_size=1), st.binary())
def test_the_order_and_number_of_names_in_the_pools_do_not_matter(
    prefill: list[str], decode: list[str], prefix_hash: bytes
) -> None:
    one = route(topology=Topology("t", "pd", [Pool("a", prefill)], [Pool("b", decode)]), prefix_hash=prefix_hash)
    other = route(
        topology=Topology("t", "pd", [Pool(each, [each]) for each in prefill[::-1]], [Pool("b", decode[::-1] * 2)]),
        prefix_hash=prefix_hash,
    )
    assert one == other
    assert one.prefill_replica_id in prefill
    assert one.decode_replica_id in decode


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "decode topologies"),
        (b"[]", "decode topologies"),
        (b'{"topologies":[]}', "version"),
        (b'{"version":2,"topologies":[]}', "unsupported topologies version 2"),
        (b'{"version":1}', "topologies"),
        (b'{"version":1,"topologies":[],"x":1}', "x"),
        (b'{"version":1,"topologies":[{"namespace":"t"}]}', "name"),
        (b'{"version":1,"topologies":[{"namespace":"t","name":"n","transport":"UDP"}]}', "transport"),
        (b'{"version":1,"topologies":[]} {}', "decode topologies"),
        (b" " * (LARGEST_DOCUMENT + 1), "more than"),
        (b"[" * 5000, "decode topologies"),
    ],
)
def test_a_document_that_cannot_be_used_is_refused_with_the_field(body: bytes, complaint: str) -> None:
    with pytest.raises(TopologiesError, match=complaint):
        parse(body)
