"""Loopback ports for processes that are about to be started.

Between finding a port free and listening on it lies the start of a process, or, for one that is stopped and started
anew, all the time that it is down. Meanwhile nobody may get the port by chance. Whoever leaves the choice to the
system, as every outgoing connection does, gets one of its ephemeral range; so these ports lie below that range, and
below the node ports of Kubernetes. Each process walks upwards from a place of its own and gives no port twice before it
has been all around, so that test runs side by side do not meet.
"""

from __future__ import annotations

import itertools
import random
import socket
from typing import Final

_LOWEST: Final = 18_000  # Mooncake's clients choose theirs by themselves, up to 17000
_NUMBER: Final = 12_000  # up to the node ports; ephemeral ones begin at 32768 or above
_places = itertools.count(random.SystemRandom().randrange(_NUMBER))


def free_port(neighbours: int = 0) -> int:
    """A port that is free now, and so are as many right above it."""
    while True:
        port = _LOWEST + next(_places) % _NUMBER
        if all(_is_free(port + offset) for offset in range(neighbours + 1)):
            for _ in range(neighbours):
                next(_places)
            return port


def free_ports(count: int) -> list[int]:
    """Different ports that are free now."""
    return [free_port() for _ in range(count)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
