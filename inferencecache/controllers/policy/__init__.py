"""CachePolicies and CacheTenants: what the server is told of them, and what it reports of tenants (spec 05 §7.5, §8).

    owners         which CacheTenant a tenant id belongs to, for the push and for the status alike   (pure)
    document       all of them as the body of `/policy`                                              (pure)
    reconciler     pushes that body when it changes, and every interval
    tenant_status  what a CacheTenant's status says after a scrape                                   (pure)

The status is written by the index poller, which has the numbers.
"""
