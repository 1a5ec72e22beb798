"""Events as engines' builds encode them: the same fields in a positional array or in a map (spec 08 §4.2, §4.3)."""

from __future__ import annotations

from typing import Any

from msgspec import msgpack

STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
REMOVED = ("block_hashes", "medium", "group_idx")
REQUIRED = {"block_hashes", "parent_block_hash", "token_ids", "block_size"}


def stored(hashes: list[Any], tokens: list[Any] | None, block_size: int = 2, **fields: Any) -> dict[str, Any]:
    """A `BlockStored` by its fields, all of them, `None` where not given."""
    given = {"block_hashes": hashes, "token_ids": tokens, "block_size": block_size, **fields}
    return {"type": "BlockStored", **dict.fromkeys(STORED), **given}


def removed(hashes: list[Any], **fields: Any) -> dict[str, Any]:
    """A `BlockRemoved` by its fields."""
    return {"type": "BlockRemoved", **dict.fromkeys(REMOVED), "block_hashes": hashes, **fields}


def cleared() -> dict[str, Any]:
    """An `AllBlocksCleared`."""
    return {"type": "AllBlocksCleared"}


def as_array(event: dict[str, Any], length: int | None = None) -> list[Any]:
    """The array encoding: every field of the build, nils included; `length`, with the tag, tells builds apart."""
    names = {"BlockStored": STORED, "BlockRemoved": REMOVED}.get(event["type"], ())
    return [event["type"], *(event[name] for name in names)][:length]


def as_map(event: dict[str, Any]) -> dict[str, Any]:
    """The map encoding: optional fields that have their default are omitted."""
    return {name: value for name, value in event.items() if value is not None or name in REQUIRED}


def batch(*events: Any, ts: Any = 1.5, rank: int | None = 0) -> bytes:
    """An array envelope around encoded events."""
    return msgpack.encode([ts, list(events), rank])


def map_batch(*events: Any, ts: Any = 1.5, **rank: int) -> bytes:
    """A map envelope around encoded events."""
    return msgpack.encode({"ts": ts, "events": list(events), **rank})


SHAPES = {"array": as_array, "map": as_map}
