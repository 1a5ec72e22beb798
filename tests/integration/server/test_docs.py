"""The commands of docs/server.md, run as they stand there."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from inferencecache.wire.service import METHODS
from tests.integration.server.running import Running, calling, running

PAGE = (Path(__file__).parents[3] / "docs" / "server.md").read_text()
_BLOCK = re.compile(r"^```console\n\$ (.*?)^```$", re.DOTALL | re.MULTILINE)
VARYING = {"score", "estimatedCacheHitProb", "lookupLatencyUs"}


def _commands() -> list[tuple[str, str]]:
    """Each command of the page with the line of JSON that it shows, if any."""
    found = []
    for block in _BLOCK.findall(PAGE):
        command, _, last = block.rstrip().rpartition("\n")
        found.append((command, last) if last.startswith('{"') else (block, ""))
    return found


COMMANDS = _commands()


@pytest.fixture
async def server() -> AsyncIterator[Running]:
    async with running() as server:
        yield server


def test_the_page_starts_a_server_reports_looks_up_and_asks_what_is_known() -> None:
    assert [shlex.split(command)[0] for command, _ in COMMANDS] == ["inferencecache", "curl", "curl", "grpcurl", "curl"]
    assert shlex.split(COMMANDS[0][0])[1] == "server"


async def test_the_commands_answer_as_the_page_shows(server: Running) -> None:
    assert shutil.which("curl"), "this test needs curl"
    for command, shown in COMMANDS:
        words = shlex.split(command)
        if words[0] == "curl":
            local = [word.replace("localhost:8080", f"127.0.0.1:{server.ports.http}") for word in words]
            child = await asyncio.create_subprocess_exec(*local, stdout=asyncio.subprocess.PIPE)
            out, _ = await child.communicate()
            assert _steady(json.loads(out)) == _steady(json.loads(shown))
        elif words[0] == "grpcurl":
            await grpcurl(server, words)


async def grpcurl(server: Running, words: list[str]) -> None:
    """What grpcurl would do with this command line."""
    assert words[1:3] == ["-plaintext", "-d"]
    data, target, name = words[3:]
    assert target == "localhost:9090"
    method = METHODS[name.rpartition("/")[2]]
    assert method.path == f"/{name}"
    async with calling(server) as stub:
        reply: Any = await stub.method(method.name)(json_format.Parse(data, method.request()))
    assert reply.reason_code == "PREFIX_MATCH"


def _steady(value: Any) -> Any:
    """The value without what differs from run to run."""
    if isinstance(value, dict):
        return {name: _steady(each) for name, each in value.items() if name not in VARYING}
    return [_steady(each) for each in value] if isinstance(value, list) else value
