"""Status writes against a real API server, with others writing the same list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from examples.echo import Widget
from inferencecache.kube import Client, Key, NotFound, ObjectMeta, Resource, View, set_condition, write_status
from tests.integration.kube.widgets import install_widgets, widget

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Status(View, frozen=True):
    conditions: tuple[dict[str, Any], ...] = ()


class Stated(View, frozen=True):
    """A Widget of which the status is read as well."""

    resource: ClassVar[Resource] = Widget.resource
    metadata: ObjectMeta = ObjectMeta()
    status: Status = Status()


def setting(name: str) -> Callable[[Stated], dict[str, Any] | None]:
    def decide(obj: Stated) -> dict[str, Any] | None:
        after = set_condition(obj.status.conditions, name, "True", reason="Set", now=NOW)
        return {"conditions": after} if after != list(obj.status.conditions) else None

    return decide


@pytest.fixture
async def stated(client: Client, namespace: str) -> Stated:
    await install_widgets(client)
    key = Key(namespace, "w")
    await client.create(widget(key, "hello"))
    return await client.get(Stated, key)


def types(obj: Stated) -> set[str]:
    return {condition["type"] for condition in obj.status.conditions}


async def test_of_two_writers_that_decided_on_the_same_version_neither_loses_its_condition(
    client: Client, stated: Stated
) -> None:
    for round_ in range(10):
        seen = await client.get(Stated, Key.of(stated))
        names = {f"A{round_}", f"B{round_}"}
        written = await asyncio.gather(*(write_status(client, seen, setting(name)) for name in names))
        assert all(written)
        assert types(await client.get(Stated, Key.of(stated))) == types(seen) | names


async def test_what_is_said_already_sends_nothing(client: Client, stated: Stated) -> None:
    assert await write_status(client, stated, setting("Ready")) is not None
    said = await client.get(Stated, Key.of(stated))
    assert await write_status(client, said, setting("Ready")) is None
    assert (await client.get(Stated, Key.of(stated))).metadata.resource_version == said.metadata.resource_version


async def test_a_stale_view_of_what_is_said_already_costs_a_look_and_writes_nothing(
    client: Client, stated: Stated
) -> None:
    await write_status(client, stated, setting("Ready"))
    said = await client.get(Stated, Key.of(stated))
    assert await write_status(client, stated, setting("Ready")) is None
    assert (await client.get(Stated, Key.of(stated))).metadata.resource_version == said.metadata.resource_version


async def test_a_namesake_does_not_get_the_status_of_its_predecessor(client: Client, stated: Stated) -> None:
    key = Key.of(stated)
    await client.delete(Widget.resource, key)
    with pytest.raises(NotFound):
        await write_status(client, stated, setting("Ready"))
    await client.create(widget(key, "anew"))
    with pytest.raises(NotFound, match="made anew"):
        await write_status(client, stated, setting("Ready"))
    assert (await client.get(Stated, key)).status.conditions == ()
