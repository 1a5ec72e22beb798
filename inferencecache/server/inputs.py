"""What a LookupRoute asks about, whichever of its four forms it came in (spec 06 §3.2).

A caller sends a chain of block hashes, the hash of its last block, token ids, or a prompt. `resolve` walks the rows of
the contract in order and takes the first that applies. What cannot be used *fails open*: the caller gets no hint and
routes as if there were no cache.

Turning a prompt, or very many token ids, into hashes takes long, and so does taking very many blocks out of a message;
`resolve` then gives back the job for a worker thread instead of doing it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, Protocol

from inferencecache.server import affinity
from inferencecache.wire.fingerprint import chain as fingerprint
from inferencecache.wire.v1alpha1.inferencecache_pb2 import LookupRouteRequest

MAX_PROMPT_BYTES: Final = 1 << 20
MAX_TOKENS: Final = 1 << 20
MAX_INLINE_TOKENS: Final = 1 << 16
"""Hashing more tokens than these would hold up the event loop for over a few milliseconds."""
MAX_BLOCKS: Final = 1 << 19
"""More than a message has room for if their hashes are of 8 bytes or more, as those of every known scheme are."""
MAX_INLINE_BLOCKS: Final = 1 << 14
"""Copying more blocks than these would, too."""


class Tokenizer(Protocol):
    """Turns prompts into the token ids the engines of a model see (spec 06 §9). Thread-safe; any exception means that
    it cannot."""

    def encode_chat(
        self, model: str, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
    ) -> Sequence[int]:
        """The ids of a conversation in the model's chat template."""

    def encode_text(self, model: str, text: str) -> Sequence[int]:
        """The ids of a text as it is, with the model's special tokens."""


class Inputs(NamedTuple):
    """What to ask the index: the chain if there is one, else the exact hash.

    Attributes:
        chain: keys of the leading blocks.
        counts: tokens of each block of `chain`.
        exact: key of the last block; empty if the request named none.
        exact_count: tokens up to the end of that block.
        echo: token ids to return, when the server made them from a prompt.
        affinity_digest: of the chain (`affinity.digest`), if it is too long for the event loop to make that.
    """

    chain: Sequence[bytes] = ()
    counts: Sequence[int] = ()
    exact: bytes = b""
    exact_count: int = 0
    echo: Sequence[int] = ()
    affinity_digest: bytes = b""

    @property
    def tokens(self) -> int:
        """How long the request is as far as the index can tell, for the floors of the policy."""
        return sum(self.counts) if self.chain else self.exact_count


class FailedOpen(NamedTuple):
    """Nothing usable was sent; `echo` as in `Inputs`."""

    echo: Sequence[int] = ()


Resolved = Inputs | FailedOpen
Job = Callable[[], Resolved]


def resolve(
    request: LookupRouteRequest,
    block_hashes: Sequence[bytes],
    *,
    chain_matching: bool,
    block_size: int,
    tokenizer: Tokenizer | None,
) -> Resolved | Job:
    """What `request` asks about, or the job that finds out. The job blocks, never raises, and belongs into a thread.

    Args:
        request: its repeated fields are copied, as walking them in place is slow.
        block_hashes: those of the request, which need not be in it.
        chain_matching: off, explicit chains are ignored and derived ones shrink to their last block.
        block_size: tokens per block of the engines, for derived chains.
        tokenizer: None if the server has none.
    """
    exact = request.prefix_hash
    blocks, counts = len(block_hashes), len(request.block_token_counts)
    ignored = False
    if not chain_matching:
        if exact:  # row 1
            return Inputs(exact=exact, exact_count=request.prefix_token_count)
        ignored = bool(blocks or counts)  # row 2
    elif blocks or counts or exact:  # row 3
        if blocks != counts or blocks > MAX_BLOCKS:
            return FailedOpen()
        if blocks > MAX_INLINE_BLOCKS:
            return partial(_from_long_chain, request, block_hashes)
        return Inputs(block_hashes[:], request.block_token_counts[:], exact, request.prefix_token_count)
    if tokens := len(request.token_ids):  # row 4
        if tokens > MAX_TOKENS:
            return FailedOpen()
        job = partial(_from_tokens, request.token_ids, chain_matching=chain_matching, block_size=block_size)
        return job() if tokens <= MAX_INLINE_TOKENS else job
    if prompt := request.prompt_text:  # row 5
        if tokenizer is None or len(prompt) > MAX_PROMPT_BYTES or len(prompt.encode()) > MAX_PROMPT_BYTES:
            return FailedOpen()
        return partial(
            _from_prompt, tokenizer, request.model_id, prompt, chain_matching=chain_matching, block_size=block_size
        )
    if ignored:  # row 6
        return FailedOpen()
    return Inputs(exact_count=request.prefix_token_count)  # row 7


def _from_long_chain(request: LookupRouteRequest, hashes: Sequence[bytes]) -> Resolved:
    """Row 3, in pieces, as each holds the interpreter."""
    pieces = [hashes[start : start + MAX_INLINE_BLOCKS] for start in range(0, len(hashes), MAX_INLINE_BLOCKS)]
    return Inputs(
        list(chain.from_iterable(pieces)),
        request.block_token_counts[:],
        request.prefix_hash,
        request.prefix_token_count,
        affinity_digest=affinity.digest(pieces),
    )


def _from_tokens(tokens: Sequence[int], *, chain_matching: bool, block_size: int) -> Resolved:
    blocks, counts = fingerprint(tokens, block_size)
    if not blocks:
        return FailedOpen()
    exact, exact_count = blocks[-1], len(blocks) * block_size
    return Inputs(blocks, counts, exact, exact_count) if chain_matching else Inputs((), (), exact, exact_count)


def _from_prompt(tokenizer: Tokenizer, model: str, prompt: str, *, chain_matching: bool, block_size: int) -> Resolved:
    try:
        tokens = tokenizer.encode_chat(model, [{"role": "user", "content": prompt}], add_generation_prompt=True)
        if not 0 < len(tokens) <= MAX_TOKENS:
            return FailedOpen()
        resolved = _from_tokens(tokens, chain_matching=chain_matching, block_size=block_size)
    except Exception:
        # Whatever a tokenizer does wrong, ids that are none included, it costs this request its hint and no more.
        return FailedOpen()
    return resolved._replace(echo=tokens)
