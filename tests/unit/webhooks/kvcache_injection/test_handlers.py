"""The two webhooks of Pods with a pool, asked the way the API server asks."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from prometheus_client import REGISTRY
from starlette.routing import Route

from inferencecache.api.kvcachechain import Chain
from inferencecache.kube.errors import ApiError, Forbidden, KubeError, NotFound, TransportError
from inferencecache.kube.resource import Key
from inferencecache.webhooks.app import OBJECT_DEADLINE, ObjectEndpoint
from inferencecache.webhooks.kvcache_injection.handlers import (
    MUTATING_PATH,
    VALIDATING_PATH,
    LiveChains,
    PoolInjection,
)
from inferencecache.webhooks.kvcache_injection.refusals import VOLUME
from inferencecache.webhooks.objects import MOST_CAUSES
from tests.unit.webhooks.kvcache_injection.pools import PREFIX, Json, binding, chain, injected, managed, pod, pool
from tests.unit.webhooks.reviews import ask, message_of, patched


@dataclass
class Chains:
    """A chain in memory."""

    behind: Chain = field(default_factory=chain)
    failure: Exception | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def chain(self, namespace: str, binding: str) -> Chain:
        self.asked.append((namespace, binding))
        if self.failure:
            raise self.failure
        return self.behind


def app_over(chains: Chains, *, dtype_owned: bool = True) -> FastAPI:
    app = FastAPI()
    for path, handler in PoolInjection(chains, dtype_owned=dtype_owned).paths.items():
        app.router.routes.append(Route(path, ObjectEndpoint(path, handler, OBJECT_DEADLINE), methods=["POST"]))
    return app


def counted(outcome: str, reason: str) -> float:
    labels = {"outcome": outcome, "reason": reason}
    return REGISTRY.get_sample_value("inferencecache_kvcache_pod_admissions_total", labels) or 0.0


async def test_the_answer_patches_the_pod_as_the_pure_function_does() -> None:
    before = counted("injected", "")
    chains = Chains()
    response = await ask(app_over(chains), MUTATING_PATH, pod(), "team-a")
    assert response["allowed"]
    assert patched(pod(), response) == injected(pod()).pod
    assert chains.asked == [("team-a", "team-a")]
    assert counted("injected", "") == before + 1


async def test_a_template_without_a_namespace_is_in_that_of_the_request() -> None:
    given = pod()
    del given["metadata"]["namespace"]
    chains = Chains()
    assert (await ask(app_over(chains), MUTATING_PATH, given, "elsewhere"))["allowed"]
    assert chains.asked == [("elsewhere", "team-a")]


async def test_the_dtype_setting_reaches_the_pod() -> None:
    response = await ask(app_over(Chains(), dtype_owned=False), MUTATING_PATH, pod(), "team-a")
    assert patched(pod(), response) == injected(pod(), dtype_owned=False).pod


async def test_of_very_many_reasons_the_first_are_told_and_how_many_more_there_are() -> None:
    given = pod()
    given["spec"]["volumes"] = [{"name": VOLUME}] * (MOST_CAUSES + 40)
    response = await ask(app_over(Chains()), MUTATING_PATH, given, "team-a")
    assert not response["allowed"]
    assert len(response["status"]["details"]["causes"]) == MOST_CAUSES
    assert message_of(response).endswith("; and 40 more")


@pytest.mark.parametrize("label", ["false", "True", "", None])
async def test_a_pod_that_does_not_ask_passes_untouched_and_unasked(label: str | None) -> None:
    given = pod(annotations={"binding": None, "nonsense": "x"})
    if label is None:
        del given["metadata"]["labels"]
    else:
        given["metadata"]["labels"][f"{PREFIX}inject"] = label
    chains = Chains()
    response = await ask(app_over(chains), MUTATING_PATH, given, "team-a")
    assert response["allowed"]
    assert "patch" not in response
    assert chains.asked == []


async def test_only_a_pods_creation_is_of_interest() -> None:
    stored = injected(pod()).pod
    response = await ask(app_over(Chains()), MUTATING_PATH, stored, "team-a", operation="UPDATE", old=stored)
    assert response["allowed"]
    assert "patch" not in response


@pytest.mark.parametrize(
    ("changed", "behind", "reason"),
    [
        ({"annotations": {"engine": "x"}}, chain(), "annotations"),
        ({"annotations": {"binding": None}}, chain(), "binding"),
        ({}, Chain(), "binding"),
        ({"command": ["x"]}, chain(), "container"),
    ],
)
async def test_a_refusal_lists_its_causes_and_is_counted(changed: Json, behind: Chain, reason: str) -> None:
    before = counted("refused", reason)
    response = await ask(app_over(Chains(behind)), MUTATING_PATH, pod(**changed), "team-a")
    assert not response["allowed"]
    status = response["status"]
    assert (status["code"], status["reason"], status["details"]["name"]) == (422, "Invalid", "chat-0")
    assert status["details"]["causes"]
    for cause in status["details"]["causes"]:
        assert cause["field"] in status["message"]
        assert cause["message"] in status["message"]
    assert counted("refused", reason) == before + 1


@pytest.mark.parametrize(
    ("failure", "code"),
    [(TransportError("no answer"), 504), (TimeoutError(), 504), (Forbidden("may not", status=403), 403)],
)
async def test_what_cannot_be_looked_up_is_no_absence_and_the_pod_is_refused(failure: Exception, code: int) -> None:
    before = counted("refused", "lookup_failed")
    response = await ask(app_over(Chains(failure=failure)), MUTATING_PATH, pod(), "team-a")
    assert not response["allowed"]
    assert response["status"]["code"] == code
    assert "team-a/team-a" in message_of(response)
    assert "try again" in message_of(response)
    assert counted("refused", "lookup_failed") == before + 1


async def test_a_bug_refuses_the_pod() -> None:
    response = await ask(app_over(Chains(failure=ZeroDivisionError())), MUTATING_PATH, pod(), "team-a")
    assert not response["allowed"]


async def test_a_pod_that_cannot_be_read_is_refused() -> None:
    given = {**pod(), "spec": {"containers": "none"}}
    response = await ask(app_over(Chains()), MUTATING_PATH, given, "team-a")
    assert not response["allowed"]


# ------------------------------------------------------------------------------------------------------- frozen


def annotated(given: Json, **values: str | None) -> Json:
    changed = copy.deepcopy(given)
    for key, value in values.items():
        name = PREFIX + key.replace("_", "-")
        part = changed["metadata"]["labels" if key == "inject" else "annotations"]
        part.pop(name, None)
        if value is not None:
            part[name] = value
    return changed


@pytest.mark.parametrize("key", ["inject", "injected", "client_config"])
@pytest.mark.parametrize("deleting", [False, True], ids=["running", "terminating"])
async def test_what_was_decided_can_be_neither_added_nor_changed_nor_removed(key: str, deleting: bool) -> None:
    stored = injected(pod()).pod
    if deleting:
        stored["metadata"]["deletionTimestamp"] = "2026-11-30T11:00:00Z"
    without, changed = annotated(stored, **{key: None}), annotated(stored, **{key: "x"})
    for old, new in ((stored, without), (stored, changed), (without, stored)):
        response = await ask(app_over(Chains()), VALIDATING_PATH, new, "team-a", operation="UPDATE", old=old)
        assert not response["allowed"]
        (cause,) = response["status"]["details"]["causes"]
        assert PREFIX + key.replace("_", "-") in cause["field"]
        assert "template" in cause["message"]


async def test_everything_else_of_a_pod_may_change() -> None:
    stored = injected(pod()).pod
    changed = annotated(stored, binding="other", role=None)
    changed["metadata"] |= {"finalizers": ["x"], "labels": {**changed["metadata"]["labels"], "app": "x"}}
    response = await ask(app_over(Chains()), VALIDATING_PATH, changed, "team-a", operation="UPDATE", old=stored)
    assert response["allowed"]


@pytest.mark.parametrize("old", [None, "text", {"metadata": None}, {"metadata": {"annotations": []}}])
async def test_a_pod_of_any_shape_is_compared_and_never_held_up_by_a_bug(old: Any) -> None:
    bare = {"metadata": {"name": "p"}}
    response = await ask(app_over(Chains()), VALIDATING_PATH, bare, "team-a", operation="UPDATE", old=old)
    assert response["allowed"]


# ------------------------------------------------------------------------------------------------------- reading


@dataclass
class Server:
    """Objects by kind and key, as a client gets them."""

    objects: list[Any]
    failure: KubeError | None = None

    async def get(self, kind: Any, key: Key) -> Any:
        if self.failure is not None:
            raise self.failure
        for found in self.objects:
            if isinstance(found, kind) and (found.metadata.namespace, found.metadata.name) == key:
                return found
        raise NotFound(f"{kind.__name__} {key} not found", status=404)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
async def test_the_chain_is_read_as_far_as_it_exists(count: int) -> None:
    objects = [binding(), pool(), managed()][:count]
    found = await LiveChains(Server(objects)).chain("team-a", "team-a")
    assert [one for one in (found.binding, found.pool, found.backend) if one is not None] == objects


async def test_a_pool_with_several_backends_has_none() -> None:
    found = await LiveChains(Server([binding(), pool(backends=("mooncake-dram", "b")), managed()])).chain(
        "team-a", "team-a"
    )
    assert found.pool is not None
    assert found.backend is None


@pytest.mark.parametrize("failure", [Forbidden("may not", status=403), TransportError("no answer")])
async def test_an_error_other_than_absence_is_not_taken_for_it(failure: ApiError | TransportError) -> None:
    with pytest.raises(type(failure)):
        await LiveChains(Server([], failure), timeout=timedelta(seconds=1)).chain("team-a", "team-a")


async def test_the_record_is_json_that_others_can_read() -> None:
    response = await ask(app_over(Chains()), MUTATING_PATH, pod("SGLang"), "team-a")
    record = json.loads(patched(pod("SGLang"), response)["metadata"]["annotations"][f"{PREFIX}injected"])
    assert set(record) == {
        "binding",
        "engine",
        "vehicle",
        "domain",
        "tenantInjected",
        "launchProgram",
        "launchArgsForwarded",
    }
