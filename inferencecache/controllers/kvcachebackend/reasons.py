"""Reasons that a KVCacheBackend's conditions and Events carry. Other clients match on them."""

from __future__ import annotations

from typing import Final

# LeaderAvailable.
LEADER_SERVING: Final = "LeaderServing"
LEADER_STARTING: Final = "LeaderStarting"
LEADER_NOT_STARTING: Final = "LeaderNotStarting"
LEADER_UNREACHABLE: Final = "LeaderUnreachable"
LEADER_NOT_SERVING: Final = "LeaderNotServing"
"""Also of MembersMounted and CapacityObserved: nothing can be learnt from such a leader."""

# MembersMounted.
MOUNTED: Final = "Mounted"
MEMBER_NOT_STARTING: Final = "MemberNotStarting"
LISTING_FAILED: Final = "ListingFailed"
LISTING_TOO_LARGE: Final = "ListingTooLarge"
SEGMENT_LISTING_NOT_SERVED: Final = "SegmentListingNotServed"
AMBIGUOUS_MEMBER_IDENTITY: Final = "AmbiguousMemberIdentity"
MEMBERS_NOT_LISTED: Final = "MembersNotListed"
NO_SEGMENTS: Final = "NoSegments"
NO_MEMBERS: Final = "NoMembers"

# CapacityObserved.
OBSERVED: Final = "Observed"
SCRAPE_FAILED: Final = "ScrapeFailed"
NOT_EXPORTED: Final = "NotExported"

# Deletable.
NOT_IN_USE: Final = "NotInUse"
IN_USE: Final = "InUse"

# RolloutComplete.
ROLLED_OUT: Final = "RolledOut"
LEADER_ROLLING_OUT: Final = "LeaderRollingOut"
REPLICAS_PENDING: Final = "ReplicasPending"
MEMBERS_ROLLING_OUT: Final = "MembersRollingOut"
CHILD_CONFLICT: Final = "ChildConflict"
"""A foreign object has the name of one of the backend's (decision F1)."""
APPLY_FAILED: Final = "ApplyFailed"
"""An object of the backend could not be written (decision F16)."""

# ElectionObserved.
LEADER_ELECTED: Final = "LeaderElected"
NO_LEADER_ELECTED: Final = "NoLeaderElected"

# Events.
TEARDOWN_INCOMPLETE: Final = "TeardownIncomplete"
