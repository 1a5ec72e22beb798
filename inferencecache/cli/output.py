"""Objects out: YAML, JSON, or a unified diff of two states of the same object."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

import yaml

from inferencecache.cli import scalars


class Format(StrEnum):
    """What `-o` accepts."""

    YAML = "yaml"
    JSON = "json"
    DIFF = "diff"


class _Dumper(yaml.SafeDumper):
    """Block style throughout: no aliases, scripts as literal blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
# Texts that only kubectl takes for something else are quoted, too.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", scalars.TRUTH, list(scalars.TRUTH_BEGINS))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", scalars.NUMBER, list(scalars.NUMBER_BEGINS))


def to_yaml(manifest: Any) -> str:
    """The object as YAML, keys in the order they have."""
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=120)


def to_yaml_stream(manifests: Sequence[Any]) -> str:
    """Several objects as one YAML stream."""
    return "---\n".join(to_yaml(manifest) for manifest in manifests)


def to_json(manifests: Sequence[Any]) -> str:
    """One object as it is, several as a `List`, as kubectl prints them."""
    content = manifests[0] if len(manifests) == 1 else {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def unified_diff(before: Any, after: Any, name: str) -> str:
    """What changed, as a unified diff of the YAML; empty when nothing did. `before` may be None for a new object."""
    return "\n".join(_diff_lines(before, after, name))


def _diff_lines(before: Any, after: Any, name: str) -> Iterator[str]:
    old = [] if before is None else to_yaml(before).splitlines()
    new = to_yaml(after).splitlines()
    yield from difflib.unified_diff(
        old, new, "/dev/null" if before is None else f"before/{name}", f"after/{name}", lineterm="", n=5
    )
