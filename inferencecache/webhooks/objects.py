"""What every webhook for a kind of our own does: read the object of a request, and word the answer to it."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from inferencecache.api.model import CustomObject, DecodeError
from inferencecache.webhooks.review import Answer, Request, allowed, denied
from inferencecache.webhooks.validation import Verdict

MOST_CAUSES: Final = 500
"""An object has room for a hundred thousand mistakes, and telling them all would keep every other admission waiting."""

T = TypeVar("T", bound=CustomObject)


def plain_object(raw: msgspec.Raw) -> dict[str, Any]:
    """A raw object as plain JSON values. Raises `DecodeError`."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError(f"the object is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DecodeError("the request carries no object")
    return value


def new_object(kind: type[T], request: Request) -> T:
    """The object of a request, in the request's namespace if it names none. Raises `DecodeError`."""
    return _decode(kind, request.object, request)


def old_object(kind: type[T], request: Request) -> T | None:
    """The stored object of an update; None on create, or where it cannot be read and so excuses nothing."""
    if request.operation != "UPDATE":
        return None
    try:
        return _decode(kind, request.old_object, request)
    except DecodeError:
        return None


def unreadable(request: Request, error: DecodeError) -> Answer:
    """The answer for what cannot be read: a refusal, unless its spec is stored so already and stays as it is.

    Then labels, finalizers and the like must come and go (decision A7), or an object stored while no webhook looked
    could not even be deleted.
    """
    refusal = denied(400, "BadRequest", str(error))
    try:
        now, then = plain_object(request.object), plain_object(request.old_object)
    except DecodeError:
        return refusal
    kept = request.operation == "UPDATE" and "spec" in then and now.get("spec") == then["spec"]
    return allowed("what is stored cannot be read, and its spec stays as it is") if kept else refusal


def answer_to(obj: CustomObject, verdict: Verdict) -> Answer:
    """A verdict as the API server would word it: one 422 with a cause for each violation, `MOST_CAUSES` at most."""
    if verdict.allowed:
        return allowed(warnings=verdict.warnings)
    causes = [finding.cause for finding in verdict.violations[:MOST_CAUSES]]
    resource, name = obj.resource, obj.metadata.name or obj.metadata.generate_name
    told = ", ".join(f"{cause['field']}: {cause['message']}" for cause in causes)
    if len(verdict.violations) > MOST_CAUSES:
        told += f", and {len(verdict.violations) - MOST_CAUSES} more"
    return denied(
        422,
        "Invalid",
        f'{resource.kind}.{resource.group} "{name}" is invalid: {told if len(causes) == 1 else f"[{told}]"}',
        verdict.warnings,
        group=resource.group,
        kind=resource.kind,
        name=name,
        causes=causes,
    )


def _decode(kind: type[T], raw: msgspec.Raw, request: Request) -> T:
    value = plain_object(raw)
    metadata = value.get("metadata")
    if isinstance(metadata, dict) and not metadata.get("namespace"):
        value = {**value, "metadata": {**metadata, "namespace": request.namespace}}
    return kind.decode(value)
