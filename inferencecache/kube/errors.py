"""What can go wrong between us and the API server: one exception type per thing a caller can act on.

Every answer that is not a success becomes an `ApiError` subclass chosen by HTTP status and `reason`; everything that
kept an answer from arriving becomes a `TransportError`. Messages name the verb and the object, because the server's own
text often does not.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import msgspec


class KubeError(Exception):
    """Base of all errors of the framework.

    `retry_within` bounds the pause before a failed pass is tried again, which otherwise grows to a quarter of an hour.
    It is for what is mended by something that wakes nobody; set it on a class of errors or on one error.
    """

    retry_within: timedelta | None = None


class TransportError(KubeError):
    """No answer: refused, cut, or past its deadline. The request may or may not have taken effect."""


class LeadershipLost(KubeError):
    """A write was held back because this process can no longer prove that it is the leader (decision F14)."""


class TerminalError(KubeError):
    """Raised by a reconciler for a failure that retrying cannot mend; the key waits for its next change."""


class DecodeError(KubeError):
    """An object from the server that the view of its kind cannot hold."""


class ApiError(KubeError):
    """An answer of the API server that is not a success.

    `status` is the HTTP status, `reason` and `details` are those of the `metav1.Status` body (empty if there was none),
    and `retry_after` is the server's wish in seconds, if it had one.
    """

    statuses: ClassVar[tuple[int, ...]] = ()
    reasons: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        message: str,
        *,
        status: int,
        reason: str = "",
        details: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason
        self.details = details or {}
        self.retry_after = retry_after


class BadRequest(ApiError):
    """The server could not make sense of the request."""

    statuses = (400,)


class Unauthorized(ApiError):
    """The credentials were not accepted."""

    statuses = (401,)


class Forbidden(ApiError):
    """The credentials do not permit this."""

    statuses = (403,)


class NotFound(ApiError):
    """The object, or the kind itself, does not exist."""

    statuses = (404,)


class Conflict(ApiError):
    """The object changed since it was read, or another field manager owns a field."""

    statuses = (409,)


class AlreadyExists(Conflict):
    """An object of that name is already there."""

    reasons = ("AlreadyExists",)


class Gone(ApiError):
    """The asked-for resourceVersion or continue token is no longer known; list again."""

    statuses = (410,)
    reasons = ("Expired", "Gone")


class Invalid(ApiError):
    """The object breaks its schema or a validation rule."""

    statuses = (422,)


class TooManyRequests(ApiError):
    """The server sheds load; `retry_after` says for how long."""

    statuses = (429,)


class ServerError(ApiError):
    """The server failed (5xx)."""


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: dict[str, Any] | None = None


_BY_REASON = {reason: kind for kind in (AlreadyExists, Gone) for reason in kind.reasons}
_BY_STATUS = {
    status: kind
    for kind in (BadRequest, Unauthorized, Forbidden, NotFound, Conflict, Gone, Invalid, TooManyRequests)
    for status in kind.statuses
}


def api_error(what: str, status: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """The error for an answer: `what` tells verb and object, `body` may be a `metav1.Status` or anything else."""
    try:
        told = msgspec.json.decode(body, type=_Status)
    except msgspec.DecodeError:
        told = _Status(message=body[:200].decode("utf-8", "replace").strip())
    kind = _BY_REASON.get(told.reason) or _BY_STATUS.get(status) or (ServerError if status >= 500 else ApiError)
    return kind(
        f"{what}: {told.message or 'HTTP ' + str(status)}",
        status=status,
        reason=told.reason,
        details=told.details,
        retry_after=_seconds(retry_after) if retry_after else _seconds((told.details or {}).get("retryAfterSeconds")),
    )


def _seconds(value: Any) -> float | None:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return seconds if seconds > 0 else None
