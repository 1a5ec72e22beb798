"""Whose replica is whose, and what is published of it (spec 05 §7.3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cacheindex.attribution import Attribution, Share, attribute
from inferencecache.controllers.cacheindex.participation import participation
from inferencecache.controllers.cacheindex.snapshot import ReplicaRow
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import Key

BY, UID = "inferencecache.io/injected-by", "inferencecache.io/injected-by-uid"


def backend(name: str, namespace: str = "a", selector: dict[str, str] | None = None, **status: Any) -> CacheBackend:
    spec = {"runtime": "VLLM", "engineSelector": {"matchLabels": selector}} if selector else {"runtime": "VLLM"}
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
    return CacheBackend.decode({"metadata": metadata, "spec": spec, "status": status})


def pod(name: str, namespace: str = "a", labels: dict[str, str] | None = None, **annotations: str) -> Pod:
    metadata = {"name": name, "namespace": namespace, "labels": labels or {"app": "e"}, "annotations": annotations}
    return msgspec.convert({"metadata": metadata}, Pod)


def row(replica_id: str = "e-0", tenant: str = "a", count: int = 1, **fields: Any) -> ReplicaRow:
    return msgspec.convert({"replicaId": replica_id, "tenant": tenant, "prefixCount": count, **fields}, ReplicaRow)


def attributed(rows: list[ReplicaRow], pods: list[Pod], backends: list[CacheBackend]) -> Attribution:
    return attribute(rows, {Key.of(one): one for one in pods}.get, backends)


def counts(found: Attribution) -> dict[str, int]:
    return {str(key): share.prefix_count for key, share in found.shares.items()}


SELECTED = {"app": "e"}
BOTH = [backend("bravo", selector=SELECTED), backend("alfa", selector=SELECTED), backend("charlie")]


@pytest.mark.parametrize(
    ("annotations", "owner"),
    [
        pytest.param({}, "a/alfa", id="by selector, the first by name"),
        pytest.param({BY: "a/bravo", UID: "uid-bravo"}, "a/bravo", id="named, before any selector"),
        pytest.param({BY: "a/charlie", UID: "uid-charlie"}, "a/charlie", id="named, without a selector"),
        pytest.param({BY: "a/bravo"}, "a/bravo", id="named by hand"),
        pytest.param({BY: "a/bravo", UID: "uid-of-another"}, None, id="named, but that was a namesake (F12)"),
        pytest.param({BY: "a/gone", UID: "uid-gone"}, None, id="named one that is gone"),
        pytest.param({BY: "b/bravo", UID: "uid-bravo"}, "a/alfa", id="named in another namespace"),
        pytest.param({BY: "bravo"}, "a/alfa", id="no reference"),
        pytest.param({BY: "a/bravo/x"}, "a/alfa", id="no reference either"),
        pytest.param({BY: "a/Bravo"}, "a/alfa", id="not a name"),
    ],
)
def test_a_replica_belongs_to_one_backend_at_most(annotations: dict[str, str], owner: str | None) -> None:
    found = attributed([row()], [pod("e-0", **annotations)], BOTH)
    assert counts(found) == ({owner: 1} if owner else {})
    assert found.missed == frozenset()


@pytest.mark.parametrize(
    ("labels", "owner"),
    [
        ({"app": "e", "zone": "1"}, "a/both"),
        ({"app": "e"}, None),
        ({"app": "e", "zone": "2"}, None),
        ({"app": "e", "zone": "1", "more": "x"}, "a/both"),
    ],
)
def test_a_selector_wants_all_its_labels(labels: dict[str, str], owner: str | None) -> None:
    backends = [backend("both", selector={"app": "e", "zone": "1"})]
    assert counts(attributed([row()], [pod("e-0", labels=labels)], backends)) == ({owner: 1} if owner else {})


def test_an_empty_label_value_is_not_matched_by_its_absence() -> None:
    backends = [backend("kv", selector={"zone": ""})]
    assert counts(attributed([row()], [pod("e-0")], backends)) == {}


@pytest.mark.parametrize("gone", [row(tenant=""), row(replica_id="")], ids=["no tenant", "no id"])
def test_rows_that_name_no_pod_are_nobodys(gone: ReplicaRow) -> None:
    assert attributed([gone], [pod("e-0")], BOTH) == Attribution({}, frozenset())


def test_a_namespace_with_a_pod_that_is_not_found_is_told() -> None:
    found = attributed([row(), row("gone", "b")], [pod("e-0")], BOTH)
    assert counts(found) == {"a/alfa": 1}
    assert found.missed == {"b"}


def test_equal_names_in_two_namespaces_keep_apart() -> None:
    backends = [backend("kv", selector=SELECTED), backend("kv", "b", selector=SELECTED)]
    rows = [row(count=1), row(tenant="b", count=20)]
    assert counts(attributed(rows, [pod("e-0"), pod("e-0", "b")], backends)) == {"a/kv": 1, "b/kv": 20}


def test_replicas_of_a_backend_add_up_and_the_latest_event_counts() -> None:
    rows = [
        row("e-0", count=3, lastEventAt="2026-03-02T08:00:00Z", t2QueryTokens=10, t2HitTokens=4),
        row("e-1", count=4, lastEventAt="2026-03-02T09:00:00Z", t2QueryTokens=30, t2HitTokens=1),
        row("e-2", count=5),
    ]
    pods = [pod(name) for name in ("e-0", "e-1", "e-2")]
    share = attributed(rows, pods, [backend("kv", selector=SELECTED)]).shares[Key("a", "kv")]
    assert participation(backend("kv", selector=SELECTED), share) == {
        "prefixCount": 12,
        "lastEventAt": "2026-03-02T09:00:00Z",
        "hitRate": None,
        "t2HitRate": "0.125",
    }


NOTHING = {"prefixCount": 0, "lastEventAt": None, "hitRate": None, "t2HitRate": None}
PUBLISHED = {"prefixCount": 7, "lastEventAt": "2026-03-02T09:00:00Z", "t2HitRate": "0"}


@pytest.mark.parametrize(
    ("selector", "published", "share", "written"),
    [
        pytest.param(None, None, None, None, id="no selector, no replica, never had one: not written"),
        pytest.param(SELECTED, None, None, NOTHING, id="with a selector: a zero at once"),
        pytest.param(None, None, Share(), NOTHING, id="with a replica: a zero at once"),
        pytest.param(None, PUBLISHED, None, NOTHING, id="drained: reset"),
        pytest.param(SELECTED, {"prefixCount": 0}, None, None, id="nothing new"),
        pytest.param(SELECTED, {"prefixCount": 0, "hitRate": "0.5"}, None, NOTHING, id="what is never set is cleared"),
    ],
)
def test_what_is_published_of_a_backend(
    selector: dict[str, str] | None,
    published: dict[str, Any] | None,
    share: Share | None,
    written: dict[str, Any] | None,
) -> None:
    status = {"indexParticipation": published} if published else {}
    assert participation(backend("kv", selector=selector, **status), share) == written


@pytest.mark.parametrize(
    ("hits", "queries", "rate"), [(3, 4, "0.75"), (0, 4, "0"), (0, 0, None), (5, 4, "1"), (5, 0, None)]
)
def test_the_second_tiers_rate_is_a_zero_only_where_it_was_asked(hits: int, queries: int, rate: str | None) -> None:
    written = participation(backend("kv"), Share(t2_hit_tokens=hits, t2_query_tokens=queries))
    assert written is not None
    assert written["t2HitRate"] == rate


@pytest.mark.parametrize("stored", ["2026-03-02T09:00:00Z", "2026-03-02T09:00:00.7Z", "2026-03-02T10:00:00+01:00"])
def test_events_within_the_published_second_are_no_reason_to_write(stored: str) -> None:
    one = backend("kv", selector=SELECTED, indexParticipation={"prefixCount": 1, "lastEventAt": stored})
    rows = [row(lastEventAt="2026-03-02T09:00:00.9Z")]
    share = attributed(rows, [pod("e-0")], [one]).shares[Key("a", "kv")]
    assert participation(one, share) is None
