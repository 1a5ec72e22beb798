"""Backends, pools and Bindings as they are stored: where a part cannot be read, the rest still says whom they concern.

What was stored while no webhook looked can fit the schema and still be no value: `1e101` is spelled like a quantity.
Whoever decides about *other* objects by a list must neither pass over such an object nor stop because of it. So these
kinds decode to what can be read of them, field by field, and say in `flaw` what cannot. Those who need all of one
object, as admission and injection do, take the strict kind.

A figure of the status that cannot be read is no flaw: this operator writes it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Final, Self, Union, get_args, get_origin

import msgspec
from pydantic import PrivateAttr, ValidationError

from inferencecache.api.kvcache import UsedBy
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.model import CustomObject, Model, plain

UNKNOWN_USER: Final = UsedBy(kind="unreadable", namespace="", name="status.usedBy")
"""In the place of users that cannot be read: somebody may be there."""

Complaints = dict[str, str]
"""What is wrong, by the path of the field."""


class _Stored(CustomObject):
    _flaw: str = PrivateAttr("")

    @property
    def flaw(self) -> str:
        """What of the object cannot be read, and why; empty if nothing that matters."""
        return self._flaw

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """Decode what can be decoded. Raises pydantic's `ValidationError` if not even the metadata can."""
        try:
            return super().model_validate_json(json_data, **options)
        except ValidationError as error:
            whole = _object_in(json_data)
            rest, complaints = readable(cls, whole)
            if not rest or any(path.partition(".")[0] == "metadata" for path in complaints):
                raise error from None
            found = cls.model_validate(rest)._without(complaints)
            found._flaw = "; ".join(f"{path}: {what}" for path, what in complaints.items() if cls._matters(path))
            return found

    def _without(self, complaints: Complaints) -> Self:
        """The object with stand-ins where a default would say something that nobody wrote."""
        return self

    @classmethod
    def _matters(cls, path: str) -> bool:
        return not path.startswith("status.")


class StoredBinding(_Stored, KVCachePoolBinding):
    """A Binding. One without a readable pool may be any pool's; one without readable users is used."""

    _anybodys: bool = PrivateAttr(False)

    @property
    def anybodys(self) -> bool:
        """Whether nobody can tell whose it is."""
        return self._anybodys

    def _without(self, complaints: Complaints) -> Self:
        spec, status = self.spec, self.status
        if not complaints.keys().isdisjoint({"spec", "spec.domain", "spec.domain.name"}):
            spec = spec.model_copy(update={"domain": spec.domain.model_copy(update={"name": ""})})
        if not complaints.keys().isdisjoint({"status", "status.usedBy"}):
            status = status.model_copy(update={"used_by": (UNKNOWN_USER,)})
        found = self.model_copy(update={"spec": spec, "status": status})
        found._anybodys = not complaints.keys().isdisjoint({"spec", "spec.poolRef", "spec.poolRef.name"})
        return found

    @classmethod
    def _matters(cls, path: str) -> bool:
        return super()._matters(path) or path in {"status", "status.usedBy"}


class StoredBackend(_Stored, KVCacheBackend):
    """A backend, for those who only ask where its master is; nothing may be rendered from one with a flaw."""


class StoredPool(_Stored, KVCachePool):
    """A pool. One without a readable backend is served by none."""


def readable(kind: type[Model], raw: Mapping[str, Any], at: str = "") -> tuple[dict[str, Any], Complaints]:
    """What a model can read of an object, field by field and down to the deepest, and what is wrong with the rest."""
    rest: dict[str, Any] = {}
    complaints: Complaints = {}
    for name, field in kind.model_fields.items():
        alias = field.alias or name
        if alias not in raw:
            continue
        value, path = raw[alias], f"{at}{alias}"
        try:
            kind.model_validate({alias: value})
        except ValidationError as error:
            inner = _model_in(field.annotation)
            if inner is not None and isinstance(value, dict):
                rest[alias], deeper = readable(inner, value, f"{path}.")
                complaints |= deeper
            else:
                complaints[path] = ", ".join(plain(problem["msg"]) for problem in error.errors())
        else:
            rest[alias] = value
    return rest, complaints


def _model_in(annotation: Any) -> type[Model] | None:
    """The model that a field holds, if it holds one, or one or nothing."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Model)), None)


def _object_in(data: str | bytes | bytearray) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}
