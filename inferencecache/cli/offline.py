"""What `inject`, `render` and `validate` share: an object taken through admission as the API server would take it.

A file is not yet what reconcilers and webhooks see. The API server first drops what the schema does not know and fills
in its defaults, then the defaulting webhook has its turn, then the defaults once more; only then is the object held to
the schema and decoded. The same steps run here, by the same functions.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import typer

from inferencecache.adapters.registry import added_values, load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.defaulting import default_cache_backend
from inferencecache.api.kinds import KINDS
from inferencecache.api.model import CustomObject, DecodeError
from inferencecache.api.schema import NOTHING_ADDED, AddedValues, apply_defaults, prune
from inferencecache.api.schema_check import SchemaViolation, check_schema
from inferencecache.cli.documents import Document, DocumentError, load
from inferencecache.kube.resource import api_version

DEFAULT_NAMESPACE = "default"

T = TypeVar("T", bound=CustomObject)


@dataclass(frozen=True)
class Admitted:
    """One of our objects as it would be stored, or why it would not be.

    `violations` are those of the schema; if `object` is None it cannot even be read, so that no webhook could judge it.
    `unknown` are the fields that would be dropped.
    """

    document: Document
    kind: type[CustomObject]
    manifest: dict[str, Any]
    object: CustomObject | None
    violations: tuple[SchemaViolation, ...]
    unknown: tuple[str, ...]


def admit(document: Document) -> Admitted | None:
    """Take a document through defaulting and the schema; None if it is not of one of our kinds."""
    kind = kind_of(document)
    if kind is None:
        return None
    served = api_version(kind.resource)
    if document.manifest["apiVersion"] != served:
        message = f'Unsupported value: "{document.manifest["apiVersion"]}": supported values: "{served}"'
        return Admitted(document, kind, document.manifest, None, (SchemaViolation("apiVersion", message),), ())
    added = added_to(kind)
    given = _in_namespace(kind, document.manifest)
    manifest = apply_defaults(kind, prune(kind, given))
    violations = check_schema(kind, manifest, added=added)
    decoded: CustomObject | None = None
    if _is_sound(violations) and kind is CacheBackend:
        manifest = apply_defaults(kind, default_cache_backend(manifest))
        violations = check_schema(kind, manifest, added=added)
    if _is_sound(violations):
        try:
            decoded = kind.decode(manifest)
        except DecodeError as error:
            violations = [SchemaViolation("<object>", f"Invalid value: {error}")]
    unknown = tuple(_dropped(given, manifest, ""))
    return Admitted(document, kind, manifest, decoded, tuple(violations), unknown)


def added_to(kind: type[CustomObject]) -> AddedValues:
    """What installed plugins add to the enums of a kind."""
    return added_values(load_adapters()[0]) if kind is CacheBackend else NOTHING_ADDED


def kind_of(document: Document) -> type[CustomObject] | None:
    """The model of a document, or None if it is not of one of our kinds."""
    named = str(document.manifest["apiVersion"]).partition("/")[0], document.kind
    return next((kind for kind in KINDS if named == (kind.resource.group, kind.resource.kind)), None)


def objects_of(kind: type[T], documents: Sequence[Document]) -> list[T]:
    """The objects of a kind among the documents, admitted; ends the command if one would be refused by its schema.

    Of two of the same name the later one is there in the end, as with `kubectl apply`.
    """
    found: dict[object, T] = {}
    for document in documents:
        admitted = admit(document) if kind_of(document) is kind else None
        if admitted is None:
            continue
        if admitted.violations or not isinstance(admitted.object, kind):
            problems = "; ".join(f"{violation.field}: {violation.message}" for violation in admitted.violations)
            fail(f"{document.where} would be refused: {problems}")
        metadata = admitted.object.metadata
        found[(metadata.namespace, metadata.name) if metadata.name else id(document)] = admitted.object
    return list(found.values())


def fail(message: str) -> NoReturn:
    """End the command with exit 1 and one sentence on stderr."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1)


def load_or_fail(paths: Sequence[str]) -> list[Document]:
    """Every document of the files, or the end of the command with the reason."""
    try:
        documents = load(paths)
    except DocumentError as error:
        fail(str(error))
    if not documents:
        fail(f"no object in {', '.join(paths)}")
    return documents


def _is_sound(violations: Sequence[SchemaViolation]) -> bool:
    """Whether types and bounds are right, so that webhooks could read the object."""
    return all(violation.by_rule for violation in violations)


def _in_namespace(kind: type[CustomObject], manifest: dict[str, Any]) -> dict[str, Any]:
    placed = copy.deepcopy(manifest)
    placed["metadata"] = placed.get("metadata") or {}
    if kind.resource.namespaced and not placed["metadata"].get("namespace"):
        placed["metadata"]["namespace"] = DEFAULT_NAMESPACE
    return placed


def _dropped(given: Any, stored: Any, path: str) -> Iterator[str]:
    if isinstance(given, dict) and isinstance(stored, dict):
        for name, value in given.items():
            here = f"{path}.{name}" if path else str(name)
            if name not in stored:
                yield here
            elif here != "metadata":
                yield from _dropped(value, stored[name], here)
    elif isinstance(given, list) and isinstance(stored, list):
        for index, (before, after) in enumerate(zip(given, stored, strict=False)):
            yield from _dropped(before, after, f"{path}[{index}]")
