"""Why a Pod is wired or not, by the webhook's own functions (decision A12)."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.adapters.registry import Settings, load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kvcachechain import Chain
from inferencecache.doctor.events import PodEvent, Reference
from inferencecache.doctor.explain.decide import Explanation, State, explain
from inferencecache.doctor.explain.drift import HIDDEN, Change, changes
from inferencecache.doctor.explain.observe import Seen, owns_dtype, settings_of
from inferencecache.doctor.explain.pool import PoolState
from inferencecache.doctor.explain.show import as_json, as_text
from tests.unit.webhooks.kvcache_injection import pools
from tests.unit.webhooks.pipeline import engine_pod, wired
from tests.unit.webhooks.stand_ins import SETTINGS

Json = dict[str, Any]
OURS = "inferencecache.io"


def backend(name: str = "kv", *, uid: str = "u-1", endpoint: str | None = "kv.ns.svc:1", **more: Any) -> CacheBackend:
    spec = {
        "runtime": "VLLM",
        "type": "LMCache",
        "remoteStorage": {"provider": "LMCacheServer", "ownership": "Managed"},
        "engineSelector": {"matchLabels": {"app": "engine"}},
        "observation": {"modelID": "m"},
        **more.pop("spec", {}),
    }
    metadata = {"name": name, "namespace": "ns", "uid": uid, **more}
    return CacheBackend.decode({"metadata": metadata, "spec": spec, "status": {"endpoint": endpoint}})


def pod(**annotations: str) -> Json:
    given = engine_pod("vllm")
    given["metadata"]["annotations"] = {f"{OURS}/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return given


def wired_pod(by: CacheBackend | None = None) -> Json:
    """A Pod as admission left it, with what the API server fills into containers."""
    done = wired(pod(), by or backend())
    stored: Json = copy.deepcopy(done.pod)
    for container in stored["spec"]["containers"] + stored["spec"].get("initContainers", []):
        container |= {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
        container.setdefault("imagePullPolicy", "IfNotPresent")
    return stored


def explained(given: Json, *backends: CacheBackend, settings: Settings | None = SETTINGS, **seen: Any) -> Explanation:
    return explain(Seen(pod=given, backends=backends, settings=settings, **seen), load_adapters()[0])


OPTED_OUT = pod(skip_inject="true", inject_skipped="skip-inject-annotation")
OTHER_LABELS = backend(spec={"engineSelector": {"matchLabels": {"a": "b"}}})
GOING = backend(deletionTimestamp="2026-06-01T12:00:00Z")
POOL_LABELS = {"app": "engine", "kvcache.gpustack.ai/inject": "true"}
ASKS_FOR_A_POOL = {**pod(), "metadata": {**pod()["metadata"], "labels": POOL_LABELS}}

ROWS: list[tuple[str, Json, tuple[CacheBackend, ...], State, str, str]] = [
    # what is so, the Pod, the backends, what it is, what admission would decide now, and why
    ("wired", wired_pod(), (backend(),), State.WIRED, "wired", ""),
    ("backend gone", wired_pod(), (), State.STALE, "unwired", "no_match"),
    ("backend made anew", wired_pod(), (backend(uid="u-2"),), State.STALE, "wired", ""),
    ("another backend", wired_pod(), (backend("other", uid="u-2"),), State.STALE, "wired", ""),
    ("annotated by hand", pod(injected_by="ns/kv"), (backend(),), State.CLAIMED, "wired", ""),
    ("opted out", OPTED_OUT, (backend(),), State.SKIPPED, "skipped", "opt_out"),
    ("opted in again", pod(skip_inject="no"), (backend(),), State.UNWIRED, "wired", ""),
    ("no backend", pod(), (), State.UNWIRED, "unwired", "no_match"),
    ("labels differ", pod(), (OTHER_LABELS,), State.UNWIRED, "unwired", "no_match"),
    ("no address yet", pod(), (backend(endpoint=None),), State.UNWIRED, "unwired", "no_endpoint"),
    ("backend going", pod(), (GOING,), State.UNWIRED, "unwired", "backend_deleted"),
    ("came too early", pod(), (backend(),), State.UNWIRED, "wired", ""),
    ("asks for a pool", ASKS_FOR_A_POOL, (backend(),), State.UNWIRED, "unwired", "kv_cache_pool"),
]


@pytest.mark.parametrize(
    ("given", "backends", "state", "outcome", "reason"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_a_pod_is_explained(
    given: Json, backends: tuple[CacheBackend, ...], state: State, outcome: str, reason: str
) -> None:
    before = copy.deepcopy(given)
    told = explained(given, *backends)
    assert (told.state, told.now.outcome.value, told.now.reason) == (state, outcome, reason)
    assert given == before
    assert as_text(told).startswith("pod/ns/engine: ")
    assert json.loads(as_json(told))["state"] == state.value


def test_a_wired_pod_has_not_drifted_by_what_the_api_server_fills_in() -> None:
    told = explained(wired_pod(), backend())
    assert told.drift == ()
    assert "just as it is" in as_text(told)


def test_what_changed_since_is_listed_by_the_name_of_its_place() -> None:
    told = explained(wired_pod(), backend(endpoint="moved.ns.svc:1"))
    assert told.drift == tuple(
        Change(f"spec.{place}.env[LMCACHE_REMOTE_URL].value", "lm://kv.ns.svc:1", "lm://moved.ns.svc:1")
        for place in ("containers[vllm]", "initContainers[lmcache-kernel-check]")
    )


def test_a_new_image_of_the_sidecar_is_drift_though_admission_would_keep_the_old_one() -> None:
    told = explained(wired_pod(), backend(), settings=replace(SETTINGS, kvevent_subscriber_image="new:1"))
    assert told.drift == (
        Change("spec.containers[kvevent-subscriber].image", SETTINGS.kvevent_subscriber_image, "new:1"),
    )


def test_a_sidecar_is_left_out_where_the_controllers_flags_are_unknown() -> None:
    told = explained(wired_pod(), backend(), settings=None)
    assert told.drift == ()
    assert any("--kvevent-subscriber-image" in note for note in told.notes)


def test_a_pod_that_would_be_wired_now_shows_what_that_would_bring() -> None:
    told = explained(pod(), backend())
    paths = [one.path for one in told.drift]
    assert f"metadata.annotations.{OURS}/injected-by" in paths
    assert "spec.containers[vllm].env" in paths or "spec.containers[vllm].env[LMCACHE_REMOTE_URL]" in paths
    assert "spec.containers[kvevent-subscriber]" in paths
    assert any("recreate the Pod" in note for note in told.notes)


def test_every_backend_of_the_namespace_says_why_it_is_the_one_or_not() -> None:
    told = explained(
        pod(),
        backend("b"),
        backend("a"),
        backend("c", spec={"engineSelector": {"matchLabels": {"app": "engine", "tier": "x"}}}),
        backend("d", spec={"engineSelector": None}),
    )
    words = {one.name: (one.selects, one.responsible, one.lacking, one.remark) for one in told.candidates}
    assert words == {
        "a": (True, True, (), ""),
        "b": (True, False, (), "a comes first by name"),
        "c": (False, False, ("tier=x",), ""),
        "d": (False, False, (), "it selects no Pods"),
    }
    text = as_text(told)
    assert "  b: selects the Pod, but a comes first by name" in text
    assert "  c: does not select it: the Pod lacks tier=x" in text


@pytest.mark.parametrize(
    ("given", "backends", "verdicts"),
    [
        (wired_pod(), (backend(),), ["earned", "earned"]),
        (wired_pod(), (), ["stale: no backend of that name and UID is there"] * 2),
        (pod(injected_by="ns/kv"), (backend(),), ["not admission's: it always gives the UID, too"]),
        (
            pod(skip_inject="1", inject_skipped="skip-inject-annotation"),
            (),
            ["the owner's: leave the Pod alone", "earned"],
        ),
        (pod(inject_skipped="skip-inject-annotation"), (), [f"not earned: {OURS}/skip-inject is not set"]),
        (pod(skip_inject="off"), (), ["the owner's, and it counts as no"]),
    ],
)
def test_each_annotation_is_earned_or_not(given: Json, backends: tuple[CacheBackend, ...], verdicts: list[str]) -> None:
    assert [one.verdict for one in explained(given, *backends).marks] == verdicts


def test_events_and_the_installation_have_their_say() -> None:
    event = PodEvent("e", "NotInjected", "no endpoint", Reference(kind="Pod"), None)
    told = explained(pod(), backend(), events=(event,), not_asked="the webhook is not installed")
    assert "  NotInjected: no endpoint" in as_text(told)
    assert "Note: the webhook is not installed" in as_text(told)


def test_the_json_form_keeps_its_keys() -> None:
    document = json.loads(as_json(explained(wired_pod(), backend(endpoint="moved:1"))))
    assert list(document) == [
        *("pod", "state", "summary", "backends", "annotations", "now", "drift", "pool", "events", "notes")
    ]
    assert list(document["backends"][0]) == ["name", "selects", "responsible", "lackingLabels", "remark"]
    assert list(document["now"]) == ["outcome", "reason", "message", "backend"]
    assert list(document["drift"][0]) == ["path", "before", "after"]


# ------------------------------------------------------------------------------------------------------ the pool


def pooled(given: Json, chain: Chain | None) -> Explanation:
    return explained(given, chain=chain)


@pytest.mark.parametrize(("engine", "vehicle"), [("vLLM", "file"), ("SGLang", "environment")])
def test_a_pod_with_a_pool_is_as_its_binding_leads_or_says_where_that_leads_now(engine: str, vehicle: str) -> None:
    given = pools.injected(pools.pod(engine)).pod
    same = pooled(given, pools.chain()).pool
    assert same is not None
    assert (same.state, same.against, same.drift) == (PoolState.GIVEN, (), ())
    assert f"by {vehicle}, with a tenant" in same.summary
    told = pooled(given, pools.chain(pool=pools.pool(pools.LEDGER, endpoint="moved:1")))
    assert told.pool is not None
    (change,) = told.pool.drift
    assert (change.before, change.after) == (pools.ENDPOINT, "moved:1")
    assert "only a new Pod follows" in as_text(told)


def test_a_pod_whose_binding_is_gone_says_what_stands_against_it() -> None:
    told = pooled(pools.injected(pools.pod()).pod, Chain())
    assert told.pool is not None
    assert "no KVCachePoolBinding of that name" in told.pool.against[0]
    assert "against it: " in as_text(told)


def test_a_label_that_came_after_the_pod_says_what_a_new_pod_would_get() -> None:
    fine, refused = (
        pooled(pools.pod(), pools.chain()).pool,
        pooled(pools.pod(engine="vLLM", command=None), Chain()).pool,
    )
    assert fine is not None
    assert refused is not None
    assert (fine.state, fine.against) == (PoolState.NOT_GIVEN, ())
    assert "would be given one" in fine.summary
    assert "would be refused" in refused.summary
    assert refused.against


def test_a_pod_without_the_label_has_nothing_to_do_with_pools() -> None:
    assert pooled(pod(), Chain()).pool is None


# ------------------------------------------------------------------------------------------------------ drift

_NAMES = st.sampled_from(["a", "b", "c"])
_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_NAMES, inner, max_size=3)),
    max_leaves=8,
)


@given(_JSON)
def test_nothing_differs_from_itself(value: Any) -> None:
    assert list(changes(value, copy.deepcopy(value))) == []


@given(st.dictionaries(_NAMES, _JSON), st.dictionaries(_NAMES, _JSON))
def test_what_differs_is_told_unless_it_is_nothing_in_one_way_and_another(before: Json, after: Json) -> None:
    if not list(changes(before, after)):
        assert _filled(before) == _filled(after)  # a field has one type, so that no number stands against a boolean


def _filled(value: Any) -> Any:
    """A value without fields that hold nothing."""
    if isinstance(value, list):
        return [_filled(item) for item in value]
    if isinstance(value, dict):
        filled = {key: _filled(item) for key, item in value.items()}
        return {key: item for key, item in filled.items() if item is not None and item not in ("", [], {})}
    return value


def test_an_empty_field_is_as_good_as_none() -> None:
    assert list(changes({"env": [{"name": "A"}]}, {"env": [{"name": "A", "value": ""}]})) == []
    assert list(changes({"env": [{"name": "A", "value": "x"}]}, {"env": [{"name": "A", "value": ""}]})) != []


def test_variables_move_without_a_trace_and_credentials_are_not_shown() -> None:
    def spec(**variables: str) -> Json:
        return {"spec": {"env": [{"name": name, "value": value} for name, value in variables.items()]}}

    told = list(changes(spec(A="1", HF_TOKEN="s3cret", GONE="x"), spec(HF_TOKEN="other", A="1", API_KEY="s3cret")))
    assert told == [
        Change("spec.env[HF_TOKEN].value", HIDDEN, HIDDEN),
        Change("spec.env[GONE]", '{"name":"GONE","value":"x"}', None),
        Change("spec.env[API_KEY]", None, f'{{"name":"API_KEY","value":"{HIDDEN}"}}'),
    ]


def test_of_arguments_only_those_that_come_or_go_are_shown() -> None:
    before = ["--model", "m", "--api-key", "s3cret", "--x"]
    told = list(changes({"args": before}, {"args": [*before[:4], "--kv", "{}", "--hf-token=s3cret"]}))
    assert told == [Change("args", "--x", f"--kv {{}} --hf-token={HIDDEN}")]


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ([], Settings(policy_server_grpc_address="")),
        (
            ["controller", "--leader-elect", "--kvevent-subscriber-image=i:1", "-policy-server-grpc-address", "s:1"],
            Settings("i:1", "s:1"),
        ),
        (["--policy-server-tls"], Settings("", "", policy_server_tls=True)),
        (["--policy-server-tls=false", "--policy-server-audience=a"], Settings("", "", policy_server_audience="a")),
        (["--kvevent-replay-endpoint=tcp://e:1"], Settings("", "", kvevent_replay_endpoint="tcp://e:1")),
        (["--policy-server-ca-file=/etc/ca.crt"], None),
    ],
)
def test_settings_are_read_off_the_controllers_command_line(arguments: list[str], settings: Settings | None) -> None:
    assert settings_of(arguments) == settings


@pytest.mark.parametrize(
    ("arguments", "owned"),
    [
        ([], True),
        (["--kv-cache-dtype-owned"], True),
        (["--kv-cache-dtype-owned=false"], False),
        (["--no-kv-cache-dtype-owned"], False),
    ],
)
def test_the_setting_of_the_dtype_is_read_off_it_too(arguments: list[str], owned: bool) -> None:
    assert owns_dtype(arguments) is owned
