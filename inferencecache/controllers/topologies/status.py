"""What a PDTopology's status says.

| the topology                                    | Accepted              | Ready                |
|-------------------------------------------------|-----------------------|----------------------|
| all topologies together are too long for one push, and it is too young | False, DocumentFull | False, NotAccepted |
| a role has no Pod that serves                   | True, Accepted        | False, NoReplicas    |
| the server knows its replicas                   | True, Accepted        | True, Served         |
| the server could not be told of it              | True, Accepted        | False, PushFailed    |

How many Pods a pool has belongs into the message only where it keeps the topology from being used: it changes with
each rollout, and a status that counted along would be written all the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from inferencecache.api.pdtopology import PDTopology
from inferencecache.controllers.dataplane.served import (
    ACCEPTED_REASON,
    DOCUMENT_FULL,
    NOT_ACCEPTED,
    Claim,
    ready,
    was_served,
    with_claims,
)
from inferencecache.controllers.topologies.pools import Resolved, ResolvedPool

NO_REPLICAS: Final = "NoReplicas"


def topology_status(
    topology: PDTopology, pools: Resolved, *, left_out: bool, failure: str, now: datetime
) -> dict[str, Any] | None:
    """The fields to write, or None if the status says all that already.

    Args:
        topology: whose status it is.
        pools: what its pools consist of.
        left_out: it found no place in the document.
        failure: why the push of the document failed; empty if it did not.
        now: for conditions that change.
    """
    status, generation = topology.status, topology.metadata.generation
    accepted = Claim("True", ACCEPTED_REASON, "the pools can be resolved")
    empty = [role for role, found in (("prefill", pools.prefill), ("decode", pools.decode)) if not _any_in(found)]
    readiness: Claim | None
    if left_out:
        accepted = Claim("False", DOCUMENT_FULL, "all PDTopologies together are longer than the server takes")
        readiness = Claim("False", NOT_ACCEPTED, "the server is not told of it; see Accepted")
    elif empty:
        readiness = Claim("False", NO_REPLICAS, f"no running Pod matches the labels of a {' or a '.join(empty)} pool")
    else:
        told_before = was_served(status.conditions, generation)
        readiness = ready(failure=failure, told_before=told_before, message="requests are routed over its pools")
    after = {
        "observedGeneration": generation,
        "conditions": with_claims(status.conditions, accepted, readiness, generation, now),
    }
    return None if status.manifest() == after else after


def _any_in(pools: Iterable[ResolvedPool]) -> bool:
    return any(pool.replicas for pool in pools)
