"""Why one engine Pod is wired, or is not: `inferencecache explain pod`.

`observe` reads the Pod and what admission would look at, `decide` asks the webhook's own functions what they would do
with this Pod now and compares, `show` prints. The comparison is possible because admitting a wired Pod again changes
nothing in it (decision A3): whatever would change has changed since.
"""
