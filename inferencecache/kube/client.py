"""Requests to the API server: typed reads, plain-manifest writes, every one with a deadline.

Reads decode into the view of a kind; writes take manifests and patches, so that fields no view declares are never lost.
A request has one deadline for everything, its retries included (decision F15). What may be repeated without harm is
repeated, with jittered back-off, when no answer came or the server was overloaded; a server that says when to come back
is obeyed. A `guarded` client asks for permission right before each write, which is how a process that lost its
leadership while it slept is kept from writing (decision F14).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlencode

import aiohttp
import msgspec

from inferencecache import tracing
from inferencecache.kube.codec import ListPage, decode_list, decoder_for
from inferencecache.kube.connection import Connection
from inferencecache.kube.discovery import Discovery
from inferencecache.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    DecodeError,
    Gone,
    NotFound,
    ServerError,
    TooManyRequests,
    TransportError,
    api_error,
)
from inferencecache.kube.http import Answer
from inferencecache.kube.resource import K, Key, Kind, Manifest, Resource, api_version, path_of

PatchType: TypeAlias = Literal["merge", "json"]
Labels: TypeAlias = Mapping[str, str] | str | None
JsonPatch: TypeAlias = list[dict[str, Any]]

PAGE_SIZE: Final = 500
DEFAULT_TIMEOUT: Final = timedelta(seconds=10)
LIST_TIMEOUT: Final = timedelta(seconds=60)
_FIRST_RETRY: Final = 0.1
_LONGEST_RETRY: Final = 2.0
_NOBODYS_VERSION: Final = "1"
"""Every write to the store counts one up, and the first is none of an object."""
_JSON: Final = "application/json"
_APPLY: Final = "application/apply-patch+yaml"
_PATCH: Final[dict[PatchType, str]] = {"merge": "application/merge-patch+json", "json": "application/json-patch+json"}
_IDEMPOTENT: Final = frozenset({"GET", "PUT", "DELETE"})


def _allowed() -> None:
    """The check of an unguarded client: every write may go out."""


class Client:
    """A typed client of one API server.

    `field_manager` names us in `managedFields`; `timeout` bounds each request with its retries.
    All methods raise `ApiError` subclasses for refusals and `TransportError` when no answer came in time.
    """

    def __init__(self, connection: Connection, *, field_manager: str, timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        self.connection = connection
        self.field_manager = field_manager
        self.timeout = timeout
        self.discovery = Discovery(self)
        self._check: Callable[[], None] = _allowed

    def guarded(self, check: Callable[[], None]) -> Client:
        """This client, but `check` is called right before each write and may raise to hold it back."""
        client = Client(self.connection, field_manager=self.field_manager, timeout=self.timeout)
        client.discovery = self.discovery
        client._check = check
        return client

    def check_write(self) -> None:
        """Raise what a write would now be held back with; for writes to servers of other kinds, right before each."""
        self._check()

    # ------------------------------------------------------------------------------------------------------- reads

    async def get(self, kind: type[K], key: Key) -> K:
        """Read one object live. Raises `NotFound`."""
        return decoder_for(kind)(await self.request("GET", _path_to(kind.resource, key)))

    async def get_manifest(self, resource: Resource, key: Key) -> Manifest:
        """Read one object live as plain values, nothing left out. Raises `NotFound`."""
        return _manifest(await self.request("GET", _path_to(resource, key)))

    async def list(self, kind: type[K], *, namespace: str = "", labels: Labels = None, fields: str = "") -> list[K]:
        """List live, in pages; starts over, once, when the continue token expires on the way.

        Raises `DecodeError` if an object does not fit its view: a caller that decides on a list must not decide on part
        of it.
        """
        for attempt in (1, 2):
            items: list[K] = []
            token = ""
            try:
                while True:
                    page = await self.list_page(
                        kind, namespace=namespace, labels=labels, fields=fields, continue_token=token
                    )
                    if page.broken:
                        raise page.broken[0][1]
                    items += page.items
                    token = page.continue_token
                    if not token:
                        return items
            except Gone:
                if attempt == 2 or not token:
                    raise
        raise AssertionError("unreachable")

    async def list_page(
        self,
        kind: type[K],
        *,
        namespace: str = "",
        labels: Labels = None,
        fields: str = "",
        limit: int = PAGE_SIZE,
        continue_token: str = "",
        resource_version: str | None = None,
    ) -> ListPage[K]:
        """One page of a list, at most `limit` objects. Raises `Gone` when the continue token has expired."""
        params = _selection(labels, fields) | {"limit": str(limit)}
        if continue_token:
            params["continue"] = continue_token
        elif resource_version is not None:
            params["resourceVersion"] = resource_version
        body = await self.request("GET", path_of(kind.resource, namespace), params=params, timeout=LIST_TIMEOUT)
        return decode_list(kind, body)

    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        labels: Labels = None,
        fields: str = "",
        resource_version: str = "",
        timeout_seconds: int = 300,
        idle_limit: timedelta = timedelta(seconds=90),
    ) -> AsyncIterator[bytes]:
        """Stream watch frames, one JSON document each, of any length, until the server ends the stream.

        The server is asked for bookmarks and to end after `timeout_seconds`. A stream on which nothing arrives for
        `idle_limit` raises `TransportError`: a dead peer and a silent one look alike, and both are left.
        """
        params = _selection(labels, fields) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
        }
        path = path_of(resource, namespace)
        try:
            async with asyncio.timeout(self.timeout.total_seconds()):
                answer = await self._send("GET", path, None, params, _JSON, idle_limit=idle_limit.total_seconds())
            try:
                if answer.status >= 300:
                    raise await _refusal(f"watch {path}", answer)
                rest = bytearray()
                async for chunk in answer.content.iter_any():
                    start = 0
                    while (end := chunk.find(b"\n", start)) >= 0:
                        rest += chunk[start:end]
                        start = end + 1
                        if rest:
                            yield bytes(rest)
                            rest.clear()
                    rest += chunk[start:]
            finally:
                answer.close()
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise TransportError(f"watch {path}: {_what(error)}") from error

    # ------------------------------------------------------------------------------------------------------ writes

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object. Raises `AlreadyExists`."""
        resource, key = await self.locate(manifest)
        params = {"fieldManager": self.field_manager}
        return _manifest(await self.request("POST", path_of(resource, key.namespace), body=manifest, params=params))

    async def apply(
        self, manifest: Manifest, *, owner: Kind | None = None, dry_run: bool = False, force: bool = True
    ) -> Manifest:
        """Apply server-side as our field manager, taking over fields that others set.

        `owner` becomes the controlling owner reference. Without `force`, a field that another manager set otherwise
        raises `Conflict`. The answer is the object as it now is.
        """
        if owner is not None:
            manifest = with_owner(manifest, owner)
        resource, key = await self.locate(manifest)
        params = {"fieldManager": self.field_manager, "force": "true" if force else "false"}
        if dry_run:
            params["dryRun"] = "All"
        path = _path_to(resource, key)
        return _manifest(
            await self.request("PATCH", path, body=manifest, params=params, content_type=_APPLY, repeatable=True)
        )

    async def apply_new(self, manifest: Manifest) -> Manifest:
        """Apply server-side what is not there yet. Raises `AlreadyExists`, and then nothing has changed.

        Unlike what `create` makes, its fields are owned as those of any other apply. An object that is there is never
        merged with, not even one that says the same: the version that is asked for is none it could have.
        """
        metadata = {**manifest.get("metadata", {}), "resourceVersion": _NOBODYS_VERSION}
        try:
            return await self.apply({**manifest, "metadata": metadata}, force=False)
        except Conflict as error:
            raise AlreadyExists(error.message, status=error.status, reason="AlreadyExists") from error

    async def patch(
        self,
        resource: Resource,
        key: Key,
        patch: Mapping[str, Any] | JsonPatch,
        *,
        type: PatchType = "merge",  # noqa: A002 - the API's own word
        subresource: str = "",
    ) -> Manifest:
        """Apply a JSON merge patch or a JSON patch; the answer is the object as it now is."""
        path = _path_to(resource, key, subresource)
        return _manifest(
            await self.request(
                "PATCH",
                path,
                body=patch,
                params={"fieldManager": self.field_manager},
                content_type=_PATCH[type],
                repeatable=type == "merge",
            )
        )

    async def patch_status(self, resource: Resource, key: Key, status: Mapping[str, Any]) -> Manifest:
        """Merge `status` into the status subresource; a `None` removes a field, a list replaces one."""
        return await self.patch(resource, key, {"status": dict(status)}, subresource="status")

    async def replace(self, resource: Resource, key: Key, manifest: Manifest) -> Manifest:
        """Write a whole object; its `resourceVersion` makes the write fail with `Conflict` if the object changed."""
        path = _path_to(resource, key)
        return _manifest(await self.request("PUT", path, body=manifest, params={"fieldManager": self.field_manager}))

    async def delete(
        self,
        resource: Resource,
        key: Key,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: Literal["Background", "Foreground", "Orphan"] = "Background",
    ) -> None:
        """Delete an object, only if it still has the given uid and version. Raises `NotFound` and `Conflict`."""
        preconditions = {name: value for name, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if preconditions:
            body["preconditions"] = preconditions
        await self.request("DELETE", _path_to(resource, key), body=body)

    # --------------------------------------------------------------------------------------------------- transport

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        content_type: str = _JSON,
        timeout: timedelta | None = None,  # noqa: ASYNC109 - covers the retries too
        repeatable: bool | None = None,
    ) -> bytes:
        """Send one request and return the body of its answer.

        `repeatable` says whether it may be sent again when no answer came; by default reads, replacements and
        deletions may. A refusal for overload is repeated in any case: nothing happened.
        """
        what = f"{method} {path}"
        again = method in _IDEMPOTENT if repeatable is None else repeatable
        data = None if body is None else msgspec.json.encode(body)
        seconds = (timeout or self.timeout).total_seconds()
        last: Exception | None = None
        try:
            async with asyncio.timeout(seconds) as deadline:
                pause = _FIRST_RETRY
                while True:
                    try:
                        with tracing.inner_span(
                            f"kubernetes {method}", {"http.request.method": method, "url.path": path}
                        ):
                            return await self._once(what, method, path, data, params, content_type, seconds)
                    except (TooManyRequests, ServerError) as refusal:
                        if not again and refusal.status not in (429, 503):
                            raise
                        last, wait = refusal, refusal.retry_after
                    except TransportError as error:
                        if not again:
                            raise
                        last, wait = error, None
                    delay = wait if wait is not None else pause * random.uniform(0.8, 1.2)
                    pause = min(pause * 2, _LONGEST_RETRY)
                    end = deadline.when()
                    if end is not None and asyncio.get_running_loop().time() + delay >= end:
                        raise last
                    await asyncio.sleep(delay)
        except TimeoutError as error:
            if isinstance(last, ApiError):
                raise last from error
            raise TransportError(f"{what}: no answer within {seconds:g} s") from error

    async def _once(
        self,
        what: str,
        method: str,
        path: str,
        data: bytes | None,
        params: Mapping[str, str] | None,
        content_type: str,
        seconds: float,
    ) -> bytes:
        try:
            # One attempt may take half of the request's time, so that a connection that died silently in the pool
            # leaves some for another.
            async with asyncio.timeout(max(seconds / 2, 0.05)):
                answer = await self._send(method, path, data, params, content_type)
                try:
                    if answer.status >= 300:
                        raise await _refusal(what, answer)
                    return await answer.read()
                finally:
                    answer.close()
        except (aiohttp.ClientError, OSError) as error:
            raise TransportError(f"{what}: {_what(error)}") from error

    async def _send(
        self,
        method: str,
        path: str,
        data: bytes | None,
        params: Mapping[str, str] | None,
        content_type: str,
        *,
        idle_limit: float | None = None,
    ) -> Answer:
        target = f"{path}?{_encoded(tuple(params.items()))}" if params else path
        for renewed in (False, True):
            authorization = await self.connection.authorization()
            headers = {"Accept": _JSON}
            if data is not None:
                headers["Content-Type"] = content_type
            if authorization:
                headers["Authorization"] = authorization
            check = None if method == "GET" else self._check
            answer = await self.connection.http.send(
                method, target, headers, data, idle_limit=idle_limit, last_check=check
            )
            if answer.status != 401 or renewed or not await self.connection.renew_authorization(authorization):
                return answer
            answer.close()
        raise AssertionError("unreachable")

    async def locate(self, manifest: Manifest) -> tuple[Resource, Key]:
        """Where a manifest belongs, by discovery. Raises `NotFound` for a kind that is not served."""
        metadata = manifest.get("metadata", {})
        resource = await self.discovery.resource_for(manifest["apiVersion"], manifest["kind"])
        return resource, Key(metadata.get("namespace", "") if resource.namespaced else "", metadata.get("name", ""))


def with_owner(manifest: Manifest, owner: Kind, *, blocks_deletion: bool = True) -> Manifest:
    """The manifest with `owner` as its controlling owner reference, so that it dies with its owner.

    `blocks_deletion` has a foreground deletion of the owner wait for it; that takes the right to `update` the owner's
    finalizers.
    """
    reference = {
        "apiVersion": api_version(owner.resource),
        "kind": owner.resource.kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
        **({"blockOwnerDeletion": True} if blocks_deletion else {}),
    }
    return {**manifest, "metadata": {**manifest.get("metadata", {}), "ownerReferences": [reference]}}


def _path_to(resource: Resource, key: Key, subresource: str = "") -> str:
    # The path without a name is the collection's: to read it is no answer, and to delete it deletes all there is.
    if not key.name:
        raise NotFound(
            f"{resource.kind} {key}: an object has a name, and none was given", status=404, reason="NotFound"
        )
    return path_of(resource, key.namespace, key.name, subresource)


def _selection(labels: Labels, fields: str) -> dict[str, str]:
    params = {}
    if labels:
        params["labelSelector"] = (
            labels if isinstance(labels, str) else ",".join(f"{k}={v}" for k, v in sorted(labels.items()))
        )
    if fields:
        params["fieldSelector"] = fields
    return params


@lru_cache(maxsize=64)
def _encoded(params: tuple[tuple[str, str], ...]) -> str:
    """A query string; those of writes are the same few over and over."""
    return urlencode(params)


async def _refusal(what: str, answer: Answer) -> ApiError:
    return api_error(what, answer.status, await answer.read(), answer.headers.get("Retry-After"))


def _manifest(body: bytes) -> Manifest:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise DecodeError(f"the API server answered with something that is no object: {error}") from error


def _what(error: BaseException) -> str:
    return str(error) or type(error).__name__
