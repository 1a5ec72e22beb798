"""A real control plane for tests and trials: etcd and kube-apiserver on loopback, up in a few seconds.

No controllers run here: Deployments get no Pods and nothing is garbage-collected, so whoever uses it plays their part
by patching `status`. Everything lives in a temporary folder and ends with the plane; the API server alone can be
stopped and started again, on the same port and data, to see what an operator does meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from inferencecache.kube.client import Client
from inferencecache.kube.connection import connect
from inferencecache.kube.errors import KubeError, NotFound
from inferencecache.kube.ports import free_port
from inferencecache.kube.resource import Key, Manifest, ResourceType

KUBERNETES_VERSION: Final = "1.34.4"
_NEEDED: Final = ("etcd", "kube-apiserver")
_CRDS: Final = ResourceType(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
_STARTS: Final = 3  # a port found free may be taken before it is used


class ControlPlaneError(KubeError):
    """The control plane could not be found or started; the message ends with what it said last."""


def cache_directory() -> Path:
    """Where built or fetched binaries are kept for all checkouts of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "inferencecache" / "k8s" / KUBERNETES_VERSION / "bin"


def find_binaries() -> Path:
    """The folder that holds etcd and kube-apiserver: `$KUBEBUILDER_ASSETS`, the per-user cache, then `setup-envtest`.

    Raises `ControlPlaneError` that says how to get them.
    """
    tried: list[Path] = []
    for folder in _candidates():
        if all(os.access(folder / name, os.X_OK) for name in _NEEDED):
            return folder
        tried.append(folder)
    raise ControlPlaneError(
        f"no etcd and kube-apiserver in {', '.join(map(str, tried))}; run hack/get-control-plane.sh once, "
        "or set KUBEBUILDER_ASSETS to a folder that has them"
    )


def _candidates() -> Iterable[Path]:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        yield Path(assets)
    yield cache_directory()
    if shutil.which("setup-envtest"):
        found = subprocess.run(
            ["setup-envtest", "use", "--installed-only", "-p", "path"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if found.returncode == 0 and found.stdout.strip():
            yield Path(found.stdout.strip())


class ControlPlane:
    """etcd and kube-apiserver; use it as a context manager, or call `start` and `stop`.

    `admin` is a kubeconfig of the group `system:masters`; `add_user` makes further identities, whose rights are RBAC's.
    `apiserver_flags` go to the API server as they are.
    """

    def __init__(
        self,
        *,
        binaries: Path | None = None,
        admission_plugins_off: Sequence[str] = ("ServiceAccount",),
        apiserver_flags: Sequence[str] = (),
    ) -> None:
        self._binaries = binaries
        self._plugins_off = admission_plugins_off
        self._apiserver_flags = apiserver_flags
        self._etcd: subprocess.Popen[bytes] | None = None
        self._apiserver: subprocess.Popen[bytes] | None = None
        self._tokens: dict[str, tuple[str, str]] = {}
        self.folder = Path()
        self.port = 0

    # ---------------------------------------------------------------------------------------------------- lifetime

    def start(self) -> ControlPlane:
        """Start both processes and wait until the API server is ready. Raises `ControlPlaneError`."""
        binaries = self._binaries or find_binaries()
        for attempt in range(1, _STARTS + 1):
            self.folder = Path(tempfile.mkdtemp(prefix="envtest-"))
            try:
                self._prepare()
                self._start_etcd(binaries)
                self.port = free_port()
                self.start_apiserver()
            except ControlPlaneError:
                self.stop()
                if attempt == _STARTS:
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                return self
        raise AssertionError("unreachable")

    def stop(self) -> None:
        """End both processes and remove their data. Safe to call at any time."""
        self.stop_apiserver(grace=5)
        _end(self._etcd, grace=5)
        self._etcd = None
        if self.folder != Path():  # before a start it is the working directory
            shutil.rmtree(self.folder, ignore_errors=True)

    def start_apiserver(self) -> None:
        """Start the API server (again), on the same port and data, and wait until it is ready."""
        binaries = self._binaries or find_binaries()
        self._apiserver = self._run(
            binaries / "kube-apiserver",
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self.port}",
            f"--cert-dir={self.folder / 'pki'}",
            f"--service-account-key-file={self.folder / 'sa.key'}",
            f"--service-account-signing-key-file={self.folder / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--allow-privileged=true",
            f"--disable-admission-plugins={','.join(self._plugins_off)}",
            *self._apiserver_flags,
        )
        self._await("kube-apiserver", self._apiserver, self._apiserver_ready, seconds=180)

    def stop_apiserver(self, *, grace: float = 0) -> None:
        """End the API server; without `grace` seconds it is killed, as a crashed machine would."""
        _end(self._apiserver, grace=grace)
        self._apiserver = None

    def __enter__(self) -> ControlPlane:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    # ------------------------------------------------------------------------------------------------------ access

    @property
    def url(self) -> str:
        """The address of the API server."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> Path:
        """The certificate to trust."""
        return self.folder / "pki" / "apiserver.crt"

    @property
    def admin(self) -> Path:
        """A kubeconfig that may do everything."""
        return self.kubeconfig("admin")

    def kubeconfig(self, user: str) -> Path:
        """A kubeconfig file of a known user."""
        token, _ = self._tokens[user]
        path = self.folder / f"{user}.kubeconfig"
        cluster = {
            "server": self.url,
            "certificate-authority-data": base64.b64encode(self.ca_file.read_bytes()).decode(),
        }
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "envtest",
                    "clusters": [{"name": "envtest", "cluster": cluster}],
                    "users": [{"name": user, "user": {"token": token}}],
                    "contexts": [{"name": "envtest", "context": {"cluster": "envtest", "user": user}}],
                }
            )
        )
        path.chmod(0o600)
        return path

    def add_user(self, name: str, *groups: str) -> Path:
        """Make an identity and return its kubeconfig. Takes effect at the API server's next start."""
        self._tokens[name] = (uuid.uuid4().hex, ",".join(groups))
        self._write_tokens()
        return self.folder / f"{name}.kubeconfig" if not self.port else self.kubeconfig(name)

    # --------------------------------------------------------------------------------------------------- internals

    def _prepare(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self.folder / "sa.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        self._tokens.setdefault("admin", (uuid.uuid4().hex, "system:masters"))
        self._write_tokens()

    def _write_tokens(self) -> None:
        rows = [f'{token},{name},{name},"{groups}"\n' for name, (token, groups) in self._tokens.items()]
        (self.folder / "tokens.csv").write_text("".join(rows))

    def _start_etcd(self, binaries: Path) -> None:
        self._etcd_url = f"http://127.0.0.1:{free_port()}"
        peer = f"http://127.0.0.1:{free_port()}"
        self._etcd = self._run(
            binaries / "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )
        self._await("etcd", self._etcd, lambda: _answers(f"{self._etcd_url}/health"), seconds=120)

    def _run(self, binary: Path, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{binary.name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(binary), *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for whoever uses the plane, who still needs it in order to stop
                # The kernel counts the thread that started a process as its parent, so only the main one will do.
                preexec_fn=_die_with_parent if threading.current_thread() is threading.main_thread() else None,
            )

    def _await(self, name: str, process: subprocess.Popen[bytes], ready: Callable[[], bool], *, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                said = (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]
                state = "ended" if process.poll() is not None else f"was not ready after {seconds:g} s"
                raise ControlPlaneError(f"{name} {state}; it said last:\n{said}")
            time.sleep(0.05)

    def _apiserver_ready(self) -> bool:
        if not self.ca_file.exists():
            return False
        token, _ = self._tokens["admin"]
        return _answers(f"{self.url}/readyz", token=token, ca=self.ca_file)


async def install_crds(client: Client, crds: Iterable[Manifest | Path], *, seconds: float = 120) -> None:
    """Apply CustomResourceDefinitions and wait until each is served.

    A `Path` is a YAML file or a folder of them; other documents in it are passed over. Raises `ControlPlaneError` if a
    definition is not established in time.
    """
    wanted = [crd for source in crds for crd in ([source] if isinstance(source, dict) else _crds_in(source))]
    for crd in wanted:
        await client.apply(crd)
    try:
        async with asyncio.timeout(seconds):
            for crd in wanted:
                name = crd["metadata"]["name"]
                while not await _established(client, name):  # noqa: ASYNC110 - the state is the server's
                    await asyncio.sleep(0.05)
                await _served(client, crd)
    except TimeoutError:
        names = ", ".join(crd["metadata"]["name"] for crd in wanted)
        raise ControlPlaneError(f"not all of {names} were served within {seconds:g} s") from None


def _crds_in(path: Path) -> list[Manifest]:
    files = sorted(path.rglob("*.yaml")) if path.is_dir() else [path]
    documents: list[Any] = [document for file in files for document in yaml.safe_load_all(file.read_text())]
    return [d for d in documents if isinstance(d, dict) and d.get("kind") == "CustomResourceDefinition"]


async def _established(client: Client, name: str) -> bool:
    live = await client.get_manifest(_CRDS, Key("", name))
    conditions = live.get("status", {}).get("conditions") or []  # null until the server has looked at it
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


async def _served(client: Client, crd: Manifest) -> None:
    spec = crd["spec"]
    for version in spec["versions"]:
        group_version = f"{spec['group']}/{version['name']}"
        while True:
            # Established comes a moment before discovery and the handlers know the kind.
            with contextlib.suppress(NotFound):
                await client.discovery.resource_for(group_version, spec["names"]["kind"])
                await client.request(
                    "GET", f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}?limit=1"
                )
                break
            await asyncio.sleep(0.05)


async def admin_client(plane: ControlPlane, *, field_manager: str = "envtest") -> Client:
    """A client that may do everything; close its `connection` when done."""
    return Client(await connect(plane.admin), field_manager=field_manager)


def _answers(url: str, *, token: str = "", ca: Path | None = None) -> bool:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    context = None
    if ca is not None:
        try:
            context = ssl.create_default_context(cafile=str(ca))
        except ssl.SSLError:  # half written
            return False
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), *([urllib.request.HTTPSHandler(context=context)] if context else [])
    )
    try:
        with opener.open(request, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _die_with_parent() -> None:
    # A test runner that is killed cannot clean up, so on Linux the kernel does.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _end(process: subprocess.Popen[bytes] | None, *, grace: float) -> None:
    if process is None or process.poll() is not None:
        return
    if grace:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    if process.poll() is None:
        process.kill()
        process.wait()
