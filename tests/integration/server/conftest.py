from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inferencecache.server import probe, tier2
from inferencecache.server.store import shared_log, stream
from tests.integration.server.redis_server import RedisServer


@pytest.fixture(autouse=True)
def patience_with_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer over an answer than a server waits for one; only a test of that shall see it."""
    monkeypatch.setattr(stream, "_ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(stream, "_CONNECT_SECONDS", 60.0)
    monkeypatch.setattr(shared_log, "_STALL_SECONDS", 60.0)
    monkeypatch.setattr(tier2, "_SECONDS", 60.0)
    monkeypatch.setattr(probe, "TIER2_SECONDS", 60.0)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server
