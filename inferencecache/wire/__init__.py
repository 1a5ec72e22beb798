"""Contracts shared by producers, the server and gateways: the RPC messages and the content fingerprint.

Whatever crosses a process border of the data plane is defined here once. The room knows bytes: no Kubernetes, no HTTP.
"""
