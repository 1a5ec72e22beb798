"""Discovery: remembered per group version, and read anew for a kind it does not know."""

from __future__ import annotations

import pytest

from inferencecache.kube.errors import NotFound
from inferencecache.kube.resource import ResourceType

from .apiserver import says, serving

PODS = {"name": "pods", "kind": "Pod", "namespaced": True}
STATUS = {"name": "pods/status", "kind": "Pod", "namespaced": True}
NODES = {"name": "nodes", "kind": "Node", "namespaced": False}


async def test_a_group_version_is_asked_once() -> None:
    async with serving(says(body={"resources": [PODS, STATUS, NODES]})) as (server, client):
        assert await client.discovery.resource_for("v1", "Pod") == ResourceType("", "v1", "Pod", "pods")
        assert not (await client.discovery.resource_for("v1", "Node")).namespaced
        assert [asked.path for asked in server.asked] == ["/api/v1"]


async def test_a_kind_that_came_later_is_found() -> None:
    async with serving(says(body={"resources": []}), says(body={"resources": [PODS]})) as (server, client):
        with pytest.raises(NotFound, match=r"no kind Pod in example.net/v1; is its CustomResourceDefinition installed"):
            await client.discovery.resource_for("example.net/v1", "Pod")
        assert (await client.discovery.resource_for("example.net/v1", "Pod")).group == "example.net"
        assert {asked.path for asked in server.asked} == {"/apis/example.net/v1"}
