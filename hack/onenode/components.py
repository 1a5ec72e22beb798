"""The command line of each part, and how to tell that it is ready. Flags are explained where they are not the usual."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from hack.onenode import access
from hack.onenode.layout import (
    APISERVER_PORT,
    CONTROLLER_MANAGER_PORT,
    ETCD_PEER_PORT,
    ETCD_PORT,
    KUBELET_HEALTH_PORT,
    NODE,
    POD_RANGE,
    PROXY_HEALTH_PORT,
    SCHEDULER_PORT,
    SERVICE_RANGE,
    Layout,
)

_ETCD: Final = f"http://127.0.0.1:{ETCD_PORT}"
_ETCD_PEER: Final = f"http://127.0.0.1:{ETCD_PEER_PORT}"


def etcd(layout: Layout, binaries: Path) -> list[str]:
    """The store. A power cut may cost a trial its data, so it does not wait for the disk."""
    return [
        f"{binaries}/etcd",
        f"--data-dir={layout.etcd}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        f"--listen-peer-urls={_ETCD_PEER}",
        f"--initial-advertise-peer-urls={_ETCD_PEER}",
        f"--initial-cluster=default={_ETCD_PEER}",
    ]


def etcd_ready() -> bool:
    """Whether it takes requests."""
    return _answers(f"{_ETCD}/health")


def apiserver(layout: Layout, binaries: Path, address: str) -> list[str]:
    """The API server, on the node's address: Pods reach it there, through the Service `kubernetes`."""
    return [
        f"{binaries}/kube-apiserver",
        f"--etcd-servers={_ETCD}",
        f"--bind-address={address}",
        f"--advertise-address={address}",
        f"--secure-port={APISERVER_PORT}",
        f"--cert-dir={layout.certificates}",
        f"--token-auth-file={layout.tokens}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--service-account-key-file={layout.service_account_key}",
        f"--service-account-signing-key-file={layout.service_account_key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={layout.kubelet_client_certificate}",
        f"--kubelet-client-key={layout.kubelet_client_key}",
    ]


def apiserver_url(address: str) -> str:
    """Where it is reached."""
    return f"https://{address}:{APISERVER_PORT}"


def apiserver_ready(layout: Layout, address: str, token: str) -> bool:
    """Whether it says so to somebody who may ask."""
    certificate = layout.certificates / "apiserver.crt"
    return certificate.exists() and _answers(f"{apiserver_url(address)}/readyz", token=token, authority=certificate)


def controller_manager(layout: Layout, binaries: Path) -> list[str]:
    """The controllers of Kubernetes' own kinds. There is one, so it need not be elected."""
    return [
        f"{binaries}/kube-controller-manager",
        "--bind-address=127.0.0.1",
        f"--kubeconfig={layout.kubeconfig(access.CONTROLLER_MANAGER)}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={layout.service_account_key}",
        f"--root-ca-file={layout.certificates / 'apiserver.crt'}",
    ]


def controller_manager_ready() -> bool:
    """Whether its checks pass."""
    return _answers(f"https://127.0.0.1:{CONTROLLER_MANAGER_PORT}/healthz")


def scheduler(layout: Layout, binaries: Path) -> list[str]:
    """The scheduler, whose choice is small."""
    return [
        f"{binaries}/kube-scheduler",
        "--bind-address=127.0.0.1",
        f"--kubeconfig={layout.kubeconfig(access.SCHEDULER)}",
        "--leader-elect=false",
    ]


def scheduler_ready() -> bool:
    """Whether its checks pass."""
    return _answers(f"https://127.0.0.1:{SCHEDULER_PORT}/healthz")


def containerd(layout: Layout) -> list[str]:
    """Debian's, with its own configuration, data and socket beside any other of this machine."""
    return ["containerd", "--config", str(layout.containerd_config)]


def kubelet(layout: Layout, binaries: Path, address: str) -> list[str]:
    """The node agent."""
    return [
        f"{binaries}/kubelet",
        f"--config={layout.kubelet_config}",
        f"--kubeconfig={layout.kubeconfig(access.KUBELET)}",
        f"--root-dir={layout.kubelet}",
        f"--cert-dir={layout.certificates}",
        f"--hostname-override={NODE}",
        f"--node-ip={address}",
    ]


def kubelet_ready() -> bool:
    """Whether it lives; that its node is ready is the API server's to tell."""
    return _answers(f"http://127.0.0.1:{KUBELET_HEALTH_PORT}/healthz")


def proxy(layout: Layout, binaries: Path) -> list[str]:
    """What makes Services reachable, from Pods and from the machine: the API server calls webhooks by Service."""
    return [
        f"{binaries}/kube-proxy",
        f"--kubeconfig={layout.kubeconfig(access.PROXY)}",
        f"--hostname-override={NODE}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={POD_RANGE}",
        f"--healthz-bind-address=127.0.0.1:{PROXY_HEALTH_PORT}",
        "--oom-score-adj=0",
        "--conntrack-max-per-core=0",  # the table's size is the machine's own affair
    ]


def proxy_ready() -> bool:
    """Whether it has written its rules lately."""
    return _answers(f"http://127.0.0.1:{PROXY_HEALTH_PORT}/healthz")


def policies(layout: Layout, binaries: Path) -> list[str]:
    """What enforces NetworkPolicies; as administrator, since no role of Kubernetes' own shows it just what it needs."""
    return [
        f"{binaries}/netpol",
        f"--kubeconfig={layout.kubeconfig()}",
        f"--hostname-override={NODE}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
    ]


def _answers(url: str, *, token: str = "", authority: Path | None = None) -> bool:
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if url.startswith("https:"):
        # Without an authority it is a health check on loopback, behind a certificate made for the occasion.
        context = ssl.create_default_context(cafile=authority) if authority else ssl._create_unverified_context()
        handlers.append(urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
