"""What is said of a machine that lacks something."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from hack.onenode import requirements
from hack.onenode.processes import ClusterError
from hack.onenode.requirements import Need, require

PRESENT = Need("root", True, "use sudo")
MISSING = Need("mounting", False, "run it privileged")
COMING = Need("runc", False, "installed with apt", arranged=True)


def test_every_lack_that_nobody_will_make_good_is_named_with_its_remedy() -> None:
    with pytest.raises(ClusterError) as refusal:
        require([PRESENT, MISSING, COMING, Need("overlayfs", False, "modprobe overlay")], {}, print)
    assert str(refusal.value).splitlines()[1:] == ["  mounting: run it privileged", "  overlayfs: modprobe overlay"]


def test_what_is_arranged_refuses_nobody() -> None:
    said: list[str] = []
    require([PRESENT, COMING], {"sh": "dash"}, said.append)
    assert said == []


@pytest.mark.parametrize(
    ("need", "line"),
    [
        (PRESENT, "ok        root"),
        (MISSING, "MISSING   mounting: run it privileged"),
        (COMING, "to do     runc: installed with apt"),
    ],
)
def test_a_line_tells_what_is_there_what_comes_and_what_is_missing(need: Need, line: str) -> None:
    assert str(need) == line


def test_what_does_not_answer_in_time_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 20)

    monkeypatch.setattr(subprocess, "run", hang)
    assert not requirements._succeeds("iptables", "-S")
