"""KV-cache events as engines publish them: one decoder for every shape and version in use (spec 08 §4, §15, §16).

An engine publishes *batches*; a batch holds events that tell what its KV cache gained and lost. Fields are the same
in all builds, and so is their order, but there are two encodings of an event, and two of a batch: positional arrays,
and maps keyed by the very names of the fields. Here each event is declared once, in positional order, and read in
either encoding. What a build does not send has its default.

The unit of failure is the event (decision D1): what cannot be understood is left out of its batch and counted by
reason, and its neighbours stay. It is never guessed at: an event whose adapter is unreadable would otherwise count as
the base model's, and alias the two. Only a batch whose envelope is unreadable fails as a whole.

There are two ways through this module. The strict one decodes a whole batch into typed events at once, in one of the
spellings that builds use throughout: block hashes as integers or as raw digests, tokens or the pairs of speculative
decoding. It is what nearly all traffic takes. A batch that does not fit is read again, event by event, with any mixture
of these, and what else a few builds need: a salt where the adapter's name should be. Both yield the same types, so that
a consumer sees no builds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple, cast

from msgspec import DecodeError, Meta, Raw, Struct, ValidationError, convert, defstruct, structs
from msgspec.msgpack import Decoder
from xxhash import xxh3_64_intdigest

_I64_MAX: Final = 2**63 - 1

_TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_Int32 = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Int64 = Annotated[int, Meta(ge=-(2**63), le=_I64_MAX)]
# Bounded, as consumers remember which groups and ranks there are.
_GroupIndex = Annotated[int, Meta(ge=0, le=2**15)]
_Rank = Annotated[int, Meta(ge=0, le=2**15)]

MALFORMED: Final = "malformed"
"""Reason: no event at all, as it is neither an array nor a map, or has no tag, or lacks a field that none omits."""
UNKNOWN_TYPE: Final = "unknown_type"
"""Reason: a tag that no engine is known to send; later builds may."""


class UndecodableBatch(ValueError):
    """The envelope is unreadable, so nothing of the batch can be used. The next batch may be fine."""


class BlockStored(Struct, gc=False):
    """Blocks that a medium holds from now on (spec 08 §4.3).

    Attributes:
        block_hashes: the engine's names of the blocks, in order, as 64-bit integers. Builds and sources differ in the
            sign: names are the same when they are equal modulo 2^64. A raw digest is named by its last 8 bytes, as
            engines do themselves where they send integers: builds mix both for one block.
        parent_block_hash: the block before the first one. None says that there is none, or that the build or the
            source does not tell.
        token_ids: the blocks' tokens, each an unsigned 32-bit integer, `block_size` per block. Empty or None when the
            source knows blocks by their hashes only.
        block_size: tokens per block; 0 is usual where there are no tokens.
        lora_id: the engine's number of the adapter; None is the base model, or a build that names adapters instead.
        medium: where the blocks are, as the engine spells it; None in builds that know the GPU only.
        lora_name: the adapter's name, in builds that send it.
        extra_keys: per block, what besides tokens went into its hash: adapter, images, salt, prompt embeddings,
            untagged. Blocks without any have None. A salt stands at the first block of a prompt only.
        group_idx: the group of layers that holds the blocks, in hybrid models.
        kv_cache_spec_kind: the kind of attention of that group.
        kv_cache_spec_sliding_window: its window in tokens, where it has one.
        locality: `REMOTE` when the medium is another machine's.
        cache_salt: a salt of all these blocks, in builds that do not send it among the extra keys.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[_TokenId] | None
    block_size: _Int32
    lora_id: _Int64 | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: _GroupIndex | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: Any = None
    locality: str | None = None
    cache_salt: str | None = None


class BlockRemoved(Struct, gc=False):
    """Blocks that a medium holds no longer; the attributes are those of `BlockStored`."""

    block_hashes: list[int]
    medium: str | None = None
    group_idx: _GroupIndex | None = None
    locality: str | None = None


class AllBlocksCleared(Struct, gc=False):
    """The rank that sent the batch holds nothing any more, on no medium (spec 08 §15 fact 13)."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(Struct, frozen=True, gc=False):
    """What one message says.

    Attributes:
        ts: when, in seconds since 1970, by the engine's clock.
        events: in order.
        data_parallel_rank: which rank of a data-parallel engine speaks; None in builds that do not say.
        dropped: events left out, counted by reason: `MALFORMED`, `UNKNOWN_TYPE`, or the name of the unreadable field.
    """

    ts: float
    events: list[Event]
    data_parallel_rank: int | None
    dropped: Mapping[str, int]

    @property
    def timestamp_us(self) -> int:
        """`ts` in whole microseconds since 1970; 0, which the server reads as now, when it is no time (spec 08 §8)."""
        microseconds = self.ts * 1e6
        return int(microseconds) if 0 < microseconds <= _I64_MAX else 0


class EventDecoder:
    """Decodes the batches of one engine. It remembers which spelling the engine used last, and tries that first."""

    def __init__(self) -> None:
        self._spelling = _SPELLINGS[0]

    def decode(self, payload: bytes) -> EventBatch:
        """The batch of one message's last frame.

        Raises:
            UndecodableBatch: the envelope is unreadable. No other exception, whatever the bytes are.
        """
        envelope_is_map = _is_map(payload)
        for spelling in (self._spelling, *_SPELLINGS):
            try:
                batch = spelling.decoders[envelope_is_map].decode(payload)
            except (DecodeError, RecursionError):
                continue
            self._spelling = spelling
            if spelling.rewrite is not None:
                spelling.rewrite(batch.events)
            return EventBatch(batch.ts, batch.events, batch.rank, _NOTHING)
        return self._decode_leniently(payload, envelope_is_map)

    def _decode_leniently(self, payload: bytes, envelope_is_map: bool) -> EventBatch:
        try:
            batch = _ENVELOPE[envelope_is_map].decode(payload)
        except (DecodeError, RecursionError) as error:
            raise UndecodableBatch(f"no event batch: {error}") from error
        events: list[Event] = []
        dropped: Counter[str] = Counter()
        for raw in batch.events:
            event = _lenient(raw)
            if isinstance(event, str):
                dropped[event] += 1
            else:
                events.append(event)
        return EventBatch(batch.ts, events, batch.rank, dropped)


_NOTHING: Final[Mapping[str, int]] = {}


# Strict: a tagged union per encoding and spelling.


class _MapEnvelope(Struct, gc=False, kw_only=True):
    ts: float
    data_parallel_rank: _Rank | None = None
    attn_dp_rank: _Rank | None = None

    @property
    def rank(self) -> int | None:
        return self.attn_dp_rank if self.data_parallel_rank is None else self.data_parallel_rank


def _envelopes(event: Any) -> dict[bool, Decoder[Any]]:
    """Decoders of batches of such events, by whether the envelope is a map."""
    array: list[tuple[str, Any] | tuple[str, Any, Any]]
    array = [("ts", float), ("events", list[event]), ("rank", _Rank | None, None)]
    return {
        False: Decoder(defstruct("ArrayEnvelope", array, array_like=True, gc=False)),
        True: Decoder(
            defstruct("MapEnvelope", [("events", list[event])], bases=(_MapEnvelope,), kw_only=True, gc=False)
        ),
    }


_MAPS_ONLY: Final = ("locality", "cache_salt")
"""Fields without a position: no build has longer arrays than those before them, as they came with the maps."""


def _tagged(kind: type[Struct], *fields: tuple[str, Any], **encoding: Any) -> type[Struct]:
    """A kind of event in one encoding, in which some fields are of other types than declared."""
    declared: list[tuple[str, Any] | tuple[str, Any, Any]] = [*fields]
    if "array_like" in encoding:  # what stands in their place is something else
        declared += [(name, None, None) for name in _MAPS_ONLY if name in kind.__struct_fields__]
    return defstruct(kind.__name__, declared, bases=(kind,), tag=kind.__name__, gc=False, **encoding)


def _events(stored: list[tuple[str, Any]], removed: list[tuple[str, Any]], **encoding: Any) -> Any:
    return (
        _tagged(BlockStored, *stored, **encoding)
        | _tagged(BlockRemoved, *removed, **encoding)
        | _tagged(AllBlocksCleared, **encoding)
    )


def _name_by_digests(events: list[Any]) -> None:
    for event in events:
        try:
            names = event.block_hashes
        except AttributeError:  # a clear: cheaper than to ask each event for its type
            continue
        event.block_hashes = [_from_bytes(name[-8:]) if isinstance(name, bytes) else name for name in names]
        if isinstance(parent := getattr(event, "parent_block_hash", None), bytes):
            event.parent_block_hash = _from_bytes(parent[-8:])


_from_bytes = int.from_bytes  # big-endian


class _Pair(Struct, array_like=True, gc=False):
    """A token and those that were drafted after it, which are skipped."""

    token: _TokenId


def _take_first_of_pairs(events: list[Any]) -> None:
    for event in events:
        if tokens := getattr(event, "token_ids", None):
            event.token_ids = [pair.token for pair in tokens]


class _Spelling(NamedTuple):
    """How a build spells its events: what decodes them, and what then makes declared types of them."""

    decoders: dict[bool, Decoder[Any]]
    rewrite: Callable[[list[Any]], None] | None


_ENCODINGS: Final[tuple[dict[str, Any], ...]] = ({"array_like": True}, {"tag_field": "type"})
_HASHES: Final = ("block_hashes", list[int | bytes])
_PARENT: Final = ("parent_block_hash", int | bytes | None)
_PAIRS: Final = ("token_ids", list[_Pair] | None)
_SPELLINGS: Final = (
    *(_Spelling(_envelopes(_events([], [], **encoding)), None) for encoding in _ENCODINGS),
    *(
        _Spelling(_envelopes(_events([_HASHES, _PARENT], [_HASHES], **encoding)), _name_by_digests)
        for encoding in _ENCODINGS
    ),
    *(_Spelling(_envelopes(_events([_PAIRS], [], **encoding)), _take_first_of_pairs) for encoding in _ENCODINGS),
)
_ENVELOPE: Final = _envelopes(Raw)


def _is_map(message: bytes) -> bool:
    return message[:1] in _MAP_BYTES


_MAP_BYTES: Final = frozenset(bytes([first]) for first in (*range(0x80, 0x90), 0xDE, 0xDF))


# Lenient: an event is decoded untyped, rewritten to the declared types, and checked against them.


def _lenient(raw: Raw) -> Event | str:
    """The event, or the reason why there is none."""
    try:
        content = _UNTYPED.decode(raw)
    except (DecodeError, RecursionError):
        return MALFORMED
    if isinstance(content, dict):
        fields, tag = content, content.get("type")
    elif isinstance(content, list) and content:
        tag = content[0]
        names = _POSITIONS.get(tag, ()) if isinstance(tag, str) else ()
        fields = {"type": tag, **dict(zip(names, content[1:], strict=False))}
    else:
        return MALFORMED
    if not isinstance(tag, str):
        return MALFORMED
    shape = _SHAPES.get(tag)
    if shape is None:
        return UNKNOWN_TYPE
    _soften(fields)
    try:
        event = cast(Event, convert(fields, shape))
    except ValidationError:
        return _unreadable_field(fields, shape)
    return event


_UNTYPED: Final = Decoder()
_SHAPES: Final = {
    kind.__name__: _tagged(kind, tag_field="type") for kind in (BlockStored, BlockRemoved, AllBlocksCleared)
}
_POSITIONS: Final[dict[str, tuple[str, ...]]] = {
    kind.__name__: tuple(name for name in kind.__struct_fields__ if name not in _MAPS_ONLY)
    for kind in (BlockStored, BlockRemoved)
}


def _soften(fields: dict[str, Any]) -> None:
    """Rewrite in place what some builds send otherwise than the declared types say."""
    hashes, tokens, name = fields.get("block_hashes"), fields.get("token_ids"), fields.get("lora_name")
    if isinstance(hashes, list):
        fields["block_hashes"] = [_identity(block_hash) for block_hash in hashes]
    if "parent_block_hash" in fields:
        fields["parent_block_hash"] = _identity(fields["parent_block_hash"])
    if isinstance(tokens, list) and tokens and isinstance(tokens[0], list):  # EAGLE's pairs (spec 08 §15 fact 6)
        fields["token_ids"] = [pair[0] if isinstance(pair, list) and pair else pair for pair in tokens]
    if isinstance(name, dict) and "cache_salt" in name:  # SGLang 0.5.19 in place of a name (spec 08 §4.3)
        fields["lora_name"], fields["cache_salt"] = None, name["cache_salt"]


def _identity(block_hash: Any) -> Any:
    """A block hash that is no integer as one; anything that is no block hash as it is."""
    if isinstance(block_hash, bytes):
        return _from_bytes(block_hash[-8:])
    if isinstance(block_hash, str):
        return xxh3_64_intdigest(block_hash.encode())
    return block_hash


def _unreadable_field(fields: dict[str, Any], shape: type[Struct]) -> str:
    for declared in structs.fields(shape):
        if declared.name not in fields:
            if declared.required:
                return MALFORMED
            continue
        try:
            convert(fields[declared.name], declared.type)
        except ValidationError:
            return declared.name
    return MALFORMED
