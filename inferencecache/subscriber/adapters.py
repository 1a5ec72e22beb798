"""LoRA adapters: from what an engine says of one to the partition of the index its blocks belong to (spec 08 §7).

The index partitions by the name that requests carry. Current builds send it; older ones send a number, whose name the
operator of the engine has to tell. A number without a name is an adapter nobody can look up, and never the base model.
"""

from __future__ import annotations

from collections.abc import Mapping

_INT64 = range(-(2**63), 2**63)

BASE_MODEL = ""
"""The partition of blocks that no adapter computed."""


def parse_adapter_names(text: str) -> dict[int, str]:
    """The map that `--lora-adapter-names` gives: `1=sql-lora, 2=chat-lora`.

    Raises:
        ValueError: an item has no `=`, no 64-bit number or no name, or a number is given twice.
    """
    names: dict[int, str] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        number, equals, name = (part.strip() for part in item.partition("="))
        if not equals:
            raise ValueError(f"adapter {item!r}: expected id=name")
        if not name:
            raise ValueError(f"adapter {item!r}: the name is empty")
        try:
            lora_id = int(number)
        except ValueError:
            raise ValueError(f"adapter {item!r}: {number!r} is no number") from None
        if lora_id not in _INT64:
            raise ValueError(f"adapter {item!r}: the number does not fit into 64 bits")
        if lora_id in names:
            raise ValueError(f"adapter {item!r}: the number {lora_id} is given twice")
        names[lora_id] = name
    return names


def adapter_of(lora_id: int | None, lora_name: str | None, names: Mapping[int, str]) -> str | None:
    """The partition of an event's blocks: the name on the wire, else that of the number; None if it has no name."""
    if lora_name:
        return lora_name
    return BASE_MODEL if lora_id is None else names.get(lora_id)
