"""Which flag an engine reads in a word, as its own parser would.

Both engines parse with argparse, which takes a flag by any prefix that only one of its flags has. vLLM's parser also
reads `_` as `-`, and a flag with a dotted suffix (`--kv-transfer-config.kv_role`) as a part of the flag's JSON value.
The lists of all flags belong to the engines and grow with them, so uniqueness is judged among the flags that matter
here. Where an engine has further flags of that prefix it does not start at all, and that is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferencecache.adapters.flags import dashes, flag_of


def flag_read(word: str, known: Sequence[str], *, loosely: bool) -> str | None:
    """The flag of `known` that a word gives, with or without `=value`; None if it is none of them.

    `loosely` is vLLM's way: `_` and dotted suffixes count, too.
    """
    given = flag_of(word)
    if not given.startswith("--") or given == "--":
        return None
    if loosely:
        given = dashes(given.partition(".")[0])
    if given in known:
        return given
    fitting = [flag for flag in known if flag.startswith(given)]
    return fitting[0] if len(fitting) == 1 else None


def flags_read(words: Iterable[str], known: Sequence[str], *, loosely: bool) -> dict[str, str]:
    """The flags of `known` that the words give, each with the word that gives it first."""
    found: dict[str, str] = {}
    for word in words:
        flag = flag_read(word, known, loosely=loosely)
        if flag is not None:
            found.setdefault(flag, word)
    return found


def value_of(words: Sequence[str], flag: str, known: Sequence[str], *, loosely: bool) -> str | None:
    """The value of a flag, the last one where it is given several times; None where it is not given."""
    value = None
    for index, word in enumerate(words):
        if flag_read(word, known, loosely=loosely) == flag:
            _, equals, attached = word.partition("=")
            value = attached if equals else "".join(words[index + 1 : index + 2])
    return value
