"""The sidecar beside an engine: it turns the engine's KV-cache events and load metrics into reports to the server.

Its core is pure: `adapters`, `tiers`, `table`, `holds` and `chain` do no I/O and know no clock. Events go in, as
`inferencecache.wire.events` decodes them; what changes in the index comes out. Only metadata leaves the Pod: tokens are
hashed here.
"""
