"""What is told on engine Pods, and about which of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.engine_pods import EnginePodReconciler, UnwiredTeller, is_annotated, owner_key
from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client
from inferencecache.kube.errors import NotFound, TransportError
from inferencecache.kube.events import EventRecorder
from inferencecache.kube.informer import Change
from inferencecache.kube.kinds import Pod, PodMeta, PodStatus
from inferencecache.kube.resource import Key
from inferencecache.webhooks.unwired import UnwiredMemo
from tests.unit.controllers.backends import backend

BY, UID = "inferencecache.io/injected-by", "inferencecache.io/injected-by-uid"
WIRED = {BY: "ns/kv", UID: "u-1"}
SKIPPED = {
    "inferencecache.io/skip-inject": "true",
    "inferencecache.io/inject-skipped": "skip-inject-annotation",
}


def pod(annotations: dict[str, str] | None = None, *, phase: str = "Pending", uid: str = "p-1") -> Pod:
    return Pod(
        metadata=PodMeta(name="p", namespace="ns", uid=uid, annotations=annotations or {}),
        status=PodStatus(phase=phase),
    )


@dataclass
class World:
    """A cache, an API server and a recorder, in memory; `reads` counts what was asked of the API server."""

    pod: Pod | None = None
    cached: CacheBackend | None = None
    live: CacheBackend | Exception | None = None
    reads: int = 0
    told: list[tuple[str, str, str]] = field(default_factory=list)

    def reconciler(self) -> EnginePodReconciler:
        return EnginePodReconciler(
            client=cast(Client, self), cache=cast(Cache, _Cached(self)), recorder=cast(EventRecorder, self)
        )

    async def get(self, kind: Any, key: Key) -> CacheBackend:
        self.reads += 1
        if isinstance(self.live, Exception):
            raise self.live
        if self.live is None:
            raise NotFound(f"{key} is gone", status=404)
        return self.live

    def event(self, regarding: Any, type_: str, reason: str, note: str, *, related: Any = None) -> None:
        self.told.append((type_, reason, note))


@dataclass
class _Cached:
    world: World

    def get(self, kind: Any, key: Key) -> Any:
        return self.world.pod if kind is Pod else self.world.cached


@pytest.mark.parametrize(
    "text", ["", "a", "a/", "/b", "a/b/c", "A/b", "a/B", "a.b/c", "a/-b", "a b/c", "a/" + "b" * 254]
)
def test_what_is_no_reference(text: str) -> None:
    assert owner_key(text) is None


def test_a_reference() -> None:
    assert owner_key("team-a/kv.one") == Key("team-a", "kv.one")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (Change(None, pod(WIRED)), True),
        (Change(None, pod(SKIPPED)), True),
        (Change(None, pod(WIRED), initial=True), True),
        (Change(None, pod(WIRED, phase="Running"), initial=True), False),
        (Change(pod(WIRED), pod(WIRED)), False),
        (Change(pod(WIRED), None), False),
        (Change(None, pod()), False),
        (Change(None, pod({BY: ""})), False),
        (Change(None, pod({**SKIPPED, "inferencecache.io/skip-inject": "false"})), False),
        (Change(None, pod({"inferencecache.io/inject-skipped": "skip-inject-annotation"})), False),
    ],
)
def test_which_pods_are_looked_at(change: Change[Pod], told: bool) -> None:
    assert is_annotated(change) is told


@pytest.mark.parametrize(
    ("world", "reasons", "reads"),
    [
        (World(None), [], 0),
        (World(pod(WIRED), cached=backend()), ["InjectedByCacheBackend"], 0),
        (World(pod(WIRED), live=backend()), ["InjectedByCacheBackend"], 1),
        (World(pod({**WIRED, UID: "u-2"}), cached=backend(), live=backend()), [], 1),
        (World(pod(WIRED)), [], 1),
        (World(pod({BY: "ns/kv"}), cached=backend()), [], 0),
        (World(pod({**WIRED, BY: "nonsense"}), cached=backend()), [], 0),
        (World(pod(SKIPPED)), ["SkippedByOperator"], 0),
        (World(pod({**SKIPPED, **WIRED}), cached=backend()), ["InjectedByCacheBackend"], 0),
        (World(pod()), [], 0),
    ],
)
async def test_what_is_told_about_a_pod_and_what_it_costs(world: World, reasons: list[str], reads: int) -> None:
    reconciler = world.reconciler()
    for _ in range(2):
        await reconciler.reconcile(Key("ns", "p"))
    assert [reason for _, reason, _ in world.told] == reasons, "once, however often it is looked at"
    assert world.reads == (reads if reasons else 2 * reads)
    assert all(type_ == "Normal" for type_, _, _ in world.told)


async def test_a_backend_that_cannot_be_read_is_tried_again() -> None:
    world = World(pod(WIRED), live=TransportError("no route"))
    reconciler = world.reconciler()
    with pytest.raises(TransportError):
        await reconciler.reconcile(Key("ns", "p"))
    world.live = backend()
    await reconciler.reconcile(Key("ns", "p"))
    assert [reason for _, reason, _ in world.told] == ["InjectedByCacheBackend"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (Change(None, pod()), 1),
        (Change(None, pod(), initial=True), 0),
        (Change(pod(), pod()), 0),
        (Change(pod(), None), 0),
    ],
)
def test_a_pod_left_unwired_is_told_why_once_it_exists(change: Change[Pod], told: int) -> None:
    """Decision A12."""
    memo, world = UnwiredMemo(), World()
    memo.note(
        namespace="ns", name="p", generate_name="", labels={}, reason="no_endpoint", message="why", backend="ns/kv"
    )
    tell = UnwiredTeller(memo, cast(EventRecorder, world))
    for _ in range(2):
        tell(change)
    assert world.told == [("Warning", "NotInjected", "not wired to CacheBackend ns/kv: no_endpoint: why")] * told
