"""Event batches as the two eras of engines encode them (spec 08 §4): positional arrays, or maps keyed by field names.

A positional event has every field of its build, so a build is imitated by how many there are: the oldest, if the events
need nothing that came later.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from inferencecache.wire.events import AllBlocksCleared, BlockRemoved, BlockStored, Event


class Encoding(StrEnum):
    """How an event is written."""

    ARRAY = "array"
    MAP = "map"


_FIELDS: Final[dict[type[Event], tuple[str, ...]]] = {
    # `locality` and `cache_salt` came with the maps.
    BlockStored: BlockStored.__struct_fields__[:11],
    BlockRemoved: BlockRemoved.__struct_fields__[:3],
    AllBlocksCleared: (),
}
_OLDEST: Final[dict[type[Event], int]] = {BlockStored: 5, BlockRemoved: 1, AllBlocksCleared: 0}
_ALWAYS: Final = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id")

_encode = msgspec.msgpack.Encoder().encode


def encode(events: Sequence[Event], encoding: Encoding, *, ts: float = 0.0, rank: int | None = None) -> bytes:
    """A batch as it stands in a message's last frame. `rank` is left out if it is None, as the oldest builds do."""
    write = _as_array if encoding is Encoding.ARRAY else _as_map
    batch: list[Any] = [float(ts), [write(event) for event in events]]
    if rank is not None:
        batch.append(rank)
    return _encode(batch)


def _as_array(event: Event) -> list[Any]:
    values = [getattr(event, name) for name in _FIELDS[type(event)]]
    length = max((index + 1 for index, value in enumerate(values) if value is not None), default=0)
    return [type(event).__name__, *values[: max(length, _OLDEST[type(event)])]]


def _as_map(event: Event) -> dict[str, Any]:
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return {
        "type": type(event).__name__,
        **{name: value for name, value in fields.items() if value is not None or name in _ALWAYS},
    }
