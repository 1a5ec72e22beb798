"""Where equal novel prompts go: the same replica each time, so that the second one finds what the first left behind.

The pick depends on the prompt and on the set of replicas only. It is a plain modulo, so it moves when the set changes;
whatever a replica holds by then is found by a prefix match anyway, and affinity is asked only after that failed.
Gateways may compute it themselves, hence its bytes are frozen (spec 06 §6.8, vectors in spec 07 §5).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

_LENGTH_BYTES = 4


def seed(chain: Sequence[bytes], exact: bytes) -> bytes:
    """What stands for the prompt: its whole chain, each hash behind its length in 4 big-endian bytes, else `exact`."""
    if not chain:
        return exact
    lengths = set(map(len, chain))
    if len(lengths) == 1:
        # All hashes of one scheme have one width: one join instead of a piece per block.
        prefix = lengths.pop().to_bytes(_LENGTH_BYTES, "big")
        return prefix + prefix.join(chain)
    return b"".join(len(block).to_bytes(_LENGTH_BYTES, "big") + block for block in chain)


def pick(seed: bytes, replicas: Sequence[str]) -> str | None:
    """The replica for this seed; None without a seed or without replicas.

    Args:
        seed: see `seed`.
        replicas: the replica ids that serve the scope, in ascending order.
    """
    return pick_by_digest(hashlib.sha256(seed).digest(), replicas) if seed else None


def digest(pieces: Iterable[Sequence[bytes]]) -> bytes:
    """What `pick_by_digest` takes for a chain that is given in `pieces`, none of them empty."""
    sha256 = hashlib.sha256()
    for piece in pieces:
        sha256.update(seed(piece, b""))
    return sha256.digest()


def pick_by_digest(digest: bytes, replicas: Sequence[str]) -> str | None:
    """As `pick`, by the SHA-256 of the seed."""
    return replicas[int.from_bytes(digest[:8], "big") % len(replicas)] if replicas else None
