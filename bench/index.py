"""The prefix index against bare dicts, at 100,000 and 1,000,000 holds.

    python -m bench.index [--rounds 7] [--sizes 100000,1000000]

All figures are CPU time of one thread, medians over rounds; hashes are 8 random bytes, as fingerprints are:

* lookups of a chain that eight replicas hold, one over and over and many in turn (memory then decides), beside eight
  bare dicts of the same size walked by `list(map(get, chain))`;
* ingest, beside one bare dict of hashes that is filled by the same batches;
* what concerns one hold or report (evict, refresh, a new key at the cap), at both sizes: the ratio is the figure;
* the longest single step of a sweep and of a dump, a snapshot, and removing a whole replica;
* memory per hold in a fresh process, over one that has the index imported and empty.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from inferencecache.server.index import Holds, PrefixIndex, Query, Report, Scope, Stats
from inferencecache.server.services import SETTLE_SLICE

SECOND: Final = 1_000_000
NOW_US: Final = 1_700_000_000 * SECOND
SCOPE: Final = Scope("team", "model", "vllm")
REPLICAS: Final = 8
MEMORY_BATCHES: Final = ((8, 1000), (8, 64), (8, 4), (32, 1000))


class Rules:
    """One policy for all: half an hour, LRU, no quota at first."""

    quota: int | None = None

    def ttl_us(self, tenant: str) -> int:
        return 1800 * SECOND

    def is_lfu(self, tenant: str) -> bool:
        return False

    def max_entries(self, tenant: str) -> int | None:
        return self.quota


def hashes(number: int, width: int = 8) -> list[bytes]:
    """So many random hashes."""
    data = os.urandom(number * width)
    return [data[at : at + width] for at in range(0, len(data), width)]


def report(replica: str, blocks: Sequence[bytes], at_us: int) -> Report:
    """A report of the leading blocks of a prompt."""
    counts = range(16, 16 * len(blocks) + 16, 16)
    return Report(replica, *SCOPE, at_us, (Holds("", 1, blocks, counts),), None)


def reports(number: int, batch: int, width: int = 8, replica: str = "replica-0") -> Iterator[Report]:
    """So many new holds, a batch per report, a millisecond apart, up to now."""
    for start in range(0, number, batch):
        yield report(replica, hashes(min(batch, number - start), width), NOW_US - (number - start) // batch * 1000)


def question(chain: Sequence[bytes]) -> Query:
    """What a gateway asks that knows a prompt's blocks."""
    return Query(SCOPE, "", chain, [16] * len(chain), b"", 0)


def cpu(action: Callable[[], object], times: int, rounds: int) -> float:
    """Microseconds of CPU that one call takes: the median round of `rounds`, each of `times` calls."""
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(times):
            action()
        taken.append((time.process_time() - start) / times)
    return statistics.median(taken) * 1e6


def each(actions: Sequence[Callable[[], object]]) -> list[float]:
    """Milliseconds of CPU of each step; what was made before has been looked at by the garbage collector."""
    gc.collect()
    taken = []
    for action in actions:
        start = time.process_time()
        action()
        taken.append((time.process_time() - start) * 1e3)
    return taken


def lookups(size: int, rounds: int) -> None:
    """Chains that all replicas hold, among others; reported in the order in which they are asked for, and in others."""
    rng = random.Random(size)
    index = PrefixIndex(Rules(), capacity=0)
    bare: list[dict[bytes, int]] = []
    kinds = [(blocks, in_order) for blocks in (64, 512) for in_order in (True, False)]
    chains = {kind: [hashes(kind[0]) for _ in range(20)] for kind in kinds}
    for number in range(REPLICAS):
        lane: dict[bytes, int] = {}
        for filler in reports(size // REPLICAS, 64, replica=f"replica-{number}"):
            index.ingest(filler, NOW_US)
            lane.update(dict.fromkeys(filler.holds[0].hashes, NOW_US))
        for (_, in_order), chain in ((kind, chain) for kind in kinds for chain in chains[kind]):
            copied = [bytes(bytearray(block)) for block in chain]
            if not in_order:
                rng.shuffle(copied)
            index.ingest(report(f"replica-{number}", copied, NOW_US - number * SECOND), NOW_US)
            lane.update(dict.fromkeys(copied, NOW_US))
        bare.append(lane)

    def match(asked: Sequence[Sequence[bytes]]) -> None:
        for chain in asked:
            index.match(question(chain), NOW_US)

    def walk(asked: Sequence[Sequence[bytes]]) -> None:
        for chain in asked:
            for lane in bare:
                list(map(lane.get, chain))

    for (blocks, in_order), of_kind in chains.items():
        rng.shuffle(of_kind)
        # A request brings its own bytes, whose hashes nobody has computed yet.
        asked = [[bytes(bytearray(block)) for block in chain] for chain in of_kind]
        stored = "stored in order" if in_order else "stored in another order"

        for which, some in (("one chain", asked[:1] * len(asked)), ("many chains", asked)):
            ours, theirs = [], []
            for _ in range(rounds):
                theirs.append(cpu(partial(walk, some), 5, 1) / len(some))
                ours.append(cpu(partial(match, some), 5, 1) / len(some))
            mine, other = statistics.median(ours), statistics.median(theirs)
            name = f"{which} of {blocks}, {stored}, {size:,} holds"
            print(f"| {name} | {mine:.1f} µs | {other:.1f} µs | {mine / other:.2f}× |")


def ingests(size: int, batch: int, rounds: int) -> None:
    """New blocks, in reports of a batch each."""
    ours, theirs = [], []
    for _ in range(rounds):
        incoming = list(reports(size, batch))
        bare: dict[bytes, int] = {}
        start = time.process_time()
        for one in incoming:
            bare.update(dict.fromkeys(one.holds[0].hashes, one.timestamp_us))
        theirs.append(time.process_time() - start)
        index = PrefixIndex(Rules(), capacity=0)
        start = time.process_time()
        for one in incoming:
            index.ingest(one, NOW_US)
        ours.append(time.process_time() - start)
    mine, other = size / statistics.median(ours), size / statistics.median(theirs)
    print(
        f"| {size:,} blocks, {batch} per report | {mine / 1e3:,.0f}k/s | {other / 1e3:,.0f}k/s | {other / mine:.1f}× |"
    )


def singles(size: int, rounds: int) -> dict[str, float]:
    """Microseconds of what concerns one hold, in a full index with all of its holds in one lane."""
    index = PrefixIndex(Rules(), capacity=size)
    held: list[bytes] = []
    for one in reports(size, 64):
        index.ingest(one, NOW_US)
        held += one.holds[0].hashes
    later = count(NOW_US + 1)
    index.ingest(report("replica-0", hashes(64), next(later)), NOW_US)
    bare = dict.fromkeys(held, NOW_US)

    def evict(known: Iterator[bytes]) -> Callable[[], object]:
        where = {"tenant": SCOPE.tenant, "model": SCOPE.model, "replica_id": "replica-0", "adapter_id": ""}
        return lambda: index.evict(**where, prefix_hash=next(known))

    times = 1000
    sample = held[size // 2 : size // 2 + 4 * times * rounds]
    random.Random(0).shuffle(sample)
    known, popped = iter(sample), iter(sample)

    def ingest(blocks: Callable[[], list[bytes]]) -> Callable[[], object]:
        return lambda: index.ingest(report("replica-0", blocks(), next(later)), NOW_US)

    fresh = iter(hashes(times * rounds * 70))
    missing = iter(hashes(times * rounds))
    return {
        "new key at the cap": cpu(ingest(lambda: [next(fresh)]), times, rounds),
        "update of 64 new blocks at the cap": cpu(ingest(lambda: [next(fresh) for _ in range(64)]), times, rounds),
        "refresh of one key": cpu(ingest(lambda: [next(known)]), times, rounds),
        "eviction event": cpu(evict(known), times, rounds),
        "eviction event that matches nothing": cpu(evict(missing), times, rounds),
        "(a bare dict, for what memory does: pop of a key)": cpu(lambda: bare.pop(next(popped)), times, rounds),
    }


def steps(size: int) -> dict[str, float]:
    """The longest single step, in milliseconds, of what goes through everything."""

    def filled(at_one_instant: bool = False) -> PrefixIndex:
        index = PrefixIndex(Rules(), capacity=size)
        for number in range(REPLICAS):
            for one in reports(size // REPLICAS, 64, replica=f"replica-{number}"):
                index.ingest(one._replace(timestamp_us=NOW_US) if at_one_instant else one, NOW_US)
            index.ingest(Report(f"replica-{number}", *SCOPE, NOW_US, (), Stats(0, 0.5, 0.5)), NOW_US)
        return index

    index = filled()
    snapshot = max(each([lambda: next(index.snapshot(), None)] * 5))
    pages = index.dump()
    dump = max(each([lambda: next(pages)] * (size // 64)))
    clear = each([lambda: index.clear(tenant=SCOPE.tenant, model=SCOPE.model, replica_id="replica-0")])[0]
    settle = max(settled(index))
    end_us = NOW_US + 3600 * SECOND + size * 1000
    turns = index.sweep(end_us, 1000)
    sweep = max(each([lambda: next(turns, None)] * (size // 1000)))
    collection = min(each([gc.collect] * 3))
    quota = first_quota(size)
    index = filled(at_one_instant=True)
    late = report("replica-0", hashes(1), NOW_US + 1)
    first_eviction = each([lambda: index.ingest(late, NOW_US)])[0]
    return {
        "snapshot": snapshot,
        "full garbage collection": collection,
        "step of a dump": dump,
        "step of a sweep (1,000 holds)": sweep,
        "first eviction when all were seen at one instant": first_eviction,
        "ALL_CLEARED of a replica with an eighth of the holds": clear,
        "step of freeing it": settle,
        "report, or step after it, that brings 8 replicas of the same keys to half": quota,
    }


def settled(index: PrefixIndex) -> Iterator[float]:
    """Milliseconds of each step in which `index` does what it has put off, as large as the server's."""
    while index.unsettled:
        start = time.process_time()
        index.settle(SETTLE_SLICE)
        yield (time.process_time() - start) * 1e3


def first_quota(size: int) -> float:
    """The longest step, in milliseconds, of bringing a tenant to half of what it has."""
    rules = Rules()
    index = PrefixIndex(rules, capacity=0)
    for one in reports(size // REPLICAS, 64):
        for number in range(REPLICAS):
            index.ingest(one._replace(replica_id=f"replica-{number}"), NOW_US)
    rules.quota = size // REPLICAS // 2
    return max(*each([lambda: index.ingest(report("replica-0", hashes(64), NOW_US), NOW_US)]), *settled(index))


def resident() -> int:
    """Bytes of memory this process has now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def memory(size: int, width: int, batch: int, answer: multiprocessing.SimpleQueue[float]) -> None:
    """Bytes per hold; runs in a process of its own."""
    index = PrefixIndex(Rules(), capacity=0)
    gc.collect()
    before = resident()
    for one in reports(size, batch, width):
        index.ingest(one, NOW_US)
    gc.collect()
    answer.put((resident() - before) / size)


def memories(size: int) -> None:
    """Bytes per hold, by width of hash and size of report."""
    spawn = multiprocessing.get_context("spawn")
    for width, batch in MEMORY_BATCHES:
        answer = spawn.SimpleQueue()
        process = spawn.Process(target=memory, args=(size, width, batch, answer))
        process.start()
        process.join()
        print(f"| {size:,} holds of one replica, {width}-byte hashes, {batch} per report | {answer.get():.0f} B |")


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", default="100000,1000000")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]

    print("| lookup | index | bare dicts | ratio |\n|---|---:|---:|---:|")
    for size in sizes:
        lookups(size, options.rounds)
    print("\n| ingest | index | bare dict | ratio |\n|---|---:|---:|---:|")
    for size in sizes:
        for batch in (1000, 64):
            ingests(size, batch, 3)
    print("\n| one at a time | " + " | ".join(f"{size:,} holds" for size in sizes) + " | ratio |")
    print("|---|" + "---:|" * (len(sizes) + 1))
    columns = [singles(size, options.rounds) for size in sizes]
    for name, first in columns[0].items():
        figures = " | ".join(f"{column[name]:.1f} µs" for column in columns)
        print(f"| {name} | {figures} | {columns[-1][name] / first:.2f}× |")
    print(f"\n| longest step at {sizes[-1]:,} holds | |\n|---|---:|")
    for name, longest in steps(sizes[-1]).items():
        print(f"| {name} | {longest:.2f} ms |")
    print("\n| memory | per hold |\n|---|---:|")
    memories(sizes[-1])


if __name__ == "__main__":
    main()
