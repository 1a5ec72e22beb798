"""`inferencecache quickstart`: watch the operator do its job on a real API server, then play with it.

One thing is played, because the control plane has no Deployment controller, and it is announced: the rollout of the
cache server. Nor is there a kubelet, so Pods stay Pending.
"""

from __future__ import annotations

from typing import Annotated

import typer


def quickstart(
    exit_: Annotated[
        bool, typer.Option("--exit/--no-exit", help="End after the tour instead of waiting for Ctrl-C.")
    ] = False,
) -> None:
    """Start an API server and the operator, apply a CacheBackend, create an engine Pod, and show what happened."""
    from inferencecache.cli.tour import run

    raise typer.Exit(run(stay=not exit_))
