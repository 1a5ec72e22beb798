"""The figures a master publishes in Prometheus' text format (spec 10 §6.3).

A pass reads one scrape for all tenants, so a scrape is whole or it is nothing: a line that is no sample fails all of
it, as half a document may have lost the tenant somebody asks for. What is not known is passed over, as every version
adds series. Two versions spell a tenant's charge differently; where both are there, the one without writes in flight
is taken. Of a sample that is there twice, the last counts.

The sums over all tenants are passed over too: they leave the range of 64 bits on a master that is otherwise well.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

_LARGEST_COUNT: Final = (1 << 63) - 1
_LARGEST_EXACT_FLOAT: Final = 1 << 53

# Series of one tenant, by what they tell. Each is checked, so that a garbled scrape is noticed; not all are used.
_TENANT_COUNTS: Final = {
    f"mooncake_tenant_quota_{figure}": figure
    for figure in (
        "requested_bytes",
        "effective_bytes",
        "charged_bytes",  # since 0.3.13
        "used_bytes",  # these four in 0.3.12
        "reserved_bytes",
        "committed_count",
        "metadata_object_count",
    )
}
_TENANT_FLAGS: Final = {
    f"mooncake_tenant_quota_{figure}": figure for figure in ("over_quota", "explicit_policy", "admission_closed")
}
_ALLOCATABLE: Final = "mooncake_tenant_quota_allocatable_capacity_bytes"
_TOTAL_CAPACITY: Final = "master_total_capacity_bytes"
_ALLOCATED: Final = "master_allocated_bytes"
_FILE_CAPACITY: Final = "master_total_file_capacity_bytes"
_FILE_ALLOCATED: Final = "master_allocated_file_size_bytes"
_GAUGES: Final = frozenset({_ALLOCATABLE, _TOTAL_CAPACITY, _ALLOCATED, _FILE_CAPACITY, _FILE_ALLOCATED})

# Possessive throughout: a line costs its length to read, whatever is in it.
_NAME: Final = r"[a-zA-Z_][a-zA-Z0-9_]*+"
_QUOTED: Final = r'"(?:[^"\\]|\\[\\"n])*+"'
_LABEL: Final = rf"[ \t]*+{_NAME}[ \t]*+=[ \t]*+{_QUOTED}[ \t]*+"
_SAMPLE: Final = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*+)"
    rf"(?:[ \t]*+{{(?P<labels>(?:{_LABEL},)*+(?:{_LABEL})?+[ \t]*+)}}[ \t]*+|[ \t]++)"
    r"(?P<value>[^ \t]++)(?:[ \t]++-?[0-9]++)?+"
)
_ONE_LABEL: Final = re.compile(rf"({_NAME})[ \t]*+=[ \t]*+({_QUOTED})")
_ESCAPE: Final = re.compile(r"\\(.)")
_DIGITS: Final = re.compile(r"[0-9]++")
_NUMBER: Final = re.compile(
    r"[+-]?(?:(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:e[+-]?[0-9]++)?|inf(?:inity)?|nan)", re.IGNORECASE | re.ASCII
)


class ScrapeError(Exception):
    """The document is not to be used; the text names the line and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFigures:
    """One tenant. Sizes in bytes; None is what was not exported.

    `usage_includes_in_flight`: whether `usage` counts writes that are not complete yet.
    """

    requested: int | None = None
    effective: int | None = None
    usage: int | None = None
    usage_includes_in_flight: bool = False
    over_quota: bool | None = None
    explicit_policy: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """What one scrape tells. Sizes in bytes; None is what was not exported.

    Attributes:
        tenants: by tenant id; empty without multi-tenancy.
        allocatable: what the quotas of all tenants are cut from; None without multi-tenancy.
        total_capacity: memory of all mounted segments.
        allocated: memory in use.
        file_capacity: of the disk tier.
        file_allocated: what is written to it.
    """

    tenants: dict[str, TenantFigures]
    allocatable: int | None = None
    total_capacity: int | None = None
    allocated: int | None = None
    file_capacity: int | None = None
    file_allocated: int | None = None


def parse(text: str) -> Scrape:
    """What a scrape tells. Raises `ScrapeError`."""
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    flags: dict[str, dict[str, bool]] = defaultdict(dict)
    gauges: dict[str, int] = {}
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        try:
            name, labels, value = _sample(line)
            if name in _TENANT_COUNTS:
                counts[_tenant(labels)][_TENANT_COUNTS[name]] = _count(value)
            elif name in _TENANT_FLAGS:
                flags[_tenant(labels)][_TENANT_FLAGS[name]] = _flag(value)
            elif name in _GAUGES and not labels:
                gauges[name] = _count(value)
        except ValueError as error:
            raise ScrapeError(f"line {number} of the metrics, {line[:120]!r}: {error}") from error
    return Scrape(
        tenants={tenant: _figures(counts[tenant], flags[tenant]) for tenant in sorted({*counts, *flags})},
        allocatable=gauges.get(_ALLOCATABLE),
        total_capacity=gauges.get(_TOTAL_CAPACITY),
        allocated=gauges.get(_ALLOCATED),
        file_capacity=gauges.get(_FILE_CAPACITY),
        file_allocated=gauges.get(_FILE_ALLOCATED),
    )


def _figures(counts: dict[str, int], flags: dict[str, bool]) -> TenantFigures:
    charged = counts.get("charged_bytes")
    used = counts.get("used_bytes")
    return TenantFigures(
        requested=counts.get("requested_bytes"),
        effective=counts.get("effective_bytes"),
        usage=charged if used is None else used,
        usage_includes_in_flight=used is None and charged is not None,
        over_quota=flags.get("over_quota"),
        explicit_policy=flags.get("explicit_policy"),
    )


def _sample(line: str) -> tuple[str, dict[str, str], str]:
    """Name, labels and value of a line. Raises `ValueError`, as all below."""
    found = _SAMPLE.fullmatch(line)
    if found is None:
        raise ValueError("not a sample")
    if not _NUMBER.fullmatch(found["value"]):
        raise ValueError("the value is not a number")
    labels = {name: _unquoted(quoted) for name, quoted in _ONE_LABEL.findall(found["labels"] or "")}
    return found["name"], labels, found["value"]


def _unquoted(quoted: str) -> str:
    return _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], quoted[1:-1])


def _tenant(labels: dict[str, str]) -> str:
    tenant = labels.get("tenant_id")
    if not tenant:
        raise ValueError("no tenant_id")
    return tenant


def _count(value: str) -> int:
    if _DIGITS.fullmatch(value):
        exact = int(value)
        if exact > _LARGEST_COUNT:
            raise ValueError("more than 64 bits hold")
        return exact
    number = float(value)
    if not 0 <= number < _LARGEST_EXACT_FLOAT or not number.is_integer():
        raise ValueError("not a whole number that a float holds exactly")
    return int(number)


def _flag(value: str) -> bool:
    if value not in {"0", "1"}:
        raise ValueError("neither 0 nor 1")
    return value == "1"
