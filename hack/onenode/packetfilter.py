"""Takes packet filter rules away again: those of programs that leave theirs behind when they end, as most do."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from typing import Final

_PROGRAMS: Final = ("iptables", "ip6tables")
_TABLES: Final = ("filter", "nat", "mangle")


def remove(names: re.Pattern[str]) -> None:
    """Remove every chain of such a name, and every rule elsewhere that jumps to one or names such an interface."""
    for program in _PROGRAMS:
        for table in _TABLES:
            command = [program, "-w", "-t", table]
            for arguments in removal(_run([*command, "-S"]).splitlines(), names):
                _run([*command, *arguments])


def removal(rules: Iterable[str], names: re.Pattern[str]) -> Iterator[list[str]]:
    """What to tell iptables, given what `iptables -S` has listed: rules go first, and chains once they are empty."""
    listed = [shlex.split(rule) for rule in rules]
    chains = [words[1] for words in listed if words[0] == "-N" and names.fullmatch(words[1])]
    for words in listed:
        if words[0] == "-A" and words[1] not in chains and any(names.fullmatch(word) for word in words[2:]):
            yield ["-D", *words[1:]]
    yield from (["-F", chain] for chain in chains)
    yield from (["-X", chain] for chain in chains)


def remove_sets(names: re.Pattern[str]) -> None:
    """Remove the sets of addresses of such a name, once no rule uses them."""
    for name in _run(["ipset", "list", "-name"]).split():
        if names.fullmatch(name):
            _run(["ipset", "destroy", name])


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
