"""What a rule finds, and what of it counts on an update.

A finding's identity is (kind, field, value, detail), compared by value. An update is refused only for findings that
the stored object did not have already, so what was admitted under laxer rules can still be edited (spec 02 §6, decision
A7).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ViolationKind(StrEnum):
    """The kind of a violation; its value is the reason of a `metav1.StatusCause`."""

    REQUIRED = "FieldValueRequired"
    INVALID = "FieldValueInvalid"
    FORBIDDEN = "FieldValueForbidden"
    NOT_SUPPORTED = "FieldValueNotSupported"
    NOT_FOUND = "FieldValueNotFound"
    DUPLICATE = "FieldValueDuplicate"
    INTERNAL = "InternalError"


_WORDS = {
    ViolationKind.REQUIRED: "Required value",
    ViolationKind.INVALID: "Invalid value",
    ViolationKind.FORBIDDEN: "Forbidden",
    ViolationKind.NOT_SUPPORTED: "Unsupported value",
    ViolationKind.NOT_FOUND: "Not found",
    ViolationKind.DUPLICATE: "Duplicate value",
    ViolationKind.INTERNAL: "Internal error",
}


_SHOWING_THE_VALUE = frozenset(
    {ViolationKind.INVALID, ViolationKind.NOT_SUPPORTED, ViolationKind.NOT_FOUND, ViolationKind.DUPLICATE}
)


@dataclass(frozen=True)
class Violation:
    """One broken rule: `rule` is its row in spec 02, `value` the bad value where the kind carries one.

    `quoted` is what of the object the detail tells besides, where that may be spelled in several ways.
    """

    rule: str
    kind: ViolationKind
    field: str
    detail: str
    value: Any = None
    quoted: Any = None

    @property
    def message(self) -> str:
        """Kind, value and detail in one sentence, as Kubernetes words them."""
        word = _WORDS[self.kind]
        if self.kind in _SHOWING_THE_VALUE:
            return f"{word}: {shown(self.value)}: {self.detail}"
        return f"{word}: {self.detail}"

    @property
    def cause(self) -> dict[str, str]:
        """This as a `metav1.StatusCause`."""
        return {"reason": self.kind.value, "field": self.field, "message": self.message}

    def same_as(self, other: Violation) -> bool:
        """Whether both say the same about the same value, whatever rule says it."""
        return (
            self.kind is other.kind
            and self.field == other.field
            and (self.detail == other.detail or (self.quoted is not None and self.quoted == other.quoted))
            and type(self.value) is type(other.value)
            and bool(self.value == other.value)
        )


@dataclass(frozen=True)
class Verdict:
    """The outcome for one object: allowed if nothing is violated; warnings ride along either way."""

    violations: tuple[Violation, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        """Nothing is violated."""
        return not self.violations


def required(rule: str, field: str, detail: str) -> Violation:
    """A value is missing."""
    return Violation(rule, ViolationKind.REQUIRED, field, detail)


def forbidden(rule: str, field: str, detail: str) -> Violation:
    """A field may not be set here."""
    return Violation(rule, ViolationKind.FORBIDDEN, field, detail)


def invalid(rule: str, field: str, value: Any, detail: str, quoted: Any = None) -> Violation:
    """A value is wrong."""
    return Violation(rule, ViolationKind.INVALID, field, detail, value, quoted)


def not_supported(rule: str, field: str, value: Any, accepted: Iterable[str]) -> Violation:
    """A value is not in a closed list."""
    return Violation(
        rule,
        ViolationKind.NOT_SUPPORTED,
        field,
        "supported values: " + ", ".join(f'"{one}"' for one in accepted),
        value,
    )


def not_found(rule: str, field: str, value: str, detail: str) -> Violation:
    """The object that a value names is not there."""
    return Violation(rule, ViolationKind.NOT_FOUND, field, detail, value)


def duplicate(rule: str, field: str, value: str, detail: str) -> Violation:
    """Somebody else has this value already."""
    return Violation(rule, ViolationKind.DUPLICATE, field, detail, value)


def internal(rule: str, field: str, detail: str) -> Violation:
    """The rule could not be judged, through no fault of the object."""
    return Violation(rule, ViolationKind.INTERNAL, field, detail)


def newly_introduced(new: Iterable[Violation], old: Iterable[Violation]) -> tuple[Violation, ...]:
    """The findings of `new` that `old` does not have; one old finding excuses any number of equal new ones."""
    stored: dict[tuple[ViolationKind, str], list[Violation]] = {}
    for known in old:
        stored.setdefault((known.kind, known.field), []).append(known)
    return tuple(
        finding
        for finding in new
        if not any(finding.same_as(known) for known in stored.get((finding.kind, finding.field), ()))
    )


def shown(value: Any) -> str:
    """A bad value as a message shows it: text quoted, blocks as JSON with the fields that were given."""
    if isinstance(value, str):
        return f'"{value}"'
    manifest = getattr(value, "manifest", None)
    plain = manifest() if callable(manifest) else value
    return json.dumps(plain, ensure_ascii=False) if isinstance(plain, dict | list | bool | None) else str(plain)
