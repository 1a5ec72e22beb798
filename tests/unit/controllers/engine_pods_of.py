"""Engine Pods for tests, as JSON would describe them."""

from __future__ import annotations

from typing import Any

import msgspec

from inferencecache.kube.kinds import Pod


def engine_pod(name: str = "e", *, uid: str = "u-1", by: str = "ns/kv", **more: Any) -> Pod:
    """A Pod with the marks of admission and the label `app: e`; keyword arguments are its `spec` and `status`."""
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "labels": {"app": "e"},
        "annotations": {"inferencecache.io/injected-by": by, "inferencecache.io/injected-by-uid": uid},
    }
    return msgspec.convert({"metadata": metadata, **more}, Pod)


def checked(name: str, ended: dict[str, Any] | None, *, strict: bool = False, last: bool = False) -> Pod:
    """A Pod with a kernel check that ended so, now or the time before; None: that has not ended."""
    check = {"name": "lmcache-kernel-check", "env": [{"name": "KERNEL_CHECK_STRICT", "value": "1" if strict else "0"}]}
    state: dict[str, Any] = {"terminated": ended} if ended is not None else {}
    status = {"name": "lmcache-kernel-check", "lastState" if last else "state": state}
    return engine_pod(name, spec={"initContainers": [check]}, status={"initContainerStatuses": [status]})
