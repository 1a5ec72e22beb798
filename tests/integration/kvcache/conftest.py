"""A real master, and a world of pools around it that is taken away in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from inferencecache.api.kinds import crds
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from tests.integration.kvcache.pool_world import World
from tests.mooncake import Master


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    with Master(tmp_path) as running:
        yield running


@pytest.fixture
def single_tenant(tmp_path: Path) -> Iterator[Master]:
    """A master that keeps no ledger."""
    with Master(tmp_path, tenants=False) as running:
        yield running


@pytest.fixture
async def world(client: Client, namespace: str) -> AsyncIterator[World]:
    await install_crds(client, crds())
    world = World(client, namespace)
    yield world
    await world.clean()
