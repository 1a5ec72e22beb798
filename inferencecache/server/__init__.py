"""The data plane's server: who holds which prefix, and where a request should go.

Producers report what their engines hold, gateways ask LookupRoute, the controller pushes policies and reads snapshots.
Everything the server holds can be rebuilt: a restart lowers the hit rate until producers have reported again.
"""
