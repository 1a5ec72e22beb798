"""The KVCacheBackend reconciler: runs a Mooncake store, or looks at somebody else's, and says how it is doing.

One pass goes through these modules:

    render     the objects of a managed store: `leader`, `members`, `accounts`, in the terms of `objects`  (pure)
    act        brings them in line, members by `replacing` them, and removes them when the backend goes
    observe    the workloads, their `pods`, and the `reading` of the leader
    decide     from all that to conditions, capacity and phase; `membership` joins segments with Pods        (pure)
    status     from the verdict to the whole status, and the patch that writes it                            (pure)
    usage      drops claims of pools that are gone
    reconciler the order of these, and one status write

`reasons` are the words of the conditions. `registration` joins a manager.
"""

from inferencecache.controllers.kvcachebackend.registration import register

__all__ = ["register"]
