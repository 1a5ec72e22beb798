"""What holds a pool of which nothing is left but what nobody can read; the rest of its way out runs on real parts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from inferencecache.api.stored import StoredBinding
from inferencecache.controllers.kvcachepool.act import Writer
from inferencecache.controllers.kvcachepool.snapshot import Snapshot
from inferencecache.controllers.kvcachepool.teardown import Debtor, Held, Teardown
from inferencecache.kube.errors import DecodeError
from tests.unit.controllers.pools import binding, pool

NOBODY: Any = None
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def pointing_nowhere() -> StoredBinding:
    """A Binding whose pool cannot be read."""
    metadata = {"name": "lost", "namespace": "team"}
    return StoredBinding.model_validate_json(json.dumps({"metadata": metadata, "spec": {"poolRef": {"name": 5}}}))


async def held(found: Iterable[StoredBinding] | Exception) -> Held:
    """What holds a pool without Bindings of its own, when a look finds these."""

    async def look() -> Iterable[StoredBinding]:
        if isinstance(found, Exception):
            raise found
        return found

    leaving = pool(deleting=True)
    run = Teardown(Writer(NOBODY), NOBODY, look, leaving, Debtor(), Snapshot.of([leaving], []), None, NOW)
    with pytest.raises(Held) as caught:
        await run.run()
    return caught.value


@pytest.mark.parametrize(
    "found",
    [[pointing_nowhere(), binding(pool="other")], DecodeError("KVCachePoolBinding team/lost does not fit its view")],
    ids=["no readable pool", "nothing readable at all"],
)
async def test_a_binding_that_may_be_any_pools_holds_each_and_is_looked_for_by_the_clock(
    found: Iterable[StoredBinding] | Exception,
) -> None:
    hold = await held(found)
    assert (hold.reason, hold.wakes) == ("HeldByBindings", False)
    assert "team/lost" in hold.message
    assert "mend or delete" in hold.message
