"""What of an injected Pod stays as it is once the Pod exists.

The label tells that the Pod has a pool, the record what was decided, and the configuration is projected into the
running container, where a new address would take effect. Injection happens at creation only, so none of the three can
become true afterwards. Everything else of the Pod may change; a Pod that is being deleted still serves, and is held to
the same.
"""

from __future__ import annotations

from typing import Any, Final

from inferencecache.webhooks.kvcache_injection import keys
from inferencecache.webhooks.kvcache_injection.request import RULE, annotation
from inferencecache.webhooks.validation.findings import Violation, forbidden

_FROZEN: Final = (
    ("labels", keys.LABEL_INJECT, f"metadata.labels[{keys.LABEL_INJECT}]"),
    ("annotations", keys.ANNOTATION_INJECTED, annotation(keys.ANNOTATION_INJECTED)),
    ("annotations", keys.ANNOTATION_CLIENT_CONFIG, annotation(keys.ANNOTATION_CLIENT_CONFIG)),
)


def thawed(old: Any, new: Any) -> tuple[Violation, ...]:
    """The frozen keys that an update adds, changes or removes."""
    return tuple(
        forbidden(
            RULE, path, "this is decided when a Pod is created and cannot change: change the Pod template instead"
        )
        for part, key, path in _FROZEN
        if _value(old, part, key) != _value(new, part, key)
    )


def _value(pod: Any, part: str, key: str) -> Any:
    for name in ("metadata", part, key):
        pod = pod.get(name) if isinstance(pod, dict) else None
    return pod
