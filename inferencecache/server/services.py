"""What the faces serve: one object with a method per RPC and per admin endpoint.

A face (gRPC, HTTP/JSON, the controller's endpoints) turns bytes into these calls and their results into bytes, and
decides nothing. Everything here runs on one event loop, which owns the index.

Unary RPCs never fail: what cannot be answered gets the answer that makes its caller go on without a cache, and a
programming error is counted and told once. The tenant of the functional probe is nobody's: what is reported for it is
dropped, and asking about it finds nothing (spec 06 §3).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Final, NoReturn

from inferencecache import tracing
from inferencecache.server import probe, warm
from inferencecache.server.clock import Clock
from inferencecache.server.faults import Faults
from inferencecache.server.index import RESERVED_TENANT, PrefixIndex, Snapshot
from inferencecache.server.inputs import Tokenizer
from inferencecache.server.intake import Intake, State
from inferencecache.server.lookup import DEFAULT_BLOCK_SIZE, Call, LookupService
from inferencecache.server.metrics import ServerMetrics
from inferencecache.server.pdroute import NO_HINT, PDRouter
from inferencecache.server.policy import PolicyStore
from inferencecache.server.portions import apportioned
from inferencecache.server.probe import Prober, ProbeResult, Tier2Prober
from inferencecache.server.rendering import Renderer
from inferencecache.server.reports import NO_HASH
from inferencecache.server.streams import MAX_SUBSCRIPTIONS, EventHub, StreamEnded, stream_metrics
from inferencecache.server.templates import RENDER_ERROR, TemplateStore
from inferencecache.server.traced import traced
from inferencecache.server.workers import Workers
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb

SWEEP_SLICE: Final = 500
"""Holds removed before other work gets its turn."""
SETTLE_SLICE: Final = 1000
"""Holds that the index looks at for what it put off, before other work gets its turn."""


class Services:
    """One server's state and everything that can be asked of it."""

    def __init__(
        self,
        *,
        index: PrefixIndex,
        policies: PolicyStore,
        metrics: ServerMetrics,
        tokenizer: Tokenizer | None = None,
        tier2: Tier2Prober | None = None,
        block_size: int = DEFAULT_BLOCK_SIZE,
        clock: Clock | None = None,
    ) -> None:
        """`policies` are the rules of `index` too. `block_size` is that of the engines, for prompts and token ids."""
        clock = clock or Clock()
        self.metrics = metrics
        self._index = index
        self._policies = policies
        self._wall_us = clock.wall_us
        self._faults = Faults(metrics)
        templates = TemplateStore()
        self._topologies = PDRouter(index, policies)
        self._events = EventHub()
        self._metrics_observers = 0
        self._put_off = asyncio.Event()
        self._intake = Intake(
            State(index, policies, templates, self._topologies, self._events),
            metrics=metrics,
            faults=self._faults,
            wall_us=clock.wall_us,
            put_off=self._put_off.set,
        )
        workers = Workers()
        self._renderer = Renderer(templates, tokenizer=tokenizer, workers=workers, block_size=block_size)
        self._lookups = LookupService(
            index=index,
            policies=policies,
            metrics=metrics,
            faults=self._faults,
            tokenizer=tokenizer,
            block_size=block_size,
            clock=clock,
            workers=workers,
        )
        self._lookup = traced(self._lookups.lookup) if tracing.started() else self._lookups.lookup
        self._prober = Prober(index, tier2=tier2, clock=clock)
        metrics.watch_entries(index.entries_by_model)
        metrics.watch_names(lambda: index.name_bytes)

    def lookup_route(
        self, request: pb.LookupRouteRequest, call: Call, blocks: Sequence[bytes] | None = None
    ) -> pb.LookupRouteResponse | Awaitable[pb.LookupRouteResponse]:
        """LookupRoute: the reply, or an awaitable of it that must be awaited. Never raises.

        `blocks` are the request's block hashes, where they are not in `request`.
        """
        return self._lookup(request, call, blocks)

    @property
    def intake(self) -> Intake:
        """What changes this server's state, for those who feed it otherwise than by the RPCs below."""
        return self._intake

    def report(self, update: pb.CacheStateUpdate) -> asyncio.Future[None] | None:
        """One message of a ReportCacheState stream; see `Intake.report`. Never raises."""
        return self._intake.report(update)

    async def report_in_turns(self, update: pb.CacheStateUpdate) -> AsyncIterator[asyncio.Future[None] | None]:
        """One message of any size; gives what `report` returns for each portion of it, with others' turns between."""
        async for portion, hashless in apportioned(update):
            if hashless:
                self.metrics.dropped_entries.labels(NO_HASH).inc(hashless)
            if portion is not None:
                yield self.report(portion)

    def publish_event(self, event: pb.CacheEvent) -> pb.Ack | Awaitable[pb.Ack]:
        """PublishEvent: the reply, or an awaitable of it that must be awaited. Never raises."""
        acknowledged = pb.Ack(accepted=True)
        pending = self._intake.publish(event)
        return acknowledged if pending is None else _then(pending, acknowledged)

    def get_cache_state(self, request: pb.GetCacheStateRequest) -> pb.GetCacheStateResponse:
        """GetCacheState. Never raises."""
        reply = pb.GetCacheStateResponse(summary=pb.CacheSummary())
        if request.tenant_id == RESERVED_TENANT:
            return reply
        try:
            replicas, keys = self._index.cache_state(request.tenant_id, request.model_id)
        except Exception as error:
            self._faults.record("GetCacheState", error)
            return reply
        reply.summary.total_prefixes = keys
        for replica_id, stats in replicas:
            reply.replicas.add(
                replica_id=replica_id,
                cache_memory_bytes=stats.cache_memory_bytes,
                hit_rate=stats.hit_rate,
                pressure=stats.pressure,
                t2_hit_tokens=stats.t2_hit_tokens,
                t2_query_tokens=stats.t2_query_tokens,
            )
        return reply

    def render_template(
        self, request: pb.RenderTemplateRequest
    ) -> pb.RenderTemplateResponse | Awaitable[pb.RenderTemplateResponse]:
        """RenderTemplate: the reply, or an awaitable of it that must be awaited. Never raises."""
        try:
            return self._renderer.render(request)
        except Exception as error:
            self._faults.record("RenderTemplate", error)
            return pb.RenderTemplateResponse(reason_code=RENDER_ERROR)

    def lookup_pd_route(self, request: pb.LookupPDRouteRequest) -> pb.LookupPDRouteResponse:
        """LookupPDRoute. Never raises."""
        try:
            return self._topologies.route(request, self._wall_us())
        except Exception as error:
            self._faults.record("LookupPDRoute", error)
            return pb.LookupPDRouteResponse(reason_code=NO_HINT)

    async def stream_cache_events(self, request: pb.StreamEventsRequest) -> AsyncIterator[pb.CacheEvent]:
        """StreamCacheEvents: what is applied from now on.

        Raises:
            StreamEnded: there are too many observers, or this one is too slow.
        """
        subscription = self._events.subscribe(request)
        try:
            async for event in subscription:
                yield event
        finally:
            subscription.close()

    async def stream_metrics(self, request: pb.StreamMetricsRequest) -> AsyncIterator[pb.Metric]:
        """StreamMetrics: all series at once, and again from time to time.

        Raises:
            StreamEnded: there are too many observers.
        """
        if self._metrics_observers >= MAX_SUBSCRIPTIONS:
            raise StreamEnded(f"there are {MAX_SUBSCRIPTIONS} observers already: try again later")
        self._metrics_observers += 1
        try:
            async for metric in stream_metrics(self.metrics.registry, request, wall_us=self._wall_us):
                yield metric
        finally:
            self._metrics_observers -= 1

    def push(self, document: str, body: bytes) -> asyncio.Future[None] | None:
        """What the controller pushes to /policy, /templates or /topologies; see `Intake.push`.

        Raises:
            ValueError: it cannot be used; what was in force stays.
        """
        return self._intake.push(document, body)

    async def snapshot(self) -> Snapshot:
        """GET /snapshot: the numbers of this moment, with others' turns between when there are many."""
        turns = self._index.snapshot()
        while True:
            try:
                next(turns)
            except StopIteration as end:
                numbers: Snapshot = end.value
                return numbers
            await asyncio.sleep(0)

    def dump(self) -> AsyncIterator[bytes]:
        """GET /dump: the whole index, for a server that starts empty."""
        return warm.dump(self._index)

    async def probe(self, body: bytes) -> ProbeResult:
        """POST /probe: every stage's outcome.

        Raises:
            ProbeError: the request cannot be used.
        """
        return await self._prober.run(probe.parse(body))

    async def sweep(self) -> int:
        """Remove all expired holds, giving way to other work in between; how many there were. Never raises."""
        removed = 0
        try:
            for swept in self._index.sweep(self._wall_us(), SWEEP_SLICE):
                removed += swept
                await asyncio.sleep(0)
        except Exception as error:
            self._faults.record("sweep", error)
        return removed

    async def settle(self) -> NoReturn:
        """Do what the index puts off as soon as it does, giving way to other work in between. Never raises."""
        while True:
            await self._put_off.wait()
            self._put_off.clear()
            try:
                while self._index.unsettled:
                    self._index.settle(SETTLE_SLICE)
                    await asyncio.sleep(0)
            except Exception as error:
                self._faults.record("settle", error)


async def _then(pending: asyncio.Future[None], acknowledged: pb.Ack) -> pb.Ack:
    await pending
    return acknowledged
