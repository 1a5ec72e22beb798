"""Adapters of third parties: installed as packages of their own, found by their entry points, used like built-in ones.

Each command runs in a process of its own, because registries last as long as their process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

PLUGINS = Path(__file__).parents[2] / "plugins"
SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
BACKEND = {
    "apiVersion": "inferencecache.io/v1alpha1",
    "kind": "CacheBackend",
    "metadata": {"name": "kv"},
    "spec": {
        "runtime": "acme",
        "type": "AcmeCache",
        "remoteStorage": {"provider": "AcmeStore", "ownership": "Managed"},
        "engineSelector": {"matchLabels": {"app": "acme"}},
    },
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "engine", "labels": {"app": "acme"}},
    "spec": {"containers": [{"name": "main", "image": "acme:1"}]},
}


def installed(plugin: str, target: Path) -> Path:
    """A folder with the plugin's wheel unpacked, as installing it there would leave it."""
    build = f"from hatchling.build import build_wheel; print(build_wheel({str(target)!r}))"
    built = subprocess.run(
        [sys.executable, "-c", build], cwd=PLUGINS / plugin, capture_output=True, text=True, check=True, timeout=200
    )
    wheel = target / built.stdout.split()[-1]
    place = target / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed("acme", tmp_path_factory.mktemp("acme"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed("broken", tmp_path_factory.mktemp("broken"))


def run(place: Path, *args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from inferencecache.cli.main import main; main()", *map(str, args)]
    environment = {**os.environ, "PYTHONPATH": str(place)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


def written(path: Path, *manifests: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump_all(manifests))
    return path


def test_a_plugins_runtime_and_store_are_validated_rendered_and_injected(acme: Path, tmp_path: Path) -> None:
    backend = written(tmp_path / "backend.yaml", BACKEND)
    judged = run(acme, "validate", "-f", backend)
    assert (judged.returncode, judged.stdout, judged.stderr) == (0, "", "")

    deployment, service = yaml.safe_load_all(run(acme, "render", "-f", backend).stdout)
    assert deployment["spec"]["template"]["spec"]["containers"][0]["name"] == "acme-store"
    assert service["spec"]["ports"][0]["port"] == 7000

    pod = yaml.safe_load(run(acme, "inject", "-f", backend, "-f", written(tmp_path / "pod.yaml", POD)).stdout)
    assert pod["metadata"]["annotations"]["inferencecache.io/injected-by"] == "default/kv"
    assert pod["spec"]["containers"] == [
        {
            "name": "main",
            "image": "acme:1",
            "args": ["--acme-cache"],
            "env": [{"name": "ACME_STORE", "value": "kv.default.svc.cluster.local:7000"}],
        }
    ]


def test_the_rules_hold_for_a_plugins_pair_as_for_any(acme: Path, tmp_path: Path) -> None:
    spec = BACKEND["spec"] | {
        "remoteStorage": {"provider": "Redis", "ownership": "Managed"},
        "integration": {"engineOverrides": {"suppressArgs": ["--acme-cache"]}},
    }
    result = run(acme, "validate", "-f", written(tmp_path / "backend.yaml", {**BACKEND, "spec": spec}))
    assert [line.partition(": ")[0] for line in result.stdout.splitlines()] == [
        "spec.remoteStorage.provider",
        "spec.integration.engineOverrides.suppressArgs[0]",
    ]
    assert "choose provider AcmeStore" in result.stdout


def test_the_crd_takes_a_plugins_values_only_where_it_is_installed(acme: Path, tmp_path: Path) -> None:
    def enums(place: Path) -> list[list[str]]:
        crds = {crd["spec"]["names"]["kind"]: crd for crd in yaml.safe_load_all(run(place, "crds").stdout)}
        schema = crds["CacheBackend"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        spec = schema["properties"]["spec"]["properties"]
        provider = spec["remoteStorage"]["properties"]["provider"]
        return [spec["runtime"]["enum"], spec["type"]["enum"], provider["enum"]]

    built_in = [["VLLM", "SGLang"], ["LMCache", "SGLangHiCache"], ["Redis", "LMCacheServer", "Mooncake"]]
    assert enums(tmp_path) == built_in
    assert enums(acme) == [
        [*known, new] for known, new in zip(built_in, ("acme", "AcmeCache", "AcmeStore"), strict=True)
    ]
    refused = run(tmp_path, "validate", "-f", written(tmp_path / "backend.yaml", BACKEND))
    assert refused.returncode == 1
    assert 'spec.runtime: Unsupported value: "acme"' in refused.stdout


def test_broken_plugins_are_named_with_their_reason_and_cost_nobody_else(broken: Path) -> None:
    sample = SAMPLES / "cache_v1alpha1_cachebackend.yaml"
    result = run(broken, "render", "-f", sample)
    assert result.returncode == 0
    assert result.stdout == run(broken / "nowhere", "render", "-f", sample).stdout
    for plugin, reason in {
        "unimportable": "a_library_nobody_installed",
        "duplicate-pair": "SecondVLLM wants to serve vllm/LMCache, which is served already",
        "no-adapter": "is no adapter: it has no method `supports`",
        "duplicate-store": "SecondRedis wants to serve Managed Redis, which is served already",
        "other-protocol": 'provider "Redis" speaks resp, not memcache',
    }.items():
        assert any(plugin in line and reason in line for line in result.stderr.splitlines()), (plugin, result.stderr)
