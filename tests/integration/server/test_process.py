"""`inferencecache server` as a process: how it starts, what it logs, and how it ends (spec 06 §1.2, §1.3)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from inferencecache import build
from tests.integration.kube.waiting import eventually
from tests.integration.server.running import Stub, get, update

COMMAND = [sys.executable, "-c", "from inferencecache.cli.main import main; main()", "server"]
LOCAL = [f"--{port}-bind-address=127.0.0.1:0" for port in ("grpc", "http", "snapshot")]
A = b"\x01" * 8


@dataclass
class Process:
    """A server process and the log lines it has written."""

    process: asyncio.subprocess.Process
    lines: list[dict[str, Any]] = field(default_factory=list)

    async def line(self, event: str) -> dict[str, Any]:
        """The next line of this event."""
        assert self.process.stderr is not None
        async with asyncio.timeout(200):
            async for text in self.process.stderr:
                line = json.loads(text)
                self.lines.append(line)
                if line["msg"] == event:
                    return line
        raise AssertionError(f"no {event}; the log was {self.lines}")

    async def end(self) -> int:
        """The exit status, after the rest of the log."""
        assert self.process.stderr is not None
        async with asyncio.timeout(200):
            rest = await self.process.stderr.read()
            self.lines += [json.loads(text) for text in rest.splitlines()]
            return await self.process.wait()

    def events(self) -> list[str]:
        return [line["msg"] for line in self.lines]


@asynccontextmanager
async def process(*args: str, env: dict[str, str] | None = None) -> AsyncIterator[Process]:
    """A server process, killed at the end if it still runs."""
    started = await asyncio.create_subprocess_exec(
        *COMMAND, *args, stderr=asyncio.subprocess.PIPE, env=os.environ | (env or {})
    )
    try:
        yield Process(started)
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


async def test_a_server_says_where_it_listens_answers_there_and_ends_with_0() -> None:
    async with process("--insecure-disable-auth", *LOCAL) as server:
        started = await server.line("startup")
        assert set(started) >= {"version", "commit", "grpc_addr", "grpc_tls", "http_addr", "snapshot_addr"}
        assert started["commit"] == build.commit()
        assert await get(f"http://{started['http_addr']}/readyz") == (200, "ok\n")
        async with grpc.aio.insecure_channel(started["grpc_addr"]) as channel:
            assert (await Stub(channel).lookup([A])).reason_code == "NO_HINT"
        server.process.send_signal(signal.SIGTERM)
        assert await server.end() == 0
        assert server.events() == [
            "controller_auth_disabled",
            "startup",
            "graceful_shutdown_started",
            "graceful_shutdown_done",
        ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_with_open_streams_ends_with_0_though_they_stay_open(number: signal.Signals) -> None:
    async with process("--insecure-disable-auth", *LOCAL) as server:
        started = await server.line("startup")
        async with grpc.aio.insecure_channel(started["grpc_addr"]) as channel:
            calls = [Stub(channel).method("ReportCacheState")() for _ in range(20)]
            await asyncio.gather(*(call.write(update("pod-a", [A])) for call in calls))
            # What is written is not yet applied.
            await eventually(lambda: Stub(channel).lookup([A]), lambda answer: answer.reason_code == "PREFIX_MATCH")
            host, _, port = started["http_addr"].rpartition(":")
            idle = socket.create_connection((host, int(port)))
            server.process.send_signal(number)
            assert await server.end() == 0
            idle.close()
            for call in calls:
                assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_for_the_shutdown_delay_everybody_is_served_and_asked_to_go_elsewhere() -> None:
    async with process("--insecure-disable-auth", "--shutdown-delay=1h", *LOCAL) as server:
        started = await server.line("startup")
        async with grpc.aio.insecure_channel(started["grpc_addr"]) as early:
            await Stub(early).method("ReportCacheState")(iter([update("pod-a", [A])]))
            server.process.send_signal(signal.SIGTERM)
            await server.line("graceful_shutdown_started")
            assert (await Stub(early).lookup([A])).reason_code == "PREFIX_MATCH"
        async with grpc.aio.insecure_channel(started["grpc_addr"]) as late:
            assert (await Stub(late).lookup([A])).reason_code == "PREFIX_MATCH"
        async with aiohttp.ClientSession(f"http://{started['http_addr']}") as session:
            for path, status in (("/readyz", 503), ("/healthz", 200)):
                async with session.get(path) as answer:
                    assert (answer.status, answer.headers["Connection"]) == (status, "close")


async def test_after_the_shutdown_delay_the_server_ends() -> None:
    async with process("--insecure-disable-auth", "--shutdown-delay=100ms", *LOCAL) as server:
        started = await server.line("startup")
        async with grpc.aio.insecure_channel(started["grpc_addr"]) as channel:
            await Stub(channel).lookup([A])
            server.process.send_signal(signal.SIGTERM)
            assert await server.end() == 0


async def test_lookups_and_reports_log_nothing() -> None:
    async with process("--insecure-disable-auth", "--log-level=debug", *LOCAL) as server:
        started = await server.line("startup")
        async with grpc.aio.insecure_channel(started["grpc_addr"]) as channel:
            for _ in range(3):
                await Stub(channel).lookup([A])
            await Stub(channel).method("ReportCacheState")(iter([update("pod-a", [A])]))
        server.process.terminate()
        await server.end()
        after = server.events()[server.events().index("startup") + 1 :]
        assert after == ["graceful_shutdown_started", "graceful_shutdown_done"]


@pytest.mark.parametrize("flag", ["grpc", "http", "snapshot"])
async def test_a_port_that_is_taken_ends_with_1_and_names_the_address(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with process("--insecure-disable-auth", *LOCAL, f"--{flag}-bind-address={address}") as server:
            line = await server.line("serve_error")
            assert line["error"].endswith(f"cannot listen on {address}: Address already in use")
            assert line["error"].count("127.0.0.1") == 1
            assert await server.end() == 1
            assert "startup" not in server.events()


async def test_a_certificate_that_cannot_be_loaded_ends_with_1(tmp_path: Path) -> None:
    files = [tmp_path / "tls.crt", tmp_path / "tls.key"]
    for file in files:
        file.write_text("nonsense")
    flags = [f"--tls-cert-file={files[0]}", f"--tls-key-file={files[1]}"]
    async with process("--insecure-disable-auth", *LOCAL, *flags) as server:
        assert "tls.crt" in (await server.line("grpc_tls_load"))["error"]
        assert await server.end() == 1


async def test_authentication_without_a_cluster_ends_with_1(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "KUBECONFIG": "", "KUBERNETES_SERVICE_HOST": ""}
    async with process("--allowed-controller-sa=system:serviceaccount:a:b", *LOCAL, env=env) as server:
        await server.line("in_cluster_config")
        assert await server.end() == 1


async def test_a_server_without_authentication_never_loads_a_kubernetes_client() -> None:
    script = (
        "import sys, inferencecache.server.run, inferencecache.cli.server\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('kubernetes_asyncio', 'grpc', 'redis')\n"
        "       or name.startswith('inferencecache.kube')])"
    )
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    out, _ = await child.communicate()
    assert out.decode().strip() == "[]"
