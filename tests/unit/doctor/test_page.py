"""docs/doctor.md lists every code as it is."""

from __future__ import annotations

import re
from pathlib import Path

from inferencecache.doctor.findings import CODES

PAGE = Path(__file__).parents[3] / "docs" / "doctor.md"


def test_the_page_has_every_code_with_its_status_and_meaning() -> None:
    rows = re.findall(r"^\| `([A-Z]+\d+)` \| (\w+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(code, one.status.value, one.meaning) for code, one in CODES.items()]
