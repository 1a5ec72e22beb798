"""`inferencecache render`: the children the operator would create for a CacheBackend, without a cluster."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from inferencecache.cli.output import Format, to_json, to_yaml_stream


def render(
    filename: Annotated[list[str], typer.Option("--filename", "-f", help="A YAML or JSON file; - is standard input.")],
    output: Annotated[Format, typer.Option("--output", "-o", help="yaml or json.")] = Format.YAML,
) -> None:
    """Print the workload, Service and autoscaler that each CacheBackend would get."""
    from inferencecache.adapters.registry import load_adapters
    from inferencecache.cli.offline import backends_of, fail, load_or_fail
    from inferencecache.controllers.cachebackend.children import children_for
    from inferencecache.controllers.cachebackend.plan import plan_for

    if output is Format.DIFF:
        raise typer.BadParameter("has nothing to compare with here; use yaml or json", param_hint="--output")
    backends = backends_of(load_or_fail(filename))
    if not backends:
        fail(f"no CacheBackend in {', '.join(filename)}")
    manifests = []
    for backend in backends:
        name = f"CacheBackend {backend.metadata.namespace}/{backend.metadata.name}"
        plan = plan_for(backend, *load_adapters())
        if plan.broken:
            fail(f"{name} cannot be rendered: {plan.broken}")
        if plan.store is None:
            typer.echo(f"{name}: {plan.path.value}, no children ({plan.row})", err=True)
            continue
        children = children_for(backend, plan.store, live_replicas=None)
        manifests += [child for child in (children.workload, children.service, children.autoscaler) if child]
    if manifests:
        sys.stdout.write(to_json(manifests) if output is Format.JSON else to_yaml_stream(manifests))
