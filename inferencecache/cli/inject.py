"""`inferencecache inject`: each Pod as the webhook would admit it, without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from inferencecache.cli.output import Format, to_json, to_yaml_stream, unified_diff


def inject(
    filename: Annotated[
        list[str],
        typer.Option("--filename", "-f", help="A file with CacheBackends, Pods or both; - is standard input."),
    ],
    output: Annotated[Format, typer.Option("--output", "-o", help="yaml, json or diff.")] = Format.YAML,
    kvevent_subscriber_image: Annotated[
        str, typer.Option(help="As the controller's flag of that name; empty: no sidecar.")
    ] = "",
    policy_server_grpc_address: Annotated[
        str, typer.Option(help="As the controller's flag of that name.", show_default="the controller's default")
    ] = "",
) -> None:
    """Print each Pod wired to its CacheBackend, or what would change in it; stderr says what was decided and why."""
    from inferencecache.adapters.registry import Settings, load_adapters
    from inferencecache.cli.offline import DEFAULT_NAMESPACE, backends_of, fail, load_or_fail
    from inferencecache.controllers.cachebackend.published import as_published
    from inferencecache.webhooks import injection
    from inferencecache.webhooks.pods import UnreadablePod, view_of

    documents = load_or_fail(filename)
    runtimes, storage = load_adapters()
    backends = [as_published(backend, runtimes, storage) for backend in backends_of(documents)]
    pods = [document for document in documents if (document.manifest["apiVersion"], document.kind) == ("v1", "Pod")]
    if not pods:
        fail(f"no Pod in {', '.join(filename)}")
    settings = Settings(kvevent_subscriber_image, policy_server_grpc_address)
    results = []
    for document in pods:
        try:
            view = view_of(document.manifest)
        except UnreadablePod as error:
            fail(f"{document.where}: {error}")
        namespace = view.metadata.namespace or DEFAULT_NAMESPACE
        done = injection.inject(document.manifest, view, namespace, backends, runtimes, settings)
        decided = f"{done.outcome.value} to {done.backend}" if done.outcome is injection.Outcome.WIRED else done.message
        typer.echo(f"{document.where}: {decided or done.outcome.value}", err=True)
        results.append((document.manifest, done.pod))
    sys.stdout.write(_shown(results, output))


def _shown(results: Sequence[tuple[dict[str, Any], dict[str, Any]]], output: Format) -> str:
    if output is Format.YAML:
        return to_yaml_stream([after for _, after in results])
    if output is Format.JSON:
        return to_json([after for _, after in results])
    diffs = (unified_diff(before, after, _name(after)) for before, after in results)
    return "".join(f"{diff}\n" for diff in diffs if diff)


def _name(pod: dict[str, Any]) -> str:
    metadata = pod.get("metadata") or {}
    return f"pod/{metadata.get('name') or metadata.get('generateName') or ''}"
