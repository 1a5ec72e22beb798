"""The messages a server gets from one replica, and what its answers mean (spec 08 §8)."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from google.protobuf.message import DecodeError
from msgspec import Struct

from inferencecache.subscriber.adapters import BASE_MODEL
from inferencecache.subscriber.chain import Add
from inferencecache.subscriber.outbox import PARCEL, Clearing, Key
from inferencecache.subscriber.tiers import Tier
from inferencecache.wire.fingerprint import key
from inferencecache.wire.service import METHODS
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb

REPORT = METHODS["ReportCacheState"].path
PUBLISH = METHODS["PublishEvent"].path

_STEP_US: Final = 10_000_000
_UPDATE_BYTES: Final = 65_536


class Load(Struct, frozen=True):
    """An engine's load and hit rates, as the index takes them (spec 08 §9).

    Attributes:
        cache_memory_bytes: of the KV cache in use; 0 if its size is not known.
        hit_rate: of the prefix cache since the last time, 0 to 1.
        pressure: requests at work or waiting, as a share of what the engine can take, 0 to 1.
        t2_hit_tokens: found in the offload tier, since the engine began.
        t2_query_tokens: looked for there, since the engine began.
    """

    cache_memory_bytes: int
    hit_rate: float
    pressure: float
    t2_hit_tokens: int
    t2_query_tokens: int


class Identity(Struct, frozen=True):
    """Whose messages they are: the keys of the index."""

    replica_id: str
    model_id: str
    tenant_id: str = ""
    hash_scheme: str = "vllm"

    def additions(self, adds: Iterable[Add], timestamp_us: int) -> bytes:
        """One update with these prefixes."""
        frames = _Frames()
        return b"".join((self._update(timestamp_us).SerializeToString(), *(frames.entry(add) for add in adds)))

    def everything(self, holds: Iterable[Add]) -> list[bytes]:
        """Updates with all that is held, as of now."""
        updates = []
        remaining: Iterator[Add] = iter(holds)
        while part := list(itertools.islice(remaining, PARCEL)):
            updates.append(self.additions(part, 0))
        return updates

    def moves(self, moved: Iterable[tuple[Add, int]]) -> list[bytes]:
        """Updates with what is in a slower tier, each since a time in microseconds: that is told in steps of 10 s."""
        updates: list[bytes] = []
        frames = _Frames()
        entries: dict[int, bytearray] = defaultdict(bytearray)
        for add, since_us in moved:
            told_us = since_us - since_us % _STEP_US
            together = entries[told_us]
            together += frames.entry(add)
            if len(together) >= _UPDATE_BYTES:
                updates.append(self._update(told_us).SerializeToString() + entries.pop(told_us))
        updates += (self._update(told_us).SerializeToString() + rest for told_us, rest in entries.items())
        return updates

    def evictions(self, evicted: Iterable[tuple[Key, int]]) -> list[bytes]:
        """An event for each prefix and adapter, with its time in microseconds."""
        event = self._event(pb.CacheEvent.PREFIX_EVICTED)
        events = []
        for which, timestamp_us in evicted:
            prefix_hash, event.adapter_id = which if isinstance(which, tuple) else (which, BASE_MODEL)
            event.prefix_hash = key(prefix_hash)
            event.timestamp_us = timestamp_us
            events.append(event.SerializeToString())
        return events

    def clearing(self, parcel: Clearing) -> bytes:
        """The event that voids everything."""
        event = self._event(pb.CacheEvent.ALL_CLEARED)
        event.timestamp_us = parcel.timestamp_us
        return event.SerializeToString()

    def load(self, load: Load, timestamp_us: int) -> bytes:
        """An update with the replica's load only."""
        update = self._update(timestamp_us)
        update.stats.replica_id = self.replica_id
        update.stats.cache_memory_bytes = load.cache_memory_bytes
        update.stats.hit_rate = load.hit_rate
        update.stats.pressure = load.pressure
        update.stats.t2_hit_tokens = load.t2_hit_tokens
        update.stats.t2_query_tokens = load.t2_query_tokens
        return update.SerializeToString()

    def _update(self, timestamp_us: int) -> pb.CacheStateUpdate:
        return pb.CacheStateUpdate(
            replica_id=self.replica_id,
            model_id=self.model_id,
            tenant_id=self.tenant_id,
            hash_scheme=self.hash_scheme,
            timestamp_us=timestamp_us,
        )

    def _event(self, kind: pb.CacheEvent.Type) -> pb.CacheEvent:
        return pb.CacheEvent(type=kind, replica_id=self.replica_id, model_id=self.model_id, tenant_id=self.tenant_id)


class _Frames(dict[tuple[int, str, Tier], tuple[bytes, bytes]]):
    """What stands before and after the hash in the bytes of an entry of these tokens, adapter and tier.

    Protobuf's messages are concatenated to be merged, and entries differ in little else than their hashes, so few have
    to be encoded: this takes a third of the time.
    """

    def entry(self, add: Add) -> bytes:
        """The bytes of an update that has this one entry and nothing else."""
        before, after = self[add.token_count, add.adapter, add.tier]
        return before + key(add.prefix_hash) + after

    def __missing__(self, alike: tuple[int, str, Tier]) -> tuple[bytes, bytes]:
        tokens, adapter, tier = alike
        update = pb.CacheStateUpdate()
        update.prefixes.add(prefix_hash=_ANY_HASH, token_count=tokens, adapter_id=adapter, tier=int(tier))
        before, _, after = update.SerializeToString().partition(_ANY_HASH)
        self[alike] = before, after
        return before, after


_ANY_HASH: Final = b"\xff" * 8


def refusal(answer: bytes) -> str:
    """Why a server's answer to one of these messages is no acknowledgement; empty if it is one."""
    try:
        ack = pb.Ack.FromString(answer)
    except DecodeError as error:
        return f"not understood: {error}"
    return "" if ack.accepted else f"not accepted: {ack.reason_code or 'no reason given'}"
