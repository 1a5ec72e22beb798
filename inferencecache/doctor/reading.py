"""Reading collections and single objects so that what goes wrong is a value, and costs only what it concerns."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final, Generic

from inferencecache.kube.client import Client, Labels
from inferencecache.kube.errors import KubeError, NotFound
from inferencecache.kube.resource import K, Key

_SHORTEST: Final = 0.1  # so that a question asked at the deadline is still a question


@dataclass(frozen=True, slots=True)
class Read(Generic[K]):
    """The objects of one kind.

    `failure` says why the collection could not be read; then there are no items. `unreadable` are objects that are
    there and do not fit their kind. `served` is false where the API server does not know the kind.
    """

    items: tuple[K, ...] = ()
    failure: str = ""
    unreadable: tuple[str, ...] = ()
    served: bool = True


NOT_READ: Final[Read[Any]] = Read()
"""Nothing was found, or looked for."""


@dataclass(frozen=True, slots=True)
class Found(Generic[K]):
    """One object; None if it does not exist, or, with the reason in `failure`, if it could not be read."""

    item: K | None = None
    failure: str = ""

    @property
    def missing(self) -> bool:
        """Whether it is known not to exist."""
        return self.item is None and not self.failure


ABSENT: Final[Found[Any]] = Found()
"""It does not exist, or was not looked for."""


async def read_all(
    client: Client, kind: type[K], *, namespace: str = "", fields: str = "", labels: Labels = None
) -> Read[K]:
    """Everything of one kind, in one namespace or in all. Raises `TimeoutError` only if the caller's time is up."""
    items: list[K] = []
    unreadable: list[str] = []
    token = ""
    try:
        while True:
            page = await client.list_page(kind, namespace=namespace, fields=fields, labels=labels, continue_token=token)
            items += page.items
            unreadable += [str(error) for _, error in page.broken]
            token = page.continue_token
            if not token:
                return Read(tuple(items), unreadable=tuple(unreadable))
    except NotFound as error:
        return Read(failure=f"the API server does not serve this kind; are the CRDs installed? ({error})", served=False)
    except KubeError as error:
        return Read(failure=str(error))


class Reader:
    """Reads until a deadline that all its questions share, `seconds` from now; being late is a failure like others."""

    def __init__(self, client: Client, seconds: float) -> None:
        self._client = client
        self._seconds = seconds
        self._deadline = asyncio.get_running_loop().time() + seconds

    @property
    def left(self) -> float:
        """Seconds for the next question."""
        return max(self._deadline - asyncio.get_running_loop().time(), _SHORTEST)

    @property
    def late(self) -> str:
        """How to say that no answer came in time."""
        return f"no answer of the API server within {self._seconds:g} s"

    async def all(self, kind: type[K], *, namespace: str = "", fields: str = "", labels: Labels = None) -> Read[K]:
        """Everything of one kind, in one namespace or in all."""
        try:
            async with asyncio.timeout(self.left):
                return await read_all(self._client, kind, namespace=namespace, fields=fields, labels=labels)
        except TimeoutError:
            return Read(failure=self.late)

    async def one(self, kind: type[K], key: Key) -> Found[K]:
        """One object by its name."""
        try:
            async with asyncio.timeout(self.left):
                return Found(await self._client.get(kind, key))
        except NotFound:
            return ABSENT
        except KubeError as error:
            return Found(failure=str(error))
        except TimeoutError:
            return Found(failure=self.late)
