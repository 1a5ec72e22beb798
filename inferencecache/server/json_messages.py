"""Protobuf messages as JSON, and their description for OpenAPI (the proto3 JSON mapping, decision P5).

Field names are camelCase, and the names of the .proto file are taken as well. 64-bit integers are written as strings,
as they do not survive JavaScript; bytes are base64. protobuf's own parser is lenient where a caller is better told:
text that is no base64 would become an empty hash, and a list in place of an object an empty message. Those two are
refused here, as is what that parser fails at, and every refusal names the field.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeVar, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_NAMED: Final = re.compile(r"Failed to parse (\w+) field: ")

M = TypeVar("M", bound=Message)


class JsonError(ValueError):
    """JSON that is not the message. `field` is its path, empty if it is about the whole."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.message = message
        self.field = field


def load(body: bytes) -> Any:
    """The JSON value in `body`. Raises `JsonError`."""
    try:
        return json.loads(body, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, JsonError) else JsonError(f"the body is not JSON: {error}") from error


def read(value: Any, kind: type[M], path: str = "") -> M:
    """The message that a JSON value describes; `path` is where the value stands. Raises `JsonError`."""
    _check(value, _descriptor(kind), path)
    try:
        return json_format.ParseDict(value, kind())
    except json_format.ParseError as error:
        text = str(error)
        names = [path] if path else []
        while match := _NAMED.match(text):
            names.append(match[1])
            text = text[match.end() :]
        raise JsonError(text.rstrip("."), ".".join(names)) from error


def write(message: Message) -> bytes:
    """The message as JSON, with the fields that have their default value."""
    return dump(json_format.MessageToDict(message, always_print_fields_with_no_presence=True))


def dump(value: Any) -> bytes:
    """Any JSON value, without spaces."""
    return json.dumps(value, separators=(",", ":")).encode()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise JsonError("given twice", name)
            seen.add(name)
    return fields


def _no_constant(text: str) -> float:
    raise JsonError(f"{text} is not JSON")


def _check(value: Any, descriptor: Descriptor, path: str) -> None:
    """Look at the names of an object's fields and at what they hold, as far as protobuf's parser would not mind."""
    if not isinstance(value, dict):
        raise JsonError("must be an object", path)
    for name, held in value.items():
        at = f"{path}.{name}" if path else name
        field = _field(descriptor, name)
        if field is None:
            raise JsonError("there is no such field", at)
        if held is None:
            continue
        if not field.is_repeated:
            _check_value(held, field, at)
        elif not _is_map(field):
            if not isinstance(held, list):
                raise JsonError("must be a list", at)
            for number, element in enumerate(held):
                _check_value(element, field, f"{at}[{number}]")


def _check_value(value: Any, field: FieldDescriptor, path: str) -> None:
    if field.message_type is not None:
        _check(value, field.message_type, path)
    elif field.type == FieldDescriptor.TYPE_BYTES and not _is_base64(value):
        raise JsonError("must be base64", path)
    elif field.enum_type is not None and not _may_be_of_enum(value):
        raise JsonError(f"must be a name of {field.enum_type.name}, or its number", path)


def _is_base64(value: Any) -> bool:
    return isinstance(value, str) and _BASE64.fullmatch(value) is not None and len(value.rstrip("=")) % 4 != 1


def _may_be_of_enum(value: Any) -> bool:
    """Whether protobuf's parser can look it up; it would fail at an infinite number, and at a lone surrogate."""
    return value.isascii() if isinstance(value, str) else not isinstance(value, float) or value.is_integer()


def _descriptor(kind: type[Message]) -> Descriptor:
    return cast(Descriptor, kind.DESCRIPTOR)


def _field(descriptor: Descriptor, name: str) -> FieldDescriptor | None:
    if not name.isascii():
        return None  # protobuf would fail at a lone surrogate
    return descriptor.fields_by_camelcase_name.get(name) or descriptor.fields_by_name.get(name)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


# -- OpenAPI -----------------------------------------------------------------------------------------------------------

_NUMBERS: Final[dict[int, dict[str, Any]]] = {
    FieldDescriptor.CPPTYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.CPPTYPE_UINT32: {"type": "integer", "format": "int64", "minimum": 0, "maximum": 2**32 - 1},
    FieldDescriptor.CPPTYPE_INT64: {"type": "string", "format": "int64"},
    FieldDescriptor.CPPTYPE_UINT64: {"type": "string", "format": "uint64"},
    FieldDescriptor.CPPTYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.CPPTYPE_BOOL: {"type": "boolean"},
}


def reference(kind: type[Message]) -> dict[str, str]:
    """A reference to a message's schema."""
    return {"$ref": f"#/components/schemas/{kind.DESCRIPTOR.name}"}


def schemas(*kinds: type[Message]) -> dict[str, Any]:
    """The schemas of messages and of all they are made of, by name."""
    found: dict[str, Any] = {}
    for kind in kinds:
        _collect(_descriptor(kind), found)
    return found


def _collect(descriptor: Descriptor, found: dict[str, Any]) -> None:
    if descriptor.name in found:
        return
    found[descriptor.name] = schema = {"type": "object", "properties": {}, "additionalProperties": False}
    schema["properties"] = {field.camelcase_name: _schema(field, found) for field in descriptor.fields}


def _schema(field: FieldDescriptor, found: dict[str, Any]) -> dict[str, Any]:
    if _is_map(field):
        assert field.message_type is not None
        return {"type": "object", "additionalProperties": _single(field.message_type.fields_by_name["value"], found)}
    single = _single(field, found)
    return {"type": "array", "items": single} if field.is_repeated else single


def _single(field: FieldDescriptor, found: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None:
        _collect(field.message_type, found)
        return {"$ref": f"#/components/schemas/{field.message_type.name}"}
    if field.enum_type is not None:
        return {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    if field.type == FieldDescriptor.TYPE_BYTES:
        return {"type": "string", "format": "byte"}
    return dict(_NUMBERS.get(field.cpp_type, {"type": "string"}))
