"""Where the server listens: addresses as Go writes them, and sockets that are bound before anything is served."""

from __future__ import annotations

import errno
import os
import re
import socket
from typing import Final, NamedTuple

_ADDRESS: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,5})")
_BACKLOG: Final = 1024


class BindAddress(NamedTuple):
    """An empty host is every address of the machine, port 0 any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> BindAddress:
        """Read `:9090`, `127.0.0.1:9090`, `localhost:9090` or `[::1]:9090`. Raises `ValueError`."""
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match["port"]) > 65535:
            raise ValueError(f"{text!r} is no address to listen on; write :9090, 127.0.0.1:9090 or [::1]:9090")
        return cls(match["v6"] or match["host"] or "", int(match["port"]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def bind(address: BindAddress) -> socket.socket:
    """A listening socket; without a host on all addresses, IPv6 and IPv4 where the machine has both.

    Raises `OSError` that names the address.
    """
    host, port = address
    try:
        if not host and socket.has_dualstack_ipv6():
            sock = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sock = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        # What Python says instead names the address once more, and not as it was given.
        code = error.errno or 0
        reason = os.strerror(code) if code in errno.errorcode else error.strerror or error
        raise OSError(error.errno, f"cannot listen on {address}: {reason}") from error
    # Connections inherit this. Without it the second packet of an answer waits 40 ms for an acknowledgement.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
