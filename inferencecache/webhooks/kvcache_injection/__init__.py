"""A KV cache pool for any Pod that asks for one by a label (spec 10 §12.1); fails closed (decision A10)."""

from inferencecache.webhooks.kvcache_injection.injection import Injected, Refused, inject
from inferencecache.webhooks.kvcache_injection.request import read_request, wants_pool

__all__ = ["Injected", "Refused", "inject", "read_request", "wants_pool"]
