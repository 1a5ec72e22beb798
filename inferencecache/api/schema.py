"""CRDs from models, and what the API server does with them: defaulting and pruning, for use without a cluster.

`render_crd` walks a model: the type of a field gives its OpenAPI type, its `Schema` mark the rest, its docstring the
description that `kubectl explain` shows. `apply_defaults` and `prune` do to a manifest what the API server does when it
stores one, so that the command line shows a user the same object.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from inferencecache.api.duration import Duration
from inferencecache.api.model import CustomObject, CustomResource, Schema
from inferencecache.api.quantity import PATTERN, Quantity
from inferencecache.api.rules import INVALID, Rule

Json = dict[str, Any]
AddedValues = Mapping[str, tuple[str, ...]]
"""Values that plugins add to enums, by field path, as in `spec.runtime`."""
NOTHING_ADDED: Final[AddedValues] = {}

_API_VERSION: Final = "The versioned schema of this representation of an object."
_KIND: Final = "The REST resource this object represents."
_SCALARS: Final[dict[type, Json]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    Duration: {"type": "string"},
    Quantity: {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": PATTERN,
        "x-kubernetes-int-or-string": True,
    },
}


def render_crd(kind: type[CustomObject], added: AddedValues = NOTHING_ADDED) -> Json:
    """The CustomResourceDefinition of a kind, as a manifest; `added` are values of its enums from plugins."""
    resource: CustomResource = kind.resource
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.singular,
                "shortNames": list(resource.short_names),
                **({"categories": list(resource.categories)} if resource.categories else {}),
            },
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [
                        {
                            "name": column.name,
                            "type": column.type,
                            "jsonPath": column.json_path,
                            **({"priority": column.priority} if column.priority else {}),
                        }
                        for column in resource.columns
                    ],
                    "schema": {"openAPIV3Schema": widened(object_schema(kind), added)},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def widened(schema: Json, added: AddedValues) -> Json:
    """A copy of a schema whose enums at these paths take more values. A path that the schema lacks is passed over."""
    wider = copy.deepcopy(schema)
    for path, values in added.items():
        node: Json | None = wider
        for name in path.split("."):
            node = node.get("properties", {}).get(name) if node is not None else None
        if node is not None:
            node["enum"] = [*node.get("enum", ()), *values]
    return wider


@functools.cache
def object_schema(kind: type[CustomObject]) -> Json:
    """The structural schema of a kind's objects. Made once and shared: copy it before changing it."""
    body = _model(kind)
    properties = body["properties"]
    schema: Json = {
        "type": "object",
        "description": _first_paragraph(kind.__doc__),
        "properties": {
            "apiVersion": {"type": "string", "description": _API_VERSION},
            "kind": {"type": "string", "description": _KIND},
            "metadata": {"type": "object"},
            **{name: value for name, value in properties.items() if name != "metadata"},
        },
    }
    if kind.resource.spec_required:
        schema["required"] = ["spec"]
    return schema


def apply_defaults(kind: type[CustomObject], manifest: Mapping[str, Any]) -> Json:
    """The manifest with the schema's defaults filled in, as the API server does before it calls webhooks.

    No field is nullable, so a null counts as absent: it gives way to the default, or goes.
    """
    filled: Json = copy.deepcopy(dict(manifest))
    _fill(object_schema(kind), filled)
    return filled


def prune(kind: type[CustomObject], manifest: Mapping[str, Any]) -> Json:
    """The manifest without the fields that the schema does not know, as the API server stores it."""
    pruned: Json = copy.deepcopy(dict(manifest))
    metadata = pruned.pop("metadata", None)
    _prune(object_schema(kind), pruned)
    return {**pruned, "metadata": metadata} if metadata is not None else pruned


def dump_crd(crd: Json) -> str:
    """A CRD as stable YAML text."""
    text: str = yaml.dump(crd, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return f"# Generated from the models in inferencecache/api by `make generate`; do not edit.\n{text}"


class _Dumper(yaml.SafeDumper):
    """YAML without anchors: a reader should see each schema where it applies."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# ------------------------------------------------------------------------------------------------------- from models


def _model(model: type[BaseModel]) -> Json:
    properties: Json = {}
    required: list[str] = []
    for name, info in model.model_fields.items():
        mark = _mark(info.metadata)
        alias = info.alias or name
        properties[alias] = _field(info, mark)
        if mark.required:
            required.append(alias)
    schema: Json = {"type": "object"}
    if properties:
        schema["properties"] = properties
    if required:
        schema["required"] = sorted(required)
    if getattr(model, "atomic", False):
        schema["x-kubernetes-map-type"] = "atomic"
    return schema


def _field(info: FieldInfo, mark: Schema) -> Json:
    schema = _type(info.annotation)
    if info.description:
        schema = {"description": _first_paragraph(info.description), **schema}
    return _marked(schema, mark)


def _type(annotation: Any) -> Json:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):  # Annotated[...]
        return _marked(_type(arguments[0]), _mark(annotation.__metadata__))
    if origin in (Union, types.UnionType):
        (only,) = [argument for argument in arguments if argument is not type(None)]
        return _type(only)
    if origin is tuple:
        return {"type": "array", "items": _type(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type(arguments[1])}
    if annotation in _SCALARS:
        return dict(_SCALARS[annotation])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _model(annotation)
    raise TypeError(f"no schema for a field of type {annotation!r}")


def _mark(metadata: Iterable[Any]) -> Schema:
    """All marks of one field folded into one; later ones win where they say something."""
    told: Json = {}
    for mark in metadata:
        if isinstance(mark, Schema):
            told |= {f.name: getattr(mark, f.name) for f in fields(mark) if getattr(mark, f.name) != f.default}
    return Schema(**told)


_KEYWORDS: Final = {
    "format": "format",
    "pattern": "pattern",
    "minimum": "minimum",
    "maximum": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_items": "minItems",
    "max_items": "maxItems",
    "max_properties": "maxProperties",
    "default": "default",
}


def _marked(schema: Json, mark: Schema) -> Json:
    for attribute, keyword in _KEYWORDS.items():
        value = getattr(mark, attribute)
        if value is not None and (value != "" or attribute == "default"):
            schema[keyword] = value
    if mark.enum:
        schema["enum"] = list(mark.enum)
    if mark.list_map_keys:
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(mark.list_map_keys)}
    if mark.atomic:
        schema["x-kubernetes-list-type" if schema["type"] == "array" else "x-kubernetes-map-type"] = "atomic"
    if mark.preserve_unknown:
        schema["x-kubernetes-preserve-unknown-fields"] = True
    if mark.rules:
        schema["x-kubernetes-validations"] = [_rule(rule) for rule in mark.rules]
    return schema


def _rule(rule: Rule) -> Json:
    rendered: Json = {"rule": rule.text, "message": rule.message}
    if rule.field:
        rendered["fieldPath"] = rule.field
    if rule.reason != INVALID:
        rendered["reason"] = rule.reason
    if rule.excuse:
        rendered["optionalOldSelf"] = True
    return rendered


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())


# ------------------------------------------------------------------------------------------ what the API server does


def _fill(schema: Json, value: Any) -> None:
    if isinstance(value, dict):
        for name, child in schema.get("properties", {}).items():
            if "default" in child and value.get(name) is None:
                value[name] = copy.deepcopy(child["default"])
            elif name in value and value[name] is None:
                del value[name]
            if name in value:
                _fill(child, value[name])
        if "additionalProperties" in schema:
            for name in [name for name, item in value.items() if item is None]:
                del value[name]
            for child_value in value.values():
                _fill(schema["additionalProperties"], child_value)
    elif isinstance(value, list) and "items" in schema:
        for item in value:
            _fill(schema["items"], item)


def _prune(schema: Json, value: Any) -> None:
    if isinstance(value, dict):
        known = schema.get("properties", {})
        if "additionalProperties" in schema:
            for child in value.values():
                _prune(schema["additionalProperties"], child)
            return
        for name in list(value):
            if name in known:
                _prune(known[name], value[name])
            elif not schema.get("x-kubernetes-preserve-unknown-fields"):
                del value[name]
    elif isinstance(value, list) and "items" in schema:
        for item in value:
            _prune(schema["items"], item)
