"""From an engine's events to what changes in the index: the chain of prefixes behind the engine's block hashes.

An engine names blocks by hashes of its own, which nobody else can compute and which never become index keys. Each
stored block says what it continues (its parent) and what it adds (its tokens), so the content fingerprint of the whole
prefix can be rolled on from the parent's (spec 07 §4). For that, this module remembers for each engine hash: the prefix
hash, the cumulative tokens, the adapter, and the media that hold the block. Every data-parallel rank has a chain of its
own, as ranks may name different blocks alike; the index sees one replica, see `holds`.

The rules, where they are not plain:

* *A parent that is not known* is not taken for the beginning of a prompt. After a gap, or when this process started
  after the engine, that would give a suffix the key of a whole prompt, and a router would send requests to a cache that
  has nothing for them. The blocks are left out and counted (`UNKNOWN_PARENT`); a replay from the engine repairs it.
  Spec 07 §4 starts afresh here; decisions D3 and D11 ask for the engine's own state instead. A block that is removed
  is remembered for a while, as an engine may continue it, or report its copy on another medium, a moment later.
* *No parent* is the beginning of a prompt. That is wrong for SGLang up to 0.5.5, which names no parent across the nodes
  of its tree (spec 08 §15 fact 4); nothing on the wire tells the two apart.
* *Blocks that tokens alone do not determine* (salted, multimodal, with prompt embeddings) are followed but never
  indexed, as no request could ask for them by tokens, and one that seems to would get the wrong block. What continues
  them is like them. The adapter's name among the extra keys is no such thing: the index has partitions for that. An
  offload tells tokens without the extra keys (vLLM from 0.24 on), so its copy of such a block is known by the hash.
  Builds that send neither extra keys nor salts (vLLM before 0.18, SGLang before 0.5.19) leave nothing to tell them by.
* *Events without tokens* speak of blocks known by their hashes: copies in offload media.
* *Groups of layers* (hybrid models): only those that keep whole prefixes count. Blocks of the others, a sliding window
  for instance, have the same hashes, come and go by themselves, and say nothing of a prefix. Builds that number the
  groups and do not tell their kind are taken to keep prefixes in group 0 (spec 08 §15 fact 12).
* *Another granularity* (LMCache's chunks) is a chain beside the engine's: its hashes, its block size, its tier. A
  router that cuts prompts that way finds it; others do not. Its announcements are counted like those of any offload.
* *A block that is announced again* under the same hash with other content replaces what was known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final

from msgspec import Struct

from inferencecache.subscriber.adapters import BASE_MODEL, adapter_of
from inferencecache.subscriber.block_run import MAX_TOKENS, BlockRun
from inferencecache.subscriber.holds import Holds
from inferencecache.subscriber.rank import ADAPTER, MEDIA, PREFIX, REMEMBERED, Rank
from inferencecache.subscriber.table import Record
from inferencecache.subscriber.tiers import GPU, Medium, Tier, added, medium_of, removed, tiers_in
from inferencecache.wire.events import BlockRemoved, BlockStored, Event
from inferencecache.wire.fingerprint import prefix_hashes

UNKNOWN_PARENT: Final = "unknown_parent"
"""Reason: the event continues a block that was never heard of. Something was missed; a replay may bring it."""
UNKNOWN_BLOCK: Final = "unknown_block"
"""Reason: the event has no tokens, and names a block that was never heard of."""
UNMAPPED_ADAPTER: Final = "unmapped_adapter"
"""Reason: the event numbers an adapter that has no name (or is beyond the 65,534th): no request can ask for it."""
PARTIAL_GROUP: Final = "partial_group"
"""Reason: the blocks belong to layers that do not keep whole prefixes."""
BLOCK_COUNT: Final = "block_count"
"""Reason: there are not as many full blocks of tokens as there are hashes, or more tokens than the wire can count."""

_WHOLE_PREFIX_KINDS: Final = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
_U64: Final = 2**64 - 1
_OPAQUE: Final = 2**16 - 1  # in place of an adapter: followed, never indexed
_REMEMBERED_MOVES: Final = 65_536
_MOVED: Final = 1 << 63  # beside the time of a removed block that was said to be in T2 from then on
_ORIGINS: Final = 1_024
_UNNAMED: Final = 1_000


class Add(Struct, frozen=True, gc=False):
    """The replica holds this prefix. A repeated one says that it still does, or that its tier changed.

    Attributes:
        prefix_hash: of the whole prefix; `fingerprint.key` makes the wire's eight bytes of it.
        token_count: tokens of the whole prefix.
        adapter: partition of the index; empty for the base model.
        tier: the fastest that has it.
    """

    prefix_hash: int
    token_count: int
    adapter: str
    tier: Tier


class Adds(Struct, frozen=True, gc=False):
    """Several `Add` of one partition and tier, as columns: nearly all blocks come so, and an object each costs more
    than anything else that is done with them.
    """

    prefix_hashes: Sequence[int]
    token_counts: Sequence[int]
    adapter: str
    tier: Tier

    def __iter__(self) -> Iterator[Add]:
        """The same, one by one."""
        for prefix_hash, token_count in zip(self.prefix_hashes, self.token_counts, strict=True):
            yield Add(prefix_hash, token_count, self.adapter, self.tier)


class Evict(Struct, frozen=True, gc=False):
    """The replica holds this prefix no longer; the attributes are those of `Add`.

    To the index, one of the base model is of the prefix with any adapter (spec 06 §3.5), so what is still held follows.
    """

    prefix_hash: int
    adapter: str


class Clear(Struct, frozen=True, gc=False):
    """The replica holds nothing but what follows."""


class Renew(Struct, frozen=True, gc=False):
    """So much changed that the index has to be told everything anew: what the chain `holds` and what `moved`."""


Delta = Add | Adds | Evict | Clear | Renew


class Chain:
    """What one engine's caches hold, all ranks together.

    Not thread-safe: one task applies a rank's batches in the order of their sequence numbers, and each of them once, as
    announcements off the GPU are counted.

    Args:
        adapter_names: names of adapters that events give the number of only.
        offloads: what leaves the GPU is taken to stay on in host memory, as there is an offload tier that does not
            tell (`--ignore-block-removed`): it is reported as T2 and then forgotten, so that it goes when the index's
            time for it is over. What is known to be in another medium is reported by that.
        remembered: how many removed blocks of a rank may still be continued; with `offloads`, of as many it is known
            that they were said to be in T2. At least the last so many are remembered, at most twice as many.

    Attributes:
        dropped: events that were left out, wholly or in part, counted by the reasons above, until somebody clears it.
        unnamed: numbers of adapters that have no name; the first thousand that were met.
    """

    def __init__(
        self,
        *,
        adapter_names: Mapping[int, str] | None = None,
        offloads: bool = False,
        remembered: int | None = None,
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self.unnamed: set[int] = set()
        self._adapter_names = adapter_names or {}
        self._offloads = offloads
        self._remembered = remembered or (_REMEMBERED_MOVES if offloads else REMEMBERED)
        self._ranks: dict[int, Rank] = {}
        self._holds = Holds()
        self._adapters = [BASE_MODEL]
        self._adapter_numbers = {BASE_MODEL: 0}
        self._whole_groups = {0}
        self._origins: dict[tuple[int | str | None, ...], _Origin] = {}
        self._changes = 0

    @property
    def alive(self) -> int:
        """Blocks held, counted once per rank, whatever the media; those that are not indexed included."""
        return sum(rank.blocks.size for rank in self._ranks.values())

    @property
    def entries(self) -> int:
        """What is kept in memory: blocks, holds, and removed blocks that are remembered."""
        return len(self._holds) + sum(rank.entries for rank in self._ranks.values())

    def apply(self, events: Sequence[Event], rank: int = 0, timestamp_us: int = 0) -> list[Delta]:
        """Follow one batch of a rank's events, as of a time in microseconds since 1970; 0 is an unknown one.

        Returns:
            What to tell the index, in this order. Of several deltas for one prefix and adapter the last one stands, and
            a `Clear` makes all before it pointless, a `Renew` what is after it, too.
        """
        self._changes += 1
        deltas: list[Delta] = []
        followed = self._rank(rank)
        done = 0
        while done < len(events):
            event = events[done]
            done += 1
            if isinstance(event, BlockStored):
                run = self._store(followed, event, deltas)
                if run is not None:
                    if run.medium is GPU:  # an offload's blocks are looked at one by one
                        done += run.take(events, done)
                    self._store_run(followed, run, deltas)
            elif isinstance(event, BlockRemoved):
                self._remove(followed, event, timestamp_us, deltas)
            else:
                deltas += self.clear(rank)
                followed = self._rank(rank)
        return deltas

    def clear(self, rank: int = 0) -> list[Delta]:
        """Forget a rank: its engine says that its caches are empty, or was restarted, or what it holds is in doubt.

        Returns:
            A `Clear`, or a `Renew` if other ranks hold something: the index has no notion of ranks, and to tell it
            everything takes less than an eviction for each block that is gone.
        """
        self._changes += 1
        gone = self._ranks.pop(rank, None)
        if not any(map(self._told_of, self._ranks.values())):
            self._holds = Holds()
            return [Clear()]
        if gone is None or not self._told_of(gone):
            return []
        for _, prefix, _, adapter, media in gone.blocks:
            if adapter != _OPAQUE:
                self._holds.change(prefix, adapter, tiers_in(media), 0)
        return [Renew()]

    def _told_of(self, rank: Rank) -> int:
        """How many blocks of a rank the index may know; what left the GPU is in it for as long as it likes."""
        return rank.entries if self._offloads else rank.blocks.size

    def holds(self) -> Iterator[Add]:
        """All that the replica holds, for an index that has to be rebuilt; what several ranks hold comes repeatedly.

        Raises:
            RuntimeError: a batch was applied before the last one was read.
        """
        changes = self._changes
        for rank in self._ranks.values():
            for _, prefix, tokens, adapter, _ in rank.blocks:
                if changes != self._changes:
                    raise RuntimeError("the chain changed while its holds were read")
                tier = None if adapter == _OPAQUE else self._holds.best(prefix, adapter)
                if tier is not None:
                    yield Add(prefix, tokens, self._adapters[adapter], tier)

    def moved(self) -> Iterator[tuple[Add, int]]:
        """What left the GPU, is held no longer, and was said to be in T2: as far as it is remembered.

        Returns:
            Each with the time of its batch, in microseconds since 1970.

        Raises:
            RuntimeError: a batch was applied before the last one was read.
        """
        changes = self._changes
        for rank in self._ranks.values():
            for prefix, tokens, adapter, left in rank.removed():
                if changes != self._changes:
                    raise RuntimeError("the chain changed while its moves were read")
                if left & _MOVED and adapter != _OPAQUE and self._holds.best(prefix, adapter) is None:
                    yield Add(prefix, tokens, self._adapters[adapter], Tier.T2), left ^ _MOVED

    def _rank(self, number: int) -> Rank:
        rank = self._ranks.get(number)
        if rank is None:
            rank = self._ranks[number] = Rank(self._remembered)
        return rank

    def _store(self, rank: Rank, event: BlockStored, deltas: list[Delta]) -> BlockRun | None:
        """Follow an event, or answer with its blocks as a run that has to be stored, with what continues it."""
        origin = self._origin(event)
        if isinstance(origin, str):
            self.dropped[origin] += 1
            return None
        adapter, medium = origin
        names = event.block_hashes
        if not event.token_ids:
            self._store_known(rank, names, medium, UNKNOWN_BLOCK, deltas)
            return None
        prefix, tokens = None, 0
        plain = _plain_blocks(event)
        if event.parent_block_hash is not None:
            parent = rank.known(event.parent_block_hash & _U64)
            if parent is None:
                self._store_known(rank, names, medium, UNKNOWN_PARENT, deltas)
                return None
            prefix, tokens, parent_adapter, _ = parent
            if parent_adapter == _OPAQUE:
                plain = 0
        if medium is not GPU:
            plain = _not_known_as_opaque(rank, names[:plain])
        size = event.block_size
        full = len(event.token_ids) // size if size else 0
        if full != len(names) or tokens + len(event.token_ids) > MAX_TOKENS:
            self.dropped[BLOCK_COUNT] += 1
            return None
        if plain >= full > 0:
            return BlockRun(event, adapter, medium, prefix, tokens)
        prefixes = prefix_hashes(event.token_ids, size, prefix)
        self._hold(rank, names[:plain], prefixes[:plain], tokens, size, adapter, medium, deltas)
        self._hold(rank, names[plain:], prefixes[plain:], tokens + size * plain, size, _OPAQUE, medium, deltas)
        return None

    def _store_run(self, rank: Rank, run: BlockRun, deltas: list[Delta]) -> None:
        prefixes = prefix_hashes(run.tokens, run.size, run.prefix)
        self._hold(rank, run.names, prefixes, run.before, run.size, run.adapter, run.medium, deltas)

    def _store_known(self, rank: Rank, names: list[int], medium: Medium, otherwise: str, deltas: list[Delta]) -> None:
        """Blocks whose content this event does not tell, or that continue an unknown one."""
        missed = False
        for name in names:
            known = rank.known(name & _U64)
            if known is None:
                missed = True
            else:
                prefix, tokens, adapter, _ = known
                self._hold(rank, [name], [prefix], tokens, 0, adapter, medium, deltas)
        if missed:
            self.dropped[otherwise] += 1

    def _hold(
        self,
        rank: Rank,
        names: Sequence[int],
        prefixes: Sequence[int],
        tokens: int,
        size: int,
        adapter: int,
        medium: Medium,
        deltas: list[Delta],
    ) -> None:
        """A medium has blocks, each of `size` tokens more than the one before it; the first continues `tokens`."""
        blocks, holds = rank.blocks, self._holds
        partition = None if adapter == _OPAQUE else self._adapters[adapter]
        tier, alone = medium.tier, medium.alone
        if not names:
            return
        hashes = names if min(names) >= 0 else [name & _U64 for name in names]
        counts = range(tokens + size, tokens + size * len(hashes) + 1, size) if size else (tokens,)
        known = blocks.add(hashes, prefixes, counts, repeat(adapter), repeat(alone))
        rank.newest = hashes[-1], (prefixes[-1], counts[-1], adapter, alone)
        if partition is not None and medium is GPU and not known and holds.gain(prefixes, adapter):
            deltas.append(Adds(prefixes, counts, partition, tier))
            return
        for place, (block_hash, prefix, count) in enumerate(zip(hashes, prefixes, counts, strict=True)):
            held = blocks.get(block_hash) if place in known else None
            before, after = 0, medium.tiers
            if held is not None and held[PREFIX] == prefix and held[ADAPTER] == adapter:
                media = added(held[MEDIA], medium)
                before, after = tiers_in(held[MEDIA]), tiers_in(media)
                if media != held[MEDIA]:
                    blocks.replace(block_hash, prefix, count, adapter, media)
            elif held is not None:
                blocks.replace(block_hash, prefix, count, adapter, alone)
                self._lose(held, 0, deltas)
            if partition is None:
                continue
            best = holds.best(prefix, adapter) if before == after else holds.change(prefix, adapter, before, after)[1]
            if best is tier:  # a slower copy is no news
                deltas.append(Add(prefix, count, partition, tier))

    def _remove(self, rank: Rank, event: BlockRemoved, timestamp_us: int, deltas: list[Delta]) -> None:
        if event.group_idx is not None and event.group_idx not in self._whole_groups:
            self.dropped[PARTIAL_GROUP] += 1
            return
        medium = medium_of(event.medium, event.locality)
        offloaded = self._offloads and medium is GPU
        for signed in event.block_hashes:
            block_hash = signed & _U64
            held = rank.blocks.get(block_hash)
            if held is None:
                continue
            prefix, tokens, adapter, media = held
            left = removed(media, medium)
            if left == media:
                continue
            if left:
                rank.blocks.replace(block_hash, prefix, tokens, adapter, left)
            else:
                rank.forget(block_hash, held, timestamp_us | _MOVED if offloaded else 0)
            self._lose(held, left, deltas, offloaded)

    def _lose(self, held: Record, left: int, deltas: list[Delta], offloaded: bool = False) -> None:
        """A block is in fewer media; tell the index if that makes the hold slower, or ends it."""
        prefix, tokens, adapter, media = held
        before, after = tiers_in(media), tiers_in(left)
        if adapter == _OPAQUE or before == after:
            return
        best_before, best = self._holds.change(prefix, adapter, before, after)
        if best is None and offloaded:
            best = Tier.T2
        if best is None:
            deltas.append(Evict(prefix, self._adapters[adapter]))
            if not adapter:
                self._hold_elsewhere(prefix, tokens, deltas)
        elif best != best_before:
            deltas.append(Add(prefix, tokens, self._adapters[adapter], best))

    def _hold_elsewhere(self, prefix: int, tokens: int, deltas: list[Delta]) -> None:
        """Tell the index what it forgot with the base model's: an eviction that names no adapter is of all of them."""
        for adapter in range(1, len(self._adapters)):
            tier = self._holds.best(prefix, adapter)
            if tier is not None:
                deltas.append(Add(prefix, tokens, self._adapters[adapter], tier))

    def _origin(self, event: BlockStored) -> _Origin:
        """Adapter and medium of an event, or the reason why it is left out. Most events are like the ones before."""
        said = (
            event.lora_id,
            event.lora_name,
            event.medium,
            event.locality,
            event.group_idx,
            event.kv_cache_spec_kind,
        )
        origin = self._origins.get(said)
        if origin is None:
            if not self._keeps_whole_prefixes(event):
                origin = PARTIAL_GROUP
            elif (adapter := self._adapter_number(event)) is None:
                origin = UNMAPPED_ADAPTER
            else:
                origin = adapter, medium_of(event.medium, event.locality)
            if len(self._origins) >= _ORIGINS:
                self._origins.clear()
            self._origins[said] = origin
        return origin

    def _keeps_whole_prefixes(self, event: BlockStored) -> bool:
        kind, group = event.kv_cache_spec_kind, event.group_idx
        if kind is None or kind == "unknown":
            return group is None or group in self._whole_groups
        whole = kind in _WHOLE_PREFIX_KINDS
        if group is not None and whole is not (group in self._whole_groups):
            self._whole_groups ^= {group}
            self._origins.clear()  # they were judged by what was known of the groups
        return whole

    def _adapter_number(self, event: BlockStored) -> int | None:
        if event.lora_id is None and not event.lora_name:
            return 0
        name = adapter_of(event.lora_id, event.lora_name, self._adapter_names)
        if name is None:
            if event.lora_id is not None and len(self.unnamed) < _UNNAMED:
                self.unnamed.add(event.lora_id)
            return None
        number = self._adapter_numbers.get(name)
        if number is None and len(self._adapters) < _OPAQUE:
            number = self._adapter_numbers[name] = len(self._adapters)
            self._adapters.append(name)
        return number


_Origin = tuple[int, Medium] | str
"""Adapter and medium, or the reason why an event is left out."""


def _not_known_as_opaque(rank: Rank, names: list[int]) -> int:
    """How many of the first blocks are not known to be more than tokens; what else there is went into the hash."""
    for place, name in enumerate(names):
        known = rank.known(name & _U64)
        if known is not None and known[ADAPTER] == _OPAQUE:
            return place
    return len(names)


def _plain_blocks(event: BlockStored) -> int:
    """How many of the event's first blocks their tokens determine, given the adapter: up to one with other keys."""
    if event.cache_salt:
        return 0
    if not event.extra_keys or not any(event.extra_keys):
        return len(event.block_hashes)
    for index, keys in enumerate(event.extra_keys):
        if keys and not (len(keys) == 1 and keys[0] is not None and keys[0] in (event.lora_name, event.lora_id)):
            return index if index < len(event.block_hashes) else 0  # whose a key beyond the blocks is, nobody can tell
    return len(event.block_hashes)
