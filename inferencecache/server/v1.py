"""The RPCs as HTTP/JSON, under `/v1` (decision P5).

The same messages in proto3's JSON mapping, answered by the same functions. What only reads is a GET, what a caller
sends a body for is a POST; a report may be one update or a list of them, and the streams are one JSON object per line.
An error is an object that says what is wrong and with which field.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from google.protobuf.message import Message

from inferencecache.server import json_messages
from inferencecache.server.ingestion import Ingestion, IngestionRefused
from inferencecache.server.json_messages import JsonError
from inferencecache.server.rpc.messages import MAX_MESSAGE
from inferencecache.server.services import Services
from inferencecache.server.streams import StreamEnded
from inferencecache.server.web import LONG_BODY, BodyTooLong, BodyTooSlow, read_body
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb

MESSAGES: Final = (
    pb.LookupRouteRequest,
    pb.LookupRouteResponse,
    pb.LookupPDRouteRequest,
    pb.LookupPDRouteResponse,
    pb.RenderTemplateRequest,
    pb.RenderTemplateResponse,
    pb.CacheStateUpdate,
    pb.GetCacheStateResponse,
    pb.CacheEvent,
    pb.Metric,
    pb.Ack,
)
"""What the paths below carry, for the description of the API."""

ERROR_SCHEMA: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message"],
            "properties": {
                "message": {"type": "string"},
                "field": {
                    "type": "string",
                    "description": "The path of what is wrong: `prefixes[0].tier`.",
                },
            },
        }
    },
}

PREFIX: Final = "/v1"

_JSON: Final = "application/json"
_LINES: Final = "application/x-ndjson"
LONG_BODIES: Final = 16
"""Long bodies that are read and parsed at a time. The others wait in their sockets: all would fill the memory."""

LONG_LIST: Final = 4 << 10
"""Bytes from which on a body is long if it may be a list of messages, of which each costs more than what is in it."""
MAX_UPDATES: Final = 10_000
"""Of one body. The shortest update takes three bytes, so a body has room for a million, which take a minute to read."""

M = TypeVar("M", bound=Message)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _HttpCall:
    """An HTTP request as the services see a caller. It has no deadline, and is answered even if nobody waits."""

    metadata: Mapping[str, str]
    deadline: float | None = None
    cancelled: bool = False


class _Bodies:
    """The bodies of requests, read and parsed, but not too many long ones at a time."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(LONG_BODIES)

    async def parsed(self, http: Request, read: Callable[[bytes], T], long: int = LONG_BODY) -> T:
        """What a body says. A long one is parsed in a thread, as JSON is slow enough to keep others waiting."""
        async with AsyncExitStack() as held:
            body = await read_body(http, MAX_MESSAGE, lambda: held.enter_async_context(self._room))
            return read(body) if len(body) <= long else await asyncio.to_thread(read, body)


def v1_router(services: Services, ingestion: Ingestion) -> APIRouter:
    """The routes, to be included in an app."""
    router = APIRouter(prefix=PREFIX)
    bodies = _Bodies()

    async def lookup_route(request: pb.LookupRouteRequest, call: _HttpCall) -> Message:
        reply = services.lookup_route(request, call)
        return reply if isinstance(reply, Message) else await reply

    async def lookup_pd_route(request: pb.LookupPDRouteRequest, _call: _HttpCall) -> Message:
        return services.lookup_pd_route(request)

    async def render_template(request: pb.RenderTemplateRequest, _call: _HttpCall) -> Message:
        reply = services.render_template(request)
        return reply if isinstance(reply, Message) else await reply

    _add(
        router,
        bodies,
        "/lookup-route",
        pb.LookupRouteRequest,
        pb.LookupRouteResponse,
        lookup_route,
        "Which replicas hold a prefix of the request, best first. Without any, route as if there were no cache.",
    )
    _add(
        router,
        bodies,
        "/lookup-pd-route",
        pb.LookupPDRouteRequest,
        pb.LookupPDRouteResponse,
        lookup_pd_route,
        "A prefill and a decode replica from a PDTopology.",
    )
    _add(
        router,
        bodies,
        "/render-template",
        pb.RenderTemplateRequest,
        pb.RenderTemplateResponse,
        render_template,
        "A PromptTemplate, rendered, with the hash of its stable prefix.",
    )
    _add_ingestion(router, bodies, services, ingestion)
    _add_reads(router, services)
    return router


def _add_ingestion(router: APIRouter, bodies: _Bodies, services: Services, ingestion: Ingestion) -> None:
    async def report(http: Request) -> Response:
        updates = await bodies.parsed(http, _updates, LONG_LIST)
        reporter = await ingestion.identify(http.headers.get("authorization", ""))
        for update in updates:
            reporter.require(update.tenant_id)
        pending = None
        for update in updates:
            async for applied in services.report_in_turns(update):
                pending = applied
            await asyncio.sleep(0)  # others' turn, however many updates there are
        if pending is not None:
            await pending
        return _answer(pb.Ack(accepted=True))

    async def publish(http: Request) -> Response:
        event = await bodies.parsed(http, _reader(pb.CacheEvent))
        reporter = await ingestion.identify(http.headers.get("authorization", ""))
        reporter.require(event.tenant_id)
        reply = services.publish_event(event)
        return _answer(reply if isinstance(reply, Message) else await reply)

    one = json_messages.reference(pb.CacheStateUpdate)
    router.add_api_route(
        "/cache-state", _guarded(report), methods=["POST"], summary="ReportCacheState",
        description=f"What a replica holds: one update, or a list of up to {MAX_UPDATES:,}, all or none of them.",
        openapi_extra=_body({"oneOf": [one, {"type": "array", "items": one}]}), responses=_responses(pb.Ack),
    )  # fmt: skip
    router.add_api_route(
        "/events", _guarded(publish), methods=["POST"], summary="PublishEvent",
        description="One change of a replica's cache.",
        openapi_extra=_body(json_messages.reference(pb.CacheEvent)), responses=_responses(pb.Ack),
    )  # fmt: skip


def _add_reads(router: APIRouter, services: Services) -> None:
    async def cache_state(
        model_id: Annotated[str, Query(alias="modelId", description="The model.")] = "",
        tenant_id: Annotated[str, Query(alias="tenantId", description="The namespace of the engines.")] = "",
    ) -> Response:
        return _answer(services.get_cache_state(pb.GetCacheStateRequest(model_id=model_id, tenant_id=tenant_id)))

    async def events(
        model_id: Annotated[str, Query(alias="modelId", description="Only of this model.")] = "",
        tenant_id: Annotated[str, Query(alias="tenantId", description="Only of this tenant.")] = "",
        types: Annotated[list[str], Query(description="Only of these types.")] = [],  # noqa: B006 - FastAPI copies it
    ) -> Response:
        try:
            request = pb.StreamEventsRequest(model_id=model_id, tenant_id=tenant_id, types=types)
        except ValueError as error:
            return error_response(HTTPStatus.BAD_REQUEST, str(error), "types")
        return StreamingResponse(json_lines(services.stream_cache_events(request)), media_type=_LINES)

    async def metrics(names: Annotated[list[str], Query(description="Only these series.")] = []) -> Response:  # noqa: B006
        return StreamingResponse(
            json_lines(services.stream_metrics(pb.StreamMetricsRequest(names=names))), media_type=_LINES
        )

    router.add_api_route(
        "/cache-state", cache_state, methods=["GET"], summary="GetCacheState",
        description="What is known of the replicas that serve a model for a tenant.",
        responses=_responses(pb.GetCacheStateResponse),
    )  # fmt: skip
    router.add_api_route(
        "/events", events, methods=["GET"], summary="StreamCacheEvents",
        description="The changes of the index as they happen, one object per line.",
        responses=_responses(pb.CacheEvent, _LINES),
    )  # fmt: skip
    router.add_api_route(
        "/metrics", metrics, methods=["GET"], summary="StreamMetrics",
        description="The server's metrics, again and again, one object per line.",
        responses=_responses(pb.Metric, _LINES),
    )  # fmt: skip


def _add(
    router: APIRouter,
    bodies: _Bodies,
    path: str,
    request: type[Message],
    response: type[Message],
    answer: Callable[[Any, _HttpCall], Awaitable[Message]],
    description: str,
) -> None:
    """A path that takes one message and gives one."""

    async def endpoint(http: Request) -> Response:
        return _answer(await answer(await bodies.parsed(http, _reader(request)), _HttpCall(http.headers)))

    router.add_api_route(
        path, _guarded(endpoint), methods=["POST"], summary=request.DESCRIPTOR.name.removesuffix("Request"),
        description=description, openapi_extra=_body(json_messages.reference(request)), responses=_responses(response),
    )  # fmt: skip


def _guarded(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint with its errors told as JSON."""

    async def guarded(http: Request) -> Response:
        try:
            return await endpoint(http)
        except JsonError as error:
            return error_response(HTTPStatus.BAD_REQUEST, error.message, error.field)
        except BodyTooLong as error:
            return error_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error))
        except BodyTooSlow as error:
            return error_response(HTTPStatus.REQUEST_TIMEOUT, str(error))
        except IngestionRefused as error:
            return error_response(HTTPStatus(error.verdict.status), str(error))

    # FastAPI reads the signature, where `Request` must be the class and not its name.
    guarded.__annotations__ = {"http": Request, "return": Response}
    return guarded


def _reader(kind: type[M]) -> Callable[[bytes], M]:
    return lambda body: json_messages.read(json_messages.load(body), kind)


def _updates(body: bytes) -> list[pb.CacheStateUpdate]:
    """One update, or a list of them."""
    value = json_messages.load(body)
    if not isinstance(value, list):
        return [json_messages.read(value, pb.CacheStateUpdate)]
    if len(value) > MAX_UPDATES:
        raise JsonError(f"{len(value)} updates; at most {MAX_UPDATES} are taken at once")
    return [json_messages.read(each, pb.CacheStateUpdate, f"[{number}]") for number, each in enumerate(value)]


async def json_lines(stream: AsyncIterator[Message]) -> AsyncIterator[bytes]:
    """One object per line. A stream that has to end early says why in its last line."""
    try:
        async for message in stream:
            yield json_messages.write(message) + b"\n"
            await asyncio.sleep(0)  # others' turn, however much there is to tell
    except StreamEnded as error:
        yield json_messages.dump({"error": {"message": str(error)}}) + b"\n"


def _answer(message: Message) -> Response:
    return Response(json_messages.write(message), media_type=_JSON)


def error_response(
    status: HTTPStatus, message: str, field: str = "", headers: Mapping[str, str] | None = None
) -> Response:
    """What every failed request is answered with."""
    error = {"message": message} | ({"field": field} if field else {})
    return Response(json_messages.dump({"error": error}), status, headers, _JSON)


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {_JSON: {"schema": schema}}}}


def _responses(kind: type[Message], media_type: str = _JSON) -> dict[int | str, dict[str, Any]]:
    error = {"content": {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}}
    return {
        200: {"description": "The answer.", "content": {media_type: {"schema": json_messages.reference(kind)}}},
        400: {"description": "The request is malformed.", **error},
    }
