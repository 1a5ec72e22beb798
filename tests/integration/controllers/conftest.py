"""A server that reviews tokens with the real API server, and an operator's tokens for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inferencecache.api.kinds import crds
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from tests.integration.controllers.cache_server import CONTROLLER, POLICY
from tests.integration.server.running import Running
from tests.integration.server.test_auth import Accounts, guarded, server_identity  # noqa: F401 - a fixture


@pytest.fixture
def accounts(client: Client, namespace: str) -> Accounts:
    return Accounts(client, namespace)


@pytest.fixture
async def server(accounts: Accounts, server_identity: None) -> AsyncIterator[Running]:  # noqa: F811 - asks for it
    async with guarded(accounts) as server:
        yield server


@pytest.fixture
async def tokens(client: Client, accounts: Accounts, tmp_path: Path) -> Path:
    """The folder in which the operator finds good tokens; the kinds are installed."""
    await install_crds(client, crds())
    (tmp_path / "controller-token").write_text(await accounts.token("controller", CONTROLLER) + "\n")
    (tmp_path / "policy-token").write_text(await accounts.token("controller", POLICY))
    return tmp_path
