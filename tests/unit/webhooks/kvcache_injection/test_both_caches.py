"""A Pod that asks for a pool and matches a CacheBackend, too: one connector, and it is the pool's."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.adapters.registry import load_adapters
from inferencecache.webhooks.injection import Injection, Outcome, inject
from inferencecache.webhooks.pods import view_of
from tests.unit.webhooks.kvcache_injection.pools import PREFIX, Json, injected, pod
from tests.unit.webhooks.stand_ins import SETTINGS, backend_from


def wired(given: Json, **integration: Any) -> Injection:
    """What the webhook of CacheBackends makes of a Pod."""
    backend = backend_from(
        {
            "metadata": {"name": "kv", "namespace": "team-a", "uid": "u"},
            "spec": {
                "runtime": "VLLM",
                "type": "LMCache",
                "observation": {"modelID": "m"},
                "integration": integration,
                "engineSelector": {"matchLabels": {"app": "chat"}},
            },
        }
    )
    return inject(given, view_of(given), "team-a", [backend], load_adapters()[0], SETTINGS)


@pytest.fixture
def both() -> Json:
    done = injected(pod()).pod
    done["metadata"]["labels"]["app"] = "chat"
    return done


def test_the_engine_is_left_to_the_pool_and_the_reason_names_the_label(both: Json) -> None:
    done = wired(both)
    assert (done.outcome, done.reason, done.backend) == (Outcome.UNWIRED, "kv_cache_pool", "team-a/kv")
    assert f"{PREFIX}inject" in done.message
    assert "remove the label" in done.message
    assert done.pod == both


def test_a_backend_that_only_listens_adds_its_subscriber_and_nothing_to_the_engine(both: Json) -> None:
    done = wired(both, mode="EventsOnly")
    assert done.outcome is Outcome.WIRED
    assert done.pod["spec"]["containers"][0] == both["spec"]["containers"][0]
    assert len(done.pod["spec"]["containers"]) == 2


def test_without_the_label_the_backend_wires_as_ever(both: Json) -> None:
    both["metadata"]["labels"][f"{PREFIX}inject"] = "false"
    assert wired(both).outcome is Outcome.WIRED
