"""Every recorded defaulting case that is sent to the webhook itself, through the whole admission app."""

from __future__ import annotations

import base64
import json

import jsonpatch
import pytest

from inferencecache.webhooks.app import create_app
from tests.cases.corpus import Case, cases, name_of, same
from tests.unit.webhooks.reviews import ask, path_for
from tests.unit.webhooks.stand_ins import Cluster, handlers


@pytest.mark.parametrize("case", cases("defaulting", through="webhook"), ids=name_of)
async def test_recorded_defaulting(case: Case) -> None:
    obj, old = case.one("object"), case.one("old")
    response = await ask(
        create_app(handlers(Cluster([]))),
        path_for("mutate", obj["kind"]),
        obj,
        obj["metadata"].get("namespace", "default"),
        operation="UPDATE" if old else "CREATE",
        old=old,
    )

    want = case.expected
    assert response["allowed"] is want["allowed"]
    if not want["allowed"]:
        assert response["status"]["code"] == want["code"]
        return
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    done = jsonpatch.apply_patch(obj, patch)
    assert bool(patch) is want["changed"]
    assert same(done) == same(want.get("object", obj))
