"""A naive engine: what each rank has in each medium, as sets and counters that a reader can verify by eye.

It does random things, tells of them as real engines do, in either encoding, and knows what an index should say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from inferencecache.subscriber.chain import Adds, Delta
from inferencecache.subscriber.tiers import Tier
from inferencecache.wire.fingerprint import prefix_hashes
from tests.unit.wire.encodings import SHAPES, batch, cleared, map_batch, removed, stored

BLOCK_SIZE = 2
MEDIA = {"GPU": Tier.T1, "CPU": Tier.T2, "DISK": Tier.T3}
ADAPTERS = ["", "sql", "chat"]
SALTS = ["", "salt"]


class Block(NamedTuple):
    """A block by all that makes it what it is: the whole prefix, the adapter and the salt."""

    tokens: tuple[int, ...]
    adapter: str
    salt: str

    def name(self, rank: int) -> int:
        """The engine's hash, of a chain that every rank seeds differently."""
        return xxh3_64_intdigest(repr(self).encode(), rank)

    @property
    def parent(self) -> Block | None:
        rest = self.tokens[:-BLOCK_SIZE]
        return self._replace(tokens=rest) if rest else None


class Step(NamedTuple):
    """One thing the engine does, and how it tells of it."""

    action: str
    rank: int
    medium: str
    path: list[int]
    first: int
    adapter: str
    salt: str
    shape: str
    signed: bool
    digest: bool
    map_envelope: bool


STEPS = st.builds(
    Step,
    action=st.sampled_from(["store"] * 6 + ["copy", "remove", "remove", "remove", "clear", "noise"]),
    rank=st.integers(0, 1),
    medium=st.sampled_from(["GPU", "GPU", "GPU", *MEDIA]),
    path=st.lists(st.integers(0, 1), min_size=1, max_size=4),
    first=st.integers(0, 3),
    adapter=st.sampled_from(ADAPTERS),
    salt=st.sampled_from(["", "", *SALTS]),
    shape=st.sampled_from(list(SHAPES)),
    signed=st.booleans(),
    digest=st.booleans(),
    map_envelope=st.booleans(),
)


@dataclass
class Engine:
    """Announcements still good, per rank and medium; and per rank which blocks it may speak of by their names."""

    held: dict[tuple[int, str], Counter[Block]] = field(default_factory=lambda: defaultdict(Counter))
    named: dict[int, set[Block]] = field(default_factory=lambda: defaultdict(set))

    def index(self) -> dict[tuple[int, str], Tier]:
        """What the index should say of this replica: per prefix hash and adapter the fastest tier."""
        best: dict[tuple[int, str], Tier] = {}
        for (_, medium), blocks in self.held.items():
            for block in +blocks:
                if not block.salt:
                    key = (prefix_hashes(block.tokens, BLOCK_SIZE)[-1], block.adapter)
                    best[key] = min(best.get(key, Tier.T3), MEDIA[medium])
        return best

    def do(self, step: Step) -> bytes:
        """Do it, and tell of it: the payload of one message."""
        events = getattr(self, step.action)(step)
        encoded = [SHAPES[step.shape](event) for event in events]
        return map_batch(*encoded, attn_dp_rank=step.rank) if step.map_envelope else batch(*encoded, rank=step.rank)

    def blocks(self, step: Step) -> list[Block]:
        """The blocks of a prompt, from the step's first on, or from the first that continues something known."""
        tokens = [token for part in step.path for token in (part, part + 7)]
        whole = [
            Block(tuple(tokens[: end * BLOCK_SIZE]), step.adapter, step.salt) for end in range(1, len(step.path) + 1)
        ]
        first = min(step.first, len(whole) - 1)
        while first and whole[first].parent not in self.named[step.rank]:
            first -= 1
        return whole[first:]

    def store(self, step: Step) -> list[dict[str, Any]]:
        """New blocks, or old ones again; off the GPU each time counts."""
        blocks = self.blocks(step)
        held = self.held[step.rank, step.medium]
        for block in blocks:
            held[block] = 1 if step.medium == "GPU" else held[block] + 1
        self.named[step.rank].update(blocks)
        parent = blocks[0].parent
        keys = [[step.adapter] if step.adapter else [] for _ in blocks]
        fields: dict[str, Any] = {}
        if step.salt and step.shape == "map" and step.signed:
            fields["cache_salt"] = step.salt
        elif step.salt and parent is None:
            keys[0].append(step.salt)
        return [
            stored(
                [self.name(step, block) for block in blocks],
                [token for block in blocks for token in block.tokens[-BLOCK_SIZE:]],
                BLOCK_SIZE,
                parent_block_hash=parent and self.name(step, parent),
                medium=step.medium,
                lora_name=step.adapter or None,
                extra_keys=[one or None for one in keys],
                group_idx=0,
                kv_cache_spec_kind="full_attention",
                **fields,
            )
        ]

    def copy(self, step: Step) -> list[dict[str, Any]]:
        """Blocks that have a name turn up in another medium; their tokens are not told."""
        blocks = [block for block in self.blocks(step) if block in self.named[step.rank]]
        held = self.held[step.rank, step.medium]
        for block in blocks:
            held[block] = 1 if step.medium == "GPU" else held[block] + 1
        return [stored([self.name(step, block) for block in blocks], None, 0, medium=step.medium)]

    def remove(self, step: Step) -> list[dict[str, Any]]:
        """Blocks of a prompt go, held or not."""
        blocks = self.blocks(step)
        held = self.held[step.rank, step.medium]
        for block in blocks:
            held[block] = max(0, held[block] - 1)
        return [removed([self.name(step, block) for block in blocks], medium=step.medium, group_idx=0)]

    def clear(self, step: Step) -> list[dict[str, Any]]:
        """The rank loses all."""
        for medium in MEDIA:
            self.held[step.rank, medium].clear()
        self.named[step.rank].clear()
        return [cleared()]

    def noise(self, step: Step) -> list[dict[str, Any]]:
        """Things that mean nothing for the index: another group's blocks, a nameless adapter's, and rubbish."""
        blocks = self.blocks(step)
        names = [self.name(step, block) for block in blocks]
        tokens = [token for block in blocks for token in block.tokens[-BLOCK_SIZE:]]
        window = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
        return [
            stored(names, tokens, BLOCK_SIZE, medium="GPU", **window),
            removed(names, medium="GPU", group_idx=1),
            stored([12345], [1, 2], BLOCK_SIZE, lora_id=99),
            {**removed(names), "block_hashes": [None]},
        ]

    def name(self, step: Step, block: Block) -> int | bytes:
        """A block's name in one of the spellings that builds use."""
        name = block.name(step.rank)
        if step.digest:
            return b"\xaa" * 24 + name.to_bytes(8, "big")
        return name - 2**64 if step.signed and name >= 2**63 else name


def one_by_one(deltas: Iterable[Delta]) -> list[Delta]:
    """The same, with additions that are told together one by one."""
    return [each for delta in deltas for each in (delta if isinstance(delta, Adds) else (delta,))]
