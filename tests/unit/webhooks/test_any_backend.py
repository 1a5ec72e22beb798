"""Whatever a CacheBackend says: defaulting, validation, rendering and injection answer, and a second time alike."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from inferencecache.adapters.registry import load_adapters
from inferencecache.webhooks.injection import Outcome
from inferencecache.webhooks.validation import validate_cache_backend
from tests.unit.api.from_schema import likely_specs, specs
from tests.unit.webhooks.pipeline import admitted, engine_pod, readable, rendered, stored, wired

_KERNELS = st.sampled_from(["auto", "strict", "report-only", "off", "", "nonsense"])
_PODS = st.sampled_from(
    [
        engine_pod(),
        engine_pod("vllm", args=["--model", "m"], env=[{"name": "LMCACHE_CHUNK_SIZE", "value": "64"}]),
        engine_pod("sglang", command=["python3", "-m", "sglang.launch_server"]),
        engine_pod("sglang", args=["--hicache-ratio", "2"]),
        engine_pod(command=["sh", "-c", "vllm serve m"]),
    ]
)


_DASHED_VALUE = {
    "runtime": "VLLM",
    "type": "LMCache",
    "engineSelector": {"matchLabels": {"app": "engine"}},
    "integration": {"engineOverrides": {"args": ["--kv-transfer-config", "-1"]}},
}
"""Admission refuses it (V47), so only an object that was stored past it says this."""


_BOTH_CACHES = {
    "runtime": "SGLang",
    "type": "SGLangHiCache",
    "engineSelector": {"matchLabels": {"app": "engine"}},
    "hiCache": {"sizeGB": 8},
    "integration": {"engineOverrides": {"args": ["--enable-lmcache"]}},
}
"""Admission lets it pass, as the flag is not one of HiCache's own."""


_GIVEN_ANEW = {
    "runtime": "VLLM",
    "type": "LMCache",
    "engineSelector": {"matchLabels": {"app": "engine"}},
    "integration": {
        "engineOverrides": {
            "suppressEnv": ["LMCACHE_CHUNK_SIZE"],
            "env": [{"name": "LMCACHE_CHUNK_SIZE", "value": "64"}, {"name": "MINE", "value": "x"}],
        }
    },
}


@given(st.one_of(likely_specs(), specs()), _KERNELS, _PODS)
@example(_GIVEN_ANEW, "off", engine_pod())
@example(_BOTH_CACHES, "auto", engine_pod())
@example(_DASHED_VALUE, "off", engine_pod("vllm", args=["--model", "m"]))
@settings(max_examples=300)
def test_nothing_raises_and_wiring_converges(spec: dict[str, Any], kernels: str, pod: dict[str, Any]) -> None:
    annotations = {"inferencecache.io/lmcache-kernel-check": kernels}
    backend = readable(stored(spec, annotations=annotations))
    if backend is None:
        return
    validate_cache_backend(backend, runtimes=load_adapters()[0])
    first = wired(pod, backend)
    if first.outcome is not Outcome.WIRED:
        assert first.pod == pod
        return
    again = wired(first.pod, backend)
    assert (again.outcome, again.pod) == (Outcome.WIRED, first.pod)


@given(likely_specs())
@settings(max_examples=200)
def test_whatever_is_admitted_can_be_rendered(spec: dict[str, Any]) -> None:
    backend = admitted(stored(spec))
    if backend is not None:
        names = {child["metadata"]["name"] for child in rendered(backend)}
        assert names <= {"kv"}
