"""Addresses of external stores: their grammar, and the namespace that may hide in one (spec 02 §5.4–§5.5, spec 04 §2).

The validating webhook, the Pod webhook and the reconciler all ask here, so that what one accepts the others do.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Final

from inferencecache.api import constants as c

SCHEMES: Final[dict[str, str]] = {c.PROVIDER_MOONCAKE: "mooncakestore", c.PROVIDER_LMCACHE_SERVER: "lm"}
PROTOCOLS: Final[dict[str, str]] = {
    c.PROVIDER_REDIS: "resp",
    c.PROVIDER_LMCACHE_SERVER: "lm",
    c.PROVIDER_MOONCAKE: "mooncakestore",
}
"""The protocol that engines speak to each provider."""

_HIGHEST_PORT: Final = 65535
_LONGEST_PORT: Final = 20  # leading zeros pass; a number of any length is not worth converting


class EndpointError(ValueError):
    """An address that breaks the grammar; the message says what is wrong with its shape."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A store's address: host (IPv6 without brackets) and port."""

    host: str
    port: int


def parse_endpoint(provider: str, text: str) -> Endpoint:
    """Read an address of `provider`. Raises `EndpointError`.

    Redis takes `host:port` only; LMCacheServer also `lm://`, Mooncake also `mooncakestore://`, in any case of letters.
    What stands before an `@` counts to the host: the contract lets it pass (spec 02 §5.4).
    """
    address = text.strip()
    if not address:
        raise EndpointError("endpoint is empty")
    return _host_and_port(_without_scheme(provider, address))


def parse_address(text: str) -> Endpoint:
    """Read `host:port`, an IPv6 host in brackets, with nothing around it. Raises `EndpointError`."""
    if "@" in text:
        raise EndpointError("a store is told no user: remove the @ and what stands before it")
    return _host_and_port(text)


def remote_url(protocol: str, endpoint: str) -> str:
    """The address with exactly one lower-case scheme in front; the case of the host is kept (spec 04 §2)."""
    prefix = f"{protocol}://"
    rest = endpoint[len(prefix) :] if endpoint[: len(prefix)].lower() == prefix else endpoint
    return prefix + rest


def namespace_in(endpoint: str) -> str:
    """The namespace of the Service that an address names, or an empty string if it names none (spec 02 §5.5)."""
    rest = endpoint.strip().lower()
    if "://" in rest:
        rest = rest.split("://", 1)[1]
    for stop in "/?":
        rest = rest.split(stop, 1)[0]
    head, colon, tail = rest.rpartition(":")
    if colon and "." not in tail:
        rest = head
    rest = rest.removesuffix(".").removesuffix(".cluster.local")
    labels = rest.split(".")
    return labels[-2] if len(labels) >= 3 and labels[-1] == "svc" else ""


def _host_and_port(text: str) -> Endpoint:
    if any(char.isspace() or unicodedata.category(char) == "Cc" for char in text):
        raise EndpointError("whitespace or control characters are not allowed inside the address")
    if any(char in text for char in "/?#"):
        raise EndpointError("paths/queries/fragments are not allowed: write host:port")
    host, port = _split(text)
    if not (len(port) <= _LONGEST_PORT and port.isascii() and port.isdigit() and 1 <= int(port) <= _HIGHEST_PORT):
        raise EndpointError(f'port "{port}" must be an integer in 1-65535')
    return Endpoint(host, int(port))


def _without_scheme(provider: str, address: str) -> str:
    before, mark, after = address.partition("://")
    if not mark:
        return address
    wanted = SCHEMES.get(provider)
    if wanted is None or before.lower() != wanted:
        accepted = f"only {wanted}:// or none" if wanted else "none, write host:port"
        raise EndpointError(f'scheme "{before.lower()}" is not supported by {provider}: {accepted}')
    if "://" in after:
        raise EndpointError("only one scheme is allowed")
    return after


def _split(rest: str) -> tuple[str, str]:
    if rest.startswith("["):
        host, bracket, port = rest[1:].partition("]")
        if not bracket or not host or not port.startswith(":") or ":" in port[1:] or not port[1:]:
            raise EndpointError("an IPv6 address in brackets must be a non-empty host AND port: write [address]:port")
        return host, port[1:]
    if rest.count(":") > 1:
        raise EndpointError("more than one colon: an IPv6 address needs brackets, as in [address]:port")
    host, _, port = rest.partition(":")
    if not host or not port:
        raise EndpointError("the address must be a non-empty host AND port: write host:port")
    return host, port
