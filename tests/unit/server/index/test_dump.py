"""The index as reports, with which another one is filled."""

from __future__ import annotations

from inferencecache.server.index import PrefixIndex
from tests.unit.server.index.reports import HALF, NOW_US, SCOPE, Filled, blocks, chain, report, snapshot_of
from tests.unit.server.index.rules import MINUTE, Rules

P = blocks("p0", "p1", "p2")


def test_a_dump_fills_an_empty_index_with_the_same() -> None:
    filled = Filled(
        report("a", P, tier=2, ago=MINUTE, stats=HALF),
        report("a", P[:1], tokens=[7]),
        report("b", P, adapter="x", tier=99),
        report("b", P[1:], scope=SCOPE._replace(hash_scheme="sglang"), ago=2 * MINUTE),
        report("c", P, scope=SCOPE._replace(tenant="other")),
    )
    twin = PrefixIndex(Rules())
    for one in filled.index.dump():
        twin.ingest(one, NOW_US)
    assert snapshot_of(twin) == snapshot_of(filled.index)
    for adapter in ("", "x"):
        question = chain(P, adapter=adapter)
        assert twin.match(question, NOW_US) == filled.index.match(question, NOW_US)


def test_a_report_of_a_dump_is_small() -> None:
    filled = Filled(report("a", blocks(*range(5000))))
    sizes = [len(holds.hashes) for one in filled.index.dump() for holds in one.holds]
    assert sum(sizes) == 5000
    assert max(sizes) <= 1024


def test_a_dump_survives_whatever_happens_between_its_slices() -> None:
    kept = blocks(*range(3000))
    filled = Filled(report("a", kept, ago=MINUTE), report("b", kept[:10]))
    pages = filled.index.dump()
    taken = [next(pages)]
    filled.ingest(report("a", kept[2000:]))
    filled.clear("b")
    assert filled.evict("a", kept[-1]) == 1
    filled.ingest(report("a", [b"late"]), report("c", [b"later"]))
    taken += pages
    dumped = [(one.replica_id, prefix_hash) for one in taken for holds in one.holds for prefix_hash in holds.hashes]
    assert {("a", prefix_hash) for prefix_hash in kept[:-1]} <= set(dumped)
    assert len(dumped) == len(set(dumped))
    assert ("a", kept[-1]) not in dumped
    assert "b" not in {replica for replica, _ in dumped}


def test_a_dump_taken_while_everything_goes_ends() -> None:
    filled = Filled(*(report(name, blocks(*range(2000))) for name in "ab"))
    pages = filled.index.dump()
    next(pages)
    for name in "ab":
        filled.clear(name)
    assert list(pages) == []
