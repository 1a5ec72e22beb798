"""The label and the annotations of a Pod's KV cache (spec 10 §12.1). Other people's manifests depend on them."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "kvcache.gpustack.ai/"

LABEL_INJECT: Final = f"{PREFIX}inject"
INJECT: Final = "true"
"""The label's only value that asks for anything."""

# What a Pod's owner sets.
ANNOTATION_BINDING: Final = f"{PREFIX}binding"
ANNOTATION_ENGINE: Final = f"{PREFIX}engine"
ANNOTATION_MANUFACTURER: Final = f"{PREFIX}manufacturer"
ANNOTATION_ROLE: Final = f"{PREFIX}role"
ANNOTATION_CONTAINER: Final = f"{PREFIX}container"
ANNOTATION_FORWARDED: Final = f"{PREFIX}launch-args-forwarded"

# What the webhook writes.
ANNOTATION_INJECTED: Final = f"{PREFIX}injected"
ANNOTATION_CLIENT_CONFIG: Final = f"{PREFIX}client-config"

ANNOTATION_DOMAIN: Final = f"{PREFIX}domain"
"""Refused: a domain is registered by a Binding, not by who uses it."""
