"""The shared log of several servers (`--index-store`): its state, its records, and where it lives.

Import it only where a store is used: it brings the Redis client along.
"""

from inferencecache.server.store.records import DOCUMENT, EVENT, UPDATE, Record
from inferencecache.server.store.settings import StoreSettings, parse
from inferencecache.server.store.shared_log import SharedLog, State

__all__ = ["DOCUMENT", "EVENT", "UPDATE", "Record", "SharedLog", "State", "StoreSettings", "parse"]
