"""KV-cache offload and cache-aware routing for LLM inference engines, as a Kubernetes API."""

__version__ = "0.1.0"
