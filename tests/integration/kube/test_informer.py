"""Informers against a real API server: killed and started again, compacted, silent, and without the kind asked for."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import ClassVar

import pytest

from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane, admin_client, install_crds
from inferencecache.kube.informer import Change, Informer
from inferencecache.kube.kinds import ConfigMap, ObjectMeta, View
from inferencecache.kube.reflector import FAILURES, Timing
from inferencecache.kube.resource import Key, Manifest, Resource, ResourceType
from tests.integration.kube.partition import partition
from tests.unit.kube.scripted import running, until

QUICK = Timing(
    idle_limit=timedelta(seconds=30), first_pause=timedelta(seconds=0.05), longest_pause=timedelta(seconds=0.5)
)


def config_map(name: str, namespace: str, **data: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


class Heard:
    """The names that handlers heard of, by what happened to them; and the content as they would have it."""

    def __init__(self, informer: Informer[ConfigMap]) -> None:
        self.content: dict[str, dict[str, str]] = {}
        self.deleted: list[str] = []
        informer.on_change(self)

    def __call__(self, change: Change[ConfigMap]) -> None:
        if change.new is None:
            self.deleted.append(change.key.name)
            del self.content[change.key.name]
        else:
            self.content[change.key.name] = change.new.data


async def test_follows_a_selection_and_hears_what_leaves_it(client: Client, namespace: str) -> None:
    wanted = config_map("in", namespace)
    wanted["metadata"]["labels"] = {"team": "a"}
    await client.create(wanted)
    await client.create(config_map("out", namespace))
    cache = Cache(client, timing=QUICK)
    informer = cache.informer(ConfigMap, namespace=namespace, labels={"team": "a"})
    heard = Heard(informer)
    async with running(cache.run()):
        await cache.wait_synced(timedelta(seconds=20))
        assert set(heard.content) == {"in"}
        await client.patch(ConfigMap.resource, Key(namespace, "in"), {"data": {"k": "v"}})
        await until(lambda: heard.content["in"] == {"k": "v"})
        await client.patch(ConfigMap.resource, Key(namespace, "in"), {"metadata": {"labels": None}})
        await until(lambda: heard.deleted == ["in"])
        await client.patch(ConfigMap.resource, Key(namespace, "out"), {"metadata": {"labels": {"team": "a"}}})
        await until(lambda: set(heard.content) == {"out"})


async def test_takes_a_list_of_several_pages_and_objects_of_several_hundred_kilobytes(
    client: Client, namespace: str
) -> None:
    for number in range(7):
        await client.create(config_map(f"c{number}", namespace, text="x" * 300_000))
    informer = Informer(client, ConfigMap, namespace=namespace, page_size=2, timing=QUICK)
    heard = Heard(informer)
    async with running(informer.run()):
        await asyncio.wait_for(informer.wait_synced(), 60)
        assert len(heard.content) == 7
        await client.create(config_map("late", namespace, text="y" * 900_000))
        await until(lambda: "late" in heard.content)


class Gadget(View, frozen=True):
    resource: ClassVar[Resource] = ResourceType("late.test.dev", "v1", "Gadget", "gadgets")
    metadata: ObjectMeta = ObjectMeta()


GADGETS: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gadgets.late.test.dev"},
    "spec": {
        "group": "late.test.dev",
        "scope": "Namespaced",
        "names": {"kind": "Gadget", "plural": "gadgets", "singular": "gadget", "listKind": "GadgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


async def test_an_optional_kind_may_come_and_go(client: Client, namespace: str) -> None:
    cache = Cache(client, timing=QUICK)
    informer = cache.informer(Gadget, optional=True)
    async with running(cache.run()):
        await cache.wait_synced(timedelta(seconds=20))
        assert informer.missing
        await install_crds(client, [GADGETS])
        gadget = {"apiVersion": "late.test.dev/v1", "kind": "Gadget", "metadata": {"name": "g", "namespace": namespace}}
        await client.create(gadget)
        await until(lambda: informer.get(Key(namespace, "g")))
        assert not informer.missing
        crds = ResourceType(
            "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
        )
        await client.delete(crds, Key("", "gadgets.late.test.dev"))
        await until(lambda: informer.missing and not informer.list())


# ------------------------------------------------------------------------------ faults, on a control plane of their own


@pytest.fixture(scope="module")
def breakable() -> Iterator[ControlPlane]:
    with ControlPlane() as plane:
        yield plane


@pytest.fixture
async def breakable_client(breakable: ControlPlane) -> AsyncIterator[Client]:
    client = await admin_client(breakable)
    async with client.connection:
        yield client


async def test_survives_an_api_server_that_is_killed_and_misses_nothing(
    breakable: ControlPlane, breakable_client: Client
) -> None:
    client = breakable_client
    await client.create(config_map("stays", "default"))
    await client.create(config_map("goes", "default"))
    cache = Cache(client, timing=QUICK)
    informer = cache.informer(ConfigMap, namespace="default")
    heard = Heard(informer)
    loop = asyncio.get_running_loop()
    async with running(cache.run()):
        await cache.wait_synced(timedelta(seconds=20))
        breakable.stop_apiserver()
        await until(lambda: not informer.connected(loop.time()))
        assert set(heard.content) == {"stays", "goes"}, "what was known stays readable"
        breakable.start_apiserver()  # in this thread: the processes of a plane end with the thread that started them
        await client.delete(ConfigMap.resource, Key("default", "goes"))
        await client.create(config_map("comes", "default"))
        await until(lambda: set(heard.content) == {"stays", "comes"})
        assert heard.deleted == ["goes"]
        assert informer.connected(loop.time())


async def test_a_compacted_history_is_bridged_by_a_list_and_missed_deletions_are_told(
    breakable: ControlPlane, breakable_client: Client
) -> None:
    """410 from a real server: its history was compacted and its watch cache forgotten while nobody watched."""
    client = breakable_client
    for name in ("old-stays", "old-goes"):
        await client.create(config_map(name, "default"))
    async with partition(breakable) as (proxied, proxy):
        informer = Informer(proxied, ConfigMap, namespace="default", timing=QUICK)
        heard = Heard(informer)
        async with running(informer.run()):
            await until(lambda: informer.synced)
            expired = FAILURES.labels("configmaps", "Gone")._value.get()
            await proxy.cut()
            await client.delete(ConfigMap.resource, Key("default", "old-goes"))
            await client.create(config_map("old-comes", "default"))
            breakable.stop_apiserver()
            await asyncio.to_thread(compact, breakable)
            breakable.start_apiserver()  # not in a thread: processes of a plane end with the thread that started them
            await proxy.mend()
            await until(lambda: "old-comes" in heard.content and "old-goes" not in heard.content)
            assert "old-goes" in heard.deleted
            assert "old-stays" in heard.content
            assert FAILURES.labels("configmaps", "Gone")._value.get() > expired


async def test_a_connection_that_dies_without_a_word_is_noticed_by_its_silence(breakable: ControlPlane) -> None:
    """Half-open: the peer is gone and TCP does not know."""
    timing = Timing(idle_limit=timedelta(seconds=1), first_pause=timedelta(seconds=0.05))
    direct = await admin_client(breakable)
    async with direct.connection, partition(breakable) as (proxied, proxy):
        informer = Informer(proxied, ConfigMap, namespace="default", timing=timing)
        async with running(informer.run()):
            await until(lambda: informer.synced)
            proxy.freeze()
            before = proxy.swallowed
            await direct.create(config_map("unheard-of", "default"))
            await until(lambda: proxy.swallowed > before)  # what was sent of it on this connection is lost
            await until(lambda: informer.get(Key("default", "unheard-of")))


def compact(plane: ControlPlane) -> None:
    """Make etcd forget all history up to now, through its JSON gateway."""

    def post(path: str, body: dict[str, object]) -> dict[str, dict[str, str]]:
        request = urllib.request.Request(plane._etcd_url + path, json.dumps(body).encode())
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            found: dict[str, dict[str, str]] = json.load(answer)
            return found

    revision = post("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
    post("/v3/kv/compaction", {"revision": revision, "physical": True})
