"""Reading whole collections so that what goes wrong is a value, and costs only what it concerns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic

from inferencecache.kube.client import Client
from inferencecache.kube.errors import KubeError, NotFound
from inferencecache.kube.resource import K


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


async def read_all(client: Client, kind: type[K], *, namespace: str = "", fields: str = "") -> Read[K]:
    """Everything of one kind, in one namespace or in all. Raises `TimeoutError` only if the caller's time is up."""
    items: list[K] = []
    unreadable: list[str] = []
    token = ""
    try:
        while True:
            page = await client.list_page(kind, namespace=namespace, fields=fields, continue_token=token)
            items += page.items
            unreadable += [str(error) for _, error in page.broken]
            token = page.continue_token
            if not token:
                return Read(tuple(items), unreadable=tuple(unreadable))
    except NotFound as error:
        return Read(failure=f"the API server does not serve this kind; are the CRDs installed? ({error})", served=False)
    except KubeError as error:
        return Read(failure=str(error))
