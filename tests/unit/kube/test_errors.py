"""Answers of the API server become errors that a caller can act on."""

from __future__ import annotations

import json

import pytest

from inferencecache.kube import errors
from inferencecache.kube.errors import api_error


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "BadRequest", errors.BadRequest),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (410, "", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (503, "", errors.ServerError),
        (418, "", errors.ApiError),
    ],
)
def test_status_and_reason_choose_the_type(status: int, reason: str, kind: type[Exception]) -> None:
    body = json.dumps({"kind": "Status", "message": "the server's words", "reason": reason, "code": status}).encode()
    error = api_error("GET /api/v1/pods/x", status, body)
    assert type(error) is kind
    assert (error.status, error.reason) == (status, reason)
    assert str(error) == "GET /api/v1/pods/x: the server's words"


@pytest.mark.parametrize("body", [b"", b"upstream is gone\n", b'"text"', b"[]", b"\xff\xfe", b'{"message": 5}'])
def test_any_body_gives_an_error_that_names_the_request(body: bytes) -> None:
    error = api_error("PATCH /x", 502, body)
    assert type(error) is errors.ServerError
    assert str(error).startswith("PATCH /x: ")
    assert len(str(error)) > len("PATCH /x: ")


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [
        ("3", None, 3.0),
        (None, {"retryAfterSeconds": 7}, 7.0),
        ("2", {"retryAfterSeconds": 7}, 2.0),
        (None, None, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None, None),
        ("-1", None, None),
    ],
)
def test_retry_after_comes_from_header_or_details(
    header: str | None, details: dict[str, int] | None, seconds: float | None
) -> None:
    body = json.dumps({"details": details}).encode()
    assert api_error("GET /x", 429, body, header).retry_after == seconds
