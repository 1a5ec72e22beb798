"""The recorded cases that go through a real API server: its schema first, then our webhooks."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from inferencecache.api.defaulting import default_cache_backend
from inferencecache.api.kinds import KINDS, crds
from inferencecache.api.schema import apply_defaults, prune
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.errors import AlreadyExists, ApiError
from inferencecache.webhooks.app import create_app
from tests.cases.corpus import Case, cases, name_of, same
from tests.unit.webhooks.reviews import ask, path_for
from tests.unit.webhooks.stand_ins import Cluster, handlers

_KIND_OF = {kind.resource.kind: kind for kind in KINDS}


@pytest.fixture
async def server(client: Client) -> Client:
    await install_crds(client, crds())
    return client


async def dry_run(client: Client, obj: dict[str, Any]) -> dict[str, Any]:
    """The object as it would be stored. Raises `ApiError`."""
    namespace = obj["metadata"].get("namespace", "")
    with contextlib.suppress(AlreadyExists):
        await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace or "default"}})
    resource = _KIND_OF[obj["kind"]].resource
    scope = f"/namespaces/{namespace}" if namespace else ""
    path = f"/apis/{resource.api_version}{scope}/{resource.plural}"
    body = await client.request("POST", path, body=obj, params={"dryRun": "All"})
    stored: dict[str, Any] = json.loads(body)
    for name in ("uid", "creationTimestamp", "generation", "managedFields", "resourceVersion"):
        stored["metadata"].pop(name, None)
    return stored


async def admitted(client: Client, obj: dict[str, Any]) -> dict[str, Any]:
    """Schema defaults and then the defaulting webhook, as a user's object gets them."""
    done = await dry_run(client, obj)
    return default_cache_backend(done) if obj["kind"] == "CacheBackend" else done


def causes(error: ApiError) -> list[tuple[str, str]]:
    return sorted(
        (cause.get("field", ""), cause.get("reason", ""))
        for cause in error.details.get("causes", [])
        if cause.get("field") != "<nil>"
    )


def expected_causes(case: Case, found: list[tuple[str, str]]) -> list[Any]:
    """The recorded causes in the form that the case compares."""
    wanted = [(cause["field"], cause["kind"]) for cause in case.expected["causes"]]
    if case.options.get("causes") == "fields":
        assert sorted({field for field, _ in found}) == sorted({field for field, _ in wanted})
    elif case.options.get("causes") == "set":
        assert set(found) == set(wanted)
    else:
        assert found == sorted(wanted)
    return wanted


@pytest.mark.parametrize("case", cases("defaulting", through="apiserver"), ids=name_of)
async def test_recorded_storing(case: Case, server: Client) -> None:
    obj = case.one("object")
    try:
        stored = await dry_run(server, await admitted(server, obj))
    except ApiError as refusal:
        assert case.expected["stored"] is False
        expected_causes(case, causes(refusal))
    else:
        assert case.expected["stored"] is True
        assert same(stored) == same(case.expected["object"])


@pytest.mark.parametrize("case", cases("validation", through="apiserver"), ids=name_of)
async def test_recorded_applying(case: Case, server: Client) -> None:
    obj, want = case.one("object"), case.expected
    try:
        stored = await dry_run(server, await admitted(server, obj))
    except ApiError as refusal:
        assert (want["allowed"], want["layer"]) == (False, "schema")
        expected_causes(case, causes(refusal))
        return
    app = create_app(handlers(Cluster([])))
    response = await ask(app, path_for("validate", obj["kind"]), stored, stored["metadata"]["namespace"])
    assert (want["layer"], want["allowed"]) == ("webhook", response["allowed"])
    if not want["allowed"]:
        found = [(cause["field"], cause["reason"]) for cause in response["status"]["details"]["causes"]]
        expected_causes(case, sorted(found))


@pytest.mark.parametrize("case", cases("defaulting") + cases("validation"), ids=name_of)
async def test_offline_defaulting_and_pruning_give_what_the_server_stores(case: Case, server: Client) -> None:
    obj = case.one("object")
    try:
        stored = await dry_run(server, obj)
    except ApiError:
        return  # nothing is stored, so there is nothing to compare
    kind = _KIND_OF[obj["kind"]]
    offline = apply_defaults(kind, prune(kind, obj))
    stored.pop("status", None)
    offline.pop("status", None)
    assert offline == stored
