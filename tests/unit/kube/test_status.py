"""What a status write says, and when it gives up."""

from __future__ import annotations

import pytest

from inferencecache.kube.errors import Conflict
from inferencecache.kube.kinds import ConfigMap, ObjectMeta
from inferencecache.kube.status import write_status
from tests.unit.kube.apiserver import says, serving

SEEN = ConfigMap(metadata=ObjectMeta(name="c", namespace="n", uid="u", resource_version="5"))
MOVED_ON = says(body={"metadata": {"name": "c", "namespace": "n", "uid": "u", "resourceVersion": "6"}})


async def test_each_write_names_the_version_it_was_decided_on() -> None:
    async with serving(says(409), MOVED_ON, says()) as (server, client):
        await write_status(client, SEEN, lambda obj: {"decided on": obj.metadata.resource_version})
    first, look, second = server.asked
    assert first.path.endswith("/configmaps/c/status")
    assert first.body == {"metadata": {"uid": "u", "resourceVersion": "5"}, "status": {"decided on": "5"}}
    assert look.method == "GET"
    assert second.body == {"metadata": {"uid": "u", "resourceVersion": "6"}, "status": {"decided on": "6"}}


async def test_others_that_write_without_pause_are_an_error() -> None:
    script = [says(409), MOVED_ON] * 4 + [says(409)]
    async with serving(*script) as (server, client):
        with pytest.raises(Conflict):
            await write_status(client, SEEN, lambda _: {"a": 1})
    assert [asked.method for asked in server.asked].count("PATCH") == 5
