"""Our kinds as they were before their rules came, to store what could not be stored today."""

from __future__ import annotations

from typing import Any


def without_rules(schema: Any) -> Any:
    """A CRD, or a part or list of them, without rules and without the bound on names."""
    if isinstance(schema, list):
        return [without_rules(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: without_rules(value)
        for name, value in schema.items()
        if name not in ("x-kubernetes-validations", "maxLength")
    }
