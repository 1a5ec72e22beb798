"""The content fingerprint: index keys derived from token ids alone (spec 07).

An engine's own block hashes are seeded per process, so nobody else can compute them. Producers, the server and gateways
therefore key a block by what it holds: tokens are cut into blocks from position 0, each block has a *content hash*, and
a chain of *prefix hashes* folds every block into the one before it. Prefix hash `i` names the whole prefix up to block
`i`, which is what makes a leading run of equal hashes mean a shared prefix.

The construction is frozen: everybody who speaks to the index must agree on it byte for byte. Tenant, model, hash scheme
and adapter are not part of it; they select the partition of the index instead.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from xxhash import xxh3_64_intdigest

SEED = 1337
MAX_TOKEN_ID = 2**32 - 1

_pack_link = struct.Struct("<QQ").pack


def content_hash(tokens: Sequence[int]) -> int:
    """The hash of one block's tokens, whatever came before them.

    Raises:
        ValueError: a token id is no unsigned 32-bit integer.
    """
    return xxh3_64_intdigest(_encoded(tokens), SEED)


def prefix_hashes(tokens: Sequence[int], block_size: int, parent: int | None = None) -> list[int]:
    """The prefix hash of every full block of `tokens`, in order; a trailing partial block has none.

    Args:
        tokens: token ids, each an unsigned 32-bit integer.
        block_size: tokens per block; with zero or less there are no blocks.
        parent: the prefix hash these tokens continue. A parent of value 0 is a parent: it is not the same as None.

    Raises:
        ValueError: a token id is no unsigned 32-bit integer.
    """
    if block_size <= 0:
        return []
    encoded = _encoded(tokens)
    stride = block_size * 4
    hashes: list[int] = []
    for (block,) in _cutter(stride)(encoded[: len(encoded) // stride * stride]):
        content = xxh3_64_intdigest(block, SEED)
        parent = content if parent is None else xxh3_64_intdigest(_pack_link(parent, content), SEED)
        hashes.append(parent)
    return hashes


key: Callable[[int], bytes] = struct.Struct(">Q").pack
"""A prefix hash as it travels: 8 bytes, big-endian (inside the construction integers are little-endian)."""


def chain(tokens: Sequence[int], block_size: int) -> tuple[list[bytes], list[int]]:
    """What a lookup sends for these tokens: the keys of all full blocks, and the token count of each.

    Raises:
        ValueError: a token id is no unsigned 32-bit integer.
    """
    keys = [key(prefix_hash) for prefix_hash in prefix_hashes(tokens, block_size)]
    return keys, [block_size] * len(keys)


def _encoded(tokens: Sequence[int]) -> bytes:
    try:
        return _packer(len(tokens))(*tokens)
    except (struct.error, TypeError) as error:
        raise ValueError(f"token ids must be integers from 0 to {MAX_TOKEN_ID}: {error}") from error


@lru_cache(maxsize=64)
def _packer(tokens: int) -> Callable[..., bytes]:
    """Packs so many tokens; an engine's events have few different numbers of them."""
    return struct.Struct(f"<{tokens}I").pack


@lru_cache(maxsize=64)
def _cutter(size: int) -> Callable[[bytes], Iterator[tuple[bytes]]]:
    """Cuts bytes into pieces of one size."""
    return struct.Struct(f"{size}s").iter_unpack
