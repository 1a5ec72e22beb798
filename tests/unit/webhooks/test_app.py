"""The skin: what comes in broken goes out as an answer, and the Pod webhook never blocks anybody (decision A1)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.webhooks.app import LARGEST_BODY, create_app
from inferencecache.webhooks.objects import MOST_CAUSES
from inferencecache.webhooks.selection import LookupFailed
from tests.unit.webhooks.reviews import POD_PATH, ask, message_of, patched, path_for, review_of
from tests.unit.webhooks.stand_ins import Cluster, handlers, post

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "ns", "labels": {"app": "llm"}},
    "spec": {"containers": [{"name": "vllm", "image": "vllm"}]},
}
VALIDATE = path_for("validate", "CacheBackend")


def _review(**more: Any) -> bytes:
    return json.dumps(review_of(POD, "ns", **more)).encode()


class _Stuck(Cluster):
    async def backends(self, namespace: str) -> Sequence[CacheBackend]:
        await asyncio.Event().wait()
        return []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"null", b"[]", b'{"request":null}', b'{"kind":"AdmissionReview"}', b"\xff", b'{"a":' * 20_000]
)
async def test_a_broken_review_is_refused_by_object_webhooks_and_admitted_by_the_pod_webhook(body: bytes) -> None:
    app = create_app(handlers(Cluster()))
    code, answer = await post(app, VALIDATE, body)
    assert (code, json.loads(answer)["response"]["allowed"]) == (400, False)
    code, answer = await post(app, POD_PATH, body)
    response = json.loads(answer)["response"]
    assert (code, response["allowed"]) == (200, True)
    assert "fail-open" in message_of(response)


async def test_a_truncated_pod_review_is_admitted_under_its_own_uid() -> None:
    body = _review()
    _, answer = await post(create_app(handlers(Cluster())), POD_PATH, body[: len(body) // 2])
    assert json.loads(answer)["response"]["uid"] == json.loads(body)["request"]["uid"]


async def test_an_oversized_review_is_refused_or_admitted_with_a_clear_message() -> None:
    app = create_app(handlers(Cluster()))
    filler = [b"x" * 2**20] * (LARGEST_BODY // 2**20 + 1)
    code, answer = await post(app, VALIDATE, _review(), chunks=filler)
    assert code == 413
    assert "larger than" in message_of(json.loads(answer)["response"])
    code, answer = await post(app, POD_PATH, _review(), chunks=filler)
    response = json.loads(answer)["response"]
    assert (code, response["allowed"], bool(response["uid"])) == (200, True, True)
    code, _ = await post(app, POD_PATH, b"", chunks=filler)
    assert code == 413


async def test_another_content_type_is_refused_by_object_webhooks_only() -> None:
    app = create_app(handlers(Cluster()))
    assert (await post(app, VALIDATE, _review(), content_type="text/plain"))[0] == 415
    assert (await post(app, POD_PATH, _review(), content_type="text/plain"))[0] == 200


async def test_a_review_in_many_pieces_is_read_as_one() -> None:
    body = _review()
    pieces = [body[i : i + 7] for i in range(7, len(body), 7)]
    code, answer = await post(create_app(handlers(Cluster())), POD_PATH, body[:7], chunks=pieces)
    assert (code, json.loads(answer)["response"]["allowed"]) == (200, True)


async def test_a_stuck_api_server_costs_a_pod_no_more_than_its_deadline() -> None:
    app = create_app(handlers(_Stuck()), pod_deadline=timedelta(seconds=0.05))
    async with asyncio.timeout(60):
        response = await ask(app, POD_PATH, POD, "ns")
    assert response["allowed"]
    assert "deadline" in message_of(response)


async def test_a_failed_lookup_admits_the_pod_and_says_so() -> None:
    cluster = Cluster(failure=LookupFailed("the API server is away"))
    response = await ask(create_app(handlers(cluster)), POD_PATH, POD, "ns")
    assert response["allowed"]
    assert "lookup failed (fail-open): the API server is away" in message_of(response)


async def test_a_bug_admits_pods_and_refuses_objects() -> None:
    app = create_app(handlers(Cluster(failure=ZeroDivisionError())))
    response = await ask(app, POD_PATH, POD, "ns")
    assert response["allowed"]
    assert "ZeroDivisionError" in message_of(response)
    policy = {"apiVersion": "inferencecache.io/v1alpha1", "kind": "CachePolicy", "metadata": {"name": "p"}, "spec": {}}
    response = await ask(app, path_for("validate", "CachePolicy"), policy, "ns")
    assert (response["allowed"], response["status"]["code"]) == (False, 500)


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"metadata": None, "spec": None},
        {"metadata": {}, "spec": {"containers": []}},
        {"metadata": {"labels": None, "annotations": None}, "spec": {"containers": [{}]}},
        {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [{"name": "vllm", "env": None, "args": None}]}},
        {"metadata": {"labels": {"app": 1}}},
        {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [None]}},
        {"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": "none"}},
    ],
)
async def test_pods_of_any_shape_are_admitted(pod: dict[str, Any]) -> None:
    backend = CacheBackend.decode(
        {
            "metadata": {"name": "kv", "namespace": "ns", "uid": "u"},
            "spec": {"runtime": "VLLM", "type": "LMCache", "engineSelector": {"matchLabels": {"app": "llm"}}},
        }
    )
    response = await ask(create_app(handlers(Cluster([backend]))), POD_PATH, pod, "ns")
    assert response["allowed"]
    patched(pod, response)


async def test_a_sibling_lookup_that_fails_refuses_without_a_verdict() -> None:
    policy = {"apiVersion": "inferencecache.io/v1alpha1", "kind": "CachePolicy", "metadata": {"name": "p"}, "spec": {}}
    app = create_app(handlers(Cluster(failure=TimeoutError())))
    response = await ask(app, path_for("validate", "CachePolicy"), policy, "ns")
    assert (response["allowed"], response["status"]["code"]) == (False, 403)


@pytest.mark.parametrize("verb", ["mutate", "validate"])
async def test_an_admitted_backend_is_noted_so_that_pods_right_behind_it_find_it(verb: str) -> None:
    """Decision A13; the two webhooks of one request may be served by two replicas."""
    backend = {
        "apiVersion": "inferencecache.io/v1alpha1",
        "kind": "CacheBackend",
        "metadata": {"name": "kv", "namespace": "ns"},
        "spec": {"runtime": "VLLM", "type": "LMCache"},
    }
    cluster = Cluster()
    path = path_for(verb, "CacheBackend")
    assert (await ask(create_app(handlers(cluster)), path, backend, "ns"))["allowed"]
    assert (await ask(create_app(handlers(cluster)), path, backend, "ns", dryRun=True))["allowed"]
    assert cluster.admissions == ["ns"]


@pytest.mark.parametrize("verb", ["mutate", "validate"])
@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("CacheBackend", {"runtime": "VLLM", "lmCache": {"hostMemory": {"capacity": "1e101"}}}),
        ("CachePolicy", {"evictionTTL": "soon"}),
        ("CacheTenant", {"tenantID": 5}),
    ],
    ids=["CacheBackend", "CachePolicy", "CacheTenant"],
)
async def test_what_is_stored_unreadably_may_lose_its_finalizer_and_gets_no_other_spec(
    verb: str, kind: str, spec: dict[str, Any]
) -> None:
    """Decision A7: only a spec that nobody wrote just now is let pass unread."""
    app, path = create_app(handlers(Cluster())), path_for(verb, kind)
    stored = {"apiVersion": "inferencecache.io/v1alpha1", "kind": kind, "metadata": {"name": "o"}, "spec": spec}
    held = {**stored, "metadata": {"name": "o", "finalizers": ["example.net/held"]}}
    moved = {**stored, "spec": {**spec, "more": "1"}}
    for new, old, operation, let_pass in [
        (stored, held, "UPDATE", True),
        (held, stored, "UPDATE", True),
        (moved, stored, "UPDATE", False),
        (stored, moved, "UPDATE", False),
        (stored, None, "CREATE", False),
    ]:
        response = await ask(app, path, new, "ns", operation=operation, old=old)
        assert response["allowed"] is let_pass, (operation, new)
        assert let_pass or response["status"]["code"] == 400


async def test_of_more_mistakes_than_anybody_reads_the_first_are_told_and_the_rest_is_counted() -> None:
    entries = [{"name": ""}] * (MOST_CAUSES + 7)
    spec = {"runtime": "VLLM", "type": "LMCache", "integration": {"engineOverrides": {"env": entries}}}
    backend = {"kind": "CacheBackend", "metadata": {"name": "kv", "namespace": "ns"}, "spec": spec}
    response = await ask(create_app(handlers(Cluster())), VALIDATE, backend, "ns")
    assert response["allowed"] is False
    causes = response["status"]["details"]["causes"]
    assert [cause["field"] for cause in causes] == [
        f"spec.integration.engineOverrides.env[{index}].name" for index in range(MOST_CAUSES)
    ]
    assert message_of(response).endswith("and 7 more]")
