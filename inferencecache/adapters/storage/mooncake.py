"""A managed Mooncake master, on the host network behind a headless Service (spec 04 §8).

Mooncake moves data between the addresses its peers announce, so the master must be reached at the address it sees
itself: hence the host network, and a name that resolves to the node instead of a virtual address.
"""

from __future__ import annotations

from typing import Final

from inferencecache.adapters.registry import Workload, storage
from inferencecache.adapters.storage.workload import container, declared, resources, service_port
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend, RemoteStorage, ServerSpec

DEFAULT_IMAGE: Final = "docker.io/kvcacheai/mooncake:0.3.11.post1"
RPC_PORT: Final = 50051
METADATA_PORT: Final = 8080
METRICS_PORT: Final = 9003
_COMMAND: Final = (
    "mooncake_master",
    f"--rpc_port={RPC_PORT}",
    f"--metrics_port={METRICS_PORT}",
    "--enable_http_metadata_server=true",
    "--http_metadata_server_host=0.0.0.0",
    f"--http_metadata_server_port={METADATA_PORT}",
)


@storage.register
class ManagedMooncake:
    """The adapter for (Mooncake, Managed)."""

    def supports(self, storage: RemoteStorage) -> bool:
        return storage.provider == c.PROVIDER_MOONCAKE and storage.managed

    def render(self, backend: CacheBackend) -> Workload:
        block = declared(backend).mooncake or ServerSpec()
        master = container(
            "mooncake-master",
            image=block.image or DEFAULT_IMAGE,
            argv=block.command or _COMMAND,
            ports={"mooncake-rpc": RPC_PORT, "mooncake-meta": METADATA_PORT, "metrics": METRICS_PORT},
            resources=resources(backend),
            first_check_after=5,
        )
        ports = [service_port("mooncake-rpc", RPC_PORT), service_port("mooncake-meta", METADATA_PORT)]
        return Workload(
            pod_spec={"containers": [master], "hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"},
            service_spec={"type": "ClusterIP", "clusterIP": "None", "ports": ports},
        )
