"""Tracing of a process, from its flag to its last words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import typer

from inferencecache import tracing

OTLP_ENDPOINT: Final = (
    "Where traces are sent: an OTLP/HTTP collector, as http://host:4318; empty: nowhere. Takes the extra tracing."
)


@contextlib.contextmanager
def traced_process(service: str, endpoint: str) -> Iterator[None]:
    """Trace while the context lasts, if there is an endpoint; exit 1 with a sentence if that cannot be."""
    if not endpoint:
        yield
        return
    try:
        exporter = tracing.otlp_exporter(endpoint)
    except tracing.TracingUnavailable as error:
        typer.echo(f"inferencecache: {error}", err=True)
        raise typer.Exit(1) from None
    tracing.start(service, exporter)
    try:
        yield
    finally:
        tracing.stop()
