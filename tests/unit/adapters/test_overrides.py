"""engineOverrides reach what was injected, and nothing the Pod's owner wrote (spec 03 §8)."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from inferencecache.adapters.flags import dashes
from inferencecache.adapters.overrides import apply_overrides
from inferencecache.api.cachebackend import EngineOverrides

KNOB = ["--tune-knob", "9001"]


@pytest.mark.parametrize(
    ("pre", "post", "overrides", "expected"),
    [
        (["--m", "x"], ["--m", "x", *KNOB], {"args": ["--len", "8"]}, ["--m", "x", *KNOB, "--len", "8"]),
        (["--eager"], ["--eager"], {"args": ["--eager=false"]}, ["--eager"]),
        (["--eager"], ["--eager"], {"suppressArgs": ["--eager"]}, ["--eager"]),
        ([], KNOB, {"suppressArgs": ["--tune-knob"]}, []),
        ([], KNOB, {"suppressArgs": ["--tune-knob=9001"]}, KNOB),
        ([], KNOB, {"args": ["--tune-knob", "8"]}, ["--tune-knob", "8"]),
        ([], KNOB, {"args": ["--tune-knob=8"]}, ["--tune-knob=8"]),
        ([], [*KNOB, "--z"], {"args": KNOB, "suppressArgs": ["--tune-knob"]}, ["--z", *KNOB]),
        ([], [], {"suppressArgs": ["--bogus"], "args": ["--eager"]}, ["--eager"]),
        (["--tune-knob", "1"], KNOB, {"args": ["--tune-knob", "8"]}, ["--tune-knob", "8"]),
        (["--tune-knob", "9001"], KNOB, {"args": ["--tune-knob", "8"]}, KNOB),
        (["a"], ["a"], {"args": ["a"]}, ["a", "a"]),
        (["--top", "20"], ["--top", "20"], {"args": ["--top", "-1"]}, ["--top", "20"]),
        (["--seed", "-1"], ["--seed", "-1"], {"args": ["--top", "-1"]}, ["--seed", "-1", "--top", "-1"]),
        (["--top", "-1"], ["--top", "-1"], {"args": ["--top", "-1"]}, ["--top", "-1"]),
        (["--top", "20"], ["--top", "20"], {"args": ["--top", "-1", "-2"]}, ["--top", "20"]),
        (["-1"], ["-1"], {"args": ["--top=5", "-1"]}, ["-1", "--top=5"]),
        ([], [], {"args": ["--top", "-.5", "-1"]}, ["--top", "-.5", "-1"]),
    ],
)
def test_args(pre: list[str], post: list[str], overrides: dict[str, Any], expected: list[str]) -> None:
    container = {"args": list(post)}
    apply_overrides({"args": pre}, container, EngineOverrides.model_validate(overrides))
    assert container["args"] == expected


@pytest.mark.parametrize(
    ("pre", "overrides", "expected"),
    [
        (["--max_len", "4"], {"args": ["--max-len", "8"]}, ["--max_len", "4", *KNOB]),
        (["--max-len=4"], {"args": ["--max_len=8"]}, ["--max-len=4", *KNOB]),
        (["--max-len=4"], {"args": ["--max_len", "-1"]}, ["--max-len=4", *KNOB]),
        (["--max_len"], {"suppressArgs": ["--max-len"]}, ["--max_len", *KNOB]),
        ([], {"args": ["--tune_knob=8"]}, ["--tune_knob=8"]),
        ([], {"suppressArgs": ["--tune_knob"]}, []),
    ],
)
def test_a_flag_is_its_owners_in_every_spelling_that_the_engine_takes(
    pre: list[str], overrides: dict[str, Any], expected: list[str]
) -> None:
    container = {"args": [*pre, *KNOB]}
    apply_overrides({"args": pre}, container, EngineOverrides.model_validate(overrides), spelling=dashes)
    assert container["args"] == expected


def _env(**values: str) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


_TWICE = [*_env(A="1"), *_env(A="2")]


@pytest.mark.parametrize(
    ("pre", "post", "overrides", "expected"),
    [
        (_env(A="1"), _env(A="1"), {"env": _env(B="2")}, _env(A="1", B="2")),
        (_env(A="1"), _env(A="1"), {"env": _env(A="2"), "suppressEnv": ["A"]}, _env(A="1")),
        ([], _env(A="1", B="2"), {"env": _env(A="3")}, _env(A="3", B="2")),
        (_TWICE, _TWICE, {"env": _env(A="3")}, _TWICE),
        (_TWICE, _TWICE, {"suppressEnv": ["A"]}, _TWICE),
        (_TWICE, [*_env(A="ours"), *_env(A="2")], {"env": _env(A="3")}, [*_env(A="3"), *_env(A="2")]),
        ([], _env(A="1", B="2"), {"suppressEnv": ["A"]}, _env(B="2")),
        (_env(X="user"), _env(X="adapter"), {"env": _env(X="override")}, _env(X="override")),
        ([], _env(A="1", B="2"), {"suppressEnv": ["A"], "env": _env(A="3")}, _env(B="2", A="3")),
    ],
)
def test_env(pre: list[Any], post: list[Any], overrides: dict[str, Any], expected: list[Any]) -> None:
    container = {"env": copy.deepcopy(post)}
    apply_overrides({"env": pre}, container, EngineOverrides.model_validate(overrides))
    assert container["env"] == expected


def test_a_variable_whose_source_was_swapped_is_ours() -> None:
    before = {"env": [{"name": "P", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}
    after = {"env": [{"name": "P", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}]}
    apply_overrides(before, after, EngineOverrides.model_validate({"env": _env(P="x")}))
    assert after["env"] == _env(P="x")


def test_positionals_of_a_wired_pod_are_not_appended_again() -> None:
    """Not even behind a bare flag, whose value they seem to be."""
    overrides = EngineOverrides.model_validate({"args": ["x", "y"]})
    container: dict[str, Any] = {"args": ["--eager"]}
    apply_overrides(copy.deepcopy(container), container, overrides)
    assert container["args"] == ["--eager", "x", "y"]
    apply_overrides(copy.deepcopy(container), container, overrides, wired_before=True)
    assert container["args"] == ["--eager", "x", "y"]


def test_each_variable_is_looked_at_a_few_times_however_many_there_are() -> None:
    """A megabyte of them would keep every other Pod waiting, if each were looked for among all."""
    looks = 0

    class Entry(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal looks
            looks += 1
            return super().get(key, default)

    many = 500
    container: dict[str, Any] = {"env": [Entry(name=f"MINE{n}", value="x") for n in range(many)]}
    overrides = EngineOverrides.model_validate({"env": [{"name": f"NEW{n}", "value": "y"} for n in range(many)]})
    apply_overrides({"env": container["env"]}, container, overrides)
    assert len(container["env"]) == 2 * many
    assert looks <= 10 * many


def test_a_variable_of_a_wired_pod_that_is_suppressed_and_given_anew_stays_where_it_is() -> None:
    overrides = EngineOverrides.model_validate({"suppressEnv": ["A"], "env": _env(A="1", B="2")})
    container: dict[str, Any] = {"env": _env(A="ours", C="ours")}
    apply_overrides({}, container, overrides)
    first = _env(C="ours", A="1", B="2")
    assert container["env"] == first
    container = {"env": _env(C="ours", A="ours", B="2")}
    apply_overrides({"env": first}, container, overrides, wired_before=True)
    assert container["env"] == first


def test_no_overrides_change_nothing() -> None:
    container: dict[str, Any] = {}
    apply_overrides({}, container, None)
    apply_overrides({}, container, EngineOverrides())
    assert container == {}
