"""What the node's parts read at their start: the configuration of containerd, of the Pod network and of the kubelet.

Pure text. Each setting that is not a path or an address has its reason beside it: the machine may be a container, or a
small virtual machine with the older control groups, and then several defaults fail.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from hack.onenode.layout import BRIDGE, DNS_SERVICE, DOMAIN, PAUSE_IMAGE, POD_RANGE, Layout


def containerd_config(layout: Layout) -> str:
    """containerd's TOML."""
    return f"""\
version = 2
root = "{layout.containerd_root}"
state = "{layout.containerd_state}"
[grpc]
  address = "{layout.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Where oom_score_adj may not be lowered, runc fails to start a container at all.
  restrict_oom_score_adj = true
  # So that all mounts are below one folder, from where they can be taken away again.
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{layout.network}"
"""


def network_config(layout: Layout) -> str:
    """The Pod network: a bridge. Its way to other networks is `packetfilter`'s, which can undo it."""
    return json.dumps(
        {
            "cniVersion": "0.4.0",
            "name": BRIDGE,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": BRIDGE,
                    "isGateway": True,
                    "hairpinMode": True,  # a Pod may reach itself through its own Service
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(layout.network / "addresses"),
                        "ranges": [[{"subnet": POD_RANGE}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        },
        indent=2,
    )


def kubelet_config(layout: Layout, address: str) -> str:
    """The kubelet's YAML; `address` is where the API server finds it."""
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": DOMAIN,
        "resolvConf": "/dev/null",  # the cluster's own names are all there is
        # There need be no systemd, the machine's own processes are in no group the kubelet could hold to a limit, and
        # the older control groups are as good as the newer for a trial.
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": "/",
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        # The machine is a developer's: its disk may be fuller than a node's should be; no image can be fetched again.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        # Whoever shows the API server's certificate may do all; it has asked its own authorizer before.
        "address": address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(layout.kubelet_client_certificate)},
        },
        "authorization": {"mode": "AlwaysAllow"},
    }
    return yaml.safe_dump(config)
