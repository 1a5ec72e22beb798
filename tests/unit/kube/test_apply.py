"""Drift between desired children and what the API server stores: tables of both, and the round trip of patches."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.kube.apply import ChildConflict, apply_child
from inferencecache.kube.drift import abandoned, covers, stray
from inferencecache.kube.errors import NotFound
from inferencecache.kube.kinds import Deployment, ObjectMeta
from inferencecache.kube.resource import Key
from tests.unit.kube.apiserver import Answer, says, serving

POD = ("spec", "template", "spec")


def pod(**spec: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": spec}}}


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386, word for word."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


CONTAINER = {"name": "c", "image": "i:1", "ports": [{"containerPort": 80}]}
STORED_CONTAINER = {
    "name": "c",
    "image": "i:1",
    "imagePullPolicy": "IfNotPresent",
    "ports": [{"containerPort": 80, "protocol": "TCP"}],
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
STORED_POD = {
    "dnsPolicy": "ClusterFirst",
    "restartPolicy": "Always",
    "schedulerName": "default-scheduler",
    "securityContext": {},
    "terminationGracePeriodSeconds": 30,
}


@pytest.mark.parametrize(
    ("desired", "live"),
    [
        pytest.param(pod(containers=[CONTAINER]), pod(containers=[STORED_CONTAINER], **STORED_POD), id="defaults"),
        pytest.param({"resources": {"limits": {"memory": "1024Mi"}}}, {"resources": {"limits": {"memory": "1Gi"}}}),
        pytest.param({"resources": {"requests": {"cpu": "0.5"}}}, {"resources": {"requests": {"cpu": "500m"}}}),
        pytest.param({"resources": {"requests": {"cpu": 0.5}}}, {"resources": {"requests": {"cpu": "500m"}}}),
        pytest.param({"limits": {"memory": "1e3"}}, {"limits": {"memory": "1k"}}),
        pytest.param({"emptyDir": {"sizeLimit": "2048Mi"}}, {"emptyDir": {"sizeLimit": "2Gi"}}),
        pytest.param({"ports": [{"port": 1, "targetPort": "x"}]}, {"ports": [{"port": 1, "targetPort": "x"}]}),
        pytest.param({"env": [{"name": "A", "value": ""}]}, {"env": [{"name": "A"}, {"name": "B"}]}, id="others-env"),
        pytest.param({"hostNetwork": False, "args": [], "labels": {}}, {}, id="empty-values-are-not-stored"),
        pytest.param({"a": None}, {"a": 1}, id="null-says-nothing"),
        pytest.param({"apiVersion": "v1", "kind": "X"}, {}, id="items-of-lists-have-no-kind"),
    ],
)
def test_stored_form_covers_the_manifest(desired: Any, live: Any) -> None:
    assert covers(desired, live)


@pytest.mark.parametrize(
    ("desired", "live"),
    [
        ({"replicas": 1}, {"replicas": 5}),
        ({"replicas": 1}, {}),
        ({"on": True}, {"on": 1}),
        ({"args": ["a", "b"]}, {"args": ["b", "a"]}),
        ({"args": ["a"]}, {"args": ["a", "b"]}),
        ({"env": [{"name": "A", "value": "1Gi"}]}, {"env": [{"name": "A", "value": "1024Mi"}]}),
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "2"}}),
        ({"targetPort": 80}, {"targetPort": "http"}),
        ({"volumes": [{"name": "v", "emptyDir": {}}]}, {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
        ({"containers": [{"name": "a"}]}, {"containers": [{"name": "b"}]}),
        ({"automountServiceAccountToken": False}, {}),
        ({"ports": [{"port": 53, "protocol": "UDP"}]}, {"ports": [{"port": 53, "protocol": "TCP"}]}),
    ],
)
def test_drift_is_seen(desired: Any, live: Any) -> None:
    assert not covers(desired, live)


def test_server_defaults_are_not_stray() -> None:
    live = pod(containers=[STORED_CONTAINER], **STORED_POD)
    assert stray(pod(containers=[CONTAINER]), live, [POD]) == {}


def test_a_foreign_node_selector_goes_and_annotations_stay() -> None:
    live = {"metadata": {"annotations": {"who": "me"}}, **pod(containers=[STORED_CONTAINER], nodeSelector={"a": "b"})}
    patch = stray(pod(containers=[CONTAINER]), live, [POD])
    assert patch == pod(nodeSelector=None)


def test_a_port_that_took_the_place_of_ours_is_replaced_in_one_step() -> None:
    desired = {"spec": {"ports": [{"name": "lm", "port": 65432, "targetPort": "lm"}], "selector": {"app": "kv"}}}
    ports = [{"name": "lm", "port": 7777, "targetPort": "lm", "protocol": "TCP"}]
    live = {"spec": {"ports": ports, "selector": {"app": "kv", "x": "y"}}}
    assert stray(desired, live, [("spec", "ports"), ("spec", "selector")]) == {
        "spec": {"ports": desired["spec"]["ports"], "selector": {"x": None}}
    }


@pytest.mark.parametrize(
    ("desired", "live", "clean"),
    [
        ({}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}, True),
        ({}, {"type": "Recreate"}, False),
        ({"strategy": {"type": "Recreate"}}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}}, False),
        ({"strategy": {"type": "Recreate"}}, {"type": "Recreate"}, True),
    ],
)
def test_strategies(desired: Any, live: Any, clean: bool) -> None:
    patch = stray({"spec": desired}, {"spec": {"strategy": live}}, [("spec", "strategy")])
    assert (patch == {}) is clean


def test_host_ports_are_the_servers_only_on_the_host_network() -> None:
    stored = [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]}]
    wanted = [{"name": "c", "ports": [{"containerPort": 80}]}]
    assert stray(pod(containers=wanted, hostNetwork=True), pod(containers=stored, hostNetwork=True), [POD]) == {}
    assert stray(pod(containers=wanted), pod(containers=stored), [POD]) != {}


def test_fields_we_applied_and_no_longer_want_are_abandoned() -> None:
    fields = {"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:ports": {'k:{"port":1,"protocol":"TCP"}': {}}}}
    live = {"metadata": {"managedFields": [{"manager": "us", "operation": "Apply", "fieldsV1": fields}]}}
    desired = {"metadata": {"labels": {"a": "1"}}, "spec": {"ports": [{"port": 1}]}}
    assert not abandoned(desired, live, "us")
    assert abandoned({**desired, "metadata": {}}, live, "us")
    assert abandoned({**desired, "spec": {"ports": [{"port": 2}]}}, live, "us")
    assert not abandoned({}, live, "somebody else")


# From 2 on: 1 is True to Python, and no field is a number at one time and a boolean at another.
scalars = st.one_of(st.integers(2, 5), st.sampled_from(["a", "b", "1Gi"]), st.booleans())
named = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("abcd"), "value": scalars}), unique_by=lambda i: i["name"]
)
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["x", "y", "limits", "z"]), inner, min_size=1, max_size=4),
        st.lists(inner, min_size=1, max_size=3),
        st.dictionaries(st.sampled_from(["env", "containers"]), named.filter(bool), min_size=1),
    ),
    max_leaves=12,
)
objects = st.fixed_dictionaries({}, optional={"spec": st.dictionaries(st.sampled_from("abc"), trees, min_size=1)})


@given(desired=objects, live=objects)
def test_after_the_patch_nothing_is_stray_and_what_was_settled_is_covered(desired: Any, live: Any) -> None:
    path = ("spec",)
    before = copy.deepcopy(live)
    patch = stray(desired, live, [path])
    assert live == before
    after = merged(live, patch)
    assert stray(desired, after, [path]) == {}
    if patch:
        assert covers(desired, after)


@given(trees)
def test_everything_covers_itself_and_has_no_strays(tree: Any) -> None:
    assert covers({"spec": tree}, {"spec": tree})
    assert stray({"spec": tree}, {"spec": tree}, [("spec",)]) == {}


class Refusing:
    """A client to which any request is an error: what is decided here is decided without one."""

    field_manager = "us"

    def __getattr__(self, name: str) -> Any:
        raise NotFound(f"{name} was asked", status=404)


OWNER = Deployment(metadata=ObjectMeta(name="o", namespace="n", uid="u"))  # type: ignore[arg-type]
CHILD = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}, "data": {"a": "1"}}


@pytest.mark.parametrize(
    "owners",
    [[], [{"kind": "X", "name": "x", "uid": "other", "controller": True}], [{"uid": "u", "controller": False}]],
)
async def test_foreign_objects_are_refused_without_a_request(owners: Any) -> None:
    live = {"metadata": {"name": "c", "namespace": "n", "uid": "c1", "ownerReferences": owners}}
    with pytest.raises(ChildConflict, match="ConfigMap n/c exists and is controlled by") as caught:
        await apply_child(Refusing(), CHILD, live, OWNER)  # type: ignore[arg-type]
    assert caught.value.key == Key("n", "c")


async def test_a_child_that_is_going_is_left_to_go() -> None:
    owners = [{"uid": "u", "controller": True}]
    live = {"metadata": {"uid": "c1", "ownerReferences": owners, "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert await apply_child(Refusing(), CHILD, live, OWNER) is None  # type: ignore[arg-type]


KINDS = says(body={"resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": True}]})
ABSENT, STORED = says(404), says(body={"metadata": {"name": "c"}})
OURS = {"metadata": {"uid": "1", "ownerReferences": [{"controller": True, "uid": OWNER.metadata.uid}]}}
FOREIGN = {"metadata": {"uid": "2"}}


@pytest.mark.parametrize(
    ("live", "script", "requests"),
    [
        pytest.param(None, [KINDS, ABSENT, STORED], ["GET", "GET", "PATCH"], id="not seen, and not there"),
        pytest.param(None, [KINDS, says(body=OURS), STORED], ["GET", "GET", "PATCH"], id="not seen, but there"),
        pytest.param(None, [KINDS, says(body=FOREIGN)], ["GET", "GET"], id="not seen, and somebody else's"),
        pytest.param(OURS, [KINDS, STORED], ["GET", "PATCH"], id="seen"),
        pytest.param(FOREIGN, [KINDS], [], id="seen, and somebody else's"),
    ],
)
async def test_a_child_costs_one_read_if_it_was_not_seen_and_none_if_it_was(
    live: Any, script: list[Answer], requests: list[str]
) -> None:
    """The first GET of each is discovery, which is asked once in a client's life."""
    async with serving(*script) as (server, client):
        with contextlib.suppress(ChildConflict):
            await apply_child(client, CHILD, live, OWNER)
    assert [asked.method for asked in server.asked] == requests
