"""A server whose controller port is 8081, on an address of its own, as the doctor knows no other port."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from inferencecache.api.kinds import crds
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from inferencecache.server.sockets import BindAddress
from tests.integration.controllers.cache_server import CONTROLLER, POLICY
from tests.integration.server.running import Running
from tests.integration.server.test_auth import Accounts, guarded, server_identity  # noqa: F401 - a fixture


@dataclass
class OnHost(Running):
    """A server that listens elsewhere than on 127.0.0.1, except for its public HTTP port."""

    host: str = ""

    def target(self) -> str:
        return f"{self.host}:{self.ports.grpc}"

    def url(self, path: str) -> str:
        return super().url(path).replace("//127.0.0.1:8081", f"//{self.host}:8081")


@pytest.fixture
def accounts(client: Client, namespace: str) -> Accounts:
    return Accounts(client, namespace)


@pytest.fixture
def host() -> str:
    """A loopback address that nobody else serves on."""
    return f"127.{random.randint(2, 250)}.{random.randint(2, 250)}.{random.randint(2, 250)}"


@pytest.fixture
async def server(
    accounts: Accounts,
    host: str,
    server_identity: None,  # noqa: F811 - asks for it
) -> AsyncIterator[Running]:
    """A server that reviews tokens with the real API server."""
    async with guarded(
        accounts, grpc_bind_address=BindAddress(host, 0), snapshot_bind_address=BindAddress(host, 8081)
    ) as server:
        yield OnHost(server.ports, server.stop, server.ended, host)


@pytest.fixture
async def tokens(client: Client, accounts: Accounts, tmp_path: Path) -> Path:
    """The folder in which the operator finds good tokens; the kinds are installed."""
    await install_crds(client, crds())
    (tmp_path / "controller-token").write_text(await accounts.token("controller", CONTROLLER) + "\n")
    (tmp_path / "policy-token").write_text(await accounts.token("controller", POLICY))
    return tmp_path


@pytest.fixture
def endpoint(server: Running) -> str:
    """What to give as `--server-endpoint`."""
    return server.target()
