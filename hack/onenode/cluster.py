"""Brings the cluster up, part by part, and takes it down again: the order of things, and nothing of what each is."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hack.onenode import access, components, containers, network, node, requirements
from hack.onenode.images import single_binary_image
from hack.onenode.layout import DNS_IMAGE, NODE, PAUSE_IMAGE, Layout
from hack.onenode.processes import ClusterError, Processes
from hack.onenode.requirements import node_address

_HERE: Final = Path(__file__).parent
Say = Callable[[str], None]


class Cluster:
    """One cluster per folder. All methods are for root; `say` is told what happens, line by line."""

    def __init__(self, say: Say, layout: Layout | None = None) -> None:
        self.layout = layout or Layout()
        self.processes = Processes(self.layout.processes, self.layout.logs)
        self._say = say
        self._started = time.monotonic()

    # ---------------------------------------------------------------------------------------------------- lifetime

    def up(self) -> None:
        """Start everything and wait until Pods can run. What was started is ended again if any of it fails."""
        if os.geteuid() != 0:
            raise ClusterError("starting Pods on this machine needs root")
        if self.is_up():
            self._say("it is up already")
            return
        self._started = time.monotonic()
        self.down()  # what an interrupted run may have left
        requirements.require(requirements.of_a_cluster(self.layout), requirements.CLUSTER_PROGRAMS, self._say)
        binaries = _binaries()
        try:
            self._start(binaries)
        except BaseException:
            self._say("failed; taking down what was started")
            self.down()
            raise

    def down(self) -> None:
        """End everything and undo every change to the machine. Safe at any time; images go as well."""
        layout = self.layout
        if not layout.folder.exists():
            return
        known = {process.name: process for process in self.processes}
        for name in ("kubelet", "netpol", "kube-proxy"):
            if name in known:
                self.processes.end(name)
        if "containerd" in known:
            if known["containerd"].lives():
                containers.end_all(layout)
            self.processes.end("containerd")
        containers.end_shims(layout)
        for process in reversed(list(self.processes)):
            self.processes.end(process.name)
        network.close(layout)
        _unmount_below(layout.folder)
        _remove_control_groups()
        shutil.rmtree(layout.folder)
        if known:
            self._say("down; nothing is left of it")

    def is_up(self) -> bool:
        """Whether all of its processes live and the node is ready."""
        processes = list(self.processes)
        return bool(processes) and all(process.lives() for process in processes) and self._node_ready()

    def restart(self, name: str, *, while_down: Callable[[], object] = lambda: None) -> None:
        """End one part and start it again, as a crash of it or an upgrade would; between the two, `while_down`."""
        process = self.processes.find(name)
        self.processes.end(name)
        while_down()
        self.processes.start(name, process.command)
        self._await(name)
        self._progress(f"{name} started again")

    def load(self, *images: str) -> list[str]:
        """Bring images in: names of such in Docker, or one file that `docker save` wrote. The names they now have."""
        if not self.is_up():
            raise ClusterError("there is no cluster to load it into; start one with: hack/cluster up")
        if len(images) == 1 and Path(images[0]).is_file():
            with Path(images[0]).open("rb") as archive:
                return containers.import_image(self.layout, archive)
        # Together, so that what images share is moved once.
        command = [os.environ.get("DOCKER", "docker"), "save", *images]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as saving:
            assert saving.stdout is not None
            assert saving.stderr is not None
            try:
                return containers.import_image(self.layout, saving.stdout)
            except ClusterError as error:
                raise ClusterError(saving.stderr.read().decode().strip() or str(error)) from None

    def status(self) -> str:
        """What runs, one line each, for people."""
        lines = [
            f"{process.name:24} {'running' if process.lives() else 'ENDED':8} pid {process.pid}"
            for process in self.processes
        ]
        if not lines:
            return "down; start it with: hack/cluster up"
        lines.append(f"{'node ' + NODE:24} {'ready' if self._node_ready() else 'NOT READY'}")
        return "\n".join([*lines, self.how_to_reach()])

    def how_to_reach(self) -> str:
        """The line to put into a shell."""
        return f"export KUBECONFIG={self.layout.kubeconfig()}"

    def kubectl(self, *arguments: str, document: str | None = None) -> str:
        """Run kubectl as administrator and return what it printed. Raises `ClusterError` with what it said."""
        done = subprocess.run(
            [_kubectl(), "--kubeconfig", str(self.layout.kubeconfig()), *arguments],
            input=document,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    # --------------------------------------------------------------------------------------------------- internals

    def _start(self, binaries: Path) -> None:
        layout = self.layout
        for folder in (layout.folder, layout.logs, layout.certificates, layout.network):
            folder.mkdir(parents=True, exist_ok=True)
        layout.folder.chmod(0o700)
        address = node_address()
        tokens = access.write_credentials(layout)
        self._run("etcd", components.etcd(layout, binaries))
        self._run("kube-apiserver", components.apiserver(layout, binaries, address))
        access.write_kubeconfigs(layout, components.apiserver_url(address), tokens)
        self._run("kube-controller-manager", components.controller_manager(layout, binaries))
        self._run("kube-scheduler", components.scheduler(layout, binaries))

        layout.containerd_config.write_text(node.containerd_config(layout))
        (layout.network / "10-bridge.conflist").write_text(node.network_config(layout))
        layout.kubelet_config.write_text(node.kubelet_config(layout, address))
        self._run("containerd", components.containerd(layout))
        for reference, binary in ((PAUSE_IMAGE, "pause"), (DNS_IMAGE, "coredns")):
            containers.import_image(layout, single_binary_image(reference, binaries / binary))
        network.open_up(layout)
        self._run("kubelet", components.kubelet(layout, binaries, address))
        self._run("kube-proxy", components.proxy(layout, binaries))
        self._until("the node is ready", self._node_ready, seconds=120)
        self._run("netpol", components.policies(layout, binaries))

        # Names that no Pod needs before the cluster is said to be up, but every Pod after it.
        self._until("Pods get their credentials", self._has_service_accounts, seconds=60)
        self.kubectl("apply", "-f", "-", document=(_HERE / "dns.yaml").read_text())
        self.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=110s")
        self._progress("names are resolved")

    def _run(self, name: str, command: list[str]) -> None:
        self.processes.start(name, command)
        self._await(name)
        self._progress(name)

    def _await(self, name: str) -> None:
        self.processes.await_ready(name, lambda: self._ready(name), seconds=120)

    def _ready(self, name: str) -> bool:
        match name:
            case "etcd":
                return components.etcd_ready()
            case "kube-apiserver":
                return components.apiserver_ready(self.layout, node_address(), self._admin_token())
            case "kube-controller-manager":
                return components.controller_manager_ready()
            case "kube-scheduler":
                return components.scheduler_ready()
            case "containerd":
                return containers.answers(self.layout)
            case "kubelet":
                return components.kubelet_ready()
            case "kube-proxy":
                return components.proxy_ready()
            case "netpol":
                return network.enforces()
        raise ClusterError(f"there is no {name} in this cluster")

    def _admin_token(self) -> str:
        with self.layout.tokens.open() as rows:
            return next(token for token, user, *_ in csv.reader(rows) if user == "admin")

    def _node_ready(self) -> bool:
        condition = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        return self._asked("get", "node", NODE, "-o", condition) == "True"

    def _has_service_accounts(self) -> bool:
        return all(self._asked("-n", name, "get", "serviceaccount", "default") for name in ("default", "kube-system"))

    def _asked(self, *arguments: str) -> str:
        """What kubectl answers, or nothing while it cannot."""
        try:
            return self.kubectl("--request-timeout=5s", *arguments)
        except ClusterError:
            return ""

    def _until(self, what: str, holds: Callable[[], Any], *, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            for process in self.processes:
                if not process.lives():
                    raise ClusterError(f"{process.name} ended:\n{self.processes.log_tail(process.name)}")
            if time.monotonic() > deadline:
                raise ClusterError(f"waited {seconds:g} s in vain until {what}; see {self.layout.logs}")
            time.sleep(0.5)
        self._progress(what)

    def _progress(self, what: str) -> None:
        self._say(f"{time.monotonic() - self._started:5.1f} s  {what}")


def _binaries() -> Path:
    """Where the components are; builds them, with its own progress lines, if they are not there yet."""
    done = subprocess.run([requirements.GET_COMPONENTS, "--cluster"], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise ClusterError("the components could not be found or built")
    return Path(done.stdout.decode().splitlines()[-1])


def _kubectl() -> str:
    return shutil.which("kubectl") or str(_binaries() / "kubectl")


def _unmount_below(folder: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)


def _remove_control_groups() -> None:
    """The kubelet's groups, of which no process is left. Older systems have a tree of them per resource."""
    root = Path("/sys/fs/cgroup")
    for top in [root / "kubepods", *root.glob("*/kubepods")]:
        for group, _, _ in os.walk(top, topdown=False):
            Path(group).rmdir()
