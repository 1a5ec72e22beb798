"""Flags as operators of Kubernetes components write them.

People deploy with command lines that Go's flag package understands, so every subcommand accepts what it does: long
names after one dash or two, `-o=yaml` as well as `-o yaml`, booleans as `--leader-elect` or `--leader-elect=false`,
durations such as `1h30m`. What is not a flag of the command is fatal (exit 2), never ignored.

The rules live in one place, the argument list is rewritten once before the parser sees it; a value is never
rewritten, even when it begins with a dash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


class GoCommand(TyperCommand):
    """A subcommand whose command line follows the rules above."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = {name: param for param in self.params if isinstance(param, TyperOption) for name in param.opts}
        # The `--no-…` twin of a boolean, and --help, are flags too: they are looked up by the name that was typed.
        twins = {
            name: param for param in self.params if isinstance(param, TyperOption) for name in param.secondary_opts
        }
        return super().parse_args(ctx, list(rewrite(args, options | twins)))


def rewrite(args: Sequence[str], options: dict[str, TyperOption]) -> Iterator[str]:
    """The same command line in the spelling of the parser underneath.

    Raises:
        typer.BadParameter: a boolean flag was given something else than a boolean.
    """
    remaining = iter(args)
    for arg in remaining:
        if arg == "--":
            yield arg
            yield from remaining
            return
        if not arg.startswith("-") or arg == "-":
            yield arg
            continue
        name, equals, value = arg.partition("=")
        option = options.get(name)
        if option is None and not name.startswith("--") and len(name) > 2:
            option = options.get(f"-{name}")
            name = f"-{name}" if option else name
        if option is None:
            yield arg
        elif option.is_flag:
            yield _boolean(option, name, value) if equals else name
        elif equals:
            yield from (name, value)
        else:
            yield name
            yield from _one(remaining)


def _one(args: Iterator[str]) -> Iterator[str]:
    for arg in args:
        yield arg
        return


def _boolean(option: TyperOption, name: str, value: str) -> str:
    if value in _TRUE:
        return name
    if value in _FALSE:
        opposites = option.secondary_opts if name in option.opts else option.opts
        if opposites:
            return opposites[0]
    raise typer.BadParameter(f"{name}={value}: needs true or false")


def duration(text: str | timedelta) -> timedelta:
    """A duration flag, in Go's grammar (`30s`, `5m`, `1h30m`). A default, which is no text, is passed through.

    Raises:
        typer.BadParameter: it is none.
    """
    if isinstance(text, timedelta):
        return text
    # Here and not above: the core of pydantic comes with it, 4 MiB that the sidecar has no use for.
    from inferencecache.api.duration import Duration

    try:
        return Duration(text).timedelta
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a duration; write it like 30s, 5m or 1h30m") from error


def bind_address(flag: str, text: str) -> tuple[str, int] | None:
    """Host and port of a flag that says where to serve; no host is all addresses, and no text is nowhere.

    Raises:
        ValueError: it is none; `flag` is named.
    """
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(f"{flag}={text}: write :8000 or 127.0.0.1:8000")
    return host.strip("[]"), int(port)
