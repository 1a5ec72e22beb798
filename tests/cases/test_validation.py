"""Every recorded validation case that is sent to the webhook itself, through the whole admission app."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.webhooks.app import create_app
from tests.cases.corpus import Case, cases, name_of
from tests.unit.webhooks.reviews import ask, path_for
from tests.unit.webhooks.stand_ins import Cluster, backend_from, handlers

_KINDS: dict[str, Any] = {
    "CacheBackend": backend_from,
    "CachePolicy": CachePolicy.decode,
    "CacheTenant": CacheTenant.decode,
}


@pytest.mark.parametrize("case", cases("validation", through="webhook"), ids=name_of)
async def test_recorded_validation(case: Case) -> None:
    obj, old = case.one("object"), case.one("old")
    cluster = Cluster([_KINDS[other["kind"]](other) for other in case.all("existing")])
    response = await ask(
        create_app(handlers(cluster)),
        path_for("validate", obj["kind"]),
        obj,
        obj["metadata"].get("namespace", "default"),
        operation="UPDATE" if old else "CREATE",
        old=old,
    )

    want = case.expected
    assert response["allowed"] is want["allowed"]
    warnings = response.get("warnings") or []
    assert len(warnings) == want["warnings"]
    assert all(len(warning) <= 120 for warning in warnings)
    if not want["allowed"]:
        status = response["status"]
        assert status["code"] == want["code"]
        found = [(cause["field"], cause["reason"]) for cause in (status.get("details") or {}).get("causes", [])]
        if case.options.get("causes") == "set":
            found = list(set(found))
        assert sorted(found) == [(cause["field"], cause["kind"]) for cause in want["causes"]]
