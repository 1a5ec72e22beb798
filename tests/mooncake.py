"""A real Mooncake master of a test's own, and real store clients that mount memory on it and fill it.

A master starts in a third of a second and takes 60 MB, a store takes 80 MB and the memory it is really given to hold;
none of them keeps anything beyond its policy file.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from inferencecache.controllers.mooncake.admin import AdminClient
from inferencecache.controllers.mooncake.ledger import Outcome, plan, read, settle
from inferencecache.controllers.mooncake.policy import EMPTY_POLICY
from inferencecache.kube.ports import free_ports
from tests.process import OwnProcess

BINARY = Path(sysconfig.get_path("platlib")) / "mooncake" / "mooncake_master"
MIB = 1 << 20


class MasterDied(Exception):
    """The master ended while it was being started; the text is its log."""


class Master(OwnProcess):
    """One master process.

    Attributes:
        admin: `host:port` of the admin interface; also after a restart.
        client: `host:port` for store clients; also after a restart.
        policy: the file it reads its tenants from, and rewrites.
        tenants: whether it keeps a ledger from its next start on.
    """

    def __init__(
        self, directory: Path, *, tenants: bool = True, policy: str | None = EMPTY_POLICY, lease: str = "5m"
    ) -> None:
        """`policy`: what is in the file at the first start; None: there is no file. `lease`: of what was read."""
        assert BINARY.exists(), "these tests need the Mooncake wheel, which exists for Linux: hack/get-mooncake.sh"
        super().__init__()
        self._log = directory / "mooncake-master.log"
        self._policies = directory / "policies"
        self._policies.mkdir()
        self.policy = self._policies / "tenant-quota-policy.yaml"
        if policy is not None:
            self.policy.write_text(policy)
        rpc, metrics = free_ports(2)
        self.admin = f"127.0.0.1:{metrics}"
        self.client = f"127.0.0.1:{rpc}"
        self.tenants = tenants
        self._flags = [
            f"-rpc_port={rpc}",
            f"-metrics_port={metrics}",
            "-rpc_address=127.0.0.1",
            "-metrics_host=127.0.0.1",
            f"-default_kv_lease_ttl={lease}",
            "-allocation_strategy=free_ratio_first",
            "-enable_metric_reporting=false",
        ]

    @property
    def log(self) -> str:
        """What it wrote since the first start."""
        return self._log.read_text(errors="replace")

    def start(self) -> None:
        """Start it and wait until it serves. Raises `MasterDied`."""
        flags = [*self._flags]
        if self.tenants:
            flags += ["-enable_multi_tenants=true", f"-tenant_quota_connector_uri={self.policy}"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([BINARY, *flags], stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not self._serves():
            if self._process.poll() is not None:
                self._process = None
                raise MasterDied(self.log)
            assert time.monotonic() < deadline, f"the master does not serve: {self.log}"
            time.sleep(0.02)

    def restart(self) -> None:
        """End it and start it anew at the same addresses, from the file as it is now."""
        self.kill()
        self.start()

    @contextlib.contextmanager
    def unwritable(self) -> Iterator[None]:
        """While inside, the policy file cannot be written; not even by root, who may write what is read-only."""
        aside = self._policies.with_name("policies-aside")
        self._policies.rename(aside)
        self._policies.write_text("in the way of the directory")
        try:
            yield
        finally:
            self._policies.unlink()
            aside.rename(self._policies)

    def _serves(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{self.admin}/get_all_segments", timeout=5):
            return True
        return False


class Store:
    """A store client as a process of its own, with the memory it mounts, and with one tenant in whose name it calls.

    Its methods return the binding's status: 0, or a negative error code.
    """

    def __init__(self, master: Master, *, tenant: str = "default", segment: int = 0, buffer: int = 16 * MIB) -> None:
        """`segment`: bytes to mount; `buffer`: bytes to send and receive from, at least the largest object."""
        setup = {
            "local_hostname": "127.0.0.1",
            "metadata_server": "P2PHANDSHAKE",
            "global_segment_size": segment,
            "local_buffer_size": buffer,
            "protocol": "tcp",
            "rdma_devices": "",
            "master_server_addr": master.client,
            "tenant_id": tenant,
        }
        ours, theirs = socket.socketpair()
        # -P: or the script's folder would put this module in the place of the package of the same name.
        script = Path(__file__).with_name("mooncake_store.py")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", script, json.dumps(setup), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        ours.settimeout(90)
        self._socket = ours
        self._lines = ours.makefile("rw", buffering=1)
        status = self._status()
        assert status == 0, f"the store could not be set up: {status}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def put(self, key: str, size: int) -> int:
        """Write an object of so many bytes."""
        return self._call("put", key, size)

    def get(self, key: str) -> int:
        """Read an object, which gives it a lease; how many bytes it has, 0 if it is not there."""
        return self._call("get", key)

    def exists(self, key: str) -> bool:
        """Whether an object is there."""
        return self._call("is_exist", key) == 1

    def remove(self, key: str) -> int:
        """Remove an object, also one under a lease."""
        return self._call("remove", key, True)

    def close(self) -> None:
        """Unmount its memory and end."""
        self._socket.shutdown(socket.SHUT_WR)
        self._process.wait(timeout=60)

    def kill(self) -> None:
        """End it at once, if it runs; the master unmounts its memory some ten seconds later."""
        self._process.kill()
        self._process.wait()
        self._lines.close()
        self._socket.close()

    def _call(self, *request: Any) -> int:
        self._lines.write(f"{json.dumps(request)}\n")
        return self._status()

    def _status(self) -> int:
        line = self._lines.readline()
        assert line, f"the store ended: {self._process.wait()}"
        return int(line)


async def converge(admin: AdminClient, desired: Mapping[str, int], registered: Collection[str]) -> Outcome:
    """Read a ledger and write what differs, as a pass does."""
    reading = await read(admin)
    return await settle(admin, reading, plan(reading.entries, desired, registered))
