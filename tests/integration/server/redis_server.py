"""A real Redis (or Valkey) of a test's own, that can be stopped, frozen, emptied and started anew."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from redis import Redis

from inferencecache.kube.ports import free_port


class RedisServer:
    """One server process. It keeps nothing: a restart comes back empty."""

    def __init__(self, directory: Path, *arguments: str, tls: bool = False) -> None:
        binary = shutil.which("redis-server") or shutil.which("valkey-server")
        assert binary, "these tests need redis-server or valkey-server on PATH: hack/get-redis.sh finds or installs it"
        self._binary = binary
        self._arguments = arguments
        self._tls = tls
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

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

    def kill(self) -> None:
        """End the server at once, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Let the server live but answer nothing, like a node that hangs."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)
