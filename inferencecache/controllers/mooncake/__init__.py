"""What is said to a Mooncake master, and what is written for it. Nothing here knows Kubernetes.

A master keeps one *ledger*: for every tenant (this product's reuse domain) the bytes it asked for, the bytes it was
granted, and the bytes it is charged with. `admin` reads and writes it over HTTP, `ledger` decides what to write,
`policy` renders the file a master reads it from when it starts, and `exposition` reads the figures out of its metrics.
"""
