"""Looking at and changing raw Pod specs: which container is the engine, what its command really is, its variables.

Pod specs are plain manifests, so that fields this operator has never heard of pass through untouched (decision A2).
Changes are made in place, on a copy that the caller owns.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Any, Final

from inferencecache.adapters.flags import Spelling, as_written, flag_of, has_flag, set_pair
from inferencecache.adapters.registry import Container, InjectionError, PodSpec
from inferencecache.adapters.shells import SHELLS, read_shell

SUBSCRIBER: Final = "kvevent-subscriber"
KERNEL_CHECK: Final = "lmcache-kernel-check"

_SHELL_LINE = re.compile(r"(?:^|[\s;&|(/])(?:sh|bash|vllm|sglang|python[\d.]*)\s")
_ENGINE = re.compile(r"vllm|sglang|python[\d.]*")
_FORWARDS = re.compile(r"\$(?:[@*]|\{[@*])")
_DEFAULTED: Final = frozenset(
    {"imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy", "timeoutSeconds", "successThreshold"}
    | {"apiVersion"}  # of a fieldRef
)
_TOKEN_DIRECTORY: Final = "/var/run/secrets/kubernetes.io/serviceaccount"


def engine_container(pod_spec: PodSpec, name: str) -> Container:
    """The engine: the container of the canonical name, else the only one (spec 03 §10).

    Our own sidecar does not count, so that a wired Pod resolves as it did the first time (decision A3).
    Raises `InjectionError`.
    """
    containers: list[Container] = pod_spec.get("containers") or []
    for container in containers:
        if name and container.get("name") == name:
            return container
    others = [container for container in containers if container.get("name") != SUBSCRIBER]
    if len(others) == 1:
        return others[0]
    if not others:
        raise InjectionError("the Pod has no containers to wire")
    names = ", ".join(str(container.get("name", "")) for container in others)
    raise InjectionError(
        f'cannot tell the engine among the containers {names}: none is named "{name}"; name the engine\'s container so'
    )


def strings(container: Container, field: str) -> list[str]:
    """A list of text in a container (`command`, `args`); anything else in it is left for the API server to refuse."""
    found = container.get(field) or []
    return [entry for entry in found if isinstance(entry, str)] if isinstance(found, list) else []


def require_extensible(container: Container) -> None:
    """Make sure that entries appended to `args` reach the engine.

    A shell runs its script with whatever follows as `$0`, `$1`, … and the engine sees nothing of it unless the script
    passes `"$@"` on. Raises `InjectionError` (decision A4): better unwired, with a reason, than half-wired.
    """
    wrapper = _shell_script(strings(container, "command"), strings(container, "args"))
    if wrapper is None:
        return
    script, followed = wrapper
    if not (_FORWARDS.search(script) and followed):
        raise InjectionError(
            f"container {container.get('name', '')} runs its engine through a shell script that arguments cannot be "
            'added to; start the engine directly, or let the script end in "$@" with at least one argument behind it'
        )


def _shell_script(command: Sequence[str], args: Sequence[str]) -> tuple[str, bool] | None:
    """The script that a shell runs, and whether anything follows it; None if the engine is started directly.

    Looks at the two lists as the one they become. Before the shell there may be launchers with options of their own
    (`numactl --interleave=all`). A whole shell line that comes before any engine is a script, whoever runs it: an
    image whose entry point is `sh` or `sh -c`, `su -c`, `env -S`. Behind a long flag it may be that flag's value.
    """
    argv = [*command, *args]
    flags = False
    for index, entry in enumerate(argv):
        if not flags and _SHELL_LINE.search(entry):
            return entry, index + 1 < len(argv)
        flags = flags or (entry.startswith("--") and len(entry) > 2)
        program = posixpath.basename(entry)
        if program in SHELLS:
            return _script_of_shell(argv[index + 1 :])
        if _ENGINE.fullmatch(program) or (flags and not command):
            return None  # from here on it is the engine's own arguments
    return None


def _script_of_shell(rest: Sequence[str]) -> tuple[str, bool] | None:
    runs_text, operands = read_shell(rest)
    if not runs_text:
        return None
    return (operands[0], len(operands) > 1) if operands else ("", False)


def upsert_flag_pair(container: Container, flag: str, value: str, spelling: Spelling = as_written) -> None:
    """Give a flag a value where it stands, in `command` or `args`, or append both to `args` (decision A4)."""
    command, args = strings(container, "command"), strings(container, "args")
    if has_flag(command, flag, spelling):
        value_is_first_arg = spelling(command[-1]) == flag and args and not flag_of(args[0])
        if value_is_first_arg and sum(spelling(flag_of(entry)) == flag for entry in command) == 1:
            container["args"] = [value, *args[1:]]
        else:
            set_pair(command, flag, value, spelling)
            container["command"] = command
    elif set_pair(args, flag, value, spelling):
        container["args"] = args
    else:
        container["args"] = [*args, flag, value]


def upsert_flag(container: Container, flag: str) -> None:
    """Append a flag without a value to `args` unless it is there, in `command` or `args`."""
    if flag not in strings(container, "command") and flag not in strings(container, "args"):
        container["args"] = [*strings(container, "args"), flag]


def upsert_named(holder: dict[str, Any], field: str, item: dict[str, Any], key: str = "name") -> None:
    """Put an item into a list of a manifest: in place of the first with the same key, else last.

    What is there already stays as it is if it differs only by what the API server fills in (decision A3).
    """
    items: list[dict[str, Any]] = list(holder.get(field) or ())
    for index, present in enumerate(items):
        if present.get(key) == item[key]:
            items[index] = present if same_render(item, present) else item
            break
    else:
        items.append(item)
    holder[field] = items


def same_render(wanted: Any, found: Any) -> bool:
    """Whether `found` is `wanted`, apart from what the API server adds to containers: defaults, the token's mount."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        wanted, found = _without_token(wanted), _without_token(found)
        added = found.keys() - wanted.keys()
        return (
            added <= _DEFAULTED
            and wanted.keys() <= found.keys()
            and all(same_render(value, found[key]) for key, value in wanted.items())
        )
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(same_render, wanted, found))
    return bool(type(wanted) is type(found) and wanted == found)


def _without_token(value: dict[str, Any]) -> dict[str, Any]:
    """A container without the mount of its service account's token; anything else as it is."""
    mounts = value.get("volumeMounts")
    if not isinstance(mounts, list):
        return value
    kept = [m for m in mounts if not (isinstance(m, dict) and m.get("mountPath") == _TOKEN_DIRECTORY)]
    without = {field: item for field, item in value.items() if field != "volumeMounts"}
    return {**without, "volumeMounts": kept} if kept else without


def upsert_env(container: Container, name: str, value: str) -> None:
    """Set a variable: the first entry of the name is overwritten where it stands, else one is appended (spec 04 §3)."""
    env: list[dict[str, Any]] = container.get("env") or []
    entry = {"name": name, "value": value}
    for index, present in enumerate(env):
        if present.get("name") == name:
            env[index] = entry
            break
    else:
        env = [*env, entry]
    container["env"] = env


def remove_env(container: Container, name: str) -> None:
    """Remove every entry of a variable."""
    env = container.get("env")
    if env and any(entry.get("name") == name for entry in env):
        container["env"] = [entry for entry in env if entry.get("name") != name]
