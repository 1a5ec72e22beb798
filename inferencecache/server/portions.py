"""Large reports, in portions that leave others their turn.

A producer that tells its whole state at once may send hundreds of thousands of blocks in one message; bringing them
into the index takes seconds, in which no lookup would be answered. A report is a delta, so it may as well be several,
one after the other: the index is the same in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import accumulate
from typing import Final, NamedTuple

from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb

PORTION_BLOCKS: Final = 1000
HASHLESS_ENTRIES: Final = 5000
"""Entries without a hash that are passed over in one turn."""
_SMALL_BYTES: Final = 16 << 10
"""A message of this size cannot have many more blocks than a portion."""
_MAX_COUNT: Final = 2**31 - 1


class Portion(NamedTuple):
    """A part of an update, if there is one, and how many entries without any hash were left out since the last."""

    update: pb.CacheStateUpdate | None
    hashless: int


async def apportioned(update: pb.CacheStateUpdate) -> AsyncIterator[Portion]:
    """The portions of an update, with a turn for others between them."""
    first = True
    for portion in portions(update):
        if not first:
            await asyncio.sleep(0)
        first = False
        yield portion


def portions(update: pb.CacheStateUpdate, blocks: int = PORTION_BLOCKS) -> Iterator[Portion]:
    """Updates of about `blocks` blocks that together say what `update` says, in its order; the last has its stats.

    Entries that have no hash at all take two bytes of a message, so there may be millions; copying them would take
    longer than all else. Without a hash scheme no entry is of use, and to see that takes no time.
    """
    if update.ByteSize() <= _SMALL_BYTES or not update.hash_scheme:
        yield Portion(update, 0)
        return
    portion, weight, hashless = _empty(update), 0, 0
    for entry in update.prefixes:
        if not (entry.prefix_hash or entry.block_hashes or entry.block_token_counts):
            hashless += 1
            if hashless == HASHLESS_ENTRIES:
                yield Portion(None, hashless)
                hashless = 0
            continue
        for part in _parts(entry, blocks):
            size = 1 + len(part.block_hashes)
            if weight + size > blocks and weight:
                yield Portion(portion, hashless)
                portion, weight, hashless = _empty(update), 0, 0
            portion.prefixes.append(part)
            weight += size
    if update.HasField("stats"):
        portion.stats.CopyFrom(update.stats)
    yield Portion(portion, hashless)


def _empty(update: pb.CacheStateUpdate) -> pb.CacheStateUpdate:
    return pb.CacheStateUpdate(
        replica_id=update.replica_id,
        model_id=update.model_id,
        tenant_id=update.tenant_id,
        hash_scheme=update.hash_scheme,
        timestamp_us=update.timestamp_us,
        adapter_id=update.adapter_id,
    )


def _parts(entry: pb.PrefixEntry, blocks: int) -> Iterator[pb.PrefixEntry]:
    """The entry, or one entry for each block of a chain that is too long for a portion."""
    hashes, tokens = entry.block_hashes[:], entry.block_token_counts[:]
    if len(hashes) < blocks or len(hashes) != len(tokens) or b"" in hashes:
        yield entry  # a broken chain is for the reader of reports to drop, as a whole
        return
    for block, total in zip(hashes, accumulate(tokens), strict=True):
        count = min(max(total, 0), _MAX_COUNT)
        yield pb.PrefixEntry(prefix_hash=block, token_count=count, tier=entry.tier, adapter_id=entry.adapter_id)
    if entry.prefix_hash:
        yield pb.PrefixEntry(
            prefix_hash=entry.prefix_hash,
            token_count=entry.token_count,
            tier=entry.tier,
            adapter_id=entry.adapter_id,
        )
