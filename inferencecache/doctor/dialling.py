"""From the address of a store, as engines are given it, to what a TCP connection needs."""

from __future__ import annotations

from typing import Final

SCHEMES: Final = ("lm", "http", "https", "mooncakestore", "redis", "rediss", "resp")
"""Prefixes that an address may have: those of the three providers, and of what is reached over HTTP (spec 09 §1.3)."""


def dial_target(endpoint: str) -> tuple[str, int] | None:
    """Host and port of an address; None if it has none. IPv6 comes without its brackets."""
    rest = endpoint.strip()
    scheme, mark, after = rest.partition("://")
    if mark and scheme.lower() in SCHEMES:
        rest = after
    rest = rest.partition("/")[0]
    host, colon, port = rest.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    return (host, int(port)) if host else None
