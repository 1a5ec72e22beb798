"""Adapters: what a runtime, a cache type or a store needs, each in one module, found through a registry.

A runtime adapter knows how engine Pods of one (runtime, type) are wired; a storage adapter knows what runs for one
(provider, ownership). They meet in a `Binding`, a protocol and an address, and know nothing of each other. All of it
is pure: Pods and workloads are plain manifests, and nothing here talks to a cluster.
"""

from typing import Final

DEFAULT_POLICY_SERVER: Final = "inference-cache-server.inference-cache-system.svc.cluster.local:9090"
"""Where sidecars report. It is here because the command line shows it, and must not load the kinds for that."""
