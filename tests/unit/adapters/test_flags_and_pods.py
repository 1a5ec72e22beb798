"""Flags are found wherever an engine would find them, and nothing is appended where it would be lost (decision A4)."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.adapters import pods
from inferencecache.adapters.flags import dashes, set_pair, tokens, values
from inferencecache.adapters.registry import InjectionError


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--flag", "old"], ["--flag", "new"]),
        (["--flag"], ["--flag", "new"]),
        (["--flag=old", "--other"], ["--flag", "new", "--other"]),
        (["--flag", "--other"], ["--flag", "new", "--other"]),
        (["--flag", "-o"], ["--flag", "new", "-o"]),
        (["--flag", "-1"], ["--flag", "new", "-1"]),
        (["--flag", "-"], ["--flag", "new", "-"]),
        (["a", "--flag", "old", "--flag", "later"], ["a", "--flag", "new", "--flag", "later"]),
    ],
)
def test_first_occurrence_of_a_flag_is_given_the_value(args: list[str], expected: list[str]) -> None:
    assert set_pair(args, "--flag", "new")
    assert args == expected
    assert set_pair(args, "--flag", "new")
    assert args == expected


def test_a_value_that_begins_with_a_dash_is_read_as_the_next_flag() -> None:
    assert values(["--a", "-1", "--b=2", "x", "--b", "3"]) == {"--a": "", "-1": "", "--b": "3"}
    assert [token.value for token in tokens(["x", "--a", "1"]) if not token.flag] == ["x"]


@pytest.mark.parametrize(
    ("container", "command", "args"),
    [
        ({"args": ["--a"]}, None, ["--a", "--my-flag", "v"]),
        ({"command": ["vllm", "--my_flag", "old"]}, ["vllm", "--my_flag", "v"], None),
        ({"command": ["vllm", "--my_flag=old"], "args": ["m"]}, ["vllm", "--my-flag", "v"], ["m"]),
        ({"command": ["vllm", "--my-flag"], "args": ["old", "--b"]}, ["vllm", "--my-flag"], ["v", "--b"]),
        ({"command": ["vllm", "--my-flag"], "args": ["--b"]}, ["vllm", "--my-flag", "v"], ["--b"]),
        ({"command": ["vllm", "--my-flag"], "args": ["-b"]}, ["vllm", "--my-flag", "v"], ["-b"]),
        ({"command": ["vllm"], "args": None}, ["vllm"], ["--my-flag", "v"]),
    ],
)
def test_a_flag_is_updated_where_it_stands(
    container: dict[str, list[str]], command: list[str] | None, args: list[str] | None
) -> None:
    for _ in range(2):
        pods.upsert_flag_pair(container, "--my-flag", "v", spelling=dashes)
        assert container.get("command") == command
        assert container.get("args") == args


@pytest.mark.parametrize(
    "container",
    [
        {"command": ["sh", "-c", "vllm serve m"]},
        {"command": ["/bin/bash", "-lc"], "args": ["exec vllm serve m"]},
        {"command": ["bash", "-o", "pipefail", "-c", "vllm serve m"]},
        {"command": ["bash", "--rcfile", "x", "-euo", "pipefail", "-c", "vllm serve m"]},
        {"args": ["sh", "-c", "vllm serve m"]},
        {"args": ["sh -c 'vllm serve m'"]},
        {"args": ["exec python3 -m vllm.entrypoints.openai.api_server --model m"]},
        {"args": ["cd /app && vllm serve m"]},
        {"args": ["set -e\nexec /opt/bin/vllm serve m"]},
        {"args": ["-c", "vllm serve m"]},
        {"command": ["su", "engine", "-c", "vllm serve m"]},
        {"command": ["env", "-S", "sh -c 'vllm serve m'"]},
        {"command": ["$(SHELL)", "-c"], "args": ["ulimit -l unlimited; vllm serve m"]},
        {"command": ["tini", "--", "env", "A=1", "sh", "-c", "vllm serve m"]},
        {"command": ["busybox", "sh", "-c", "vllm serve m"]},
        {"command": ["numactl", "--interleave=all", "sh", "-c", "vllm serve m"]},
        {"command": ["dumb-init", "--single-child", "bash", "-lc"], "args": ["vllm serve m"]},
        {"command": ["sh", "-c", "vllm serve $1"], "args": ["sh", "m"]},
        {"command": ["sh", "-c", 'vllm serve "$@"']},  # the first argument added would become $0
        {"command": ["sh", "-c"]},
    ],
)
def test_a_shell_that_swallows_arguments_is_refused(container: dict[str, list[str]]) -> None:
    with pytest.raises(InjectionError, match="shell script"):
        pods.require_extensible({"name": "vllm", **container})


@pytest.mark.parametrize(
    "container",
    [
        {},
        {"command": ["vllm", "serve", "m"]},
        {"command": ["sh", "-c", 'exec vllm serve "$@"', "--"]},
        {"command": ["sh", "-c", 'exec vllm serve "${@}"'], "args": ["sh", "m"]},
        {"args": ["-c", 'cd /app && vllm serve "$@"', "sh"]},
        {"command": ["/bin/sh", "/start.sh"]},
        {"args": ["/models/my model", "--port", "8000"]},
        {"args": ["--chat-template", "sh -c x"]},
        {"args": ["m", "--chat-template", "sh", "-c", "x"]},
        {"command": ["/start.sh"], "args": ["--chat-template", "answer with python 3"]},
        {"command": ["numactl", "--interleave=all", "/opt/bin/vllm", "serve", "sh", "-c"]},
        {"command": ["/usr/bin/python3.12", "-m", "sglang.launch_server", "--model", "sh", "-c", "x"]},
    ],
)
def test_everything_else_can_be_extended(container: dict[str, list[str]]) -> None:
    pods.require_extensible({"name": "vllm", **container})


def test_the_engine_is_the_named_container_else_the_only_one_besides_our_sidecar() -> None:
    vllm, other, ours = {"name": "vllm"}, {"name": "main"}, {"name": pods.SUBSCRIBER}
    assert pods.engine_container({"containers": [other, vllm]}, "vllm") is vllm
    assert pods.engine_container({"containers": [other]}, "vllm") is other
    assert pods.engine_container({"containers": [other, ours]}, "vllm") is other
    with pytest.raises(InjectionError, match='none is named "sglang"'):
        pods.engine_container({"containers": [other, vllm]}, "sglang")
    with pytest.raises(InjectionError, match="no containers"):
        pods.engine_container({}, "vllm")


def test_a_variable_is_overwritten_with_its_source_and_later_duplicates_stay() -> None:
    container = {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}, {"name": "A", "value": "later"}]}
    pods.upsert_env(container, "A", "1")
    pods.upsert_env(container, "B", "2")
    assert container["env"] == [
        {"name": "A", "value": "1"},
        {"name": "A", "value": "later"},
        {"name": "B", "value": "2"},
    ]
    pods.remove_env(container, "A")
    assert container["env"] == [{"name": "B", "value": "2"}]


def test_a_render_that_got_defaults_since_is_left_alone_and_a_changed_one_replaced() -> None:
    ours = {"name": "w", "command": ["x"]}
    holder: dict[str, Any] = {"list": [{**ours, "terminationMessagePath": "/dev/termination-log"}, {"name": "z"}]}
    pods.upsert_named(holder, "list", ours)
    assert holder["list"][0]["terminationMessagePath"] == "/dev/termination-log"
    holder["list"][0]["args"] = ["forged"]
    pods.upsert_named(holder, "list", ours)
    assert holder["list"] == [ours, {"name": "z"}]
