"""What a store offers an engine: a protocol and an address. `None` in place of a binding means host-only."""

from __future__ import annotations

from dataclasses import dataclass

from inferencecache.api.cachebackend import RemoteStorage
from inferencecache.api.endpoint import PROTOCOLS


@dataclass(frozen=True, slots=True)
class Binding:
    """`protocol` is `lm`, `resp` or `mooncakestore`; `endpoint` is trimmed and may still carry a scheme."""

    protocol: str
    endpoint: str = ""


class UnknownProvider(LookupError):
    """A provider that no protocol is known for."""


def protocol_of(storage: RemoteStorage | None) -> str | None:
    """The protocol engines speak to a store, or None for host-only. Raises `UnknownProvider` (spec 04 §1.2)."""
    if storage is None:
        return None
    try:
        return PROTOCOLS[storage.provider]
    except KeyError:
        raise UnknownProvider(
            f'spec.remoteStorage.provider "{storage.provider}" is unknown: use one of {", ".join(sorted(PROTOCOLS))}'
        ) from None


def binding_for(storage: RemoteStorage | None, endpoint: str) -> Binding | None:
    """The binding to a store at exactly this address, or None for host-only. Raises `UnknownProvider`."""
    protocol = protocol_of(storage)
    return None if protocol is None else Binding(protocol, endpoint)
