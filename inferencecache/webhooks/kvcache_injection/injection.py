"""Giving a Pod the KV cache pool it asks for: one pure function over a raw Pod (spec 10 §12, §12.1).

The Pod comes out whole or not at all (decision A10): its owner asked for a cache by a label, and a Pod that starts
without one looks exactly like a Pod that has one. All that stands against it is told together, each with its field and
its remedy: the annotations, the container and the way it starts, and the objects behind the Binding.

What is written: arguments at the end, the client's configuration as variables or as a file projected from an annotation
of the Pod itself (so nothing is created in its namespace and nothing is left behind), and a record of what was decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from inferencecache.adapters.pods import strings
from inferencecache.api.kvcachechain import Chain
from inferencecache.webhooks.kvcache_injection import keys
from inferencecache.webhooks.kvcache_injection.client import METRICS, TENANT_VARIABLE, VARIABLES, document, variables
from inferencecache.webhooks.kvcache_injection.connection import Connection, connect
from inferencecache.webhooks.kvcache_injection.engines import (
    CONFIG_PATH,
    DISAGGREGATION_FLAG,
    DTYPE_FLAG,
    HASH_SEED,
    HIERARCHICAL_FLAG,
    OFFLOADING_FLAG,
    Engine,
    Vehicle,
    connector_arguments,
)
from inferencecache.webhooks.kvcache_injection.expansion import expand, literal_variables, literally
from inferencecache.webhooks.kvcache_injection.flags import flags_read, value_of
from inferencecache.webhooks.kvcache_injection.launch import Family, Launch, Start, read_launch
from inferencecache.webhooks.kvcache_injection.refusals import (
    FILE,
    MOUNT_PATH,
    VOLUME,
    flag_problems,
    launch_problems,
    variable_problems,
    volume_problems,
)
from inferencecache.webhooks.kvcache_injection.request import RULE, PoolRequest, annotation, read_request
from inferencecache.webhooks.patches import clone
from inferencecache.webhooks.validation.findings import Violation, invalid, required
from inferencecache.webhooks.validation.text import warning

Manifest = dict[str, Any]

_CONFIG_FILE: Final = f"{MOUNT_PATH}/{FILE}"


class Refused(Exception):
    """The Pod must not be admitted; `violations` are all the reasons, at least one."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        super().__init__("; ".join(f"{one.field}: {one.message}" for one in violations))
        self.violations = tuple(violations)


@dataclass(frozen=True, slots=True)
class Injected:
    """The Pod with its pool, and what its owner should know."""

    pod: Manifest
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Target:
    """The chosen container: where it stands, what it starts, and its known variables."""

    index: int
    container: Manifest
    launch: Launch

    @property
    def where(self) -> str:
        return f"spec.containers[{self.index}]"


def inject(
    pod: Manifest, annotations: Mapping[str, str], namespace: str, chain: Chain, *, dtype_owned: bool
) -> Injected:
    """Give `pod`, whose annotations are `annotations`, the pool at the end of `chain`. The argument is not changed.

    `dtype_owned` is the Setting that hands the Binding's dtype to engines. Raises `Refused`.
    """
    request, problems = read_request(annotations)
    connection, chain_problems = connect(request, chain, namespace)
    problems += chain_problems
    target, container_problems = _find_container(pod, request)
    problems += container_problems
    if target is not None and request.engine is not None:
        problems += _container_problems(pod, target, request, request.engine, dtype_owned=dtype_owned)
    if problems or target is None or request.engine is None or connection is None:
        raise Refused(problems)
    injected = _with_pool(pod, target, request, request.engine, connection, dtype_owned=dtype_owned)
    return Injected(injected, tuple(_warnings(target, request.engine)))


# ----------------------------------------------------------------------------------------------- the container


def _find_container(pod: Manifest, request: PoolRequest) -> tuple[_Target | None, list[Violation]]:
    spec = pod.get("spec") or {}
    containers: list[Manifest] = spec.get("containers") or []
    names = [str(container.get("name", "")) for container in containers]
    where = annotation(keys.ANNOTATION_CONTAINER)
    told = ", ".join(names)
    if request.container is None:
        if len(containers) != 1:
            return None, [
                required(RULE, where, f"the Pod has {len(containers)} containers ({told}): name the engine's")
            ]
        return _target(0, containers[0]), []
    if request.container in names:
        index = names.index(request.container)
        return _target(index, containers[index]), []
    if any(init.get("name") == request.container for init in spec.get("initContainers") or []):
        detail = f"this is an init container, which is not the one that serves: name one of {told}"
    else:
        detail = f"the Pod has no such container: name one of {told}"
    return None, [invalid(RULE, where, request.container, detail)]


def _target(index: int, container: Manifest) -> _Target:
    known = literal_variables(container.get("env") or [])
    command, args = (expand(strings(container, field), known) for field in ("command", "args"))
    return _Target(index, container, read_launch(command, args))


def _container_problems(
    pod: Manifest, target: _Target, request: PoolRequest, engine: Engine, *, dtype_owned: bool
) -> Iterator[Violation]:
    where, launch = target.where, target.launch
    written = _written_variables(engine)
    yield from launch_problems(launch, engine, forwarded=request.forwarded, where=where)
    yield from flag_problems(launch.arguments, engine, dtype_owned=dtype_owned, where=where)
    yield from variable_problems(target.container.get("env") or [], launch, engine, written, where=where)
    yield from volume_problems(pod.get("spec") or {}, target.container, engine, where=where)


def _warnings(target: _Target, engine: Engine) -> Iterator[str]:
    given = flags_read(target.launch.arguments, engine.known_flags, loosely=engine.reads_loosely)
    if OFFLOADING_FLAG in given:
        text = f"{{}}.args: {OFFLOADING_FLAG} takes the place of the connector, and the pool is not used: remove one"
        yield warning(text, target.where)
    if engine.family is Family.VLLM and not _may_set(target, HASH_SEED):
        text = f"{{}}.env: set {HASH_SEED} alike in all engines of the domain, or none finds what others stored"
        yield warning(text, target.where)


def _may_set(target: _Target, variable: str) -> bool:
    """Whether a variable is set, as far as that can be seen."""
    container = target.container
    named = any(entry.get("name") == variable for entry in container.get("env") or [])
    return named or variable in target.launch.assigned or bool(container.get("envFrom"))


# ------------------------------------------------------------------------------------------------- what is written


def _with_pool(
    pod: Manifest,
    target: _Target,
    request: PoolRequest,
    engine: Engine,
    connection: Connection,
    *,
    dtype_owned: bool,
) -> Manifest:
    wanted: Manifest = clone(pod)
    container: Manifest = wanted["spec"]["containers"][target.index]
    dtype = [DTYPE_FLAG, literally(connection.dtype)] if dtype_owned else []
    container["args"] = [
        *(container.get("args") or []),
        *connector_arguments(engine, request.role),
        *dtype,
        *_host_tier(engine, target.launch.arguments),
    ]
    _write_variables(container, engine, connection)
    annotations = wanted["metadata"]["annotations"]
    if engine.vehicle is Vehicle.FILE:
        annotations[keys.ANNOTATION_CLIENT_CONFIG] = document(connection.client)
        _project_file(wanted["spec"], container)
    annotations[keys.ANNOTATION_INJECTED] = _record(request, engine, connection, target.launch)
    return wanted


def _host_tier(engine: Engine, arguments: Sequence[str]) -> list[str]:
    """SGLang's store hangs off its tier in host memory; the decode half of a split refuses to have that tier."""
    if engine.family is not Family.SGLANG:
        return []
    known = engine.known_flags
    named = HIERARCHICAL_FLAG in flags_read(arguments, known, loosely=False)
    decodes = value_of(arguments, DISAGGREGATION_FLAG, known, loosely=False) == "decode"
    return [] if named or decodes else [HIERARCHICAL_FLAG]


def _write_variables(container: Manifest, engine: Engine, connection: Connection) -> None:
    """Ours in the place of an entry of the same name, or at the end; one entry per name."""
    env: list[Manifest] = container.get("env") or []
    if engine.vehicle is Vehicle.FILE:
        entries: list[Manifest] = [{"name": CONFIG_PATH, "value": _CONFIG_FILE}]
    else:
        entries = variables(connection.client)
        if connection.client.tenant is None:
            env = [entry for entry in env if entry.get("name") != TENANT_VARIABLE]
    for entry in entries:
        env = _upserted(env, entry)
    declared = {entry.get("name") for entry in env}
    container["env"] = [*env, *({"name": name, "value": "1"} for name in METRICS if name not in declared)]


def _upserted(env: Sequence[Manifest], entry: Manifest) -> list[Manifest]:
    name = entry["name"]
    first = next((index for index, present in enumerate(env) if present.get("name") == name), len(env))
    before, after = env[:first], [present for present in env[first:] if present.get("name") != name]
    return [*before, entry, *after]


def _written_variables(engine: Engine) -> tuple[str, ...]:
    """The variables that are given a value, apart from those that yield."""
    if engine.vehicle is Vehicle.FILE:
        return (CONFIG_PATH,)
    return VARIABLES


def _project_file(spec: Manifest, container: Manifest) -> None:
    field = {"fieldPath": f"metadata.annotations['{keys.ANNOTATION_CLIENT_CONFIG}']"}
    volume = {"name": VOLUME, "downwardAPI": {"items": [{"path": FILE, "fieldRef": field}]}}
    mount = {"name": VOLUME, "mountPath": MOUNT_PATH, "readOnly": True}
    spec["volumes"] = [*(spec.get("volumes") or []), volume]
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]


def _record(request: PoolRequest, engine: Engine, connection: Connection, launch: Launch) -> str:
    """What was decided, for people and tools that look at the Pod later."""
    return msgspec.json.encode(
        {
            "binding": request.binding,
            "engine": engine.name,
            "vehicle": engine.vehicle.value,
            "domain": connection.domain,
            "tenantInjected": connection.client.tenant is not None,
            "launchProgram": launch.program,
            "launchArgsForwarded": launch.start is not Start.ENGINE,
        }
    ).decode()
