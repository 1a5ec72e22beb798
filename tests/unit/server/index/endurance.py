"""As many random operations as one likes, on the index and its model, compared after each.

    python -m tests.unit.server.index.endurance [--operations 1000000] [--seed 0]

Not part of the test run, which does some ten thousand of them. Histories of 2,000 operations follow one another, each
from an empty index, with another seed, cap and size of batches; a third of them puts off what can be put off. A failure
names the seed, with which it happens again.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from inferencecache.server.index import index, recency
from tests.unit.server.index.operations import History, compare_short_chains

STEPS = 2000
CAPACITIES = (0, 5, 12, 30, 60)
BATCHES = (1, 2, 5, 1024)
AT_ONCE = (index.QUOTA_SLICE, index.CLEARED_AT_ONCE)


def main() -> int:
    """Run until enough is done; the exit status says whether all was alike."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    done, seed = 0, options.seed
    last_told = time.monotonic()
    compare_short_chains(setattr)
    while done < options.operations:
        rng = random.Random(seed)
        recency.BATCH = rng.choice(BATCHES)  # type: ignore[misc]
        puts_off = rng.randrange(3) == 0
        index.QUOTA_SLICE, index.CLEARED_AT_ONCE = (1, 0) if puts_off else AT_ONCE  # type: ignore[misc]
        history = History(rng, 0 if puts_off else rng.choice(CAPACITIES), puts_off=puts_off)
        try:
            for _ in range(min(STEPS, options.operations - done)):
                history.step()
                done += 1
        except AssertionError:
            print(f"seed {seed} fails at operation {history.steps + 1} of its history", file=sys.stderr)
            raise
        seed += 1
        if time.monotonic() - last_told > 60:
            print(f"{done:,} operations", flush=True)
            last_told = time.monotonic()
    print(f"{done:,} operations, {seed - options.seed:,} histories: the index and its model were alike after each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
