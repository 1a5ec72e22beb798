"""A trial engine: the fake engine, and beside it the very sidecar that admission put into the engine's Pod.

There is no kubelet to start the Pod, so the sidecar's arguments are taken from the admitted Pod and run here. Only what
a Pod's network would have made unique is replaced: the addresses of the engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from inferencecache.adapters.pods import SUBSCRIBER
from inferencecache.cli.processes import child, command
from inferencecache.kube.ports import free_ports
from inferencecache.kube.resource import Manifest

BLOCK_SIZE: Final = 16


@dataclass(frozen=True)
class Engine:
    """A running engine; `http` is `host:port` of its OpenAI-compatible API."""

    http: str


def subscriber_arguments(pod: Manifest) -> list[str]:
    """The arguments of a wired Pod's sidecar, with the references to its environment resolved.

    Raises:
        ValueError: the Pod has no such sidecar.
    """
    containers: list[dict[str, Any]] = pod["spec"]["containers"]
    found = [container for container in containers if container["name"] == SUBSCRIBER]
    if not found:
        raise ValueError(f"the Pod has no container {SUBSCRIBER}: it was not wired")
    metadata = pod["metadata"]
    values = {"$(POD_NAME)": metadata["name"], "$(POD_NAMESPACE)": metadata["namespace"]}
    arguments = []
    for argument in found[0]["args"]:
        for reference, value in values.items():
            argument = argument.replace(reference, value)
        arguments.append(argument)
    return arguments


@contextlib.asynccontextmanager
async def engine(pod: Manifest, model: str, folder: Path) -> AsyncIterator[Engine]:
    """The fake engine and the sidecar of `pod`, running until the context ends. Raises `ProcessError`, `ValueError`."""
    events, replay, http, health = free_ports(4)
    sidecar = command(
        "kvevent-subscriber",
        *subscriber_arguments(pod),
        f"--engine-endpoint=tcp://127.0.0.1:{events}",
        f"--replay-endpoint=tcp://127.0.0.1:{replay}",
        f"--engine-metrics-url=http://127.0.0.1:{http}/metrics",
        f"--health-bind-address=127.0.0.1:{health}",
    )
    publisher = command(
        "kvevent-fake-engine",
        f"--bind=tcp://127.0.0.1:{events}",
        f"--replay=tcp://127.0.0.1:{replay}",
        "--repeat=false",
        "--encoding=map",
        f"--block-size={BLOCK_SIZE}",
        f"--http-bind-address=127.0.0.1:{http}",
        f"--model={model}",
    )
    async with child("fake engine", publisher, folder / "engine.log") as running:
        await running.wait_answers(f"http://127.0.0.1:{http}/health")
        async with child("subscriber", sidecar, folder / "subscriber.log") as following:
            await following.wait_answers(f"http://127.0.0.1:{health}/healthz")
            yield Engine(f"127.0.0.1:{http}")


async def post(address: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The JSON answer to a POST of JSON, from a listener on this machine."""
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
        session.post(f"http://{address}{path}", json=body) as response,
    ):
        answer: dict[str, Any] = await response.json()
    return answer
