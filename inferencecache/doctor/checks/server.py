"""Checks 1–4: the server's gRPC port and the three endpoints of the controller's port (spec 09 §1.2, §1.3).

The controller's port is closed to ordinary Pods by the NetworkPolicy of an installation, and its name means nothing
outside the cluster. Where no answer comes the remedy is said, because the server may well be in good health.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from inferencecache.doctor.findings import Check, Finding
from inferencecache.doctor.observe import Observations
from inferencecache.doctor.server import HTTP_PORT, SERVICE, Answer, ServerAnswers

_FORWARD: Final = (
    f"kubectl -n {SERVICE.namespace} port-forward svc/{SERVICE.name} 9090 {HTTP_PORT}, then --server-endpoint=localhost"
)
_CLOSED: Final = (
    f"port {HTTP_PORT} answers the controller alone where the NetworkPolicy of the installation is enforced: "
    f"go around it ({_FORWARD}), or leave the server out with --config-only"
)


def check_server(seen: Observations) -> Iterator[Finding]:
    """SV, SN, PL and PB; nothing if the server was not to be asked."""
    server = seen.server
    if server is None or (server.address is None and not seen.caches_installed):
        return
    if server.address is None:
        yield Finding(
            "SV001",
            Check.SERVER,
            "",
            f"the cache server was not found: {server.discovery}; say where it is with --server-endpoint, or let your "
            "role get and list Services",
        )
        return
    yield _health(server)
    yield from _snapshot(server)
    yield _route(_POLICY, server.policy)
    yield _route(_PROBE, server.probe)


def _health(server: ServerAnswers) -> Finding:
    address = server.address.grpc if server.address else ""
    status = server.health.status
    if not status:
        return Finding(
            "SV001",
            Check.SERVER,
            address,
            f"no answer: {server.health.problem}; check the Service {SERVICE.name} and its Pods, or pass "
            f"--server-endpoint. From outside the cluster: {_FORWARD}. If the server speaks TLS, pass --server-tls or "
            "--server-ca-file",
        )
    if status != "SERVING":
        return Finding(
            "SV002", Check.SERVER, address, f"the server says {status}: it is starting or stopping; read its log"
        )
    return Finding("SV003", Check.SERVER, address, "SERVING")


def _snapshot(server: ServerAnswers) -> Iterator[Finding]:
    answer, check = server.snapshot, Check.SNAPSHOT
    if answer.status in (401, 403):
        token = "the token was refused" if server.token_sent else "no token was sent"
        yield Finding(
            "SN005",
            check,
            answer.url,
            f"HTTP {answer.status}: {token}. Pass a token of the controller's account in a file with "
            f"--snapshot-token-file: kubectl -n {SERVICE.namespace} create token inference-cache-controller-manager "
            "--audience inferencecache.io/controller",
        )
    elif answer.status != 200:
        yield Finding("SN001", check, answer.url, _no_answer(answer))
    elif answer.unreadable:
        yield Finding(
            "SN002", check, answer.url, f"the answer cannot be used, {answer.unreadable}: is this the cache server?"
        )
    else:
        if not server.token_sent:
            yield Finding(
                "SN003",
                check,
                answer.url,
                "answered without a token: authentication is not enforced (--insecure-disable-auth)",
            )
        yield Finding("SN004", check, answer.url, "answers with the index in numbers")


@dataclass(frozen=True, slots=True)
class _Codes:
    check: Check
    missing: str
    there: str
    failing: str


_POLICY: Final = _Codes(Check.POLICY, "PL001", "PL002", "PL003")
_PROBE: Final = _Codes(Check.PROBE, "PB001", "PB002", "PB003")


def _route(codes: _Codes, answer: Answer) -> Finding:
    if answer.problem:
        return Finding(codes.missing, codes.check, answer.url, _no_answer(answer))
    if answer.status == 404:
        return Finding(codes.missing, codes.check, answer.url, "HTTP 404: the route is not there; is this the server?")
    if 200 <= answer.status < 300 or answer.status in (401, 403, 405):
        return Finding(codes.there, codes.check, answer.url, f"there (HTTP {answer.status})")
    return Finding(
        codes.failing,
        codes.check,
        answer.url,
        f"HTTP {answer.status}: the server, or something in front of it, is failing; read its log",
    )


def _no_answer(answer: Answer) -> str:
    if not answer.problem:
        return f"HTTP {answer.status}: not what the server's endpoint would answer; is this the server?"
    return f"no answer: {answer.problem}; {_CLOSED}"
