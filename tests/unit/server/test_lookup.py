"""The order of a lookup's steps (spec 06 §3.1): gates, floors, what is counted, and that nobody waits too long.

The index is scripted here; what real holds come to is told in `test_services`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from inferencecache.server.faults import Faults
from inferencecache.server.index import RESERVED_TENANT, Code, Outcome
from inferencecache.server.inputs import Tokenizer
from inferencecache.server.lookup import LookupService
from inferencecache.server.metrics import ServerMetrics
from inferencecache.server.policy import PolicyStore, parse
from inferencecache.server.workers import Workers
from inferencecache.wire.fingerprint import chain
from inferencecache.wire.route_request import Fingerprints
from inferencecache.wire.v1alpha1.inferencecache_pb2 import LookupRouteRequest, LookupRouteResponse
from tests.unit.server.callers import Caller, Clocks, ScriptedIndex, score
from tests.unit.server.waiting import eventually

_NAMES: dict[str, Any] = {"tenant_id": "t", "model_id": "m", "hash_scheme": "vllm", "adapter_id": "a"}
_CHAIN: dict[str, Any] = {"block_hashes": [b"a", b"b"], "block_token_counts": [64, 64]}
_BROKEN: dict[str, Any] = {"block_hashes": [b"a"], "block_token_counts": [64, 64]}
_EXACT: dict[str, Any] = {"prefix_hash": b"x", "prefix_token_count": 128}
_TOKENS = list(range(1, 36))
_IDS: dict[str, Any] = {"token_ids": _TOKENS}
_PROMPT: dict[str, Any] = {"prompt_text": "hello"}
_MATCH = Outcome(Code.PREFIX_MATCH, [score("r1", 90.0, 192), score("r2", 40.0, 128), score("r3", 5.0, 16)])
_HOT = Outcome(Code.TENANT_HOT, [score("r1", 0.5, 0, tier=0)])


class _Tokens:
    """A tokenizer whose every prompt is `_TOKENS`; `before` runs in the worker first."""

    def __init__(self, tokens: Sequence[int] = _TOKENS, before: Callable[[], object] = lambda: None) -> None:
        self.tokens = tokens
        self.before = before
        self.started = threading.Semaphore(0)

    def encode_chat(
        self, model: str, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
    ) -> Sequence[int]:
        self.started.release()
        self.before()
        return self.tokens

    def encode_text(self, model: str, text: str) -> Sequence[int]:
        raise NotImplementedError


class _Lookups:
    """A lookup service around a scripted index."""

    def __init__(
        self,
        outcome: Outcome | None = None,
        *,
        policy: dict[str, Any] | None = None,
        replicas: Sequence[str] = (),
        tokenizer: Tokenizer | None = None,
        workers: Workers | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        self.index = ScriptedIndex(outcome or Outcome(Code.NONE, []), list(replicas))
        self.metrics = ServerMetrics()
        self.clocks = clocks
        policies = PolicyStore()
        if policy is not None:
            document = {"version": 7, "policies": [{"namespace": "t", "minimumMatchedTokens": 64, **policy}]}
            policies.replace(parse(json.dumps(document).encode()))
        self.service = LookupService(
            index=self.index,  # type: ignore[arg-type]
            policies=policies,
            metrics=self.metrics,
            faults=Faults(self.metrics),
            tokenizer=tokenizer,
            workers=workers,
            clock=clocks.clock if clocks else None,
        )

    async def __call__(self, caller: Caller | None = None, **fields: Any) -> LookupRouteResponse:
        reply = self.service.lookup(LookupRouteRequest(**_NAMES | fields), caller or Caller())
        return reply if isinstance(reply, LookupRouteResponse) else await reply

    def counted(self) -> list[tuple[str, str, float]]:
        """What was counted so far: reason code, hint_used, how often."""
        return [
            (sample.labels["reason_code"], sample.labels["hint_used"], sample.value)
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "inferencecache_lookup_route_calls_total"
        ]


def _names(reply: LookupRouteResponse) -> list[str]:
    return [replica.replica_id for replica in reply.replica_scores]


# -- what the index is asked ------------------------------------------------------------------------------------------


async def test_a_chain_goes_to_the_index_as_it_came() -> None:
    lookups = _Lookups(_MATCH)
    await lookups(**_CHAIN, slo={"ttft_ms": 100})
    (query,) = lookups.index.queries
    assert tuple(query.scope) == ("t", "m", "vllm")
    assert (query.adapter_id, query.chain, query.chain_counts, query.exact, query.ttft_ms) == (
        *("a", [b"a", b"b"], [64, 64], b"", 100),
    )


async def test_a_lookup_that_need_not_wait_is_answered_at_once() -> None:
    lookups = _Lookups(_MATCH, policy={"lookupTimeoutMs": 1000})
    for fields in (_CHAIN, _EXACT, _IDS, {}):
        request = LookupRouteRequest(**_NAMES, **fields)
        assert isinstance(lookups.service.lookup(request, Caller(time.monotonic() + 60)), LookupRouteResponse)


# -- gates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [_EXACT, _BROKEN, _BROKEN | _EXACT, _IDS, _PROMPT, {}, {"block_hashes": [b"a"]}])
async def test_require_chain_refuses_everything_else_and_leaves_the_index_alone(fields: dict[str, Any]) -> None:
    tokenizer = _Tokens()
    lookups = _Lookups(_MATCH, policy={"strategy": {"requireChain": True}}, replicas=["r1"], tokenizer=tokenizer)
    reply = await lookups(**fields)
    assert reply == LookupRouteResponse(reason_code="POLICY_REQUIRES_CHAIN", lookup_latency_us=reply.lookup_latency_us)
    assert lookups.index.queries == []
    assert not tokenizer.started.acquire(blocking=False)


@pytest.mark.parametrize("chain_matching", [True, False])
async def test_require_chain_is_asked_first_even_where_chains_are_not_matched(chain_matching: bool) -> None:
    policy = {"strategy": {"requireChain": True, "enableChainMatching": chain_matching}}
    assert (await _Lookups(_MATCH, policy=policy)(**_EXACT)).reason_code == "POLICY_REQUIRES_CHAIN"
    with_chain = await _Lookups(_MATCH, policy=policy)(**_CHAIN)
    assert with_chain.reason_code == ("PREFIX_MATCH" if chain_matching else "NO_HINT")


@pytest.mark.parametrize(
    "fields",
    [_BROKEN, _BROKEN | _EXACT, {"block_token_counts": [64]}, {"token_ids": _TOKENS[:15]}, {"prompt_text": "hello"}],
)
async def test_input_that_fails_open_is_no_hint_without_index_affinity_or_adapter(fields: dict[str, Any]) -> None:
    lookups = _Lookups(_HOT, replicas=["r1"])
    reply = await lookups(**fields)
    assert (reply.reason_code, _names(reply), reply.adapter_id) == ("NO_HINT", [], "")
    assert lookups.index.queries == []


@pytest.mark.parametrize(
    ("fields", "below"),
    [
        ({"prefix_hash": b"x", "prefix_token_count": 99}, True),
        ({"prefix_hash": b"x", "prefix_token_count": 100}, False),
        ({"block_hashes": [b"a"], "block_token_counts": [99], "prefix_token_count": 500}, True),
        ({"block_hashes": [b"a", b"b"], "block_token_counts": [64, 64], "prefix_token_count": 1}, False),
        ({}, True),
    ],
)
@pytest.mark.parametrize("affinity", [True, False])
async def test_the_request_floor(fields: dict[str, Any], below: bool, affinity: bool) -> None:
    lookups = _Lookups(_MATCH, policy={"minimumPrefixTokens": 100, "affinityRouting": affinity}, replicas=["r1"])
    reply = await lookups(**fields)
    if not below:
        assert reply.reason_code == "PREFIX_MATCH"
    elif affinity:
        assert reply.reason_code == ("AFFINITY_HINT" if fields else "NO_HINT")
        assert reply.adapter_id == "a"
    else:
        assert (reply.reason_code, reply.adapter_id) == ("NO_HINT", "")
    assert bool(lookups.index.queries) is (affinity or not below)


async def test_without_chain_matching_the_floor_ignores_the_chains_counts() -> None:
    policy = {"minimumPrefixTokens": 100, "affinityRouting": False, "strategy": {"enableChainMatching": False}}
    lookups = _Lookups(_MATCH, policy=policy)
    assert (await lookups(**_CHAIN, prefix_hash=b"x", prefix_token_count=64)).reason_code == "NO_HINT"
    assert lookups.index.queries == []


async def test_without_a_request_floor_no_length_is_too_short() -> None:
    lookups = _Lookups(_MATCH, policy={"affinityRouting": False})
    assert (await lookups(prefix_hash=b"x", prefix_token_count=-1)).reason_code == "PREFIX_MATCH"


# -- floors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [_MATCH, _HOT])
async def test_below_the_request_floor_a_hint_becomes_affinity(outcome: Outcome) -> None:
    reply = await _Lookups(outcome, policy={"minimumPrefixTokens": 500}, replicas=["r1"])(**_EXACT)
    assert (reply.reason_code, _names(reply)) == ("AFFINITY_HINT", ["r1"])


@pytest.mark.parametrize("code", [Code.UNKNOWN_TENANT, Code.UNKNOWN_MODEL, Code.UNKNOWN_HASH_SCHEME])
async def test_a_misconfiguration_passes_every_floor_and_beats_affinity(code: Code) -> None:
    lookups = _Lookups(Outcome(code, []), policy={"minimumPrefixTokens": 500}, replicas=["r1"])
    reply = await lookups(**_EXACT)
    assert (reply.reason_code, _names(reply), reply.adapter_id) == (code.value, [], "a")
    assert lookups.counted() == [(code.value, "false", 1)]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (None, ["r1", "r2"]),
        ({"minimumMatchedTokens": 128}, ["r1", "r2"]),
        ({"minimumMatchedTokens": 129}, ["r1"]),
        ({"minimumMatchedTokens": 193}, []),
        ({"minimumMatchedTokens": 0}, ["r1", "r2", "r3"]),
        ({"minimumMatchedTokens": -1}, ["r1", "r2", "r3"]),
        ({"routingFloorScore": 90}, ["r1", "r2"]),
        ({"routingFloorScore": 90.5}, []),
        ({"routingFloorScore": 0, "minimumMatchedTokens": 0}, ["r1", "r2", "r3"]),
    ],
)
async def test_matches_below_a_floor_are_taken_out_and_the_rest_is_as_it_was(
    policy: dict[str, Any] | None, kept: list[str]
) -> None:
    lookups = _Lookups(_MATCH, policy=policy)
    reply = await lookups(**_EXACT)
    assert _names(reply) == kept
    by_id = {item.replica_id: item for item in _MATCH.scores}
    for replica in reply.replica_scores:
        expected = by_id[replica.replica_id]
        assert (replica.score, replica.matched_tokens) == (expected.score, expected.matched_tokens)
    code = "PREFIX_MATCH" if kept else "NO_HINT"
    assert (reply.reason_code, lookups.counted()) == (code, [(code, "true" if kept else "false", 1)])


async def test_the_score_floor_looks_at_the_best_of_what_the_token_floor_left() -> None:
    best_but_short = Outcome(Code.PREFIX_MATCH, [score("short", 80.0, 16), score("long", 0.05, 128)])
    assert (await _Lookups(best_but_short)(**_EXACT)).reason_code == "NO_HINT"
    assert _names(await _Lookups(best_but_short, policy={"routingFloorScore": 0})(**_EXACT)) == ["long"]


@pytest.mark.parametrize(
    ("affinity", "replicas", "code"),
    [(True, ["r1"], "AFFINITY_HINT"), (True, [], "NO_HINT"), (False, ["r1"], "NO_HINT")],
)
async def test_tenant_hot_switched_off_is_like_finding_nothing(affinity: bool, replicas: list[str], code: str) -> None:
    policy = {"strategy": {"enableTenantHot": False}, "affinityRouting": affinity}
    assert (await _Lookups(_HOT, policy=policy, replicas=replicas)(**_EXACT)).reason_code == code


async def test_neither_result_floor_applies_to_tenant_hot() -> None:
    policy = {"minimumMatchedTokens": 1000, "routingFloorScore": 1000}
    assert (await _Lookups(_HOT, policy=policy)(**_EXACT)).reason_code == "TENANT_HOT"


@pytest.mark.parametrize("counts", [[16] * 3, [16] * 2])
@pytest.mark.parametrize(
    "policy",
    [
        {"affinityRouting": True},
        {"minimumPrefixTokens": 100},
        {"strategy": {"requireChain": True}},
        {"strategy": {"enableChainMatching": False}, "affinityRouting": True},
    ],
)
@pytest.mark.parametrize("outcome", [_MATCH, Outcome(Code.NONE, [])])
async def test_a_chain_that_was_left_out_of_the_message_is_as_good_as_one_in_it(
    outcome: Outcome, policy: dict[str, Any], counts: list[int]
) -> None:
    hashes = chain(range(48), 16)[0]
    both = []
    for left_out in (False, True):
        lookups = _Lookups(outcome, policy=policy, replicas=["r1", "r2"], clocks=Clocks())
        message = LookupRouteRequest(**_NAMES, block_hashes=() if left_out else hashes, block_token_counts=counts)
        blocks = Fingerprints(b"".join(hashes)) if left_out else None
        reply = lookups.service.lookup(message, Caller(), blocks)
        both.append((reply, [query._replace(chain=list(query.chain)) for query in lookups.index.queries]))
    assert both[0] == both[1]


# -- affinity ---------------------------------------------------------------------------------------------------------


async def test_an_affinity_hint_is_one_replica_and_no_numbers_and_stable() -> None:
    lookups = _Lookups(replicas=["pod-a", "pod-b", "pod-c"])
    for _ in range(3):
        reply = await lookups(prefix_hash=b"p")
        assert reply == LookupRouteResponse(
            reason_code="AFFINITY_HINT",
            replica_scores=[{"replica_id": "pod-b"}],
            lookup_latency_us=reply.lookup_latency_us,
            adapter_id="a",
        )
    assert lookups.counted() == [("AFFINITY_HINT", "true", 3)]


@pytest.mark.parametrize(
    ("fields", "replicas"),
    [
        pytest.param(_EXACT, [], id="no replica"),
        pytest.param({}, ["r1"], id="no seed"),
        pytest.param(_EXACT | {"tenant_id": ""}, ["r1"], id="no tenant"),
        pytest.param(_EXACT | {"model_id": ""}, ["r1"], id="no model"),
        pytest.param(_EXACT | {"hash_scheme": ""}, ["r1"], id="no scheme"),
    ],
)
async def test_affinity_needs_a_seed_a_replica_and_every_key(fields: dict[str, Any], replicas: list[str]) -> None:
    assert (await _Lookups(replicas=replicas)(**fields)).reason_code == "NO_HINT"


async def test_a_broken_chain_has_no_affinity_even_where_chains_are_ignored() -> None:
    policy = {"strategy": {"enableChainMatching": False}}
    lookups = _Lookups(policy=policy, replicas=["r1"])
    assert (await lookups(**_BROKEN | _EXACT)).reason_code == "NO_HINT"
    assert lookups.index.queries[0].exact == b"x"
    assert (await lookups(**_CHAIN | _EXACT)).reason_code == "AFFINITY_HINT"
    lookups.index.outcome = _MATCH
    assert (await lookups(**_BROKEN | _EXACT)).reason_code == "PREFIX_MATCH"


async def test_without_chain_matching_token_ids_are_seeded_by_their_last_block() -> None:
    replicas = [f"pod-{index}" for index in range(50)]
    blocks, _ = chain(_TOKENS, 16)
    policy = {"strategy": {"enableChainMatching": False}}
    exact = await _Lookups(policy=policy, replicas=replicas)(prefix_hash=blocks[-1])
    derived = await _Lookups(policy=policy, replicas=replicas)(**_IDS)
    whole = await _Lookups(replicas=replicas)(**_IDS)
    assert _names(derived) == _names(exact) != _names(whole)


# -- credit -----------------------------------------------------------------------------------------------------------


async def test_lfu_credits_what_was_delivered_and_nothing_a_floor_took_out() -> None:
    lookups = _Lookups(_MATCH, policy={"eviction": "lfu", "minimumMatchedTokens": 128})
    await lookups(**_EXACT)
    ((query, credited),) = lookups.index.credited
    assert query == lookups.index.queries[0]
    assert [item.replica_id for item in credited] == ["r1", "r2"]


@pytest.mark.parametrize(
    ("outcome", "policy"),
    [
        (_MATCH, {}),
        (_HOT, {"eviction": "lfu"}),
        (Outcome(Code.NONE, []), {"eviction": "lfu"}),
        (_MATCH, {"eviction": "lfu", "routingFloorScore": 1000}),
    ],
)
async def test_nothing_else_is_credited(outcome: Outcome, policy: dict[str, Any]) -> None:
    lookups = _Lookups(outcome, policy=policy, replicas=["r1"])
    await lookups(**_EXACT)
    assert lookups.index.credited == []


# -- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caller", "policy"),
    [
        (Caller(deadline=1000.0), None),
        (Caller(deadline=999.0), {"strategy": {"requireChain": True}}),
        (Caller(deadline=999.0), {"lookupTimeoutMs": 60_000}),
        (Caller(cancelled=True), None),
    ],
)
async def test_a_caller_that_no_longer_waits_gets_timeout_before_anything_else(
    caller: Caller, policy: dict[str, Any] | None
) -> None:
    lookups = _Lookups(_MATCH, policy=policy, clocks=Clocks())
    reply = await lookups(caller, **_EXACT)
    assert (reply.reason_code, _names(reply), reply.adapter_id) == ("TIMEOUT", [], "")
    assert lookups.index.queries == []
    assert lookups.counted() == [("TIMEOUT", "false", 1)]


@pytest.mark.parametrize(
    ("takes", "deadline", "policy", "code"),
    [
        (0.006, None, {"lookupTimeoutMs": 5}, "TIMEOUT"),
        (0.005, None, {"lookupTimeoutMs": 5}, "TIMEOUT"),
        (0.004, None, {"lookupTimeoutMs": 5}, "PREFIX_MATCH"),
        (0.006, 60.0, {"lookupTimeoutMs": 5}, "TIMEOUT"),
        (0.006, 0.005, {"lookupTimeoutMs": 60_000}, "TIMEOUT"),
        (0.006, 0.005, None, "TIMEOUT"),
        (0.006, None, {"lookupTimeoutMs": 1000}, "PREFIX_MATCH"),
        (3600.0, None, None, "PREFIX_MATCH"),
    ],
)
async def test_a_result_that_comes_too_late_leaks_nothing(
    takes: float, deadline: float | None, policy: dict[str, Any] | None, code: str
) -> None:
    clocks = Clocks()
    lookups = _Lookups(_MATCH, policy=policy and policy | {"eviction": "lfu"}, clocks=clocks)
    lookups.index.while_matching = lambda: clocks.advance(takes)
    reply = await lookups(Caller(deadline and clocks.seconds + deadline), **_EXACT)
    assert reply.reason_code == code
    assert bool(_names(reply)) is (code == "PREFIX_MATCH")
    assert bool(lookups.index.credited) is (code == "PREFIX_MATCH" and policy is not None)


async def test_latency_is_the_whole_time_of_the_handler() -> None:
    clocks = Clocks()
    lookups = _Lookups(_MATCH, clocks=clocks)
    lookups.index.while_matching = lambda: clocks.advance(0.25)
    assert (await lookups(**_EXACT)).lookup_latency_us == 250_000


# -- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "policy", "replicas", "code"),
    [
        (_MATCH, None, [], "PREFIX_MATCH"),
        (_HOT, None, [], "TENANT_HOT"),
        (None, None, ["r1"], "AFFINITY_HINT"),
        (None, None, [], "NO_HINT"),
        (Outcome(Code.UNKNOWN_MODEL, []), None, [], "UNKNOWN_MODEL"),
        (None, {"minimumPrefixTokens": 500, "affinityRouting": False}, [], "NO_HINT"),
    ],
)
async def test_a_tokenized_prompt_is_looked_up_like_its_tokens_and_echoed(
    outcome: Outcome | None, policy: dict[str, Any] | None, replicas: list[str], code: str
) -> None:
    lookups = _Lookups(outcome, policy=policy, replicas=replicas, tokenizer=_Tokens())
    reply = await lookups(**_PROMPT)
    assert (reply.reason_code, list(reply.token_ids)) == (code, _TOKENS)
    blocks, counts = chain(_TOKENS, 16)
    assert [(q.chain, q.chain_counts) for q in lookups.index.queries] in ([(blocks, counts)], [])
    assert (await lookups(**_IDS)).token_ids == []


async def test_a_prompt_shorter_than_a_block_is_echoed_with_no_hint() -> None:
    lookups = _Lookups(_HOT, tokenizer=_Tokens([7, 8]), replicas=["r1"])
    reply = await lookups(**_PROMPT)
    assert (reply.reason_code, list(reply.token_ids), reply.adapter_id) == ("NO_HINT", [7, 8], "")
    assert lookups.index.queries == []


@pytest.mark.parametrize(
    ("deadline", "policy"), [(0.02, None), (None, {"lookupTimeoutMs": 20}), (3600.0, {"lookupTimeoutMs": 20})]
)
async def test_a_stuck_tokenizer_holds_nobody_past_the_deadline(
    deadline: float | None, policy: dict[str, Any] | None
) -> None:
    release = threading.Event()
    lookups = _Lookups(_MATCH, policy=policy, tokenizer=_Tokens(before=release.wait))
    async with asyncio.timeout(60):  # it stays stuck as long as that
        reply = await lookups(Caller(deadline and time.monotonic() + deadline), **_PROMPT)
    release.set()
    assert (reply.reason_code, list(reply.token_ids)) == ("TIMEOUT", [])
    assert lookups.index.queries == []
    assert lookups.counted() == [("TIMEOUT", "false", 1)]


async def test_a_prompt_nobody_set_a_deadline_for_has_five_seconds() -> None:
    """In five made-up seconds: the clock has them passed while the tokenizer works."""
    clocks = Clocks()
    on_time = _Lookups(_MATCH, tokenizer=_Tokens(before=lambda: clocks.advance(4.9)), clocks=clocks)
    assert (await on_time(**_PROMPT)).reason_code == "PREFIX_MATCH"
    late = _Lookups(_MATCH, tokenizer=_Tokens(before=lambda: clocks.advance(5.0)), clocks=clocks)
    reply = await late(**_PROMPT)
    assert (reply.reason_code, list(reply.token_ids)) == ("TIMEOUT", _TOKENS)
    assert late.index.queries == []


async def test_the_loop_goes_on_while_a_prompt_is_tokenized() -> None:
    release = threading.Event()
    lookups = _Lookups(_MATCH, tokenizer=_Tokens(before=release.wait))
    waiting = asyncio.create_task(lookups(**_PROMPT))
    await asyncio.sleep(0)
    assert (await lookups(**_EXACT)).reason_code == "PREFIX_MATCH"
    assert not waiting.done()
    release.set()
    assert (await waiting).reason_code == "PREFIX_MATCH"


async def test_prompts_beyond_the_slots_are_shed_at_once() -> None:
    release = threading.Event()
    tokenizer = _Tokens(before=release.wait)
    lookups = _Lookups(_MATCH, tokenizer=tokenizer, workers=Workers(slots=3))
    running = [asyncio.create_task(lookups(**_PROMPT)) for _ in range(3)]
    await asyncio.sleep(0)
    shed = await lookups(**_PROMPT)
    assert (shed.reason_code, list(shed.token_ids)) == ("NO_HINT", [])
    assert lookups.metrics.registry.get_sample_value("inferencecache_lookup_route_shed_total") == 1
    release.set()
    assert [(await task).reason_code for task in running] == ["PREFIX_MATCH"] * 3
    assert (await lookups(**_PROMPT)).reason_code == "PREFIX_MATCH"


async def test_a_caller_gone_while_its_prompt_is_tokenized_gets_timeout_with_the_tokens() -> None:
    caller = Caller()
    lookups = _Lookups(_MATCH, tokenizer=_Tokens(before=lambda: setattr(caller, "cancelled", True)))
    reply = await lookups(caller, **_PROMPT)
    assert (reply.reason_code, list(reply.token_ids)) == ("TIMEOUT", _TOKENS)
    assert lookups.index.queries == []


async def test_a_cancelled_handler_is_counted_once_as_timeout() -> None:
    release = threading.Event()
    tokenizer = _Tokens(before=release.wait)
    lookups = _Lookups(_MATCH, tokenizer=tokenizer)
    task = asyncio.create_task(lookups(**_PROMPT))
    await eventually(lambda: tokenizer.started.acquire(blocking=False) or None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    assert lookups.counted() == [("TIMEOUT", "false", 1)]


# -- tiers, tenants, faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tier", "told"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 0), (99, 0), (2**31 - 1, 0)])
async def test_a_tier_the_contract_does_not_know_is_unspecified(tier: int, told: int) -> None:
    reply = await _Lookups(Outcome(Code.PREFIX_MATCH, [score("r", tier=tier)]))(**_EXACT)
    assert [replica.tier for replica in reply.replica_scores] == [told]


async def test_more_matched_tokens_than_fit_are_the_most_that_fit() -> None:
    reply = await _Lookups(Outcome(Code.PREFIX_MATCH, [score("r", tokens=2**40)]))(**_EXACT)
    assert [replica.matched_tokens for replica in reply.replica_scores] == [2**31 - 1]


async def test_the_reserved_tenant_gets_a_bare_no_hint_that_is_counted() -> None:
    lookups = _Lookups(_MATCH, replicas=["r1"])
    reply = await lookups(Caller(cancelled=True), **_EXACT | {"tenant_id": RESERVED_TENANT})
    assert reply == LookupRouteResponse(reason_code="NO_HINT")
    assert lookups.index.queries == []
    assert lookups.counted() == [("NO_HINT", "false", 1)]


@pytest.mark.parametrize("fields", [_EXACT, _PROMPT])
async def test_a_programming_error_costs_the_hint_and_is_told_once(fields: dict[str, Any]) -> None:
    def fail() -> None:
        raise ZeroDivisionError("of all things")

    lookups = _Lookups(_MATCH, tokenizer=_Tokens())
    lookups.index.while_matching = fail
    with capture_logs() as logs:
        for _ in range(3):
            reply = await lookups(**fields)
            assert (reply.reason_code, _names(reply)) == ("NO_HINT", [])
    assert lookups.counted() == [("NO_HINT", "false", 3)]
    errors = lookups.metrics.registry.get_sample_value(
        "inferencecache_server_internal_errors_total", {"rpc": "LookupRoute"}
    )
    assert errors == 3
    assert [(log["event"], log["rpc"], str(log["exc_info"])) for log in logs] == [
        ("internal_error", "LookupRoute", "of all things")
    ]


async def test_a_lookup_logs_nothing(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for fields in (_CHAIN, _BROKEN, _EXACT, _IDS, _PROMPT, {}):
            await _Lookups(_MATCH, tokenizer=_Tokens())(**fields)
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
