"""A controller of backends may die between any two of its calls: the next one ends in the same state.

Death is played by a client that makes so many calls and then none any more. Reads that fill the informers do not count.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from inferencecache.api.kinds import crds
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.errors import TransportError
from inferencecache.kube.resource import Key
from tests.integration.kube.waiting import eventually
from tests.integration.kvcache.backend_world import BackendWorld, Dialled, counting, operating

BIRTH = range(16)
TEARDOWN = range(13)
"""More than these passes make calls; a lagging cache may take some more."""
WANTED = ["DaemonSet-member-0", "Deployment-leader", "Service-leader"]


class Mortal(Client):
    """Makes so many calls, then fails them all."""

    left = 0

    @property
    def dead(self) -> bool:
        return self.left < 0

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        if "resourceVersion" not in (more.get("params") or {}):
            self.left -= 1
        if self.dead:
            raise TransportError(f"{method} {path}: this controller is dead")
        return await super().request(method, path, **more)


@pytest.fixture
async def backends(client: Client, namespace: str) -> AsyncIterator[BackendWorld]:
    await install_crds(client, crds())
    world = BackendWorld(client, namespace)
    yield world
    await world.clean()


async def dying(backends: BackendWorld, calls: int, done: Callable[[], Awaitable[bool]]) -> None:
    """Run a controller for so many calls, or until the work is done."""
    mortal = Mortal(backends.client.connection, field_manager="inferencecache-controller")
    mortal.left = calls + 1_000  # discovery and the informers of the start do not count

    async def look() -> bool:
        return mortal.dead or await done()

    async with operating(mortal, backends.namespace, Dialled()):
        mortal.left = calls
        await eventually(look, bool)


@pytest.mark.parametrize("calls", BIRTH)
async def test_a_birth_that_is_interrupted_is_completed(backends: BackendWorld, calls: int) -> None:
    backend = await backends.managed()

    async def born() -> bool:
        status = await backends.status(backend)
        return status.get("phase") == "Provisioning" and sorted(await backends.children(backend)) == WANTED

    await dying(backends, calls, born)
    async with operating(counting(backends.client), backends.namespace, Dialled()):
        await eventually(born, bool)
        live = await backends.client.get(KVCacheBackend, backend)
        assert live.metadata.finalizers == ("gpustack.ai/controlled",)
        children = await backends.children(backend)
        generations = {name: one["metadata"].get("generation", 1) for name, one in children.items()}
        assert set(generations.values()) == {1}, f"some object was written twice: {generations}"
        assert len((await backends.status(backend))["endpoints"]) == 2


@pytest.mark.parametrize("calls", TEARDOWN)
async def test_a_teardown_that_is_interrupted_is_completed_in_order(backends: BackendWorld, calls: int) -> None:
    backend = await backends.managed()
    await _complete(backends, backend)
    await backends.client.delete(KVCacheBackend.resource, backend)

    async def gone() -> bool:
        return not await _is_there(backends, backend)

    async def torn_down() -> bool:
        if await gone():
            assert await backends.children(backend) == {}, "the backend went before what is its"
            return True
        await backends.collect()
        return False

    await dying(backends, calls, torn_down)
    async with operating(counting(backends.client), backends.namespace, Dialled()):
        await eventually(torn_down, bool)


async def _complete(backends: BackendWorld, backend: Key) -> None:
    async with operating(counting(backends.client), backends.namespace, Dialled()):
        await backends.says(backend, "Provisioning")


async def _is_there(backends: BackendWorld, backend: Key) -> bool:
    return any(Key.of(one) == backend for one in await backends.client.list(KVCacheBackend))
