"""Ports that a process can still have when it has been started."""

from __future__ import annotations

import socket

from inferencecache.kube.ports import free_port, free_ports


def test_ports_differ_and_lie_where_systems_give_out_none_by_themselves() -> None:
    ports = free_ports(200)
    assert len(set(ports)) == 200
    assert set(ports) <= set(range(18_000, 30_000))


def test_a_port_in_use_is_passed_over() -> None:
    next_one = free_port() + 1
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", next_one))
        assert free_port() != next_one


def test_neighbours_are_free_too_and_given_to_nobody_else() -> None:
    pairs = [free_port(neighbours=1) for _ in range(50)]
    given = {port for first in pairs for port in (first, first + 1)}
    assert len(given) == 100
    assert given.isdisjoint(free_ports(50))
