"""Rules V42–V50: engine overrides (spec 02 §5.3). Reserved flags and variables carry the wiring; they stay closed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from inferencecache.adapters.flags import flag_of
from inferencecache.adapters.registry import ReadsFlagsLoosely, RuntimeAdapter
from inferencecache.api.cachebackend import EngineOverrides
from inferencecache.api.core import EnvVar
from inferencecache.webhooks.validation.findings import Violation, forbidden, internal, invalid, required
from inferencecache.webhooks.validation.table import RuleTable, Subject

TABLE = RuleTable()
_BASE: Final = "spec.integration.engineOverrides"
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_SOURCES: Final = ("field_ref", "resource_field_ref", "config_map_key_ref", "secret_key_ref", "file_key_ref")


def _overrides(s: Subject) -> EngineOverrides | None:
    return s.spec.integration.engine_overrides if s.spec.integration else None


def _env(s: Subject) -> Iterator[tuple[str, EnvVar]]:
    overrides = _overrides(s)
    for index, entry in enumerate((overrides and overrides.env) or ()):
        yield f"{_BASE}.env[{index}]", entry


@TABLE.rule("V42", "V43", "V44", "V45")
def env_entries_are_valid(s: Subject) -> Iterator[Violation]:
    """An entry Kubernetes would refuse makes every wired Pod fail."""
    for field, entry in _env(s):
        if not entry.name:
            yield required("V42", f"{field}.name", "an environment variable needs a name")
        else:
            for complaint in env_name_complaints(entry.name):
                yield invalid("V43", f"{field}.name", entry.name, complaint)
        if entry.value_from is None:
            continue
        if entry.value:
            yield invalid(
                "V44", field, entry.name, "value and valueFrom exclude each other; engine Pods would fail validation"
            )
        count = sum(getattr(entry.value_from, source) is not None for source in _SOURCES)
        if count == 0:
            yield required("V45", f"{field}.valueFrom", "exactly one source is needed")
        elif count > 1:
            yield invalid("V45", f"{field}.valueFrom", count, "exactly one source is allowed")


def env_name_complaints(name: str) -> Iterator[str]:
    """What every Kubernetes version that we run on holds against the name of an environment variable."""
    if not _ENV_NAME.fullmatch(name):
        yield ("is not an environment variable name: use letters, digits, '_', '-' and '.', not starting with a digit")
    if name in (".", ".."):
        yield f"must not be '{name}'"
    elif name.startswith(".."):
        yield "must not start with '..'"


@TABLE.rule("V46")
def a_registry_judges_overrides(s: Subject) -> Iterator[Violation]:
    """Without a registry nobody knows what is reserved."""
    if _overrides(s) is not None and s.spec.type and s.runtimes is None:
        yield internal("V46", _BASE, "the runtime-adapter registry is not configured")


@TABLE.rule("V47", "V48")
def reserved_args_stay_closed(s: Subject) -> Iterator[Violation]:
    """Args are compared by flag token, suppressed args as a whole; in any spelling that the engine takes (A4)."""
    overrides = _overrides(s)
    if overrides is None or not s.spec.type or s.adapter is None:
        return
    for index, entry in enumerate(overrides.args or ()):
        token = flag_of(entry)
        if _is_reserved(s.adapter, token):
            yield forbidden("V47", f"{_BASE}.args[{index}]", _reserved(s, "flag", token))
    for index, entry in enumerate(overrides.suppress_args or ()):
        if _is_reserved(s.adapter, entry):
            yield forbidden("V48", f"{_BASE}.suppressArgs[{index}]", _reserved(s, "flag", entry))


def _is_reserved(adapter: RuntimeAdapter, flag: str) -> bool:
    reserved = adapter.reserved_args()
    if flag in reserved or not isinstance(adapter, ReadsFlagsLoosely):
        return flag in reserved
    return adapter.flag_meant(flag.partition(".")[0]) in reserved


@TABLE.rule("V49", "V50")
def reserved_env_stays_closed(s: Subject) -> Iterator[Violation]:
    """Names are compared exactly."""
    overrides = _overrides(s)
    if overrides is None or not s.spec.type or s.adapter is None:
        return
    reserved = frozenset(s.adapter.reserved_env())
    for field, entry in _env(s):
        if entry.name in reserved:
            yield forbidden("V49", f"{field}.name", _reserved(s, "variable", entry.name))
    for index, name in enumerate(overrides.suppress_env or ()):
        if name in reserved:
            yield forbidden("V50", f"{_BASE}.suppressEnv[{index}]", _reserved(s, "variable", name))


def _reserved(s: Subject, what: str, name: str) -> str:
    return (
        f"{what} {name} is reserved by the {s.backend.runtime_id} adapter; the integration cannot work without it: "
        "remove the entry, or opt Pods out with the skip-inject annotation"
    )
