"""Names of things in the API server: what a kind is called, where it lives, and which object is meant.

Everything else in the framework speaks in these three terms. A `Resource` is the address of a kind (group, version,
plural); a `Kind` is a Python class whose instances are decoded objects of one resource; a `Key` names one object.
A `Kind` may be a msgspec struct that declares only the fields somebody reads, or a pydantic model: the framework asks
no more of it than this module says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import quote

Manifest: TypeAlias = dict[str, Any]
"""A Kubernetes object as plain JSON values, written the way a user would write its YAML."""


class Resource(Protocol):
    """The address of a kind in the API server; any object with these attributes will do."""

    @property
    def group(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def plural(self) -> str: ...
    @property
    def namespaced(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ResourceType:
    """The address of a kind, for kinds that have no richer description of their own."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True


class Metadata(Protocol):
    """What the framework reads of `metadata`; absent values are empty strings."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


class Kind(Protocol):
    """A class whose instances are decoded objects of one resource."""

    resource: ClassVar[Any]

    @property
    def metadata(self) -> Metadata: ...


K = TypeVar("K", bound=Kind)


class Key(NamedTuple):
    """The name of one object; `namespace` is empty for cluster-scoped kinds."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @classmethod
    def of(cls, obj: Kind) -> Key:
        """The key of a decoded object."""
        return cls(obj.metadata.namespace, obj.metadata.name)


def api_version(resource: Resource) -> str:
    """`group/version`, or `version` alone for the core group."""
    return f"{resource.group}/{resource.version}" if resource.group else resource.version


def path_of(resource: Resource, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """The request path of a collection (no `name`), an object, or a subresource of an object.

    An empty `namespace` of a namespaced resource addresses the collection across all namespaces. Names are encoded: one
    that somebody wrote into a spec may hold anything, and `a?b` must not lead to the object `a`.
    """
    parts = ["/apis", resource.group, resource.version] if resource.group else ["/api", resource.version]
    if namespace and resource.namespaced:
        parts += ["namespaces", _segment(namespace)]
    parts.append(resource.plural)
    if name:
        parts.append(_segment(name))
    if subresource:
        parts.append(subresource)
    return "/".join(parts)


def _segment(name: str) -> str:
    # Names of roles have colons, which a path may hold as they are.
    return quote(name, safe=":")
