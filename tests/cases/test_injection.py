"""Every recorded injection case, sent through the whole admission app."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferencecache.adapters.registry import Settings, load_adapters
from inferencecache.webhooks.app import create_app
from tests.cases.corpus import Case, cases, name_of, plain_pod, replaced, without_args
from tests.unit.webhooks.reviews import POD_PATH, ask, message_of, patched
from tests.unit.webhooks.stand_ins import SETTINGS, Cluster, backend_from, handlers


@pytest.mark.parametrize("case", cases("injection"), ids=name_of)
async def test_recorded_injection(case: Case) -> None:
    runtimes, _ = load_adapters()
    documents = [
        {**document, "metadata": {**document["metadata"], "uid": f"uid-{index}"}}
        for index, document in enumerate(case.all("backend"))
    ]
    labels = {d["metadata"]["uid"]: f"<uid of {d['metadata']['namespace']}/{d['metadata']['name']}>" for d in documents}
    pod = replaced(case.one("pod"), {label: uid for uid, label in labels.items()})
    given = bool((pod.get("metadata") or {}).get("namespace"))
    namespace = case.options.get("requestNamespace") or pod["metadata"].get("namespace") or "default"
    image = case.options.get("subscriberImage", SETTINGS.kvevent_subscriber_image)
    cluster = Cluster()
    app = create_app(
        handlers(cluster, runtimes=runtimes, settings=Settings(image, SETTINGS.policy_server_grpc_address))
    )

    wanted = case.expected.get("passes") or [case.expected]
    for change, want in zip(case.options.get("passes") or [{}], wanted, strict=True):
        documents = [_changed(document, change) for document in documents]
        cluster.stored = [backend_from(document) for document in documents]
        response = await ask(app, POD_PATH, pod, namespace, operation=case.options.get("operation", "CREATE"))
        after = patched(pod, response)
        for text in case.options.get("reasonMentions") or []:
            assert text in message_of(response)
        before, now = (plain_pod(replaced(p, labels), given_namespace=given) for p in (pod, after))
        assert response["allowed"] is want["allowed"]
        assert len(response.get("warnings") or []) == want["warnings"]
        assert (before != now) is want["changed"]
        if want["changed"]:
            ignored = case.options.get("ignoreArgs") or {}
            assert without_args(now, ignored) == without_args(plain_pod(want["pod"], given_namespace=True), ignored)
        pod = after


def _changed(document: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A stored backend after the merge patches that a pass begins with."""
    name = document["metadata"]["name"]
    document = json.loads(json.dumps(document))
    if status := (change.get("status") or {}).get(name):
        document = _merged(document, {"status": status})
    changed: dict[str, Any] = _merged(document, (change.get("merge") or {}).get(name) or {})
    return changed


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged
