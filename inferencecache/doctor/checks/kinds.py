"""Check 14: whether the kinds are installed, in a shape that holds all this version writes.

An older CRD does not refuse a field that it does not know: the API server drops it in silence. So fields are compared,
not versions, which stay the same from release to release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kinds import KINDS
from inferencecache.api.model import CustomObject
from inferencecache.api.schema import object_schema
from inferencecache.doctor.checks.reads import api_failure
from inferencecache.doctor.findings import Check, Finding
from inferencecache.doctor.installation import CustomResourceDefinition
from inferencecache.doctor.observe import Observations

_CHECK: Final = Check.KINDS
_SHOWN: Final = 5
_REAPPLY: Final = "apply manifests/crd of this version"


def check_kinds(seen: Observations) -> Iterator[Finding]:
    """CD001 to CD004 for every kind of a half that is installed; nothing if one namespace alone is looked at."""
    if seen.installation is None:
        return
    found = seen.installation.kinds
    failure = next((one.failure for one in found.values() if one.failure), "")
    if failure:
        yield api_failure(_CHECK, CustomResourceDefinition.resource.kind, failure)
        return
    groups = {name.partition(".")[2] for name, one in found.items() if not one.missing} or {CacheBackend.resource.group}
    for kind in KINDS:
        name = f"{kind.resource.plural}.{kind.resource.group}"
        if kind.resource.group in groups:
            yield _judged(kind, f"customresourcedefinition/{name}", found[name].item)


def _judged(kind: type[CustomObject], resource: str, crd: CustomResourceDefinition | None) -> Finding:
    version = kind.resource.version
    if crd is None:
        return Finding("CD001", _CHECK, resource, f"{kind.resource.kind} is not installed: {_REAPPLY}")
    for condition in map(crd.condition, ("NamesAccepted", "Established")):
        if condition is not None and condition.status != "True":
            return Finding("CD002", _CHECK, resource, f"{condition.type} is {condition.status}: {condition.message}")
    served = next((one for one in crd.spec.versions if one.name == version and one.served), None)
    if served is None:
        return Finding("CD002", _CHECK, resource, f"version {version} is not served: {_REAPPLY}")
    lacking = sorted(_lacking(object_schema(kind), served.schema.open_api_v3_schema))
    if lacking:
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        return Finding(
            "CD003",
            _CHECK,
            resource,
            f"it is of another version: what is set in {', '.join(lacking[:_SHOWN])}{more} is dropped in silence. "
            f"If this is the version you run, {_REAPPLY}",
        )
    return Finding("CD004", _CHECK, resource, f"{version} is served, with all fields")


def _lacking(wanted: Mapping[str, Any], found: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Paths of fields that one schema has and another lacks; below a missing one, no more is said."""
    if found.get("x-kubernetes-preserve-unknown-fields"):
        return
    theirs = found.get("properties") or {}
    for name, schema in (wanted.get("properties") or {}).items():
        here = f"{path}.{name}" if path else name
        if name not in theirs:
            yield here
        else:
            yield from _lacking(schema, theirs[name], here)
    for key in ("items", "additionalProperties"):
        if isinstance(wanted.get(key), Mapping) and isinstance(found.get(key), Mapping):
            yield from _lacking(wanted[key], found[key], f"{path}[]")
