"""The sidecar that reads an engine's KV events and reports them to the index (spec 04 §6)."""

from __future__ import annotations

from typing import Any, Final

from inferencecache.adapters.pods import SUBSCRIBER
from inferencecache.adapters.registry import Container, Settings
from inferencecache.api.cachebackend import CacheBackend

ENGINE_ENDPOINT: Final = "tcp://127.0.0.1:5557"


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
    }


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
