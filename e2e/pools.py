"""A store of the operator's own and its pool, as a user would write them."""

from __future__ import annotations

from typing import Any, Final

from e2e.world import STORES_IMAGE, Manifest, World, until

GROUP: Final = "worker.gpustack.ai/v1"
STORES: Final = "inference-cache-pools"


def backend_and_pool(name: str) -> tuple[Manifest, Manifest]:
    """A backend with one leader and one member, and its pool of 64Mi; both are the cluster's."""
    spec: dict[str, Any] = {
        "image": STORES_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "connection": {
            "managed": {
                "leader": {"electionBackend": "None"},
                "members": [
                    {
                        "nodeSelector": {"kubernetes.io/os": "linux"},
                        "medium": "DRAM",
                        "capacityPerMember": "128Mi",
                    }
                ],
            }
        },
    }
    return (
        {"apiVersion": GROUP, "kind": "KVCacheBackend", "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": GROUP,
            "kind": "KVCachePool",
            "metadata": {"name": name},
            "spec": {"backends": [name], "quota": {"total": "64Mi"}},
        },
    )


def is_ready(world: World, kind: str, name: str) -> Manifest:
    """The object, once its phase says Ready; what its conditions say instead is shown."""

    def ready() -> Manifest:
        found = world.get(kind, name)
        status = found.get("status", {})
        assert status.get("phase") == "Ready", (status.get("phase"), status.get("conditions"))
        return found

    return until(ready, within=240)
