"""Events as a real API server takes them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec

from inferencecache.kube.client import Client
from inferencecache.kube.events import EVENTS, EventRecorder, Limits
from inferencecache.kube.kinds import ConfigMap
from inferencecache.kube.resource import Key, Manifest, path_of
from tests.integration.kube.waiting import eventually
from tests.unit.kube.scripted import running


class _Page(msgspec.Struct):
    items: list[Manifest]


LIMITS = Limits(series_interval=timedelta(seconds=0.4))


async def events(client: Client, namespace: str) -> list[Manifest]:
    body = await client.request("GET", path_of(EVENTS, namespace))
    return msgspec.json.decode(body, type=_Page).items


async def test_events_and_their_series_are_accepted(client: Client, namespace: str) -> None:
    await client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": namespace}})
    config_map = await client.get(ConfigMap, Key(namespace, "c"))
    recorder = EventRecorder(client, "example.dev/tester", limits=LIMITS)
    async with running(recorder.run()):
        for _ in range(5):
            recorder.event(config_map, "Warning", "Failed", "é" * 2000, action="Testing", related=config_map)
        await eventually(lambda: events(client, namespace), lambda found: bool(found))
        for _ in range(5):
            recorder.event(config_map, "Warning", "Failed", "é" * 2000, action="Testing", related=config_map)
        (event,) = await eventually(
            lambda: events(client, namespace), lambda found: found[0].get("series", {}).get("count") == 10
        )
    assert event["regarding"]["uid"] == config_map.metadata.uid
    assert event["reportingController"] == "example.dev/tester"
    assert event["action"] == "Testing"
    assert len(event["note"].encode()) <= 1024


async def test_what_was_noted_last_is_there_after_a_stop(client: Client, namespace: str) -> None:
    recorder = EventRecorder(client, "example.dev/tester", limits=Limits(flush=timedelta(seconds=60)))
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": "", "uid": ""}
    async with running(recorder.run()):
        await asyncio.sleep(0)
        for number in range(20):
            recorder.event(about, "Normal", "Stopping", f"word {number}")
    assert len(await events(client, namespace)) == 20
