"""Every spelling of the opt-out that a user may think of (spec 03 §5)."""

from __future__ import annotations

import pytest

from inferencecache.api.annotations import opts_out


@pytest.mark.parametrize(
    ("value", "out"),
    [
        (v, False)
        for v in ("", "0", "f", "F", "FALSE", "false", "False", "no", "NO", "off", "OFF", "disable", "Disabled")
    ]
    + [(v, True) for v in ("1", "t", "T", "TRUE", "true", "yes", "y", "n", "2", "none", " ", "please skip", "fAlSe")],
)
def test_the_truth_of_the_opt_out(value: str, out: bool) -> None:
    assert opts_out(value) is out
