"""Our CRDs on the shared control plane, installed once for the many tests that only ask it questions."""

from __future__ import annotations

from inferencecache.api.kinds import crds
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane, install_crds

_DONE: set[ControlPlane] = set()


async def install_once(client: Client, plane: ControlPlane) -> None:
    """Install them unless an earlier test of this process did."""
    if plane not in _DONE:
        await install_crds(client, crds())
        _DONE.add(plane)
