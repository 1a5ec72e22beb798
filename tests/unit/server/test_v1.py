"""Streams as JSON lines: all of it, in order, and no more of the loop than their share."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from inferencecache.server.streams import StreamEnded
from inferencecache.server.v1 import json_lines
from inferencecache.wire.v1alpha1.inferencecache_pb2 import CacheEvent
from tests.unit.server.waiting import counted_turns


async def events(count: int) -> AsyncIterator[CacheEvent]:
    """So many events, all of them there at once, and then an end that says why."""
    for number in range(count):
        yield CacheEvent(replica_id=f"r{number}")
    raise StreamEnded("too slow")


async def test_a_backlog_is_told_in_turns_with_others_and_ends_with_the_reason() -> None:
    async with counted_turns() as turns:
        lines = [json.loads(line) async for line in json_lines(events(500))]
    assert [line["replicaId"] for line in lines[:-1]] == [f"r{number}" for number in range(500)]
    assert lines[-1] == {"error": {"message": "too slow"}}
    assert turns.count >= 500
