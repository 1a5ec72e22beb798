"""From a declared cache to a routed request: store, wiring, events, readiness, and the replica that has the prefix."""

from __future__ import annotations

import json

import pytest

from e2e.backends import BLOCK_SIZE, LMCACHE, MODEL, MOONCAKE, PROMPT, REDIS, Pairing, endpoint_of, engines_of, routed
from e2e.world import World, has_condition, until


@pytest.mark.parametrize("pairing", [REDIS, LMCACHE, MOONCAKE], ids=lambda pairing: pairing.name)
def test_a_declared_cache_becomes_ready_and_finds_the_replica_that_holds_a_prefix(
    world: World, pairing: Pairing
) -> None:
    world.apply(pairing.backend())
    endpoint = endpoint_of(world, pairing.name)
    world.rolled_out(pairing.name)
    world.apply(pairing.engine())
    pods = engines_of(world, pairing)

    # Wired: what the running engine was really given, and by whom.
    for pod in pods:
        given = pairing.wiring(world, pod)
        if pairing is REDIS:
            assert "--enable-lmcache" in given["args"]
            worker = world.logs(pod["metadata"]["name"], "lmcache-mp-worker")
            assert f"{endpoint} answers +PONG" in worker
        else:
            connector = json.loads(given["args"][given["args"].index("--kv-transfer-config") + 1])
            assert connector["kv_connector"] == "LMCacheConnectorV1"
            assert given["env"]["LMCACHE_REMOTE_URL"] == f"{pairing.protocol}://{endpoint}"
        assert pod["metadata"]["annotations"]["inferencecache.io/injected-by"] == f"{world.namespace}/{pairing.name}"
        assert bool(pod["spec"].get("hostNetwork")) is pairing.host_network
    until(lambda: has_condition(world.get("cachebackend", pairing.name), "Ready", "False", "AwaitingFirstKVEvent"))

    # Heard: a prompt at one engine is found there, and at no other.
    holder, *others = pods
    prompt = f"{world.namespace} {PROMPT * 4}"
    pairing.prompt(holder, prompt)
    assert until(lambda: routed(world, pairing, prompt)) == holder["metadata"]["name"]
    for other in others:
        further = f"{other['metadata']['name']} {PROMPT * 4}"
        pairing.prompt(other, further)
        assert until(lambda prompt=further: routed(world, pairing, prompt)) == other["metadata"]["name"]
    assert routed(world, pairing, prompt) == holder["metadata"]["name"]

    # Told: the backend is ready, and says of its engines what is so.
    backend = until(
        lambda: has_condition(found := world.get("cachebackend", pairing.name), "Ready", "True") and found, within=180
    )
    assert has_condition(backend, "FunctionalProbeOK", "True")
    status = backend["status"]
    assert status["matchedEnginePods"] == len(pods)
    assert status["firstKVEventObservedAt"]

    def all_held() -> bool:
        held = world.get("cachebackend", pairing.name)["status"]["indexParticipation"].get("prefixCount", 0)
        assert held >= len(pods) * (len(prompt) // BLOCK_SIZE), held
        return True

    until(all_held)  # the index is looked at every half minute, and may have been between two prompts
    assert MODEL in json.dumps(backend["spec"])


def test_an_engine_that_came_before_its_store_is_counted_as_unwired_and_wired_by_being_made_anew(world: World) -> None:
    world.apply(LMCACHE.engine(replicas=1))
    (early,) = engines_of(world, LMCACHE, 1)
    world.apply(LMCACHE.backend())
    endpoint_of(world, LMCACHE.name)
    assert "inferencecache.io/injected-by" not in early["metadata"].get("annotations", {})
    assert "--kv-transfer-config" not in LMCACHE.wiring(world, early)["args"]

    world.kubectl("rollout", "restart", "deployment/engine")
    world.rolled_out("engine")
    (late,) = engines_of(world, LMCACHE, 1)
    assert "--kv-transfer-config" in LMCACHE.wiring(world, late)["args"]


def test_a_deleted_backend_takes_its_store_along_and_leaves_its_engines(world: World) -> None:
    world.apply(LMCACHE.backend())
    endpoint_of(world, LMCACHE.name)
    world.apply(LMCACHE.engine(replicas=1))
    (engine,) = engines_of(world, LMCACHE, 1)

    world.delete("cachebackend", LMCACHE.name)

    until(
        lambda: (
            not world.list("deployments") or [d["metadata"]["name"] for d in world.list("deployments")] == ["engine"]
        )
    )
    until(lambda: not world.list("services"))
    assert [pod["metadata"]["uid"] for pod in world.ready_pods(LMCACHE.selector())] == [engine["metadata"]["uid"]]
