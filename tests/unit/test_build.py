"""What a build says of itself is what it was told."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferencecache.build import commit


@pytest.mark.parametrize(("written", "known"), [("0a1b2c-dirty\n", "0a1b2c-dirty"), ("\n", None), (None, None)])
def test_the_commit_is_what_the_build_wrote_if_it_was_told_any(
    written: str | None, known: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "COMMIT"
    if written is not None:
        file.write_text(written)
    assert commit(file) == known
