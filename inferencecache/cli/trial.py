"""A trial installation: a control plane of its own with what `manifests/default` installs, and the operator beside it.

The operator runs as a child process, started by the command line users know and with the ServiceAccount, roles and
webhook configurations of an installation; only the webhooks' address differs. All of it ends with the context.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from inferencecache.api import crds
from inferencecache.cli.install import (
    CONTROLLER,
    MUTATING_CONFIGURATION,
    NAMESPACE,
    VALIDATING_CONFIGURATION,
    controller_rbac,
    webhook_configurations,
)
from inferencecache.kube.client import Client
from inferencecache.kube.connection import connect
from inferencecache.kube.envtest import ControlPlane, install_crds
from inferencecache.kube.errors import KubeError
from inferencecache.kube.resource import Key, ResourceType

READY_SECONDS = 60.0
_STOP_SECONDS = 20.0
_TOKEN_SECONDS = 24 * 3600
_CONFIGURATIONS = (
    (
        ResourceType(
            "admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", False
        ),
        MUTATING_CONFIGURATION,
    ),
    (
        ResourceType(
            "admissionregistration.k8s.io",
            "v1",
            "ValidatingWebhookConfiguration",
            "validatingwebhookconfigurations",
            False,
        ),
        VALIDATING_CONFIGURATION,
    ),
)


class TrialError(Exception):
    """The trial could not be set up; the message says at which step and what the operator said last."""


@dataclass(frozen=True)
class Ports:
    """The loopback ports of the operator's listeners."""

    metrics: int
    health: int
    webhook: int

    @classmethod
    def free(cls) -> Ports:
        """Three ports that are free now."""
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
            for listener in sockets:
                listener.bind(("127.0.0.1", 0))
            return cls(*(listener.getsockname()[1] for listener in sockets))


async def install(client: Client, ports: Ports) -> None:
    """What `kubectl apply -k manifests/default` installs, except the operator's Deployment and Service."""
    await install_crds(client, [dict(crd) for crd in crds()])
    await client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    address = {"url": f"https://127.0.0.1:{ports.webhook}"}
    for manifest in [*controller_rbac(), *webhook_configurations(address)]:
        await client.apply(manifest)


async def service_account_kubeconfig(client: Client, plane: ControlPlane) -> Path:
    """A kubeconfig of the operator's own ServiceAccount, so that the trial also tries its roles."""
    answer = await client.request(
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{CONTROLLER}/token",
        body={
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": _TOKEN_SECONDS},
        },
    )
    config: dict[str, Any] = yaml.safe_load(plane.admin.read_text())
    config["users"][0]["user"] = {"token": msgspec.json.decode(answer)["status"]["token"]}
    path = plane.folder / "controller.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config))
    return path


def controller_command(kubeconfig: Path, ports: Ports, folder: Path) -> list[str]:
    """The operator's command line, as a user would type it."""
    script = shutil.which("inferencecache", path=os.fspath(Path(sys.executable).parent)) or "inferencecache"
    return [
        script,
        "controller",
        f"--kubeconfig={kubeconfig}",
        "--leader-elect",
        f"--leader-election-namespace={NAMESPACE}",
        f"--metrics-bind-address=127.0.0.1:{ports.metrics}",
        f"--health-probe-bind-address=127.0.0.1:{ports.health}",
        f"--webhook-port={ports.webhook}",
        f"--webhook-cert-dir={folder / 'no-certificates'}",
        "--server-probe-url=",
    ]


@contextlib.asynccontextmanager
async def operator(command: Sequence[str], log: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    """The operator as a child process, stopped by SIGTERM when the context ends, and killed if that takes too long."""
    environment = {name: value for name, value in os.environ.items() if name not in ("KUBECONFIG", "POD_NAMESPACE")}
    with log.open("wb") as output:
        # A session of its own: Ctrl-C reaches us alone, and we stop the operator before the control plane it needs.
        process = subprocess.Popen(  # noqa: ASYNC220 - takes milliseconds
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            await asyncio.shield(asyncio.to_thread(process.wait, _STOP_SECONDS))
        except (subprocess.TimeoutExpired, asyncio.CancelledError):
            process.kill()
            process.wait()
            raise


async def wait_ready(client: Client, process: subprocess.Popen[bytes], ports: Ports, log: Path) -> None:
    """Wait until the operator is ready and the API server trusts its webhooks. Raises `TrialError`."""
    deadline = time.monotonic() + READY_SECONDS
    while not (await asyncio.to_thread(_answers, f"http://127.0.0.1:{ports.health}/readyz") and await _trusted(client)):
        if process.poll() is not None or time.monotonic() > deadline:
            state = f"ended with exit {process.returncode}" if process.poll() is not None else "did not become ready"
            said = await asyncio.to_thread(log.read_text, errors="replace")
            raise TrialError(f"the operator {state}; it said last:\n{said[-3000:]}")
        await asyncio.sleep(0.1)


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


async def _trusted(client: Client) -> bool:
    for resource, name in _CONFIGURATIONS:
        live = await client.get_manifest(resource, Key("", name))
        if not all(webhook["clientConfig"].get("caBundle") for webhook in live["webhooks"]):
            return False
    return True


@contextlib.asynccontextmanager
async def trial(plane: ControlPlane) -> AsyncIterator[Client]:
    """Install everything on a started control plane, run the operator, and yield an administrator's client.

    Raises `TrialError`.
    """
    ports, log = Ports.free(), plane.folder / "controller.log"
    async with await connect(plane.admin) as connection:
        client = Client(connection, field_manager="quickstart")
        try:
            await install(client, ports)
            kubeconfig = await service_account_kubeconfig(client, plane)
        except KubeError as error:
            raise TrialError(f"installing failed: {error}") from error
        async with operator(controller_command(kubeconfig, ports, plane.folder), log) as process:
            await wait_ready(client, process, ports, log)
            yield client
