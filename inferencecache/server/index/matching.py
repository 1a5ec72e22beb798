"""Which replicas hold a chain, or a single prefix (spec 06 §6.6): the walk through a partition's lanes.

Chain hashes are chained, so block i names the whole prefix up to it, and only an unbroken leading run is of use. A
run is as fresh as its oldest block and as cold as its coldest. Everything here is called on every lookup; the loops
over blocks are left to C, and where blocks were reported as they are asked for, many are compared at once.

A message has room for hundreds of thousands of blocks, and a scope for any number of replicas. What that comes to is
walked in turns, so that other lookups need not wait for it; what changes meanwhile may or may not be seen.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from itertools import accumulate
from typing import Final

from inferencecache.server.index.partition import Lane, Partition
from inferencecache.server.index.ranking import Found, Moment
from inferencecache.server.index.recency import Recency, first_stamp, seen_us, tier_of
from inferencecache.server.index.sequences import SHORTEST, WIDTH, pack

TURN: Final = 1 << 14
"""Blocks looked for, counted for each replica: a few milliseconds."""
REPLICA: Final = 32
"""Blocks that can be looked for in the time that it takes to begin and end with one replica."""

LONG: Final = 128
"""Blocks of a chain that is worth packing."""
STRETCH: Final = 64
"""Blocks that are looked up one by one before sequences are tried again; each time in a row twice as many, as a chain
that was not stored as it is asked has none.
"""


def chain(partition: Partition, blocks: Sequence[bytes], token_counts: Sequence[int], moment: Moment) -> list[Found]:
    """The replicas with a fresh leading run of `blocks` of more than 0 tokens, by the request's own counts."""
    first = blocks[0]
    fresh = first_stamp(moment.now_us - moment.ttl_us + 1)
    packed = _packed(blocks)
    tokens: Sequence[int] = ()
    found = []
    for replica_id, lane in partition.lanes.items():
        if first in lane.recency.stamps:
            length, oldest, coldest = _run(lane.recency, blocks, packed, fresh)
            tokens = tokens or _up_to(token_counts)
            if length and (matched := tokens[length - 1]) > 0:
                found.append(Found(replica_id, matched, seen_us(oldest), coldest, length))
    return found


def chain_in_turns(
    partition: Partition, blocks: Sequence[bytes], token_counts: Sequence[int], moment: Moment
) -> Generator[None, None, list[Found]]:
    """As `chain`; yields after each turn."""
    first = blocks[0]
    fresh = first_stamp(moment.now_us - moment.ttl_us + 1)
    tokens = _up_to(token_counts)
    parts: list[tuple[Sequence[bytes], bytes]] = []
    found = []
    work = 0
    for replica_id, lane in list(partition.lanes.items()):
        if first not in lane.recency.stamps:
            continue
        work += REPLICA
        length, oldest, coldest = 0, lane.recency.stamps[first], 0
        for number, start in enumerate(range(0, len(blocks), TURN)):
            if number == len(parts):
                part = blocks[start : start + TURN]
                parts.append((part, _packed(part)))
            part, packed = parts[number]
            more, older, colder = _run(lane.recency, part, packed, fresh)
            if more:
                length, oldest, coldest = length + more, min(oldest, older), max(coldest, colder)
            work += more
            if work >= TURN:
                work = 0
                yield
            if more < len(part):
                break
        if length and (matched := tokens[length - 1]) > 0:
            found.append(Found(replica_id, matched, seen_us(oldest), coldest, length))
    return found


def exact(lanes: Iterable[tuple[str, Lane]], prefix_hash: bytes, moment: Moment) -> list[Found]:
    """The replicas with a fresh hold of one prefix, with the tokens they reported for it; `lanes` are by replica."""
    fresh = first_stamp(moment.now_us - moment.ttl_us + 1)
    found = []
    for replica_id, lane in lanes:
        stamp = lane.recency.stamps.get(prefix_hash)
        if stamp is not None and stamp >= fresh:
            found.append(Found(replica_id, lane.tokens(prefix_hash), seen_us(stamp), tier_of(stamp), 1))
    return found


def _packed(blocks: Sequence[bytes]) -> bytes:
    """The blocks packed, where that helps."""
    return pack(blocks) if len(blocks) >= LONG else b""


def _run(recency: Recency, blocks: Sequence[bytes], packed: bytes, fresh: int) -> tuple[int, int, int]:
    """How many of the leading blocks are held fresh, the oldest stamp and the coldest tier of them."""
    length, stamps = _leaps(recency, blocks, packed) if packed and recency.sequences else _steps(recency, blocks)
    if not length:
        return 0, 0, 0
    oldest = min(stamps)
    if oldest < fresh:
        run = list(map(recency.stamps.__getitem__, blocks[:length]))
        length = next(at for at, stamp in enumerate(run) if stamp < fresh)
        if not length:
            return 0, 0, 0
        stamps = set(run[:length])
        oldest = min(stamps)
    return length, oldest, tier_of(oldest) if len(stamps) == 1 else max(map(tier_of, stamps))


def _steps(recency: Recency, blocks: Sequence[bytes]) -> tuple[int, Collection[int]]:
    """How many of the leading blocks are held, and their stamps: block by block."""
    run: list[int] = []
    try:  # noqa: SIM105 (a context manager costs as much as several blocks, for every replica)
        run.extend(map(recency.stamps.__getitem__, blocks))
    except KeyError:
        pass  # what came before the first block that is not held is in the list
    # The blocks of a prompt have mostly one stamp, and counting one object is several times as fast as hashing all.
    same = run and run.count(run[0]) == len(run)
    return len(run), run[:1] if same else set(run)


def _leaps(recency: Recency, blocks: Sequence[bytes], packed: bytes) -> tuple[int, Collection[int]]:
    """As `_steps`, by sequences where there are any."""
    held, sequences = recency.stamps, recency.sequences
    assert sequences is not None
    at, number, most = 0, len(packed) // WIDTH, STRETCH
    stamps: set[int] = set()
    while at < number and (stamp := held.get(packed[at * WIDTH : (at + 1) * WIDTH])) is not None:
        together = sequences.run(stamp, packed, at)
        if together:
            stamps.add(stamp)
            at += together
        if together >= SHORTEST:
            most = STRETCH
            continue
        stretch = blocks[at : at + most]
        walked, seen = _steps(recency, stretch)
        stamps.update(seen)
        at += walked
        if walked < len(stretch):
            break
        most *= 2
    return at, stamps


def _up_to(token_counts: Sequence[int]) -> Sequence[int]:
    """The tokens up to the end of each block, of which there is at least one."""
    first, number = token_counts[0], len(token_counts)
    # All blocks of an engine have one size.
    if first > 0 and token_counts.count(first) == number:
        return range(first, first * number + 1, first)
    return list(accumulate(token_counts))
