"""How a shell's own command line is read: whether it runs a text (`-c`), and what follows its options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SHELLS: Final = frozenset({"sh", "bash", "rbash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh"})
_LONG_OPTIONS_WITH_VALUE: Final = frozenset({"--rcfile", "--init-file"})


def read_shell(words: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether a shell called with `words` runs a text, and what follows its options: the text or script file first."""
    runs_text = False
    index = 0
    while index < len(words) and words[index].startswith(("-", "+")):
        option = words[index]
        index += 1
        if option in ("-", "--"):
            break
        if option.startswith("--"):
            index += option in _LONG_OPTIONS_WITH_VALUE
            continue
        runs_text = runs_text or (option[0] == "-" and "c" in option)
        index += "o" in option.lower()  # -o pipefail, -O extglob
    return runs_text, list(words[index:])
