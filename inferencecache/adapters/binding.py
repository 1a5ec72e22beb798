"""What a store offers an engine: a protocol and an address. `None` in place of a binding means host-only.

Which protocol goes with which provider is known for the built-in providers; a storage adapter that brings a provider of
its own declares the protocol when it registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from inferencecache.api.cachebackend import RemoteStorage
from inferencecache.api.endpoint import PROTOCOLS


@dataclass(frozen=True, slots=True)
class Binding:
    """`protocol` is `lm`, `resp` or `mooncakestore`; `endpoint` is trimmed and may still carry a scheme."""

    protocol: str
    endpoint: str = ""


_protocols: dict[str, str] = dict(PROTOCOLS)


class UnknownProvider(LookupError):
    """A provider that no protocol is known for."""


def known_protocols() -> Mapping[str, str]:
    """The protocol of every provider that is known by now."""
    return MappingProxyType(_protocols)


def declare_protocol(provider: str, protocol: str) -> None:
    """Make a provider known. Raises `ValueError` if it is known with another protocol."""
    known = _protocols.setdefault(provider, protocol)
    if known != protocol:
        raise ValueError(f'provider "{provider}" speaks {known}, not {protocol}: give yours another name')


def protocol_of(storage: RemoteStorage | None) -> str | None:
    """The protocol engines speak to a store, or None for host-only. Raises `UnknownProvider` (spec 04 §1.2)."""
    if storage is None:
        return None
    try:
        return _protocols[storage.provider]
    except KeyError:
        raise UnknownProvider(
            f'spec.remoteStorage.provider "{storage.provider}" is unknown: use one of {", ".join(sorted(_protocols))}'
        ) from None


def binding_for(storage: RemoteStorage | None, endpoint: str) -> Binding | None:
    """The binding to a store at exactly this address, or None for host-only. Raises `UnknownProvider`."""
    protocol = protocol_of(storage)
    return None if protocol is None else Binding(protocol, endpoint)
