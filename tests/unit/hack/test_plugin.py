"""What is packed as a kubectl plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack import plugin


def test_the_package_is_packed_wherever_the_checkout_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "tests" / "checkout"
    for name in ("LICENSE", "inferencecache/a.py", "inferencecache/__pycache__/a.pyc"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(name)
    monkeypatch.setattr(plugin, "ROOT", checkout)
    monkeypatch.setattr(plugin, "distributions", lambda name: iter(()))
    assert plugin.content_of().keys() == {
        plugin.COMMAND,
        "LICENSE",
        "lib/inferencecache/a.py",
        "lib/inferencecache/COMMIT",
    }
