"""Runs the benchmarks one after another: `python -m bench [NAME [OPTION...]]`; without a name, all of them.

Each is a module of this folder with a `main` of its own, run in a fresh process so that none warms up another.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run what was asked for; the exit status is that of the first benchmark that failed."""
    known = sorted(
        module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.name[0] != "_"
    )
    chosen, options = (sys.argv[1:2], sys.argv[2:]) if len(sys.argv) > 1 else (known, [])
    if unknown := set(chosen) - set(known):
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    for name in chosen:
        print(f"\n{name}:", file=sys.stderr)
        status = subprocess.run([sys.executable, "-m", f"bench.{name}", *options], check=False).returncode
        if status:
            return status
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
