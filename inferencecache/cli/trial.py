"""A trial installation: a control plane of its own with what `manifests/default` installs, the operator and the server.

Both run as child processes, started by the command lines users know. The operator has the ServiceAccount, roles and
webhook configurations of an installation; only the webhooks' address differs. The server takes calls from everybody,
as there is no cluster whose Pods could show it their tokens. All of it ends with the context.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from inferencecache import __version__
from inferencecache.api.kinds import crds
from inferencecache.cli.install import (
    CONTROLLER,
    MUTATING_CONFIGURATION,
    NAMESPACE,
    POOL_NAMESPACE,
    VALIDATING_CONFIGURATION,
    controller_rbac,
    webhook_configurations,
)
from inferencecache.cli.processes import Child, ProcessError, child, command
from inferencecache.kube.client import Client
from inferencecache.kube.connection import connect
from inferencecache.kube.envtest import ControlPlane, install_crds
from inferencecache.kube.errors import KubeError
from inferencecache.kube.ports import free_ports
from inferencecache.kube.resource import Key, ResourceType

_TOKEN_SECONDS: Final = 24 * 3600
_CONFIGURATIONS: Final = (
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
class Trial:
    """A running trial: an administrator's client, and where the server is reached."""

    client: Client
    kubeconfig: Path
    """The administrator's."""
    folder: Path
    """Where the processes log to."""
    server_http: str
    """`host:port` of the server's HTTP port."""


@dataclass(frozen=True)
class Ports:
    """The loopback ports of the listeners."""

    metrics: int
    health: int
    webhook: int
    server_grpc: int
    server_http: int
    server_snapshot: int

    @classmethod
    def free(cls) -> Ports:
        """Ports that are free now."""
        return cls(*free_ports(6))


async def install(client: Client, ports: Ports) -> None:
    """What `kubectl apply -k manifests/default` installs, except Deployments and Services."""
    await install_crds(client, [dict(crd) for crd in crds()])
    for namespace in (NAMESPACE, POOL_NAMESPACE):
        await client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
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


def server_command(ports: Ports) -> list[str]:
    """The server's command line."""
    return command(
        "server",
        f"--grpc-bind-address=127.0.0.1:{ports.server_grpc}",
        f"--http-bind-address=127.0.0.1:{ports.server_http}",
        f"--snapshot-bind-address=127.0.0.1:{ports.server_snapshot}",
        "--insecure-disable-auth",
    )


def controller_command(kubeconfig: Path, ports: Ports, folder: Path) -> list[str]:
    """The operator's command line. The sidecar's image is only named: no kubelet pulls it."""
    server = f"http://127.0.0.1:{ports.server_snapshot}"
    return command(
        "controller",
        f"--kubeconfig={kubeconfig}",
        "--leader-elect",
        f"--leader-election-namespace={NAMESPACE}",
        f"--metrics-bind-address=127.0.0.1:{ports.metrics}",
        f"--health-probe-bind-address=127.0.0.1:{ports.health}",
        f"--webhook-port={ports.webhook}",
        f"--webhook-cert-dir={folder / 'no-certificates'}",
        f"--kvevent-subscriber-image=inferencecache-subscriber:{__version__}",
        f"--policy-server-grpc-address=127.0.0.1:{ports.server_grpc}",
        f"--server-snapshot-url={server}/snapshot",
        f"--server-policy-url={server}/policy",
        f"--server-probe-url={server}/probe",
        "--cacheindex-refresh-interval=1s",
        f"--kv-cache-namespace={POOL_NAMESPACE}",
    )


async def wait_serving(operator: Child, client: Client, ports: Ports) -> None:
    """Wait until the operator is ready and the API server trusts its webhooks. Raises `ProcessError`."""
    await operator.wait_answers(f"http://127.0.0.1:{ports.health}/readyz")
    await operator.wait_until(lambda: _trusted(client))


async def _trusted(client: Client) -> bool:
    for resource, name in _CONFIGURATIONS:
        live = await client.get_manifest(resource, Key("", name))
        if not all(webhook["clientConfig"].get("caBundle") for webhook in live["webhooks"]):
            return False
    return True


@contextlib.asynccontextmanager
async def trial(plane: ControlPlane) -> AsyncIterator[Trial]:
    """Install everything on a started control plane, run operator and server, and yield what to reach them by.

    Raises `TrialError`.
    """
    ports, folder = Ports.free(), plane.folder
    async with contextlib.AsyncExitStack() as stack:
        client = Client(await stack.enter_async_context(await connect(plane.admin)), field_manager="quickstart")
        try:
            await install(client, ports)
            kubeconfig = await service_account_kubeconfig(client, plane)
        except KubeError as error:
            raise TrialError(f"installing failed: {error}") from error
        server = await stack.enter_async_context(child("server", server_command(ports), folder / "server.log"))
        operator = await stack.enter_async_context(
            child("operator", controller_command(kubeconfig, ports, folder), folder / "controller.log")
        )
        try:
            await server.wait_answers(f"http://127.0.0.1:{ports.server_http}/readyz")
            await wait_serving(operator, client, ports)
        except ProcessError as error:
            raise TrialError(str(error)) from error
        yield Trial(client, plane.admin, folder, f"127.0.0.1:{ports.server_http}")
