"""A dump fed to an empty index gives the same answers."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inferencecache.server import reports
from inferencecache.server.dump import updates, written
from inferencecache.server.index import PrefixIndex, Query, Report, Scope, Stats
from inferencecache.server.policy import PolicyStore
from tests.unit.server.index.reports import snapshot_of

NOW_US = 1_700_000_000_000_000
NAMES = st.sampled_from(["a", "b"])
HASHES = st.sampled_from([bytes([number]) * 8 for number in range(6)])

rates = st.floats(0, 1, width=32)
stats = st.builds(Stats, st.integers(0, 2**40), rates, rates, st.integers(0, 100), st.integers(0, 100))
holds = st.builds(
    lambda adapter, tier, keys: reports.Holds(adapter, tier, list(keys), list(keys.values())),
    st.sampled_from(["", "lora"]),
    st.sampled_from([1, 2, 3]),
    st.dictionaries(HASHES, st.integers(0, 2**31 - 1), min_size=1),
)
indexed = st.builds(
    Report,
    NAMES,
    NAMES,
    NAMES,
    st.sampled_from(["vllm", "sglang"]),
    st.integers(NOW_US - 60_000_000, NOW_US),
    st.lists(holds, max_size=3),
    st.none() | stats,
)


def answers(index: PrefixIndex) -> list[Any]:
    """Everything a caller can ask, over all names there are."""
    asked: list[Any] = [snapshot_of(index).total_prefixes]
    for tenant in "ab":
        for model in "ab":
            asked.append(index.cache_state(tenant, model))
            for scheme in ("vllm", "sglang"):
                scope = Scope(tenant, model, scheme)
                asked.append(index.serving(scope))
                for adapter in ("", "lora"):
                    asked += [
                        index.match(Query(scope, adapter, (), (), bytes([number]) * 8, 0), NOW_US)
                        for number in range(6)
                    ]
    return asked


@settings(max_examples=60)
@given(st.lists(indexed, max_size=8))
def test_a_server_fed_with_a_dump_answers_alike(given_reports: list[Report]) -> None:
    index, other = PrefixIndex(PolicyStore()), PrefixIndex(PolicyStore())
    for report in given_reports:
        index.ingest(report, NOW_US)
    for update in updates(index):
        reading = reports.read(update, NOW_US)
        assert not reading.dropped
        other.ingest(reading.report, NOW_US)
    assert answers(other) == answers(index)


@given(indexed)
def test_what_is_written_reads_as_what_it_was(report: Report) -> None:
    read = reports.read(written(report), NOW_US).report
    assert read._replace(holds=()) == report._replace(holds=())

    def flat(holds: Any) -> list[Any]:
        return [
            (hold.adapter_id, hold.tier, key, count)
            for hold in holds
            for key, count in zip(hold.hashes, hold.token_counts, strict=True)
        ]

    assert flat(read.holds) == flat(report.holds)
