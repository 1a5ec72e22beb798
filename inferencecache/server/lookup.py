"""LookupRoute: which replicas have most of this prompt already (spec 06 §3.1).

A lookup goes through gates (is there time, does the policy allow this form of input), asks the index, and weighs the
answer against the floors of the tenant's policy; what remains of nothing may still get an affinity hint. Whatever goes
wrong, the caller gets a reason code and an empty list, and routes as if there were no cache.

All of it is straight-line synchronous code on the event loop, with two exceptions. A prompt must be tokenized first,
and a chain of very many blocks taken out of its message, by a worker; and what is asked of very many blocks or replicas
is answered in turns with other work. Only then is there something to wait for, and only until the deadline. The reply
that comes from waiting is the same as the one that does not; `lookup` returns the first as an awaitable.

Each call is counted exactly once, in `_close`, even if its caller goes away while it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from inferencecache.server import affinity
from inferencecache.server.clock import Clock
from inferencecache.server.faults import Faults
from inferencecache.server.index import RESERVED_TENANT, Code, Outcome, PrefixIndex, Query, ReplicaScore, Scope
from inferencecache.server.index.turns import SLICE
from inferencecache.server.inputs import FailedOpen, Inputs, Job, Resolved, Tokenizer, resolve
from inferencecache.server.metrics import ServerMetrics
from inferencecache.server.policy import PolicyStore, TenantPolicy
from inferencecache.server.workers import Workers
from inferencecache.wire.v1alpha1.inferencecache_pb2 import LookupRouteRequest, LookupRouteResponse

NO_HINT: Final = "NO_HINT"
TIMEOUT: Final = "TIMEOUT"
POLICY_REQUIRES_CHAIN: Final = "POLICY_REQUIRES_CHAIN"
AFFINITY_HINT: Final = "AFFINITY_HINT"

DEFAULT_BLOCK_SIZE: Final = 16
TOKENIZATION_SECONDS: Final = 5.0
"""How long a prompt may take when neither the caller nor the policy says."""

_MAX_INT32: Final = 2**31 - 1
_TIERS: Final = (1, 2, 3)
_PREFIX_MATCH: Final = Code.PREFIX_MATCH.value


class Call(Protocol):
    """What a transport knows about the caller of one request."""

    @property
    def deadline(self) -> float | None:
        """When the caller stops waiting, in seconds of the monotonic clock."""

    @property
    def cancelled(self) -> bool:
        """Whether the caller is gone."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the caller said beside the request, by names in lower case."""


class _Attempt(NamedTuple):
    request: LookupRouteRequest
    blocks: Sequence[bytes]
    call: Call
    policy: TenantPolicy
    deadline: float | None


class LookupService:
    """Answers LookupRoute from one index, on one event loop."""

    def __init__(
        self,
        *,
        index: PrefixIndex,
        policies: PolicyStore,
        metrics: ServerMetrics,
        faults: Faults,
        tokenizer: Tokenizer | None = None,
        block_size: int = DEFAULT_BLOCK_SIZE,
        workers: Workers | None = None,
        clock: Clock | None = None,
    ) -> None:
        """With `block_size` tokens per block of the engines; a server serves engines of one block size, or gateways
        that send chains (spec 06 §10.11)."""
        self._index = index
        self._policies = policies
        self._metrics = metrics
        self._faults = faults
        self._tokenizer = tokenizer
        self._block_size = block_size
        self._workers = workers or Workers()
        self._monotonic, self._wall_us = clock or Clock()

    def lookup(
        self, request: LookupRouteRequest, call: Call, blocks: Sequence[bytes] | None = None
    ) -> LookupRouteResponse | Awaitable[LookupRouteResponse]:
        """The reply; an awaitable, which must be awaited, if there is something to wait for. Never raises.

        `blocks` are the request's block hashes, where they are not in `request`.
        """
        started = self._monotonic()
        if request.tenant_id == RESERVED_TENANT:
            self._metrics.looked_up(request.model_id, NO_HINT, hinted=False, seconds=0.0)
            return LookupRouteResponse(reason_code=NO_HINT)
        try:
            reply = self._begin(request, request.block_hashes if blocks is None else blocks, call, started)
        except Exception as error:
            reply = self._failed(error)
        if isinstance(reply, LookupRouteResponse):
            return self._close(request, reply, started)
        return self._await(request, reply, started)

    def _begin(
        self, request: LookupRouteRequest, blocks: Sequence[bytes], call: Call, started: float
    ) -> LookupRouteResponse | Awaitable[LookupRouteResponse]:
        """Steps 2 to 6."""
        policy = self._policies.of(request.tenant_id)
        deadline = call.deadline
        if policy.lookup_timeout_s is not None:
            budget = started + policy.lookup_timeout_s
            deadline = budget if deadline is None else min(deadline, budget)
        attempt = _Attempt(request, blocks, call, policy, deadline)
        if call.cancelled or self._expired(deadline):
            return _reply(TIMEOUT)
        if policy.require_chain and not (blocks and _chain_is_whole(attempt)):
            return _reply(POLICY_REQUIRES_CHAIN)
        resolved = resolve(
            request,
            blocks,
            chain_matching=policy.chain_matching,
            block_size=self._block_size,
            tokenizer=self._tokenizer,
        )
        if isinstance(resolved, Inputs | FailedOpen):
            return self._answer(attempt, resolved)
        if deadline is None:
            attempt = attempt._replace(deadline=started + TOKENIZATION_SECONDS)
        return self._work(attempt, resolved)

    async def _work(self, attempt: _Attempt, job: Job) -> LookupRouteResponse:
        """Step 6 where it takes a worker; a result that comes too late is nobody's."""
        future = self._workers.submit(job)
        if future is None:
            self._metrics.shed_lookups.inc()
            return _reply(NO_HINT)
        assert attempt.deadline is not None
        done, _ = await asyncio.wait((future,), timeout=max(attempt.deadline - self._monotonic(), 0.0))
        if not done:
            future.cancel()
            return _reply(TIMEOUT)
        answer = self._answer(attempt, future.result())
        return answer if isinstance(answer, LookupRouteResponse) else await answer

    def _answer(
        self, attempt: _Attempt, inputs: Resolved
    ) -> LookupRouteResponse | Coroutine[None, None, LookupRouteResponse]:
        """Steps 7 to 16."""
        request, _, call, policy, deadline = attempt
        echo = inputs.echo
        if call.cancelled or self._expired(deadline):
            return _reply(TIMEOUT, echo)
        if isinstance(inputs, FailedOpen):
            return _reply(NO_HINT, echo)
        short = policy.minimum_prefix_tokens > 0 and inputs.tokens < policy.minimum_prefix_tokens
        if short and not policy.affinity:
            return _reply(NO_HINT, echo)
        query = Query(
            scope=Scope(request.tenant_id, request.model_id, request.hash_scheme),
            adapter_id=request.adapter_id,
            chain=inputs.chain,
            chain_counts=inputs.counts,
            exact=inputs.exact,
            ttft_ms=request.slo.ttft_ms,
        )
        if self._index.takes_turns(query):
            return self._answer_in_turns(attempt, query, inputs, short=short)
        outcome = self._index.match(query, self._wall_us())
        reply, scores = self._conclude(attempt, query, outcome, inputs, short=short)
        _name(reply, scores)
        if _is_credited(reply, attempt):
            self._index.credit(query, scores)
        return reply

    async def _answer_in_turns(
        self, attempt: _Attempt, query: Query, inputs: Inputs, *, short: bool
    ) -> LookupRouteResponse:
        """Steps 10 to 16 where blocks or replicas are many."""

        def turns() -> Generator[None, None, LookupRouteResponse]:
            outcome = yield from self._index.match_in_turns(query, self._wall_us())
            reply, scores = self._conclude(attempt, query, outcome, inputs, short=short)
            for start in range(0, len(scores), SLICE):
                yield
                _name(reply, scores[start : start + SLICE])
            if _is_credited(reply, attempt):
                yield from self._index.credit_in_turns(query, scores)
            return reply

        work = turns()
        while not self._expired(attempt.deadline):
            try:
                next(work)
            except StopIteration as end:
                answer: LookupRouteResponse = end.value
                return answer
            await asyncio.sleep(0)
        return _reply(TIMEOUT, inputs.echo)

    def _conclude(
        self, attempt: _Attempt, query: Query, outcome: Outcome, inputs: Inputs, *, short: bool
    ) -> tuple[LookupRouteResponse, Sequence[ReplicaScore]]:
        """Steps 11 to 15: the reply, and the replicas that are to be named in it."""
        request, _, _, policy, deadline = attempt
        if self._expired(deadline):
            return _reply(TIMEOUT, inputs.echo), ()
        code, scores = _weighed(outcome, policy, short=short)
        reply = _reply(code.value, inputs.echo, request.adapter_id)
        if code is Code.NONE:
            reply.reason_code = NO_HINT
            if policy.affinity and (replica := self._affine(attempt, query, inputs.affinity_digest)) is not None:
                reply.reason_code = AFFINITY_HINT
                reply.replica_scores.add(replica_id=replica)
            return reply, ()
        return reply, scores

    def _affine(self, attempt: _Attempt, query: Query, digest: bytes) -> str | None:
        """The replica of §6.8. A request whose arrays contradict each other has no seed to trust, even where they are
        ignored."""
        if not all(query.scope) or not _chain_is_whole(attempt):
            return None
        serving = self._index.serving(query.scope)
        if digest:
            return affinity.pick_by_digest(digest, serving)
        return affinity.pick(affinity.seed(query.chain, query.exact), serving)

    def _expired(self, deadline: float | None) -> bool:
        return deadline is not None and self._monotonic() >= deadline

    async def _await(
        self, request: LookupRouteRequest, pending: Awaitable[LookupRouteResponse], started: float
    ) -> LookupRouteResponse:
        # What is counted if the caller's going away ends this task.
        reply = _reply(TIMEOUT)
        try:
            reply = await pending
        except Exception as error:
            reply = self._failed(error)
        finally:
            self._close(request, reply, started)
        return reply

    def _failed(self, error: Exception) -> LookupRouteResponse:
        self._faults.record("LookupRoute", error)
        return _reply(NO_HINT)

    def _close(self, request: LookupRouteRequest, reply: LookupRouteResponse, started: float) -> LookupRouteResponse:
        seconds = self._monotonic() - started
        reply.lookup_latency_us = int(seconds * 1_000_000)
        self._metrics.looked_up(request.model_id, reply.reason_code, hinted=bool(reply.replica_scores), seconds=seconds)
        return reply


def _weighed(outcome: Outcome, policy: TenantPolicy, *, short: bool) -> tuple[Code, Sequence[ReplicaScore]]:
    """Steps 12 and 13: what the policy leaves of the index's answer. Scores that stay are not computed anew.

    `short` says that the request is below the policy's minimum length. UNKNOWN_* passes all floors: it tells of a
    misconfiguration, not of a match.
    """
    code, scores = outcome
    if code is Code.TENANT_HOT and (short or not policy.tenant_hot):
        return Code.NONE, ()
    if code is not Code.PREFIX_MATCH:
        return code, scores
    if short:
        return Code.NONE, ()
    if policy.minimum_matched_tokens > 0:
        scores = [score for score in scores if score.matched_tokens >= policy.minimum_matched_tokens]
    if not scores or (policy.routing_floor_score > 0 and scores[0].score < policy.routing_floor_score):
        return Code.NONE, ()
    return code, scores


def _name(reply: LookupRouteResponse, scores: Sequence[ReplicaScore]) -> None:
    """Step 16: name replicas."""
    for score in scores:
        reply.replica_scores.add(
            replica_id=score.replica_id,
            score=score.score,
            matched_tokens=min(score.matched_tokens, _MAX_INT32),
            estimated_cache_hit_prob=score.hit_probability,
            tier=score.tier if score.tier in _TIERS else 0,
        )


def _is_credited(reply: LookupRouteResponse, attempt: _Attempt) -> bool:
    """Whether the reply is a match, and the tenant's policy goes by use."""
    return attempt.policy.lfu and reply.reason_code == _PREFIX_MATCH


def _chain_is_whole(attempt: _Attempt) -> bool:
    return len(attempt.blocks) == len(attempt.request.block_token_counts)


def _reply(reason_code: str, echo: Sequence[int] = (), adapter_id: str = "") -> LookupRouteResponse:
    return LookupRouteResponse(reason_code=reason_code, token_ids=echo, adapter_id=adapter_id)
