"""RenderTemplate with real tokenizers: the key is one that lookups of such prompts would find."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from inferencecache.server import inputs, rendering
from inferencecache.server.inputs import Inputs, Tokenizer
from inferencecache.server.rendering import Renderer
from inferencecache.server.templates import Slot, Template, TemplatesDocument, TemplateStore
from inferencecache.server.tokenizer import load
from inferencecache.server.workers import Workers
from inferencecache.wire.v1alpha1.inferencecache_pb2 import (
    LookupRouteRequest,
    RenderTemplateRequest,
    RenderTemplateResponse,
)
from tests.unit.server.test_tokenizer import CHAT, GENERATION, make_model

BLOCK = 2
SLOTS = [Slot("stable", "Stable"), Slot("mutable", "Mutable")]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    make_model(tmp_path / "m", chat_template=CHAT + GENERATION)
    return load(tmp_path)


def renderer(tokenizer: Tokenizer | None, body: str, *, model: str = "m", workers: Workers | None = None) -> Renderer:
    templates = TemplateStore()
    templates.replace(TemplatesDocument(1, [Template("t", "n", body, SLOTS, "1", model)]))
    return Renderer(templates, tokenizer=tokenizer, workers=workers or Workers(), block_size=BLOCK)


async def render(renderer_: Renderer, ref: str = "t/n", **variables: str) -> RenderTemplateResponse:
    reply = renderer_.render(RenderTemplateRequest(template_ref=ref, tenant_id="t", variables=variables))
    return reply if isinstance(reply, RenderTemplateResponse) else await reply


def blocks_of(tokenizer: Tokenizer, prompt: str) -> Sequence[bytes]:
    """The chain that LookupRoute makes of a prompt."""
    request = LookupRouteRequest(model_id="m", prompt_text=prompt)
    job = inputs.resolve(request, (), chain_matching=True, block_size=BLOCK, tokenizer=tokenizer)
    assert callable(job)
    resolved = job()
    assert isinstance(resolved, Inputs)
    return resolved.chain


async def test_the_key_is_one_of_the_prompts_own_blocks_and_the_same_for_all_mutable_values(
    tokenizer: Tokenizer,
) -> None:
    answers = [
        await render(renderer(tokenizer, "{{ stable }} {{ mutable }}"), stable="hello world hello", mutable=value)
        for value in ("why why", "0 1 0 1", "hello")
    ]
    (key,) = {answer.stable_prefix_hash for answer in answers}
    for answer in answers:
        assert answer.reason_code == "OK"
        # <s> <user> | hello world | hello …: the second block is the last that is stable as a whole.
        assert blocks_of(tokenizer, answer.rendered_prompt.decode())[1] == key


async def test_another_stable_value_has_another_key(tokenizer: Tokenizer) -> None:
    one, other = [
        await render(renderer(tokenizer, "{{ stable }} {{ mutable }}"), stable=value, mutable="why")
        for value in ("hello world", "world hello")
    ]
    assert one.stable_prefix_hash != other.stable_prefix_hash


async def test_a_prompt_without_mutable_slots_has_the_key_of_its_last_block(tokenizer: Tokenizer) -> None:
    answer = await render(renderer(tokenizer, "hello world {{ stable }}"), stable="why")
    assert answer.stable_prefix_hash == blocks_of(tokenizer, "hello world why")[-1]


@pytest.mark.parametrize(
    ("body", "model"),
    [
        pytest.param("hello world {{ mutable }}", "", id="no model"),
        pytest.param("hello world {{ mutable }}", "other", id="a model without a tokenizer"),
        pytest.param("{{ mutable }} hello world", "m", id="nothing stable"),
    ],
)
async def test_without_tokens_the_key_is_empty_and_the_prompt_there(
    tokenizer: Tokenizer, body: str, model: str
) -> None:
    answer = await render(renderer(tokenizer, body, model=model), mutable="why")
    assert answer.reason_code == "OK"
    assert answer.rendered_prompt
    assert answer.stable_prefix_hash == b""


async def test_without_any_tokenizer_the_key_is_empty() -> None:
    answer = await render(renderer(None, "hello {{ mutable }}"), mutable="why")
    assert answer == RenderTemplateResponse(rendered_prompt=b"hello why", reason_code="OK", template_revision="1")


async def test_the_reasons_are_those_of_the_contract(tokenizer: Tokenizer) -> None:
    assert await render(renderer(tokenizer, "x"), ref="t/other") == RenderTemplateResponse(
        reason_code="TEMPLATE_NOT_FOUND"
    )
    assert await render(renderer(tokenizer, "{{"), stable="x") == RenderTemplateResponse(
        reason_code="RENDER_ERROR", template_revision="1"
    )


class Stuck:
    """A tokenizer that waits."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def encode_chat(
        self, model: str, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
    ) -> Sequence[int]:
        self.go.wait(10)
        return [1, 2, 3, 4]

    def encode_text(self, model: str, text: str) -> Sequence[int]:
        raise NotImplementedError


async def test_a_tokenizer_that_takes_too_long_costs_the_key_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "TOKENIZATION_SECONDS", 0.05)
    stuck = Stuck()
    answer = await render(renderer(stuck, "hello {{ mutable }}"), mutable="why")
    stuck.go.set()
    assert (answer.rendered_prompt, answer.stable_prefix_hash) == (b"hello why", b"")


async def test_without_a_free_worker_the_key_is_empty_at_once() -> None:
    stuck, workers = Stuck(), Workers(slots=1)
    busy = renderer(stuck, "hello {{ mutable }}", workers=workers)
    first = asyncio.ensure_future(render(busy, mutable="why"))
    await asyncio.sleep(0)
    answer = await render(busy, mutable="why")
    assert (answer.rendered_prompt, answer.stable_prefix_hash) == (b"hello why", b"")
    stuck.go.set()
    assert (await first).stable_prefix_hash != b""
