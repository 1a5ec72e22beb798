"""Which replicas hold a chain, or a single prefix (spec 06 §6.6): the walk through a partition's lanes.

Chain hashes are chained, so block i names the whole prefix up to it, and only an unbroken leading run is of use. A
run is as fresh as its oldest block and as cold as its coldest. Everything here is called on every lookup; the loops
over blocks are left to C.

A message has room for hundreds of thousands of blocks, and a scope for any number of replicas. What that comes to is
walked in turns, so that other lookups need not wait for it; what changes meanwhile may or may not be seen.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Final

from inferencecache.server.index.partition import Partition
from inferencecache.server.index.ranking import Found, Moment
from inferencecache.server.index.recency import first_stamp, seen_us, tier_of

TURN: Final = 1 << 14
"""Blocks looked for, counted for each replica: a few milliseconds."""


def chain(partition: Partition, blocks: Sequence[bytes], token_counts: Sequence[int], moment: Moment) -> list[Found]:
    """The replicas with a fresh leading run of `blocks` of more than 0 tokens, by the request's own counts."""
    first = blocks[0]
    fresh = first_stamp(moment.now_us - moment.ttl_us + 1)
    tokens: list[int] = []
    found = []
    for replica_id, lane in partition.lanes.items():
        held = lane.recency.stamps
        if first not in held:
            continue
        run: list[int] = []
        try:  # noqa: SIM105 (a context manager costs as much as several blocks, for every replica)
            run.extend(map(held.__getitem__, blocks))
        except KeyError:
            pass  # what came before the first block that is not held is in the list
        if not tokens:
            tokens = list(accumulate(token_counts))
        if (usable := _usable(replica_id, run, tokens, fresh)) is not None:
            found.append(usable)
    return found


def chain_in_turns(
    partition: Partition, blocks: Sequence[bytes], token_counts: Sequence[int], moment: Moment
) -> Generator[None, None, list[Found]]:
    """As `chain`; yields after each turn."""
    first = blocks[0]
    fresh = first_stamp(moment.now_us - moment.ttl_us + 1)
    tokens = list(accumulate(token_counts))
    found = []
    work = 0
    for replica_id, lane in list(partition.lanes.items()):
        held = lane.recency.stamps
        work += 1
        if first not in held:
            continue
        run: list[int] = []
        for start in range(0, len(blocks), TURN):
            part = blocks[start : start + TURN]
            with suppress(KeyError):
                run.extend(map(held.__getitem__, part))
            work += len(run) - start
            if work >= TURN:
                work = 0
                yield
            if len(run) < start + len(part):
                break
        if (usable := _usable(replica_id, run, tokens, fresh)) is not None:
            found.append(usable)
    return found


def exact(partition: Partition, prefix_hash: bytes, moment: Moment) -> list[Found]:
    """The replicas with a fresh hold of one prefix, with the tokens they reported for it."""
    fresh = first_stamp(moment.now_us - moment.ttl_us + 1)
    found = []
    for replica_id, lane in partition.lanes.items():
        stamp = lane.recency.stamps.get(prefix_hash)
        if stamp is not None and stamp >= fresh:
            found.append(Found(replica_id, lane.tokens(prefix_hash), seen_us(stamp), tier_of(stamp), 1))
    return found


def _usable(replica_id: str, run: list[int], tokens: Sequence[int], fresh: int) -> Found | None:
    """What the fresh beginning of a run is worth; `tokens[i]` are those up to the end of block `i`."""
    distinct = _distinct(run)
    oldest = min(distinct)
    if oldest < fresh:
        del run[next(at for at, stamp in enumerate(run) if stamp < fresh) :]
        if not run:
            return None
        distinct = _distinct(run)
        oldest = min(distinct)
    matched = tokens[len(run) - 1]
    if matched <= 0:
        return None
    coldest = tier_of(oldest) if len(distinct) == 1 else max(map(tier_of, distinct))
    return Found(replica_id, matched, seen_us(oldest), coldest, len(run))


def _distinct(stamps: list[int]) -> Collection[int]:
    """What is in `stamps`, which is mostly one: the blocks of a prompt are reported together."""
    first = stamps[0]
    # Counting one object is several times as fast as hashing all.
    return (first,) if stamps.count(first) == len(stamps) else set(stamps)
