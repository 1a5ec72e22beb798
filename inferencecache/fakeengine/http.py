"""The engine's HTTP face: OpenAI's completions, and metrics by the names of vLLM or SGLang.

Text is tokenized byte by byte, so one character of English is one token. The answer is always the same few words; what
matters is `usage.prompt_tokens_details.cached_tokens`, which says how much of the prompt the cache had.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final

from aiohttp import web

from inferencecache.fakeengine.engine import Completed, Engine, Rank

_ANSWER: Final = " I only know caches."
_MAX_TOKENS: Final = 1 << 20
_RANK_HEADER: Final = "X-data-parallel-rank"


class MetricNames(StrEnum):
    """Whose names the metrics have."""

    VLLM = "vllm"
    SGLANG = "sglang"


def tokenize(text: str) -> list[int]:
    """The tokens of a text: its bytes."""
    return list(text.encode())


def engine_app(engine: Engine, metrics: MetricNames, latency: float = 0.0) -> web.Application:
    """The engine as a web application.

    Args:
        engine: what computes.
        metrics: whose names the metrics have.
        latency: seconds that a prompt without any hit takes; hits save their share of it.
    """
    numbers = itertools.count()

    async def completions(request: web.Request) -> web.Response:
        body = await _body(request)
        tokens = _prompt(body)
        completed = await _complete(engine, request, tokens, latency)
        return web.json_response(
            {
                "id": f"cmpl-{next(numbers)}",
                "object": "text_completion",
                "created": int(time.time()),
                "model": engine.model,
                "choices": [{"index": 0, "text": _ANSWER, "finish_reason": "stop", "logprobs": None}],
                "usage": _usage(completed),
            }
        )

    async def models(_request: web.Request) -> web.Response:
        model = {"id": engine.model, "object": "model", "created": 0, "owned_by": "inferencecache"}
        return web.json_response({"object": "list", "data": [model]})

    async def tokens_of(request: web.Request) -> web.Response:
        tokens = _prompt(await _body(request))
        return web.json_response({"tokens": tokens, "count": len(tokens)})

    async def clear(_request: web.Request) -> web.Response:
        for rank in engine.ranks:
            await rank.clear()
        return web.Response()

    async def scrape(_request: web.Request) -> web.Response:
        return web.Response(text="\n".join(_METRICS[metrics](engine)) + "\n", content_type="text/plain")

    async def health(_request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=8 << 20)
    app.add_routes(
        [
            web.post("/v1/completions", completions),
            web.get("/v1/models", models),
            web.post("/tokenize", tokens_of),
            web.post("/reset_prefix_cache", clear),
            web.get("/metrics", scrape),
            web.get("/health", health),
        ]
    )
    return app


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(text="the body is no JSON object")
    return body


def _prompt(body: dict[str, Any]) -> list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        try:
            prompt = tokenize(prompt)
        except UnicodeEncodeError as error:
            raise web.HTTPBadRequest(text=f"prompt: is no text: {error}") from error
    if not isinstance(prompt, list) or not all(type(token) is int and 0 <= token < 2**32 for token in prompt):
        raise web.HTTPBadRequest(text="prompt: needs a text, or a list of token ids")
    if len(prompt) > _MAX_TOKENS:
        raise web.HTTPBadRequest(text=f"prompt: at most {_MAX_TOKENS} tokens")
    return prompt


async def _complete(engine: Engine, request: web.Request, tokens: list[int], latency: float) -> Completed:
    asked = request.headers.get(_RANK_HEADER, "")
    try:
        completed = await engine.complete(tokens, int(asked) if asked else None)
    except (ValueError, IndexError) as error:
        raise web.HTTPBadRequest(text=f"{_RANK_HEADER}: there is no rank {asked}") from error
    rank = engine.ranks[completed.rank]
    rank.running += 1
    try:
        await asyncio.sleep(latency * (1 - completed.cached_tokens / max(completed.prompt_tokens, 1)))
    finally:
        rank.running -= 1
    return completed


def _usage(completed: Completed) -> dict[str, Any]:
    return {
        "prompt_tokens": completed.prompt_tokens,
        "completion_tokens": len(_ANSWER.split()),
        "total_tokens": completed.prompt_tokens + len(_ANSWER.split()),
        "prompt_tokens_details": {"cached_tokens": completed.cached_tokens},
    }


def _usage_share(rank: Rank) -> float:
    return len(rank.cache) / rank.cache.capacity


def _vllm(engine: Engine) -> Iterator[str]:
    families = (
        ("vllm:num_requests_running", "gauge", lambda rank: rank.running),
        ("vllm:num_requests_waiting", "gauge", lambda _rank: 0),
        ("vllm:kv_cache_usage_perc", "gauge", _usage_share),
        ("vllm:prefix_cache_queries_total", "counter", lambda rank: rank.counters.queries),
        ("vllm:prefix_cache_hits_total", "counter", lambda rank: rank.counters.hits),
    )
    for name, kind, value in families:
        # The exposition names a counter's family without its suffix.
        yield f"# TYPE {name.removesuffix('_total') if kind == 'counter' else name} {kind}"
        for rank in engine.ranks:
            yield f'{name}{{engine="{rank.number}",model_name="{engine.model}"}} {float(value(rank))}'


def _sglang(engine: Engine) -> Iterator[str]:
    families = (
        ("sglang:num_running_reqs", lambda rank: rank.running),
        ("sglang:num_queue_reqs", lambda _rank: 0),
        ("sglang:token_usage", _usage_share),
        ("sglang:cache_hit_rate", lambda rank: rank.counters.hits / max(rank.counters.queries, 1)),
    )
    for name, value in families:
        yield f"# TYPE {name} gauge"
        for rank in engine.ranks:
            yield f'{name}{{dp_rank="{rank.number}",model_name="{engine.model}"}} {float(value(rank))}'


_METRICS: Final = {MetricNames.VLLM: _vllm, MetricNames.SGLANG: _sglang}
