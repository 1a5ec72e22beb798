"""The base of all models, and the marks that turn a model into a CRD schema.

A model decodes leniently where rules may change (enums are plain text, bounds are not enforced) and strictly where Go's
JSON decoding would refuse as well (text where a number is needed). JSON `null` counts as absent. What the API server
enforces is written next to each field as a `Schema` mark; `schema.py` turns marks into OpenAPI.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Self, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from inferencecache.api.constants import GROUP, VERSION
from inferencecache.api.rules import Rule


@dataclass(frozen=True, slots=True)
class Schema:
    """What a CRD says about a field beyond its type; only what is given is rendered."""

    required: bool = False
    default: Any = None
    enum: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    pattern: str = ""
    format: str = ""
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    max_properties: int | None = None
    list_map_keys: tuple[str, ...] = ()
    atomic: bool = False
    preserve_unknown: bool = False
    rules: tuple[Rule, ...] = ()


Text: TypeAlias = StrictStr
Flag: TypeAlias = StrictBool
Int32: TypeAlias = Annotated[StrictInt, Field(ge=-(2**31), le=2**31 - 1), Schema(format="int32")]
Int64: TypeAlias = Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1), Schema(format="int64")]
Time: TypeAlias = Annotated[StrictStr, Schema(format="date-time")]


_CONDITION_TYPE: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
_CONDITION_REASON: Final = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"


class DecodeError(ValueError):
    """An object that cannot be read at all; the message names the field and the remedy (spec 02 §2.2)."""


class Model(BaseModel):
    """Base of every model: immutable, camelCase in JSON, unknown fields ignored, `null` as good as absent.

    `atomic` says that server-side apply gives the object to one manager as a whole.
    """

    atomic: ClassVar[bool] = False

    model_config = ConfigDict(
        frozen=True, extra="ignore", populate_by_name=True, alias_generator=to_camel, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if isinstance(data, dict) and None in data.values():
            return {key: value for key, value in data.items() if value is not None}
        return data

    def manifest(self) -> dict[str, Any]:
        """This value as JSON, with exactly the fields that were given, spelled as they were."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class OwnerReference(Model):
    """`metadata.ownerReferences[]`."""

    api_version: Text = ""
    kind: Text = ""
    name: Text = ""
    uid: Text = ""
    controller: Flag = False


class ObjectMeta(Model):
    """The part of `metadata` that the product reads."""

    name: Text = ""
    generate_name: Text = ""
    namespace: Text = ""
    uid: Text = ""
    resource_version: Text = ""
    generation: Int64 = 0
    labels: dict[Text, Text] = {}
    annotations: dict[Text, Text] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[Text, ...] = ()
    creation_timestamp: Text | None = None
    deletion_timestamp: Text | None = None


class Condition(Model):
    """One `metav1.Condition`, bounded as Kubernetes bounds it."""

    type: Annotated[Text, Schema(required=True, max_length=316, pattern=_CONDITION_TYPE)]
    status: Annotated[Text, Schema(required=True, enum=("True", "False", "Unknown"))]
    observed_generation: Annotated[Int64 | None, Schema(minimum=0)] = None
    last_transition_time: Annotated[Time, Schema(required=True)] = ""
    reason: Annotated[Text, Schema(required=True, min_length=1, max_length=1024, pattern=_CONDITION_REASON)] = ""
    message: Annotated[Text, Schema(required=True, max_length=32768)] = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One printer column (`kubectl get`); with a priority above 0 it is shown by `-o wide` only."""

    name: str
    json_path: str
    type: str = "string"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class CustomResource:
    """The address of a kind and how `kubectl` shows it."""

    kind: str
    plural: str
    short_names: tuple[str, ...]
    columns: tuple[Column, ...]
    namespaced: bool = True
    spec_required: bool = True
    group: str = GROUP
    version: str = VERSION
    categories: tuple[str, ...] = ()
    description: str = field(default="", compare=False)

    @property
    def singular(self) -> str:
        """The singular resource name."""
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        """`group/version`."""
        return f"{self.group}/{self.version}"


AGE = Column("Age", ".metadata.creationTimestamp", "date")


class CustomObject(Model):
    """Base of every kind."""

    resource: ClassVar[CustomResource]

    metadata: ObjectMeta = ObjectMeta()

    @classmethod
    def decode(cls, raw: Any) -> Self:
        """Read an object from plain JSON values. Raises `DecodeError`, which names every unreadable field."""
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            complaints = "; ".join(
                f"{field_path(problem['loc']) or 'object'}: {plain(problem['msg'])}" for problem in error.errors()
            )
            raise DecodeError(f"{cls.resource.kind} cannot be read: {complaints}") from error


def field_path(location: tuple[int | str, ...]) -> str:
    """A pydantic location as Kubernetes writes field paths: `spec.env[2].name`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def plain(message: str) -> str:
    """What pydantic says of a value, without what it says of itself."""
    return message.removeprefix("Value error, ")
