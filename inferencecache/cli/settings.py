"""What a controller process was told, parsed once and frozen.

Bad values end the process at start (`SettingsError`, exit 1), so that nothing discovers them an hour later.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from inferencecache.adapters import DEFAULT_POLICY_SERVER
from inferencecache.wire.servers import hosts_and_ports

SERVER = "http://inference-cache-server:8081"
REFRESH_INTERVAL = timedelta(seconds=30)
POOL_NAMESPACE = "gpustack-system"
"""Where stores run if neither a flag nor a Pod says so (spec 10 §2.4)."""
BACKEND_IMAGE = "gpustack/mirrored-mooncake:0.3.13.post1-cpu"
# The name alone: `tempfile` looks for a folder it can write to, which a read-only container need not have.
CERT_DIR = Path(os.environ.get("TMPDIR") or "/tmp") / "k8s-webhook-server" / "serving-certs"

_BACKEND_IMAGE_VARIABLE = "GPUSTACK_KV_CACHE_BACKEND_IMAGE"
_DTYPE_OWNED_VARIABLE = "GPUSTACK_MODEL_DEPLOYMENT_KV_CACHE_DTYPE_OWNED"
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class SettingsError(Exception):
    """A flag holds a value the controller cannot start with; the message names the flag and the remedy."""


def read_certificates(flag: str, path: str) -> str:
    """The certificates, in PEM, of the file that a flag names; empty without a name. Raises `SettingsError`."""
    if not path:
        return ""
    try:
        text = Path(path).read_text("ascii")
        ssl.create_default_context(cadata=text)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise SettingsError(f"{flag}={path}: needs a readable file of certificates in PEM: {error}") from error
    return text


def _can_be_connected_to(endpoint: str) -> bool:
    """Whether a ZMQ endpoint is one of TCP with a host, which `*` is none, and a port."""
    try:
        parts = urlsplit(endpoint)
        whole = endpoint == f"tcp://{parts.netloc}" and "@" not in endpoint
        return whole and parts.hostname not in (None, "*") and bool(parts.port)
    except ValueError:  # a port of another kind, or half of an IPv6 address
        return False


@dataclass(frozen=True, kw_only=True)
class ControllerSettings:
    """Every setting of `inferencecache controller` (spec 05 §1.1).

    The three server URLs and the two intervals belong to the cache server's clients: `server_probe_url` is read by
    the functional probe, `server_snapshot_url` and `cacheindex_refresh_interval` by the CacheIndex poller,
    `server_policy_url` and `cachepolicy_push_interval` by the policy push. They are checked also where the half that
    they belong to is off, so that a command line that starts without it starts with it, too.
    """

    kubeconfig: str = ""
    metrics_bind_address: str = ":8080"
    metrics_secure: bool = False
    health_probe_bind_address: str = ":8081"
    webhook_port: int = 9443
    webhook_cert_dir: Path = CERT_DIR
    webhook_shutdown_delay: timedelta = timedelta(0)
    leader_elect: bool = False
    leader_election_namespace: str = ""
    kvevent_subscriber_image: str = ""
    kvevent_replay_endpoint: str = ""
    policy_server_grpc_address: str = DEFAULT_POLICY_SERVER
    policy_server_tls: bool = False
    policy_server_ca: str = ""
    policy_server_audience: str = ""
    server_snapshot_url: str = f"{SERVER}/snapshot"
    server_policy_url: str = f"{SERVER}/policy"
    server_probe_url: str = f"{SERVER}/probe"
    cacheindex_refresh_interval: timedelta = REFRESH_INTERVAL
    cachepolicy_push_interval: timedelta = REFRESH_INTERVAL
    enable_cache_backends: bool = True
    enable_kv_cache_pools: bool = True
    kv_cache_namespace: str = ""
    kv_cache_backend_image: str = ""
    kv_cache_dtype_owned: bool | None = None

    def __post_init__(self) -> None:
        if not (self.enable_cache_backends or self.enable_kv_cache_pools):
            raise SettingsError(
                "--no-enable-cache-backends and --no-enable-kv-cache-pools leave nothing to do: drop one of them"
            )
        if not self.server_policy_url:
            raise SettingsError("--server-policy-url is empty: give the address the cache server takes policies at")
        for flag, url in (
            ("--server-snapshot-url", self.server_snapshot_url),
            ("--server-policy-url", self.server_policy_url),
            ("--server-probe-url", self.server_probe_url),
        ):
            parts = urlsplit(url)
            if url and (parts.scheme not in ("http", "https") or not parts.netloc):
                raise SettingsError(f"{flag}={url}: needs an http:// or https:// address")
            if "@" in parts.netloc:
                # The address itself is not repeated, as a password may be in it.
                raise SettingsError(
                    f"{flag} has a user in its address, and the server knows callers by their token: remove what "
                    "stands before the @"
                )
        if "@" in self.policy_server_grpc_address:
            raise SettingsError(
                f"--policy-server-grpc-address={self.policy_server_grpc_address}: needs host:port; remove what stands "
                "before the @"
            )
        if self.policy_server_grpc_address:
            try:
                hosts_and_ports("--policy-server-grpc-address", self.policy_server_grpc_address)
            except ValueError as error:
                raise SettingsError(str(error)) from error
        if self.kvevent_replay_endpoint and not _can_be_connected_to(self.kvevent_replay_endpoint):
            raise SettingsError(
                f"--kvevent-replay-endpoint={self.kvevent_replay_endpoint}: needs tcp://host:port, as a sidecar in the "
                "engine's Pod connects to it"
            )
        for name in ("cacheindex_refresh_interval", "cachepolicy_push_interval"):
            if getattr(self, name) <= timedelta(0):
                object.__setattr__(self, name, REFRESH_INTERVAL)

    def namespace(self, mount: Path = _SERVICE_ACCOUNT_NAMESPACE) -> str:
        """The namespace this process lives in: the service-account mount, else `POD_NAMESPACE`, else the flag.

        Empty outside a cluster when nothing names one.
        """
        try:
            mounted = mount.read_text().strip()
        except OSError:
            mounted = ""
        return mounted or os.environ.get("POD_NAMESPACE", "") or self.leader_election_namespace

    def pool_namespace(self, mount: Path = _SERVICE_ACCOUNT_NAMESPACE) -> str:
        """The namespace that stores run in: the flag, else the process's own, else `gpustack-system`."""
        return self.kv_cache_namespace or self.namespace(mount) or POOL_NAMESPACE

    @property
    def backend_image(self) -> str:
        """The image of stores that name none: the flag, else the environment, else the product's (spec 10 §13)."""
        return self.kv_cache_backend_image or os.environ.get(_BACKEND_IMAGE_VARIABLE, "") or BACKEND_IMAGE

    @property
    def dtype_owned(self) -> bool:
        """Whether Bindings own the dtype of engines: the flag, else the environment; unreadable counts as yes."""
        if self.kv_cache_dtype_owned is not None:
            return self.kv_cache_dtype_owned
        return os.environ.get(_DTYPE_OWNED_VARIABLE, "").strip() not in _FALSE
