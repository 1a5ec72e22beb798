"""The controller's endpoints: `/snapshot`, `/policy` and `/probe` (spec 06 §4.2–§4.5).

Beside them `/templates` and `/topologies` take PromptTemplates and PDTopologies as `/policy` takes policies, and
`/dump` gives the whole index to a server that starts. A caller proves who it is before it learns anything else, even
which method is right. Errors are plain text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from inferencecache.server import intake, probe, snapshot, warm
from inferencecache.server.auth import Authenticator
from inferencecache.server.peers import Readiness
from inferencecache.server.probe import ProbeError
from inferencecache.server.services import Services
from inferencecache.server.web import BodyTooLong, BodyTooSlow, read_body
from inferencecache.wire.limits import LARGEST_DOCUMENT, LARGEST_POLICIES

Answer: TypeAlias = Callable[[Request], Awaitable[Response]]


class Guards(msgspec.Struct, frozen=True):
    """Who watches each endpoint; None lets everybody in (`--insecure-disable-auth`)."""

    snapshot: Authenticator | None = None
    policy: Authenticator | None = None
    probe: Authenticator | None = None
    dump: Authenticator | None = None


def admin_app(services: Services, guards: Guards, readiness: Readiness, instance: str) -> FastAPI:
    """The endpoints as an ASGI app; `instance` names this process to those who ask for a dump."""

    async def get_snapshot(_request: Request) -> Response:
        # Beside the loop: with a thousand replicas the document takes longer than lookups should wait.
        document = await asyncio.to_thread(snapshot.render, await services.snapshot())
        return Response(document, media_type="application/json")

    def pushed(document: str, max_bytes: int) -> Answer:
        async def push(request: Request) -> Response:
            try:
                pending = services.push(document, await read_body(request, max_bytes))
            except ValueError as error:
                return _text(400, str(error))
            except BodyTooLong as error:
                return _text(400, f"decode {document} snapshot: {error}")
            if pending is not None:
                await pending
            return Response(status_code=204)

        return push

    async def run_probe(request: Request) -> Response:
        try:
            result = await services.probe(await read_body(request, probe.MAX_BODY_BYTES))
        except ProbeError as error:
            return _text(400, str(error))
        except BodyTooLong as error:
            return _text(400, f"decode probe request: {error}")
        return Response(msgspec.json.encode(result), media_type="application/json")

    async def get_dump(_request: Request) -> Response:
        if not readiness.ready:
            return _text(503, "not ready")
        headers = {warm.INSTANCE_HEADER: instance}
        return StreamingResponse(services.dump(), headers=headers, media_type="application/x-protobuf")

    endpoints: Mapping[str, Endpoint] = {
        "/snapshot": Endpoint(get_snapshot, ("GET",), guards.snapshot),
        "/policy": Endpoint(pushed(intake.POLICY, LARGEST_POLICIES), ("POST", "PUT"), guards.policy),
        "/templates": Endpoint(pushed(intake.TEMPLATES, LARGEST_DOCUMENT), ("PUT",), guards.policy),
        "/topologies": Endpoint(pushed(intake.TOPOLOGIES, LARGEST_DOCUMENT), ("PUT",), guards.policy),
        "/probe": Endpoint(run_probe, ("POST",), guards.probe),
        "/dump": Endpoint(get_dump, ("GET",), guards.dump),
    }
    app = FastAPI(title="inferencecache: the controller's side", docs_url=None, redoc_url=None, openapi_url=None)
    app.router.routes.extend(Route(path, endpoint) for path, endpoint in endpoints.items())
    app.add_exception_handler(404, _not_found)
    return app


async def _not_found(_request: Request, _error: Exception) -> Response:
    return _text(404, "not found")


class Endpoint:
    """One path, for whatever method it is called with."""

    def __init__(self, answer: Answer, methods: tuple[str, ...], guard: Authenticator | None) -> None:
        self._answer = answer
        self._methods = methods
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._respond(request)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        if self._guard is not None:
            verdict = await self._guard.check(request.headers.get("authorization", ""))
            if verdict.status != 200:
                return _text(verdict.status, verdict.message)
        if request.method not in self._methods:
            return _text(405, "method not allowed", {"Allow": ", ".join(self._methods)})
        try:
            return await self._answer(request)
        except BodyTooSlow as error:
            return _text(408, str(error), {"Connection": "close"})


def _text(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{message}\n", status, headers)
