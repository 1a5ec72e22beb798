"""The CacheBackend reconciler: runs the managed store of a backend and says how the backend is doing.

One pass goes through these modules:

    plan      which of the five paths the backend takes, and what its store runs      (pure)
    children  the Deployment or StatefulSet, the Service and the autoscaler           (pure)
    act       brings the children in line, and tells what is there afterwards
    observe   the engines and rivals of the backend, from informers; `selected` and `rivals` find them
    decide    from all that to Ready, Degraded and the time of the next look          (pure)
    cascade   rolls the engines when the store was replaced; `instances` judges that  (pure)
    status    from the decision to the whole status, and the patch that writes it     (pure)
    narrate   which Events the change from one status to the next deserves            (pure)
    reconciler  the order of these, one status write, Events only after it

`decide` passes a verdict (`facts`) from gate to gate: the first event in `decide` itself, then `functional_probe`,
`kernels`, `second_tier` and `crash_loop`. `probing` calls the probe beside the passes; `engines` counts what the
selector finds; `metrics` has the counters of a backend.

`published` says offline what all of that would have made of a backend.
"""
