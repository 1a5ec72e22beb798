"""`inferencecache crds`: the custom resource definitions, for `kubectl apply --server-side -f -`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from inferencecache.cli.output import Format, to_json, to_yaml_stream


def crds(
    output: Annotated[Format, typer.Option("--output", "-o", help="yaml or json.")] = Format.YAML,
) -> None:
    """Print the custom resource definitions of this version, and of the plugins installed with it."""
    from inferencecache.adapters.registry import added_values, load_adapters
    from inferencecache.api.kinds import crds as rendered

    if output is Format.DIFF:
        raise typer.BadParameter("has nothing to compare with here; use yaml or json", param_hint="--output")
    manifests = rendered(added_values(load_adapters()[0]))
    sys.stdout.write(to_json(manifests) if output is Format.JSON else to_yaml_stream(manifests))
