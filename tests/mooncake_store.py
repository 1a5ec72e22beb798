"""A store client of Mooncake, driven over a socket: `python mooncake_store.py SETUP DESCRIPTOR`.

The binding starts dozens of threads, logs as it likes and can end its process, so tests keep it out of theirs. SETUP is
the JSON its `setup` takes. What goes over the socket are lines of JSON: the status of `setup` out, and then one for
every `[method, argument, …]` that comes in. A `put` names a size, not content.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

from mooncake.store import MooncakeDistributedStore  # type: ignore[import-untyped]


def answer(store: Any, method: str, *arguments: Any) -> int:
    """What a method of the binding returns; of `get`, how many bytes there were."""
    if method == "put":
        key, size = arguments
        return int(store.put(key, bytes(size)))
    if method == "get":
        return len(store.get(*arguments))
    return int(getattr(store, method)(*arguments))


def main() -> None:
    setup, descriptor = sys.argv[1:]
    store = MooncakeDistributedStore()
    with socket.socket(fileno=int(descriptor)) as connection, connection.makefile("rw", buffering=1) as lines:
        lines.write(f"{store.setup(json.loads(setup))}\n")
        for request in lines:
            lines.write(f"{answer(store, *json.loads(request))}\n")
    store.close()


if __name__ == "__main__":
    main()
