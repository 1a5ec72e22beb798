"""The HTTP admin interface of a Mooncake master: its tenant ledger, its segments, its health and its metrics.

The callers decide by the kind of exception, so every answer becomes exactly one. The HTTP status is looked at first and
the master's own code second, as one code means different things under different statuses: -1011 under 409 is a master
without tenants, under 503 a master that does not serve yet. The wording of an answer decides nothing, except which of
two bugs of ours a 400 complains about.

An answer that is not what the interface promises is a failure, never an empty ledger: a caller that took silence for
"nothing there" would give capacity away that nobody can reclaim. For the same reason a redirect is one, and an answer
that is longer than expected is not read half.

Requests go straight to the address. A master is reached inside the cluster or beside it, and a proxy that answers in
its place could be taken for it.

A master takes anybody's word. So whoever writes to one says how to find out that he still may, and is asked right
before each write: a controller that slept through the end of its lease would register again what its successor has
taken out, and nobody would ever know whose it is (decision F14).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final, Generic, TypeVar
from urllib.parse import quote

import msgspec
from yarl import URL

from inferencecache.controllers.connections import Connections, NoAnswer

TIMEOUT: Final = timedelta(seconds=5)
"""Of a request, from resolving the name to the last byte of the answer (spec 10 §3)."""
LARGEST_ANSWER: Final = 8 << 20
"""Bytes (spec 10 §3)."""
LARGEST_TEXT: Final = 512
"""Characters of an error's text, as it ends up in messages of conditions (spec 10 §2.3)."""

_QUOTAS: Final = "/api/v1/tenant_quotas"

_INVALID_PARAMS: Final = -600
_OBJECT_NOT_FOUND: Final = -704
_UNAVAILABLE_IN_CURRENT_MODE: Final = -1011
_PERSISTENT_FAIL: Final = -1503
_TENANT_NOT_EMPTY: Final = -1702


class MasterError(Exception):
    """A master did not do what it was asked; the text has at most `LARGEST_TEXT` characters, all of them printable."""

    def __init__(self, text: str) -> None:
        printable = "".join(character if character.isprintable() else " " for character in text)
        words = " ".join(printable.split())
        super().__init__(words if len(words) <= LARGEST_TEXT else f"{words[: LARGEST_TEXT - 1]}…")


class MultiTenancyOff(MasterError):
    """The master runs without tenants and keeps no ledger."""


class CannotPersist(MasterError):
    """The master cannot write its policy file, and so changed nothing."""


class TenantNotEmpty(MasterError):
    """The tenant still holds objects, or is charged with some."""


class SegmentsNotServed(MasterError):
    """The master is too old to list its segments in detail."""


class MasterFailure(MasterError):
    """Any other failure: no answer, an unexpected status, or an answer that is not what the interface promises."""


class BadTenant(MasterFailure):
    """The master does not take the tenant id."""


class BadQuota(MasterFailure):
    """The master does not take the quota."""


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant of a master. Sizes in bytes; None is what this version of the master does not say."""

    tenant_id: Annotated[str, msgspec.Meta(min_length=1)]
    requested_quota_bytes: int
    has_explicit_policy: bool
    effective_quota_bytes: int | None = None
    charged_bytes: int | None = None
    over_quota: bool | None = None


class Health(msgspec.Struct, frozen=True):
    """What a master says of itself. `service_ready` is false on a standby, and on a leader that does not serve yet."""

    service_ready: bool


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that a store process mounted. `size_bytes` is what it adds to the capacity."""

    segment_id: str
    client_id: str
    segment_name: str
    size_bytes: int
    protocol: str = ""
    te_endpoint: str = ""
    status: str = ""


class MooncakeClients(Connections):
    """Connections to masters."""

    def __init__(self, *, timeout: timedelta = TIMEOUT) -> None:
        super().__init__(timeout=timeout, proxies=False)

    def at(self, address: str, before_write: Callable[[], None] = lambda: None) -> AdminClient:
        """The admin interface of the master at `host:port`; `before_write` may raise to hold a write back."""
        return AdminClient(address, self, before_write)


class AdminClient:
    """One master. Every method raises `MasterFailure`, and what else it names (spec 10 §6.3)."""

    def __init__(self, address: str, connections: Connections, before_write: Callable[[], None]) -> None:
        self.address = address
        self._connections = connections
        self._before_write = before_write

    async def quotas(self) -> dict[str, LedgerEntry]:
        """The whole ledger by tenant id. Raises `MultiTenancyOff`."""
        answer = await self._ask("GET", _QUOTAS)
        entries = answer.decoded(_Result[list[LedgerEntry]]).data
        ledger = {entry.tenant_id: entry for entry in entries}
        if len(ledger) != len(entries):
            raise answer.malformed("a tenant is listed twice")
        return ledger

    async def put_quota(self, tenant: str, requested: int) -> None:
        """Register a tenant, or change the bytes it asks for. Raises `MultiTenancyOff` and `CannotPersist`."""
        body = msgspec.json.encode({"requested_quota_bytes": requested})
        answer = await self._ask("PUT", _of_tenant(tenant), body)
        answer.decoded(_Result[LedgerEntry])

    async def delete_quota(self, tenant: str) -> None:
        """Take a tenant out of the ledger; one that is not in it counts as taken out.

        Raises `TenantNotEmpty`, `MultiTenancyOff` and `CannotPersist`.
        """
        answer = await self._ask("DELETE", _of_tenant(tenant))
        if not answer.says_not_found:
            answer.decoded(_Result[LedgerEntry | None])

    async def metrics(self) -> str:
        """The metrics, in Prometheus' text format."""
        answer = await self._ask("GET", "/metrics")
        try:
            return answer.content().decode()
        except UnicodeDecodeError as error:
            raise answer.malformed(str(error)) from error

    async def health(self) -> Health:
        """Whether the master serves."""
        return (await self._ask("GET", "/health")).decoded(Health)

    async def segments(self) -> list[Segment]:
        """What is mounted. Raises `SegmentsNotServed` before Mooncake 0.3.12."""
        answer = await self._ask("GET", "/get_segments_detail")
        if answer.status == 404:
            raise SegmentsNotServed(f"{answer.request}: HTTP 404")
        return answer.decoded(_Segments).segments

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> _Answer:
        request = f"{method} http://{self.address}{path}"
        if method != "GET":
            self._before_write()
        try:
            url = URL(f"http://{self.address}{path}", encoded=True)
            return _Answer(request, *await self._connections.request(method, url, largest=LARGEST_ANSWER, body=body))
        except (NoAnswer, ValueError) as error:
            raise MasterFailure(f"{request}: {error}") from error


def _of_tenant(tenant: str) -> str:
    if not tenant:  # the master would take the question to be about all tenants
        raise BadTenant("a tenant id is not empty")
    return f"{_QUOTAS}?tenant_id={quote(tenant, safe='')}"


T = TypeVar("T")


class _Result(msgspec.Struct, Generic[T]):
    """What stands around every answer of the ledger. `data` has no default: without it, nothing was said."""

    success: bool
    data: T


class _Refusal(msgspec.Struct):
    error_code: int = 0
    error_message: str = ""


class _Segments(msgspec.Struct):
    segments: list[Segment]


_REFUSED: Final[dict[tuple[int, int], type[MasterError]]] = {
    (409, _UNAVAILABLE_IN_CURRENT_MODE): MultiTenancyOff,
    (409, _TENANT_NOT_EMPTY): TenantNotEmpty,
    (500, _PERSISTENT_FAIL): CannotPersist,
}


@dataclass(frozen=True, slots=True)
class _Answer:
    request: str
    status: int
    body: bytes

    @property
    def says_not_found(self) -> bool:
        """The master says so itself; a 404 of anything in between says nothing about the ledger."""
        return self.status == 404 and self._refusal().error_code == _OBJECT_NOT_FOUND

    def content(self) -> bytes:
        """The body of a 200. Raises what any other status means."""
        if self.status == 200:
            return self.body
        refusal = self._refusal()
        kind = _REFUSED.get((self.status, refusal.error_code), MasterFailure)
        if (self.status, refusal.error_code) == (400, _INVALID_PARAMS):
            kind = BadTenant if "tenant_id" in refusal.error_message.casefold() else BadQuota
        said = refusal.error_message or self.body[: 4 * LARGEST_TEXT].decode(errors="replace")
        code = f", code {refusal.error_code}" if refusal.error_code else ""
        raise kind(f"{self.request}: HTTP {self.status}{code}: {said}")

    def decoded(self, kind: type[T]) -> T:
        """The body of a 200, decoded. Raises what any other status or body means."""
        try:
            result = msgspec.json.decode(self.content(), type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.malformed(str(error)) from error
        if isinstance(result, _Result) and not result.success:
            raise self.malformed("HTTP 200 without success")
        return result

    def malformed(self, why: str) -> MasterFailure:
        return MasterFailure(f"{self.request}: malformed answer: {why}")

    def _refusal(self) -> _Refusal:
        try:
            return msgspec.json.decode(self.body, type=_Refusal)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _Refusal()
