"""A token is read anew when it is rotated, and a file that cannot be read costs nothing but a warning."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from inferencecache.subscriber.credentials import TokenFile


def test_a_token_is_read_anew_every_few_seconds(tmp_path: Path) -> None:
    now = [0.0]
    file = tmp_path / "token"
    token = TokenFile(file, lambda: now[0])
    file.write_text("first\n")
    assert token() == "first"
    file.write_text("second\n")
    now[0] = 9.0
    assert token() == "first"
    now[0] = 10.0
    assert token() == "second"


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_while_the_file_cannot_be_read_the_token_before_counts(tmp_path: Path, content: bytes | None) -> None:
    now = [0.0]
    file = tmp_path / "token"
    file.write_text("good")
    token = TokenFile(file, lambda: now[0])
    assert token() == "good"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    now[0] = 10.0
    with capture_logs() as lines:
        assert token() == "good"
    assert [line["log_level"] for line in lines] == ["warning"]
