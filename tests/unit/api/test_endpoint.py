"""The grammar of store addresses (spec 02 §5.4, spec 04 §10) and the namespaces they name (spec 02 §5.5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.api.endpoint import Endpoint, EndpointError, namespace_in, parse_endpoint, remote_url

LM, REDIS, MOONCAKE = "LMCacheServer", "Redis", "Mooncake"


@pytest.mark.parametrize(
    ("provider", "text", "host", "port"),
    [
        (LM, "cache.example:8200", "cache.example", 8200),
        (LM, "lm://cache.example:8200", "cache.example", 8200),
        (LM, "LM://h:1", "h", 1),
        (LM, "10.0.0.1:65535", "10.0.0.1", 65535),
        (LM, "[2001:db8::1]:8200", "2001:db8::1", 8200),
        (LM, "  h:1\t", "h", 1),
        (LM, "h:0080", "h", 80),
        (LM, "user@host:1", "user@host", 1),
        (REDIS, "r:6379", "r", 6379),
        (MOONCAKE, "MooncakeStore://m:50051", "m", 50051),
    ],
)
def test_accepted(provider: str, text: str, host: str, port: int) -> None:
    assert parse_endpoint(provider, text) == Endpoint(host, port)


@pytest.mark.parametrize(
    ("provider", "text", "complaint"),
    [
        (LM, "", "empty"),
        (LM, "  ", "empty"),
        (LM, "https://h:443", 'scheme "https" is not supported'),
        (LM, "mooncakestore://h:1", "not supported"),
        (REDIS, "lm://h:1", "not supported"),
        (REDIS, "redis://h:1", "not supported"),
        (MOONCAKE, "lm://h:1", "not supported"),
        (MOONCAKE, "mooncakestore://lm://h:1", "only one scheme"),
        (LM, "h h:1", "whitespace or control characters"),
        (LM, "h:82\n00", "whitespace or control characters"),
        (LM, "h\x00:1", "whitespace or control characters"),
        (LM, "h:1/p", "paths/queries/fragments"),
        (LM, "h:1?q", "paths/queries/fragments"),
        (LM, "h:1#f", "paths/queries/fragments"),
        (LM, "h", "non-empty host AND port"),
        (LM, "h:", "non-empty host AND port"),
        (LM, ":8200", "non-empty host AND port"),
        (LM, "lm://", "non-empty host AND port"),
        (LM, "[::1]", "non-empty host AND port"),
        (LM, "[]:1", "non-empty host AND port"),
        (LM, "[::1]:8200:bad", "non-empty host AND port"),
        (LM, "2001:db8::1", "brackets"),
        (LM, "h:0", "1-65535"),
        (LM, "h:65536", "1-65535"),
        (LM, "h:redis", "1-65535"),
        (LM, "h:+1", "1-65535"),
        (LM, "h:８２００", "1-65535"),
        (LM, "h:" + "9" * 5000, "1-65535"),
    ],
)
def test_refused_with_what_is_wrong(provider: str, text: str, complaint: str) -> None:
    with pytest.raises(EndpointError, match=complaint):
        parse_endpoint(provider, text)


@given(st.sampled_from([LM, REDIS, MOONCAKE]), st.text(max_size=20))
def test_garbage_gives_the_documented_error_only(provider: str, text: str) -> None:
    try:
        found = parse_endpoint(provider, text)
    except EndpointError:
        return
    assert found.host
    assert 1 <= found.port <= 65535


@pytest.mark.parametrize(
    ("protocol", "endpoint", "url"),
    [
        ("lm", "h:1", "lm://h:1"),
        ("lm", "lm://h:1", "lm://h:1"),
        ("lm", "Lm://Cache.Example:1", "lm://Cache.Example:1"),
        ("lm", "lm:", "lm://lm:"),
        ("lm", "", "lm://"),
        ("mooncakestore", "MOONCAKESTORE://h:1", "mooncakestore://h:1"),
        ("mooncakestore", "moon", "mooncakestore://moon"),
    ],
)
def test_a_url_has_exactly_one_scheme(protocol: str, endpoint: str, url: str) -> None:
    assert remote_url(protocol, endpoint) == url
    assert remote_url(protocol, url) == url


@pytest.mark.parametrize(
    ("endpoint", "namespace"),
    [
        ("cache.team-b.svc:8200", "team-b"),
        ("cache.team-b.svc.cluster.local:8200", "team-b"),
        ("pod-0.cache.team-b.svc:1", "team-b"),
        ("LM://Cache.Team-B.SVC.cluster.local.:1", "team-b"),
        ("cache.team-b.svc", "team-b"),
        ("cache.team-b.svc/path", "team-b"),
        ("cache.team-b.svc.example.com:1", ""),
        ("cache.team-b:1", ""),
        ("team-b.svc:1", ""),
        ("10.0.0.1:1", ""),
        ("cache:1", ""),
        ("", ""),
        ("cache..svc:1", ""),
    ],
)
def test_the_namespace_of_a_service_name(endpoint: str, namespace: str) -> None:
    assert namespace_in(endpoint) == namespace
