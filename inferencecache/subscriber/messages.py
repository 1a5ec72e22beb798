"""The messages a server gets from one replica, and what its answers mean (spec 08 §8)."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError
from msgspec import Struct

from inferencecache.subscriber.adapters import BASE_MODEL
from inferencecache.subscriber.chain import Add
from inferencecache.subscriber.outbox import PARCEL, Additions, Clearing, Key
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

    def additions(self, parcel: Additions) -> bytes:
        """One update with these prefixes."""
        update = bytearray(self._update(parcel.timestamp_us).SerializeToString())
        tier = int(parcel.tier)
        of_base_model: dict[int, tuple[bytes, bytes]] = {}
        for which, token_count in parcel.entries.items():
            if isinstance(which, int):  # nearly always, so each step counts
                around = of_base_model.get(token_count)
                if around is None:
                    around = of_base_model[token_count] = _around(token_count, BASE_MODEL, tier)
                before, after = around
                update += before
                update += key(which)
                update += after
            else:
                update += _entry(Add(which[0], token_count, which[1], parcel.tier))
        return bytes(update)

    def everything(self, holds: Iterable[Add]) -> list[bytes]:
        """Updates with all that is held, as of now."""
        updates = []
        remaining = iter(holds)
        while part := b"".join(map(_entry, itertools.islice(remaining, PARCEL))):
            updates.append(self._update(0).SerializeToString() + part)
        return updates

    def moves(self, moved: Iterable[tuple[Add, int]]) -> list[bytes]:
        """Updates with what is in a slower tier, each since a time in microseconds: that is told in steps of 10 s."""
        updates: list[bytes] = []
        entries: dict[int, bytearray] = defaultdict(bytearray)
        for add, since_us in moved:
            told_us = since_us - since_us % _STEP_US
            together = entries[told_us]
            together += _entry(add)
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


_ANY_HASH: Final = b"\xff" * 8


@lru_cache(maxsize=4_096)
def _around(token_count: int, adapter: str, tier: int) -> tuple[bytes, bytes]:
    """What stands before and after the hash in the bytes of an update that has one entry and nothing else.

    Protobuf's messages are concatenated to be merged, and entries differ in little else than their hashes, so few have
    to be encoded: this takes a fifth of the time.
    """
    update = pb.CacheStateUpdate()
    update.prefixes.add(prefix_hash=_ANY_HASH, token_count=token_count, adapter_id=adapter, tier=tier)
    before, _, after = update.SerializeToString().partition(_ANY_HASH)
    return before, after


def _entry(add: Add) -> bytes:
    """The bytes of an update that has this one entry and nothing else."""
    before, after = _around(add.token_count, add.adapter, int(add.tier))
    return before + key(add.prefix_hash) + after


def refusal(answer: bytes) -> str:
    """Why a server's answer to one of these messages is no acknowledgement; empty if it is one."""
    try:
        ack = pb.Ack.FromString(answer)
    except DecodeError as error:
        return f"not understood: {error}"
    return "" if ack.accepted else f"not accepted: {ack.reason_code or 'no reason given'}"
