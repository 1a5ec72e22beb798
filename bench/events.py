"""How fast engine events become changes of the index, and what following an engine costs in memory.

    python -m bench.events [--rounds 40] [--churn 500000] [--alive 100000]

Rates are per CPU second of one process, the best of all rounds, the sides in turns. A batch has 32 events, a block 16
tokens; the yardstick is msgspec's untyped decode of the same bytes, and for the chain two bare dicts that do nothing
else than roll prefixes. The last table is of a fresh process that follows an engine which stores and removes `--churn`
blocks with `--alive` of them held; the goal of 80 MiB for the whole sidecar is for `--churn 10000000`.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from msgspec import msgpack
from xxhash import xxh3_64_intdigest

from inferencecache.subscriber.chain import Add, Chain
from inferencecache.subscriber.tiers import Tier
from inferencecache.wire.events import BlockStored, EventDecoder
from inferencecache.wire.fingerprint import prefix_hashes

BLOCK_SIZE: Final = 16
EVENTS: Final = 32
PROMPT: Final = 64
"""Blocks of a prompt: so often a chain begins anew."""


class Engine:
    """Makes batches as vLLM sends them, of random tokens of a vocabulary of 150,000."""

    def __init__(self, *, blocks_per_event: int, maps: bool = False, digests: bool = False) -> None:
        self._random = random.Random(7)
        self._blocks = blocks_per_event
        self._maps = maps
        self._digests = digests
        self._number = 0

    def batches(self, count: int) -> list[bytes]:
        """So many messages of `EVENTS` events."""
        return [msgpack.encode([1.5, [self._event() for _ in range(EVENTS)], 0]) for _ in range(count)]

    def _event(self) -> Any:
        first, self._number = self._number, self._number + self._blocks
        fields = {
            "block_hashes": [self._name(number) for number in range(first, self._number)],
            "parent_block_hash": None if first % PROMPT == 0 else self._name(first - 1),
            "token_ids": [self._random.randrange(150_000) for _ in range(self._blocks * BLOCK_SIZE)],
            "block_size": BLOCK_SIZE,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None] * self._blocks,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        return {"type": "BlockStored", **fields} if self._maps else ["BlockStored", *fields.values(), None]

    def _name(self, number: int) -> int | bytes:
        return bytes(24) + name(number).to_bytes(8, "big") if self._digests else name(number)


def name(number: int) -> int:
    """A block's hash."""
    return xxh3_64_intdigest(number.to_bytes(8, "little"))


def follow(batches: list[bytes]) -> None:
    """The sidecar's way."""
    decode, chain = EventDecoder().decode, Chain()
    for payload in batches:
        chain.apply(decode(payload).events)


def roll(batches: list[bytes]) -> None:
    """The least that could be done: no media, adapters, salts, groups, ranks or memory limit."""
    decode = EventDecoder().decode
    known: dict[int | None, tuple[int | None, int]] = {None: (None, 0)}
    holds: dict[int, int] = {}
    for payload in batches:
        adds = []
        for event in decode(payload).events:
            if isinstance(event, BlockStored):
                prefix, tokens = known[event.parent_block_hash]
                prefixes = prefix_hashes(event.token_ids or (), event.block_size, prefix)
                for block_hash, prefix in zip(event.block_hashes, prefixes, strict=True):
                    tokens += event.block_size
                    known[block_hash] = prefix, tokens
                    holds[prefix] = holds.get(prefix, 0) + 1
                    adds.append(Add(prefix, tokens, "", Tier.T1))


def decode_all(decode: Callable[[bytes], Any], batches: list[bytes]) -> None:
    """Only that."""
    for payload in batches:
        decode(payload)


def best_rates(sides: dict[str, tuple[Callable[[], None], int]], rounds: int) -> dict[str, float]:
    """Things per CPU second of each side, which does so many of them a round."""
    best = dict.fromkeys(sides, 0.0)
    gc.collect()
    gc.freeze()
    for _ in range(rounds):
        for side, (work, things) in sides.items():
            started = time.process_time()
            work()
            best[side] = max(best[side], things / (time.process_time() - started))
    gc.unfreeze()
    return best


def compare_decoding(rounds: int) -> None:
    """Print the decoder's rates beside msgspec's."""
    print("| decode, events per CPU second | this decoder | msgspec, untyped | ratio | goal |")
    print("|---|---:|---:|---:|---:|")
    for what, options in {"arrays": {}, "maps": {"maps": True}, "arrays, raw digests": {"digests": True}}.items():
        batches = Engine(blocks_per_event=1, **options).batches(300)
        events = len(batches) * EVENTS
        untyped, ours = msgpack.Decoder().decode, EventDecoder().decode
        rates = best_rates(
            {
                "ours": (lambda: decode_all(ours, batches), events),  # noqa: B023 - called before the loop goes on
                "untyped": (lambda: decode_all(untyped, batches), events),  # noqa: B023
            },
            rounds,
        )
        goal = "" if "digests" in options else "≥ 800k"
        print(
            f"| {what} | {rates['ours'] / 1e3:.0f}k | {rates['untyped'] / 1e3:.0f}k "
            f"| {rates['ours'] / rates['untyped']:.2f}× | {goal} |"
        )


def compare_following(rounds: int) -> None:
    """Print what the chain adds to the decoder."""
    print("\n| decode and chain, per CPU second | blocks | events | bare dicts, blocks | ratio |")
    print("|---|---:|---:|---:|---:|")
    for blocks_per_event in (1, 32):
        batches = Engine(blocks_per_event=blocks_per_event).batches(2000 // blocks_per_event)
        blocks = len(batches) * EVENTS * blocks_per_event
        rates = best_rates(
            {
                "ours": (lambda: follow(batches), blocks),  # noqa: B023 - called before the loop goes on
                "dicts": (lambda: roll(batches), blocks),  # noqa: B023
            },
            rounds,
        )
        print(
            f"| new blocks, {blocks_per_event} an event | {rates['ours'] / 1e3:.0f}k "
            f"| {rates['ours'] / blocks_per_event / 1e3:.1f}k | {rates['dicts'] / 1e3:.0f}k "
            f"| {rates['ours'] / rates['dicts']:.2f}× |"
        )


def churn(blocks: int, alive: int) -> tuple[float, float, float, int, float]:
    """Store and remove; MiB of the process before, with `alive` blocks and at the end; entries kept; seconds of CPU."""
    decode, chain = EventDecoder().decode, Chain()
    numbers = random.Random(7)
    full = before = memory_mib()
    started = time.process_time()
    for first in range(0, blocks, PROMPT):
        names = [name(number) for number in range(first, first + PROMPT)]
        tokens = [numbers.randrange(150_000) for _ in range(PROMPT * BLOCK_SIZE)]
        events: list[Any] = [["BlockStored", names, None, tokens, BLOCK_SIZE, None, "GPU"]]
        if first >= alive:
            old = [name(number) for number in range(first - alive, first - alive + PROMPT)]
            events.insert(0, ["BlockRemoved", old, "GPU"])
        elif first + PROMPT >= alive:
            full = memory_mib()
        chain.apply(decode(msgpack.encode([1.5, events, 0])).events)
    return before, full, memory_mib(), chain.entries, time.process_time() - started


def memory_mib() -> float:
    """Resident memory of this process."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def report_churn(blocks: int, alive: int) -> None:
    """Print the churn of a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        before, full, after, entries, seconds = pool.submit(churn, blocks, alive).result()
    print(f"\n| {blocks:,} blocks stored and removed, {alive:,} alive | |\n|---|---:|")
    print(f"| memory of the process before, MiB | {before:.1f} |")
    print(f"| grown by, with all of them stored once, MiB | {full - before:.1f} |")
    print(f"| grown by, at the end, MiB | {after - before:.1f} |")
    print(f"| entries kept: blocks, holds and removed blocks remembered | {entries:,} |")
    print(f"| CPU, making the batches included, µs per block | {seconds / blocks * 1e6:.1f} |")


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description="engine events to changes of the index")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--churn", type=int, default=500_000)
    parser.add_argument("--alive", type=int, default=100_000)
    options = parser.parse_args()
    compare_decoding(options.rounds)
    compare_following(options.rounds)
    report_churn(options.churn, options.alive)


if __name__ == "__main__":
    main()
