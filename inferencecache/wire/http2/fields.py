"""Header fields as HPACK carries them (RFC 7541).

Decoding is ours because of its place: a client that sends deadlines changes the dynamic table with every call, so each
block is really decoded, and a general decoder took longer for it than the rest of the call. The static table and the
Huffman code are published constants and come from the `hpack` package.

Encoding needs no state: a server of few headers sends literals that are never indexed, so the same header has the same
bytes on every connection and is made once.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from hpack import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

Field: TypeAlias = tuple[bytes, bytes]

_STATIC: Final[tuple[Field, ...]] = (
    (b"", b""),
    *((bytes(name), bytes(value)) for name, value in HeaderTable.STATIC_TABLE),
)
_FIRST_DYNAMIC: Final = len(_STATIC)
_OVERHEAD: Final = 32
TABLE_SIZE: Final = 4096


class FieldError(Exception):
    """A block that cannot be decoded; the connection's table is no longer known, so the connection must end."""


class FieldListTooLong(Exception):
    """The fields of a block together are longer than we read; the table stayed intact."""


class Decoder:
    """The decoding half of one connection.

    `limit` is the greatest sum of name, value and 32 per field that is read (SETTINGS_MAX_HEADER_LIST_SIZE).
    """

    __slots__ = ("_dynamic", "_limit", "_size", "_space", "changed")

    def __init__(self, limit: int) -> None:
        self.changed = False
        """Whether the last block changed the table, so that equal bytes may mean other fields from now on."""
        self._limit = limit
        self._dynamic: deque[Field] = deque()
        self._size = 0
        self._space = TABLE_SIZE

    def decode(self, block: bytes) -> list[Field]:
        """The fields of a whole block, in order. Raises `FieldError` or, when all is decoded, `FieldListTooLong`."""
        self.changed = False
        try:
            return self._decode(block)
        except (IndexError, HPACKError) as error:
            raise FieldError(f"a field block ends too early or is malformed: {error}") from error

    def _decode(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        dynamic = self._dynamic
        position, end, total = 0, len(block), 0
        while position < end:
            first = block[position]
            if first >= 0x80:
                index = first & 0x7F
                position += 1
                if index == 0x7F:
                    index, position = _rest_of_integer(block, position, index)
                if index == 0:
                    raise FieldError("a field with index 0")
                field = _STATIC[index] if index < _FIRST_DYNAMIC else dynamic[index - _FIRST_DYNAMIC]
            elif first & 0xE0 == 0x20:
                if fields:
                    raise FieldError("a change of the table's size after a field")
                size, position = _integer(block, position, 0x1F)
                self._resize(size)
                continue
            else:
                indexed = first >= 0x40
                index, position = _integer(block, position, 0x3F if indexed else 0x0F)
                if index == 0:
                    name, position = _string(block, position)
                else:
                    name = (_STATIC[index] if index < _FIRST_DYNAMIC else dynamic[index - _FIRST_DYNAMIC])[0]
                value, position = _string(block, position)
                field = (name, value)
                if indexed:
                    self._add(field)
            total += len(field[0]) + len(field[1]) + _OVERHEAD
            if total <= self._limit:
                fields.append(field)
        if total > self._limit:
            raise FieldListTooLong(f"{total} bytes of header fields; at most {self._limit} are read")
        return fields

    def _add(self, field: Field) -> None:
        self.changed = True
        size = len(field[0]) + len(field[1]) + _OVERHEAD
        self._size += size
        self._dynamic.appendleft(field)
        if self._size > self._space:
            self._evict()

    def _resize(self, space: int) -> None:
        if space > TABLE_SIZE:
            raise FieldError(f"a table of {space} bytes; at most {TABLE_SIZE} are offered")
        self.changed = True
        self._space = space
        self._evict()

    def _evict(self) -> None:
        while self._size > self._space:
            name, value = self._dynamic.pop()
            self._size -= len(name) + len(value) + _OVERHEAD


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    value = block[position] & mask
    if value < mask:
        return value, position + 1
    return _rest_of_integer(block, position + 1, value)


def _rest_of_integer(block: bytes, position: int, value: int) -> tuple[int, int]:
    shift = 0
    while True:
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise FieldError("an integer longer than any length can be")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    huffman = block[position] >= 0x80
    size, position = _integer(block, position, 0x7F)
    end = position + size
    if end > len(block):
        raise FieldError("a string that is longer than its block")
    text = block[position:end]
    return (bytes(decode_huffman(text)) if huffman else text), end


def literal(name: bytes, value: bytes) -> bytes:
    """One field, not indexed and not Huffman coded: the same bytes everywhere."""
    return b"\x00" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    size = len(text)
    if size < 0x7F:
        return bytes((size,))
    out = bytearray((0x7F,))
    size -= 0x7F
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)
