"""The public HTTP port: health, metrics, and the RPCs as JSON (spec 06 §4.1, decision P5).

What belongs to the controller is not here: `/snapshot`, `/policy` and `/probe` are answered with 404.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from inferencecache import __version__
from inferencecache.server import json_messages
from inferencecache.server.ingestion import Ingestion
from inferencecache.server.peers import Readiness
from inferencecache.server.services import Services
from inferencecache.server.v1 import ERROR_SCHEMA, MESSAGES, PREFIX, error_response, v1_router

_DESCRIPTION = "The RPCs of `inferencecache.v1alpha1.InferenceCache` as JSON: proto3's mapping, bytes in base64."


def public_app(services: Services, readiness: Readiness, ingestion: Ingestion) -> FastAPI:
    """The port as an ASGI app."""

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        remark = readiness.remark
        if not readiness.ready:
            return PlainTextResponse(f"not ready: {remark}" if remark else "not ready", 503)
        return PlainTextResponse(f"ok\n{remark}\n" if remark else "ok\n")

    async def metrics(_request: Request) -> Response:
        text = await asyncio.to_thread(services.metrics.exposition)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    app = FastAPI(title="inferencecache", version=__version__, description=_DESCRIPTION, redoc_url=None)
    app.include_router(v1_router(services, ingestion))
    app.router.routes.append(Route("/healthz", _AnyMethod(healthz)))
    app.router.routes.append(Route("/readyz", _AnyMethod(readyz)))
    app.add_route("/metrics", metrics, methods=["GET"], include_in_schema=False)
    app.add_exception_handler(HTTPException, _tell)
    _describe_messages(app)
    return app


async def _tell(request: Request, error: Exception) -> Response:
    """What no route answers, in the form that the path's other errors have."""
    assert isinstance(error, HTTPException)
    if request.url.path.startswith(PREFIX):
        return error_response(HTTPStatus(error.status_code), error.detail, headers=error.headers)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)


class _AnyMethod:
    """An endpoint that looks at no method, as those who probe use what they like."""

    def __init__(self, answer: Callable[[Request], Any]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)


def _describe_messages(app: FastAPI) -> None:
    """Add to the app's OpenAPI document the schemas of the messages, which FastAPI does not know."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        components = document.setdefault("components", {}).setdefault("schemas", {})
        components.update(json_messages.schemas(*MESSAGES) | {"Error": ERROR_SCHEMA})
        return document

    app.openapi = openapi  # type: ignore[method-assign]
