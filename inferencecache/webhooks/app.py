"""The admission app: webhooks on their paths, each a raw ASGI endpoint inside FastAPI.

An endpoint reads the body, hands the request to a handler and writes the answer; it keeps the counters that
dashboards know from controller-runtime. Bodies are decoded by msgspec, not by FastAPI's dependency machinery: the Pod
webhook is on the path of every Pod in the cluster.

The postures differ on purpose (decision A10). A **Pod** endpoint never blocks anybody: whatever goes wrong, including a
bug or a slow API server, it answers "allowed" within two seconds, and where not even the request's UID can be found it
still says so in words. An **object** endpoint refuses what it cannot judge.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

import structlog
from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from inferencecache.webhooks.handlers import Handlers
from inferencecache.webhooks.metrics import PANICS, POD_ADMISSIONS, WebhookMetrics
from inferencecache.webhooks.review import (
    Answer,
    Handler,
    MalformedReview,
    Request,
    allowed,
    denied,
    find_uid,
    read_review,
    write_review,
)

log = structlog.get_logger(__name__)

POD_PATH: Final = "/mutate--v1-pod"
LARGEST_BODY: Final = 8 * 2**20
"""Objects are bounded by etcd at about 1.5 MiB, and a review holds at most two of them."""
POD_DEADLINE: Final = timedelta(seconds=2)
OBJECT_DEADLINE: Final = timedelta(seconds=8)
"""Below the API server's default of ten seconds, so that the refusal it sees is ours."""

NO_OTHERS: Final[Mapping[str, Handler]] = MappingProxyType({})


def create_app(
    handlers: Handlers,
    *,
    others: Mapping[str, Handler] = NO_OTHERS,
    wires_pods: bool = True,
    pod_deadline: timedelta = POD_DEADLINE,
) -> FastAPI:
    """The ASGI app that serves all webhooks with these handlers.

    Args:
        handlers: the webhooks of the kinds of inferencecache.io, and of Pods.
        others: further webhooks by their path, each of which refuses what it cannot judge.
        wires_pods: whether Pods are wired to CacheBackends at all.
        pod_deadline: when the Pod webhook lets a Pod pass unwired.
    """
    app = FastAPI(title="inferencecache admission", openapi_url=None, docs_url=None, redoc_url=None)
    if wires_pods:
        pod = PodEndpoint(POD_PATH, handlers.pod, pod_deadline)
        app.router.routes.append(Route(POD_PATH, pod, methods=["POST"]))
    for path, handler in {**handlers.objects, **others}.items():
        app.router.routes.append(Route(path, ObjectEndpoint(path, handler, OBJECT_DEADLINE), methods=["POST"]))
    return app


class ObjectEndpoint:
    """One webhook for a kind of our own: fails closed."""

    def __init__(self, path: str, handler: Handler, deadline: timedelta) -> None:
        self._path = path
        self._handler = handler
        self._deadline = deadline.total_seconds()
        self._metrics = WebhookMetrics(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        started = time.perf_counter()
        self._metrics.in_flight.inc()
        code = 500
        try:
            code, body = await self._respond(scope, receive)
            await _send_json(send, code, body)
        finally:
            self._metrics.in_flight.dec()
            self._metrics.answered(code, time.perf_counter() - started)

    async def _respond(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        body, whole = await _read_body(receive)
        if not whole:
            return 413, _oversized("", body)
        if not _is_json(scope):
            return 415, write_review(
                find_uid(body), denied(415, "UnsupportedMediaType", "post the review as application/json")
            )
        try:
            request = read_review(body)
        except MalformedReview as error:
            return 400, write_review(find_uid(body), denied(400, "BadRequest", str(error)))
        return 200, write_review(request.uid, await self._judge(request))

    async def _judge(self, request: Request) -> Answer:
        try:
            async with asyncio.timeout(self._deadline):
                return await self._handler(request)
        except TimeoutError:
            return denied(
                504, "Timeout", f"judging {request.kind.kind} {request.namespace}/{request.name} took too long"
            )
        except Exception as error:
            PANICS.inc()
            log.exception("webhook failed", path=self._path, namespace=request.namespace, name=request.name)
            return denied(500, "InternalError", f"the webhook failed: {type(error).__name__}")


class PodEndpoint(ObjectEndpoint):
    """The Pod webhook: fails open, always and quickly (decision A1)."""

    async def _respond(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        body, whole = await _read_body(receive)
        if not whole:
            _count_error("oversized")
            uid = find_uid(body)
            return (200 if uid else 413), _oversized(uid, body)
        try:
            request = read_review(body)
        except MalformedReview as error:
            _count_error("malformed_review")
            return 200, write_review(find_uid(body), allowed(f"admitted unwired (fail-open): {error}"))
        return 200, write_review(request.uid, await self._judge(request))

    async def _judge(self, request: Request) -> Answer:
        try:
            async with asyncio.timeout(self._deadline):
                return await self._handler(request)
        except TimeoutError:
            _count_error("timeout")
            return allowed("admitted unwired (fail-open): the webhook's deadline passed before it had an answer")
        except Exception as error:
            PANICS.inc()
            _count_error("panic")
            log.exception("Pod webhook failed", namespace=request.namespace, name=request.name)
            return allowed(f"admitted unwired (fail-open): the webhook failed: {type(error).__name__}")


def _count_error(reason: str) -> None:
    POD_ADMISSIONS.labels("error", reason).inc()


def _oversized(uid: str, body: bytes) -> bytes:
    message = f"the review is larger than {LARGEST_BODY} bytes ({len(body)} read)"
    if uid:
        return write_review(uid, allowed(f"admitted unwired (fail-open): {message}"))
    return write_review("", denied(413, "RequestEntityTooLarge", message))


def _is_json(scope: Scope) -> bool:
    content_type = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    return bool(content_type.partition(b";")[0].strip().lower() == b"application/json")


async def _read_body(receive: Receive) -> tuple[bytes, bool]:
    """The body, and whether that is all of it: past the limit the rest is read and thrown away.

    Reading on lets the client finish sending and see our answer; a body without end is cut by the deadline of whoever
    sends it, and by the server's own limits.
    """
    message: Message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body, len(body) <= LARGEST_BODY
    chunks, size = [body], len(body)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= LARGEST_BODY:
            chunks.append(chunk)
    return b"".join(chunks), size <= LARGEST_BODY


async def _send_json(send: Send, code: int, body: bytes) -> None:
    headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
