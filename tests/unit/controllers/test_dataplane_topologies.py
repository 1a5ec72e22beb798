"""PDTopologies: pools, the document and the status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from inferencecache.api.pdtopology import PDTopology
from inferencecache.controllers.topologies.document import topologies_document
from inferencecache.controllers.topologies.pools import Resolved, resolve
from inferencecache.controllers.topologies.status import topology_status
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import Key
from inferencecache.server.pdroute import parse

NOW = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
SPEC = {
    "prefillPools": [{"name": "p", "matchLabels": {"role": "prefill"}}],
    "decodePools": [{"name": "d", "matchLabels": {"role": "decode"}}],
}


def topology(spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None) -> PDTopology:
    metadata = {"name": "pd", "namespace": "a", "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return PDTopology.decode({"metadata": metadata, "spec": SPEC if spec is None else spec, "status": status or {}})


def pod(name: str, phase: str = "Running", deleted: str | None = None, **labels: str) -> Pod:
    metadata = {"name": name, "namespace": "a", "labels": labels, "deletionTimestamp": deleted}
    return msgspec.convert({"metadata": metadata, "status": {"phase": phase}}, Pod)


PODS = [pod("p-1", role="prefill"), pod("p-0", role="prefill", zone="x"), pod("d-0", role="decode"), pod("other")]
NOBODY = Resolved((), ())


def told(resolved: Resolved, failure: str = "", left_out: bool = False, **status: Any) -> dict[str, Any] | None:
    return topology_status(topology(status=status), resolved, left_out=left_out, failure=failure, now=NOW)


def conditions(status: dict[str, Any] | None) -> dict[str, tuple[str, str]]:
    assert status is not None
    assert status["observedGeneration"] == 2
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


def members(spec: dict[str, Any], pods: list[Pod]) -> list[tuple[str, ...]]:
    found = resolve(topology(spec), pods)
    return [pool.replicas for pool in (*found.prefill, *found.decode)]


def test_a_pool_consists_of_the_pods_with_its_labels_in_the_order_of_their_names() -> None:
    assert members(SPEC, PODS) == [("p-0", "p-1"), ("d-0",)]


@pytest.mark.parametrize("labels", [None, {}], ids=["absent", "empty"])
def test_a_pool_without_labels_has_no_pods(labels: dict[str, str] | None) -> None:
    assert members({"prefillPools": [{"name": "p", **({} if labels is None else {"matchLabels": labels})}]}, PODS) == [
        ()
    ]


@pytest.mark.parametrize(
    ("one", "serves"),
    [
        (pod("x", role="prefill"), True),
        (pod("x", "Pending", role="prefill"), False),
        (pod("x", "Succeeded", role="prefill"), False),
        (pod("x", "Failed", role="prefill"), False),
        (pod("x", "Unknown", role="prefill"), False),
        (pod("x", deleted="2026-01-01T00:00:00Z", role="prefill"), False),
    ],
    ids=["running", "pending", "succeeded", "failed", "unknown", "being deleted"],
)
def test_only_pods_that_run_and_stay_are_replicas(one: Pod, serves: bool) -> None:
    assert members({"prefillPools": SPEC["prefillPools"]}, [one]) == [("x",) if serves else ()]


def test_the_server_understands_what_it_is_told() -> None:
    this = topology()
    document = topologies_document({Key.of(this): (this, resolve(this, PODS))}).document
    (told_topology,) = parse(document).topologies
    assert (told_topology.namespace, told_topology.name) == ("a", "pd")
    assert [(pool.name, pool.replicas) for pool in told_topology.prefill_pools] == [("p", ["p-0", "p-1"])]
    assert [(pool.name, pool.replicas) for pool in told_topology.decode_pools] == [("d", ["d-0"])]


SERVED = resolve(topology(), PODS)


@pytest.mark.parametrize(
    ("resolved", "failure", "left_out", "accepted", "ready"),
    [
        pytest.param(SERVED, "", False, ("True", "Accepted"), ("True", "Served"), id="served"),
        pytest.param(SERVED, "down", False, ("True", "Accepted"), ("False", "PushFailed"), id="not told"),
        pytest.param(NOBODY, "", False, ("True", "Accepted"), ("False", "NoReplicas"), id="no pools"),
        pytest.param(
            resolve(topology(), PODS[:2]), "", False, ("True", "Accepted"), ("False", "NoReplicas"), id="no decode"
        ),
        pytest.param(SERVED, "", True, ("False", "DocumentFull"), ("False", "NotAccepted"), id="left out"),
    ],
)
def test_what_a_topology_is_told(
    resolved: Resolved, failure: str, left_out: bool, accepted: tuple[str, str], ready: tuple[str, str]
) -> None:
    assert conditions(told(resolved, failure, left_out)) == {"Accepted": accepted, "Ready": ready}


def test_the_role_without_replicas_is_named() -> None:
    status = told(resolve(topology(), PODS[:2]))
    assert status is not None
    assert "a decode pool" in status["conditions"][1]["message"]


def test_a_rollout_within_a_pool_and_a_failing_push_are_no_reason_to_write() -> None:
    before = told(SERVED)
    assert before is not None
    fewer = resolve(topology(), [PODS[0], PODS[2]])
    later = NOW + timedelta(hours=1)
    same = topology(status=before)
    assert topology_status(same, fewer, left_out=False, failure="", now=later) is None
    assert topology_status(same, fewer, left_out=False, failure="down", now=later) is None
