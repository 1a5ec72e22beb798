"""Plays the cache server for recorded cases: it answers the poller and the probe as a case says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

_NEVER = "0001-01-01T00:00:00Z"
_BLANK = {"cacheMemoryBytes": 0, "hitRate": 0, "pressure": 0, "prefixCount": 0}


class PlayedServer:
    """`rows` are the replicas of the one namespace of a case; `probe` is a result per stage, or an HTTP status."""

    def __init__(self, tenant: str, rows: list[dict[str, Any]], probe: dict[str, Any]) -> None:
        self.tenant = tenant
        self.rows = rows
        self.probe = probe
        self.probed: list[dict[str, Any]] = []
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[PlayedServer]:
        """Listen on a free port."""
        app = web.Application()
        app.add_routes([web.get("/snapshot", self._snapshot), web.post("/probe", self._probe)])
        for path in ("/policy", "/templates", "/topologies"):
            app.router.add_route("*", path, self._taken)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            self.url = f"http://{host}:{port}"
            yield self
        finally:
            await runner.cleanup()

    async def _snapshot(self, request: web.Request) -> web.Response:
        blank = {**_BLANK, "tenant": self.tenant, "lastUpdate": _NEVER, "lastEventAt": _NEVER}
        rows = [{**blank, **row} for row in self.rows]
        total = sum(row["prefixCount"] for row in rows)
        return web.json_response({"replicas": rows, "tenants": [], "totalPrefixes": total, "hotPrefixes": 0})

    async def _probe(self, request: web.Request) -> web.Response:
        asked = await request.json()
        if asked not in self.probed:
            self.probed.append(asked)
        if "http" in self.probe:
            return web.Response(status=self.probe["http"])
        stages = {"ingest": "ok", "routing": "ok", "t2": "skipped", **self.probe}
        errors = [{"stage": stage, "message": "no"} for stage, result in stages.items() if result == "failed"]
        return web.json_response({"backend": asked["backend"], **stages, "errors": errors})

    async def _taken(self, request: web.Request) -> web.Response:
        return web.Response(status=204)
