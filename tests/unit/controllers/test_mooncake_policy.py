"""The policy document (spec 10 §9.1). That a master reads it: tests/integration/mooncake/test_policy.py."""

from __future__ import annotations

import random

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.controllers.mooncake.policy import EMPTY_POLICY, LARGEST_QUOTA, PolicyError, render

names = st.text(
    st.characters(min_codepoint=0x20, exclude_characters="\x7f", exclude_categories=["Cs"]), min_size=1, max_size=30
).filter(lambda name: not name.startswith("_"))
tenants = st.dictionaries(names, st.integers(1, LARGEST_QUOTA), max_size=8)


def test_a_document_is_whole_sorted_and_has_plain_bytes() -> None:
    assert render([("team-b", 1 << 40), ("on", 1), ("123", LARGEST_QUOTA)]) == (
        'version: 1\ntenants:\n  - name: "123"\n    quota: 9223372036854775807\n'
        '  - name: "on"\n    quota: 1\n  - name: "team-b"\n    quota: 1099511627776\n'
    )


def test_without_tenants_the_list_is_there_and_empty() -> None:
    assert render([]) == EMPTY_POLICY == "version: 1\ntenants: []\n"


@given(tenants, st.randoms(use_true_random=False))
def test_equal_tenants_give_equal_bytes_and_are_read_back(wanted: dict[str, int], chance: random.Random) -> None:
    document = render(wanted.items())
    shuffled = list(wanted.items())
    chance.shuffle(shuffled)
    assert render(shuffled) == document
    read = yaml.safe_load(document)
    assert read["version"] == 1
    assert [(row["name"], row["quota"]) for row in read["tenants"]] == sorted(wanted.items())
    assert len(document.splitlines()) == max(2, 2 + 2 * len(wanted))


@pytest.mark.parametrize(
    ("tenants", "errors"),
    [
        ([("", 1)], ["a tenant has no name"]),
        ([("_a", 1)], ["tenant '_a': a name that starts with _ is the store's own"]),
        ([("a\n", 1)], [r"tenant 'a\n': a name has no control characters"]),
        ([("a\x7fb", 1)], [r"tenant 'a\x7fb': a name has no control characters"]),
        ([("\ud800", 1)], [r"tenant '\ud800': a name has no control characters"]),
        ([("a", 1), ("b", 1), ("a", 1)], ["tenant 'a' is listed twice"]),
        ([("a", 1), ("a", 2), ("a", 3)], ["tenant 'a' is listed twice", "tenant 'a' is listed twice"]),
        ([("a", 0)], ["tenant 'a': quota 0 is not in 1..9223372036854775807 bytes"]),
        ([("a", -1)], ["tenant 'a': quota -1 is not in 1..9223372036854775807 bytes"]),
        ([("a", 1 << 63)], ["tenant 'a': quota 9223372036854775808 is not in 1..9223372036854775807 bytes"]),
        (
            [("good", 1), ("_\t", 0), ("", 5), ("good", 2)],
            [
                r"tenant '_\t': a name that starts with _ is the store's own",
                r"tenant '_\t': a name has no control characters",
                r"tenant '_\t': quota 0 is not in 1..9223372036854775807 bytes",
                "a tenant has no name",
                "tenant 'good' is listed twice",
            ],
        ),
    ],
)
def test_nothing_is_rendered_while_anything_is_wrong_and_all_of_it_is_said(
    tenants: list[tuple[str, int]], errors: list[str]
) -> None:
    with pytest.raises(PolicyError) as raised:
        render(tenants)
    assert list(raised.value.errors) == errors
    assert str(raised.value) == "; ".join(errors)
