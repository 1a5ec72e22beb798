"""A real Redis (or Valkey) of a test's own, that can be stopped, frozen, emptied and started anew."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

from redis import Redis

from inferencecache.kube.ports import free_port
from tests.process import OwnProcess


class RedisServer(OwnProcess):
    """One server process. It keeps nothing: a restart comes back empty."""

    def __init__(self, directory: Path, *arguments: str, tls: bool = False) -> None:
        binary = shutil.which("redis-server") or shutil.which("valkey-server")
        assert binary, "these tests need redis-server or valkey-server on PATH: hack/get-redis.sh finds or installs it"
        super().__init__()
        self._binary = binary
        self._arguments = arguments
        self._tls = tls
        self._directory = directory
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Redis:
        """A client of the test's own."""
        return Redis.from_url(self.url)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        ports = ("--port", "0", "--tls-port", str(self.port)) if self._tls else ("--port", str(self.port))
        with (self._directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._binary, *ports, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                    "--dir", str(self._directory), *self._arguments,
                ],
                stdout=log,
                stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    return
            except OSError:
                assert self._process.poll() is None, (self._directory / "redis.log").read_text()
                assert time.monotonic() < deadline, "redis-server does not listen"
                time.sleep(0.02)
