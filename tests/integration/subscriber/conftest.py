from __future__ import annotations

import pytest

from inferencecache.kube import ports
from inferencecache.subscriber import channel, delivery, stats
from inferencecache.subscriber.source import Source


@pytest.fixture(autouse=True)
def patience_with_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine servers and engines may take longer over an answer than a sidecar waits."""
    monkeypatch.setattr(delivery, "RPC_SECONDS", 60.0)
    monkeypatch.setattr(stats, "_RPC_SECONDS", 60.0)
    monkeypatch.setattr(stats, "_SCRAPE_SECONDS", 60.0)
    monkeypatch.setattr(channel, "_CONNECT_SECONDS", 60.0)
    assert Source.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(Source.__init__.__kwdefaults__, "patience", 60.0)


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
