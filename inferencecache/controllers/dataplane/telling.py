"""A push of objects, followed by what each object's status says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from inferencecache.controllers.dataplane.client import ServerCallError
from inferencecache.controllers.dataplane.fan_out import write_each
from inferencecache.controllers.dataplane.push import Pusher
from inferencecache.kube.client import Client
from inferencecache.kube.controller import Result
from inferencecache.kube.resource import Key, Kind, Metadata
from inferencecache.kube.status import write_status


class Versioned(Metadata, Protocol):
    """Metadata that counts the versions of the spec."""

    @property
    def generation(self) -> int: ...


class Pushed(Kind, Protocol):
    """An object that is part of a document."""

    @property
    def metadata(self) -> Versioned: ...


P = TypeVar("P", bound=Pushed)


async def push_then_tell(
    client: Client,
    pusher: Pusher,
    document: bytes,
    objects: Sequence[P],
    status: Callable[[P, str], Mapping[str, Any] | None],
    *,
    what: str,
) -> Result:
    """Push a document that was made of these objects, and write their statuses, whether or not it arrived.

    `status` gives the fields to write about an object, given why the push failed (empty if it did not). `what` names
    the statuses in logs. Raises why the push, or else one of the writes, did not succeed.
    """
    failure: ServerCallError | None = None
    again = None
    try:
        again = await pusher.push(document, empty=not objects)
    except ServerCallError as error:
        failure = error
    why = "" if failure is None else str(failure)
    generations = {Key.of(obj): obj.metadata.generation for obj in objects}

    def decide(live: P) -> Mapping[str, Any] | None:
        # A newer generation than the one that was pushed is the next pass's to judge.
        return status(live, why) if live.metadata.generation == generations[Key.of(live)] else None

    async def write(obj: P) -> None:
        await write_status(client, obj, decide)

    unwritten = await write_each(objects, write, what=what)
    problem = failure or unwritten
    if problem is not None:
        raise problem
    return Result(again)
