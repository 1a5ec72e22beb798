"""Reads recorded cases and compares answers with them by meaning: what does not count is folded away on both sides."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from inferencecache.api.duration import Duration
from inferencecache.api.quantity import Quantity
from tests.cases.worker import with_effect

DATA = Path(__file__).parent / "data"


class _Loader(yaml.CSafeLoader):
    """YAML as Kubernetes reads it: timestamps are text, and only true and false are booleans."""


_Loader.yaml_implicit_resolvers = {
    char: [rule for rule in rules if rule[0].rpartition(":")[2] not in ("timestamp", "bool")]
    for char, rules in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(true|false)$"), ["t", "f"])


@dataclass(frozen=True)
class Case:
    """One folder: inputs, options, and what was recorded."""

    path: Path

    def all(self, name: str) -> list[Any]:
        """The documents of a file; none if it is not there."""
        path = self.path / f"{name}.yaml"
        if not path.exists():
            return []
        return [document for document in yaml.load_all(path.read_text(), _Loader) if document is not None]

    def one(self, name: str) -> Any:
        """The only document of a file, or None."""
        return next(iter(self.all(name)), None)

    @property
    def options(self) -> dict[str, Any]:
        """`case.yaml`."""
        return self.one("case") or {}

    @property
    def expected(self) -> dict[str, Any]:
        """`expected.yaml`."""
        found: dict[str, Any] = self.one("expected")
        return found


def cases(kind: str, through: str = "") -> list[Case]:
    """All cases of a kind, or only those that go through the `webhook` alone or through a real `apiserver`."""
    found = [Case(path) for path in sorted((DATA / kind).iterdir()) if path.is_dir()]
    return [case for case in found if not through or case.options.get("through", "webhook") == through]


def name_of(case: Case) -> str:
    """The test id of a case."""
    return case.path.name


def same(value: Any, key: str = "", parent: str = "") -> Any:
    """A value with spellings that mean the same folded together, and without nulls."""
    if isinstance(value, dict):
        return {name: same(item, name, key) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [same(item) for item in value]
    if parent in ("limits", "requests") or key in ("capacity", "sizeLimit"):
        return Quantity(value).value
    if key in ("firstEventTimeout", "evictionTTL"):
        return Duration(value).nanoseconds
    return value


def plain_pod(pod: Any, *, given_namespace: bool) -> Any:
    """A Pod without what does not count, with the kernel check's script replaced by a word."""
    pod = same(pod)
    metadata, spec = pod.get("metadata", {}), pod.get("spec", {})
    if not given_namespace:
        metadata.pop("namespace", None)
    _drop(metadata, {name for name in ("labels", "annotations") if metadata.get(name) == {}})
    if pod.get("status") == {}:
        del pod["status"]
    _drop(spec, {name for name, value in spec.items() if value == []})
    worker = "lmcache-mp-worker"
    if isinstance(spec.get("initContainers"), list):
        spec["initContainers"] = [
            with_effect(c) if c.get("name") == worker and c.get("restartPolicy") == "Always" and "command" in c else c
            for c in spec["initContainers"]
        ]
    for field in ("initContainers", "containers"):
        for container in spec.get(field, []) if isinstance(spec.get(field), list) else []:
            _drop(container, {name for name, value in container.items() if value == []})
            if container.get("resources") == {}:
                del container["resources"]
            command = container.get("command", [])
            if container["name"] == "lmcache-kernel-check" and len(command) == 3 and "c_ops" in command[2]:
                command[2] = "<kernel check script>"
    return pod


def without_args(pod: Any, ignored: dict[str, list[str]]) -> Any:
    """A Pod without args that a case leaves out of the comparison."""
    for container in (pod or {}).get("spec", {}).get("containers", []):
        if container["name"] in ignored:
            container["args"] = [arg for arg in container.get("args", []) if arg not in ignored[container["name"]]]
    return pod


def replaced(value: Any, table: dict[str, str]) -> Any:
    """A JSON value with texts replaced inside all its strings."""
    if isinstance(value, dict):
        return {key: replaced(item, table) for key, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, table) for item in value]
    if isinstance(value, str):
        for old, new in table.items():
            value = value.replace(old, new)
    return value


def _drop(mapping: dict[str, Any], names: set[str]) -> None:
    for name in names:
        del mapping[name]
