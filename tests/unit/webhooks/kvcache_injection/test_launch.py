"""What a container starts, as its command line says."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.webhooks.kvcache_injection.launch import MOST_LAUNCHERS, Family, Start, read_launch

VLLM, SGLANG = Family.VLLM, Family.SGLANG


@pytest.mark.parametrize(
    ("command", "args", "start", "program", "family"),
    [
        ("vllm", "serve m", Start.ENGINE, "vllm", VLLM),
        ("/opt/venv/bin/vllm serve m", "", Start.ENGINE, "/opt/venv/bin/vllm", VLLM),
        ("python3 -m sglang.launch_server", "--port 1", Start.ENGINE, "python3", SGLANG),
        ("/usr/bin/python3.12 -u -m sglang.launch_server", "", Start.ENGINE, "/usr/bin/python3.12", SGLANG),
        ("python -uX utf8 -Wonce -m sglang.launch_server", "", Start.ENGINE, "python", SGLANG),
        ("python3 -Ximporttime -msglang.launch_server", "", Start.ENGINE, "python3", SGLANG),
        ("tini -- vllm serve m", "", Start.ENGINE, "vllm", VLLM),
        ("/sbin/tini -s -vvg -p SIGTERM -e 143 vllm", "serve m", Start.ENGINE, "vllm", VLLM),
        ("tini -pSIGKILL", "-- vllm serve m", Start.ENGINE, "vllm", VLLM),
        ("dumb-init -r 15:2 --rewrite=1:2 -c --single-child", "vllm serve m", Start.ENGINE, "vllm", VLLM),
        ("env A=1 B=2 vllm serve m", "", Start.ENGINE, "vllm", VLLM),
        ("/usr/bin/env -C /models -u A --chdir /x -- B=2 vllm", "serve m", Start.ENGINE, "vllm", VLLM),
        ("env --uns A vllm serve", "m", Start.ENGINE, "vllm", VLLM),
        ("timeout 60 vllm serve m", "", Start.ENGINE, "vllm", VLLM),
        ("timeout -k 5 --signal TERM --preserve-status -v 60", "vllm serve m", Start.ENGINE, "vllm", VLLM),
        ("timeout --kill-after=5 -sKILL 60 vllm", "", Start.ENGINE, "vllm", VLLM),
        ("busybox timeout 60 vllm serve m", "", Start.ENGINE, "vllm", VLLM),
        ("toybox env A=1 tini -- timeout 1h dumb-init vllm serve", "m", Start.ENGINE, "vllm", VLLM),
        ("sh -c vllm", "", Start.SHELL_TEXT, "sh", None),
        ("/bin/bash -lc text", "x", Start.SHELL_TEXT, "/bin/bash", None),
        ("bash --rcfile f -o pipefail -ec text", "", Start.SHELL_TEXT, "bash", None),
        ("busybox sh", "-c text", Start.SHELL_TEXT, "sh", None),
        ("env A=1 tini -- zsh -c text", "", Start.SHELL_TEXT, "zsh", None),
        ("/app/run.sh", "--port 1", Start.SCRIPT, "/app/run.sh", None),
        ("sh /app/run.sh", "", Start.SCRIPT, "sh", None),
        ("bash -e -- /app/run.sh", "", Start.SCRIPT, "bash", None),
        ("sh /app/run", "", Start.UNKNOWN, "sh", None),
        ("/entrypoint", "", Start.UNKNOWN, "/entrypoint", None),
        ("numactl vllm serve m", "", Start.UNKNOWN, "numactl", None),
        ("python3 -m vllm.entrypoints.openai.api_server", "", Start.UNKNOWN, "python3", None),
        ("python3 -c sglang.launch_server -m sglang.launch_server", "", Start.UNKNOWN, "python3", None),
        ("python3 serve.py -m sglang.launch_server", "", Start.UNKNOWN, "python3", None),
        ("python3 - -m sglang.launch_server", "", Start.UNKNOWN, "python3", None),
        ("python3 -m", "", Start.UNKNOWN, "python3", None),
        ("pythonic -m sglang.launch_server", "", Start.UNKNOWN, "pythonic", None),
        ("vllm-serve m", "", Start.UNKNOWN, "vllm-serve", None),
        ("tini --", "", Start.NOTHING, "", None),
        ("env A=1", "", Start.NOTHING, "", None),
        ("timeout", "60", Start.NOTHING, "", None),
        ("busybox", "", Start.NOTHING, "", None),
        ("", "serve m", Start.IMAGE_ENTRYPOINT, "", None),
        ("", "", Start.IMAGE_COMMAND, "", None),
    ],
)
def test_what_starts_is_found_behind_the_launchers(
    command: str, args: str, start: Start, program: str, family: Family | None
) -> None:
    launch = read_launch(command.split(), args.split())
    assert (launch.start, launch.program, launch.family) == (start, program, family)


@pytest.mark.parametrize(
    "words",
    [
        ["env", "-S", "vllm serve 'a model' --port 1", "--more"],
        ["env", "-Svllm serve 'a model' --port 1", "--more"],
        ["env", "-vS", "vllm serve 'a model' --port 1", "--more"],
        ["env", "--split-string", "vllm serve 'a model' --port 1", "--more"],
        ["env", "--split-string=vllm serve 'a model' --port 1", "--more"],
        ["env", "--sp=vllm serve 'a model' --port 1", "--more"],
        ["tini", "--", "/usr/bin/env", "-S", "vllm serve 'a model' --port 1", "--more"],
    ],
)
def test_a_command_line_inside_one_argument_is_seen_as_such_and_its_words_are_looked_at(words: list[str]) -> None:
    launch = read_launch(words, [])
    assert (launch.start, launch.program) == (Start.HIDDEN, "")
    assert launch.arguments == ("vllm", "serve", "a model", "--port", "1", "--more")


def test_what_env_finds_inside_the_argument_counts_as_if_it_stood_there() -> None:
    launch = read_launch(["env", "-u", "A", "-S", "-i -u B C=1 vllm serve", "m"], [])
    assert (dict(launch.assigned), launch.cleared) == ({"A": None, "B": None, "C": "1"}, True)
    assert launch.arguments == ("vllm", "serve", "m")


def test_quotes_that_do_not_close_hide_nothing() -> None:
    assert read_launch(["env", "-S", "vllm 'serve --kv-cache-dtype"], []).arguments[-1] == "--kv-cache-dtype"


def test_arguments_inside_arguments_are_taken_apart_only_so_often() -> None:
    launch = read_launch(["env", *["-S"] * 5000, "vllm"], [])
    assert (launch.start, launch.arguments[-1]) == (Start.HIDDEN, "vllm")


def test_a_very_long_argument_is_taken_apart_roughly() -> None:
    word = "'" + "x" * (32 << 10) + "'"
    assert read_launch(["env", "-S", f"vllm {word}"], []).arguments == ("vllm", word)


@pytest.mark.parametrize(
    ("words", "assigned", "cleared"),
    [
        ("env A=1 B= vllm", {"A": "1", "B": ""}, False),
        ("env -u A --unset=B C=3 vllm", {"A": None, "B": None, "C": "3"}, False),
        ("env A=1 env -u A vllm", {"A": None}, False),
        ("env -i vllm", {}, True),
        ("env - A=1 vllm", {"A": "1"}, True),
        ("env --ignore-environment vllm", {}, True),
        ("tini -- env --ignore-env vllm", {}, True),
        ("vllm env A=1", {}, False),
    ],
)
def test_what_launchers_do_to_the_environment_is_known(
    words: str, assigned: dict[str, str | None], cleared: bool
) -> None:
    launch = read_launch(words.split(), [])
    assert (dict(launch.assigned), launch.cleared) == (assigned, cleared)


LAUNCHERS = st.sampled_from(
    [
        ["tini", "--"],
        ["/sbin/tini", "-g", "-p", "TERM"],
        ["dumb-init", "-r", "1:2"],
        ["env", "A=1"],
        ["env", "-u", "B", "--"],
        ["timeout", "-k", "5", "60"],
        ["busybox"],
        ["toybox"],
    ]
)
WORD = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)


@given(launchers=st.lists(LAUNCHERS, max_size=4), rest=st.lists(WORD, max_size=6), cut=st.integers(0, 20))
def test_launchers_change_nothing_of_what_is_behind_them_however_the_words_are_spread(
    launchers: list[list[str]], rest: list[str], cut: int
) -> None:
    words = [word for launcher in launchers for word in launcher] + ["vllm", *rest]
    cut = max(1, cut % (len(words) + 1))
    launch = read_launch(words[:cut], words[cut:])
    assert (launch.start, launch.program, launch.arguments) == (Start.ENGINE, "vllm", tuple(rest))


@given(words=st.lists(WORD | st.sampled_from(["env", "tini", "sh", "-c", "--", "-", "python3", "-m", "timeout"])))
def test_every_command_line_is_read_and_no_word_is_made_up(words: list[str]) -> None:
    launch = read_launch(words, [])
    if launch.program:
        assert launch.program in words
        assert posixpath.basename(launch.program) not in ("env", "tini", "dumb-init", "busybox", "toybox", "timeout")
    if launch.start is not Start.HIDDEN:
        assert launch.arguments == tuple(words[len(words) - len(launch.arguments) :])
    assert (launch.family is None) == (launch.start is not Start.ENGINE)


def test_launchers_are_taken_off_up_to_a_number_that_nobody_needs() -> None:
    assert read_launch(["env"] * MOST_LAUNCHERS + ["vllm"], []).start is Start.ENGINE
    beyond = read_launch(["env"] * (MOST_LAUNCHERS + 1) + ["vllm"], [])
    assert (beyond.start, beyond.program, beyond.arguments) == (Start.UNKNOWN, "env", ("vllm",))
