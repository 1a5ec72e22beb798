"""The engines that can be given a pool: what each is told, by which way, and what of that its owner must not set.

Some of what is told has one place only. A second connector, or another source of the same configuration, would leave
ours present and unread, and the Pod would start, serve and cache nothing. Those keys are refused; everything else of
ours is written over what the container declares (spec 10 §12, §12.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from inferencecache.webhooks.kvcache_injection.launch import Family

DTYPE_FLAG: Final = "--kv-cache-dtype"
HIERARCHICAL_FLAG: Final = "--enable-hierarchical-cache"
DISAGGREGATION_FLAG: Final = "--disaggregation-mode"
OFFLOADING_FLAG: Final = "--kv-offloading-size"
HASH_SEED: Final = "PYTHONHASHSEED"
"""Without it vLLM begins its chains of block hashes at random."""
CONFIG_PATH: Final = "MOONCAKE_CONFIG_PATH"
ASCEND_TRANSPORT: Final = "ascend"

_CONNECTOR_FLAG: Final = "--kv-transfer-config"
_STORAGE_FLAG: Final = "--hicache-storage-backend"
_STORAGE_EXTRA_FLAG: Final = "--hicache-storage-backend-extra-config"


class Vehicle(StrEnum):
    """By which way an engine gets the client's configuration."""

    FILE = "file"
    ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Engine:
    """One engine.

    `connector` is the vLLM family's class of connector; `only_transport` the one transport it accepts, if it is so
    choosy. `refused_flags` and `refused_variables` are the keys its owner must not set, each with what it would do;
    `known_flags` are all flags that this package tells from each other.
    """

    name: str
    family: Family
    vehicle: Vehicle
    refused_flags: Mapping[str, str]
    refused_variables: Mapping[str, str]
    known_flags: tuple[str, ...]
    connector: str = ""
    only_transport: str = ""

    @property
    def reads_loosely(self) -> bool:
        """Whether its parser takes `_` for `-` and dotted suffixes."""
        return self.family is Family.VLLM


_OTHER_SOURCE: Final = "it is another source of the store's configuration, and what is injected would not be read"


def _vllm(name: str, connector: str, only_transport: str = "") -> Engine:
    return Engine(
        name=name,
        family=Family.VLLM,
        vehicle=Vehicle.FILE,
        refused_flags={_CONNECTOR_FLAG: "the container has a KV connector already, and an engine has one"},
        refused_variables={CONFIG_PATH: _OTHER_SOURCE},
        known_flags=(_CONNECTOR_FLAG, DTYPE_FLAG, OFFLOADING_FLAG),
        connector=connector,
        only_transport=only_transport,
    )


VLLM: Final = _vllm("vllm", "MooncakeStoreConnector")
VLLM_ASCEND: Final = _vllm("vllm-ascend", "AscendStoreConnector", ASCEND_TRANSPORT)
SGLANG: Final = Engine(
    name="sglang",
    family=Family.SGLANG,
    vehicle=Vehicle.ENVIRONMENT,
    refused_flags={
        _STORAGE_FLAG: "the container has a storage backend already, and an engine has one",
        _STORAGE_EXTRA_FLAG: _OTHER_SOURCE,
    },
    refused_variables={"SGLANG_HICACHE_MOONCAKE_CONFIG_PATH": _OTHER_SOURCE},
    known_flags=(_STORAGE_FLAG, _STORAGE_EXTRA_FLAG, DTYPE_FLAG, HIERARCHICAL_FLAG, DISAGGREGATION_FLAG),
)

_KV_ROLES: Final = {"": "kv_both", "Prefill": "kv_producer", "Decode": "kv_consumer"}
ROLES: Final = ("Prefill", "Decode")


def connector_arguments(engine: Engine, role: str) -> list[str]:
    """What switches the store on: `role` is Prefill, Decode or empty, and only the vLLM family knows roles."""
    if engine.family is Family.SGLANG:
        return [_STORAGE_FLAG, "mooncake"]
    return [_CONNECTOR_FLAG, f'{{"kv_connector":"{engine.connector}","kv_role":"{_KV_ROLES[role]}"}}']
