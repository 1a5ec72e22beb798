"""What the machine must have for a cluster, and for the tests on it: whether each need is met, and what to do if not.

A kernel, a container or a small virtual machine may lack any of it, and every lack shows itself late and as something
else; so what can be tried without a change is tried beforehand, all of it in about a second.
"""

from __future__ import annotations

import ipaddress
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.onenode import docker
from hack.onenode.layout import PORTS, Layout
from hack.onenode.processes import ClusterError

# Programs, and what Debian calls their packages.
CLUSTER_PROGRAMS: Final = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ipset": "ipset",
    "ip": "iproute2",
    "conntrack": "conntrack",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
DOCKER_PROGRAMS: Final = {"dockerd": "docker.io", "docker": "docker.io"}

GET_COMPONENTS: Final = Path(__file__).parent.parent / "get-control-plane.sh"
BASE_IMAGE: Final = Path(__file__).parent.parent / "base-image.sh"

_CGROUPS: Final = ("cpu", "memory", "pids")
_MEMORY_BYTES: Final = 4 << 30
_DISK_BYTES: Final = 10 << 30


@dataclass(frozen=True)
class Need:
    """One thing, and whether it is there; what is `arranged` will be, without anybody's help."""

    what: str
    met: bool
    remedy: str
    arranged: bool = False

    def __str__(self) -> str:
        if self.met:
            return f"ok        {self.what}"
        return f"{'to do' if self.arranged else 'MISSING':9} {self.what}: {self.remedy}"


def of_a_cluster(layout: Layout) -> Iterator[Need]:
    """Of `hack/cluster up`, while no cluster is up."""
    yield Need("root", os.geteuid() == 0, "Pods are started by root alone; use sudo")
    machine = f"{platform.system()} {platform.machine()}"
    yield Need("Linux on x86-64", machine == "Linux x86_64", f"this is {machine}")
    yield from _programs(CLUSTER_PROGRAMS)
    yield from _kernel()
    taken = sorted(port for port in PORTS if not _is_free(port))
    yield Need("the cluster's ports", not taken, f"something listens on {taken}, perhaps another cluster")
    yield Need("a route out", _has_route(), "the node's address is the one that the default route leaves by")
    memory = _available_memory()
    yield Need("4 GiB of memory", memory >= _MEMORY_BYTES, f"{memory >> 20} MiB are available")
    folder = next(each for each in (layout.folder, *layout.folder.parents) if each.exists())
    disk = shutil.disk_usage(folder).free
    yield Need("10 GiB of disk", disk >= _DISK_BYTES, f"{disk >> 20} MiB are free below {folder}")
    builds = shutil.which("go") is not None
    remedy = "built once, in some 20 minutes" if builds else "they are built with Go, from https://go.dev/dl/"
    yield Need(
        "the components of Kubernetes", _succeeds(GET_COMPONENTS, "--cluster", "--look"), remedy, arranged=builds
    )


def of_the_tests() -> Iterator[Need]:
    """Of `make e2e`, beyond a cluster: something that builds images, and something to build them from."""
    answers, host = docker.answers(), os.environ.get("DOCKER_HOST")
    remedy = f"nobody answers at DOCKER_HOST={host}" if host else "one is started, and ended afterwards"
    yield Need("a Docker daemon", answers, remedy, arranged=not host)
    if not answers and not host:
        yield from _programs(DOCKER_PROGRAMS)
    image = _succeeds(BASE_IMAGE, "--look")
    yield Need("a base image", image, "pulled, or made by debootstrap where no registry is in reach", arranged=True)


def require(needs: Iterable[Need], programs: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Install what is missing of `programs`. Raises `ClusterError` that names every need which nobody will meet."""
    unmet = [f"\n  {need.what}: {need.remedy}" for need in needs if not need.met and not need.arranged]
    if unmet:
        raise ClusterError(f"this machine lacks:{''.join(unmet)}")
    missing = _missing(programs)
    if not missing:
        return
    say(f"installing Debian's {' '.join(missing)}")
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *missing]):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(["apt-get", *command], env=environment, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise ClusterError(f"apt-get {command[0]} failed; please install: {' '.join(missing)}")


def _missing(programs: Mapping[str, str]) -> list[str]:
    """The packages whose programs are not all there."""
    return sorted({package for program, package in programs.items() if shutil.which(program) is None})


def _programs(programs: Mapping[str, str]) -> Iterator[Need]:
    missing, installs = _missing(programs), shutil.which("apt-get") is not None
    for package in sorted(set(programs.values())):
        remedy = "installed with apt" if installs else "install it; the name is Debian's"
        yield Need(package, package not in missing, remedy, arranged=installs)


def _kernel() -> Iterator[Need]:
    overlay = "overlay" in Path("/proc/filesystems").read_text().split()
    yield Need("overlayfs", overlay, "modprobe overlay")
    bridged = Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists()
    yield Need("packet filtering on bridges", bridged, "modprobe br_netfilter")
    older, newer = Path("/proc/cgroups"), Path("/sys/fs/cgroup/cgroup.controllers")
    groups = (newer if newer.exists() else older).read_text().split()
    lacking = [name for name in _CGROUPS if name not in groups]
    yield Need("control groups", not lacking, f"the kernel has none for {', '.join(lacking)}")
    yield Need("mounting", _succeeds("unshare", "--mount", "true"), "in a container: run it privileged")
    if shutil.which("iptables"):
        yield Need("a packet filter", _succeeds("iptables", "-w", "-t", "nat", "-S"), "modprobe ip_tables iptable_nat")
    if shutil.which("ip"):
        yield Need("routing rules", _succeeds("ip", "rule"), "the kernel is without CONFIG_IP_MULTIPLE_TABLES")
    if shutil.which("ipset"):
        yield Need("sets of addresses", _succeeds("ipset", "list", "-name"), "modprobe ip_set")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _has_route() -> bool:
    try:
        node_address()
    except ClusterError:
        return False
    return True


def node_address() -> str:
    """The machine's address towards others: the one its default route leaves by. Raises `ClusterError`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # chooses a route and sends nothing
        except OSError as error:
            raise ClusterError("this machine has no route out, so the node has no address Pods could use") from error
        return str(ipaddress.ip_address(probe.getsockname()[0]))


def _available_memory() -> int:
    """Bytes that new processes may have."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _succeeds(*command: str | Path) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
