"""What this product renders, a real master reads; what it refuses to render, a master would die of (spec 10 §9.1)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferencecache.controllers.mooncake.admin import MooncakeClients
from inferencecache.controllers.mooncake.policy import LARGEST_QUOTA, PolicyError, render
from tests.mooncake import Master, MasterDied

ODD_NAMES = [
    "on", "off", "yes", "null", "~", "true", "1e3", "0x10", "0o7", "123", "1.5", ".inf", "-", "- a", "a: b", "#a", "{",
    "[", "*a", "&a", "!a", "|", ">", "%41", "'", '"', "\\", "\\n", " a", "a ", "é", "😀", "\x85", "\u2028", "\ufeff",
    "default", "2026-11-30", "12:30:45", "x" * 63,
]  # fmt: skip


async def ledger(master: Master, clients: MooncakeClients) -> dict[str, int]:
    entries = await clients.at(master.admin).quotas()
    return {name: entry.requested_quota_bytes for name, entry in entries.items() if entry.has_explicit_policy}


async def test_names_that_yaml_takes_for_something_else_stay_names(tmp_path: Path, clients: MooncakeClients) -> None:
    wanted = {name: quota for quota, name in enumerate(ODD_NAMES, start=1)} | {"largest": LARGEST_QUOTA}
    with Master(tmp_path, policy=render(wanted.items())) as master:
        assert await ledger(master, clients) == wanted
        await clients.at(master.admin).put_quota("a", 1)
        master.restart()  # from what the master itself made of it
        assert await ledger(master, clients) == {**wanted, "a": 1}


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(names, st.integers(-1, LARGEST_QUOTA + 1)), max_size=4))
async def test_whatever_is_rendered_a_master_starts_from(
    tmp_path_factory: pytest.TempPathFactory, clients: MooncakeClients, tenants: list[tuple[str, int]]
) -> None:
    try:
        document = render(tenants)
    except PolicyError:
        return
    with Master(tmp_path_factory.mktemp("master"), policy=document) as master:
        assert await ledger(master, clients) == dict(tenants)


@pytest.mark.parametrize(
    "document",
    [
        None,
        "",
        "tenants: []\n",
        "version: 2\ntenants: []\n",
        "version: 1\n",
        "version: 1\ntenants:\n",
        'version: 1\ntenants:\n  - name: ""\n    quota: 1\n',
        'version: 1\ntenants:\n  - name: "_a"\n    quota: 1\n',
        'version: 1\ntenants:\n  - name: "a\\x7f"\n    quota: 1\n',
        'version: 1\ntenants:\n  - name: "a\\n"\n    quota: 1\n',
        'version: 1\ntenants:\n  - name: "a"\n    quota: 1\n  - name: "a"\n    quota: 1\n',
        'version: 1\ntenants:\n  - name: "a"\n    quota: 0\n',
        'version: 1\ntenants:\n  - name: "a"\n    quota: -1\n',
        'version: 1\ntenants:\n  - name: "a"\n    quota: 9223372036854775808\n',
        'version: 1\ntenants:\n  - name: "a"\n    quota: 1Gi\n',
    ],
    ids=[
        "no file", "empty file", "no version", "another version", "no tenants", "null tenants", "no name",
        "underscore", "DEL", "newline", "twice", "zero", "negative", "over 63 bits", "binary unit",
    ],
)  # fmt: skip
def test_what_is_never_rendered_would_end_a_master(tmp_path: Path, document: str | None) -> None:
    with pytest.raises(MasterDied, match="tenant quota policy"):
        Master(tmp_path, policy=document).start()
