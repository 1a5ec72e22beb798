"""The console script `inferencecache`, also installed as `kubectl-inferencecache`, so that `kubectl inferencecache …`
works.
"""

from __future__ import annotations

import logging

import typer

from inferencecache import build
from inferencecache.cli.controller import controller
from inferencecache.cli.crds import crds
from inferencecache.cli.diagnostics import DiagnosticCommand
from inferencecache.cli.doctor import doctor
from inferencecache.cli.explain import explain
from inferencecache.cli.fakeengine import kvevent_fake_engine
from inferencecache.cli.flags import GoCommand
from inferencecache.cli.inject import inject
from inferencecache.cli.pool import pool
from inferencecache.cli.quickstart import quickstart
from inferencecache.cli.render import render
from inferencecache.cli.server import server
from inferencecache.cli.subscriber import kvevent_subscriber
from inferencecache.cli.validate import validate

app = typer.Typer(
    name="inferencecache",
    help="KV-cache offload and cache-aware routing for LLM inference engines, as a Kubernetes API.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_DATA_PLANE = (server, kvevent_subscriber, kvevent_fake_engine)
for command in (controller, *_DATA_PLANE, crds, inject, render, validate, quickstart):
    app.command(cls=GoCommand)(command)
app.command(cls=DiagnosticCommand)(doctor)
app.command(cls=DiagnosticCommand)(explain)
app.command(cls=DiagnosticCommand)(pool)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(build.version())
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and the commit."
    ),
) -> None:
    from inferencecache.cli.logs import Encoder, set_up

    set_up(Encoder.CONSOLE, level=logging.WARNING)  # to stderr: what a command prints belongs to whoever reads it


def main() -> None:
    """Run the command line and end the process with its exit code."""
    app()
