"""What the recorded cases do not say: admitting twice in every mode, backends that cannot serve, reasons, notes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from prometheus_client import REGISTRY

from inferencecache.adapters.registry import RuntimeRegistry, Settings, load_adapters
from inferencecache.webhooks.app import create_app
from inferencecache.webhooks.handlers import Handlers
from inferencecache.webhooks.unwired import UnwiredMemo
from tests.unit.api.broken_rules import ANSWERED, GOOD_BACKENDS
from tests.unit.webhooks.reviews import POD_PATH, ask, message_of, patched
from tests.unit.webhooks.stand_ins import SETTINGS, Cluster, backend_from, handlers

BY, UID, SKIPPED = (f"inferencecache.io/{name}" for name in ("injected-by", "injected-by-uid", "inject-skipped"))


def _backend(name: str = "kv", *, meta: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", **(meta or {})},
        "spec": {
            "runtime": "VLLM",
            "type": "LMCache",
            "observation": {"modelID": "m"},
            "engineSelector": {"matchLabels": {"app": "llm"}},
            **spec,
        },
    }


def _pod(*, container: str = "vllm", annotations: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "p", "namespace": "ns", "labels": {"app": "llm"}}
    if annotations is not None:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": {"containers": [{"name": container, "image": "vllm", **fields}]}}


class Webhook:
    """The Pod webhook over some backends."""

    def __init__(self, *backends: dict[str, Any], settings: Settings = SETTINGS) -> None:
        self.memo = UnwiredMemo()
        cluster = Cluster([backend_from(backend) for backend in backends])
        self._app = create_app(Handlers(load_adapters()[0], settings, cluster, cluster, self.memo))

    async def __call__(self, pod: Any) -> tuple[Any, str]:
        response = await ask(self._app, POD_PATH, pod, "ns")
        assert response["allowed"]
        return patched(pod, response), message_of(response)


@pytest.mark.parametrize(
    ("spec", "container"),
    [
        ({}, "vllm"),
        ({}, "engine"),
        ({"integration": {"mode": "EventsOnly"}}, "vllm"),
        ({"integration": {"mode": "EventsOnly"}}, "engine"),
        ({"integration": {"engineOverrides": {"args": ["--max-model-len", "8192", "positional"]}}}, "vllm"),
        ({"integration": {"engineOverrides": {"env": [{"name": "LMCACHE_CHUNK_SIZE", "value": "512"}]}}}, "engine"),
        ({"integration": {"engineOverrides": {"suppressEnv": ["LMCACHE_CHUNK_SIZE"]}}}, "vllm"),
    ],
)
async def test_admitting_a_wired_pod_again_changes_nothing(spec: dict[str, Any], container: str) -> None:
    webhook = Webhook(_backend(**spec))
    wired, message = await webhook(_pod(container=container))
    assert wired["metadata"]["annotations"] == {BY: "ns/kv", UID: "uid-kv"}
    assert message == ""
    assert (await webhook(wired))[0] == wired
    defaulted = copy.deepcopy(wired)  # as a live Pod looks, copied as a manifest
    for one in defaulted["spec"]["containers"]:
        one["terminationMessagePath"] = "/dev/termination-log"
    assert (await webhook(defaulted))[0] == defaulted


async def test_a_sidecar_that_shows_a_token_gets_the_volume_it_is_in_once() -> None:
    webhook = Webhook(
        _backend(), settings=Settings("image:1", policy_server_tls=True, policy_server_audience="reports")
    )
    wired, _ = await webhook(_pod())
    (volume,) = wired["spec"]["volumes"]
    (mount,) = wired["spec"]["containers"][1]["volumeMounts"]
    assert mount["name"] == volume["name"]
    (source,) = volume["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "reports"
    assert "--server-tls=true" in wired["spec"]["containers"][1]["args"]
    assert (await webhook(wired))[0] == wired


async def test_a_backend_being_deleted_wires_nothing_and_nobody_takes_its_place() -> None:
    webhook = Webhook(_backend("a", meta={"deletionTimestamp": "2026-01-01T00:00:00Z"}), _backend("b"))
    pod = _pod()
    after, message = await webhook(pod)
    assert after == pod
    assert "CacheBackend ns/a" in message
    assert "being deleted" in message


async def test_a_reason_comes_even_with_the_patch_that_strips_forged_annotations() -> None:
    webhook = Webhook(_backend(remoteStorage={"provider": "LMCacheServer", "ownership": "Managed"}))
    after, message = await webhook(_pod(annotations={BY: "ns/kv", UID: "uid-kv", "mine": "stays"}))
    assert after["metadata"]["annotations"] == {"mine": "stays"}
    assert "status.endpoint" in message


async def test_a_matched_but_unwired_pod_leaves_a_note_and_counts_by_reason() -> None:
    series = ("inferencecache_pod_admissions_total", {"outcome": "unwired", "reason": "no_endpoint"})
    before = REGISTRY.get_sample_value(*series) or 0
    webhook = Webhook(_backend(remoteStorage={"provider": "LMCacheServer", "ownership": "Managed"}))
    await webhook(_pod())
    assert len(webhook.memo) == 1
    assert REGISTRY.get_sample_value(*series) == before + 1
    unmatched = _pod()
    del unmatched["metadata"]["labels"]
    await webhook(unmatched)
    assert len(webhook.memo) == 1


async def test_a_shell_that_swallows_arguments_leaves_the_pod_unwired_with_a_reason() -> None:
    pod = _pod(command=["sh", "-c", "vllm serve model"])
    after, message = await Webhook(_backend())(pod)
    assert after == pod
    assert "shell" in message


async def test_unknown_fields_survive() -> None:
    pod = _pod(fieldOfTomorrow={"deep": [1, None, True]})
    after, _ = await Webhook(_backend())(pod)
    assert after["spec"]["containers"][0]["fieldOfTomorrow"] == {"deep": [1, None, True]}


async def test_opting_out_marks_once() -> None:
    webhook = Webhook(_backend())
    marked, _ = await webhook(_pod(annotations={"inferencecache.io/skip-inject": "true", BY: "ns/kv"}))
    assert marked["metadata"]["annotations"] == {
        "inferencecache.io/skip-inject": "true",
        SKIPPED: "skip-inject-annotation",
    }
    again, message = await webhook(marked)
    assert again == marked
    assert "skipped via inferencecache.io/skip-inject" in message


class _Counted:
    """An adapter for a runtime of its own that counts whatever is asked of it."""

    def __init__(self, name: str, asked: list[str]) -> None:
        self._name = name
        self._asked = asked

    def supports(self, runtime_id: str, backend: Any) -> bool:
        self._asked.append(self._name)
        return bool(runtime_id == self._name)


@pytest.mark.parametrize("adapters", [0, 1, 200])
@pytest.mark.parametrize(
    ("labels", "annotations"),
    [({"app": "web"}, {}), ({}, {}), ({"app": "llm"}, {"inferencecache.io/skip-inject": "yes"})],
)
async def test_however_many_adapters_there_are_none_is_asked_about_a_pod_that_no_backend_gets(
    adapters: int, labels: dict[str, str], annotations: dict[str, str]
) -> None:
    asked: list[str] = []
    registry = RuntimeRegistry()
    for number in range(adapters):
        registry.register(_Counted(f"runtime-{number}", asked))
    cluster = Cluster([backend_from(_backend())])
    app = create_app(handlers(cluster, runtimes=registry))
    pod = _pod(annotations=annotations)
    pod["metadata"]["labels"] = labels
    await ask(app, POD_PATH, pod, "ns")
    assert asked == []
    await ask(app, POD_PATH, _pod(), "ns")
    assert len(asked) == adapters, "the count counts"


@pytest.mark.parametrize(
    ("row", "spec"), [one for one in ANSWERED if one[0] in ("V24", "V25", "V26", "V28", "V33", "V34", "A6")]
)
async def test_a_stored_backend_that_admission_would_refuse_leaves_its_pods_unwired(
    row: str, spec: dict[str, Any]
) -> None:
    """Spec 04 §4.1 and §5, decision A6: it is stored all the same, from a backup or without webhooks."""
    webhook = Webhook(_backend(**{**spec, "engineSelector": {"matchLabels": {"app": "llm"}}}))
    pod = _pod(container="sglang", annotations={BY: "ns/kv", UID: "uid-kv", "team": "a"})
    after, reason = await webhook(pod)
    assert after == _pod(container="sglang", annotations={"team": "a"})
    assert "CacheBackend ns/kv: " in reason


async def test_a_managed_store_is_dialled_where_it_is_and_not_where_the_spec_says() -> None:
    """Spec 03 §6: `spec.remoteStorage.endpoint` of a managed store is never read."""
    store = {"provider": "LMCacheServer", "ownership": "Managed", "endpoint": "elsewhere:1"}
    pod, _ = await Webhook(_backend(remoteStorage=store) | {"status": {"endpoint": "kv.ns.svc.cluster.local:65432"}})(
        _pod()
    )
    environment = {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}
    assert environment["LMCACHE_REMOTE_URL"] == "lm://kv.ns.svc.cluster.local:65432"


@pytest.mark.parametrize("spec", GOOD_BACKENDS)
async def test_a_backend_that_admission_takes_wires_its_pods(spec: dict[str, Any]) -> None:
    """What one half accepts the other must not refuse: both ask about the same text."""
    backend = _backend(**{**spec, "engineSelector": {"matchLabels": {"app": "llm"}}})
    backend["status"] = {"endpoint": "kv.ns.svc.cluster.local:1"}
    pod, reason = await Webhook(backend)(_pod(container="engine"))
    assert (reason, pod["metadata"]["annotations"][BY]) == ("", "ns/kv")
