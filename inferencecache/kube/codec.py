"""From bytes to decoded objects: one decoder per kind, chosen once.

A kind is either a msgspec struct, decoded straight from the bytes, or a class with `model_validate_json`, as pydantic
models have. A list is decoded item by item from raw slices, so that one object that does not fit its view costs that
object and not the page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeAlias

import msgspec

from inferencecache.kube.errors import DecodeError
from inferencecache.kube.resource import K, Key, Kind

Decoder: TypeAlias = Callable[[Any], K]


class _Name(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""


class _Named(msgspec.Struct, frozen=True):
    metadata: _Name = _Name()


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _RawList(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class ListPage(Generic[K]):
    """One page of a list: what could be decoded, what could not, and where the list goes on."""

    items: list[K]
    resource_version: str
    continue_token: str = ""
    broken: list[tuple[Key, DecodeError]] = field(default_factory=list)


_raw_list = msgspec.json.Decoder(_RawList)
_named = msgspec.json.Decoder(_Named)


@cache
def _decoder(kind: type[Kind]) -> Decoder[Any]:
    if issubclass(kind, msgspec.Struct):
        return msgspec.json.Decoder(kind).decode
    validate = getattr(kind, "model_validate_json", None)
    if validate is None:
        raise TypeError(f"{kind.__name__} is neither a msgspec struct nor has model_validate_json")
    return lambda data: validate(bytes(data))


def decoder_for(kind: type[K]) -> Decoder[K]:
    """A function from JSON bytes to an instance of `kind`; it raises `DecodeError` on what does not fit."""
    decode = _decoder(kind)

    def checked(data: Any) -> K:
        try:
            obj: K = decode(data)
        except ValueError as error:  # msgspec.ValidationError and pydantic.ValidationError are both ValueErrors
            raise DecodeError(f"{kind.resource.kind} {name_in(data)} does not fit its view: {error}") from error
        return obj

    return checked


def name_in(data: Any) -> Key:
    """The name of an object of which nothing but its metadata needs to be readable."""
    try:
        meta = _named.decode(data).metadata
    except msgspec.DecodeError:
        return Key("", "?")
    return Key(meta.namespace, meta.name)


def decode_list(kind: type[K], data: bytes) -> ListPage[K]:
    """Decode one page of a list; raises `DecodeError` only when the page as a whole is no list."""
    try:
        page = _raw_list.decode(data)
    except msgspec.DecodeError as error:
        raise DecodeError(f"a list of {kind.resource.plural} is not readable: {error}") from error
    decode = decoder_for(kind)
    items: list[K] = []
    broken: list[tuple[Key, DecodeError]] = []
    for raw in page.items or ():
        try:
            items.append(decode(raw))
        except DecodeError as error:
            broken.append((name_in(raw), error))
    return ListPage(items, page.metadata.resource_version, page.metadata.continue_, broken)
