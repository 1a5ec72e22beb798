"""CacheBackends with managed stores, and engines for them, as a user would write them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from e2e.world import ENGINE_IMAGE, STORES_IMAGE, Manifest, World, ask, until

MODEL: Final = "fake/e2e"
BLOCK_SIZE: Final = 16
PROMPT: Final = "You are a helpful assistant. Answer in the language of the question, and say so if you do not know. "

SIDECAR: Final = "kvevent-subscriber"
SMALL: Final = {"requests": {"memory": "64Mi"}, "limits": {"memory": "512Mi"}}


@dataclass(frozen=True)
class Pairing:
    """An engine and the managed store behind its cache."""

    name: str
    runtime: str
    provider: str
    block: str
    container: str
    http_port: int
    scheme: str
    protocol: str
    replicas: int = 2
    host_network: bool = False

    def backend(self, **spec: Any) -> Manifest:
        """The CacheBackend."""
        lmcache: Manifest = {"hostMemory": {"capacity": "1Gi"}}
        if self.runtime == "SGLang":
            lmcache["workerImage"] = STORES_IMAGE
        integration = {"integration": {"engineHostNetwork": True}} if self.host_network else {}
        return {
            "apiVersion": "inferencecache.io/v1alpha1",
            "kind": "CacheBackend",
            "metadata": {"name": self.name},
            "spec": {
                "runtime": self.runtime,
                "type": "LMCache",
                "lmCache": lmcache,
                "remoteStorage": {
                    "provider": self.provider,
                    "ownership": "Managed",
                    self.block: {"image": STORES_IMAGE, "resources": SMALL},
                },
                "observation": {"modelID": MODEL},
                "engineSelector": {"matchLabels": {"app": self.name}},
                **integration,
                **spec,
            },
        }

    def engine(self, name: str = "engine", *, args: tuple[str, ...] = ("serve", MODEL), replicas: int = 0) -> Manifest:
        """The Deployment of its engines; theirs is what the webhook adds to."""
        fake = (
            f"--no-repeat --encoding map --block-size {BLOCK_SIZE} --model {MODEL} --metrics {self.scheme}"
            f" --http-bind-address :{self.http_port} --replay tcp://0.0.0.0:5558"
        )
        container = {
            "name": self.container,
            "image": ENGINE_IMAGE,
            "args": list(args),
            "env": [{"name": "FAKE_ENGINE_ARGS", "value": fake}],
            "ports": [{"containerPort": self.http_port}],
            "readinessProbe": {"httpGet": {"path": "/v1/models", "port": self.http_port}, "periodSeconds": 1},
        }
        labels = {"app": self.name}
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas or self.replicas,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
                },
            },
        }

    def prompt(self, pod: Manifest, text: str) -> None:
        """Let an engine answer, after which its cache holds the prompt."""
        ask(f"http://{pod['status']['podIP']}:{self.http_port}/v1/completions", {"model": MODEL, "prompt": text})

    def wiring(self, world: World, pod: Manifest) -> Manifest:
        """What an engine was given, as it said itself."""
        first, _, _ = world.logs(pod["metadata"]["name"], self.container).partition("\n")
        found: Manifest = json.loads(first)
        return found

    def selector(self) -> str:
        """Of its engines."""
        return f"app={self.name}"


REDIS: Final = Pairing("redis", "SGLang", "Redis", "redis", "sglang", 30000, "sglang", "resp")
LMCACHE: Final = Pairing("lmcache", "VLLM", "LMCacheServer", "lmCacheServer", "vllm", 8000, "vllm", "lm")
MOONCAKE: Final = Pairing(
    "mooncake", "VLLM", "Mooncake", "mooncake", "vllm", 8000, "vllm", "mooncakestore", replicas=1, host_network=True
)


def endpoint_of(world: World, backend: str) -> str:
    """Where its store is reached, once it says so. Engines that come earlier are not wired."""
    return until(lambda: str(world.get("cachebackend", backend).get("status", {}).get("endpoint", "")))


def engines_of(world: World, pairing: Pairing, count: int = 0) -> list[Manifest]:
    """Its engines, once they are all ready and their sidecars listen: what an engine publishes before, nobody hears."""

    def ready() -> list[Manifest]:
        pods = world.ready_pods(pairing.selector())
        assert len(pods) == (count or pairing.replicas), [pod["metadata"]["name"] for pod in pods]
        for pod in pods:
            if any(container["name"] == SIDECAR for container in pod["spec"]["containers"]):
                assert "subscribed to engine KV events" in world.logs(pod["metadata"]["name"], SIDECAR)
        return pods

    return until(ready)


def routed(world: World, pairing: Pairing, prompt: str, server: str = "") -> str:
    """The replica that the server has found the whole prompt at; an assertion shows any other answer."""
    answer = world.lookup(MODEL, pairing.scheme, prompt, server)
    assert answer.get("reasonCode") == "PREFIX_MATCH", answer
    best = answer["replicaScores"][0]
    assert best["matchedTokens"] == len(prompt) // BLOCK_SIZE * BLOCK_SIZE, answer
    return str(best["replicaId"])
