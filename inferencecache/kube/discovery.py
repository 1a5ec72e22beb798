"""From `apiVersion` and `kind` to a path: what the API server says it serves, remembered per group version.

A kind that is not in the remembered answer is looked up once more before it counts as unknown, so that CRDs may be
installed while we run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from inferencecache.kube.errors import NotFound
from inferencecache.kube.resource import Resource, ResourceType

if TYPE_CHECKING:
    from inferencecache.kube.client import Client


class _Entry(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool


class _ResourceList(msgspec.Struct):
    resources: list[_Entry] = []


class Discovery:
    """Looks resources up at one API server. Shared by all clients made from one another."""

    _decoder: ClassVar = msgspec.json.Decoder(_ResourceList)

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, dict[str, Resource]] = {}

    async def resource_for(self, api_version: str, kind: str) -> Resource:
        """The resource of a kind. Raises `NotFound` if the server serves no such kind."""
        resource = self._known.get(api_version, {}).get(kind)
        if resource is None:
            self._known[api_version] = await self._read(api_version)
            resource = self._known[api_version].get(kind)
        if resource is None:
            raise NotFound(
                f"the API server serves no kind {kind} in {api_version}; is its CustomResourceDefinition installed?",
                status=404,
            )
        return resource

    async def _read(self, api_version: str) -> dict[str, Resource]:
        group, _, version = api_version.rpartition("/")
        body = await self._client.request("GET", f"/apis/{api_version}" if group else f"/api/{version}")
        return {
            entry.kind: ResourceType(group, version, entry.kind, entry.name, entry.namespaced)
            for entry in self._decoder.decode(body).resources
            if "/" not in entry.name
        }
