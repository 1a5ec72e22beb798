"""The file from which a starting master reads its tenants and their quotas (spec 10 §9.1).

A master that cannot read the file aborts, so nothing is rendered that it would not read: numbers are plain bytes, as it
knows no binary units, and names are always quoted, as `on`, `1e3` or `null` would not be read as names. What it does
read is rendered, however odd: tenants made by hand on a master have to find their way through here. Equal tenants give
equal bytes, whatever their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

LARGEST_QUOTA: Final = (1 << 63) - 1
"""Bytes."""

_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""ASCII's control characters, as a master sees it, and what is no character at all."""

_HEAD: Final = "version: 1\n"

EMPTY_POLICY: Final = f"{_HEAD}tenants: []\n"
"""What a master with multi-tenancy starts with when nobody has a quota yet."""


class PolicyError(Exception):
    """The tenants cannot be written down. `errors` has one sentence for each thing that is wrong."""

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(self.errors))


def render(tenants: Iterable[tuple[str, int]]) -> str:
    """The whole document for tenants and their quotas in bytes. Raises `PolicyError`."""
    listed = list(tenants)
    if errors := [*_errors(listed)]:
        raise PolicyError(errors)
    if not listed:
        return EMPTY_POLICY
    lines = (f"  - name: {_quoted(name)}\n    quota: {quota}\n" for name, quota in sorted(listed))
    return f"{_HEAD}tenants:\n{''.join(lines)}"


def errors_of(name: str, quota: int) -> Iterable[str]:
    """What is wrong with one tenant, a sentence each."""
    if not name:
        yield "a tenant has no name"
    elif name.startswith("_"):
        yield f"tenant {name!r}: a name that starts with _ is the store's own"
    if _FORBIDDEN.search(name):
        yield f"tenant {name!r}: a name has no control characters"
    if not 0 < quota <= LARGEST_QUOTA:
        yield f"tenant {name!r}: quota {quota} is not in 1..{LARGEST_QUOTA} bytes"


def _errors(tenants: Iterable[tuple[str, int]]) -> Iterable[str]:
    seen = set()
    for name, quota in tenants:
        yield from errors_of(name, quota)
        if name in seen:
            yield f"tenant {name!r} is listed twice"
        seen.add(name)


def _quoted(name: str) -> str:
    """A YAML double-quoted scalar on one line."""
    return f'"{"".join(map(_escaped, name))}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
