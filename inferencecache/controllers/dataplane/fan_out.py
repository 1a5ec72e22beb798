"""Many writes at once, of which one that fails or dawdles costs the others nothing.

The API server paces clients of its own accord; the bound here only keeps one loop from taking all connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog

from inferencecache.kube.errors import KubeError, LeadershipLost, NotFound
from inferencecache.kube.resource import K, Key

AT_ONCE: Final = 16

_log = structlog.stdlib.get_logger(__name__)


async def write_each(objects: Iterable[K], write: Callable[[K], Awaitable[object]], *, what: str) -> KubeError | None:
    """Write about each object; failures are logged with `what` was written, and the first is returned.

    An object that is gone needs nothing written. Raises `LeadershipLost`, after which nothing else is sent.
    """
    turns = asyncio.Semaphore(AT_ONCE)
    failures: list[KubeError] = []

    async def one(obj: K) -> None:
        async with turns:
            try:
                await write(obj)
            except LeadershipLost:
                raise
            except NotFound:
                return
            except KubeError as error:
                key = Key.of(obj)
                _log.warning(f"{what} not written", namespace=key.namespace, name=key.name, error=str(error))
                failures.append(error)

    try:
        async with asyncio.TaskGroup() as group:
            for obj in objects:
                group.create_task(one(obj))
    except* LeadershipLost as lost:
        raise lost.exceptions[0] from None
    return failures[0] if failures else None
