"""The dispatch table: one test row per row."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.adapters.registry import load_adapters
from inferencecache.controllers.cachebackend.plan import Path, plan_for
from tests.unit.controllers.backends import MANAGED, backend

EXTERNAL = {"provider": "LMCacheServer", "ownership": "External", "endpoint": "kv:65432"}
EVENTS_ONLY = {"mode": "EventsOnly"}
ON_POOL = {"provider": "Mooncake", "ownership": "Managed", "poolBindingRef": {"name": "team-a"}}


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"integration": EVENTS_ONLY, "runtime": "Other"}, Path.UNMANAGED),
        ({"integration": EVENTS_ONLY}, Path.EVENTS_ONLY),
        ({"integration": EVENTS_ONLY, "remoteStorage": EXTERNAL}, Path.EVENTS_ONLY),
        ({"runtime": "Other"}, Path.UNMANAGED),
        ({"remoteStorage": {**EXTERNAL, "provider": "Redis"}}, Path.UNMANAGED),
        ({"remoteStorage": EXTERNAL}, Path.EXTERNAL),
        ({"remoteStorage": EXTERNAL, "deploymentKind": "StatefulSet"}, Path.EXTERNAL),
        ({"type": "SGLangHiCache"}, Path.UNMANAGED),
        ({}, Path.HOST_ONLY),
        ({"remoteStorage": {"provider": "Unknown", "ownership": "Managed"}}, Path.UNMANAGED),
        ({"remoteStorage": MANAGED}, Path.MANAGED),
        ({"remoteStorage": MANAGED, "runtime": "vllm"}, Path.MANAGED),
        ({"remoteStorage": MANAGED, "deploymentKind": "StatefulSet"}, Path.MANAGED),
        ({"remoteStorage": ON_POOL}, Path.POOL),
        ({"remoteStorage": ON_POOL, "integration": EVENTS_ONLY}, Path.EVENTS_ONLY),
        ({"remoteStorage": ON_POOL, "runtime": "SGLang"}, Path.UNMANAGED),
        ({"remoteStorage": {**ON_POOL, "provider": "Redis"}}, Path.UNMANAGED),
    ],
)
def test_the_first_row_that_holds_decides(spec: dict[str, Any], path: Path) -> None:
    plan = plan_for(backend(**spec), *load_adapters())
    assert plan.path is path
    assert (plan.store is not None) == (path is Path.MANAGED)
