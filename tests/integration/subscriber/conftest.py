from __future__ import annotations

import pytest

from inferencecache.kube import ports
from inferencecache.subscriber import channel, delivery, stats


@pytest.fixture(autouse=True)
def patience_with_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on a busy machine may take longer over an answer than a sidecar waits, which then tells it again."""
    monkeypatch.setattr(delivery, "RPC_SECONDS", 60.0)
    monkeypatch.setattr(stats, "_RPC_SECONDS", 60.0)
    monkeypatch.setattr(channel, "_CONNECT_SECONDS", 60.0)


@pytest.fixture
def free_port() -> int:
    """A port that nobody has."""
    return ports.free_port()


@pytest.fixture
def port_pairs() -> tuple[int, int]:
    """Two ports, each with its successor."""
    return ports.free_port(neighbours=1), ports.free_port(neighbours=1)


@pytest.fixture
def two_ports() -> tuple[int, int]:
    """Two ports that nobody has."""
    return ports.free_port(), ports.free_port()
