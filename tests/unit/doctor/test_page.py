"""docs/doctor.md lists every check and every code as it is."""

from __future__ import annotations

import re
from pathlib import Path

from inferencecache.doctor.findings import CODES, Check

PAGE = Path(__file__).parents[3] / "docs" / "doctor.md"


def test_the_page_has_every_code_with_its_status_and_meaning() -> None:
    rows = re.findall(r"^\| `([A-Z]+\d+)` \| (\w+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(code, one.status.value, one.meaning) for code, one in CODES.items()]


def test_the_page_has_every_check_in_its_order_with_the_family_of_its_codes() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .+ \| `([A-Z]+)` \|$", PAGE.read_text(), re.MULTILINE)
    assert [check for check, _ in rows] == [check.value for check in Check]
    assert {family for _, family in rows} | {"API"} == {code.rstrip("0123456789") for code in CODES}
