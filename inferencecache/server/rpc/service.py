"""The service this server is for, bound to what answers it.

The method table is read off the .proto file; here each RPC gets its function. ReportCacheState applies each message as
it arrives and acknowledges at the end, so that a stream that breaks keeps what it has said (spec 06 §3.4).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from inferencecache.server.rpc.health import health_service
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
from inferencecache.wire.service import METHODS, SERVICE_NAME
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb


def inference_cache_service(services: Services) -> Service:
    """All eight RPCs."""

    async def report(updates: AsyncIterator[pb.CacheStateUpdate], _call: Call) -> AsyncIterator[pb.Ack]:
        async for update in updates:
            services.report(update)
        yield pb.Ack(accepted=True)

    async def events(requests: AsyncIterator[pb.StreamEventsRequest], _call: Call) -> AsyncIterator[pb.CacheEvent]:
        async for request in requests:
            async for event in services.stream_cache_events(request):
                yield event

    async def metrics(requests: AsyncIterator[pb.StreamMetricsRequest], _call: Call) -> AsyncIterator[pb.Metric]:
        async for request in requests:
            async for metric in services.stream_metrics(request):
                yield metric

    unary: dict[str, UnaryHandler] = {
        "LookupRoute": services.lookup_route,
        "RenderTemplate": lambda request, _call: services.render_template(request),
        "LookupPDRoute": lambda request, _call: services.lookup_pd_route(request),
        "GetCacheState": lambda request, _call: services.get_cache_state(request),
        "PublishEvent": lambda event, _call: services.publish_event(event),
    }
    streaming: dict[str, StreamHandler] = {
        "ReportCacheState": report,
        "StreamCacheEvents": events,
        "StreamMetrics": metrics,
    }
    methods: dict[str, Unary | Streaming] = {}
    methods |= {name: Unary(METHODS[name].request.FromString, answer) for name, answer in unary.items()}
    methods |= {name: Streaming(METHODS[name].request.FromString, answer) for name, answer in streaming.items()}
    return Service(SERVICE_NAME, methods)


def methods_of(services: Services) -> MethodTable:
    """Everything the gRPC port answers: the service, health, and reflection over both."""
    offered = [inference_cache_service(services), health_service()]
    return method_table([*offered, *reflection_services(service.name for service in offered)])
