"""Reading and writing command-line flags in argument lists, as the engines' own parsers would read them.

One parser serves admission and injection (spec 03 §8). A flag is an entry that starts with `-`; its value is what
follows the first `=`, or else the next entry if that does not start with `-`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Spelling = Callable[[str], str]


def as_written(flag: str) -> str:
    """The spelling of engines that take flags literally."""
    return flag


def dashes(flag: str) -> str:
    """The spelling of engines that take `_` and `-` in flags as the same (vLLM)."""
    return flag.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Token:
    """One flag with its value, or one positional entry (empty `flag`); `start` and `stop` are its slots."""

    flag: str
    value: str
    start: int
    stop: int


def flag_of(entry: str) -> str:
    """The flag an entry starts with, or an empty string for a value or positional."""
    return entry.split("=", 1)[0] if entry.startswith("-") else ""


def tokens(args: Sequence[str], spelling: Spelling = as_written) -> list[Token]:
    """Split an argument list into flags with their values and positionals."""
    found: list[Token] = []
    index = 0
    while index < len(args):
        entry = args[index]
        if not entry.startswith("-"):
            found.append(Token("", entry, index, index + 1))
        elif "=" in entry:
            flag, value = entry.split("=", 1)
            found.append(Token(spelling(flag), value, index, index + 1))
        elif index + 1 < len(args) and not args[index + 1].startswith("-"):
            found.append(Token(spelling(entry), args[index + 1], index, index + 2))
        else:
            found.append(Token(spelling(entry), "", index, index + 1))
        index = found[-1].stop
    return found


def values(args: Sequence[str], spelling: Spelling = as_written) -> dict[str, str]:
    """The value of each flag; of a repeated flag, the last."""
    return {token.flag: token.value for token in tokens(args, spelling) if token.flag}


def has_flag(args: Sequence[str], flag: str, spelling: Spelling = as_written) -> bool:
    """Whether a flag is given, in either form."""
    return any(spelling(flag_of(entry)) == flag for entry in args)


def set_pair(args: list[str], flag: str, value: str, spelling: Spelling = as_written) -> bool:
    """Give the first occurrence of a flag this value, as two entries in place; false if it does not occur.

    A value slot is overwritten whatever it holds (spec 04 §3), except that a following flag, as `tokens` sees one, is
    kept and the value goes before it: read in two ways, `-1` would come and go with every admission.
    """
    for index, entry in enumerate(args):
        if spelling(flag_of(entry)) != flag:
            continue
        if "=" in entry:
            args[index : index + 1] = [flag, value]
        elif index + 1 < len(args) and not flag_of(args[index + 1]):
            args[index + 1] = value
        else:
            args[index + 1 : index + 1] = [value]
        return True
    return False
