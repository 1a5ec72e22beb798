"""Patches, judged by an implementation that is not ours."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.webhooks.patches import clone, diff

_KEYS = st.sampled_from(["a", "b", "a/b", "~", "~1", "", "0"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "x", "1"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)
_OBJECTS = st.dictionaries(_KEYS, _JSON, max_size=4)


@given(_OBJECTS, _OBJECTS)
def test_a_patch_turns_one_object_into_the_other(before: Any, after: Any) -> None:
    given_before = copy.deepcopy(before)
    result = jsonpatch.apply_patch(copy.deepcopy(before), diff(before, after))
    assert json.dumps(result, sort_keys=True) == json.dumps(after, sort_keys=True)
    assert before == given_before


@given(_OBJECTS)
def test_an_unchanged_object_needs_no_patch(value: Any) -> None:
    assert diff(value, clone(value)) == []
