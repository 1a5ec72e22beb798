"""Which two replicas share a request when prefill and decode run apart (LookupPDRoute over PDTopologies).

The controller resolves each PDTopology's pools into the ids of their Pods and pushes all topologies as one document,
which takes the place of the one before it. A route then needs a prefill replica and a decode replica:

* Prefill is where a cached prefix saves work: the pool's best match in the index, if it is as long as the tenant's
  policy demands. Without one, equal prompts go to the same replica, so that the second finds what the first left
  behind; a request without a prefix goes to the least pressed.
* Decode does not read a prefix but fills memory as it goes: the least pressed replica. A replica that reported no load
  within the tenant's TTL counts as half pressed, so that it is neither flooded nor starved. Of equally pressed ones the
  prompt decides.

The reason says how prefill was chosen: `PREFIX_MATCH`, else `AFFINITY_HINT`. `NO_HINT` means that no pair can be named,
and then none is. A topology belongs to its namespace: only the tenant of that name may route over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Struct

from inferencecache.server import affinity, bodies
from inferencecache.server.index import RESERVED_TENANT, Code, Outcome, Query, Scope
from inferencecache.server.policy import PolicyStore
from inferencecache.wire.limits import LARGEST_DOCUMENT
from inferencecache.wire.v1alpha1.inferencecache_pb2 import LookupPDRouteRequest, LookupPDRouteResponse

VERSION: Final = 1

NO_HINT: Final = "NO_HINT"
PREFIX_MATCH: Final = "PREFIX_MATCH"
AFFINITY_HINT: Final = "AFFINITY_HINT"

_KNOWN_SCHEMES: Final = ("vllm", "sglang")
_UNREPORTED_PRESSURE: Final = 0.5


class TopologiesError(ValueError):
    """A pushed document cannot be used; the message names the field. Nothing has changed."""


class Pool(Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """The Pods of one pool, as the controller found them."""

    name: str
    replicas: list[str] = []


class Topology(Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """One PDTopology.

    Attributes:
        namespace: of the object, and of everybody who may use it.
        name: of the object.
        prefill_pools: any of their replicas may prefill.
        decode_pools: any of their replicas may decode.
        transport: how the KV cache gets from one to the other.
        hash_scheme: of the engines; empty if unknown, then every known scheme is asked.
    """

    namespace: str
    name: str
    prefill_pools: list[Pool] = []
    decode_pools: list[Pool] = []
    transport: Literal["Mooncake", "NIXL", "Direct"] = "Direct"
    hash_scheme: str = ""


class TopologiesDocument(Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """The body of a push: all topologies there are."""

    version: int
    topologies: list[Topology]


class Index(Protocol):
    """What a route asks of the index."""

    def match(self, query: Query, now_us: int) -> Outcome:
        """See `PrefixIndex`."""

    def pressures(self, tenant: str, model: str, now_us: int) -> Mapping[str, float]:
        """See `PrefixIndex`."""


class PDRouter:
    """The topologies in force, and the choice among their replicas."""

    def __init__(self, index: Index, policies: PolicyStore) -> None:
        self._index = index
        self._policies = policies
        self._topologies: Mapping[tuple[str, str], Topology] = {}

    def replace(self, document: TopologiesDocument) -> None:
        """Put `document` in force in place of everything before it; of two rows for one object the last counts."""
        self._topologies = {(each.namespace, each.name): each for each in document.topologies}

    def route(self, request: LookupPDRouteRequest, now_us: int) -> LookupPDRouteResponse:
        """LookupPDRoute: two replicas and how they talk, or `NO_HINT` alone."""
        namespace, _, name = request.pd_topology_ref.partition("/")
        topology = self._topologies.get((namespace, name))
        if topology is None or namespace != request.tenant_id or namespace == RESERVED_TENANT:
            return LookupPDRouteResponse(reason_code=NO_HINT)
        prefill, decode = _replicas(topology.prefill_pools), _replicas(topology.decode_pools)
        if not prefill or not decode:
            return LookupPDRouteResponse(reason_code=NO_HINT)
        pressures = self._index.pressures(request.tenant_id, request.model_id, now_us)
        matched = self._match(request, topology, frozenset(prefill), now_us)
        return LookupPDRouteResponse(
            prefill_replica_id=matched
            or affinity.pick(request.prefix_hash, prefill)
            or _least_pressed(prefill, pressures)[0],
            decode_replica_id=_one_of(_least_pressed(decode, pressures), request.prefix_hash),
            transport_hint=topology.transport,
            reason_code=PREFIX_MATCH if matched else AFFINITY_HINT,
        )

    def _match(
        self, request: LookupPDRouteRequest, topology: Topology, prefill: frozenset[str], now_us: int
    ) -> str | None:
        """The replica of `prefill` that holds the request's prefix and scores best."""
        if not request.prefix_hash:
            return None
        floor = self._policies.of(request.tenant_id).minimum_matched_tokens
        for scheme in (topology.hash_scheme,) if topology.hash_scheme else _KNOWN_SCHEMES:
            scope = Scope(request.tenant_id, request.model_id, scheme)
            outcome = self._index.match(Query(scope, "", (), (), request.prefix_hash, 0), now_us)
            if outcome.code is Code.PREFIX_MATCH:
                for score in outcome.scores:
                    if score.replica_id in prefill and score.matched_tokens >= floor:
                        return score.replica_id
        return None


def parse(body: bytes) -> TopologiesDocument:
    """The document in the body of a push.

    Raises:
        TopologiesError: over `LARGEST_DOCUMENT`, not exactly one JSON object of this shape, or of another version.
    """
    document = bodies.decode(body, _decoder, what="topologies", max_bytes=LARGEST_DOCUMENT, error=TopologiesError)
    if document.version != VERSION:
        raise TopologiesError(f"unsupported topologies version {document.version}: this server speaks {VERSION}")
    return document


_decoder: Final = msgspec.json.Decoder(TopologiesDocument)


def _replicas(pools: Sequence[Pool]) -> list[str]:
    """Every replica of the pools once, in ascending order."""
    return sorted({replica for pool in pools for replica in pool.replicas if replica})


def _least_pressed(replicas: Sequence[str], pressures: Mapping[str, float]) -> list[str]:
    pressed = [pressures.get(replica, _UNREPORTED_PRESSURE) for replica in replicas]
    least = min(pressed)
    return [replica for replica, pressure in zip(replicas, pressed, strict=True) if pressure == least]


def _one_of(replicas: Sequence[str], prefix_hash: bytes) -> str:
    return affinity.pick(prefix_hash, replicas) or replicas[0]
