"""The table against a dict that a reader can verify by eye."""

from __future__ import annotations

import itertools
import random
from itertools import repeat

from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inferencecache.subscriber.table import MANY, Table

# Few buckets (keys that differ by multiples of their number), and values that look like keys.
KEYS = st.integers(0, 6).map(lambda number: number * MANY * 2**20 + 5) | st.sampled_from([0, 1, 2**64 - 1, 2**56, 256])
WIDE = KEYS | st.integers(0, 2**64 - 1)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = Table("QIH")
        self.model: dict[int, tuple[int, ...]] = {}

    @rule(key=KEYS, wide=WIDE, middle=st.integers(0, 2**32 - 1), narrow=st.integers(0, 2**16 - 1))
    def setdefault(self, key: int, wide: int, middle: int, narrow: int) -> None:
        assert self.table.setdefault(key, wide, middle, narrow) == self.model.get(key)
        self.model.setdefault(key, (wide, middle, narrow))

    @rule(keys=st.lists(KEYS), wide=WIDE)
    def add(self, keys: list[int], wide: int) -> None:
        there = set()
        for place, key in enumerate(keys):
            if key in self.model:
                there.add(place)
            self.model.setdefault(key, (wide, place, 7))
        assert self.table.add(keys, repeat(wide), itertools.count(), repeat(7)) == there

    @rule(key=KEYS, wide=WIDE)
    def replace(self, key: int, wide: int) -> None:
        if key in self.model:
            self.model[key] = (wide, 1, 2)
            self.table.replace(key, wide, 1, 2)

    @rule(key=KEYS)
    def remove(self, key: int) -> None:
        if self.model.pop(key, None) is not None:
            self.table.remove(key)

    @rule(key=WIDE)
    def get(self, key: int) -> None:
        assert self.table.get(key) == self.model.get(key)

    @invariant()
    def as_many_as_a_dict(self) -> None:
        assert self.table.size == len(self.model)

    def teardown(self) -> None:
        assert sorted(self.table) == sorted((key, *record) for key, record in self.model.items())


TestTable = Machine.TestCase


@given(st.integers(0, 2**64 - 1), st.integers(2, 7))
def test_a_key_whose_bytes_stand_across_two_records_is_not_found(key: int, offset: int) -> None:
    """In one bucket, the first record ends as the key begins, and the second one's key begins as it ends."""
    raw, buckets = key.to_bytes(8, "little"), MANY
    head = int.from_bytes(raw[offset:], "little")
    shift = 8 * (8 - offset)
    second = head + ((key - head) * pow(2**shift, -1, buckets) % buckets << shift)
    first = key % buckets
    assume(len({first, second, key}) == 3)
    table = Table("Q")
    table.setdefault(first, int.from_bytes(bytes(8 - offset) + raw[:offset], "little"))
    table.setdefault(second, 7)
    assert table.get(key) is None
    assert table.setdefault(key, 9) is None
    assert table.get(key) == (9,)


def test_a_hundred_thousand_records_are_all_found_and_all_gone_after_removal() -> None:
    numbers = random.Random(1)
    keys = [numbers.getrandbits(64) for _ in range(100_000)]
    table = Table("QI")
    for index, key in enumerate(keys):
        assert table.setdefault(key, key ^ 1, index) is None
    assert all(table.get(key) == (key ^ 1, index) for index, key in enumerate(keys))
    for key in keys:
        table.remove(key)
    assert (table.size, list(table)) == (0, [])
