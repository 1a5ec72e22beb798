"""JSON patches between two JSON values (RFC 6902), computed on raw values: nothing unknown is lost (decision A2).

Objects are compared key by key and lists index by index, with what is left over added or removed at the end. Wiring
mostly appends, so patches come out short; correctness does not depend on it: `apply(diff(a, b), a) == b` always.
"""

from __future__ import annotations

from typing import Any, TypeAlias

JsonPatch: TypeAlias = list[dict[str, Any]]


def diff(before: Any, after: Any) -> JsonPatch:
    """The operations that turn `before` into `after`; empty if they are the same JSON value."""
    patch: JsonPatch = []
    _diff(before, after, "", patch)
    return patch


def clone(value: Any) -> Any:
    """A deep copy of a JSON value."""
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value


def _diff(before: Any, after: Any, path: str, patch: JsonPatch) -> None:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() - after.keys():
            patch.append({"op": "remove", "path": f"{path}/{_escaped(key)}"})
        for key, value in after.items():
            where = f"{path}/{_escaped(key)}"
            if key in before:
                _diff(before[key], value, where, patch)
            else:
                patch.append({"op": "add", "path": where, "value": value})
    elif isinstance(before, list) and isinstance(after, list):
        common = min(len(before), len(after))
        for index in range(common):
            _diff(before[index], after[index], f"{path}/{index}", patch)
        patch.extend({"op": "remove", "path": f"{path}/{index}"} for index in range(len(before) - 1, common - 1, -1))
        patch.extend({"op": "add", "path": f"{path}/-", "value": value} for value in after[common:])
    elif type(before) is not type(after) or before != after:  # to Python, true equals 1
        patch.append({"op": "replace", "path": path, "value": after})


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1") if "~" in key or "/" in key else key
