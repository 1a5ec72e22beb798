"""RenderTemplate: a prompt, and the index's key of the part of it that stays the same.

The key is that of the last whole block of tokens which the prompt shares with its own stable part, both as a
conversation of one user message, which is how LookupRoute takes a prompt. A gateway can look it up as `prefix_hash`
without a tokenizer of its own, and finds what producers reported of any prompt with that beginning.

It takes the template's model and a tokenizer for it. Where one of them is missing, where the stable part has no whole
block, or where finding out takes too long, the key stays empty, which tells the caller to look the prompt itself up. No
other hash would do in its place: the index is keyed by tokens, and anything else would match nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from itertools import takewhile
from typing import Final

from inferencecache.server.inputs import Tokenizer
from inferencecache.server.templates import NotRendered, Rendered, TemplateStore
from inferencecache.server.workers import Workers
from inferencecache.wire.fingerprint import chain
from inferencecache.wire.v1alpha1.inferencecache_pb2 import RenderTemplateRequest, RenderTemplateResponse

OK: Final = "OK"
TOKENIZATION_SECONDS: Final = 5.0


class Renderer:
    """Answers RenderTemplate from the templates in force. Belongs to one event loop."""

    def __init__(
        self, templates: TemplateStore, *, tokenizer: Tokenizer | None, workers: Workers, block_size: int
    ) -> None:
        self._templates = templates
        self._tokenizer = tokenizer
        self._workers = workers
        self._block_size = block_size

    def render(self, request: RenderTemplateRequest) -> RenderTemplateResponse | Awaitable[RenderTemplateResponse]:
        """The reply, or an awaitable of it where tokens have to be made; that takes a few seconds at most."""
        rendered = self._templates.render(request)
        if isinstance(rendered, NotRendered):
            return RenderTemplateResponse(reason_code=rendered.reason, template_revision=rendered.revision)
        reply = RenderTemplateResponse(
            rendered_prompt=rendered.prompt.encode(), reason_code=OK, template_revision=rendered.revision
        )
        if self._tokenizer is None or not rendered.model or not rendered.stable:
            return reply
        return self._with_key(reply, rendered, self._tokenizer)

    async def _with_key(
        self, reply: RenderTemplateResponse, rendered: Rendered, tokenizer: Tokenizer
    ) -> RenderTemplateResponse:
        future = self._workers.submit(partial(stable_key, tokenizer, rendered, self._block_size))
        if future is not None:
            done, _ = await asyncio.wait((future,), timeout=TOKENIZATION_SECONDS)
            if done:
                reply.stable_prefix_hash = future.result()
            else:
                future.cancel()
        return reply


def stable_key(tokenizer: Tokenizer, rendered: Rendered, block_size: int) -> bytes:
    """The key of the stable part's last whole block, or nothing. Blocks, and never raises."""

    def tokens(text: str) -> Sequence[int]:
        return tokenizer.encode_chat(rendered.model, [{"role": "user", "content": text}], add_generation_prompt=True)

    try:
        whole = tokens(rendered.prompt)
        # Where the stable part ends, its last token may become another one; so does what the chat template puts behind.
        stable = tokens(rendered.stable)
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(whole, stable, strict=False))
        keys, _ = chain([token for token, _ in pairs], block_size)
    except Exception:
        # Whatever a tokenizer does wrong costs the caller the key and no more.
        return b""
    return keys[-1] if keys else b""
