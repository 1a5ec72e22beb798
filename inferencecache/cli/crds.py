"""`inferencecache crds`: the custom resource definitions, for `kubectl apply --server-side -f -`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from inferencecache.cli.output import Format, to_json, to_yaml_stream


def crds(
    output: Annotated[Format, typer.Option("--output", "-o", help="yaml or json.")] = Format.YAML,
) -> None:
    """Print the custom resource definitions of this version."""
    from inferencecache.api import crds as rendered

    if output is Format.DIFF:
        raise typer.BadParameter("has nothing to compare with here; use yaml or json", param_hint="--output")
    sys.stdout.write(to_json(rendered()) if output is Format.JSON else to_yaml_stream(rendered()))
