from __future__ import annotations

from pathlib import Path

import pytest

from inferencecache.server.store.settings import StoreSettings, parse


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("redis://cache", StoreSettings("cache")),
        ("valkey://cache:6380/3", StoreSettings("cache", 6380, 3)),
        ("redis://:p%40ss@cache", StoreSettings("cache", password="p@ss")),
        ("valkeys://me:secret@[fd00::1]", StoreSettings("fd00::1", username="me", password="secret", tls=True)),
        (
            "rediss://cache?ca_file=/ca.crt&cert_file=/tls.crt&key_file=/tls.key",
            StoreSettings("cache", tls=True, ca_file="/ca.crt", cert_file="/tls.crt", key_file="/tls.key"),
        ),
    ],
)
def test_redis_and_valkey_urls_name_a_store(url: str, settings: StoreSettings) -> None:
    assert parse(url) == settings


@pytest.mark.parametrize(
    "url",
    [
        "",
        "cache:6379",
        "http://cache",
        "redis://",
        "redis://cache:port",
        "redis://cache:99999",
        "redis://cache:0",
        "redis://cache/log",
        "redis://cache?ca_file=/ca.crt",
        "rediss://cache?timeout=3",
        "rediss://cache?cert_file=/tls.crt",
        "redis://[cache",
    ],
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="index store"):
        parse(url)


@pytest.mark.parametrize("url", ["redi://:hunter2@cache", "redis://:hunter2@cache:port", "redis://:hunter2@cache/x"])
def test_a_refusal_does_not_tell_the_password(url: str) -> None:
    with pytest.raises(ValueError) as refusal:
        parse(url)
    assert "hunter2" not in str(refusal.value)


def test_the_address_for_logs_holds_no_password() -> None:
    settings = parse("rediss://me:hunter2@cache/2", Path("/password"))
    assert settings.address == "rediss://cache:6379/2"
    assert settings.password_file == Path("/password")
