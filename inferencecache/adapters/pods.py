"""Looking at and changing raw Pod specs: which container is the engine, what its command really is, its variables.

Pod specs are plain manifests, so that fields this operator has never heard of pass through untouched (decision A2).
Changes are made in place, on a copy that the caller owns.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Any, Final

from inferencecache.adapters.flags import Spelling, as_written, has_flag, set_pair
from inferencecache.adapters.registry import Container, InjectionError, PodSpec

SUBSCRIBER: Final = "kvevent-subscriber"
KERNEL_CHECK: Final = "lmcache-kernel-check"

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"})
_SCRIPT_OPTION = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
_FORWARDS = re.compile(r"\$(?:[@*]|\{[@*])")


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
    script = _shell_script([*strings(container, "command"), *strings(container, "args")])
    if script is None:
        return
    text, followed = script
    if not (_FORWARDS.search(text) and followed):
        raise InjectionError(
            f"container {container.get('name', '')} runs its engine through a shell script that arguments cannot be "
            'added to; start the engine directly, or let the script end in "$@" with at least one argument behind it'
        )


def _shell_script(argv: Sequence[str]) -> tuple[str, bool] | None:
    """The script of `sh -c SCRIPT …` and whether anything follows it; None if there is no such wrapper."""
    for index, entry in enumerate(argv):
        if entry.startswith("--") and len(entry) > 2:
            return None  # past the program: from here on it is the engine's own arguments
        if posixpath.basename(entry) not in _SHELLS:
            continue
        for position in range(index + 1, len(argv)):
            option = argv[position]
            if _SCRIPT_OPTION.fullmatch(option):
                rest = argv[position + 1 :]
                return (rest[0], len(rest) > 1) if rest else None
            if not option.startswith(("-", "+")) and option != "sh":
                break
    return None


def upsert_flag_pair(container: Container, flag: str, value: str, spelling: Spelling = as_written) -> None:
    """Give a flag a value where it stands, in `command` or `args`, or append both to `args` (decision A4)."""
    for field in ("command", "args"):
        entries = container.get(field)
        if isinstance(entries, list) and has_flag(strings(container, field), flag, spelling):
            set_pair(entries, flag, value, spelling)
            return
    container["args"] = [*(container.get("args") or []), flag, value]


def upsert_flag(container: Container, flag: str) -> None:
    """Append a flag without a value to `args` unless it is there, in `command` or `args`."""
    if flag not in strings(container, "command") and flag not in strings(container, "args"):
        container["args"] = [*(container.get("args") or []), flag]


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
