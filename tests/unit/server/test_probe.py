"""The functional probe: its key, its stages and their messages, and that it leaves nothing behind (spec 06 §4.4)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server import probe
from inferencecache.server.index import (
    RESERVED_TENANT,
    Code,
    Holds,
    Outcome,
    PrefixIndex,
    Query,
    ReplicaScore,
    Report,
    Scope,
)
from inferencecache.server.policy import PolicyStore
from inferencecache.server.probe import ProbeError, Prober, ProbeRequest, ProbeResult, StageError, Tier2Prober, parse
from tests.unit.server.callers import NOW_US, Clocks
from tests.unit.server.index.reports import snapshot_of
from tests.unit.server.waiting import eventually

_REQUEST = ProbeRequest(backend="ns/cb-1", model="m", hash_scheme="vllm")
_REPLICA = "__probe-ns/cb-1"
_NOTHING = Outcome(Code.NONE, [])


class _BrokenIndex:
    """An index that goes wrong where told, and writes down whether it was tidied up."""

    def __init__(
        self,
        *,
        ingest: Exception | None = None,
        serving: Sequence[str] = (_REPLICA,),
        outcome: Outcome | Exception = _NOTHING,
    ) -> None:
        self._ingest = ingest
        self._serving = list(serving)
        self._outcome = outcome
        self.cleared: list[dict[str, str]] = []

    def ingest(self, report: Report, now_us: int) -> None:
        if self._ingest:
            raise self._ingest

    def serving(self, scope: Scope) -> list[str]:
        return self._serving

    def match(self, query: Query, now_us: int) -> Outcome:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def clear(self, **names: str) -> None:
        self.cleared.append(names)


class _Store:
    """An external store of one process."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, bytes], bytes] = {}
        self.busy = 0
        self.most_busy = 0

    async def put(self, backend: str, key: bytes, payload: bytes) -> None:
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        await asyncio.sleep(0)
        self.kept[backend, key] = payload

    async def get(self, backend: str, key: bytes) -> bytes | None:
        await asyncio.sleep(0)
        self.busy -= 1
        return self.kept.get((backend, key))


def _prober(index: Any = None, tier2: Tier2Prober | None = None, capacity: int = 1000) -> tuple[Prober, PrefixIndex]:
    index = index or PrefixIndex(PolicyStore(), capacity=capacity)
    return Prober(index, tier2=tier2, clock=Clocks().clock), index


# -- the key ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "model", "scheme", "key"),
    [
        ("ns/cb-1", "m", "vllm", "b5caab23e145968ced21e3d7e554f76cc9f19faa8b6c80c505440080825a4175"),
        ("team-a/qwen", "Qwen/Qwen3-8B", "sglang", "e05e0106a994d0ca9933fe65d3ae19986b0b632cea380a861a02662d83db0a44"),
    ],
)
def test_the_key_is_that_of_the_published_vectors(backend: str, model: str, scheme: str, key: str) -> None:
    assert probe.probe_hash(backend, model, scheme).hex() == key


_names = st.tuples(st.text(max_size=4), st.text(max_size=4), st.text(max_size=4))


@given(_names, _names)
def test_two_probes_share_a_key_only_if_they_are_the_same(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assert (probe.probe_hash(*one) == probe.probe_hash(*other)) is (one == other)


# -- the request ------------------------------------------------------------------------------------------------------


def test_a_request_may_name_the_kind_of_backend() -> None:
    body = b'{"backend": "ns/b", "model": "m", "hashScheme": "vllm", "backendType": "SGLangHiCache"}'
    assert parse(body) == ProbeRequest("ns/b", "m", "vllm", "SGLangHiCache")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "decode"),
        (b"[]", "decode"),
        (b"nonsense", "decode"),
        (b'{"backend": "b", "model": "m", "hashScheme": "s"} {}', "decode"),
        (b'{"backend": "b", "model": "m", "hashScheme": "s", "tenant": "t"}', "tenant"),
        (b'{"backend": "b", "model": "m", "hashScheme": 1}', "hashScheme"),
        (b'{"model": "m", "hashScheme": "s"}', "backend must be set"),
        (b'{"backend": "", "model": "m", "hashScheme": "s"}', "backend must be set"),
        (b'{"backend": "b", "hashScheme": "s"}', "model must be set"),
        (b'{"backend": "b", "model": "m"}', "hashScheme must be set"),
        (b"{}", "backend, model, hashScheme must be set"),
        (b'{"backend": "b", "model": "m", "hashScheme": "s"}' + b" " * 4096, "4096"),
    ],
)
def test_a_request_that_cannot_be_used_is_refused_with_the_reason(body: bytes, message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        parse(body)


# -- the stages -------------------------------------------------------------------------------------------------------


async def test_a_working_server_passes_again_and_again_and_keeps_nothing() -> None:
    prober, index = _prober()
    before = snapshot_of(index)
    for _ in range(3):
        result = await prober.run(_REQUEST)
        assert json.loads(msgspec.json.encode(result)) == {
            "backend": "ns/cb-1",
            "ingest": "ok",
            "routing": "ok",
            "t2": "skipped",
        }
    assert snapshot_of(index) == before
    assert index.serving(Scope(RESERVED_TENANT, "m", "vllm")) == []
    assert index.cache_state(RESERVED_TENANT, "m") == ([], 0)
    assert index.entries_by_model().get("m", 0) == 0


_MATCH_OF_ANOTHER = Outcome(Code.PREFIX_MATCH, [ReplicaScore("other", 16.0, 16, 1.0, 1, 1)])


@pytest.mark.parametrize(
    ("index", "stage", "message"),
    [
        (_BrokenIndex(ingest=RuntimeError("no room")), "ingest", "RuntimeError: no room"),
        (_BrokenIndex(serving=["other"]), "ingest", "is not in the index"),
        (_BrokenIndex(), "routing", "gave NONE, not PREFIX_MATCH"),
        (_BrokenIndex(outcome=Outcome(Code.UNKNOWN_MODEL, [])), "routing", "gave UNKNOWN_MODEL, not PREFIX_MATCH"),
        (_BrokenIndex(outcome=_MATCH_OF_ANOTHER), "routing", f"gave PREFIX_MATCH without {_REPLICA}"),
        (_BrokenIndex(outcome=RuntimeError("lost")), "routing", "RuntimeError: lost"),
    ],
)
async def test_a_broken_stage_fails_says_why_and_skips_the_rest(index: _BrokenIndex, stage: str, message: str) -> None:
    result = await _prober(index, _Store())[0].run(_REQUEST)
    assert (result.ingest, result.routing, result.t2) == (
        ("failed", "skipped", "skipped") if stage == "ingest" else ("ok", "failed", "skipped")
    )
    ((failed, text),) = [(error.stage, error.message) for error in result.errors]
    assert failed == stage
    assert message in text
    assert index.cleared == [{"tenant": RESERVED_TENANT, "model": "m", "replica_id": _REPLICA}]


@pytest.mark.parametrize(
    ("kind", "t2"), [("", "ok"), ("LMCache", "ok"), ("SGLangHiCache", "skipped"), ("lmcache", "skipped")]
)
async def test_the_tier_2_stage_is_for_backends_with_an_external_store(kind: str, t2: str) -> None:
    store = _Store()
    request = msgspec.structs.replace(_REQUEST, backend_type=kind)
    assert (await _prober(tier2=store)[0].run(request)).t2 == t2
    key = probe.probe_hash("ns/cb-1", "m", "vllm")
    expected = {("ns/cb-1", key): b"probe-payload-v1\n" + key} if t2 == "ok" else {}
    assert store.kept == expected


class _NoPut(_Store):
    async def put(self, backend: str, key: bytes, payload: bytes) -> None:
        raise ConnectionError("connection refused")


class _NoGet(_Store):
    async def get(self, backend: str, key: bytes) -> bytes | None:
        raise ConnectionError


class _Forgetful(_Store):
    async def get(self, backend: str, key: bytes) -> bytes | None:
        return None


class _Garbling(_Store):
    async def get(self, backend: str, key: bytes) -> bytes | None:
        return b"something else"


class _Hanging(_Store):
    async def get(self, backend: str, key: bytes) -> bytes | None:
        await asyncio.Event().wait()
        return None


@pytest.mark.parametrize(
    ("store", "message"),
    [
        (_NoPut(), "put failed: connection refused"),
        (_NoGet(), "get failed: ConnectionError"),
        (_Forgetful(), "get failed: nothing is stored under the key"),
        (_Garbling(), "get failed: another payload is stored under the key"),
        (_Hanging(), "get failed: no answer within 0.05 s"),
    ],
)
async def test_a_broken_store_fails_the_tier_2_stage(
    store: _Store, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "TIER2_SECONDS", 0.05 if isinstance(store, _Hanging) else 60.0)
    assert await _prober(tier2=store)[0].run(_REQUEST) == ProbeResult(
        backend="ns/cb-1",
        ingest="ok",
        routing="ok",
        t2="failed",
        errors=(StageError("t2", f"T2 put/get cycle failed: {message}"),),
    )


# -- beside everything else -------------------------------------------------------------------------------------------


async def test_probes_of_one_backend_take_turns_and_others_do_not_wait() -> None:
    store = _Store()
    prober, _ = _prober(tier2=store)
    results = await asyncio.gather(*(prober.run(_REQUEST) for _ in range(5)))
    assert store.most_busy == 1
    assert {result.t2 for result in results} == {"ok"}
    others = [msgspec.structs.replace(_REQUEST, backend=f"ns/cb-{number}") for number in range(5)]
    await asyncio.gather(*(prober.run(request) for request in others))
    assert store.most_busy == 5


async def test_a_probe_that_is_cancelled_leaves_its_turn_to_the_next() -> None:
    store = _Hanging()
    prober, _ = _prober(tier2=store)
    running = asyncio.create_task(prober.run(_REQUEST))
    waiting = asyncio.create_task(prober.run(_REQUEST))
    await eventually(lambda: store.kept or None)
    running.cancel()
    waiting.cancel()
    assert [type(outcome) for outcome in await asyncio.gather(running, waiting, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 2
    healthy = msgspec.structs.replace(_REQUEST, backend_type="SGLangHiCache")
    assert (await prober.run(healthy)).routing == "ok"


async def test_nobody_sees_a_probe_and_it_evicts_nobody_from_a_full_index() -> None:
    store = _Store()
    prober, index = _prober(tier2=store, capacity=2)
    holds = Holds("", 1, [b"a", b"b"], [16, 32])
    index.ingest(Report("r", "t", "m", "vllm", NOW_US, [holds], None), NOW_US)
    before = snapshot_of(index)

    class _Watching(_Store):
        async def put(self, backend: str, key: bytes, payload: bytes) -> None:
            await super().put(backend, key, payload)
            assert snapshot_of(index) == before

    watched = Prober(index, tier2=_Watching(), clock=Clocks().clock)
    assert (await watched.run(_REQUEST)).t2 == "ok"
    assert (await prober.run(_REQUEST)).t2 == "ok"
    assert snapshot_of(index) == before
    assert index.match(Query(Scope("t", "m", "vllm"), "", [], [], b"a", 0), NOW_US).code is Code.PREFIX_MATCH
