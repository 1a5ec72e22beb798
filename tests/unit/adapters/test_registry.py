"""Registries: first match wins, errors name what was asked, a broken plugin costs only itself."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from inferencecache.adapters import DEFAULT_POLICY_SERVER
from inferencecache.adapters.binding import Binding, UnknownProvider, binding_for
from inferencecache.adapters.registry import (
    NoAdapter,
    RuntimeRegistry,
    Settings,
    StorageRegistry,
    load_adapters,
)
from inferencecache.adapters.subscriber import subscriber_container
from inferencecache.api.cachebackend import RemoteStorage
from tests.unit.adapters.objects import backend


class Fake:
    """Serves one runtime id."""

    def __init__(self, runtime_id: str = "reference") -> None:
        self.runtime_id = runtime_id

    def supports(self, runtime_id: str, _: Any) -> bool:
        return runtime_id == self.runtime_id


def test_the_first_that_matches_serves() -> None:
    registry, first = RuntimeRegistry(), Fake("b")
    for adapter in (None, Fake("a"), first, Fake("b")):
        registry.register(adapter)
    found: object = registry.select("b", backend())
    assert found is first
    assert registry.supported_pairs() == []


def test_no_match_names_what_was_asked() -> None:
    for registry in (RuntimeRegistry(), load_adapters()[0]):
        with pytest.raises(NoAdapter, match=r"vllm.*SGLangHiCache"):
            registry.select("vllm", backend(type="SGLangHiCache"))
    with pytest.raises(NoAdapter):
        load_adapters()[0].select("vllm", None)
    with pytest.raises(NoAdapter, match=r"Tape.*Managed"):
        load_adapters()[1].select(RemoteStorage(provider="Tape", ownership="Managed"))
    with pytest.raises(NoAdapter):
        StorageRegistry().select(None)


def test_all_built_in_pairs_and_stores_are_found() -> None:
    runtimes, storage = load_adapters()
    assert set(runtimes.supported_pairs()) >= {
        ("vllm", "LMCache"),
        ("sglang", "LMCache"),
        ("sglang", "SGLangHiCache"),
    }
    for provider in ("Redis", "LMCacheServer", "Mooncake"):
        for ownership in ("Managed", "External"):
            assert storage.select(RemoteStorage(provider=provider, ownership=ownership))


def test_a_broken_plugin_is_reported_by_name_and_the_others_load() -> None:
    here = __name__
    plugins = [
        EntryPoint("missing", "no_such_module_at_all", "g"),
        EntryPoint("shapeless", "json:dumps", "g"),
        EntryPoint("fine", f"{here}:Fake", "g"),
        EntryPoint("module", "json", "g"),
    ]
    registry = RuntimeRegistry()
    assert registry.load_plugins(plugins) == ["missing", "shapeless"]
    assert isinstance(registry.select("reference", backend()), Fake)


def test_binding_keeps_the_endpoint_it_is_given() -> None:
    storage = RemoteStorage(provider="LMCacheServer", ownership="External", endpoint="  cache:1  ")
    assert binding_for(storage, "cache:1") == Binding("lm", "cache:1")
    assert binding_for(None, "cache:1") is None
    with pytest.raises(UnknownProvider, match="Tape"):
        binding_for(RemoteStorage(provider="Tape"), "")


@pytest.mark.parametrize(("mode", "ignores"), [("Offload", True), ("EventsOnly", False)])
def test_subscriber(mode: str, ignores: bool) -> None:
    wanted = backend(observation={"modelID": "m"}, integration={"mode": mode})
    sidecar = subscriber_container(wanted, Settings("image:1", ""), hash_scheme="sglang")
    assert sidecar is not None
    assert f"--server={DEFAULT_POLICY_SERVER}" in sidecar["args"]
    assert "--hash-scheme=sglang" in sidecar["args"]
    assert any(arg.startswith("--ignore-block-removed") for arg in sidecar["args"]) is ignores
    assert subscriber_container(wanted, Settings(), hash_scheme="vllm") is None
    assert subscriber_container(backend(), Settings("image:1"), hash_scheme="vllm") is None
