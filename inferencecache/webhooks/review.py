"""AdmissionReview documents (`admission.k8s.io/v1`): requests in, answers out.

The objects under review stay raw bytes until a handler knows what it wants to read of them. An answer always carries
the UID of its request; without it the API server discards the answer, so where a body cannot be read as a whole the UID
is still looked for at its beginning, which is where the API server writes it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from inferencecache.webhooks.patches import JsonPatch

_API_VERSION: Final = "admission.k8s.io/v1"
_UID = re.compile(rb'"request"\s*:\s*\{\s*"uid"\s*:\s*"([^"\\]{1,128})"')
_UID_WITHIN: Final = 4096


class MalformedReview(ValueError):
    """A body that is no AdmissionReview with a request in it."""


class Kind(msgspec.Struct, frozen=True):
    """`request.kind`."""

    group: str = ""
    version: str = ""
    kind: str = ""


class Request(msgspec.Struct, frozen=True, rename="camel"):
    """The part of an admission request that the handlers read; `object` and `old_object` are raw JSON."""

    uid: str = ""
    kind: Kind = Kind()
    name: str = ""
    namespace: str = ""
    operation: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")
    dry_run: bool | None = None


Handler: TypeAlias = Callable[["Request"], Awaitable["Answer"]]
"""One webhook."""


class _Review(msgspec.Struct, frozen=True):
    request: Request | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a webhook says: `status` is a `metav1.Status` in part, `patch` JSON-patch operations."""

    allowed: bool
    status: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    patch: JsonPatch = field(default_factory=list)


_review = msgspec.json.Decoder(_Review)
_encode = msgspec.json.Encoder().encode


def read_review(body: bytes) -> Request:
    """The request in a body. Raises `MalformedReview`."""
    try:
        request = _review.decode(body).request
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedReview(f"the body is not an AdmissionReview: {error}") from error
    if request is None:
        raise MalformedReview("the AdmissionReview has no request: post one as the API server does")
    return request


def find_uid(body: bytes) -> str:
    """The request's UID in a body that cannot be read as a whole; empty if it is not where the API server writes it."""
    found = _UID.search(body, 0, _UID_WITHIN)
    return found[1].decode("utf-8", "replace") if found else ""


def write_review(uid: str, answer: Answer) -> bytes:
    """The AdmissionReview that carries an answer."""
    response: dict[str, Any] = {"uid": uid, "allowed": answer.allowed}
    if answer.status:
        response["status"] = answer.status
    if answer.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_encode(answer.patch)).decode("ascii")
    if answer.warnings:
        response["warnings"] = answer.warnings
    return _encode({"apiVersion": _API_VERSION, "kind": "AdmissionReview", "response": response})


def allowed(reason: str = "", patch: JsonPatch | None = None, warnings: tuple[str, ...] = ()) -> Answer:
    """Yes, with a reason text where there is something to say."""
    status = {"code": 200, "message": reason} if reason else None
    return Answer(allowed=True, status=status, patch=patch or [], warnings=warnings)


def denied(code: int, reason: str, message: str, warnings: tuple[str, ...] = (), **details: Any) -> Answer:
    """No, as a failure `metav1.Status` with HTTP-like `code` and CamelCase `reason`."""
    status: dict[str, Any] = {"status": "Failure", "code": code, "reason": reason, "message": message}
    if details:
        status["details"] = details
    return Answer(allowed=False, status=status, warnings=warnings)
