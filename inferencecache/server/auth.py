"""Who may call: ServiceAccount tokens, reviewed by the API server (spec 06 §4.5).

Each guarded entrance has an authenticator of its own, with its own audience, memory and counter, so that a token made
for one of them opens no other. What the API server has confirmed is remembered for a short while under a hash of the
token; a refusal is never remembered. Without an answer nobody enters.

Two rules say who of the authenticated may enter. The controller's endpoints are for one ServiceAccount. Ingestion over
gRPC and HTTP, where it is guarded (decision D9), is for every ServiceAccount, each for the tenant that is its own
namespace: an engine's Pod reports what that engine holds, and can neither spoil nor read what belongs to others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import structlog

MEMORY_SECONDS: Final = 30.0
MEMORY_SIZE: Final = 32

_SERVICE_ACCOUNT: Final = "system:serviceaccount:"
_log = structlog.get_logger(__name__)


class Review(NamedTuple):
    """The API server's word on a token. `error` is its reason for not accepting it."""

    authenticated: bool
    username: str = ""
    error: str = ""


class ReviewUnavailable(Exception):
    """The API server could not be asked, or gave no answer that can be understood."""


class Reviewer(Protocol):
    """Asks the API server."""

    async def review(self, token: str, audiences: Sequence[str]) -> Review:
        """Its word on a token that must be meant for one of the audiences, or for anybody if there are none.

        Raises:
            ReviewUnavailable: there is no answer.
        """


class Verdict(NamedTuple):
    """`result` is the counter's label; `status` and `message` are HTTP's, 200 lets the request in."""

    result: str
    status: int
    message: str
    username: str = ""


UNAUTHENTICATED: Final = Verdict("unauth", 401, "unauthorized")
FORBIDDEN: Final = Verdict("forbidden", 403, "forbidden")
UNAVAILABLE: Final = Verdict("error", 503, "token review unavailable")


class Authenticator:
    """Guards one entrance.

    `count` is called once per request with the result. `allowed` judges an authenticated username. `clock` is
    monotonic, in seconds.
    """

    def __init__(
        self,
        reviewer: Reviewer,
        *,
        audience: str,
        allowed: Callable[[str], bool],
        count: Callable[[str], object],
        clock: Callable[[], float],
        memory_seconds: float = MEMORY_SECONDS,
        memory_size: int = MEMORY_SIZE,
    ) -> None:
        self._reviewer = reviewer
        self._audiences = (audience,) if audience else ()
        self._allowed = allowed
        self._count = count
        self._clock = clock
        self._memory_seconds = memory_seconds
        self._memory_size = memory_size
        self._admitted: dict[str, tuple[float, str]] = {}

    def recall(self, authorization: str) -> Verdict | None:
        """The verdict on an `Authorization` header that can be given at once: admitted before, or no token at all."""
        token = bearer_token(authorization)
        if token is None:
            return self._counted(UNAUTHENTICATED)
        expires, username = self._admitted.get(_key(token), (0.0, ""))
        if self._clock() < expires:
            return self._counted(_admitted(username))
        return None

    async def check(self, authorization: str) -> Verdict:
        """The verdict on an `Authorization` header, empty if there was none. Never raises."""
        verdict = self.recall(authorization)
        if verdict is not None:
            return verdict
        token = bearer_token(authorization)
        assert token is not None
        return self._counted(await self._reviewed(token))

    async def _reviewed(self, token: str) -> Verdict:
        try:
            review = await self._reviewer.review(token, self._audiences)
        except ReviewUnavailable as error:
            _log.warning("auth_token_review_unavailable", error=str(error))
            return UNAVAILABLE
        if not review.authenticated:
            _log.warning("auth_token_review_unauthenticated", error=review.error)
            return UNAUTHENTICATED
        if not self._allowed(review.username):
            return FORBIDDEN
        self._remember(_key(token), review.username)
        return _admitted(review.username)

    def _remember(self, key: str, username: str) -> None:
        now = self._clock()
        if len(self._admitted) >= self._memory_size and key not in self._admitted:
            self._admitted = {k: entry for k, entry in self._admitted.items() if entry[0] > now}
            if len(self._admitted) >= self._memory_size:
                del self._admitted[min(self._admitted, key=lambda k: self._admitted[k][0])]
        self._admitted[key] = (now + self._memory_seconds, username)

    def _counted(self, verdict: Verdict) -> Verdict:
        self._count(verdict.result)
        return verdict


def bearer_token(authorization: str) -> str | None:
    """The token of an `Authorization` header; None if there is none of the Bearer scheme."""
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    return token if token and scheme.lower() == "bearer" else None


def namespace_of(username: str) -> str | None:
    """The namespace of a ServiceAccount's username, `system:serviceaccount:<namespace>:<name>`; None for others."""
    if not username.startswith(_SERVICE_ACCOUNT):
        return None
    namespace, _, name = username.removeprefix(_SERVICE_ACCOUNT).partition(":")
    return namespace if namespace and name else None


def any_service_account(username: str) -> bool:
    """Whether a username is a ServiceAccount's."""
    return namespace_of(username) is not None


def _admitted(username: str) -> Verdict:
    return Verdict("ok", 200, "", username)


def _key(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
