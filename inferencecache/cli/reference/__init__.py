"""The documentation that follows from the code: pages written from declarations, and examples made by running it.

Nothing here runs in a cluster or on a user's command line. `hack/generate.py` writes what these modules return, and a
test compares it with what is committed, so no such page can say what the code does not do.
"""
