"""Metrics of the second tier: one series per backend whose engines ask it, and none for others (spec 05 §7.4).

The engines count for as long as they live, so what arrives are totals. A total that falls, because an engine went, is
the new mark to count from; so is the first one that this process sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import Counter, Gauge

from inferencecache.controllers.cacheindex.attribution import Share
from inferencecache.controllers.cacheindex.participation import hit_rate
from inferencecache.kube.resource import Key

HIT_RATE: Final = Gauge(
    "inferencecache_backend_t2_hit_rate",
    "Tokens served by the second tier, as a share of those asked of it since its engines started.",
    ["backend"],
)
QUERY_TOKENS: Final = Counter(
    "inferencecache_backend_t2_query_tokens_total", "Tokens asked of the second tier.", ["backend"]
)


class Tier2Series:
    """The series of all backends."""

    def __init__(self) -> None:
        self._totals: dict[Key, int] = {}

    def observe(self, shares: Mapping[Key, Share], unknown: Iterable[str] = ()) -> None:
        """Take in the shares of all backends that have one; series of all others go.

        Args:
            shares: by backend.
            unknown: namespaces in which shares could not be told; their series stay as they are.
        """
        blind = frozenset(unknown)
        for key, share in shares.items():
            rate = hit_rate(share)
            if rate is None or key.namespace in blind:
                continue
            HIT_RATE.labels(str(key)).set(rate)
            before = self._totals.get(key, share.t2_query_tokens)
            QUERY_TOKENS.labels(str(key)).inc(max(0, share.t2_query_tokens - before))
            self._totals[key] = share.t2_query_tokens
        self._keep(
            key for key in self._totals if key.namespace in blind or (key in shares and shares[key].t2_query_tokens > 0)
        )

    def forget_others(self, backends: Iterable[Key]) -> None:
        """Remove the series of all but these backends, which are there (decision F13)."""
        self._keep(self._totals.keys() & set(backends))

    def _keep(self, keys: Iterable[Key]) -> None:
        for key in self._totals.keys() - set(keys):
            del self._totals[key]
            HIT_RATE.remove(str(key))
            QUERY_TOKENS.remove(str(key))
