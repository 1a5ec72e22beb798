"""The product as users run it: its images, in a real cluster, with real stores, wired by the live webhook."""
