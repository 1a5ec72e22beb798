"""Where a sidecar finds its servers: a rule that the sidecar and the controller, which injects it, must agree on."""

from __future__ import annotations

import re


def hosts_and_ports(flag: str, text: str) -> list[tuple[str, int]]:
    """The names in a flag: `host:port`, several with commas; gRPC's `dns:///` may stand before each.

    IPv6 addresses come without their brackets.

    Raises:
        ValueError: there is none, or one has no port, or none that can be looked up; `flag` is named.
    """
    found = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = item.removeprefix("dns:").lstrip("/").rpartition(":")
        if not colon or not host or "@" in host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
            raise ValueError(f"{flag}={text}: {item!r} is no address; write host:port")
        try:
            host.encode("idna")
        except UnicodeError as error:
            raise ValueError(f"{flag}={text}: {host!r} is no name: {error}") from error
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise ValueError(f"{flag}: needs an address")
    return found
