"""`inferencecache pool`: the domains of KV cache pools, their ceilings, grants, usage and holds, with bars."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from inferencecache.cli.diagnostics import Context, Kubeconfig, end, in_cluster
from inferencecache.cli.flags import duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from inferencecache.doctor.pool_view import PoolView
    from inferencecache.kube.client import Client

_WIDTH: Final = 20
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


class PoolOutput(StrEnum):
    """What `-o` accepts."""

    HUMAN = "human"
    JSON = "json"


def pool(
    names: Annotated[list[str] | None, typer.Argument(metavar="POOL", show_default="every pool")] = None,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    output: Annotated[PoolOutput, typer.Option("--output", "-o", help="human or json.")] = PoolOutput.HUMAN,
    watch: Annotated[
        bool, typer.Option("--watch/--no-watch", "-w", help="Show it again and again, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        timedelta,
        typer.Option(parser=duration, metavar="DURATION", show_default="2s", help="Between two looks with --watch."),
    ] = timedelta(seconds=2),
) -> None:
    """Show who holds how much of a KV cache pool."""
    if watch and interval <= timedelta(0):
        end("--interval must be more than zero")
    if watch and output is PoolOutput.JSON:
        end("--watch shows tables; leave out -o json")
    try:
        in_cluster(kubeconfig, context, lambda client: _shown(client, tuple(names or ()), output, watch, interval))
    except _Unseen as why:
        end(str(why))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


class _Unseen(Exception):
    """The pools that are asked for cannot be shown."""


async def _shown(client: Client, names: tuple[str, ...], output: PoolOutput, watch: bool, interval: timedelta) -> None:
    if output is PoolOutput.JSON:
        views = [view.as_json() for view in await _views(client, names)]
        sys.stdout.write(json.dumps({"pools": views}, indent=2, ensure_ascii=False) + "\n")
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console()
    shown = together(await _views(client, names))
    if not watch:
        console.print(shown)
        return
    with Live(shown, console=console, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(interval.total_seconds())
            try:
                shown = together(await _views(client, names))
            except _Unseen as why:
                live.update(Group(shown, Text(f"not up to date: {why}", style="red")), refresh=True)
            else:
                live.update(shown, refresh=True)


async def _views(client: Client, names: tuple[str, ...]) -> list[PoolView]:
    from inferencecache.api.kvcachepool import KVCachePool
    from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
    from inferencecache.doctor.pool_view import pool_view
    from inferencecache.doctor.reading import read_all

    async with asyncio.TaskGroup() as group:
        reading_pools = group.create_task(read_all(client, KVCachePool))
        reading_bindings = group.create_task(read_all(client, KVCachePoolBinding))
    pools, bindings = reading_pools.result(), reading_bindings.result()
    if failure := pools.failure or bindings.failure:
        raise _Unseen(failure)
    known = {one.metadata.name: one for one in pools.items}
    missing = [name for name in names if name not in known]
    if missing:
        raise _Unseen(f"there is no KVCachePool {', '.join(missing)}; there are: {', '.join(sorted(known)) or 'none'}")
    return [pool_view(known[name], bindings.items) for name in names or sorted(known)]


def together(views: Sequence[PoolView]) -> RenderableType:
    """The pools one below the other, or that there are none."""
    from rich.console import Group
    from rich.text import Text

    return Group(*map(drawn, views)) if views else Text("there is no KVCachePool", style="dim")


def drawn(view: PoolView) -> RenderableType:
    """One pool as a table with a headline."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble((view.name, "bold"), f"  {view.phase or 'not observed yet'}")
    head.append(f"  {view.usage or '?'} of {view.total} used  {bar(view.fill)}")
    if view.endpoint:
        head.append(f"  {view.endpoint}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("DOMAIN", "BINDING", "CEILING", "GRANT", "USAGE", "USED", "PHASE", "USED BY", "NOTE"):
        table.add_column(column, overflow="fold")
    for row in view.rows:
        users = ", ".join(row.used_by) or "-"
        cells: tuple[Any, ...] = (row.domain, row.binding, row.ceiling, row.grant, row.usage, bar(row.fill), row.phase)
        table.add_row(*(Text(cell or "-") for cell in (*cells, users, row.note)))
    parts: list[Any] = [head]
    if view.note:
        parts.append(Text(view.note, style="yellow"))
    return Group(*parts, table if view.rows else Text("no Binding draws on it", style="dim"), Text(""))


def bar(fill: float | None) -> str:
    """A share of one as a bar and a percentage; past one, the bar is full and the number tells."""
    if fill is None:
        return ""
    eighths = round(min(fill, 1.0) * _WIDTH * 8)
    full, rest = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[rest] if rest else "")
    return f"{drawn:·<{_WIDTH}} {fill:.0%}"
