"""Adapter names: what the flag may say, and which partition an event belongs to (spec 08 §7)."""

from __future__ import annotations

import pytest

from inferencecache.subscriber.adapters import adapter_of, parse_adapter_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", {}),
        (" ", {}),
        ("1=sql-lora,2=chat-lora", {1: "sql-lora", 2: "chat-lora"}),
        (" 1 = sql-lora , 2=chat-lora , ", {1: "sql-lora", 2: "chat-lora"}),
        ("-9223372036854775808=low,9223372036854775807=high", {-(2**63): "low", 2**63 - 1: "high"}),
        ("1=a=b", {1: "a=b"}),
    ],
)
def test_the_flag_maps_numbers_to_names(text: str, names: dict[int, str]) -> None:
    assert parse_adapter_names(text) == names


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sql-lora", "expected id=name"),
        ("1=a,2", "expected id=name"),
        ("one=a", "no number"),
        ("1.0=a", "no number"),
        ("=a", "no number"),
        ("9223372036854775808=a", "64 bits"),
        ("1=", "name is empty"),
        ("1=a,1=b", "given twice"),
    ],
)
def test_a_wrong_flag_is_refused_and_the_item_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as raised:
        parse_adapter_names(text)
    assert repr(text.split(",")[-1]) in str(raised.value)


@pytest.mark.parametrize(
    ("lora_id", "lora_name", "partition"),
    [
        (None, None, ""),
        (None, "", ""),
        (1, None, "sql-lora"),
        (1, "wire-name", "wire-name"),
        (7, "wire-name", "wire-name"),
        (None, "wire-name", "wire-name"),
        (7, None, None),
        (0, None, None),
        (7, "", None),
    ],
)
def test_the_name_on_the_wire_goes_before_the_map_and_a_nameless_number_is_no_partition(
    lora_id: int | None, lora_name: str | None, partition: str | None
) -> None:
    assert adapter_of(lora_id, lora_name, {1: "sql-lora"}) == partition
