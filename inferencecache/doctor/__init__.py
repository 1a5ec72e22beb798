"""Looking at a live installation and saying what is wrong with it, without changing anything.

Two questions are answered here. `doctor` goes over everything and reports findings, each under a code that never
changes its meaning. `explain` takes one engine Pod and tells which CacheBackend it belongs to, whether it was wired,
and if not, why not; it asks the webhook's own functions.

Both have the shape of a reconciler without its last third. `observe` gathers everything there is to know, at once and
within one deadline, and turns every failure to read into a value: what could not be read is itself a finding. The
modules in `checks` are pure functions from observations to findings, one per subject. `report` counts and prints.
"""
