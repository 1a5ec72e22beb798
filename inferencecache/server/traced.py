"""LookupRoute with a span for each call, within the trace of the gateway's request if it sends `traceparent`.

Only where tracing is on does a call come through here.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from inferencecache import tracing
from inferencecache.server.lookup import Call
from inferencecache.wire.v1alpha1.inferencecache_pb2 import LookupRouteRequest, LookupRouteResponse

Reply = LookupRouteResponse | Awaitable[LookupRouteResponse]
Lookup = Callable[[LookupRouteRequest, Call, Sequence[bytes] | None], Reply]


def traced(lookup: Lookup) -> Lookup:
    """The same lookup, recorded. Prompts and tokens stay out of traces."""

    def recorded(request: LookupRouteRequest, call: Call, blocks: Sequence[bytes] | None) -> Reply:
        started = time.time_ns()
        reply = lookup(request, call, blocks)
        if isinstance(reply, LookupRouteResponse):
            _record(request, reply, call, started)
            return reply
        return awaited(request, reply, call, started)

    async def awaited(
        request: LookupRouteRequest, pending: Awaitable[LookupRouteResponse], call: Call, started: int
    ) -> LookupRouteResponse:
        reply = await pending
        _record(request, reply, call, started)
        return reply

    return recorded


def _record(request: LookupRouteRequest, reply: LookupRouteResponse, call: Call, started: int) -> None:
    best = reply.replica_scores[0] if reply.replica_scores else None
    tracing.record(
        "LookupRoute",
        {
            "inferencecache.tenant": request.tenant_id,
            "inferencecache.model": request.model_id,
            "inferencecache.reason_code": reply.reason_code,
            "inferencecache.replica": best.replica_id if best else "",
            "inferencecache.matched_tokens": best.matched_tokens if best else 0,
        },
        start_ns=started,
        end_ns=time.time_ns(),
        traceparent=call.metadata.get("traceparent", ""),
    )
