"""`$(NAME)` in a container's command, args and variables, resolved the way the kubelet does before anything starts.

Only literal variables of the container itself are known while a Pod is admitted. A reference to anything else, a Secret
or a field of the Pod, stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_REFERENCE: Final = re.compile(r"\$\$|\$\(([^)]*)\)")


def literal_variables(env: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The variables whose values are known; a variable may refer to those before it."""
    known: dict[str, str] = {}
    for entry in env:
        name = entry.get("name", "")
        if entry.get("valueFrom"):
            known.pop(name, None)
        else:
            known[name] = expand(entry.get("value") or "", known)
    return known


def expand(word: str, variables: Mapping[str, str]) -> str:
    """The word as the program gets it."""

    def resolve(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return _REFERENCE.sub(resolve, word)


def literally(word: str) -> str:
    """How to write a word so that the program gets exactly this one."""
    return word.replace("$", "$$")
