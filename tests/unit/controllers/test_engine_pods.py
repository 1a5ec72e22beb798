"""What is told on engine Pods, and about which of them."""

from __future__ import annotations

import pytest

from inferencecache.controllers.engine_pods import owner_key
from inferencecache.kube.resource import Key


@pytest.mark.parametrize(
    "text", ["", "a", "a/", "/b", "a/b/c", "A/b", "a/B", "a.b/c", "a/-b", "a b/c", "a/" + "b" * 254]
)
def test_what_is_no_reference(text: str) -> None:
    assert owner_key(text) is None


def test_a_reference() -> None:
    assert owner_key("team-a/kv.one") == Key("team-a", "kv.one")
