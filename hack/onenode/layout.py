"""Where the cluster keeps its things, and the addresses it uses: constants and paths, nothing is done here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

NODE: Final = "onenode"
BRIDGE: Final = "onenode0"
POD_RANGE: Final = "10.244.0.0/24"
SERVICE_RANGE: Final = "10.96.0.0/16"
KUBERNETES_SERVICE: Final = "10.96.0.1"
DNS_SERVICE: Final = "10.96.0.10"
DOMAIN: Final = "cluster.local"

APISERVER_PORT: Final = 16443
ETCD_PORT: Final = 12379
ETCD_PEER_PORT: Final = 12380
KUBELET_HEALTH_PORT: Final = 10248
KUBELET_PORT: Final = 10250
PROXY_HEALTH_PORT: Final = 10256
CONTROLLER_MANAGER_PORT: Final = 10257
SCHEDULER_PORT: Final = 10259
PORTS: Final = (
    APISERVER_PORT,
    ETCD_PORT,
    ETCD_PEER_PORT,
    KUBELET_HEALTH_PORT,
    KUBELET_PORT,
    PROXY_HEALTH_PORT,
    CONTROLLER_MANAGER_PORT,
    SCHEDULER_PORT,
)

PAUSE_IMAGE: Final = "inferencecache.io/onenode/pause:1"
DNS_IMAGE: Final = "inferencecache.io/onenode/coredns:1"


class Layout:
    """The files of a cluster below one folder; the per-user cache folder unless a test says otherwise."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / (
            "inferencecache/cluster"
        )
        self.logs = self.folder / "logs"
        self.certificates = self.folder / "pki"
        self.kubelet_client_certificate = self.certificates / "kubelet-client.crt"
        self.kubelet_client_key = self.certificates / "kubelet-client.key"
        self.etcd = self.folder / "etcd"
        self.containerd_root = self.folder / "containerd"
        self.containerd_state = self.folder / "containerd-state"
        self.containerd_socket = self.folder / "containerd.sock"
        self.containerd_config = self.folder / "containerd.toml"
        self.network = self.folder / "cni"
        self.kubelet = self.folder / "kubelet"
        self.kubelet_config = self.folder / "kubelet.yaml"
        self.tokens = self.folder / "tokens.csv"
        self.service_account_key = self.folder / "service-accounts.key"
        self.processes = self.folder / "processes.json"
        self.kernel_settings = self.folder / "kernel-settings.json"

    def kubeconfig(self, user: str = "admin") -> Path:
        """The kubeconfig of a user; the administrator's is for people."""
        return self.folder / f"{user}.kubeconfig"
