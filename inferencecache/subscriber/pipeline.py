"""From one batch of bytes to what each server has to be told: decode, chain, deliver; all of it at once, without I/O.

What had to be left out is counted by reason and said, though not for every batch: an engine that sends something odd
does so all the time.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog
from msgspec import Struct

from inferencecache.subscriber.chain import UNKNOWN_BLOCK, Chain, Delta
from inferencecache.wire.events import EventDecoder, UndecodableBatch

UNDECODABLE: Final = "undecodable_batch"
"""Reason: a message that is no event batch at all."""

_QUIET_SECONDS: Final = 30.0
_RANKS_PER_SOURCE: Final = 2**16
_HINTS: Final = {
    UNKNOWN_BLOCK: "blocks were stored without token_ids and cannot be indexed",
    UNDECODABLE: "a message is no event batch",
}

_log = structlog.get_logger(__name__)


class Recipient(Protocol):
    """Who is told what changed."""

    def put(self, deltas: list[Delta], timestamp_us: int) -> None:
        """These changes, as of that time."""


class PipelineCounts(Struct):
    """What went through, since the process began."""

    batches: int = 0
    events: int = 0


class Pipeline:
    """One engine's events, from all its ranks, to all servers.

    Args:
        chain: what the engine holds.
        recipients: the servers of the moment.
        clock: for the pauses between warnings.
    """

    def __init__(
        self,
        chain: Chain,
        recipients: Callable[[], list[Recipient]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.chain = chain
        self.counts = PipelineCounts()
        self.dropped: Counter[str] = Counter()
        """Events left out, by reason, those of the chain included."""
        self._recipients = recipients
        self._clock = clock
        self._decoders: dict[int, EventDecoder] = {}
        self._ranks: defaultdict[int, set[int]] = defaultdict(set)
        self._told: dict[str, float] = {}
        self._unnamed: set[int] = set()

    def batch(self, source: int, payload: bytes) -> None:
        """One batch of a source, which is one of the sockets that the engine publishes on."""
        decoder = self._decoders.get(source)
        if decoder is None:
            decoder = self._decoders[source] = EventDecoder()
        try:
            batch = decoder.decode(payload)
        except UndecodableBatch as error:
            self._drop({UNDECODABLE: 1}, error=str(error))
            return
        self.counts.batches += 1
        self.counts.events += len(batch.events)
        if batch.dropped:
            self._drop(batch.dropped)
        # Ranks are told apart by their sockets; behind one that carries several, by what they say.
        rank = source * _RANKS_PER_SOURCE + (batch.data_parallel_rank or 0)
        self._ranks[source].add(rank)
        deltas = self.chain.apply(batch.events, rank, batch.timestamp_us)
        if self.chain.dropped:
            self._drop(self.chain.dropped)
            self.chain.dropped.clear()
            self._tell_unnamed()
        if deltas:
            self._tell(deltas, batch.timestamp_us)

    def void(self, source: int) -> None:
        """What a source's ranks were known to hold is void."""
        for rank in self._ranks.pop(source, ()):
            deltas = self.chain.clear(rank)
            if deltas:
                self._tell(deltas, 0)

    def _tell(self, deltas: list[Delta], timestamp_us: int) -> None:
        for recipient in self._recipients():
            recipient.put(deltas, timestamp_us)

    def _tell_unnamed(self) -> None:
        """Say once of each adapter that it has no name, as whoever gives it one has to know the number (spec 08 §7)."""
        for lora_id in sorted(self.chain.unnamed - self._unnamed):
            self._unnamed.add(lora_id)
            _log.warning("an adapter has a number and no name; give it in --lora-adapter-names", lora_id=lora_id)

    def _drop(self, reasons: Mapping[str, int], **context: object) -> None:
        now = self._clock()
        for reason, events in reasons.items():
            self.dropped[reason] += events
            if now - self._told.get(reason, -_QUIET_SECONDS) >= _QUIET_SECONDS:
                self._told[reason] = now
                hint = _HINTS.get(reason, "events were left out")
                _log.warning(hint, reason=reason, events=events, total=self.dropped[reason], **context)
