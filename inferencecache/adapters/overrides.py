"""Merging `spec.integration.engineOverrides` into what was injected (spec 03 §8).

Who owns an argument or variable follows from comparing the engine container before and after injection: what the
adapter added or changed is the adapter's and may be overridden; what the Pod's owner wrote and the adapter left alone
is the owner's and is out of reach; anything else is new and appended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from inferencecache.adapters.flags import Spelling, as_written, tokens, values
from inferencecache.adapters.pods import strings
from inferencecache.adapters.registry import Container
from inferencecache.api.cachebackend import EngineOverrides

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""Reads as a flag (spec 03 §8), but engines take it for the value of the flag before it."""


def apply_overrides(
    before: Container,
    container: Container,
    overrides: EngineOverrides | None,
    *,
    spelling: Spelling = as_written,
    wired_before: bool = False,
) -> None:
    """Apply overrides to the injected `container` in place; `before` is how it looked before injection.

    Flags are compared as `spelling` gives them. `wired_before` says that this very backend wired the Pod already:
    positionals that it appended then are not appended again, and variables stay in their order (decision A3).
    """
    if overrides is None:
        return
    if overrides.suppress_args or overrides.args:
        _merge_args(before, container, overrides, spelling, wired_before)
    if overrides.suppress_env or overrides.env:
        _merge_env(before, container, overrides, wired_before)


def _merge_args(
    before: Container, container: Container, overrides: EngineOverrides, spelling: Spelling, wired_before: bool
) -> None:
    pre, args = strings(before, "args"), strings(container, "args")
    known, now = values(pre, spelling), values(args, spelling)
    ours = {flag for flag, value in now.items() if known.get(flag) != value or flag not in known}
    theirs = (set(known) | set(values(strings(container, "command"), spelling))) - ours

    for flag in map(spelling, overrides.suppress_args or ()):
        if flag in ours:
            args = _without(args, flag, spelling)
    wanted = list(overrides.args or ())
    appended_before = wired_before and _positionals_present(pre, wanted)
    bare = ""
    for token in tokens(wanted, spelling):
        slots = wanted[token.start : token.stop]
        is_value = bare not in {"", *ours} and _NEGATIVE_NUMBER.fullmatch(slots[0])
        owner = bare if is_value else token.flag
        bare = owner if len(slots) == 1 and "=" not in slots[0] else ""
        if not token.flag:
            if not appended_before:
                args += slots
        elif token.flag in ours:
            args = _replaced(args, token.flag, slots, spelling)
        elif owner not in theirs:
            args += slots
    if args or "args" in container:
        container["args"] = args


def _positionals_present(pre: list[str], wanted: list[str]) -> bool:
    # Entries are compared, not tokens: behind a flag without a value, a positional reads as that flag's value.
    there = iter(pre)
    return all(token.value in there for token in tokens(wanted) if not token.flag)


def _without(args: list[str], flag: str, spelling: Spelling) -> list[str]:
    kept: list[str] = []
    for token in tokens(args, spelling):
        if token.flag != flag:
            kept += args[token.start : token.stop]
    return kept


def _replaced(args: list[str], flag: str, slots: list[str], spelling: Spelling) -> list[str]:
    for token in tokens(args, spelling):
        if token.flag == flag:
            return [*args[: token.start], *slots, *args[token.stop :]]
    return [*args, *slots]


def _merge_env(before: Container, container: Container, overrides: EngineOverrides, wired_before: bool) -> None:
    env: list[dict[str, Any]] = list(container.get("env") or ())
    pre, now = _by_name(before.get("env") or ()), _by_name(env)
    ours = {name for name, entries in now.items() if pre.get(name) != entries}
    theirs = pre.keys() - ours

    suppressed = set(overrides.suppress_env or ()) & ours
    if wired_before:  # what is given anew went to the end then, where it stays
        suppressed -= {variable.name for variable in overrides.env or ()}
    env = [entry for entry in env if entry.get("name") not in suppressed]
    places: dict[Any, int] = {}
    for index, present in enumerate(env):
        places.setdefault(present.get("name"), index)
    for variable in overrides.env or ():
        if variable.name in theirs:
            continue
        entry = variable.manifest()
        place = places.setdefault(variable.name, len(env))
        env[place : place + 1] = [entry]
    if env or "env" in container:
        container["env"] = env


def _by_name(env: Iterable[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    """The entries of each variable; Kubernetes takes several, and the last one counts."""
    found: dict[Any, list[dict[str, Any]]] = {}
    for entry in env:
        found.setdefault(entry.get("name"), []).append(entry)
    return found
