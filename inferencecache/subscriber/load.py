"""An engine's load, read off its metrics (spec 08 §9).

vLLM and SGLang tell the same things by different names; which of them is speaking shows in the names. Counters are told
since the engine began, so rates need the scrape before: `LoadReader` remembers it, and only it.

A page may carry several engines (data-parallel ranks, or several in one Pod), a series for each. Counters are summed;
usage is the mean, and pressure the mean of each engine's share of what it can take. A series of a tensor-parallel rank
other than 0 repeats what rank 0 says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

from inferencecache.subscriber.messages import Load

_LINE: Final = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL: Final = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_TYPED: Final = frozenset({"gauge", "counter"})
_PREFIXES: Final = ("vllm:", "sglang:")
_NAME_LABEL: Final = "model_name"
_TP_LABEL: Final = "tp_rank"
_SOURCE_LABEL: Final = "cache_source"
_ON_GPU: Final = frozenset({"", "device"})
_MAX_AMOUNT: Final = float(2**62)


class CacheTier(StrEnum):
    """Which gauge tells how full the cache is; all but AUTO are vLLM's, and have no fallback."""

    AUTO = "auto"
    KV = "kv"
    GPU = "gpu"
    CPU = "cpu"


class NoLoad(Exception):
    """The page says nothing of an engine's load."""


class Series(NamedTuple):
    """One line of a page."""

    labels: dict[str, str]
    value: float


Page = dict[str, list[Series]]


def parse(text: str, model_name: str = "") -> Page:
    """The engine's gauges and counters, by the names of the lines.

    Lines that cannot be read or have no finite value are passed over, and so are series of other models, if a model is
    named; a series that names none is another's then.
    """
    page: Page = {}
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, rest = line.partition(" TYPE ")
            name, _, kind = rest.strip().partition(" ")
            kinds[name] = kind.strip()
            continue
        if not line.startswith(_PREFIXES):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        name, labels_text, number = match.groups()
        if kinds.get(name, kinds.get(name.removesuffix("_total"))) not in _TYPED:
            continue
        labels = dict(_LABEL.findall(labels_text or ""))
        if (model_name and labels.get(_NAME_LABEL) != model_name) or labels.get(_TP_LABEL, "0") != "0":
            continue
        try:
            value = float(number)
        except ValueError:
            continue
        if not math.isfinite(value):
            continue
        page.setdefault(name, []).append(Series(labels, value))
    return page


class LoadSettings(Struct, frozen=True):
    """How to read a page.

    Attributes:
        cache_size_bytes: of the KV cache; 0 if not known.
        concurrency: requests that one engine can have at work or waiting; 0 or less: pressure is not told.
        tier: the gauge of usage.
        model_name: whose series count; empty for all.
    """

    cache_size_bytes: int = 0
    concurrency: int = 256
    tier: CacheTier = CacheTier.AUTO
    model_name: str = ""


class _Totals(NamedTuple):
    """Tokens since the engine began."""

    hits: float
    queries: float


class LoadReader:
    """Reads one engine's pages, one after another."""

    def __init__(self, settings: LoadSettings) -> None:
        self._settings = settings
        self._before: _Totals | None = None

    def read(self, text: str) -> Load:
        """What a page says, with rates since the page before.

        Raises:
            NoLoad: it has none of the metrics of an engine.
        """
        page = parse(text, self._settings.model_name)
        if not page:
            raise NoLoad("the page has none of the metrics of vLLM or SGLang" + self._of_model())
        dialect = _SGLANG if any(name.startswith("sglang:") for name in page) else _VLLM
        t2_hits, t2_queries = dialect.offload(page)
        return Load(
            cache_memory_bytes=_int64(dialect.usage(page, self._settings.tier) * self._settings.cache_size_bytes),
            hit_rate=self._hit_rate(dialect.totals(page), dialect.told_hit_rate(page)),
            pressure=self._pressure(page, dialect),
            t2_hit_tokens=_int64(t2_hits),
            t2_query_tokens=_int64(t2_queries),
        )

    def _of_model(self) -> str:
        return f" for model_name {self._settings.model_name!r}" if self._settings.model_name else ""

    def _hit_rate(self, now: _Totals | None, told: float | None) -> float:
        """The share of tokens found, since the last page. A page without the counters changes nothing."""
        if now is None:
            return _clamped(told or 0.0)
        before, self._before = self._before, now
        if before is None:
            return 0.0
        hits, queries = now.hits - before.hits, now.queries - before.queries
        return 0.0 if hits < 0 or queries <= 0 else _clamped(hits / queries)

    def _pressure(self, page: Page, dialect: _Dialect) -> float:
        engines = max((len(page.get(name, ())) for name in dialect.requests), default=0)
        limit = self._settings.concurrency * max(engines, 1)
        if limit <= 0:
            return 0.0
        return _clamped(sum(series.value for name in dialect.requests for series in page.get(name, ())) / limit)


class _Dialect:
    """The names of one kind of engine."""

    requests: Sequence[str] = ()

    def usage(self, page: Page, tier: CacheTier) -> float:
        """How full the cache is, 0 to 1."""
        raise NotImplementedError

    def totals(self, page: Page) -> _Totals | None:
        """Tokens found in the prefix cache and looked for there; None if the page lacks one of them."""
        raise NotImplementedError

    def told_hit_rate(self, page: Page) -> float | None:
        """The rate that the engine computed itself."""
        raise NotImplementedError

    def offload(self, page: Page) -> _Totals:
        """Tokens found in the offload tier and looked for there; zeros if there is none."""
        raise NotImplementedError


class _Vllm(_Dialect):
    requests = ("vllm:num_requests_running", "vllm:num_requests_waiting")

    def usage(self, page: Page, tier: CacheTier) -> float:
        if tier is not CacheTier.AUTO:
            return _mean(page, f"vllm:{tier}_cache_usage_perc") or 0.0
        usage = _mean(page, "vllm:kv_cache_usage_perc")
        if usage is not None:
            return usage
        return max(_mean(page, f"vllm:{older}_cache_usage_perc") or 0.0 for older in ("gpu", "cpu"))

    def totals(self, page: Page) -> _Totals | None:
        return _both(_total(page, "vllm:prefix_cache_hits"), _total(page, "vllm:prefix_cache_queries"))

    def told_hit_rate(self, page: Page) -> float | None:
        return None

    def offload(self, page: Page) -> _Totals:
        hits = _total(page, "vllm:external_prefix_cache_hits")
        queries = _total(page, "vllm:external_prefix_cache_queries")
        return _Totals(hits or 0.0, queries or 0.0)


class _Sglang(_Dialect):
    requests = ("sglang:num_running_reqs", "sglang:num_queue_reqs")

    def usage(self, page: Page, tier: CacheTier) -> float:
        return _mean(page, "sglang:token_usage") or 0.0 if tier in (CacheTier.AUTO, CacheTier.KV) else 0.0

    def totals(self, page: Page) -> _Totals | None:
        found, prompts = _series(page, "sglang:cached_tokens"), _total(page, "sglang:prompt_tokens")
        if found is None:
            return None
        return _both(_sum(found, on_gpu=True), prompts)

    def told_hit_rate(self, page: Page) -> float | None:
        return _mean(page, "sglang:cache_hit_rate")

    def offload(self, page: Page) -> _Totals:
        """What the GPU did not have was looked for in the host's memory and beyond."""
        totals = self.totals(page)
        found = _series(page, "sglang:cached_tokens") or ()
        if totals is None or all(series.labels.get(_SOURCE_LABEL, "") in _ON_GPU for series in found):
            return _Totals(0.0, 0.0)
        return _Totals(_sum(found, on_gpu=False), max(totals.queries - totals.hits, 0.0))


_VLLM: Final = _Vllm()
_SGLANG: Final = _Sglang()


def _series(page: Page, family: str) -> list[Series] | None:
    """A counter's series; older clients leave the suffix out."""
    return page.get(f"{family}_total") or page.get(family)


def _total(page: Page, family: str) -> float | None:
    series = _series(page, family)
    return None if series is None else sum(each.value for each in series)


def _sum(series: Iterable[Series], *, on_gpu: bool) -> float:
    return sum(each.value for each in series if (each.labels.get(_SOURCE_LABEL, "") in _ON_GPU) is on_gpu)


def _mean(page: Page, name: str) -> float | None:
    values = [series.value for series in page.get(name, ())]
    return sum(values) / len(values) if values else None


def _both(hits: float | None, queries: float | None) -> _Totals | None:
    return None if hits is None or queries is None else _Totals(hits, queries)


def _clamped(share: float) -> float:
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0


def _int64(amount: float) -> int:
    """What the wire can carry of an amount; nonsense of an engine must not end the load signal."""
    return int(min(max(amount, 0.0), _MAX_AMOUNT)) if math.isfinite(amount) else 0
