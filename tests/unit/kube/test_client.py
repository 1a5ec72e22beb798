"""The client under faults: what is repeated, what is not, and when it gives up."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from inferencecache.kube.client import Client, with_owner
from inferencecache.kube.errors import (
    DecodeError,
    Gone,
    LeadershipLost,
    NotFound,
    ServerError,
    TooManyRequests,
    TransportError,
    Unauthorized,
)
from inferencecache.kube.kinds import ConfigMap, ObjectMeta
from inferencecache.kube.resource import Key

from .apiserver import hangs_up, says, serving

KEY = Key("n", "c")
MANIFEST = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}}
CORE = says(body={"resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": True}]})
OBJECT = says(body=MANIFEST)


@pytest.mark.parametrize("fault", [hangs_up, says(500), says(503), says(429)], ids=["cut", "500", "503", "429"])
async def test_a_read_is_repeated(fault: Any) -> None:
    async with serving(fault, fault, OBJECT) as (server, client):
        assert (await client.get(ConfigMap, KEY)).metadata.name == "c"
        assert len(server.asked) == 3


@pytest.mark.parametrize(("fault", "error"), [(hangs_up, TransportError), (says(500), ServerError)])
async def test_a_creation_of_unknown_outcome_is_not_repeated(fault: Any, error: type[Exception]) -> None:
    async with serving(CORE, fault) as (server, client):
        with pytest.raises(error):
            await client.create(MANIFEST)
        assert [asked.method for asked in server.asked] == ["GET", "POST"]


@pytest.mark.parametrize("status", [429, 503])
async def test_a_creation_that_was_refused_for_overload_is_repeated(status: int) -> None:
    async with serving(CORE, says(status), OBJECT) as (_, client):
        assert await client.create(MANIFEST) == MANIFEST


async def test_retry_after_is_waited_for() -> None:
    async with serving(says(429, Retry_After="1"), OBJECT) as (_, client):
        start = time.monotonic()
        await client.get(ConfigMap, KEY)
        assert time.monotonic() - start >= 1


async def test_a_wish_to_wait_past_the_deadline_ends_the_request_at_once() -> None:
    async with serving(says(429, Retry_After="600"), seconds=300) as (_, client), asyncio.timeout(60):
        with pytest.raises(TooManyRequests) as caught:
            await client.get(ConfigMap, KEY)
        assert caught.value.retry_after == 600


async def test_a_silent_server_costs_the_deadline_and_no_more() -> None:
    async def silent(_: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    async def call(method: str) -> int:
        """How often a server was asked that did not answer."""
        # Each try has half of the time: a machine that stands still for that long spoils the second.
        async with serving(silent, seconds=12) as (server, client), asyncio.timeout(60):
            with pytest.raises(TransportError, match=r"no answer within|imeout"):
                await getattr(client, method)(ConfigMap.resource, KEY)
            return len(server.asked)

    asked = await asyncio.gather(call("get_manifest"), call("delete"))
    assert min(asked) >= 2, "a connection that died in the pool deserves a second try"


async def test_refusals_name_verb_and_object_and_are_not_repeated() -> None:
    async with serving(says(404, {"message": "no such thing", "reason": "NotFound"})) as (server, client):
        with pytest.raises(NotFound, match="GET /api/v1/namespaces/n/configmaps/c: no such thing"):
            await client.get(ConfigMap, KEY)
        assert len(server.asked) == 1


async def test_refused_credentials_are_loaded_anew_once() -> None:
    async with serving(says(401), OBJECT, tokens=("old", "new")) as (server, client):
        await client.get(ConfigMap, KEY)
        assert [asked.headers["Authorization"] for asked in server.asked] == ["Bearer old", "Bearer new"]


async def test_credentials_that_stay_refused_are_an_error() -> None:
    async with serving(says(401), tokens=("old", "new")) as (server, client):
        with pytest.raises(Unauthorized):
            await client.get(ConfigMap, KEY)
        assert len(server.asked) == 2


async def test_many_refused_at_once_load_the_credentials_once() -> None:
    async def judge(request: web.Request) -> web.Response:
        known = request.headers["Authorization"] == "Bearer new"
        return web.json_response(MANIFEST if known else {}, status=200 if known else 401)

    async with serving(judge, tokens=("old", "new", "newer")) as (_, client):
        await asyncio.gather(*(client.get(ConfigMap, KEY) for _ in range(10)))


async def test_a_guarded_client_asks_before_each_write_and_only_then() -> None:
    def lost() -> None:
        raise LeadershipLost("the lease is gone")

    async with serving(CORE, OBJECT) as (server, client):
        guarded = client.guarded(lost)
        assert await client.discovery.resource_for("v1", "ConfigMap")
        await guarded.get(ConfigMap, KEY)
        for write in (
            guarded.create(MANIFEST),
            guarded.apply(MANIFEST),
            guarded.patch(ConfigMap.resource, KEY, {}),
            guarded.patch_status(ConfigMap.resource, KEY, {}),
            guarded.replace(ConfigMap.resource, KEY, MANIFEST),
            guarded.delete(ConfigMap.resource, KEY),
        ):
            with pytest.raises(LeadershipLost):
                await write
        assert {asked.method for asked in server.asked} == {"GET"}


async def test_a_guard_is_asked_again_before_a_repetition() -> None:
    answers = iter([True, False])

    def check() -> None:
        if not next(answers):
            raise LeadershipLost("the lease is gone")

    async with serving(says(503), OBJECT) as (server, client):
        with pytest.raises(LeadershipLost):
            await client.guarded(check).delete(ConfigMap.resource, KEY)
        assert len(server.asked) == 1


async def test_what_an_apply_says() -> None:
    owner = ConfigMap(metadata=ObjectMeta(name="o", uid="u"))
    async with serving(CORE, OBJECT) as (server, client):
        await client.apply(MANIFEST, owner=owner, dry_run=True)
        asked = server.asked[-1]
        assert asked.headers["Content-Type"] == "application/apply-patch+yaml"
        assert asked.query == {"fieldManager": "us", "force": "true", "dryRun": "All"}
        assert asked.body == with_owner(MANIFEST, owner)
        assert asked.body["metadata"]["ownerReferences"][0]["controller"] is True
        assert "ownerReferences" not in MANIFEST["metadata"]


def test_an_owner_reference_says_to_hold_up_the_owner_only_where_that_is_wanted() -> None:
    owner = ConfigMap(metadata=ObjectMeta(name="o", uid="u"))
    (holding,) = with_owner(MANIFEST, owner)["metadata"]["ownerReferences"]
    (letting_go,) = with_owner(MANIFEST, owner, blocks_deletion=False)["metadata"]["ownerReferences"]
    assert holding == {**letting_go, "blockOwnerDeletion": True}
    assert letting_go == {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u", "controller": True}


async def test_delete_carries_its_preconditions() -> None:
    async with serving(OBJECT) as (server, client):
        await client.delete(ConfigMap.resource, KEY, uid="u", resource_version="5", propagation="Foreground")
        assert server.asked[0].body["preconditions"] == {"uid": "u", "resourceVersion": "5"}
        assert server.asked[0].body["propagationPolicy"] == "Foreground"


async def test_nothing_is_asked_of_a_collection_for_want_of_a_name() -> None:
    nameless = Key("n", "")
    async with serving(OBJECT) as (server, client):
        for call in (
            client.get(ConfigMap, nameless),
            client.get_manifest(ConfigMap.resource, nameless),
            client.patch(ConfigMap.resource, nameless, {}),
            client.replace(ConfigMap.resource, nameless, MANIFEST),
            client.delete(ConfigMap.resource, nameless),
        ):
            with pytest.raises(NotFound, match="ConfigMap n/: an object has a name"):
                await call
        assert not server.asked


def page(*names: str, token: str = "") -> Any:
    return says(body={"metadata": {"continue": token}, "items": [{"metadata": {"name": name}} for name in names]})


async def test_lists_are_read_in_pages() -> None:
    async with serving(page("a", token="x"), page("b")) as (server, client):
        found = await client.list(ConfigMap, namespace="n", labels={"b": "2", "a": "1"}, fields="metadata.name=q")
        assert [obj.metadata.name for obj in found] == ["a", "b"]
        assert server.asked[0].query == {
            "limit": "500",
            "labelSelector": "a=1,b=2",
            "fieldSelector": "metadata.name=q",
        }
        assert server.asked[1].query["continue"] == "x"


async def test_a_list_whose_token_expired_starts_over_without_repeating_objects() -> None:
    async with serving(page("a", token="x"), says(410), page("a", token="y"), page("b")) as (_, client):
        assert [obj.metadata.name for obj in await client.list(ConfigMap)] == ["a", "b"]


async def test_a_list_whose_token_expires_again_is_an_error() -> None:
    async with serving(page("a", token="x"), says(410), page("a", token="y"), says(410)) as (_, client):
        with pytest.raises(Gone):
            await client.list(ConfigMap)


async def test_a_list_with_an_object_that_does_not_fit_is_an_error() -> None:
    async with serving(says(body={"items": [{"metadata": {"name": "x"}, "data": 5}]})) as (_, client):
        with pytest.raises(DecodeError, match="ConfigMap x"):
            await client.list(ConfigMap)


async def test_watch_frames_may_be_of_any_length_and_cut_anywhere() -> None:
    big = b'{"object": "' + b"x" * (6 * 1024 * 1024) + b'"}'

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in (b'{"a"', b": 1}\n\n{", b'"b": 2}\n' + big, b"\n" + b'{"half": '):
            await response.write(chunk)
            await asyncio.sleep(0)
        return response

    async with serving(stream) as (server, client):
        frames = [frame async for frame in client.watch(ConfigMap.resource, resource_version="7", timeout_seconds=5)]
        assert frames == [b'{"a": 1}', b'{"b": 2}', big], "an unfinished frame at the end is no frame"
        assert server.asked[0].query == {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": "7",
            "timeoutSeconds": "5",
        }


async def test_a_watch_on_which_nothing_arrives_is_left() -> None:
    async def half_open(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"{}\n")
        await asyncio.sleep(3600)
        return response

    async with serving(half_open) as (_, client):
        frames = client.watch(ConfigMap.resource, idle_limit=timedelta(seconds=3))
        assert await anext(frames) == b"{}"
        with pytest.raises(TransportError, match="watch /api/v1/configmaps"):
            await anext(frames)


async def test_a_refused_watch_is_an_error() -> None:
    async with serving(says(410, {"message": "too old"})) as (_, client):
        with pytest.raises(Gone, match="watch /api/v1/configmaps: too old"):
            await anext(client.watch(ConfigMap.resource))


async def test_a_refused_connection_is_a_transport_error() -> None:
    nobody = "http://127.0.0.1:9"  # the discard port
    async with serving(OBJECT, seconds=0.3, url=nobody) as (_, client):
        with pytest.raises(TransportError, match="GET /api/v1/namespaces/n/configmaps/c"):
            await client.get(ConfigMap, KEY)


async def test_a_guard_does_not_leak_into_the_client_it_came_from() -> None:
    async with serving(OBJECT) as (_, client):
        guarded = client.guarded(lambda: None)
        assert isinstance(guarded, Client)
        assert guarded.discovery is client.discovery
        await client.delete(ConfigMap.resource, KEY)
