"""What the pure functions of the operator cost: judging a backend, rendering its children, wiring a Pod.

    python -m bench.rendering [--rounds N]

CPU time for each, as multiples of two baselines of the same run: a JSON round trip of the object at hand (stdlib), and
for judging also the decoding of the model alone (pydantic). All are measured in turn, in batches, and the median batch
counts. A last table compares Pods that no backend selects, and Pods that are wired, with the built-in adapters and with
a hundred more in front of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from inferencecache.adapters.registry import RuntimeRegistry, Settings, load_adapters
from inferencecache.adapters.runtimes.vllm_lmcache import VLLMLMCache
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.defaulting import default_cache_backend
from inferencecache.api.schema import apply_defaults
from inferencecache.controllers.cachebackend.children import children_for
from inferencecache.controllers.cachebackend.plan import plan_for
from inferencecache.controllers.cachebackend.published import as_published
from inferencecache.webhooks.injection import Outcome, inject
from inferencecache.webhooks.patches import diff
from inferencecache.webhooks.pods import view_of
from inferencecache.webhooks.validation import validate_cache_backend

ROOT: Final = Path(__file__).parents[1]
BATCH: Final = 20
MORE_ADAPTERS: Final = 100
SAMPLES: Final = {
    "host-only": "vllm",
    "lmcache": "vllm",
    "mooncake": "vllm",
    "sglang": "sglang",
    "sglang-hicache": "sglang",
    "events-only": "vllm",
}
"""Samples, and the engine each wires."""
SETTINGS: Final = Settings(kvevent_subscriber_image="inferencecache:bench")

Manifest = dict[str, Any]


class ElsewhereAdapter:
    """An adapter of another engine, as a third party would add."""

    def supports(self, runtime_id: str, backend: CacheBackend) -> bool:
        return runtime_id == "elsewhere"


def stored(sample: str) -> Manifest:
    """A sample as the API server hands it to the webhooks."""
    raw = yaml.safe_load((ROOT / "manifests" / "samples" / f"cachebackend-{sample}.yaml").read_text())
    raw["metadata"] |= {"namespace": "default", "uid": "6f3a1c1e-8f4e-4c7e-9a51-2f6f3f0a7d11"}
    return apply_defaults(CacheBackend, raw)


def engine(name: str, labels: Manifest) -> Manifest:
    """An engine Pod with the labels a backend selects."""
    pod: Manifest = yaml.safe_load((ROOT / "docs" / "engines" / f"engine-{name}.yaml").read_text())
    pod["metadata"]["labels"] = dict(labels)
    return pod


def round_trip(value: Any) -> Callable[[], Any]:
    """Through JSON and back."""
    return lambda: json.loads(json.dumps(value))


def judge(raw: Manifest, runtimes: RuntimeRegistry) -> None:
    """What both webhooks of a CacheBackend do with it."""
    backend = CacheBackend.decode(default_cache_backend(raw))
    assert not validate_cache_backend(backend, runtimes=runtimes).violations


def wire(pod: Manifest, backends: list[CacheBackend], runtimes: RuntimeRegistry, wanted: Outcome) -> None:
    """What the Pod webhook does between reading a review and answering it."""
    done = inject(pod, view_of(pod), "default", backends, runtimes, SETTINGS)
    assert done.outcome is wanted, done.message
    diff(pod, done.pod)


def measured(subjects: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds of CPU for one call of each, the median of interleaved batches."""
    taken: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            begin = time.process_time()
            for _ in range(BATCH):
                subject()
            taken[name].append((time.process_time() - begin) / BATCH)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def by_shape(rounds: int) -> None:
    """The table of the samples."""
    runtimes, storage = load_adapters()
    print(f"{'CPU us':16}{'json':>7}{'decode':>8}{'judge':>8}{'x decode':>10}{'render':>8}{'x json':>8}", end="")
    print(f"{'Pod json':>10}{'wire':>8}{'x json':>8}")
    for sample, name in SAMPLES.items():
        raw = stored(sample)
        backend = as_published(CacheBackend.decode(raw), runtimes, storage)
        pod = engine(name, backend.selector)

        def render(backend: CacheBackend = backend) -> None:
            store = plan_for(backend, runtimes, storage).store
            if store is not None:
                children_for(backend, store, live_replicas=None)

        cost = measured(
            {
                "json": round_trip(raw),
                "decode": lambda raw=raw: CacheBackend.decode(raw),
                "judge": lambda raw=raw: judge(raw, runtimes),
                "render": render,
                "pod json": round_trip(pod),
                "wire": lambda pod=pod, backend=backend: wire(pod, [backend], runtimes, Outcome.WIRED),
            },
            rounds,
        )
        us = {what: seconds * 1e6 for what, seconds in cost.items()}
        print(
            f"{sample:16}{us['json']:7.0f}{us['decode']:8.0f}{us['judge']:8.0f}{us['judge'] / us['decode']:9.2f}x"
            f"{us['render']:8.0f}{us['render'] / us['json']:7.2f}x"
            f"{us['pod json']:10.0f}{us['wire']:8.0f}{us['wire'] / us['pod json']:7.2f}x"
        )


def by_adapters(rounds: int) -> None:
    """The table of the registry's size."""
    built_in, storage = load_adapters()
    crowded = RuntimeRegistry()
    for _ in range(MORE_ADAPTERS):
        crowded.register(ElsewhereAdapter())
    crowded.register(VLLMLMCache())
    backend = as_published(CacheBackend.decode(stored("lmcache")), built_in, storage)
    wired, other = engine("vllm", backend.selector), engine("vllm", {"app": "else"})
    print(f"\n{'CPU us':16}{'built-in':>10}{f'+{MORE_ADAPTERS}':>8}{'ratio':>8}")
    for name, pod, wanted in (("no backend", other, Outcome.UNWIRED), ("wired", wired, Outcome.WIRED)):
        cost = measured(
            {
                "few": lambda pod=pod, wanted=wanted: wire(pod, [backend], built_in, wanted),
                "many": lambda pod=pod, wanted=wanted: wire(pod, [backend], crowded, wanted),
            },
            rounds,
        )
        few, many = cost["few"] * 1e6, cost["many"] * 1e6
        print(f"{name:16}{few:10.1f}{many:8.1f}{many / few:7.2f}x")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help=f"batches of {BATCH} calls of each")
    rounds = parser.parse_args().rounds
    by_shape(rounds)
    by_adapters(rounds)


if __name__ == "__main__":
    main()
