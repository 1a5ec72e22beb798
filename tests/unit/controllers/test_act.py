"""What a look at children costs: nothing is rendered anew while neither the backend nor a child has changed."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from inferencecache.adapters.registry import load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend import act
from inferencecache.controllers.cachebackend.act import CHILD_KINDS, Actor, Outcome
from inferencecache.controllers.cachebackend.plan import plan_for
from inferencecache.kube.errors import NotFound
from inferencecache.kube.informer import Informer
from inferencecache.kube.kinds import Deployment, Service
from inferencecache.kube.resource import Key, Kind, Manifest, Resource
from tests.unit.controllers.backends import MANAGED, backend

KEY = Key("ns", "kv")
KINDS = {kind.resource.kind: kind for kind in CHILD_KINDS}


class World:
    """As much of an API server as children take, and informers that are told of each write at once."""

    field_manager = "inferencecache-controller"

    def __init__(self) -> None:
        self.backend = backend(remoteStorage=MANAGED)
        self.versions = itertools.count(1)
        self.stored: dict[str, Manifest] = {}
        self.requests: list[str] = []
        self.informers: dict[type[Kind], Informer[Any]] = {kind: Informer(self, kind) for kind in CHILD_KINDS}  # type: ignore[arg-type]
        self.actor = Actor(self, self.informers)  # type: ignore[arg-type]

    async def look(self) -> Outcome:
        return await self.actor.act(self.backend, plan_for(self.backend, *load_adapters()))

    def changed(self, kind: type[Kind], **spec: Any) -> None:
        """Somebody changes a child."""
        before = self.stored[kind.resource.kind]
        self._store({**before, "spec": {**before["spec"], **spec}})

    def _store(self, manifest: Manifest) -> Manifest:
        metadata = {**manifest["metadata"], "uid": manifest["kind"], "resourceVersion": str(next(self.versions))}
        self.stored[manifest["kind"]] = {**manifest, "metadata": metadata}
        kind = KINDS[manifest["kind"]]
        content: Any = self.informers[kind]._content
        content.put(msgspec.convert(self.stored[manifest["kind"]], kind))
        return self.stored[manifest["kind"]]

    # ------------------------------------------------------------------------------------------------ the API server

    async def get(self, kind: type[Kind], key: Key) -> CacheBackend:
        self.requests.append("GET CacheBackend")
        return self.backend

    async def get_manifest(self, resource: Resource, key: Key) -> Manifest:
        self.requests.append(f"GET {resource.kind}")
        if resource.kind not in self.stored:
            raise NotFound(str(key), status=404)
        return self.stored[resource.kind]

    async def locate(self, manifest: Manifest) -> tuple[Resource, Key]:
        return KINDS[manifest["kind"]].resource, KEY

    async def apply_new(self, manifest: Manifest) -> Manifest:
        self.requests.append(f"APPLY {manifest['kind']}")
        return self._store(manifest)

    async def patch(self, resource: Resource, key: Key, patch: Manifest) -> None:
        self.requests.append(f"PATCH {resource.kind}")

    async def apply(self, manifest: Manifest) -> Manifest:
        self.requests.append(f"APPLY {manifest['kind']}")
        return self._store(manifest)


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each rendering of the children."""
    made: list[str] = []
    real = act.children_for

    def counted(*arguments: Any) -> Any:
        made.append("rendered")
        return real(*arguments)

    monkeypatch.setattr(act, "children_for", counted)
    return made


async def test_a_look_that_finds_nothing_new_renders_nothing_and_tells_the_same(rendered: list[str]) -> None:
    world = World()
    born = await world.look()
    assert world.requests == ["GET CacheBackend", "APPLY Deployment", "APPLY Service"]
    compared = await world.look()
    assert rendered
    rendered.clear()
    again = await world.look()
    assert rendered == []
    assert (again.rollout, again.endpoint) == (compared.rollout, compared.endpoint) == (born.rollout, born.endpoint)
    assert again.workload == compared.workload
    assert len(world.requests) == 3


@pytest.mark.parametrize(
    ("kind", "spec"),
    [(Deployment, {"replicas": 0}), (Service, {"ports": [{"port": 1}]})],
    ids=["Deployment", "Service"],
)
async def test_a_child_that_somebody_changed_is_put_right_after_any_number_of_looks(
    kind: type[Kind], spec: dict[str, Any]
) -> None:
    world = World()
    for _ in range(4):
        await world.look()
    right = world.stored[kind.resource.kind]["spec"]
    world.changed(kind, **spec)
    await world.look()
    assert world.requests[-1] == f"APPLY {kind.resource.kind}"
    assert world.stored[kind.resource.kind]["spec"] == right


async def test_a_change_of_the_backend_is_compared_anew(rendered: list[str]) -> None:
    world = World()
    for _ in range(3):
        await world.look()
    rendered.clear()
    metadata = world.backend.metadata.model_copy(update={"resource_version": "99"})
    world.backend = world.backend.model_copy(update={"metadata": metadata})
    await world.look()
    assert rendered


async def test_nothing_is_remembered_of_a_backend_that_is_gone(rendered: list[str]) -> None:
    world = World()
    for _ in range(3):
        await world.look()
    world.actor.forget(KEY)
    rendered.clear()
    await world.look()
    assert rendered
