"""Pools and their Bindings: what namespaces ask for, on the ledgers of masters, and what masters say, in statuses.

    snapshot        what is claimed on one master: desired, registered, leaving and contested domains      (pure)
    documents       the policy document at each moment of a pass                                           (pure)
    claims          conditions and phases as statuses spell them                                           (pure)
    pool_status     what a pool's status says                                                              (pure)
    binding_status  what a Binding's status says, and when one may go                                      (pure)
    observe         where a pass looks, and what wakes it
    policy_file     the ConfigMap with the policy document
    masters         one pass at a time per master, and one look at it for several
    visit           what a serving pass does at a master
    teardown        the way of a pool out of the cluster
    act             what a pass writes to the API server
    reconciler      the order of these
    registration    joins a manager

`reasons` are the words of the conditions. `published` is a pool as it would be served, for commands without a cluster.

A Binding has no reconciler of its own. Ledger and document belong to a master, so whatever happens to a Binding is the
affair of its pool, whose pass looks at all pools of that master.
"""

from inferencecache.controllers.kvcachepool.registration import register

__all__ = ["register"]
