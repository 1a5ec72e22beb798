"""What differs between two states of a Pod, in a form that people read.

Containers, variables and everything else with a name are told apart by it, so that `env[LMCACHE_REMOTE_URL]` is one
change and not a shifted list. Of arguments only those that come or go are shown. What the API server fills in is no
difference, and values of variables that look like credentials are not shown.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from inferencecache.adapters.pods import same_render

HIDDEN: Final = "<hidden>"

_SECRET_NAME: Final = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)
_SECRET_FLAG: Final = re.compile(
    r"(--?[\w-]*(?:token|secret|passw|api-key|api_key)[\w-]*=).+", re.IGNORECASE | re.DOTALL
)
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `before` or `after` is None where there is nothing on that side."""

    path: str
    before: str | None
    after: str | None


def changes(before: Any, after: Any, path: str = "") -> Iterator[Change]:
    """The differences between two JSON values."""
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_objects(before, after, path)
    elif _is_named(before) and _is_named(after):
        yield from _of_objects(_by_name(before), _by_name(after), path, brackets=True)
    elif _is_text(before) and _is_text(after):
        yield from _of_arguments(before, after, path)
    elif type(before) is not type(after) or before != after:
        yield Change(path, _text(before, path), _text(after, path))


def _of_objects(
    before: dict[str, Any], after: dict[str, Any], path: str, *, brackets: bool = False
) -> Iterator[Change]:
    for key in [*before, *(key for key in after if key not in before)]:
        where = f"{path}[{key}]" if brackets else f"{path}.{key}" if path else key
        old, new = before.get(key, _MISSING), after.get(key, _MISSING)
        if new is _MISSING:
            if brackets or not (_is_empty(old) or same_render({}, {key: old})):  # else the API server filled it in
                yield Change(where, _text(old, where), None)
        elif old is _MISSING:
            if brackets or not _is_empty(new):  # else the API server left it out
                yield Change(where, None, _text(new, where))
        elif not same_render(new, old):
            yield from changes(old, new, where)


def _of_arguments(before: list[str], after: list[str], path: str) -> Iterator[Change]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, old, old_end, new, new_end in matcher.get_opcodes():
        if tag != "equal":
            yield Change(path, _arguments(before[old:old_end]), _arguments(after[new:new_end]))


def _arguments(entries: list[str]) -> str | None:
    return " ".join(_SECRET_FLAG.sub(rf"\1{HIDDEN}", entry) for entry in entries) or None


def _is_empty(value: Any) -> bool:
    """Whether a field with this value is as good as none."""
    return value is None or value in ("", [], {})


def _is_named(value: Any) -> bool:
    """Whether this is a list of things with names of their own."""
    if not isinstance(value, list) or not all(isinstance(item, dict) and item.get("name") for item in value):
        return False
    return len({item["name"] for item in value}) == len(value)


def _by_name(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {item["name"]: item for item in items}


def _is_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _text(value: Any, path: str) -> str | None:
    """A value on one line."""
    if value is _MISSING:
        return None
    text = value if isinstance(value, str) else msgspec.json.encode(_masked(value)).decode()
    return HIDDEN if _names_a_secret(path) and isinstance(value, str) else text


def _names_a_secret(path: str) -> bool:
    variable = re.search(r"\.env\[([^\]]+)\]", path)
    return bool(variable and _SECRET_NAME.search(variable[1]))


def _masked(value: Any) -> Any:
    """The value without what must not be shown."""
    if isinstance(value, list):
        return [_masked(item) for item in value]
    if isinstance(value, dict):
        secret = isinstance(value.get("name"), str) and "value" in value and _SECRET_NAME.search(value["name"])
        return {key: HIDDEN if secret and key == "value" else _masked(item) for key, item in value.items()}
    return _SECRET_FLAG.sub(rf"\1{HIDDEN}", value) if isinstance(value, str) else value
