"""A listener with webhooks, as the API server calls them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta

from fastapi import FastAPI
from starlette.routing import Route

from inferencecache.kube import pki
from inferencecache.kube.resource import Manifest
from inferencecache.webhooks.app import ObjectEndpoint
from inferencecache.webhooks.review import Handler
from inferencecache.webhooks.server import WebhookServer

PATIENCE = timedelta(seconds=25)
"""What a webhook may take on a busy machine; the API server waits half a minute for it at most."""


def patient(configuration: Manifest) -> Manifest:
    """A webhook configuration by which the API server waits as long as it can."""
    webhooks = [{**webhook, "timeoutSeconds": 30} for webhook in configuration["webhooks"]]
    return {**configuration, "webhooks": webhooks}


@contextlib.asynccontextmanager
async def listening(paths: Mapping[str, Handler]) -> AsyncIterator[dict[str, str]]:
    """Serve webhooks until the context ends; how to reach them, as `webhook_configurations` wants it."""
    now = datetime.now(UTC)
    ca = pki.make_ca("test", now=now, lifetime=timedelta(hours=1))
    serving = pki.issue(ca, ["127.0.0.1"], now=now, lifetime=timedelta(hours=1))
    app = FastAPI()
    for path, handler in paths.items():
        app.router.routes.append(Route(path, ObjectEndpoint(path, handler, PATIENCE), methods=["POST"]))
    server = WebhookServer(app, host="127.0.0.1", port=0, tls=pki.server_context(serving))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(server.run())
        await server.started.wait()
        try:
            yield {
                "url": f"https://127.0.0.1:{server.bound_port}",
                "caBundle": base64.b64encode(ca.certificate).decode(),
            }
        finally:
            running.cancel()
