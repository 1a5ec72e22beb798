"""What changes a server's state: reports, events, and the documents of the controller.

One server alone applies each at once. With a shared log (`share`) it hands them to the log instead, which gives them
back in the order that counts for all servers. Either way they end in `apply` or its parts, and observers hear of them
there.

What is accepted must mean the same on every server, so the clock of the accepting one is written into it; and a
document is refused, if it has to be, before it goes to the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
from google.protobuf.message import DecodeError

from inferencecache.server import pdroute, policy, reports, templates
from inferencecache.server.dump import updates
from inferencecache.server.faults import Faults
from inferencecache.server.index import RESERVED_TENANT, PrefixIndex
from inferencecache.server.metrics import ServerMetrics
from inferencecache.server.pdroute import PDRouter
from inferencecache.server.policy import PolicyStore
from inferencecache.server.store import records
from inferencecache.server.store.records import DOCUMENT, EVENT, UPDATE, Record
from inferencecache.server.streams import EventHub
from inferencecache.server.templates import TemplateStore
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb

POLICY: Final = "policy"
TEMPLATES: Final = "templates"
TOPOLOGIES: Final = "topologies"

_log = structlog.get_logger(__name__)


class Log(Protocol):
    """Where accepted records go if several servers share them."""

    def accept(self, record: Record) -> asyncio.Future[None] | None:
        """See `SharedLog.accept`."""


@dataclass(frozen=True, slots=True)
class State:
    """What this server holds, and whom it tells."""

    index: PrefixIndex
    policies: PolicyStore
    templates: TemplateStore
    topologies: PDRouter
    events: EventHub


class Intake:
    """The only writer of `State`. All methods belong to the event loop that owns the index."""

    def __init__(
        self,
        state: State,
        *,
        metrics: ServerMetrics,
        faults: Faults,
        wall_us: Callable[[], int],
        put_off: Callable[[], None],
    ) -> None:
        """`put_off` is called when the index has put off some of its work."""
        self._put_off = put_off
        self._state = state
        self._metrics = metrics
        self._faults = faults
        self._wall_us = wall_us
        self._log: Log | None = None
        self._documents: dict[str, Callable[[bytes], Callable[[], None]]] = {
            POLICY: self._policy,
            TEMPLATES: self._templates,
            TOPOLOGIES: self._topologies,
        }

    def share(self, log: Log) -> None:
        """From now on everything accepted goes through `log`, which calls `apply`."""
        self._log = log

    def report(self, update: pb.CacheStateUpdate) -> asyncio.Future[None] | None:
        """Take one message of a producer. Never raises.

        Returns:
            None: it is in force. Else what is done when it is, here and in the shared log, and so is everything
            accepted before it.
        """
        if update.tenant_id == RESERVED_TENANT:
            return None
        if self._log is None:
            self._report(update)
            return None
        update.timestamp_us = self._told_when(update.timestamp_us)
        return self._log.accept(Record(UPDATE, update.SerializeToString()))

    def publish(self, event: pb.CacheEvent) -> asyncio.Future[None] | None:
        """Take one event; as `report`."""
        if event.tenant_id == RESERVED_TENANT:
            return None
        if self._log is None:
            self._publish(event)
            return None
        event.timestamp_us = self._told_when(event.timestamp_us)
        return self._log.accept(Record(EVENT, event.SerializeToString()))

    def push(self, name: str, body: bytes) -> asyncio.Future[None] | None:
        """Take a document, in place of the one of that name before; as `report`.

        Raises:
            ValueError: it cannot be used; what was in force stays.
        """
        put_in_force = self._documents[name](body)
        if self._log is None:
            put_in_force()
            return None
        return self._log.accept(Record(DOCUMENT, body, name))

    def apply(self, record: Record) -> None:
        """Bring a record of the shared log into force. Never raises: what cannot be used is counted."""
        try:
            match record.kind:
                case records.UPDATE:
                    self._report(pb.CacheStateUpdate.FromString(record.body))
                case records.EVENT:
                    self._publish(pb.CacheEvent.FromString(record.body))
                case _:
                    self._documents[record.name](record.body)()
        except (DecodeError, KeyError, ValueError) as error:
            # Another version's, or nobody's; all servers of this one pass over it alike.
            _log.warning("index_store_record_unusable", kind=record.kind, name=record.name, error=str(error))

    def dump(self) -> Iterator[Record]:
        """The index as records, walked while it changes. Never raises: an error ends it early."""
        try:
            for update in updates(self._state.index):
                yield Record(UPDATE, update.SerializeToString())
        except Exception as error:
            self._faults.record("dump", error)

    def _told_when(self, timestamp_us: int) -> int:
        us, clamped = reports.instant(timestamp_us, self._wall_us())
        if clamped:
            self._metrics.clamped_timestamps.inc()
        return us

    def _report(self, update: pb.CacheStateUpdate) -> None:
        try:
            now_us = self._wall_us()
            reading = reports.read(update, now_us)
            self._state.index.ingest(reading.report, now_us)
            self._note_what_was_put_off()
            self._state.events.reported(reading.report)
        except Exception as error:
            self._faults.record("ReportCacheState", error)
            return
        for reason, entries in reading.dropped.items():
            self._metrics.dropped_entries.labels(reason).inc(entries)
        if reading.clamped:
            self._metrics.clamped_timestamps.inc()

    def _publish(self, event: pb.CacheEvent) -> None:
        try:
            if reports.apply(event, self._state.index, self._wall_us()):
                self._metrics.clamped_timestamps.inc()
            self._note_what_was_put_off()
            self._state.events.published(event)
        except Exception as error:
            self._faults.record("PublishEvent", error)

    def _note_what_was_put_off(self) -> None:
        if self._state.index.unsettled:
            self._put_off()

    def _policy(self, body: bytes) -> Callable[[], None]:
        document = policy.parse(body)
        return lambda: self._state.policies.replace(document)

    def _topologies(self, body: bytes) -> Callable[[], None]:
        document = pdroute.parse(body)
        return lambda: self._state.topologies.replace(document)

    def _templates(self, body: bytes) -> Callable[[], None]:
        document = templates.parse(body)

        def put_in_force() -> None:
            for complaint in self._state.templates.replace(document):
                _log.warning("prompt_template_unusable", error=complaint)

        return put_in_force
