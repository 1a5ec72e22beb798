"""The affinity pick: frozen bytes (spec 07 §5), and balanced over replicas."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server import affinity

_V3 = (bytes.fromhex("ea06fc71a5ee6e88"), bytes.fromhex("ad01835a37dd294c"))
_REPLICAS = [f"pod-{name}" for name in "abcdefg"]


@pytest.mark.parametrize(
    ("chain", "exact", "seed", "remainders"),
    [
        (_V3, _V3[-1], "00000008ea06fc71a5ee6e8800000008ad01835a37dd294c", {2: 1, 3: 0, 5: 3, 7: 0}),
        ((), _V3[-1], "ad01835a37dd294c", {2: 1, 3: 2, 5: 1, 7: 3}),
        ((), b"p", "70", {2: 1, 3: 1, 5: 4, 7: 0}),
    ],
)
def test_seeds_and_picks_are_those_of_the_published_vectors(
    chain: tuple[bytes, ...], exact: bytes, seed: str, remainders: dict[int, int]
) -> None:
    made = affinity.seed(chain, exact)
    assert made.hex() == seed
    for replicas, index in remainders.items():
        assert affinity.pick(made, _REPLICAS[:replicas]) == _REPLICAS[index]


def test_nothing_is_picked_without_a_seed_or_without_replicas() -> None:
    assert affinity.pick(affinity.seed((), b""), _REPLICAS) is None
    assert affinity.pick(b"p", []) is None


@given(st.lists(st.binary(max_size=12), min_size=1))
def test_each_hash_stands_behind_its_length_whatever_the_lengths(chain: list[bytes]) -> None:
    expected = b"".join(len(block).to_bytes(4, "big") + block for block in chain)
    assert affinity.seed(chain, b"ignored") == expected


@given(st.lists(st.lists(st.binary(max_size=12), min_size=1), min_size=1))
def test_a_chain_in_pieces_goes_where_it_goes_as_a_whole(pieces: list[list[bytes]]) -> None:
    whole = affinity.seed([block for piece in pieces for block in piece], b"")
    assert affinity.pick_by_digest(affinity.digest(pieces), _REPLICAS) == affinity.pick(whole, _REPLICAS)
    assert affinity.pick_by_digest(affinity.digest(pieces), []) is None


def test_prompts_spread_evenly() -> None:
    source = random.Random(7)
    replicas = [f"pod-{index}" for index in range(8)]
    picks = Counter(affinity.pick(source.randbytes(32), replicas) for _ in range(1000))
    assert set(picks) == set(replicas)
    assert all(80 <= count <= 220 for count in picks.values()), picks
