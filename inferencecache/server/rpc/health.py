"""`grpc.health.v1.Health`: the server as a whole is SERVING, and there is no other service to ask for (spec 06 §2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from grpc_health.v1.health_pb2 import (
    DESCRIPTOR,
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)

from inferencecache.server.rpc.messages import Code, Status
from inferencecache.server.rpc.methods import Call, Service, Streaming, Unary

SERVICE_NAME: Final = DESCRIPTOR.services_by_name["Health"].full_name

_SERVING: Final = HealthCheckResponse(status=HealthCheckResponse.SERVING)
_UNKNOWN: Final = HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)


def health_service() -> Service:
    """The three methods."""
    return Service(
        SERVICE_NAME,
        {
            "Check": Unary(HealthCheckRequest.FromString, _check),
            "List": Unary(HealthListRequest.FromString, _list),
            "Watch": Streaming(HealthCheckRequest.FromString, _watch),
        },
    )


def _check(request: HealthCheckRequest, _call: Call) -> HealthCheckResponse:
    if request.service:
        raise Status(Code.NOT_FOUND, f"unknown service {request.service}")
    return _SERVING


def _list(_request: HealthListRequest, _call: Call) -> HealthListResponse:
    return HealthListResponse(statuses={"": _SERVING})


async def _watch(requests: AsyncIterator[HealthCheckRequest], _call: Call) -> AsyncIterator[HealthCheckResponse]:
    async for request in requests:
        yield _UNKNOWN if request.service else _SERVING
        # Nothing changes until the server stops, which ends the call.
        await asyncio.get_running_loop().create_future()
