"""Who may speak to the API server: a token and a kubeconfig for each part, and the key that signs service accounts."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from hack.onenode.layout import NODE, Layout
from inferencecache.kube.pki import make_ca

ADMIN: Final = "admin"
CONTROLLER_MANAGER: Final = "kube-controller-manager"
SCHEDULER: Final = "kube-scheduler"
PROXY: Final = "kube-proxy"
KUBELET: Final = "kubelet"

# Name of the file, user name, group.
_USERS: Final = (
    (ADMIN, "admin", "system:masters"),
    (CONTROLLER_MANAGER, "system:kube-controller-manager", ""),
    (SCHEDULER, "system:kube-scheduler", ""),
    (PROXY, "system:kube-proxy", ""),
    (KUBELET, f"system:node:{NODE}", "system:nodes"),
)


def write_credentials(layout: Layout) -> Mapping[str, str]:
    """Make the tokens and the signing key, and write what the API server reads of them. The tokens, by file name."""
    tokens = {name: secrets.token_hex(16) for name, _, _ in _USERS}
    rows = (f'{tokens[name]},{user},{user},"{group}"\n' for name, user, group in _USERS)
    _write_private(layout.tokens, "".join(rows).encode())
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write_private(
        layout.service_account_key,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    # What the API server shows the kubelet, which lets nobody else in: a certificate that is its own authority.
    client = make_ca("kube-apiserver", now=datetime.now(UTC), lifetime=timedelta(days=365))
    _write_private(layout.kubelet_client_certificate, client.certificate)
    _write_private(layout.kubelet_client_key, client.key)
    return tokens


def write_kubeconfigs(layout: Layout, server: str, tokens: Mapping[str, str]) -> None:
    """Write a kubeconfig for each token; the API server must have made its certificate."""
    authority = base64.b64encode((layout.certificates / "apiserver.crt").read_bytes()).decode()
    for name, token in tokens.items():
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": NODE,
            "clusters": [{"name": NODE, "cluster": {"server": server, "certificate-authority-data": authority}}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": NODE, "context": {"cluster": NODE, "user": name}}],
        }
        _write_private(layout.kubeconfig(name), yaml.safe_dump(document).encode())


def _write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
