"""The Pod under admission: its raw JSON, which is what gets changed, and a typed view, which is what gets read.

The view declares what the webhook and the adapters rely on. A Pod that does not fit it could not be persisted either,
so it is turned away here, before anything walks into its raw JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec

from inferencecache.api.annotations import opts_out
from inferencecache.api.constants import ANNOTATION_SKIP_INJECT


class UnreadablePod(ValueError):
    """A Pod whose JSON has another shape than Kubernetes gives Pods."""


class _EnvVar(msgspec.Struct, frozen=True):
    name: str = ""
    value: str | None = None


class _Mount(msgspec.Struct, frozen=True):
    name: str = ""


class _Resources(msgspec.Struct, frozen=True):
    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class _Container(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    image: str | None = None
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[_EnvVar] | None = None
    env_from: list[dict[str, Any]] | None = None
    resources: _Resources | None = None
    volume_mounts: list[_Mount] | None = None
    volume_devices: list[_Mount] | None = None
    security_context: dict[str, Any] | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    volumes: list[_Mount] | None = None


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata | None = None
    spec: _Spec | None = None


class PodMeta(msgspec.Struct, frozen=True):
    """What the webhook reads of a Pod's metadata; absent values are empty."""

    name: str
    generate_name: str
    namespace: str
    labels: dict[str, str]
    annotations: dict[str, str]


class PodView(msgspec.Struct, frozen=True):
    """What the webhook reads of a Pod."""

    metadata: PodMeta

    @property
    def opted_out(self) -> bool:
        """Whether the Pod asks to be left alone."""
        return opts_out(self.metadata.annotations.get(ANNOTATION_SKIP_INJECT, ""))


def read_pod(raw: msgspec.Raw | bytes) -> tuple[dict[str, Any], PodView]:
    """The Pod as plain JSON values, and its view. Raises `UnreadablePod`."""
    try:
        pod = msgspec.json.decode(raw)
        view = view_of(pod)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadablePod(str(error)) from error
    return pod, view


def view_of(pod: Any) -> PodView:
    """The view of a Pod that is already plain JSON values. Raises `UnreadablePod`."""
    try:
        found = msgspec.convert(pod, _Pod)
    except msgspec.ValidationError as error:
        raise UnreadablePod(str(error)) from error
    meta = found.metadata or _Metadata()
    return PodView(
        PodMeta(
            name=meta.name or "",
            generate_name=meta.generate_name or "",
            namespace=meta.namespace or "",
            labels=meta.labels or {},
            annotations=meta.annotations or {},
        )
    )
