"""`inferencecache inject`: each Pod as the webhooks would admit it, without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from inferencecache.cli.output import Format, to_json, to_yaml_stream, unified_diff
from inferencecache.cli.settings import POOL_NAMESPACE


def inject(
    filename: Annotated[
        list[str],
        typer.Option("--filename", "-f", help="A file with Pods, and with what they use; - is standard input."),
    ],
    output: Annotated[Format, typer.Option("--output", "-o", help="yaml, json or diff.")] = Format.YAML,
    kvevent_subscriber_image: Annotated[
        str, typer.Option(help="As the controller's flag of that name; empty: no sidecar.")
    ] = "",
    policy_server_grpc_address: Annotated[
        str, typer.Option(help="As the controller's flag of that name.", show_default="the controller's default")
    ] = "",
    kv_cache_namespace: Annotated[
        str, typer.Option(help="As the controller's flag of that name: where stores run.")
    ] = POOL_NAMESPACE,
    kv_cache_dtype_owned: Annotated[
        bool,
        typer.Option("--kv-cache-dtype-owned/--no-kv-cache-dtype-owned", help="As the controller's flag of that name."),
    ] = True,
) -> None:
    """Print each Pod with its cache, or what would change in it; stderr says what was decided and why.

    A Pod is wired to the CacheBackend that selects it, or given the KV cache pool that its label asks for, from the
    KVCachePoolBinding, KVCachePool and KVCacheBackend in the files.
    """
    from inferencecache.adapters.registry import Settings, load_adapters
    from inferencecache.api.cachebackend import CacheBackend
    from inferencecache.cli.offline import DEFAULT_NAMESPACE, fail, load_or_fail, objects_of
    from inferencecache.cli.offline_pools import chains, on_pool
    from inferencecache.controllers.cachebackend.published import as_published
    from inferencecache.webhooks import injection, kvcache_injection
    from inferencecache.webhooks.pods import UnreadablePod, view_of

    documents = load_or_fail(filename)
    runtimes, storage = load_adapters()
    chain_of = chains(documents, kv_cache_namespace)
    backends = []
    for declared in objects_of(CacheBackend, documents):
        backend, why = on_pool(as_published(declared, runtimes, storage), chain_of)
        if why:
            typer.echo(f"CacheBackend {backend.metadata.namespace}/{backend.metadata.name}: {why}", err=True)
        backends.append(backend)
    pods = [document for document in documents if (document.manifest["apiVersion"], document.kind) == ("v1", "Pod")]
    if not pods:
        fail(f"no Pod in {', '.join(filename)}")
    settings = Settings(kvevent_subscriber_image, policy_server_grpc_address)
    results, refused = [], False
    for document in pods:
        admitted = document.manifest
        try:
            view = view_of(admitted)
        except UnreadablePod as error:
            fail(f"{document.where}: {error}")
        namespace = view.metadata.namespace or DEFAULT_NAMESPACE
        if kvcache_injection.wants_pool(view.metadata.labels):
            annotations = view.metadata.annotations
            wanted, _ = kvcache_injection.read_request(annotations)
            chain = chain_of(namespace, wanted.binding)
            try:
                given = kvcache_injection.inject(
                    admitted, annotations, namespace, chain, dtype_owned=kv_cache_dtype_owned
                )
            except kvcache_injection.Refused as error:
                refused = True
                for violation in error.violations:
                    typer.echo(f"{document.where} is refused: {violation.field}: {violation.message}", err=True)
                continue
            admitted = given.pod
            typer.echo(f"{document.where}: given the pool of Binding {namespace}/{wanted.binding}", err=True)
            for warning in given.warnings:
                typer.echo(f"{document.where}: warning: {warning}", err=True)
        done = injection.inject(admitted, view_of(admitted), namespace, backends, runtimes, settings)
        decided = f"{done.outcome.value} to {done.backend}" if done.outcome is injection.Outcome.WIRED else done.message
        typer.echo(f"{document.where}: {decided or done.outcome.value}", err=True)
        results.append((document.manifest, done.pod))
    sys.stdout.write(_shown(results, output))
    if refused:
        raise typer.Exit(1)


def _shown(results: Sequence[tuple[dict[str, Any], dict[str, Any]]], output: Format) -> str:
    if output is Format.DIFF:
        diffs = (unified_diff(before, after, _name(after)) for before, after in results)
        return "".join(f"{diff}\n" for diff in diffs if diff)
    if not results:
        return ""
    admitted = [after for _, after in results]
    return to_json(admitted) if output is Format.JSON else to_yaml_stream(admitted)


def _name(pod: dict[str, Any]) -> str:
    metadata = pod.get("metadata") or {}
    return f"pod/{metadata.get('name') or metadata.get('generateName') or ''}"
