"""What the defaulting webhook adds to a CacheBackend (spec 02 §3, rows D1–D4), on the raw JSON of the request.

A present value is never touched, so nothing is ever re-spelled; when there is nothing to add, the object comes back as
it is. Literal defaults belong to the schema; these four depend on other fields, or give the schema a parent to fill.
"""

from __future__ import annotations

from typing import Any, Final

FIRST_EVENT_TIMEOUT: Final = "5m"


def default_cache_backend(raw: dict[str, Any]) -> dict[str, Any]:
    """The object with the context-dependent defaults; the argument itself is not changed."""
    given = raw.get("spec")
    spec: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
    if spec.get("integration") is None:
        spec["integration"] = {}  # D1
    observation = dict(spec.get("observation") or {})  # D2
    if observation.get("firstEventTimeout") is None:
        observation["firstEventTimeout"] = FIRST_EVENT_TIMEOUT  # D3
    spec["observation"] = observation
    autoscaling, replicas = spec.get("autoscaling"), spec.get("replicas")
    if autoscaling is not None and autoscaling.get("minReplicas") is None and replicas is not None and replicas >= 1:
        spec["autoscaling"] = {**autoscaling, "minReplicas": replicas}  # D4
    return raw if spec == given else {**raw, "spec": spec}
