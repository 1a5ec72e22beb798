"""PDTopologies: their pools resolved into Pods and pushed to the server, which routes over them.

pools       which Pods a pool consists of                                          (pure)
document    all topologies as the body of `/topologies`                            (pure)
status      what a PDTopology's status says                                        (pure)
reconciler  pushes when something changes and every interval, then writes statuses
"""
