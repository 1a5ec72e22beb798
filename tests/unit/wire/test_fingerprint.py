"""The fingerprint agrees with every published vector (spec 07 §2, §3), however it is asked."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.wire.fingerprint import MAX_TOKEN_ID, chain, content_hash, key, prefix_hashes

Span = range | list[int]

CHAINS: dict[str, tuple[Span, int, int | None, list[tuple[int, str]]]] = {
    "V1": (range(1, 17), 16, None, [(16863443419780771464, "ea06fc71a5ee6e88")]),
    "V2": (range(100, 120), 16, None, [(10823191264391160519, "9633b31c7a2562c7")]),
    "V3": (
        range(1, 33),
        16,
        None,
        [(16863443419780771464, "ea06fc71a5ee6e88"), (12466389667045779788, "ad01835a37dd294c")],
    ),
    "V4": (
        range(64),
        16,
        None,
        [
            (15310707395893867146, "d47a8f41c833328a"),
            (13769157705258532664, "bf15dffb16447f38"),
            (11879827756109914528, "a4dda066f3c1e1a0"),
            (3888788807566526800, "35f7c0d119848950"),
        ],
    ),
    "V5": (
        range(50, 82),
        16,
        0xDEADBEEF,
        [(13185224009891017151, "b6fb5360f18171bf"), (2998384554010166533, "299c66dda1cb4505")],
    ),
    "V6": (range(10), 16, None, []),
    "V7": (range(1, 17), 16, 0, [(12526382408000392791, "add6a66eb590ce57")]),
    "V8": (
        range(32, 64),
        16,
        13769157705258532664,
        [(11879827756109914528, "a4dda066f3c1e1a0"), (3888788807566526800, "35f7c0d119848950")],
    ),
    "V9": (
        [7] * 48,
        16,
        None,
        [
            (8771127959296939342, "79b94e685564154e"),
            (11551211962395075892, "a04e26142fcd2534"),
            (685227668715088507, "09826aef28082a7b"),
        ],
    ),
    "V10": (
        range(128),
        64,
        None,
        [(3480597578098033343, "304d910e689e42bf"), (2575318956255022795, "23bd5ef232e90ecb")],
    ),
    "V11": (
        range(512),
        256,
        None,
        [(13509048708924160886, "bb79c83a0cdfbb76"), (12131640031995933197, "a85c3e553a06b20d")],
    ),
    "V12": ([4294967295, 0, 2147483648, 1], 4, None, [(3226910784407052720, "2cc84a42f275a1b0")]),
    "V13": (
        [1, 1, 1],
        1,
        None,
        [
            (14426539925402682893, "c8355da0879e060d"),
            (4706824424826078437, "4151ffe065e404e5"),
            (15634445901712392855, "d8f8b5b677a10297"),
        ],
    ),
    "V14": ([14990, 1879], 2, None, [(2562323614806148766, "238f33c07c1d869e")]),
}

CONTENT_BY_LENGTH = {
    0: 15128690059815094969,
    1: 16451421758532862321,
    2: 10918435022357402928,
    3: 11646242937812223497,
    4: 9143094415614847814,
    5: 14562210786876287112,
    8: 12126819726423666500,
    16: 15310707395893867146,
    31: 11457320100649446001,
    32: 5756925433886871916,
    33: 2081791232692432502,
    48: 17528049439166767664,
    60: 13886301141173099695,
    61: 1924516252287165151,
    64: 3480597578098033343,
    128: 9509643624113304476,
    256: 13509048708924160886,
    257: 1747670400354897569,
    512: 9967019188267418660,
}


@pytest.mark.parametrize("name", CHAINS)
def test_chain_vectors(name: str) -> None:
    tokens, block_size, parent, expected = CHAINS[name]
    hashes = prefix_hashes(tokens, block_size, parent)
    assert [(value, key(value).hex()) for value in hashes] == expected


@pytest.mark.parametrize(("length", "expected"), CONTENT_BY_LENGTH.items())
def test_content_hash_by_length(length: int, expected: int) -> None:
    assert content_hash(range(length)) == expected


def test_content_of_a_block_does_not_depend_on_its_place() -> None:
    assert content_hash([7] * 16) == 8771127959296939342
    assert content_hash(range(17, 33)) == 2287610619914608821


def test_wire_form_in_base64() -> None:
    keys, _ = chain(range(64), 16)
    assert base64.b64encode(keys[3]) == b"NffA0RmEiVA="
    assert base64.b64encode(key(prefix_hashes([14990, 1879], 2)[0])) == b"I48zwHwdhp4="


@pytest.mark.parametrize(("tokens", "blocks"), [(32, 2), (20, 1), (64, 4), (10, 0), (0, 0)])
def test_a_chain_counts_full_blocks_only(tokens: int, blocks: int) -> None:
    keys, counts = chain(range(tokens), 16)
    assert len(keys) == blocks
    assert counts == [16] * blocks


@pytest.mark.parametrize("block_size", [0, -1])
def test_no_block_size_no_blocks(block_size: int) -> None:
    assert prefix_hashes(range(64), block_size) == []
    assert chain(range(64), block_size) == ([], [])


@pytest.mark.parametrize("tokens", [[-1], [MAX_TOKEN_ID + 1], [1.5], ["1"], [None]])
def test_what_is_no_token_id_is_refused(tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="integers from 0 to 4294967295"):
        prefix_hashes(tokens, 1)


token_lists = st.lists(st.integers(0, MAX_TOKEN_ID), max_size=80)


@given(token_lists, st.integers(1, 9), st.integers(0, 9))
def test_a_suffix_continues_where_its_prefix_ended(tokens: list[int], block_size: int, blocks_before: int) -> None:
    whole = prefix_hashes(tokens, block_size)
    split = min(blocks_before, len(whole))
    parent = whole[split - 1] if split else None
    assert prefix_hashes(tokens[split * block_size :], block_size, parent) == whole[split:]


@given(token_lists, st.integers(1, 9))
def test_a_changed_token_changes_every_later_hash(tokens: list[int], block_size: int) -> None:
    whole = prefix_hashes(tokens, block_size)
    if not whole:
        return
    changed = [(tokens[0] + 1) % (MAX_TOKEN_ID + 1), *tokens[1:]]
    assert not set(prefix_hashes(changed, block_size)) & set(whole)
