"""What in the chosen container stands against a connection: how it starts, and what it already sets (spec 10 §12.1).

Each refusal is of something that would start, serve, and cache nothing or the wrong thing, with no sign of it outside
the Pod.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from inferencecache.webhooks.kvcache_injection import keys
from inferencecache.webhooks.kvcache_injection.engines import DTYPE_FLAG, Engine, Vehicle
from inferencecache.webhooks.kvcache_injection.flags import flags_read
from inferencecache.webhooks.kvcache_injection.launch import Launch, Start
from inferencecache.webhooks.kvcache_injection.request import RULE
from inferencecache.webhooks.validation.findings import Violation, forbidden, invalid, required

VOLUME: Final = "gpustack-kvcache-config"
MOUNT_PATH: Final = "/etc/gpustack/kvcache"
FILE: Final = "mooncake.json"

_DIRECTLY: Final = "start the engine directly, its program in command and its arguments in args"
_OR_DECLARE: Final = f'or set the annotation {keys.ANNOTATION_FORWARDED}: "true" if it passes on what is appended'

_NEVER: Final = {
    Start.NOTHING: f"it ends with a launcher and names no program, so appended arguments would be one: {_DIRECTLY}",
    Start.SHELL_TEXT: (
        f"it runs a shell's -c, to which appended arguments are $0, $1, …: the engine would not see them; {_DIRECTLY}"
    ),
}
_UNLESS_DECLARED: Final = {
    Start.SCRIPT: f"whether it passes arguments on is not seen from outside the image: {_DIRECTLY}, {_OR_DECLARE}",
    Start.HIDDEN: f"the command line inside one argument cannot be judged: {_DIRECTLY}, {_OR_DECLARE}",
    Start.UNKNOWN: f"this is not an engine that is known: {_DIRECTLY}, {_OR_DECLARE}",
}


def launch_problems(launch: Launch, engine: Engine, *, forwarded: bool, where: str) -> Iterator[Violation]:
    """Why arguments appended to this command line would not reach the engine; `where` is the container's path."""
    start = launch.start
    if start is Start.IMAGE_COMMAND:
        yield required(RULE, f"{where}.command", f"appended arguments would replace those of the image: {_DIRECTLY}")
    elif start is Start.IMAGE_ENTRYPOINT and not forwarded:
        yield required(RULE, f"{where}.command", f"the image's entry point cannot be seen: {_DIRECTLY}, {_OR_DECLARE}")
    elif start in _NEVER:
        yield invalid(RULE, f"{where}.command", launch.program, _NEVER[start])
    elif start in _UNLESS_DECLARED and not forwarded:
        yield invalid(RULE, f"{where}.command", launch.program, _UNLESS_DECLARED[start])
    elif start is Start.ENGINE:
        yield from _engine_problems(launch, engine, where)
    if launch.cleared:
        yield invalid(
            RULE, f"{where}.command", "env -i", f"it starts the engine without the variables it needs: {_DIRECTLY}"
        )


def _engine_problems(launch: Launch, engine: Engine, where: str) -> Iterator[Violation]:
    if launch.family is not engine.family:
        yield invalid(
            RULE,
            f"{where}.command",
            launch.program,
            f"this starts {launch.family}, and the annotation {keys.ANNOTATION_ENGINE} says {engine.family}: "
            "make them agree",
        )
    if "--" in launch.arguments:
        yield invalid(
            RULE,
            f"{where}.args",
            "--",
            "what is appended behind it would not be read as flags: remove it, and give flags before positionals",
        )


def flag_problems(words: Sequence[str], engine: Engine, *, dtype_owned: bool, where: str) -> Iterator[Violation]:
    """The flags that only the webhook may give, wherever in the command line they stand."""
    given = flags_read(words, engine.known_flags, loosely=engine.reads_loosely)
    for flag, why in engine.refused_flags.items():
        if flag in given:
            yield forbidden(
                RULE, f"{where}.args", f"{_spelled(flag, given[flag])}: {why}; remove it, or the Pod's label"
            )
    if dtype_owned and DTYPE_FLAG in given:
        yield forbidden(
            RULE,
            f"{where}.args",
            f"{_spelled(DTYPE_FLAG, given[DTYPE_FLAG])}: the Binding's dtype is given to the engine, as engines of one "
            "domain must agree; remove it, and name a Binding of the dtype you want",
        )


def variable_problems(
    env: Sequence[Mapping[str, Any]], launch: Launch, engine: Engine, written: Sequence[str], *, where: str
) -> Iterator[Violation]:
    """The variables that must not be set, and those of ours that a launcher would set or unset past Kubernetes."""
    names = {entry.get("name", "") for entry in env}
    for name, why in engine.refused_variables.items():
        if name in names:
            yield forbidden(RULE, f"{where}.env[{name}]", f"{why}; remove it, or the Pod's label")
    for name in launch.assigned:
        if name in engine.refused_variables or name in written:
            yield forbidden(
                RULE,
                f"{where}.command",
                f"env changes {name} behind the value that is injected; remove that, or the Pod's label",
            )


def volume_problems(
    spec: Mapping[str, Any], container: Mapping[str, Any], engine: Engine, *, where: str
) -> Iterator[Violation]:
    """What occupies the place of the configuration file, on engines that get one."""
    if engine.vehicle is not Vehicle.FILE:
        return
    for index, volume in enumerate(spec.get("volumes") or []):
        if volume.get("name") == VOLUME:
            yield invalid(
                RULE, f"spec.volumes[{index}].name", VOLUME, "the webhook adds a volume of that name: rename yours"
            )
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("name") == VOLUME:
            yield invalid(
                RULE,
                f"{where}.volumeMounts[{index}].name",
                VOLUME,
                "the webhook mounts a volume of that name: rename yours",
            )
        path = posixpath.normpath("/" + str(mount.get("mountPath") or "").lstrip("/"))
        if path == MOUNT_PATH or path.startswith(f"{MOUNT_PATH}/"):
            yield invalid(
                RULE,
                f"{where}.volumeMounts[{index}].mountPath",
                mount["mountPath"],
                f"the webhook mounts the configuration at {MOUNT_PATH}: mount yours elsewhere",
            )


def _spelled(flag: str, word: str) -> str:
    given = word.partition("=")[0]
    return flag if given == flag else f"{given} is read as {flag}"
