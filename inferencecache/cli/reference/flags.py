"""The reference page of all flags, written from the command line's own declarations, so that it cannot be wrong."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperOption
from typer.main import get_command

from inferencecache.cli.reference.markdown import GENERATED, table

_INTRODUCTION = f"""\
# Flags

{GENERATED}

Long names may be written with one dash or two, values after a space or `=`, booleans as `--flag` or `--flag=false`,
durations as `30s`, `5m` or `1h30m`. A flag that is not listed is an error (exit 2, and 3 of the commands that look at a
cluster).
"""


def flags_page() -> str:
    """The page, in Markdown."""
    from inferencecache.cli.main import app

    root: Any = get_command(app)
    sections = [_section(name, command) for name, command in root.commands.items()]
    return "\n".join([_INTRODUCTION, *sections])


def _section(name: str, command: Any) -> str:
    summary = (command.help or "").strip()
    if any(isinstance(param, TyperArgument) for param in command.params):
        usage = command.collect_usage_pieces(command.context_class(command, info_name=name))
        pieces = (piece.removeprefix("{").removesuffix("}") for piece in usage)
        summary = f"`inferencecache {' '.join([name, *pieces])}`\n\n{summary}"
    options = [param for param in command.params if isinstance(param, TyperOption) and not param.hidden]
    rows = table(("Flag", "Default", "Meaning"), map(_row, options))
    return f"## inferencecache {name}\n\n{summary}\n\n{rows}"


def _row(option: TyperOption) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=lambda name: (not name.startswith("--"), name)))
    default = option.show_default if isinstance(option.show_default, str) else _value(option.default)
    if option.required:
        default = "required"
    return names, default, option.help or ""


def _value(default: Any) -> str:
    if default is None:
        return ""
    if default == "":
        return "empty"
    return f"`{str(default).lower()}`" if isinstance(default, bool) else f"`{default}`"
