"""What a container really starts, read from its command line.

Arguments are appended at the end of the command line, so whoever reads that end has to be the engine. Between
Kubernetes and the engine stand launchers that pass on what follows them (`tini`, `env`, `timeout 60`, …): they are
taken off one by one until a program is left. Some programs swallow what follows them, a shell with `-c` above all; of
others, scripts and unknown launchers, nobody can tell from outside the image.

Nothing here decides: `Launch` says what was found, and `refusals` what to make of it.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Final

from inferencecache.adapters.shells import SHELLS, read_shell


class Family(StrEnum):
    """The engines as a Pod's annotation names them."""

    VLLM = "vLLM"
    SGLANG = "SGLang"


class Start(Enum):
    """What stands at the end of the launchers."""

    ENGINE = auto()
    SHELL_TEXT = auto()
    """A shell with `-c`: what is appended becomes `$0` of its text."""
    SCRIPT = auto()
    """A file that is a shell script by its name."""
    HIDDEN = auto()
    """A command line inside one argument (`env -S`)."""
    UNKNOWN = auto()
    NOTHING = auto()
    """Launchers, and nothing behind them."""
    IMAGE_ENTRYPOINT = auto()
    """Only `args`: the image says what reads them."""
    IMAGE_COMMAND = auto()
    """Neither `command` nor `args`: appending would replace the image's arguments."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A container's command line, taken apart.

    `program` is the word that names the program, empty where there is none to read; `family` the engine it is, if it is
    one; `arguments` what follows it. `assigned` are variables that launchers set past Kubernetes, with None for those
    they take away, and `cleared` says that one of them empties the environment.
    """

    start: Start
    program: str = ""
    family: Family | None = None
    arguments: tuple[str, ...] = ()
    assigned: Mapping[str, str | None] = field(default_factory=dict)
    cleared: bool = False


MOST_LAUNCHERS: Final = 16
"""One behind the other. Another one is taken for an unknown program: nobody needs so many, and each costs a copy."""


def read_launch(command: Sequence[str], args: Sequence[str]) -> Launch:
    """Take a container's `command` and `args` apart, as Kubernetes joins them."""
    if not command:
        return Launch(Start.IMAGE_ENTRYPOINT if args else Start.IMAGE_COMMAND, arguments=tuple(args))
    words = [*command, *args]
    assigned: dict[str, str | None] = {}
    cleared = False
    taken_off = 0
    while words:
        strip = _LAUNCHERS.get(posixpath.basename(words[0]))
        taken_off += 1
        if strip is None or taken_off > MOST_LAUNCHERS:
            start, family, arguments = _recognise(words[0], words[1:])
            return Launch(start, words[0], family, tuple(arguments), assigned, cleared)
        stripped = strip(words[1:])
        assigned |= stripped.assigned
        cleared = cleared or stripped.cleared
        if stripped.hidden:
            return Launch(Start.HIDDEN, arguments=tuple(stripped.rest), assigned=assigned, cleared=cleared)
        words = stripped.rest
    return Launch(Start.NOTHING, assigned=assigned, cleared=cleared)


# ----------------------------------------------------------------------------------------------------- programs

_PYTHON: Final = re.compile(r"python(?:\d+(?:\.\d+)*)?")
_SGLANG_MODULE: Final = "sglang.launch_server"


def _recognise(program: str, rest: list[str]) -> tuple[Start, Family | None, list[str]]:
    name = posixpath.basename(program)
    if name in SHELLS:
        runs_text, operands = read_shell(rest)
        if runs_text:
            return Start.SHELL_TEXT, None, rest
        return (Start.SCRIPT if operands and operands[0].endswith(".sh") else Start.UNKNOWN), None, rest
    if name.endswith(".sh"):
        return Start.SCRIPT, None, rest
    if name == "vllm":
        return Start.ENGINE, Family.VLLM, rest
    if _PYTHON.fullmatch(name):
        module, arguments = _python_module(rest)
        if module == _SGLANG_MODULE:
            return Start.ENGINE, Family.SGLANG, arguments
    return Start.UNKNOWN, None, rest


def _python_module(words: list[str]) -> tuple[str, list[str]]:
    """The module that Python is told to run, and its arguments; empty if it runs something else."""
    index = 0
    while index < len(words) and len(words[index]) > 1 and words[index][0] == "-" != words[index][1]:
        _, option, value = _cluster(words[index][1:], "WXmc")
        index += 1
        if option and not value:
            value = words[index] if index < len(words) else ""
            index += 1
        if option == "m":
            return value, words[index:]
        if option == "c":
            break
    return "", []


# ---------------------------------------------------------------------------------------------------- launchers


@dataclass(frozen=True, slots=True)
class _Stripped:
    """What a launcher leaves: the rest of the command line, and what it did to the environment.

    `hidden` says that the rest stood inside one argument.
    """

    rest: list[str]
    assigned: Mapping[str, str | None] = field(default_factory=dict)
    cleared: bool = False
    hidden: bool = False


def _tini(words: list[str]) -> _Stripped:
    return _Stripped(_options(words, short="pe")[1])


def _dumb_init(words: list[str]) -> _Stripped:
    return _Stripped(_options(words, short="r", long={"rewrite": True})[1])


def _multicall(words: list[str]) -> _Stripped:
    return _Stripped(words)


def _timeout(words: list[str]) -> _Stripped:
    _, rest = _options(words, short="ks", long={"kill-after": True, "signal": True})
    return _Stripped(rest[1:])


_ENV_OPTIONS: Final = {
    "ignore-environment": False,
    "null": False,
    "unset": True,
    "chdir": True,
    "split-string": True,
    "argv0": True,
    "block-signal": False,
    "default-signal": False,
    "ignore-signal": False,
    "list-signal-handling": False,
    "debug": False,
}
_SPLIT: Final = ("S", "split-string")
_MOST_SPLITS: Final = 4
_LONGEST_SPLIT: Final = 32 << 10
"""Characters. Taking an argument apart takes the square of its longest word."""


def _env(words: list[str], splits: int = _MOST_SPLITS) -> _Stripped:
    options, rest = _options(words, short="uCSa", long=_ENV_OPTIONS, last=_SPLIT)
    cleared = any(name in ("i", "ignore-environment") for name, _ in options)
    changed: dict[str, str | None] = {value: None for name, value in options if name in ("u", "unset")}
    if splits and options and options[-1][0] in _SPLIT:
        # The words of its value are read in its place, options of env included.
        inner = _env([*_split(options[-1][1]), *rest], splits - 1)
        return _Stripped(inner.rest, {**changed, **inner.assigned}, cleared or inner.cleared, hidden=True)
    if rest and rest[0] == "-":  # an old spelling of -i
        cleared, rest = True, rest[1:]
    assignments = _assignments(rest)
    return _Stripped(rest[len(assignments) :], changed | dict(assignments), cleared)


_LAUNCHERS: Final[Mapping[str, Callable[[list[str]], _Stripped]]] = {
    "env": _env,
    "tini": _tini,
    "dumb-init": _dumb_init,
    "busybox": _multicall,
    "toybox": _multicall,
    "timeout": _timeout,
}


def _assignments(words: Sequence[str]) -> list[tuple[str, str]]:
    """The `NAME=value` words at the front."""
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            break
        found.append((name, value))
    return found


def _split(text: str) -> list[str]:
    """The words of a command line inside one argument; roughly, where it is too long or its quotes do not close."""
    if len(text) > _LONGEST_SPLIT:
        return text.split()
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _options(
    words: list[str], *, short: str, long: Mapping[str, bool] | None = None, last: Sequence[str] = ()
) -> tuple[list[tuple[str, str]], list[str]]:
    """A launcher's own options, as getopt reads them up to the first word that is none, and the words after them.

    `short` are the letters that take a value, `long` the known long names and whether they do. Long names may be
    shortened as far as they stay unique. Reading ends behind an option of `last`, too.
    """
    found: list[tuple[str, str]] = []
    index = 0
    while index < len(words) and not (found and found[-1][0] in last):
        word = words[index]
        if word == "--":
            return found, words[index + 1 :]
        if not word.startswith("-") or word == "-":
            break
        index += 1
        follows = words[index] if index < len(words) else ""
        if word.startswith("--"):
            given, equals, value = word[2:].partition("=")
            name = _whole_name(given, long or {})
            if (long or {}).get(name, False) and not equals:
                value, index = follows, index + 1
            found.append((name, value))
            continue
        letters, letter, attached = _cluster(word[1:], short)
        found.extend((flag, "") for flag in letters)
        if letter:
            found.append((letter, attached or follows))
            index += not attached
    return found, words[index:]


def _cluster(letters: str, takes_value: str) -> tuple[str, str, str]:
    """Letters of one word: flags, then at most one option with a value, then what of the value is attached."""
    for index, letter in enumerate(letters):
        if letter in takes_value:
            return letters[:index], letter, letters[index + 1 :]
    return letters, "", ""


def _whole_name(given: str, names: Mapping[str, bool]) -> str:
    if given in names:
        return given
    fitting = [name for name in names if name.startswith(given)]
    return fitting[0] if len(fitting) == 1 else given
