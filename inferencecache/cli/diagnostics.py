"""What the commands that look at a cluster share: how they reach it, and an exit code of their own for not having run.

A script that reads exit codes must be able to tell a finding from a command that never looked, so whatever ends these
commands before there is a result is one sentence on stderr and exit 3, a wrong flag included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from inferencecache.cli.flags import GoCommand

COULD_NOT_RUN = 3
T = TypeVar("T")

Kubeconfig = Annotated[
    str, typer.Option(help="How to reach the API server. Else $KUBECONFIG, in-cluster, then ~/.kube/config.")
]
Context = Annotated[str, typer.Option(help="Context of the kubeconfig.", show_default="the current one")]


class DiagnosticCommand(GoCommand):
    """A command line whose mistakes end with exit 3."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            said = getattr(error, "format_message", None)  # what the parser underneath has, under whichever name
            if said is None:
                raise
            end(said())


def end(message: str) -> NoReturn:
    """End the command without a result."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(COULD_NOT_RUN)


def in_cluster(kubeconfig: str, context: str, look: Callable[[Any], Awaitable[T]]) -> T:
    """What `look` makes of a client of the cluster; the end of the command if there is no way to one."""
    from inferencecache.kube.client import Client
    from inferencecache.kube.connection import ConnectionConfigError, connect

    async def looked() -> T:
        async with await connect(kubeconfig or None, context) as connection:
            return await look(Client(connection, field_manager="inferencecache-doctor"))

    try:
        return asyncio.run(looked())
    except ConnectionConfigError as error:
        end(str(error))
