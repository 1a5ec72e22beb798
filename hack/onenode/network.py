"""The machine's side of the Pod network: packet filter rules and kernel settings, and their removal.

The bridge plugin could write these rules itself, but takes them away only together with each Pod it made them for, and
a machine that is cleaned up in a hurry does not ask it to.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Final

from hack.onenode import packetfilter
from hack.onenode.layout import BRIDGE, POD_RANGE, SERVICE_RANGE, Layout

# Pods' packets pass the machine's FORWARD chain, which Docker, for one, closes; and leave under the machine's address.
_RULES: Final = (
    ("filter", "FORWARD", ("-i", BRIDGE, "-j", "ACCEPT")),
    ("filter", "FORWARD", ("-o", BRIDGE, "-j", "ACCEPT")),
    ("nat", "POSTROUTING", ("-s", POD_RANGE, "!", "-o", BRIDGE, "-j", "MASQUERADE")),
    ("filter", "OUTPUT", ("-d", SERVICE_RANGE, "-j", "REJECT")),
)
# A Service's address that is still one after kube-proxy's rules has nothing behind it. It must not leave the machine,
# where a network may have somebody who answers for any address. From Pods the policy controller accepts it before
# kube-proxy's rule that refuses it is asked, so there it is refused by routing.
_NOWHERE: Final = ("iif", BRIDGE, "to", SERVICE_RANGE, "unreachable")
# Chains of kube-proxy, the kubelet and the policy controller, which leave them behind; and sets of the last one.
_CHAINS: Final = re.compile(r"KUBE-.*")
_SETS: Final = re.compile(r"KUBE-(SRC|DST)-.*")
# Services are routed by the packet filter, so packets between two Pods on the bridge have to pass it as well.
_KERNEL_SETTINGS: Final = {
    "net/ipv4/ip_forward": "1",
    "net/bridge/bridge-nf-call-iptables": "1",
}


def open_up(layout: Layout) -> None:
    """Let Pods reach each other, the machine and what is behind it."""
    before = {name: _setting(name).read_text().strip() for name in _KERNEL_SETTINGS}
    layout.kernel_settings.write_text(json.dumps(before))
    for name, value in _KERNEL_SETTINGS.items():
        _setting(name).write_text(value)
    for table, chain, rule in _RULES:
        if not _iptables(table, "-C", chain, *rule):
            _iptables(table, "-I", chain, *rule)
    subprocess.run(["ip", "rule", "add", *_NOWHERE], check=True)


def enforces() -> bool:
    """Whether packets pass the policy controller's rules."""
    return _iptables("filter", "-n", "-L", "KUBE-NWPLCY-DEFAULT")


def close(layout: Layout) -> None:
    """Undo `open_up`, and remove the bridge and the rules of the parts that have ended."""
    for table, chain, rule in _RULES:
        while _iptables(table, "-D", chain, *rule):
            pass
    while subprocess.run(["ip", "rule", "delete", *_NOWHERE], check=False, capture_output=True).returncode == 0:
        pass
    packetfilter.remove(_CHAINS)
    packetfilter.remove_sets(_SETS)
    if Path(f"/sys/class/net/{BRIDGE}").exists():
        subprocess.run(["ip", "link", "delete", BRIDGE], check=True)
    if layout.kernel_settings.exists():
        for name, value in json.loads(layout.kernel_settings.read_text()).items():
            _setting(name).write_text(value)


def _setting(name: str) -> Path:
    return Path("/proc/sys") / name


def _iptables(table: str, *arguments: str) -> bool:
    done = subprocess.run(["iptables", "-w", "-t", table, *arguments], capture_output=True, check=False)
    return done.returncode == 0
