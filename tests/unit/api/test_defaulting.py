"""Rows D1 to D4 of spec 02 §3, and that nothing else is ever touched."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.api.defaulting import default_cache_backend

_KEPT = {"integration": {"mode": "EventsOnly"}, "observation": {"firstEventTimeout": "90s"}}


@pytest.mark.parametrize(
    ("spec", "added"),
    [
        ({**_KEPT, "integration": None}, {"integration": {}}),
        ({"observation": _KEPT["observation"]}, {"integration": {}}),
        ({"integration": {}}, {"observation": {"firstEventTimeout": "5m"}}),
        ({**_KEPT, "observation": {"modelID": "m"}}, {"observation": {"modelID": "m", "firstEventTimeout": "5m"}}),
        ({**_KEPT, "replicas": 2, "autoscaling": {}}, {"autoscaling": {"minReplicas": 2}}),
        ({**_KEPT, "replicas": 0, "autoscaling": {}}, {}),
        ({**_KEPT, "autoscaling": {}}, {}),
        ({**_KEPT, "replicas": 2, "autoscaling": {"minReplicas": 1}}, {}),
        (_KEPT, {}),
    ],
)
def test_rows(spec: dict[str, Any], added: dict[str, Any]) -> None:
    assert default_cache_backend({"spec": spec}) == {"spec": {**spec, **added}}


@pytest.mark.parametrize("raw", [{}, {"spec": None}, {"spec": {}}])
def test_an_object_without_spec_passes(raw: dict[str, Any]) -> None:
    assert default_cache_backend(raw)["spec"] == {"integration": {}, "observation": {"firstEventTimeout": "5m"}}


def test_nothing_to_add_gives_the_object_itself() -> None:
    raw = {"spec": _KEPT, "unknown": 1}
    assert default_cache_backend(raw) is raw


_SPECS = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.none() | st.integers(-1, 4),
        "autoscaling": st.none() | st.dictionaries(st.sampled_from(["minReplicas", "odd"]), st.integers(0, 3)),
        "integration": st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        "observation": st.none() | st.dictionaries(st.sampled_from(["firstEventTimeout", "odd"]), st.text(max_size=3)),
        "odd": st.integers(),
    },
)


@given(_SPECS)
def test_defaulting_twice_is_defaulting_once_and_keeps_what_was_given(spec: dict[str, Any]) -> None:
    raw = {"spec": spec}
    before = copy.deepcopy(raw)
    once = default_cache_backend(raw)
    assert default_cache_backend(once) is once
    assert raw == before
    for name, value in spec.items():
        if isinstance(value, dict):
            assert once["spec"][name].items() >= value.items()
        elif value is not None:
            assert once["spec"][name] == value
