"""Status conditions as plain JSON values: a list of maps, one per `type`.

`lastTransitionTime` is the time of the last change of `status`, not of the last write, and the rest of a list is left
alone in place and order: so a status that says the same again is equal to what is stored, and need not be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

Condition: TypeAlias = dict[str, Any]
ConditionStatus: TypeAlias = Literal["True", "False", "Unknown"]


def set_condition(
    conditions: Sequence[Mapping[str, Any]],
    type: str,  # noqa: A002 - the API's own word
    status: ConditionStatus,
    *,
    reason: str,
    message: str = "",
    observed_generation: int | None = None,
    now: datetime,
) -> list[Condition]:
    """The conditions with this one set; the given ones stay as they are.

    Args:
        conditions: the present ones, as in `status.conditions`.
        type: which one to set, such as `Ready`; a new one is added at the end.
        status: `True`, `False` or `Unknown`.
        reason: one CamelCase word for programs.
        message: a sentence for people.
        observed_generation: the `metadata.generation` this was decided on.
        now: becomes `lastTransitionTime` if the status changes; must know its time zone.
    """
    before = find_condition(conditions, type)
    kept = before.get("lastTransitionTime") if before is not None and before.get("status") == status else None
    condition: Condition = {
        "type": type,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": kept or timestamp(now),
    }
    if observed_generation is not None:
        condition["observedGeneration"] = observed_generation
    if before is None:
        return [*(dict(one) for one in conditions), condition]
    return [condition if one.get("type") == type else dict(one) for one in conditions]


def remove_condition(conditions: Iterable[Mapping[str, Any]], type: str) -> list[Condition]:  # noqa: A002
    """The conditions without that one."""
    return [dict(one) for one in conditions if one.get("type") != type]


def find_condition(conditions: Iterable[Mapping[str, Any]], type: str) -> Mapping[str, Any] | None:  # noqa: A002
    """The condition of that type, or `None`."""
    return next((one for one in conditions if one.get("type") == type), None)


def is_true(conditions: Iterable[Mapping[str, Any]], type: str) -> bool:  # noqa: A002
    """Whether the condition is there and `True`; absent counts as not."""
    condition = find_condition(conditions, type)
    return condition is not None and condition.get("status") == "True"


def timestamp(now: datetime) -> str:
    """A `metav1.Time`: RFC 3339 in UTC, whole seconds. Raises `ValueError` for a time without a zone."""
    if now.tzinfo is None:
        raise ValueError("a timestamp needs a time zone; use datetime.now(UTC)")
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
