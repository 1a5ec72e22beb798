"""The CacheBackend reconciler: runs the managed store of a backend and says how the backend is doing.

One pass goes through these modules, and only the first and the last two of them talk to a cluster:

    observe   the backend, its engines and its rivals, as one frozen value
    plan      which of the five paths the backend takes, and what its store runs      (pure)
    children  the Deployment or StatefulSet, the Service and the autoscaler           (pure)
    act       brings the children in line, and tells what is there afterwards
    decide    from all that to Ready, Degraded and the time of the next look          (pure)
    status    from the decision to the whole status, and the patch that writes it     (pure)
    narrate   which Events the change from one status to the next deserves            (pure)
    reconciler  the order of these, one status write, Events only after it

`published` says offline what all of that would have made of a backend.
"""
