"""What is told on engine Pods, and about which of them."""

from __future__ import annotations

import pytest

from inferencecache.controllers.engine_pods import opts_out, owner_key
from inferencecache.kube.resource import Key


@pytest.mark.parametrize("value", ["", "0", "f", "F", "FALSE", "false", "False", "no", "OFF", "Disable", "disabled"])
def test_spellings_that_wire_anyway(value: str) -> None:
    assert not opts_out(value)


@pytest.mark.parametrize("value", ["1", "t", "true", "True", "yes", "fAlSe", "because"])
def test_everything_else_opts_out(value: str) -> None:
    assert opts_out(value)


@pytest.mark.parametrize(
    "text", ["", "a", "a/", "/b", "a/b/c", "A/b", "a/B", "a.b/c", "a/-b", "a b/c", "a/" + "b" * 254]
)
def test_what_is_no_reference(text: str) -> None:
    assert owner_key(text) is None


def test_a_reference() -> None:
    assert owner_key("team-a/kv.one") == Key("team-a", "kv.one")
