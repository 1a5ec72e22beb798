from __future__ import annotations

import pytest

from inferencecache.kube import ports


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
