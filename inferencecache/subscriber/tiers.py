"""Media and tiers: where a block is, and how fast that is for the index (spec 08 §4.3, decision D2).

A block may be in several media at once, say on the GPU and, copied, in host memory. The media of one block are one
integer, eight bits for each medium: a count of the announcements that are still good. On the GPU there is one at most,
as engines announce a block there again when they reuse it; of two physical copies the first removal then ends the
claim, which promises too little rather than too much. In the other media announcements are counted: offloaded
chunks overlap, each announces all of its blocks, and each is removed for itself (spec 08 §15 fact 10).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from msgspec import Struct


class Tier(IntEnum):
    """The tiers of the index, fastest first; the values are those of the wire's `CacheTier`."""

    T1 = 1
    """The engine's own KV cache."""
    T2 = 2
    """Host memory."""
    T3 = 3
    """A disk, or a store elsewhere."""


class Medium(Struct, frozen=True, gc=False):
    """One of the media that are told apart.

    Attributes:
        shift: where its count is in a block's media: the number of bits below.
        tier: how fast blocks of it are.
        alone: the media of a block that was announced here once.
        tiers: the tiers of such a block, as `tiers_in` has them.
    """

    shift: int
    tier: Tier
    alone: int
    tiers: int


def _medium(shift: int, tier: Tier) -> Medium:
    return Medium(shift, tier, 1 << shift, 1 << tier - 1)


GPU: Final = _medium(0, Tier.T1)
_HOST: Final = _medium(8, Tier.T2)
_DISK: Final = _medium(16, Tier.T3)
_STORAGE: Final = _medium(24, Tier.T3)
_EXTERNAL: Final = _medium(32, Tier.T3)
_OTHER: Final = _medium(40, Tier.T3)

_MEDIA: Final[dict[str | None, Medium]] = {
    None: GPU,  # builds that know no media have the GPU only
    "GPU": GPU,
    "CPU": _HOST,
    "CPU_PINNED": _HOST,
    "DISK": _DISK,
    "STORAGE": _STORAGE,
    "EXTERNAL": _EXTERNAL,
}
_COUNT: Final = 0xFF


def medium_of(name: str | None, locality: str | None = None) -> Medium:
    """The medium of an event; any spelling of the case will do.

    A medium of another machine (`locality` is `REMOTE`) is a store elsewhere, whatever it is made of. A medium of an
    unknown name is taken for the slowest: it is one, and none of those the engine computes from.
    """
    if locality == "REMOTE":
        return _EXTERNAL
    medium = _MEDIA.get(name)
    return _MEDIA.get(str(name).upper(), _OTHER) if medium is None else medium


def added(media: int, medium: Medium) -> int:
    """A block's media after it was announced in one of them. Counts end at 255."""
    count = media >> medium.shift & _COUNT
    return media if count == (1 if medium is GPU else _COUNT) else media + medium.alone


def removed(media: int, medium: Medium) -> int:
    """A block's media after it was removed from one of them; unchanged if it was not there."""
    return media - medium.alone if media >> medium.shift & _COUNT else media


def tiers_in(media: int) -> int:
    """The tiers a block's media amount to, as bits: 1 is T1, 2 is T2, 4 is T3."""
    return (1 if media & _COUNT else 0) | (2 if media & _COUNT << 8 else 0) | (4 if media >> 16 else 0)
