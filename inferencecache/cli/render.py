"""`inferencecache render`: what the operator would create for a CacheBackend or a KVCacheBackend, without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferencecache.cli.output import Format, to_json, to_yaml_stream
from inferencecache.cli.settings import BACKEND_IMAGE, POOL_NAMESPACE

if TYPE_CHECKING:
    from inferencecache.api.cachebackend import CacheBackend


def render(
    filename: Annotated[list[str], typer.Option("--filename", "-f", help="A YAML or JSON file; - is standard input.")],
    output: Annotated[Format, typer.Option("--output", "-o", help="yaml or json.")] = Format.YAML,
    kv_cache_namespace: Annotated[str, typer.Option(help="As the controller's flag of that name.")] = POOL_NAMESPACE,
    kv_cache_backend_image: Annotated[str, typer.Option(help="As the controller's flag of that name.")] = BACKEND_IMAGE,
) -> None:
    """Print the workload, Service and autoscaler that each CacheBackend would get, and all that makes up each store."""
    from inferencecache.api.cachebackend import CacheBackend
    from inferencecache.api.kvcachebackend import KVCacheBackend
    from inferencecache.cli.offline import fail, load_or_fail, objects_of
    from inferencecache.controllers.kvcachebackend.objects import Settings
    from inferencecache.controllers.kvcachebackend.render import render as objects_for

    if output is Format.DIFF:
        raise typer.BadParameter("has nothing to compare with here; use yaml or json", param_hint="--output")
    documents = load_or_fail(filename)
    backends, stores = objects_of(CacheBackend, documents), objects_of(KVCacheBackend, documents)
    if not (backends or stores):
        fail(f"no CacheBackend and no KVCacheBackend in {', '.join(filename)}")
    manifests = [child for backend in backends for child in _children(backend)]
    for store in stores:
        objects = objects_for(store, Settings(kv_cache_namespace, kv_cache_backend_image))
        if not objects:
            typer.echo(f"KVCacheBackend {store.metadata.name}: external, nothing is created", err=True)
        manifests += objects
    if manifests:
        sys.stdout.write(to_json(manifests) if output is Format.JSON else to_yaml_stream(manifests))


def _children(backend: CacheBackend) -> Iterator[dict[str, Any]]:
    """The children of a backend; a line on stderr if there are none."""
    from inferencecache.adapters.registry import load_adapters
    from inferencecache.cli.offline import fail
    from inferencecache.controllers.cachebackend.children import children_for
    from inferencecache.controllers.cachebackend.plan import plan_for

    name = f"CacheBackend {backend.metadata.namespace}/{backend.metadata.name}"
    plan = plan_for(backend, *load_adapters())
    if plan.broken:
        fail(f"{name} cannot be rendered: {plan.broken}")
    if plan.store is None:
        typer.echo(f"{name}: {plan.path.value}, no children ({plan.row})", err=True)
        return
    children = children_for(backend, plan.store, live_replicas=None)
    yield from (child for child in (children.workload, children.service, children.autoscaler) if child)
