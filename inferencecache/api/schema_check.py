"""Whether the API server would take an object by its schema alone: types, required fields, enums, bounds, CEL.

For use without a cluster, on the manifest as it is after defaulting and pruning. Findings are worded as the API server
words them. Like the API server, it asks the rules of `rules` only about an object whose types and bounds are right, and
does not hold against an update what the stored object had already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from inferencecache.api.model import CustomObject
from inferencecache.api.rules import ALL, FORBIDDEN, REQUIRED, Rule
from inferencecache.api.schema import NOTHING_ADDED, AddedValues, object_schema, widened

_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
}
_TYPE_NAMES: Final = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
_INTEGER_BITS: Final = {"int32": 31, "int64": 63}
_RULES: Final[dict[str, Rule]] = {rule.text: rule for rule in ALL}
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)


@dataclass(frozen=True)
class SchemaViolation:
    """One finding. `message` begins with its kind, as in `Required value: …`; `by_rule` if a rule of CEL is broken."""

    field: str
    message: str
    by_rule: bool = False


def check_schema(
    kind: type[CustomObject],
    manifest: Mapping[str, Any],
    stored: Mapping[str, Any] | None = None,
    *,
    added: AddedValues = NOTHING_ADDED,
) -> list[SchemaViolation]:
    """What the API server would hold against this object before any webhook sees it; empty if nothing.

    `stored` is the object that an update would replace; `added` are values of enums from plugins.
    """
    schema = widened(object_schema(kind), added) if added else object_schema(kind)
    properties = {name: value for name, value in schema["properties"].items() if name != "status"}
    body = {name: value for name, value in manifest.items() if name != "status"}
    found = [*_check_name(manifest), *_check({**schema, "properties": properties}, body, "")]
    if not found:
        found = list(_check_rules(schema, body, ""))
    known = check_schema(kind, stored, added=added) if found and stored is not None else ()
    return [violation for violation in found if violation not in known]


def _check_name(manifest: Mapping[str, Any]) -> Iterator[SchemaViolation]:
    metadata = manifest.get("metadata") or {}
    name = metadata.get("name") or ""
    if not name and not metadata.get("generateName"):
        yield SchemaViolation("metadata.name", "Required value: name or generateName is required")
    elif name and (not isinstance(name, str) or len(name) > 253 or not _NAME.fullmatch(name)):
        yield SchemaViolation(
            "metadata.name",
            f"Invalid value: {json.dumps(name)}: must be lower-case letters, digits, '-' and '.', "
            "begin and end with a letter or digit, and have at most 253 characters",
        )


def _check(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[SchemaViolation]:
    mistyped = _mistyped(schema, value)
    if mistyped:
        yield SchemaViolation(path or "<object>", f"Invalid value: {json.dumps(_type_of(value))}: {mistyped}")
        return
    yield from (SchemaViolation(path, message) for message in _scalar_findings(schema, value))
    if isinstance(value, dict):
        yield from _children(schema, value, path)
    elif isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield SchemaViolation(path, f"Invalid value: {len(value)}: should have at least {schema['minItems']} items")
        if len(value) > schema.get("maxItems", len(value)):
            yield SchemaViolation(path, f"Too many: {len(value)}: must have at most {schema['maxItems']} items")
        yield from _repeated(schema, value, path)
        for index, item in enumerate(value):
            yield from _check(schema.get("items", {}), item, f"{path}[{index}]")


def _check_rules(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[SchemaViolation]:
    """Every rule of a node that is broken, and those below it."""
    for rendered in schema.get("x-kubernetes-validations", ()):
        rule = _RULES[rendered["rule"]]
        if not rule.holds(value):
            kind = {REQUIRED: "Required value", FORBIDDEN: "Forbidden"}.get(rule.reason)
            kind = kind or f"Invalid value: {json.dumps(_shown(value))}"
            yield SchemaViolation((path + rule.field).removeprefix("."), f"{kind}: {rule.message}", by_rule=True)
    if isinstance(value, dict):
        for name, child in value.items():
            below = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if below and child is not None:
                yield from _check_rules(below, child, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _check_rules(schema.get("items", {}), item, f"{path}[{index}]")


def _children(schema: Mapping[str, Any], value: Mapping[str, Any], path: str) -> Iterator[SchemaViolation]:
    def below(name: str) -> str:
        return f"{path}.{name}" if path else name

    for name in schema.get("required", ()):
        if value.get(name) is None:
            yield SchemaViolation(below(name), "Required value")
    properties = schema.get("properties", {})
    for name, child in value.items():
        # The API server drops a null that the schema does not allow.
        if name in properties and child is not None:
            yield from _check(properties[name], child, below(name))
        elif "additionalProperties" in schema:
            yield from _check(schema["additionalProperties"], child, below(name))


def _mistyped(schema: Mapping[str, Any], value: Any) -> str:
    """Why the value has the wrong type; empty if it has not."""
    if schema.get("x-kubernetes-int-or-string"):
        fits = _TYPES["integer"](value) or _TYPES["string"](value)
        return "" if fits else "must be of type integer or string"
    wanted = schema.get("type")
    if wanted is None or _TYPES[wanted](value):
        return ""
    return f"must be of type {wanted}"


def _type_of(value: Any) -> str:
    return "null" if value is None else _TYPE_NAMES[type(value)]


def _scalar_findings(schema: Mapping[str, Any], value: Any) -> Iterator[str]:
    shown = json.dumps(value, ensure_ascii=False) if not isinstance(value, (dict, list)) else ""
    if "enum" in schema and value not in schema["enum"]:
        yield f"Unsupported value: {shown}: supported values: {', '.join(json.dumps(v) for v in schema['enum'])}"
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            yield f"Invalid value: {shown}: should be at least {schema['minLength']} characters long"
        if len(value) > schema.get("maxLength", len(value)):
            yield f"Too long: may not be more than {schema['maxLength']} characters"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"Invalid value: {shown}: should match '{schema['pattern']}'"
    if isinstance(value, int) and not isinstance(value, bool):
        bits = _INTEGER_BITS.get(schema.get("format", ""))
        if bits and not -(2**bits) <= value < 2**bits:
            yield f"Invalid value: {shown}: does not fit into {schema['format']}"
        if value < schema.get("minimum", value):
            yield f"Invalid value: {shown}: should be greater than or equal to {schema['minimum']}"
        if value > schema.get("maximum", value):
            yield f"Invalid value: {shown}: should be less than or equal to {schema['maximum']}"
    if isinstance(value, dict) and len(value) > schema.get("maxProperties", len(value)):
        yield f"Invalid value: {len(value)}: must have at most {schema['maxProperties']} items"


def _repeated(schema: Mapping[str, Any], value: list[Any], path: str) -> Iterator[SchemaViolation]:
    keys = schema.get("x-kubernetes-list-map-keys", ())
    seen = []
    for index, item in enumerate(value if keys else ()):
        identity = [item.get(key) for key in keys] if isinstance(item, dict) else [item]
        if identity in seen:
            yield SchemaViolation(
                f"{path}[{index}]", f"Duplicate value: {json.dumps(dict(zip(keys, identity, strict=True)))}"
            )
        seen.append(identity)


def _shown(value: Any) -> Any:
    return _type_of(value) if isinstance(value, (dict, list)) else value
