"""Input resolution: the rows of spec 06 §3.2, in order, with chain matching on and off."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from inferencecache.server import affinity, inputs
from inferencecache.server.inputs import FailedOpen, Inputs, Resolved, resolve
from inferencecache.wire.fingerprint import chain
from inferencecache.wire.v1alpha1.inferencecache_pb2 import LookupRouteRequest

_TOKENS = list(range(1, 36))  # two blocks of 16, and three left over
_BLOCKS, _COUNTS = chain(_TOKENS, 16)


class _Tokenizer:
    """Gives the same tokens for every prompt and writes down what it was asked."""

    def __init__(self, tokens: Sequence[int] = _TOKENS, error: Exception | None = None) -> None:
        self.tokens = tokens
        self.error = error
        self.asked: list[tuple[Any, ...]] = []

    def encode_chat(
        self, model: str, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
    ) -> Sequence[int]:
        self.asked.append((model, messages, add_generation_prompt))
        if self.error:
            raise self.error
        return self.tokens

    def encode_text(self, model: str, text: str) -> Sequence[int]:
        raise NotImplementedError


def _resolve(
    request: LookupRouteRequest, *, chain_matching: bool = True, tokenizer: _Tokenizer | None = None
) -> Resolved:
    """To the end: a job is done here and now."""
    result = resolve(request, request.block_hashes, chain_matching=chain_matching, block_size=16, tokenizer=tokenizer)
    return result() if callable(result) else result


_CHAIN: dict[str, Any] = {"block_hashes": [b"a", b"b"], "block_token_counts": [16, 20]}
_BROKEN: dict[str, Any] = {"block_hashes": [b"a", b"b"], "block_token_counts": [16]}
_EXACT: dict[str, Any] = {"prefix_hash": b"x", "prefix_token_count": 48}
_IDS: dict[str, Any] = {"token_ids": _TOKENS}
_PROMPT: dict[str, Any] = {"prompt_text": "hello"}

_OF_IDS = Inputs(_BLOCKS, _COUNTS, _BLOCKS[-1], 32)
_LAST_OF_IDS = Inputs((), (), _BLOCKS[-1], 32)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(_EXACT, Inputs([], [], b"x", 48), id="3 exact"),
        pytest.param(_CHAIN, Inputs([b"a", b"b"], [16, 20]), id="3 chain"),
        pytest.param(_CHAIN | _EXACT, Inputs([b"a", b"b"], [16, 20], b"x", 48), id="3 both pass through"),
        pytest.param(_BROKEN, FailedOpen(), id="3 lengths differ"),
        pytest.param({"block_hashes": [b"a"]}, FailedOpen(), id="3 hashes only"),
        pytest.param({"block_token_counts": [16]}, FailedOpen(), id="3 counts only"),
        pytest.param(_BROKEN | _EXACT, FailedOpen(), id="3 an exact hash rescues no broken chain"),
        pytest.param(_CHAIN | _IDS, Inputs([b"a", b"b"], [16, 20]), id="3 before 4"),
        pytest.param(_EXACT | _PROMPT, Inputs([], [], b"x", 48), id="3 before 5"),
        pytest.param(_IDS, _OF_IDS, id="4"),
        pytest.param(_IDS | _PROMPT, _OF_IDS, id="4 before 5"),
        pytest.param({"token_ids": _TOKENS[:15]}, FailedOpen(), id="4 shorter than a block"),
        pytest.param({"token_ids": [1] * (inputs.MAX_TOKENS + 1)}, FailedOpen(), id="4 too many"),
        pytest.param(_PROMPT, _OF_IDS._replace(echo=_TOKENS), id="5"),
        pytest.param({}, Inputs(), id="7"),
        pytest.param({"prefix_token_count": 9}, Inputs(exact_count=9), id="7 with a count"),
    ],
)
def test_rows_with_chain_matching(fields: dict[str, Any], expected: Resolved) -> None:
    assert _resolve(LookupRouteRequest(**fields), tokenizer=_Tokenizer()) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(_EXACT, Inputs(exact=b"x", exact_count=48), id="1"),
        pytest.param(_EXACT | _BROKEN, Inputs(exact=b"x", exact_count=48), id="1 arrays are ignored, even broken"),
        pytest.param(_EXACT | _IDS | _PROMPT, Inputs(exact=b"x", exact_count=48), id="1 before 4 and 5"),
        pytest.param(_CHAIN | _IDS, _LAST_OF_IDS, id="2 then 4"),
        pytest.param(_BROKEN | _PROMPT, _LAST_OF_IDS._replace(echo=_TOKENS), id="2 then 5"),
        pytest.param(_IDS, _LAST_OF_IDS, id="4 only the last block"),
        pytest.param(_PROMPT, _LAST_OF_IDS._replace(echo=_TOKENS), id="5 only the last block"),
        pytest.param(_CHAIN, FailedOpen(), id="6"),
        pytest.param(_BROKEN, FailedOpen(), id="6 broken"),
        pytest.param({"block_hashes": [b"a"]}, FailedOpen(), id="6 hashes only"),
        pytest.param({"block_token_counts": [16]}, FailedOpen(), id="6 counts only"),
        pytest.param({}, Inputs(), id="7"),
    ],
)
def test_rows_without_chain_matching(fields: dict[str, Any], expected: Resolved) -> None:
    assert _resolve(LookupRouteRequest(**fields), chain_matching=False, tokenizer=_Tokenizer()) == expected


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        pytest.param(None, FailedOpen(), id="no tokenizer"),
        pytest.param(_Tokenizer(error=KeyError("model")), FailedOpen(), id="it fails"),
        pytest.param(_Tokenizer([]), FailedOpen(), id="no tokens"),
        pytest.param(_Tokenizer([1] * (inputs.MAX_TOKENS + 1)), FailedOpen(), id="too many tokens"),
        pytest.param(_Tokenizer([-1] * 16), FailedOpen(), id="ids that are none"),
        pytest.param(_Tokenizer([7] * 15), FailedOpen(echo=[7] * 15), id="shorter than a block is echoed"),
    ],
)
def test_a_prompt_that_cannot_be_tokenized_fails_open(tokenizer: _Tokenizer | None, expected: Resolved) -> None:
    assert _resolve(LookupRouteRequest(model_id="m", **_PROMPT), tokenizer=tokenizer) == expected


def test_without_a_tokenizer_a_prompt_is_no_work() -> None:
    request = LookupRouteRequest(model_id="m", **_PROMPT)
    assert resolve(request, request.block_hashes, chain_matching=True, block_size=16, tokenizer=None) == FailedOpen()


def test_as_many_tokens_as_are_allowed_are_taken() -> None:
    most = [1] * inputs.MAX_TOKENS
    by_ids = _resolve(LookupRouteRequest(token_ids=most))
    by_prompt = _resolve(LookupRouteRequest(**_PROMPT), tokenizer=_Tokenizer(most))
    assert isinstance(by_ids, Inputs)
    assert by_ids.tokens == inputs.MAX_TOKENS
    assert by_prompt == by_ids._replace(echo=most)


def test_a_prompt_is_one_user_message_with_a_generation_prompt() -> None:
    tokenizer = _Tokenizer()
    _resolve(LookupRouteRequest(model_id="m", **_PROMPT), tokenizer=tokenizer)
    assert tokenizer.asked == [("m", [{"role": "user", "content": "hello"}], True)]


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ("a" * inputs.MAX_PROMPT_BYTES, 1),
        ("a" * (inputs.MAX_PROMPT_BYTES + 1), 0),
        ("é" * (inputs.MAX_PROMPT_BYTES // 2), 1),
        ("é" * (inputs.MAX_PROMPT_BYTES // 2 + 1), 0),
    ],
)
def test_an_oversize_prompt_never_reaches_the_tokenizer(prompt: str, asked: int) -> None:
    tokenizer = _Tokenizer()
    _resolve(LookupRouteRequest(prompt_text=prompt), tokenizer=tokenizer)
    assert len(tokenizer.asked) == asked


@pytest.mark.parametrize(
    ("tokens", "inline"), [(inputs.MAX_INLINE_TOKENS, True), (inputs.MAX_INLINE_TOKENS + 1, False)]
)
def test_only_so_many_tokens_are_hashed_on_the_event_loop(tokens: int, inline: bool) -> None:
    request = LookupRouteRequest(token_ids=[5] * tokens)
    result = resolve(request, request.block_hashes, chain_matching=True, block_size=16, tokenizer=None)
    assert callable(result) is not inline
    blocks, counts = chain([5] * tokens, 16)
    assert _resolve(request) == Inputs(blocks, counts, blocks[-1], tokens // 16 * 16)


@pytest.mark.parametrize(
    ("blocks", "inline"), [(inputs.MAX_INLINE_BLOCKS, True), (inputs.MAX_INLINE_BLOCKS + 1, False), (100_000, False)]
)
def test_only_so_many_blocks_are_copied_on_the_event_loop(blocks: int, inline: bool) -> None:
    hashes = [number.to_bytes(8, "big") for number in range(blocks)]
    request = LookupRouteRequest(block_hashes=hashes, block_token_counts=[16] * blocks, **_EXACT)
    result = resolve(request, request.block_hashes, chain_matching=True, block_size=16, tokenizer=None)
    assert callable(result) is not inline
    digest = b"" if inline else hashlib.sha256(affinity.seed(hashes, b"")).digest()
    assert _resolve(request) == Inputs(hashes, [16] * blocks, b"x", 48, affinity_digest=digest)


def test_more_blocks_than_have_hashes_fail_open_untouched() -> None:
    blocks = inputs.MAX_BLOCKS + 1
    request = LookupRouteRequest(block_hashes=[b""] * blocks, block_token_counts=[1] * blocks)
    assert resolve(request, request.block_hashes, chain_matching=True, block_size=16, tokenizer=None) == FailedOpen()


@pytest.mark.parametrize(
    ("resolved", "tokens"),
    [
        (Inputs([b"a", b"b"], [16, 20], b"x", 999), 36),
        (Inputs((), (), b"x", 999), 999),
        (Inputs([b"a"], [-5]), -5),
        (Inputs(), 0),
    ],
)
def test_a_chains_own_counts_are_its_length(resolved: Inputs, tokens: int) -> None:
    assert resolved.tokens == tokens
