"""The reasons of a KVCacheBackend, as the page of conditions explains them."""

from __future__ import annotations

from typing import Final

from inferencecache.api import kvcache as k
from inferencecache.cli.reference.row import Row
from inferencecache.controllers.kvcachebackend import reasons as r

_LEADER: Final = "look at the Pods of `<backend>-leader`, and at their logs"
_MEMBERS: Final = "look at the Pods of `<backend>-member-<group>`, and at their logs"
_SEE_LEADER: Final = "see LeaderAvailable"

STORE: Final[dict[str, tuple[Row, ...]]] = {
    k.LEADER_AVAILABLE: (
        Row("True", r.LEADER_SERVING, "the leader answers and serves"),
        Row("False", r.LEADER_STARTING, "no leader is ready yet", "wait"),
        Row("False", r.LEADER_NOT_STARTING, "a leader's Pod cannot start by itself; the message says why", _LEADER),
        Row(
            "False",
            r.LEADER_UNREACHABLE,
            "the Admin address does not answer the operator",
            "managed: see that network policies let the operator reach port 9003; external: correct "
            "`spec.connection.external.endpoints`, or start the store",
        ),
        Row(
            "False",
            r.LEADER_NOT_SERVING,
            "the leader answers, but is a spare, or not ready to serve",
            "wait; for an external store give the address of the leader that serves",
        ),
    ),
    k.MEMBERS_MOUNTED: (
        Row("True", r.MOUNTED, "the leader lists the memory of all ready members"),
        Row("Unknown", r.LEADER_NOT_SERVING, "nobody serves who could say; `status.members` is as it was", _SEE_LEADER),
        Row("Unknown", r.SEGMENT_LISTING_NOT_SERVED, "the store is older than Mooncake 0.3.12", "use a newer image"),
        Row("False", r.MEMBER_NOT_STARTING, "a member's Pod cannot start by itself; the message says why", _MEMBERS),
        Row(
            "False",
            r.MEMBERS_NOT_LISTED,
            "members are ready that the leader does not know; after a restart of the leader for half a minute",
            f"if it stays: {_MEMBERS}",
        ),
        Row("False", r.NO_SEGMENTS, "no memory is mounted yet, so nothing can be stored", _MEMBERS),
        Row("False", r.NO_MEMBERS, "there is no Pod of any member", "label nodes, or correct `nodeSelector`"),
        Row(
            "False", r.LISTING_FAILED, "the leader could not list the segments; `status.members` is as it was", _LEADER
        ),
        Row(
            "False", r.LISTING_TOO_LARGE, "the list of segments has no room in a status; it is as it was", "none needed"
        ),
        Row(
            "False",
            r.AMBIGUOUS_MEMBER_IDENTITY,
            "several ready members share the address of a node, so their segments cannot be told apart",
            "give groups on RDMA or EFA nodes of their own",
        ),
    ),
    k.CAPACITY_OBSERVED: (
        Row("True", r.OBSERVED, "`status.capacity` is what the leader reports"),
        Row("Unknown", r.LEADER_NOT_SERVING, "nobody serves who could say", _SEE_LEADER),
        Row("False", r.SCRAPE_FAILED, "the leader's metrics could not be read", _LEADER),
        Row("False", r.NOT_EXPORTED, "the leader's metrics do not tell a capacity", "use an image of Mooncake"),
    ),
    k.ROLLOUT_COMPLETE: (
        Row("True", r.ROLLED_OUT, "leader and members run what the spec says"),
        Row("False", r.LEADER_ROLLING_OUT, "the leader's Pods are being replaced", "wait"),
        Row("False", r.REPLICAS_PENDING, "spare leaders come once the one that serves holds an election", "wait"),
        Row("False", r.MEMBERS_ROLLING_OUT, "members are replaced, in each group one after the other", "wait"),
        Row(
            "False",
            r.CHILD_CONFLICT,
            "an object of somebody else has the name of one of the backend's",
            "rename or delete it; the message names it",
        ),
        Row("False", r.APPLY_FAILED, "an object of the backend could not be written", "see the message"),
    ),
    k.ELECTION_OBSERVED: (
        Row("True", r.LEADER_ELECTED, "a leader's Pod says that it won the election"),
        Row(
            "False",
            r.NO_LEADER_ELECTED,
            "none does",
            "if no leader becomes ready: use an image that elects by Lease, or `electionBackend: None`",
        ),
    ),
    k.DELETABLE: (
        Row("True", r.NOT_IN_USE, "no pool uses the backend"),
        Row("False", r.IN_USE, "pools do; a deletion waits for them", "delete the pools that the message names"),
    ),
}
