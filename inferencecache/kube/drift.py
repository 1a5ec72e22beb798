"""What differs between an object as we want it and as the API server has it. Pure; no request is made here.

The two never look alike: the server fills in defaults, allocates addresses, rewrites quantities and drops what is
empty, and others add labels, annotations and status. So three questions are asked instead of one:

* `covers`: is everything we want there? What we do not mention does not count.
* `stray`: is something there that only we may decide about? Under *authoritative* paths (a Pod's spec, a Service's
  selector) whatever we do not want is removed, except what the server puts there itself. Server-side apply cannot do
  this: it leaves alone what others own.
* `abandoned`: do we own something that we no longer want? The next apply gives it up.

Lists of named maps are matched by the merge key that the API declares for them; all other lists count as one value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, TypeAlias

import msgspec

from inferencecache.kube.resource import Manifest

FieldPath: TypeAlias = tuple[str, ...]
"""Names of nested fields, outermost first: `("spec", "template", "spec")`."""

_ABSENT: Final = object()

_MERGE_KEYS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    # The first alternative that every item can answer is the list's key.
    "containers": (("name",),),
    "initContainers": (("name",),),
    "ephemeralContainers": (("name",),),
    "env": (("name",),),
    "volumes": (("name",),),
    "volumeMounts": (("mountPath",),),
    "volumeDevices": (("devicePath",),),
    "imagePullSecrets": (("name",),),
    "resourceClaims": (("name",),),
    "hostAliases": (("ip",),),
    "topologySpreadConstraints": (("topologyKey", "whenUnsatisfiable"),),
    "ports": (("containerPort", "protocol"), ("port", "protocol")),
    "ownerReferences": (("uid",),),
}
_KEY_DEFAULTS: Final = {"protocol": "TCP"}

_FREE_MAPS: Final = frozenset(
    {"labels", "annotations", "matchLabels", "nodeSelector", "selector", "limits", "requests", "data", "binaryData"}
)
# Fields whose zero is not stored; elsewhere false and 0 are answers that differ from none.
_OMITTED_ZEROES: Final = frozenset(
    {"hostNetwork", "hostPID", "hostIPC", "readOnly", "stdin", "stdinOnce", "tty", "publishNotReadyAddresses"}
    | {"initialDelaySeconds", "hostPort", "nodePort", "minReadySeconds"}
)
_QUANTITY_MAPS: Final = frozenset({"limits", "requests", "capacity", "hard", "overhead"})
_QUANTITY_FIELDS: Final = frozenset({"sizeLimit", "divisor", "averageValue"})

# ------------------------------------------------------------------------------------------------------- the questions


def covers(desired: Any, live: Any, path: FieldPath = ()) -> bool:
    """Whether `live` has everything that `desired` says, in the server's way of storing it."""
    if isinstance(desired, Mapping) and isinstance(live, Mapping):
        return all(
            _covers_field(name, value, live.get(name), path)
            for name, value in desired.items()
            if path or name not in ("apiVersion", "kind")  # items of lists and caches do not repeat them
        )
    if isinstance(desired, list) and isinstance(live, list):
        pairs = _paired(desired, live, path)
        if pairs is None:
            return len(desired) == len(live) and all(covers(d, v, path) for d, v in zip(desired, live, strict=True))
        return all(found is not _ABSENT and covers(item, found, path) for item, found in pairs)
    return _same(desired, live, path)


def stray(desired: Manifest, live: Manifest, authoritative: Iterable[FieldPath]) -> Manifest:
    """The merge patch that frees the authoritative paths of what is not desired; empty if they are free of it.

    A path with strays is settled as a whole, to the desired values as well: an item that holds the place of a desired
    one (a Service port of the same name), or the other member of a union, cannot be taken away on its own.
    """
    patch: Manifest = {}
    for path in authoritative:
        wanted, found = _at(desired, path), _at(live, path)
        if found is _ABSENT:
            continue
        parents = tuple(_chain(desired, path))
        settled, strays = _settle(wanted, found, path, parents)
        if strays:
            _put(patch, path, None if settled is _ABSENT else _merge_patch(found, settled))
    return patch


def abandoned(desired: Manifest, live: Manifest, manager: str) -> bool:
    """Whether `manager` has applied fields of `live` that `desired` lacks; false if `managedFields` is not there."""
    return any(
        _leaves(desired, entry.get("fieldsV1") or {})
        for entry in live.get("metadata", {}).get("managedFields") or ()
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource")
    )


# ------------------------------------------------------------------------------------------------------------ covering


def _covers_field(name: str, desired: Any, live: Any, path: FieldPath) -> bool:
    if desired is None:
        return True
    if live is None:
        return _vanishes(name, desired)
    return covers(desired, live, (*path, name))


def _vanishes(name: str, value: Any) -> bool:
    """Whether the server stores a field with this value as no field at all."""
    if isinstance(value, Mapping):
        return not value and name in _FREE_MAPS
    if isinstance(value, bool | int):
        return not value and name in _OMITTED_ZEROES
    return value in ("", []) and name != "storageClassName"


def _same(desired: Any, live: Any, path: FieldPath) -> bool:
    if isinstance(desired, bool) != isinstance(live, bool):
        return False
    if desired == live:
        return True
    if _is_quantity(path):
        return _quantity(desired) is not None and _quantity(desired) == _quantity(live)
    return False


def _is_quantity(path: FieldPath) -> bool:
    return bool(path) and (path[-1] in _QUANTITY_FIELDS or (len(path) > 1 and path[-2] in _QUANTITY_MAPS))


_QUANTITY: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d{1,3}))?")
_SUFFIXES: Final = {suffix: Fraction(1000) ** power for power, suffix in enumerate("num", -3)} | {
    suffix: Fraction(1000) ** power for power, suffix in enumerate("kMGTPE", 1)
}
_BINARY: Final = {f"{suffix}i": Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", 1)}


def _quantity(value: Any) -> Fraction | None:
    """The value of a resource quantity, which may be written as a number; `None` if it is none."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number, suffix, exponent = match.groups()
    if exponent:
        return Fraction(number) * Fraction(10) ** int(exponent)
    return Fraction(number) * (_SUFFIXES | _BINARY).get(suffix or "", Fraction(1))


# ------------------------------------------------------------------------------------------------------- matching lists


def _paired(desired: Sequence[Any], live: Sequence[Any], path: FieldPath) -> list[tuple[Any, Any]] | None:
    """Each desired item with the live item of its key, if both lists have unique keys; else `None`."""
    for key in _MERGE_KEYS.get(path[-1] if path else "", ()):
        wanted, found = _by_key(desired, key), _by_key(live, key)
        if wanted is not None and found is not None:
            return [(item, found.get(value, _ABSENT)) for value, item in wanted.items()]
    return None


def _by_key(items: Sequence[Any], key: tuple[str, ...]) -> dict[tuple[Any, ...], Any] | None:
    keyed: dict[tuple[Any, ...], Any] = {}
    for item in items:
        if not isinstance(item, Mapping):
            return None
        value = tuple(item.get(name, _KEY_DEFAULTS.get(name)) for name in key)
        if None in value or value in keyed:
            return None
        keyed[value] = item
    return keyed


# ------------------------------------------------------------------------------------------------------------ settling


def _settle(desired: Any, live: Any, path: FieldPath, parents: tuple[Mapping[str, Any], ...]) -> tuple[Any, bool]:
    """`live` with the desired values in it and nothing else, and whether something had to go for that."""
    if desired is _ABSENT or desired is None:
        kept = _is_default(path, live, parents)
        return (live if kept else _ABSENT), not kept
    if isinstance(desired, Mapping) and isinstance(live, Mapping):
        return _settle_map(desired, live, path, parents)
    if isinstance(desired, list) and isinstance(live, list):
        pairs = _paired(desired, live, path)
        if pairs is not None:
            settled = [
                (item, False) if found is _ABSENT else _settle(item, found, path, parents) for item, found in pairs
            ]
            matched = sum(found is not _ABSENT for _, found in pairs)
            return [item for item, _ in settled], matched < len(live) or any(strays for _, strays in settled)
        if len(desired) == len(live):
            settled = [_settle(d, v, path, parents) for d, v in zip(desired, live, strict=True)]
            return [item for item, _ in settled], any(strays for _, strays in settled)
        return desired, len(live) > len(desired)
    return (live if covers(desired, live, path) else desired), False


def _settle_map(
    desired: Mapping[str, Any], live: Mapping[str, Any], path: FieldPath, parents: tuple[Mapping[str, Any], ...]
) -> tuple[Mapping[str, Any], bool]:
    result: dict[str, Any] = {}
    strays = False
    for name, value in live.items():
        settled, stray_here = _settle(desired.get(name, _ABSENT), value, (*path, name), (*parents, desired))
        strays = strays or stray_here
        if settled is not _ABSENT:
            result[name] = settled
    missing = {n: v for n, v in desired.items() if n not in live and v is not None and not _vanishes(n, v)}
    return result | missing, strays


def _merge_patch(before: Any, after: Any) -> Any:
    """The JSON merge patch (RFC 7386) from one value to another."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return after
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        if name not in before:
            patch[name] = value
        elif before[name] != value:
            patch[name] = _merge_patch(before[name], value)
    return patch


def _at(obj: Any, path: FieldPath) -> Any:
    for name in path:
        obj = obj.get(name, _ABSENT) if isinstance(obj, Mapping) else _ABSENT
    return obj


def _chain(obj: Any, path: FieldPath) -> Iterable[Mapping[str, Any]]:
    """The maps that enclose what is at `path`, outermost first; empty ones where there are none."""
    for name in path:
        obj = obj if isinstance(obj, Mapping) else {}
        yield obj
        obj = obj.get(name)


def _put(obj: dict[str, Any], path: FieldPath, value: Any) -> None:
    for name in path[:-1]:
        obj = obj.setdefault(name, {})
    obj[path[-1]] = value


# ------------------------------------------------------------------------------------------------ the server's defaults

_Parents: TypeAlias = tuple[Mapping[str, Any], ...]
_Rule: TypeAlias = Callable[[Any, _Parents], bool]


def _any(_value: Any, _parents: _Parents) -> bool:
    return True


def _rolling(_value: Any, parents: _Parents) -> bool:
    # A rollingUpdate block beside another type makes the object invalid.
    return bool(parents[-1].get("type", "RollingUpdate") == "RollingUpdate")


def _host_port(value: Any, parents: _Parents) -> bool:
    on_host = any(parent.get("hostNetwork") for parent in parents)
    return on_host and bool(value == parents[-1].get("containerPort"))


def _deprecated_account(value: Any, parents: _Parents) -> bool:
    return bool(value == parents[-1].get("serviceAccountName"))


def _target_port(value: Any, parents: _Parents) -> bool:
    return bool(value == parents[-1].get("port"))


def _pull_policy(value: Any, parents: _Parents) -> bool:
    image = str(parents[-1].get("image", ""))
    name = image.rsplit("/", 1)[-1]
    latest = "@" not in name and (":" not in name or name.endswith(":latest"))
    return bool(value == ("Always" if latest else "IfNotPresent"))


_PROBE_FIELDS: Final = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_CONTAINER_LISTS: Final = ("containers", "initContainers")
_CONTAINER_FIELDS: Final[dict[str, Any]] = {
    "imagePullPolicy": _pull_policy,
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_ROLLING_UPDATE: Final = {"maxSurge": "25%", "maxUnavailable": "25%"}

# (enclosing field, field) to the value, or a rule for the value, that the server writes when nobody else does.
# Items of a list are enclosed by the list. Empty values need no row.
_DEFAULTS: Final[dict[tuple[str, str], Any]] = {
    **{(probe, name): value for probe in _PROBES for name, value in _PROBE_FIELDS.items()},
    **{(each, name): value for each in _CONTAINER_LISTS for name, value in _CONTAINER_FIELDS.items()},
    ("httpGet", "scheme"): "HTTP",
    ("httpGet", "path"): "/",
    ("ports", "protocol"): "TCP",
    ("ports", "hostPort"): _host_port,
    ("ports", "nodePort"): _any,
    ("ports", "targetPort"): _target_port,
    ("fieldRef", "apiVersion"): "v1",
    ("resourceFieldRef", "divisor"): "0",
    ("configMap", "defaultMode"): 420,
    ("secret", "defaultMode"): 420,
    ("projected", "defaultMode"): 420,
    ("downwardAPI", "defaultMode"): 420,
    ("serviceAccountToken", "expirationSeconds"): 3600,
    ("spec", "restartPolicy"): "Always",
    ("spec", "terminationGracePeriodSeconds"): 30,
    ("spec", "dnsPolicy"): "ClusterFirst",
    ("spec", "schedulerName"): "default-scheduler",
    ("spec", "enableServiceLinks"): True,
    ("spec", "serviceAccount"): _deprecated_account,
    ("topologySpreadConstraints", "nodeAffinityPolicy"): "Honor",
    ("topologySpreadConstraints", "nodeTaintsPolicy"): "Ignore",
    # Deployment and StatefulSet
    ("spec", "replicas"): 1,
    ("spec", "progressDeadlineSeconds"): 600,
    ("spec", "revisionHistoryLimit"): 10,
    ("spec", "strategy"): {"type": "RollingUpdate", "rollingUpdate": _ROLLING_UPDATE},
    ("strategy", "type"): "RollingUpdate",
    ("strategy", "rollingUpdate"): _rolling,
    ("rollingUpdate", "maxSurge"): "25%",
    ("rollingUpdate", "maxUnavailable"): "25%",
    ("rollingUpdate", "partition"): 0,
    ("spec", "podManagementPolicy"): "OrderedReady",
    ("spec", "updateStrategy"): {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
    ("updateStrategy", "type"): "RollingUpdate",
    ("updateStrategy", "rollingUpdate"): _rolling,
    ("spec", "persistentVolumeClaimRetentionPolicy"): {"whenDeleted": "Retain", "whenScaled": "Retain"},
    # Service
    ("spec", "type"): "ClusterIP",
    ("spec", "clusterIP"): _any,
    ("spec", "clusterIPs"): _any,
    ("spec", "ipFamilies"): _any,
    ("spec", "ipFamilyPolicy"): "SingleStack",
    ("spec", "internalTrafficPolicy"): "Cluster",
    ("spec", "externalTrafficPolicy"): "Cluster",
    ("spec", "allocateLoadBalancerNodePorts"): True,
    ("spec", "healthCheckNodePort"): _any,
    ("spec", "sessionAffinity"): "None",
    # HorizontalPodAutoscaler
    ("spec", "minReplicas"): 1,
}


def _is_default(path: FieldPath, value: Any, parents: _Parents) -> bool:
    if value is None or value in ("", [], {}):
        return True
    rule = _DEFAULTS.get((path[-2] if len(path) > 1 else "", path[-1]), _ABSENT)
    if callable(rule):
        accepts: _Rule = rule
        return accepts(value, parents)
    return bool(value == rule)


# ------------------------------------------------------------------------------------------------------ field ownership


def _leaves(desired: Any, owned: Mapping[str, Any]) -> bool:
    """Whether a `fieldsV1` tree names a field, item or set member that `desired` does not have."""
    for step, below in owned.items():
        kind, _, name = step.partition(":")
        if kind == "f":
            found = desired.get(name, _ABSENT) if isinstance(desired, Mapping) else _ABSENT
        elif kind == "k":
            found = _item(desired, msgspec.json.decode(name))
        elif kind == "v":
            member = msgspec.json.decode(name)
            found = member if isinstance(desired, list) and member in desired else _ABSENT
        else:  # "." is the map or item itself
            continue
        if found is _ABSENT or found is None or _leaves(found, below):
            return True
    return False


def _item(items: Any, key: Mapping[str, Any]) -> Any:
    for item in items if isinstance(items, list) else ():
        if all(item.get(name, _KEY_DEFAULTS.get(name)) == value for name, value in key.items()):
            return item
    return _ABSENT
