"""The store's client inside an engine: its configuration as a file (vLLM family) and as variables (SGLang).

Every key is written, also where the engine has a default: some of those defaults are gigabytes of host memory that no
resource request accounts for. The client lends no memory (a segment of 0), filters no devices (an empty name stands for
all of them, whatever a host calls its own), and stages transfers in 128 MiB (spec 10 §12).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

_METADATA: Final = "P2PHANDSHAKE"
_STAGING_BYTES: Final = 128 * 2**20

TENANT_VARIABLE: Final = "MOONCAKE_TENANT_ID"
METRICS: Final = ("MC_TE_METRIC", "MC_STORE_CLIENT_METRIC_BANDWIDTH")
"""Switched on unless the container says otherwise; they change no result."""

VARIABLES: Final = (
    "MOONCAKE_MASTER",
    "MOONCAKE_TE_META_DATA_SERVER",
    "MOONCAKE_PROTOCOL",
    "MOONCAKE_DEVICE",
    "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "MOONCAKE_LOCAL_HOSTNAME",
    TENANT_VARIABLE,
)
"""The variables by which SGLang is told."""


@dataclass(frozen=True, slots=True)
class StoreClient:
    """Where and how an engine reaches the store; `tenant` is None on a store that knows no tenants."""

    endpoint: str
    transport: str
    tenant: str | None


def document(client: StoreClient) -> str:
    """The configuration file."""
    values: dict[str, Any] = {
        "master_server_address": client.endpoint,
        "metadata_server": _METADATA,
        "protocol": client.transport,
        "device_name": "",
        "global_segment_size": 0,
        "mode": "standalone-store",
        "local_buffer_size": _STAGING_BYTES,
    }
    if client.tenant is not None:
        values["tenant_id"] = client.tenant
    return msgspec.json.encode(values).decode()


def variables(client: StoreClient) -> list[dict[str, Any]]:
    """The configuration as entries of a container's `env`; one of them is left out for a client without a tenant."""
    sources: tuple[dict[str, Any] | None, ...] = (
        {"value": client.endpoint},
        {"value": _METADATA},
        {"value": client.transport},
        {"value": ""},
        {"value": "0"},
        {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"value": client.tenant} if client.tenant is not None else None,
    )
    return [{"name": name, **source} for name, source in zip(VARIABLES, sources, strict=True) if source is not None]
