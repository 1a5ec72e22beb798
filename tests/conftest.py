"""One real control plane per test process, one fresh namespace per test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
import structlog
from hypothesis import HealthCheck, settings

from inferencecache.kube.client import Client
from inferencecache.kube.connection import connect
from inferencecache.kube.envtest import ControlPlane
from inferencecache.kube.kinds import Namespace
from inferencecache.kube.resource import Key

# How fast inputs are made says something about the machine, not about what is tested. And a run shall fail for what
# was changed, not for an example that no run drew before; those are looked for with --hypothesis-profile=searching.
settings.register_profile("patient", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "searching", settings.get_profile("patient"), derandomize=False, max_examples=2000, print_blob=True
)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands run in this process set logging up for a stderr that ends with their test."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    with ControlPlane() as plane:
        yield plane


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    async with await connect(control_plane.admin) as connection:
        yield Client(connection, field_manager="test", timeout=timedelta(seconds=60))


@pytest.fixture
async def namespace(client: Client) -> AsyncIterator[str]:
    name = f"t-{uuid.uuid4().hex[:10]}"
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    await client.delete(Namespace.resource, Key("", name))
