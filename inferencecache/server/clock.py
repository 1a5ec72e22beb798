"""The two clocks of the server, replaceable as one.

Durations and deadlines are told by a monotonic clock; instants that travel or are compared with a producer's are wall
time in microseconds since 1970. A step of the wall clock therefore makes holds look older or newer, and never a
deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


def _wall_us() -> int:
    return time.time_ns() // 1000


class Clock(NamedTuple):
    """`monotonic` gives seconds from an arbitrary start, `wall_us` microseconds since 1970."""

    monotonic: Callable[[], float] = time.monotonic
    wall_us: Callable[[], int] = _wall_us
