"""Finalizers against a real API server, with others writing the same list."""

from __future__ import annotations

import asyncio

import pytest

from inferencecache.kube.client import Client
from inferencecache.kube.errors import NotFound
from inferencecache.kube.finalizers import add_finalizer, has_finalizer, is_being_deleted, remove_finalizer
from inferencecache.kube.kinds import ConfigMap
from inferencecache.kube.resource import Key


async def made(client: Client, key: Key) -> ConfigMap:
    metadata = {"namespace": key.namespace, "name": key.name}
    await client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    return await client.get(ConfigMap, key)


async def test_a_finalizer_keeps_an_object_until_it_is_taken_off(client: Client, namespace: str) -> None:
    key = Key(namespace, "kept")
    obj = await made(client, key)
    assert await add_finalizer(client, obj, "example.io/cleanup")
    assert not await add_finalizer(client, await client.get(ConfigMap, key), "example.io/cleanup")
    await client.delete(ConfigMap.resource, key)
    going = await client.get(ConfigMap, key)
    assert is_being_deleted(going)
    assert has_finalizer(going, "example.io/cleanup")
    assert not await add_finalizer(client, going, "example.io/late")
    assert await remove_finalizer(client, going, "example.io/cleanup")
    with pytest.raises(NotFound):
        await client.get(ConfigMap, key)
    assert not await remove_finalizer(client, going, "example.io/cleanup")  # gone already is as good


async def test_concurrent_writers_of_the_list_lose_nothing(client: Client, namespace: str) -> None:
    key = Key(namespace, "busy")
    obj = await made(client, key)
    names = [f"example.io/f{n}" for n in range(4)]
    await asyncio.gather(*(add_finalizer(client, obj, name) for name in names))
    full = await client.get(ConfigMap, key)
    assert sorted(full.metadata.finalizers) == names
    await asyncio.gather(*(remove_finalizer(client, full, name) for name in names))
    assert (await client.get(ConfigMap, key)).metadata.finalizers == ()


async def test_an_object_made_anew_is_another_one(client: Client, namespace: str) -> None:
    key = Key(namespace, "reborn")
    old = await made(client, key)
    await client.delete(ConfigMap.resource, key)
    await made(client, key)
    with pytest.raises(NotFound, match="made anew"):
        await add_finalizer(client, old, "example.io/cleanup")
