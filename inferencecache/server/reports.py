"""From what producers send to what the index takes (spec 06 §3.4, §3.5, §6.2).

Producers are many, restart at any time, and are not trusted to be right: no message is refused, but what is unusable in
it is dropped and counted. An entry names the blocks one replica holds, either one hash with the tokens up to the end of
its block (what the subscriber sends, an entry per block), or a chain with the tokens of each block.

Here the producer's clock ends: a report from the future counts as at most five seconds ahead (decision D7), so that a
wrong clock cannot make holds that outlive their tenant's TTL.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import Final, NamedTuple

from inferencecache.server.index import MAX_AHEAD_US, Holds, PrefixIndex, Report, Stats
from inferencecache.wire.limits import LONGEST_NAME
from inferencecache.wire.v1alpha1.inferencecache_pb2 import CacheEvent, CacheStateUpdate, PrefixEntry, ReplicaStats

T1: Final = 1
COLDEST: Final = 2**31 - 1
"""The tier of an entry whose tier makes no sense: never taken for T1, and told to nobody."""

_MAX_COUNT: Final = 2**31 - 1

NO_HASH: Final = "no_hash"
NO_SCHEME: Final = "no_hash_scheme"
BROKEN_CHAIN: Final = "broken_chain"
OVERLONG: Final = "overlong"

MAX_HASH_BYTES: Final = 256
"""The index counts holds, not bytes. Without this limit each of a million holds could be as long as a message."""


class Instant(NamedTuple):
    """A producer's time as the index takes it, and whether it had to be pulled back."""

    us: int
    clamped: bool


class Reading(NamedTuple):
    """One update as the index takes it. `dropped` counts the unusable entries by reason."""

    report: Report
    dropped: Counter[str]
    clamped: bool


def instant(timestamp_us: int, now_us: int) -> Instant:
    """The time of a message: the server's if it has none, at most 5 s ahead of it, and after 1970 has begun.

    Never 0: the next server to read it, from a shared log or a dump, would take that for a message without a time.
    """
    if timestamp_us == 0:
        return Instant(now_us, clamped=False)
    latest = now_us + MAX_AHEAD_US
    return Instant(min(max(timestamp_us, 1), latest), clamped=timestamp_us > latest)


def read(update: CacheStateUpdate, now_us: int) -> Reading:
    """What `update` says. Entries of a scheme-less update are dropped, its stats are not; all of one with an overlong
    name is."""
    us, clamped = instant(update.timestamp_us, now_us)
    scheme = update.hash_scheme
    named = _are_names(update.replica_id, update.tenant_id, update.model_id, scheme, update.adapter_id)
    holds: list[Holds] = []
    if not named:
        dropped = Counter({OVERLONG: max(len(update.prefixes), 1)})
    elif scheme:
        holds, dropped = _holds(update.prefixes, update.adapter_id)
    else:
        dropped = Counter({NO_SCHEME: len(update.prefixes)} if update.prefixes else {})
    return Reading(
        report=Report(
            replica_id=update.replica_id,
            tenant=update.tenant_id,
            model=update.model_id,
            hash_scheme=scheme,
            timestamp_us=us,
            holds=holds,
            stats=_stats(update.stats) if named and update.HasField("stats") else None,
        ),
        dropped=dropped,
        clamped=clamped,
    )


def apply(event: CacheEvent, index: PrefixIndex, now_us: int) -> bool:
    """Bring one event into the index; returns whether its time was clamped.

    PREFIX_ADDED says neither scheme nor tokens, so there is nothing to add. Removals concern all hash schemes, and one
    without an adapter concerns all adapters.
    """
    match event.type:
        case CacheEvent.PREFIX_EVICTED:
            index.evict(
                tenant=event.tenant_id,
                model=event.model_id,
                replica_id=event.replica_id,
                prefix_hash=event.prefix_hash,
                adapter_id=event.adapter_id,
            )
        case CacheEvent.REPLICA_UPDATED:
            us, clamped = instant(event.timestamp_us, now_us)
            index.touch(tenant=event.tenant_id, model=event.model_id, replica_id=event.replica_id, event_us=us)
            return clamped
        case CacheEvent.ALL_CLEARED:
            index.clear(tenant=event.tenant_id, model=event.model_id, replica_id=event.replica_id)
    return False


def _holds(entries: Iterable[PrefixEntry], adapter_of_update: str) -> tuple[list[Holds], Counter[str]]:
    """The usable entries, in their order (of two for one hash the last counts), runs of equal adapter and tier
    together."""
    dropped: Counter[str] = Counter()
    runs: list[Holds] = []
    current: tuple[str, int] | None = None
    hashes: list[bytes] = []
    counts: list[int] = []
    for entry in entries:
        adapter, tier = entry.adapter_id or adapter_of_update, entry.tier
        exact = entry.prefix_hash
        if len(exact) > MAX_HASH_BYTES or len(adapter) > LONGEST_NAME:
            dropped[OVERLONG] += 1
            continue
        if (adapter, tier) != current:
            hashes, counts = [], []
            runs.append(Holds(adapter, _tier(tier), hashes, counts))
            current = (adapter, tier)
        blocks, tokens = entry.block_hashes, entry.block_token_counts
        if blocks or tokens:
            chain = blocks[:]
            if len(chain) != len(tokens) or b"" in chain:
                dropped[BROKEN_CHAIN] += 1
                continue
            if max(map(len, chain)) > MAX_HASH_BYTES:
                dropped[OVERLONG] += 1
                continue
            hashes += chain
            counts += _cumulative(tokens[:])
        elif not exact:
            dropped[NO_HASH] += 1
            continue
        if exact:
            hashes.append(exact)
            counts.append(_count(entry.token_count))
    return [run for run in runs if run.hashes], dropped


def _are_names(*names: str) -> bool:
    return all(len(name) <= LONGEST_NAME for name in names)


def _tier(tier: int) -> int:
    """0 is a producer that knows no tiers, so the engine's own. Beyond T3 is colder than what we know of."""
    if tier == 0:
        return T1
    return tier if tier > 0 else COLDEST


def _cumulative(tokens: list[int]) -> list[int]:
    """The tokens up to the end of each block of a chain."""
    totals = list(accumulate(tokens))
    if min(tokens) < 0 or totals[-1] > _MAX_COUNT:
        return [_count(total) for total in totals]
    return totals


def _count(tokens: int) -> int:
    """Within what a reply can carry; a negative count is none."""
    return min(max(tokens, 0), _MAX_COUNT)


def _stats(stats: ReplicaStats) -> Stats:
    """Rates as they are, if they are numbers; a negative amount is none."""
    return Stats(
        cache_memory_bytes=max(stats.cache_memory_bytes, 0),
        hit_rate=_finite(stats.hit_rate),
        pressure=_finite(stats.pressure),
        t2_hit_tokens=max(stats.t2_hit_tokens, 0),
        t2_query_tokens=max(stats.t2_query_tokens, 0),
    )


def _finite(rate: float) -> float:
    return rate if math.isfinite(rate) else 0.0
