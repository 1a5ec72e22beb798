"""The commands of docs/subscriber.md, run as they stand there, on other ports."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from inferencecache.kube.ports import free_ports
from tests.integration.subscriber.test_acceptance import process

PAGE = (Path(__file__).parents[3] / "docs" / "subscriber.md").read_text()
COMMANDS = re.findall(r"^```console\n\$ (.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
VARYING = {"score", "estimatedCacheHitProb", "lookupLatencyUs"}


async def test_what_the_page_shows_is_what_happens(tmp_path: Path) -> None:
    server, engine, sidecar, complete, lookup = COMMANDS
    grpc, http, admin, events, requests = free_ports(5)
    ports = {"localhost:8000": f"localhost:{requests}", "localhost:8080": f"localhost:{http}"}
    ports |= {"127.0.0.1:5557": f"127.0.0.1:{events}", "127.0.0.1:8000": f"127.0.0.1:{requests}"}
    extra = {
        "server": [f"--{name}-bind-address=127.0.0.1:{port}" for name, port in
                   (("grpc", grpc), ("http", http), ("snapshot", admin))],
        "kvevent-fake-engine": [],
        "kvevent-subscriber": [f"--server=127.0.0.1:{grpc}", f"--engine-endpoint=tcp://127.0.0.1:{events}",
                               "--health-bind-address="],
    }  # fmt: skip
    lookup, _, shown = lookup.rstrip().rpartition("\n")
    async with AsyncExitStack() as stack:
        for command in (server, engine, sidecar):
            _, name, *args = shlex.split(_moved(command, ports))
            log = tmp_path / f"{name}.log"
            await stack.enter_async_context(process(name, log, *args, *extra[name]))
        log = tmp_path / "kvevent-subscriber.log"
        async with asyncio.timeout(200):
            while "subscribed to engine" not in log.read_text():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.05)
            usage = await _said(_moved(complete, ports), "usage")
            assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
            while (found := await _said(_moved(lookup, ports), "reasonCode"))["reasonCode"] != "PREFIX_MATCH":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    assert _steady(found) == _steady(json.loads(shown))


def _moved(command: str, ports: dict[str, str]) -> str:
    for here, there in ports.items():
        command = command.replace(here, there)
    return command


async def _said(command: str, key: str) -> Any:
    """The answer to a command of curl's, once it has this key."""
    while True:
        curl = await asyncio.create_subprocess_exec(*shlex.split(command), stdout=asyncio.subprocess.PIPE)
        out, _ = await curl.communicate()
        if out and key in (answer := json.loads(out)):
            return answer
        await asyncio.sleep(0.05)


def _steady(answer: object) -> object:
    """An answer without what varies."""
    if isinstance(answer, dict):
        return {name: _steady(value) for name, value in answer.items() if name not in VARYING}
    return [_steady(each) for each in answer] if isinstance(answer, list) else answer
