"""What `--server` may name, and which addresses that means."""

from __future__ import annotations

import socket
import threading

import pytest

from inferencecache.subscriber.channel import Address
from inferencecache.subscriber.servers import Target, addresses_of, parse_targets


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("127.0.0.1:9090", [Target("127.0.0.1", 9090)]),
        ("a.b.svc:1, b:2 ,", [Target("a.b.svc", 1), Target("b", 2)]),
        ("[::1]:9090", [Target("::1", 9090)]),
        ("dns:///server:9090", [Target("server", 9090)]),
        ("dns:server:9090", [Target("server", 9090)]),
    ],
)
def test_names_with_ports(text: str, targets: list[Target]) -> None:
    assert parse_targets(text) == targets


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "server",
        "server:",
        ":9090",
        "server:http",
        "server:0",
        "server:65536",
        "u@server:1",
        "a..b:1",
        f"{'a' * 64}:1",
    ],
)
def test_what_is_no_address_is_refused_by_the_flag(text: str) -> None:
    with pytest.raises(ValueError, match="--server"):
        parse_targets(text)


async def test_of_two_families_one_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_args: object, **_named: object) -> list[tuple[object, ...]]:
        return [
            (socket.AF_INET6, 1, 6, "", ("fd00::1", 9090, 0, 0)),
            (socket.AF_INET, 1, 6, "", ("10.0.0.2", 9090)),
            (socket.AF_INET, 1, 6, "", ("10.0.0.1", 9090)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert await addresses_of(Target("server", 9090)) == [Address("10.0.0.1", 9090), Address("10.0.0.2", 9090)]


async def test_a_lookup_that_does_not_end_keeps_no_process_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    looking: list[threading.Thread] = []

    def getaddrinfo(*_args: object, **_named: object) -> list[object]:
        looking.append(threading.current_thread())
        end.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr("inferencecache.subscriber.servers._RESOLVER_SECONDS", 0.05)
    try:
        with pytest.raises(TimeoutError, match="no name server"):
            await addresses_of(Target("server", 1))
        assert [thread.daemon for thread in looking] == [True]
    finally:
        end.set()


async def test_what_the_resolver_cannot_find_is_an_error() -> None:
    with pytest.raises(OSError):
        await addresses_of(Target("nowhere.invalid", 1))


async def test_an_address_means_itself() -> None:
    assert await addresses_of(Target("127.0.0.1", 1)) == [Address("127.0.0.1", 1)]
    assert str((await addresses_of(Target("::1", 1)))[0]) == "[::1]:1"
