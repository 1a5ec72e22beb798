"""The reference page of the kinds: every field of every model, as its schema has it.

Two views of a field are joined: the model's annotation, which knows durations and the types of core/v1, and the node of
the rendered schema, which knows what the API server enforces. Types of core/v1 are named and not taken apart;
Kubernetes documents them.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel

from inferencecache.api import core
from inferencecache.api.duration import Duration
from inferencecache.api.kinds import KINDS
from inferencecache.api.model import Condition, CustomObject
from inferencecache.api.quantity import Quantity
from inferencecache.api.schema import object_schema
from inferencecache.cli.reference.markdown import GENERATED, code, table

_INTRODUCTION = f"""\
# API

{GENERATED}

The kinds named KVCache… are of group `worker.gpustack.ai`, version `v1`, and in the category `gpustack`; all others are
of group `inferencecache.io`, version `v1alpha1`. A field without a default is absent unless you set it. A duration is
written as `30s`, `5m` or `1h30m`, a quantity as `500m` or `8Gi`; types with a name of their own are those of a Pod. The
rules of a kind are enforced by the API server itself and say what to do about a refusal; the webhooks know them, too,
and some more. Which engines, caches and stores go together is in [support.md](support.md), what conditions and Events
mean in [the guide](../cachebackend.md#reading-the-status).
"""
_SCALARS: Final[dict[Any, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    Duration: "duration",
    Quantity: "quantity",
}


def api_page() -> str:
    """The page, in Markdown."""
    return "\n".join([_INTRODUCTION, *(_kind(kind) for kind in KINDS)])


def _kind(kind: type[CustomObject]) -> str:
    resource, schema = kind.resource, object_schema(kind)
    columns = ", ".join(column.name for column in resource.columns)
    parts = [
        f"## {resource.kind}\n",
        f"{schema['description']}\n",
        f"{'Namespaced' if resource.namespaced else 'One for the cluster'}; `kubectl get {resource.plural}` "
        f"(short: {', '.join(map(code, resource.short_names))}) shows {columns}.\n",
    ]
    for section in ("spec", "status"):
        model, node = _model_in(kind.model_fields[section].annotation), schema["properties"][section]
        rows = list(_rows(model, node, section)) if model else []
        parts.append(f"### {resource.kind}: {section}\n")
        header = ("Field", "Type", "Default", "Must be", "What it is")
        parts.append(table(header, rows) if rows else "Nothing to set.\n")
    rules = "".join(f"* {code(path or resource.kind)}: {message}\n" for path, message in _rules(schema, ""))
    return "\n".join([*parts, f"### {resource.kind}: rules\n\n{rules}"] if rules else parts)


def _rows(model: type[BaseModel], schema: dict[str, Any], path: str) -> Iterator[tuple[str, str, str, str, str]]:
    required = schema.get("required", ())
    for name, info in model.model_fields.items():
        alias = info.alias or name
        node, here = schema["properties"][alias], f"{path}.{alias}"
        default = code(json.dumps(node["default"])) if "default" in node else ""
        bounds = "; ".join(_bounds(node, alias in required))
        yield code(here), _type_name(info.annotation, node), default, bounds, node.get("description", "")
        inner = _model_in(info.annotation)
        if inner is not None and not _known_elsewhere(inner):
            is_list = node["type"] == "array"
            yield from _rows(inner, node["items"] if is_list else node, f"{here}[]" if is_list else here)


def _bounds(node: dict[str, Any], required: bool) -> Iterator[str]:
    """What the API server enforces, in words."""
    if required:
        yield "**given**"
    if "enum" in node:
        yield " or ".join(map(code, node["enum"]))
    lowest, highest = node.get("minimum"), node.get("maximum")
    if lowest is not None and highest is not None:
        yield f"{lowest} to {highest}"
    elif lowest is not None:
        yield f"at least {lowest}"
    elif highest is not None:
        yield f"at most {highest}"
    if "pattern" in node and "x-kubernetes-int-or-string" not in node:
        yield f"matching {code(node['pattern'])}"
    if node.get("minLength") or node.get("minItems"):
        yield "not empty"
    if node.get("maxProperties") == 0:
        yield "empty"
    for key in node.get("x-kubernetes-list-map-keys", ()):
        yield f"unique by {code(key)}"


def _rules(node: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """The CEL rules of a node and of all below it, with the path of the object each is about."""
    for rule in node.get("x-kubernetes-validations", ()):
        yield path, rule["message"]
    for name, child in node.get("properties", {}).items():
        yield from _rules(child, f"{path}.{name}" if path else name)
    if "items" in node:
        yield from _rules(node["items"], f"{path}[]")


def _type_name(annotation: Any, node: dict[str, Any]) -> str:
    annotation, arguments = _plain(annotation)
    if node.get("format") == "date-time":
        return "time"
    if get_origin(annotation) is tuple:
        return f"list of {_type_name(arguments[0], node['items'])}"
    if get_origin(annotation) is dict:
        return f"map of {_type_name(arguments[1], node['additionalProperties'])}"
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    return str(annotation.__name__) if _known_elsewhere(annotation) else "object"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a field, or of the items of a list."""
    annotation, arguments = _plain(annotation)
    if get_origin(annotation) is tuple:
        return _model_in(arguments[0])
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _known_elsewhere(model: type[BaseModel]) -> bool:
    """A type of Kubernetes itself, which its own documentation describes."""
    return model.__module__ == core.__name__ or issubclass(model, Condition)


def _plain(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """An annotation without its marks and without `None`, and its arguments."""
    while True:
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            annotation = arguments[0]
        elif origin in (Union, types.UnionType):
            (annotation,) = (one for one in arguments if one is not type(None))
        else:
            return annotation, arguments
