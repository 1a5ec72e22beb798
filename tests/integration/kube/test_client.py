"""The client against a real API server: every verb, every error a caller acts on."""

from __future__ import annotations

import asyncio
import json

import pytest

from inferencecache.kube.client import Client, with_owner
from inferencecache.kube.errors import AlreadyExists, Conflict, Invalid, NotFound
from inferencecache.kube.kinds import ConfigMap, Pod
from inferencecache.kube.resource import Key, Manifest


def config_map(namespace: str, name: str = "c", **data: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"set": "x"}},
        "data": data,
    }


async def test_an_object_from_creation_to_deletion(client: Client, namespace: str) -> None:
    key = Key(namespace, "c")
    made = await client.create(config_map(namespace, a="1"))
    with pytest.raises(AlreadyExists, match=f"POST /api/v1/namespaces/{namespace}/configmaps: .*already exists"):
        await client.create(config_map(namespace))

    assert (await client.get(ConfigMap, key)).data == {"a": "1"}
    await client.patch(ConfigMap.resource, key, {"data": {"a": None, "b": "2"}})
    await client.patch(ConfigMap.resource, key, [{"op": "add", "path": "/data/c", "value": "3"}], type="json")
    assert (await client.get_manifest(ConfigMap.resource, key))["data"] == {"b": "2", "c": "3"}

    with pytest.raises(Conflict):
        await client.replace(ConfigMap.resource, key, made)
    with pytest.raises(Conflict):
        await client.delete(ConfigMap.resource, key, uid="another")
    with pytest.raises(Conflict):
        await client.delete(ConfigMap.resource, key, resource_version=made["metadata"]["resourceVersion"])
    await client.delete(ConfigMap.resource, key, uid=made["metadata"]["uid"])
    with pytest.raises(NotFound, match=f"GET /api/v1/namespaces/{namespace}/configmaps/c"):
        await client.get(ConfigMap, key)
    with pytest.raises(NotFound):
        await client.delete(ConfigMap.resource, key)


async def test_apply_takes_over_by_force_and_conflicts_without(client: Client, namespace: str) -> None:
    await client.apply(config_map(namespace, a="1"))
    other = Client(client.connection, field_manager="other")
    with pytest.raises(Conflict):
        await other.apply(config_map(namespace, a="2"), force=False)
    assert (await other.apply(config_map(namespace, a="2"), dry_run=True))["data"] == {"a": "2"}
    assert (await client.get(ConfigMap, Key(namespace, "c"))).data == {"a": "1"}
    await other.apply(config_map(namespace, a="2"))
    assert (await client.get(ConfigMap, Key(namespace, "c"))).data == {"a": "2"}


@pytest.mark.parametrize("other", ["1", "2"], ids=["that says the same", "that says something else"])
async def test_an_apply_of_what_is_new_leaves_a_namesake_alone(client: Client, namespace: str, other: str) -> None:
    wanted, key = config_map(namespace, a="1"), Key(namespace, "c")
    await client.create(config_map(namespace, a=other))
    before = await client.get_manifest(ConfigMap.resource, key)
    owned = with_owner(wanted, await client.get(ConfigMap, key))
    for manifest in (wanted, owned):
        with pytest.raises(AlreadyExists):
            await client.apply_new(manifest)
    assert await client.get_manifest(ConfigMap.resource, key) == before


async def test_an_apply_of_what_is_new_owns_its_fields_as_any_apply_does(client: Client, namespace: str) -> None:
    made = await client.apply_new(config_map(namespace, a="1", b="1"))
    assert [one["operation"] for one in made["metadata"]["managedFields"]] == ["Apply"]
    assert (await client.apply(config_map(namespace, a="1")))["data"] == {"a": "1"}


async def test_a_status_is_patched_apart_from_its_object(client: Client, namespace: str) -> None:
    await client.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": namespace},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }
    )
    await client.patch_status(Pod.resource, Key(namespace, "p"), {"phase": "Running"})
    assert (await client.get(Pod, Key(namespace, "p"))).status.phase == "Running"


async def test_an_invalid_object_says_which_field(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid, match=r"metadata\.name") as caught:
        await client.apply(config_map(namespace, name="Not_A_Name"))
    assert caught.value.details["causes"][0]["field"] == "metadata.name"


async def test_a_kind_that_is_not_served(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound):
        await client.apply({"apiVersion": "nobody.example.net/v1", "kind": "X", "metadata": {"name": "x"}})
    with pytest.raises(NotFound, match="no kind Nothing in v1"):
        await client.apply({"apiVersion": "v1", "kind": "Nothing", "metadata": {"name": "x"}})


async def test_lists_go_on_over_pages_and_select(client: Client, namespace: str) -> None:
    names = [f"c{number}" for number in range(7)]
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(client.create(config_map(namespace, name=name)))
    pages, token = [], ""
    while True:
        page = await client.list_page(
            ConfigMap, namespace=namespace, labels={"set": "x"}, limit=3, continue_token=token
        )
        pages.append([obj.metadata.name for obj in page.items])
        token = page.continue_token
        if not token:
            break
    assert pages == [names[:3], names[3:6], names[6:]]
    assert [o.metadata.name for o in await client.list(ConfigMap, namespace=namespace, fields="metadata.name=c5")] == [
        "c5"
    ]
    assert await client.list(ConfigMap, namespace=namespace, labels="set=y") == []


async def test_a_watch_tells_what_happens(client: Client, namespace: str) -> None:
    page = await client.list_page(ConfigMap, namespace=namespace)
    await client.create(config_map(namespace))
    await client.delete(ConfigMap.resource, Key(namespace, "c"))
    seen = []
    async with asyncio.timeout(60):
        async for frame in client.watch(
            ConfigMap.resource, namespace=namespace, labels="set=x", resource_version=page.resource_version
        ):
            seen.append(json.loads(frame)["type"])
            if len(seen) == 2:
                break
    assert seen == ["ADDED", "DELETED"]
