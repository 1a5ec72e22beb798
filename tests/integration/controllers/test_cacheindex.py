"""The index poller against the real server, with tokens that the real API server reviews (spec 05 §7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from inferencecache.api.cachebackend import CacheBackend, IndexParticipation
from inferencecache.api.cacheindex import CacheIndex
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.controllers.cacheindex.reconciler import SINGLETON
from inferencecache.kube.client import Client
from inferencecache.kube.errors import AlreadyExists, NotFound
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import Key
from tests.integration.controllers.cache_server import (
    CONTROLLER,
    POLICY,
    engine,
    operator,
    own,
    report,
    scraped_again,
    settings,
)
from tests.integration.kube.waiting import eventually
from tests.integration.server.running import Running, Stub, calling
from tests.integration.server.test_auth import Accounts

SELECTED = {"app": "e"}


@pytest.fixture
async def producer(server: Running) -> AsyncIterator[Stub]:
    async with calling(server) as stub:
        yield stub


@pytest.fixture
async def tokens(tokens: Path, client: Client) -> Path:
    """As elsewhere, and no index is there."""
    await remove_index(client)
    return tokens


async def remove_index(client: Client) -> None:
    try:
        await client.delete(CacheIndex.resource, SINGLETON)
    except NotFound:
        return


def routes(namespace: str, name: str = "kv") -> dict[str, Any]:
    """A backend without a workload, so that nothing but events decides whether it is ready."""
    spec = {
        "runtime": "VLLM",
        "type": "LMCache",
        "integration": {"mode": "EventsOnly"},
        "engineSelector": {"matchLabels": SELECTED},
        "observation": {"modelID": "m"},
    }
    return own("CacheBackend", Key(namespace, name), spec)


def index(client: Client) -> Callable[[], Awaitable[CacheIndex | None]]:
    async def look() -> CacheIndex | None:
        try:
            return await client.get(CacheIndex, SINGLETON)
        except NotFound:
            return None

    return look


def participation(client: Client, key: Key) -> Callable[[], Awaitable[IndexParticipation | None]]:
    async def look() -> IndexParticipation | None:
        return (await client.get(CacheBackend, key)).status.index_participation

    return look


def holds(count: int) -> Callable[[IndexParticipation | None], bool]:
    return lambda seen: seen is not None and seen.prefix_count == count


def ready(client: Client, kind: type[Any], key: Key, name: str = "Ready") -> Callable[[], Awaitable[tuple[str, str]]]:
    async def look() -> tuple[str, str]:
        conditions = (await client.get(kind, key)).status.conditions or ()
        return next(((one.status, one.reason) for one in conditions if one.type == name), ("", ""))

    return look


async def test_the_index_is_there_before_its_server_and_a_user_cannot_fake_what_it_says(
    client: Client, tokens: Path, server: Running
) -> None:
    server.stop.set()
    await server.ended
    manifest = {"apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheIndex", "metadata": {"name": SINGLETON.name}}

    async def made_by_a_user() -> bool:
        """Unless the operator was faster, which makes it anew whenever it is gone."""
        await remove_index(client)
        try:
            await client.create({**manifest, "spec": {"more": 1}, "status": {"observedServer": "mine"}})
        except AlreadyExists:
            return False
        return True

    async with operator(client, settings(server, tokens)):
        await eventually(index(client), lambda seen: seen is not None)
        await eventually(made_by_a_user, bool)
        await scraped_again()
        seen = await client.get_manifest(CacheIndex.resource, SINGLETON)
    assert seen.get("status") in (None, {})
    assert seen["spec"] == {}


async def test_what_engines_report_is_shown_and_wakes_the_backend(
    client: Client, namespace: str, tokens: Path, server: Running, producer: Stub
) -> None:
    key = Key(namespace, "kv")
    await client.create(routes(namespace))
    for name in ("e-0", "e-1"):
        await client.create(engine(name, namespace, SELECTED))
    async with operator(client, settings(server, tokens)):
        await eventually(ready(client, CacheBackend, key), lambda seen: seen[1] == "AwaitingFirstKVEvent")
        await eventually(participation(client, key), holds(0))
        await report(producer, namespace, "e-0", 3, pressure=1, t2_query_tokens=40, t2_hit_tokens=30)
        await report(producer, namespace, "e-1", 2, t2_query_tokens=40)
        seen = await eventually(participation(client, key), holds(5))
        assert seen is not None
        assert (seen.t2_hit_rate, seen.hit_rate) == ("0.375", None)
        assert seen.last_event_at is not None
        assert seen.last_event_at.endswith("Z")
        await eventually(ready(client, CacheBackend, key), lambda seen: seen == ("True", "KVEventsObserved"))
        labels = {"backend": str(key)}
        assert REGISTRY.get_sample_value("inferencecache_backend_t2_hit_rate", labels) == 0.375

        def complete(seen: CacheIndex | None) -> bool:
            # A scrape tells the backends first, and the one before may have come between the two reports.
            return seen is not None and {row.id for row in seen.status.replicas or ()} == {"e-0", "e-1"}

        shown = await eventually(index(client), complete)
        assert shown is not None
        replicas = {row.id: (row.tenant, row.pressure, row.hit_rate) for row in shown.status.replicas or ()}
        assert replicas == {"e-0": (namespace, "1", "0"), "e-1": (namespace, "0", "0")}
        tenants = {row.id: (row.index_entries, row.memory_used) for row in shown.status.tenants or ()}
        assert tenants == {namespace: (3, 0)}  # both replicas hold the same blocks
        assert shown.status.observed_server == server.url("/snapshot")

        # The engines go: what they held is no longer the backend's, but that it was seen stays.
        for name in ("e-0", "e-1"):
            await client.delete(Pod.resource, Key(namespace, name))
        drained = await eventually(participation(client, key), holds(0))
        assert drained is not None
        assert (drained.last_event_at, drained.t2_hit_rate) == (None, None)
        assert await ready(client, CacheBackend, key)() == ("True", "KVEventsObserved")
        assert REGISTRY.get_sample_value("inferencecache_backend_t2_hit_rate", labels) is None


async def test_what_has_not_changed_is_not_written(
    client: Client, namespace: str, tokens: Path, server: Running, producer: Stub
) -> None:
    key = Key(namespace, "kv")
    await client.create(routes(namespace))
    await client.create(engine("e-0", namespace, SELECTED))
    await client.create(own("CacheTenant", key, {"tenantID": namespace, "quota": {"maxIndexEntries": 9}}))
    await report(producer, namespace, "e-0", 3, pressure=1)

    async def versions() -> list[str]:
        found = [await client.get(kind, key) for kind in (CacheBackend, CacheTenant)]
        return [one.metadata.resource_version for one in (*found, await client.get(CacheIndex, SINGLETON))]

    async with operator(client, settings(server, tokens)):
        await eventually(ready(client, CacheBackend, key), lambda seen: seen == ("True", "KVEventsObserved"))
        await eventually(ready(client, CacheTenant, key), lambda seen: seen == ("True", "Observed"))
        await scraped_again()
        before = await versions()
        await scraped_again(5)
        assert await versions() == before


async def test_a_recreated_backend_does_not_inherit_the_engines_of_its_namesake(
    client: Client, namespace: str, tokens: Path, server: Running, producer: Stub
) -> None:
    """Decision F12."""
    key = Key(namespace, "kv")
    first = await client.create(routes(namespace))
    marks = {
        "inferencecache.io/injected-by": str(key),
        "inferencecache.io/injected-by-uid": first["metadata"]["uid"],
    }
    await client.create(engine("e-0", namespace, SELECTED, **marks))
    await report(producer, namespace, "e-0", 3)
    async with operator(client, settings(server, tokens)):
        await eventually(participation(client, key), holds(3))
        await client.delete(CacheBackend.resource, key)
        await client.create(routes(namespace))
        await eventually(participation(client, key), holds(0))
        await scraped_again()
        assert holds(0)(await participation(client, key)())
        await eventually(ready(client, CacheBackend, key), lambda seen: seen[1] == "AwaitingFirstKVEvent")


async def test_tenants_are_told_what_they_hold(
    client: Client, namespace: str, tokens: Path, server: Running, producer: Stub
) -> None:
    for name, tenant_id, quota in (("a", namespace, 2), ("b", namespace, 9), ("c", "nobody", 0)):
        spec = {"tenantID": tenant_id, "quota": {"maxIndexEntries": quota}}
        await client.create(own("CacheTenant", Key(namespace, name), spec))
    async with operator(client, settings(server, tokens)):
        exceeded = ready(client, CacheTenant, Key(namespace, "a"), "QuotaExceeded")
        await eventually(exceeded, lambda seen: seen == ("False", "WithinBudget"))
        await report(producer, namespace, "e-0", 5)

        async def entries() -> list[int | None]:
            found = [await client.get(CacheTenant, Key(namespace, name)) for name in "abc"]
            return [one.status.index_entries for one in found]

        # The quota was pushed, so the server holds to it.
        await eventually(entries, lambda seen: seen == [2, 2, 0])
        shadowed = ready(client, CacheTenant, Key(namespace, "b"))
        assert await shadowed() == ("False", "DuplicateTenantID")


@pytest.mark.parametrize("bad", ["another account", "another audience", "no token", "garbage"])
async def test_without_the_right_token_nothing_is_touched_and_with_it_polling_goes_on(
    client: Client, namespace: str, accounts: Accounts, tokens: Path, server: Running, producer: Stub, bad: str
) -> None:
    good = (tokens / "controller-token").read_text()
    wrong = {
        "another account": await accounts.token("stranger", CONTROLLER),
        "another audience": await accounts.token("controller", POLICY),
        "no token": "",
        "garbage": "abc",
    }
    key = Key(namespace, "kv")
    await client.create(routes(namespace))
    await client.create(engine("e-0", namespace, SELECTED))
    await report(producer, namespace, "e-0", 3)
    async with operator(client, settings(server, tokens)):
        await eventually(participation(client, key), holds(3))
        (tokens / "controller-token").write_text(wrong[bad])
        await scraped_again()  # the one in hand may have had the good token
        await report(producer, namespace, "e-0", 4)
        await scraped_again()
        assert holds(3)(await participation(client, key)())
        (tokens / "controller-token").write_text(good)
        await eventually(participation(client, key), holds(4))


async def test_while_the_server_is_down_what_was_known_stays(
    client: Client, namespace: str, tokens: Path, server: Running, producer: Stub
) -> None:
    key = Key(namespace, "kv")
    await client.create(routes(namespace))
    await client.create(engine("e-0", namespace, SELECTED))
    await report(producer, namespace, "e-0", 3, t2_query_tokens=4)
    async with operator(client, settings(server, tokens)):
        await eventually(participation(client, key), holds(3))
        server.stop.set()
        await scraped_again(3)
        assert holds(3)(await participation(client, key)())
        shown = await index(client)()
        assert shown is not None
        assert shown.status.replicas
        # Nothing tells of a backend that is deleted meanwhile (decision F13).

        async def hit_rate() -> float | None:
            return REGISTRY.get_sample_value("inferencecache_backend_t2_hit_rate", {"backend": str(key)})

        await client.delete(CacheBackend.resource, key)
        await eventually(hit_rate, lambda seen: seen is None)
