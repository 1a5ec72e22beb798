"""Where the ranks of a data-parallel engine are: a rule that engines and those who listen to them must agree on."""

from __future__ import annotations


def of_rank(endpoint: str, rank: int) -> str:
    """The ZMQ endpoint of a rank when rank 0 is at `endpoint`: on the port that many higher (spec 08 §3).

    No endpoint is none for every rank.

    Raises:
        ValueError: the endpoint has no port to count from.
    """
    if not endpoint or rank == 0:
        return endpoint
    host, colon, port = endpoint.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"{endpoint}: several ranks need an endpoint with a port to count from")
    return f"{host}:{int(port) + rank}"
