"""Which replicas hold a chain, or a single prefix (spec 06 §6.6): the walk through a partition's lanes.

Chain hashes are chained, so block i names the whole prefix up to it, and only an unbroken leading run is of use. A
run is as fresh as its oldest block and as cold as its coldest. Everything here is called on every lookup; the loops
over blocks are left to C.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate

from inferencecache.server.index.partition import Partition
from inferencecache.server.index.ranking import Found, Moment
from inferencecache.server.index.recency import seen_us, tier_of


def chain(partition: Partition, blocks: Sequence[bytes], token_counts: Sequence[int], moment: Moment) -> list[Found]:
    """The replicas with a fresh leading run of `blocks` of more than 0 tokens, by the request's own counts."""
    first = blocks[0]
    limit = moment.now_us - moment.ttl_us
    tokens: list[int] = []
    found = []
    for replica_id, lane in partition.lanes.items():
        held = lane.recency.stamps
        if first not in held:
            continue
        stamps: list[int] = []
        # What came before the first block that is not held stays in the list.
        with suppress(KeyError):
            stamps.extend(map(held.__getitem__, blocks))
        distinct = set(stamps)
        oldest_us = seen_us(min(distinct))
        if oldest_us <= limit:
            fresh = next(i for i, stamp in enumerate(stamps) if seen_us(stamp) <= limit)
            if not fresh:
                continue
            del stamps[fresh:]
            distinct = set(stamps)
            oldest_us = seen_us(min(distinct))
        run = len(stamps)
        if not tokens:
            tokens = list(accumulate(token_counts))
        if (matched := tokens[run - 1]) > 0:
            found.append(Found(replica_id, matched, oldest_us, max(map(tier_of, distinct)), run))
    return found


def exact(partition: Partition, prefix_hash: bytes, moment: Moment) -> list[Found]:
    """The replicas with a fresh hold of one prefix, with the tokens they reported for it."""
    limit = moment.now_us - moment.ttl_us
    found = []
    for replica_id, lane in partition.lanes.items():
        stamp = lane.recency.stamps.get(prefix_hash)
        if stamp is not None and (at_us := seen_us(stamp)) > limit:
            found.append(Found(replica_id, lane.tokens(prefix_hash), at_us, tier_of(stamp), 1))
    return found
