from __future__ import annotations

import socket

import pytest


@pytest.fixture
def free_port() -> int:
    """A port that was free a moment ago."""
    return _free()


@pytest.fixture
def port_pairs() -> tuple[int, int]:
    """Two ports that were free a moment ago, each with its successor."""
    return _free(2), _free(2)


@pytest.fixture
def two_ports() -> tuple[int, int]:
    """Two ports that were free a moment ago."""
    return _free(), _free()


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    return [_free() for _ in range(count)]


def _free(count: int = 1) -> int:
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                for offset in range(1, count):
                    with socket.socket() as other:
                        other.bind(("127.0.0.1", port + offset))
            except OSError:
                continue
            return port
