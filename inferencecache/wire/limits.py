"""How much the server takes of what is sent to it, for its senders to know: what is longer would be refused whole."""

from __future__ import annotations

from typing import Final

LONGEST_NAME: Final = 1024
"""Characters of a tenant, model, hash scheme, adapter or replica. Nothing is taken under a longer one."""
LARGEST_POLICIES: Final = 1 << 20
"""Bytes of the document of policies and quotas."""
LARGEST_DOCUMENT: Final = 4 << 20
"""Bytes of the document of templates, and of that of topologies."""
