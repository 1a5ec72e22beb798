"""`inferencecache quickstart`: watch the operator do its job on a real API server, then play with it.

What is played, because the control plane has neither a Deployment controller nor a kubelet, is announced: the
rollout of the cache server, and the engine with its sidecar. The engine computes nothing; its events, the sidecar that
reads them and the server that answers for them are real.
"""

from __future__ import annotations

from typing import Annotated

import typer


def quickstart(
    exit_: Annotated[
        bool, typer.Option("--exit/--no-exit", help="End after the tour instead of waiting for Ctrl-C.")
    ] = False,
) -> None:
    """Start an API server, the operator and the server, wire an engine Pod, and route a request to what it cached."""
    from inferencecache.cli.tour import run

    raise typer.Exit(run(stay=not exit_))
