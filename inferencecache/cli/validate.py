"""`inferencecache validate`: what admission would hold against an object, without a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from inferencecache.api.model import CustomObject

T = TypeVar("T", bound="CustomObject")


def validate(
    filename: Annotated[list[str], typer.Option("--filename", "-f", help="A YAML or JSON file; - is standard input.")],
    old: Annotated[
        list[str] | None,
        typer.Option("--old", help="The objects as they are stored: judge an update, not a creation."),
    ] = None,
) -> None:
    """Judge custom resources as admission would: one line per violation, path: Kind: message; exit 1 if any."""
    from inferencecache.cli.offline import Admitted, admit, fail, load_or_fail

    documents = load_or_fail(filename)
    admitted = [one for document in documents if (one := admit(document)) is not None]
    if not admitted:
        fail(f"no custom resource of this product in {', '.join(filename)}")
    stored = {_identity(one): one for document in load_or_fail(old or []) if (one := admit(document))} if old else {}

    def judged(one: Admitted) -> bool:
        lines, warnings = _judge(one, stored.get(_identity(one)), admitted)
        if len(documents) > 1 and (lines or warnings):
            typer.echo(f"{one.document.where}:", err=True)
        for warning in warnings:
            typer.echo(f"warning: {warning}", err=True)
        for line in lines:
            typer.echo(line)
        return not lines

    refused = [one for one in admitted if not judged(one)]
    if refused:
        raise typer.Exit(1)


def _identity(one: Any) -> tuple[str, str, str]:
    metadata = one.manifest["metadata"]
    return one.kind.resource.kind, metadata.get("namespace") or "", metadata.get("name") or ""


def _judge(one: Any, stored: Any, all_admitted: Sequence[Any]) -> tuple[list[str], list[str]]:
    """The violations and the warnings of one object, as lines."""
    from inferencecache.adapters.registry import load_adapters
    from inferencecache.api import (
        CacheBackend,
        CachePolicy,
        CacheTenant,
        KVCacheBackend,
        KVCachePool,
        KVCachePoolBinding,
    )
    from inferencecache.api.schema_check import check_schema
    from inferencecache.cli.offline import added_to
    from inferencecache.webhooks.validation import (
        Verdict,
        validate_cache_backend,
        validate_cache_policy,
        validate_cache_tenant,
    )
    from inferencecache.webhooks.validation.kvcachebackend import validate_kv_cache_backend
    from inferencecache.webhooks.validation.kvcachepool import validate_kv_cache_pool
    from inferencecache.webhooks.validation.kvcachepoolbinding import (
        Claim,
        Neighbourhood,
        validate_kv_cache_pool_binding,
    )

    warnings = [f'unknown field "{path}" is dropped' for path in one.unknown]
    if one.object is None:
        # The API server does not ask webhooks about an object that its schema refuses. Where only rules of the schema
        # are broken, which the webhooks know as well and say more about, the user is told all at once.
        return [f"{violation.field}: {violation.message}" for violation in one.violations], warnings

    def others(kind: type[T]) -> list[T]:
        return [other for other in everywhere(kind) if other.metadata.namespace == one.object.metadata.namespace]

    def everywhere(kind: type[T]) -> list[T]:
        return [other.object for other in all_admitted if other is not one and isinstance(other.object, kind)]

    before = stored.object if stored is not None else None
    match one.object:
        case CacheBackend():
            verdict = validate_cache_backend(
                one.object, before, runtimes=load_adapters()[0], neighbours=others(CacheBackend)
            )
        case CachePolicy():
            verdict = validate_cache_policy(one.object, before, siblings=others(CachePolicy))
        case CacheTenant():
            verdict = validate_cache_tenant(one.object, before, siblings=others(CacheTenant))
        case KVCacheBackend():
            verdict = validate_kv_cache_backend(one.object, before)
        case KVCachePool():
            named = {backend.metadata.name: backend for backend in everywhere(KVCacheBackend)}
            backend = next((named[name] for name in one.object.spec.backends[:1] if name in named), None)
            verdict = validate_kv_cache_pool(one.object, before, backend=backend, looked=False)
        case KVCachePoolBinding():
            around = Neighbourhood(
                pools={pool.metadata.name: pool for pool in everywhere(KVCachePool)},
                backends={backend.metadata.name: backend for backend in everywhere(KVCacheBackend)},
                claims=tuple(map(Claim.of, everywhere(KVCachePoolBinding))),
                complete=False,
            )
            verdict = validate_kv_cache_pool_binding(one.object, before, dtype_owned=True, around=around)
        case _:
            verdict = Verdict()
    told = {found.field for found in verdict.violations}
    before_it = stored.manifest if stored is not None else None
    rules = check_schema(one.kind, one.manifest, before_it, added=added_to(one.kind))
    lines = [f"{found.field}: {found.message}" for found in verdict.violations]
    lines += [f"{found.field}: {found.message}" for found in rules if found.field not in told]
    return lines, [*warnings, *verdict.warnings]
