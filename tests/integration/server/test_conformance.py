"""The gRPC port before others' judges: the HTTP/2 conformance suite, and a client of grpc-go."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb
from tests.integration.server.running import Running, lookup, running, update

SOURCE = Path(__file__).parent / "golang"
A = b"\x01" * 8


@pytest.fixture
async def server() -> AsyncIterator[Running]:
    async with running() as server:
        yield server


async def output(*command: str | Path, cwd: Path | None = None) -> tuple[int | None, str]:
    """What a command printed, and its exit status."""
    child = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    printed, _ = await child.communicate()
    return child.returncode, printed.decode()


async def built(package: str, folder: Path) -> Path:
    """A Go program of the module beside this test."""
    binary = folder / "program"
    status, printed = await output("go", "build", "-o", binary, package, cwd=SOURCE)
    assert status == 0, printed
    return binary


async def test_the_conformance_suite_of_http_2_passes_in_its_strict_mode(server: Running, tmp_path: Path) -> None:
    suite = await built("github.com/summerwind/h2spec/cmd/h2spec", tmp_path)
    where = ["-h", "127.0.0.1", "-p", str(server.ports.grpc)]
    path = "/inferencecache.v1alpha1.InferenceCache/ReportCacheState"
    status, printed = await output(suite, *where, "--strict", "--timeout", "60", "--path", path)
    assert status == 0, printed
    assert "146 tests, 146 passed, 0 skipped, 0 failed" in printed


async def test_a_client_in_go_finds_everything_a_grpc_server_has(server: Running, tmp_path: Path) -> None:
    client = await built(".", tmp_path)
    files = {"update": update("pod-a", [A]), "lookup": lookup([A])}
    for name, message in files.items():
        (tmp_path / name).write_bytes(message.SerializeToString())
    arguments = [f"-{name}={tmp_path / name}" for name in files]
    status, printed = await output(client, f"-target={server.target()}", *arguments)
    assert status == 0, printed
    seen = json.loads(printed)
    for name in ("answer", "compressed"):
        answer = pb.LookupRouteResponse.FromString(base64.b64decode(seen.pop(name)))
        assert answer.reason_code == "PREFIX_MATCH"
        assert answer.replica_scores[0].replica_id == "pod-a"
    assert pb.Ack.FromString(base64.b64decode(seen.pop("report"))).accepted
    assert "inferencecache.v1alpha1.InferenceCache" in seen.pop("services")
    assert seen == {
        "health": "SERVING",
        "health_of_another": "NotFound",
        "cancelled_report": "Canceled",
        "answers_at_once": 3200,
        "too_large": "ResourceExhausted",
        "unknown_method": "Unimplemented",
        "deadline": "DeadlineExceeded",
    }
