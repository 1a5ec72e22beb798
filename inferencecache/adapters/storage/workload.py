"""What managed stores have in common: the shape of their container, its resources, its Service (spec 04 §8)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final

from inferencecache.adapters.registry import Container, RenderError
from inferencecache.api.cachebackend import CacheBackend, RemoteStorage
from inferencecache.api.quantity import Quantity

DEFAULT_RESOURCES: Final = {"requests": {"memory": "4Gi"}, "limits": {"memory": "8Gi"}}
AUTOSCALING_CPU_REQUEST: Final = "250m"
"""What a container without a CPU request asks for under an autoscaler; less, if its limit is less."""


def declared(backend: CacheBackend) -> RemoteStorage:
    """The declaration that a store is rendered from. Raises `RenderError`."""
    if backend.spec.remote_storage is None:
        raise RenderError(f"CacheBackend {backend.metadata.name} has no spec.remoteStorage to render")
    return backend.spec.remote_storage


def resources(backend: CacheBackend) -> dict[str, Any]:
    """The resources of a managed store's container. Raises `RenderError`.

    An explicit block, even an empty one, replaces the default. An autoscaler divides by the CPU request, so one is made
    up where there is none, or none above zero (seed: Resources).
    """
    block = declared(backend).provider_block
    given = block.resources if block else None
    wanted: dict[str, Any] = copy.deepcopy(DEFAULT_RESOURCES) if given is None else given.manifest()
    if backend.spec.autoscaling is not None:
        requests = wanted.get("requests") or {}
        if Quantity(requests.get("cpu", 0)).value <= 0:
            limit = (wanted.get("limits") or {}).get("cpu", AUTOSCALING_CPU_REQUEST)
            within = 0 < Quantity(limit).value < Quantity(AUTOSCALING_CPU_REQUEST).value
            wanted["requests"] = {**requests, "cpu": limit if within else AUTOSCALING_CPU_REQUEST}
    return wanted


def container(
    name: str,
    *,
    image: str,
    argv: Sequence[str],
    ports: dict[str, int],
    resources: dict[str, Any],
    first_check_after: int,
    through_entry_point: bool = False,
) -> Container:
    """A store's container, ready once its first port accepts connections.

    `argv` takes the place of the image's entry point, or, `through_entry_point`, is what that is given to run.
    """
    command, args = ([], [*argv]) if through_entry_point else ([argv[0]], [*argv[1:]])
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        **({"command": command} if command else {}),
        **({"args": args} if args else {}),
        "ports": [{"name": port, "containerPort": number, "protocol": "TCP"} for port, number in ports.items()],
        "readinessProbe": {
            "tcpSocket": {"port": next(iter(ports))},
            "initialDelaySeconds": first_check_after,
            "periodSeconds": 10,
            "failureThreshold": 6,
        },
        **({"resources": resources} if resources else {}),
    }


def service_port(name: str, number: int) -> dict[str, Any]:
    """A Service port that follows the container port of the same name."""
    return {"name": name, "port": number, "protocol": "TCP", "targetPort": name}
