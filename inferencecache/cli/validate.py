"""`inferencecache validate`: what admission would hold against an object, without a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from inferencecache.api.model import CustomObject
    from inferencecache.cli.offline import Admitted
    from inferencecache.webhooks.validation import Verdict

T = TypeVar("T", bound="CustomObject")


def validate(
    filename: Annotated[list[str], typer.Option("--filename", "-f", help="A YAML or JSON file; - is standard input.")],
    old: Annotated[
        list[str] | None,
        typer.Option("--old", help="The objects as they are stored: judge an update, not a creation."),
    ] = None,
) -> None:
    """Judge custom resources as admission would: one line per violation, path: Kind: message; exit 1 if any."""
    from inferencecache.cli.offline import admit, fail, load_or_fail

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


def _identity(one: Admitted) -> tuple[str, str, str]:
    metadata = one.manifest.get("metadata") or {}
    return one.kind.resource.kind, str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def _judge(one: Admitted, stored: Admitted | None, admitted: Sequence[Admitted]) -> tuple[list[str], list[str]]:
    """The violations and the warnings of one object, as lines."""
    from inferencecache.api.schema_check import check_schema
    from inferencecache.cli.offline import added_to

    warnings = [f'unknown field "{path}" is dropped' for path in one.unknown]
    if one.object is None:
        # The API server does not ask webhooks about an object that its schema refuses. Where only rules of the schema
        # are broken, which the webhooks know as well and say more about, the user is told all at once.
        return [f"{violation.field}: {violation.message}" for violation in one.violations], warnings
    others = [other.object for other in admitted if other is not one and other.object is not None]
    verdict = _verdict(one.object, stored.object if stored is not None else None, others)
    told = {found.field for found in verdict.violations}
    before = stored.manifest if stored is not None else None
    rules = check_schema(one.kind, one.manifest, before, added=added_to(one.kind))
    lines = [f"{found.field}: {found.message}" for found in verdict.violations]
    lines += [f"{found.field}: {found.message}" for found in rules if found.field not in told]
    return lines, [*warnings, *verdict.warnings]


def _verdict(obj: CustomObject, old: Any, others: Sequence[CustomObject]) -> Verdict:
    """What the webhook of the object's kind says, with the other documents for a cluster."""
    from inferencecache.adapters.registry import load_adapters
    from inferencecache.api.cachebackend import CacheBackend
    from inferencecache.api.cachepolicy import CachePolicy
    from inferencecache.api.cachetenant import CacheTenant
    from inferencecache.api.kvcachebackend import KVCacheBackend
    from inferencecache.api.kvcachepool import KVCachePool
    from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
    from inferencecache.webhooks import validation
    from inferencecache.webhooks.validation import kvcachebackend, kvcachepool, kvcachepoolbinding

    def everywhere(kind: type[T]) -> list[T]:
        return [other for other in others if isinstance(other, kind)]

    def beside(kind: type[T]) -> list[T]:
        return [other for other in everywhere(kind) if other.metadata.namespace == obj.metadata.namespace]

    def named(kind: type[T]) -> dict[str, T]:
        return {other.metadata.name: other for other in everywhere(kind)}

    match obj:
        case CacheBackend():
            runtimes, _ = load_adapters()
            return validation.validate_cache_backend(obj, old, runtimes=runtimes, neighbours=beside(CacheBackend))
        case CachePolicy():
            return validation.validate_cache_policy(obj, old, siblings=beside(CachePolicy))
        case CacheTenant():
            return validation.validate_cache_tenant(obj, old, siblings=beside(CacheTenant))
        case KVCacheBackend():
            return kvcachebackend.validate_kv_cache_backend(obj, old)
        case KVCachePool():
            backend = named(KVCacheBackend).get(obj.backend or "")
            return kvcachepool.validate_kv_cache_pool(obj, old, backend=backend, looked=False)
        case KVCachePoolBinding():
            around = kvcachepoolbinding.Neighbourhood(
                pools=named(KVCachePool),
                backends=named(KVCacheBackend),
                claims=tuple(map(kvcachepoolbinding.Claim.of, everywhere(KVCachePoolBinding))),
                complete=False,
            )
            return kvcachepoolbinding.validate_kv_cache_pool_binding(obj, old, dtype_owned=True, around=around)
    return validation.Verdict()
