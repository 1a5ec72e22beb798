"""The service this server is for, bound to what answers it.

The method table is read off the .proto file; here each RPC gets its function. ReportCacheState applies each message as
it arrives and acknowledges at the end, so that a stream that breaks keeps what it has said (spec 06 §3.4).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from typing import Final

from inferencecache.server.ingestion import Ingestion, IngestionRefused, Reporter
from inferencecache.server.rpc.health import health_service
from inferencecache.server.rpc.messages import Code, Status
from inferencecache.server.rpc.methods import (
    Call,
    MethodTable,
    Service,
    StreamHandler,
    Streaming,
    Unary,
    UnaryHandler,
    method_table,
)
from inferencecache.server.rpc.reflection import reflection_services
from inferencecache.server.services import Services
from inferencecache.server.streams import StreamEnded
from inferencecache.wire import route_request
from inferencecache.wire.route_request import RouteRequest
from inferencecache.wire.service import METHODS, SERVICE_NAME
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb

REPORTS_UNACKNOWLEDGED: Final = 64
"""Of one stream, towards a shared log: a producer that is faster than the log waits."""


def inference_cache_service(services: Services, ingestion: Ingestion) -> Service:
    """All eight RPCs; `ingestion` guards those that change the index."""

    async def report(updates: AsyncIterator[pb.CacheStateUpdate], call: Call) -> AsyncIterator[pb.Ack]:
        reporter = await _identified(ingestion, call)
        pending: Awaitable[None] | None = None
        taken = 0
        async for update in updates:
            _require(reporter, update.tenant_id)
            async for applied in services.report_in_turns(update):
                pending = applied or pending
                taken += 1
                if pending is not None and taken % REPORTS_UNACKNOWLEDGED == 0:
                    await pending
        if pending is not None:
            await pending
        yield pb.Ack(accepted=True)

    def publish(event: pb.CacheEvent, call: Call) -> pb.Ack | Awaitable[pb.Ack]:
        with _refusals():
            reporter = ingestion.recall(_authorization(call))
        if reporter is None:
            return publish_when_known(event, call)
        _require(reporter, event.tenant_id)
        return services.publish_event(event)

    async def publish_when_known(event: pb.CacheEvent, call: Call) -> pb.Ack:
        _require(await _identified(ingestion, call), event.tenant_id)
        reply = services.publish_event(event)
        return reply if isinstance(reply, pb.Ack) else await reply

    async def events(requests: AsyncIterator[pb.StreamEventsRequest], _call: Call) -> AsyncIterator[pb.CacheEvent]:
        async for request in requests:
            with _refusals():
                async for event in services.stream_cache_events(request):
                    yield event

    async def metrics(requests: AsyncIterator[pb.StreamMetricsRequest], _call: Call) -> AsyncIterator[pb.Metric]:
        async for request in requests:
            with _refusals():
                async for metric in services.stream_metrics(request):
                    yield metric

    unary: dict[str, UnaryHandler] = {
        "RenderTemplate": lambda request, _call: services.render_template(request),
        "LookupPDRoute": lambda request, _call: services.lookup_pd_route(request),
        "GetCacheState": lambda request, _call: services.get_cache_state(request),
        "PublishEvent": publish,
    }
    streaming: dict[str, StreamHandler] = {
        "ReportCacheState": report,
        "StreamCacheEvents": events,
        "StreamMetrics": metrics,
    }

    def lookup_route(asked: RouteRequest, call: Call) -> pb.LookupRouteResponse | Awaitable[pb.LookupRouteResponse]:
        return services.lookup_route(asked.message, call, asked.blocks)

    methods: dict[str, Unary | Streaming] = {"LookupRoute": Unary(route_request.parse, lookup_route)}
    methods |= {name: Unary(METHODS[name].request.FromString, answer) for name, answer in unary.items()}
    methods |= {name: Streaming(METHODS[name].request.FromString, answer) for name, answer in streaming.items()}
    return Service(SERVICE_NAME, methods)


async def _identified(ingestion: Ingestion, call: Call) -> Reporter:
    with _refusals():
        return await ingestion.identify(_authorization(call))


def _require(reporter: Reporter, tenant: str) -> None:
    with _refusals():
        reporter.require(tenant)


def _authorization(call: Call) -> str:
    return call.metadata.get("authorization", "")


@contextmanager
def _refusals() -> Iterator[None]:
    """Tell a refusal as gRPC does."""
    try:
        yield
    except IngestionRefused as error:
        raise Status(_CODES[error.verdict.status], str(error)) from error
    except StreamEnded as error:
        raise Status(Code.RESOURCE_EXHAUSTED, str(error)) from error


_CODES: Final = {401: Code.UNAUTHENTICATED, 403: Code.PERMISSION_DENIED, 503: Code.UNAVAILABLE}


def methods_of(services: Services, ingestion: Ingestion) -> MethodTable:
    """Everything the gRPC port answers: the service, health, and reflection over both."""
    offered = [inference_cache_service(services, ingestion), health_service()]
    return method_table([*offered, *reflection_services(service.name for service in offered)])
