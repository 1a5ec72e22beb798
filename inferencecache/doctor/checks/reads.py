"""What every check says about objects that could not be read (code API001)."""

from __future__ import annotations

from collections.abc import Iterator

from inferencecache.doctor.findings import Check, Finding
from inferencecache.doctor.reading import Read
from inferencecache.kube.resource import K


def unread(check: Check, kind: str, read: Read[K]) -> Iterator[Finding]:
    """One finding if the collection could not be read, and one for each object in it that does not fit its kind."""
    if read.failure:
        yield api_failure(check, kind, read.failure)
    for problem in read.unreadable:
        yield Finding("API001", check, kind, f"{problem}; nothing else is said about this object")


def api_failure(check: Check, resource: str, why: str) -> Finding:
    """Something could not be read."""
    return Finding(
        "API001",
        check,
        resource,
        f"cannot be read: {why}. Check that the API server answers and that your role may list it (docs/doctor.md)",
    )
