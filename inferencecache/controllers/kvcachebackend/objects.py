"""What all objects that are rendered for a backend have in common: where they live, and how they are named and marked.

All of them live in one namespace, whatever backend they are for, so every name begins with the backend's. The type
label finds them, the notes say for whom and for what they are (spec 10 §2.4); the identity labels, which are also the
selectors, say which Pods belong together (spec 10 §14).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from inferencecache.api import kvcache as k
from inferencecache.api.constants import LABEL_INSTANCE, LABEL_NAME
from inferencecache.api.kvcachebackend import EnvValue, KVCacheBackend
from inferencecache.kube.resource import Manifest, Resource, api_version

LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_PART_OF: Final = "app.kubernetes.io/part-of"
NAME: Final = "kv-cache-backend"
PART_OF: Final = "gpustack-operator-worker"

COMPONENT_LEADER: Final = "leader"
COMPONENT_MEMBER: Final = "member"

RPC_PORT: Final = 50051
ADMIN_PORT: Final = 9003


@dataclass(frozen=True, slots=True)
class Settings:
    """What rendering needs beside the backend: the namespace of all its objects, and the image where it names none."""

    namespace: str
    image: str


def leader_name(backend: str) -> str:
    """The name of the leader's objects, and of the Lease of its election."""
    return f"{backend}-leader"


def members_name(backend: str) -> str:
    """The name of the account of all members."""
    return f"{backend}-member"


def group_name(backend: str, position: int) -> str:
    """The name of a member group's DaemonSet."""
    return f"{members_name(backend)}-{position}"


def group_component(position: int) -> str:
    """What tells the Pods of a member group from others of their backend."""
    return f"{COMPONENT_MEMBER}-{position}"


def position_of(component: str) -> int | None:
    """The position of the member group with this component; None if it is none."""
    kind, _, position = component.rpartition("-")
    return int(position) if kind == COMPONENT_MEMBER and position.isdecimal() else None


def leader_address(backend: str, namespace: str, port: int) -> str:
    """`host:port` of the leader's Service."""
    return f"{leader_name(backend)}.{namespace}.svc:{port}"


def identity(backend: str, component: str) -> dict[str, str]:
    """The labels by which a Service and a workload find their Pods."""
    return {LABEL_NAME: NAME, LABEL_INSTANCE: backend, LABEL_COMPONENT: component}


def child(
    resource: Resource,
    backend: KVCacheBackend,
    settings: Settings,
    name: str,
    *,
    component: str,
    **content: Any,
) -> Manifest:
    """An object of a backend, marked as such; `content` are its fields beside the metadata."""
    owner = backend.metadata.name
    role = k.ROLE_LEADER if component == COMPONENT_LEADER else k.ROLE_MEMBER
    return {
        "apiVersion": api_version(resource),
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": {**identity(owner, component), LABEL_PART_OF: PART_OF, k.LABEL_TYPE: k.TYPE_BACKENDS},
            "annotations": {k.ANNOTATION_BACKEND: owner, k.ANNOTATION_ROLE: role},
        },
        **content,
    }


def pod_template(backend: KVCacheBackend, component: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The template of a workload's Pods."""
    labels = {**identity(backend.metadata.name, component), LABEL_PART_OF: PART_OF}
    secrets = [{"name": secret.name} for secret in backend.spec.image_pull_secrets]
    return {
        "metadata": {"labels": labels},
        "spec": {**({"imagePullSecrets": secrets} if secrets else {}), **spec},
    }


def image_fields(backend: KVCacheBackend, image: str) -> dict[str, str]:
    """Image and pull policy of a container. A policy that is left out follows from the tag, as with any Pod."""
    return {"image": image, "imagePullPolicy": backend.spec.image_pull_policy or _policy_of(image)}


def environment(rendered: Iterable[dict[str, Any]], added: Iterable[EnvValue]) -> list[dict[str, Any]]:
    """The variables of a container. What the operator renders stands, should a user's of that name have been stored."""
    ours = list(rendered)
    taken = {one["name"] for one in ours}
    return [*ours, *({"name": one.name, "value": one.value} for one in added if one.name not in taken)]


def downward(name: str, path: str) -> dict[str, Any]:
    """A variable that holds a field of the Pod itself."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _policy_of(image: str) -> str:
    named, _, digest = image.partition("@")
    _, _, tag = named.rpartition("/")[2].partition(":")
    return "Always" if tag == "latest" or not (tag or digest) else "IfNotPresent"
