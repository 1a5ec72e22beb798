"""Addresses of servers and stores, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.api import constants as c
from inferencecache.api.endpoint import PROTOCOLS, EndpointError, parse_endpoint, remote_url
from inferencecache.doctor import server
from inferencecache.doctor.dialling import dial_target
from inferencecache.doctor.server import parse_address


@pytest.mark.parametrize(
    ("text", "grpc", "snapshot"),
    [
        ("s", "s:9090", "http://s:8081/snapshot"),
        (" s:1 ", "s:1", "http://s:8081/snapshot"),
        ("::1", "[::1]:9090", "http://[::1]:8081/snapshot"),
        ("[::1]", "[::1]:9090", "http://[::1]:8081/snapshot"),
        ("[::1]:7", "[::1]:7", "http://[::1]:8081/snapshot"),
    ],
)
def test_a_server_is_a_host_and_perhaps_its_grpc_port(text: str, grpc: str, snapshot: str) -> None:
    address = parse_address(text)
    assert (address.grpc, address.url("/snapshot")) == (grpc, snapshot)


@pytest.mark.parametrize(
    "text", ["", " ", ":", "s:", ":1", "s:x", "s:0", "s:65536", "http://s:1", "a@b", "[::1", "[]:1"]
)
def test_what_is_no_server_is_refused(text: str) -> None:
    with pytest.raises(server.EndpointError, match="write host or host:port"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("kv.ns.svc:65432", ("kv.ns.svc", 65432)),
        ("lm://kv:1", ("kv", 1)),
        ("LM://kv:1", ("kv", 1)),
        ("http://kv:1", ("kv", 1)),
        ("https://kv:1/path", ("kv", 1)),
        ("mooncakestore://kv:1/", ("kv", 1)),
        ("redis://kv:1", ("kv", 1)),
        ("rediss://kv:1/0", ("kv", 1)),
        ("resp://kv:1", ("kv", 1)),
        ("[::1]:1", ("::1", 1)),
        ("kv", None),
        ("::1", None),
        ("kv:", None),
        (":1", None),
        ("kv:99999", None),
        ("ftp://kv:1", None),
        ("", None),
    ],
)
def test_a_store_is_dialled_without_its_scheme(text: str, target: tuple[str, int] | None) -> None:
    assert dial_target(text) == target


@given(
    st.sampled_from(sorted(PROTOCOLS)), st.from_regex(r"[a-z0-9.\[\]:]{1,12}:[0-9]{1,5}", fullmatch=True), st.booleans()
)
def test_whatever_admission_takes_for_a_store_can_be_dialled(provider: str, text: str, with_scheme: bool) -> None:
    endpoint = remote_url(PROTOCOLS[provider], text) if with_scheme and provider != c.PROVIDER_REDIS else text
    try:
        parsed = parse_endpoint(provider, endpoint)
    except EndpointError:
        return
    if len(endpoint.rpartition(":")[2]) <= 5:  # leading zeros are not worth reading
        assert dial_target(endpoint) == (parsed.host, parsed.port)
