"""What `inferencecache pool` draws."""

from __future__ import annotations

import io

from rich.console import Console

from inferencecache.cli.pool import together


def test_that_there_is_no_pool_is_said() -> None:
    drawn = io.StringIO()
    Console(file=drawn).print(together([]))
    assert drawn.getvalue() == "there is no KVCachePool\n"
