"""The sidecar that reads an engine's KV events and reports them to the index (spec 04 §6).

What it needs to trust the server and to be trusted (decision D9) comes with the Pod itself: the CA as an argument, as
it is public, and a token of the Pod's own ServiceAccount. Nothing has to be copied into the namespaces of engines.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from inferencecache.adapters.pods import SUBSCRIBER
from inferencecache.adapters.registry import Container, Settings
from inferencecache.api.cachebackend import CacheBackend

ENGINE_ENDPOINT: Final = "tcp://127.0.0.1:5557"
TOKEN_VOLUME: Final = "kvevent-subscriber-token"
_TOKEN_FOLDER: Final = "/var/run/secrets/inferencecache.io/server-token"


def subscriber_container(backend: CacheBackend, settings: Settings, *, hash_scheme: str) -> Container | None:
    """The sidecar for a backend's engines, or None without an image or a model id to report under.

    Under Offload an evicted block is still held by the tier below, so it is reported as colder instead of gone; under
    EventsOnly nothing holds it (seed: Events-only mode).
    """
    if not settings.kvevent_subscriber_image or not backend.model_id:
        return None
    args = [
        f"--engine-endpoint={ENGINE_ENDPOINT}",
        f"--server={settings.policy_server}",
        "--replica-id=$(POD_NAME)",
        "--tenant-id=$(POD_NAMESPACE)",
        f"--model-id={backend.model_id}",
        f"--hash-scheme={hash_scheme}",
    ]
    if not backend.events_only:
        args.append("--ignore-block-removed=true")
    if settings.kvevent_replay_endpoint:
        args.append(f"--replay-endpoint={settings.kvevent_replay_endpoint}")
    if settings.policy_server_tls:
        args.append("--server-tls=true")
    if settings.policy_server_ca:
        args.append(f"--server-ca-data={base64.b64encode(settings.policy_server_ca.encode()).decode()}")
    mounts: dict[str, Any] = {}
    if settings.policy_server_audience:
        args.append(f"--server-token-file={_TOKEN_FOLDER}/token")
        mounts["volumeMounts"] = [{"name": TOKEN_VOLUME, "mountPath": _TOKEN_FOLDER, "readOnly": True}]
    return {
        "name": SUBSCRIBER,
        "image": settings.kvevent_subscriber_image,
        "imagePullPolicy": "IfNotPresent",
        "args": args,
        "env": [_field("POD_NAME", "metadata.name"), _field("POD_NAMESPACE", "metadata.namespace")],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **mounts,
    }


def token_volume(settings: Settings) -> dict[str, Any] | None:
    """The Pod's volume with the token that the sidecar shows, or None if it shows none."""
    if not settings.policy_server_audience:
        return None
    token = {"audience": settings.policy_server_audience, "expirationSeconds": 3600, "path": "token"}
    return {"name": TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
