"""Reading one Pod, and what admission looks at when it sees such a Pod."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec

from inferencecache.adapters.registry import Settings
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kvcachechain import Chain
from inferencecache.doctor.events import CoreEvent, PodEvent, merged
from inferencecache.doctor.reading import read_all
from inferencecache.kube.client import Client
from inferencecache.kube.errors import KubeError, NotFound
from inferencecache.kube.kinds import Deployment, ObjectMeta, Pod, View
from inferencecache.kube.resource import Key, Manifest, Resource, ResourceType
from inferencecache.webhooks.kvcache_injection import read_request
from inferencecache.webhooks.kvcache_injection.handlers import LiveChains

CONTROLLER: Final = Key("inference-cache-system", "inference-cache-controller-manager")
WEBHOOKS: Final = Key("", "inference-cache-mutating-webhook-configuration")
POD_WEBHOOK: Final = "mpod.inferencecache.io"


class Unexplained(Exception):
    """The Pod, or the backends of its namespace, cannot be read."""


class _Webhook(View, frozen=True):
    name: str = ""
    namespace_selector: dict[str, Any] = msgspec.field(default_factory=dict)


class WebhookConfiguration(View, frozen=True):
    """`admissionregistration.k8s.io/v1` MutatingWebhookConfiguration."""

    resource: ClassVar[Resource] = ResourceType(
        "admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", False
    )
    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[_Webhook, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What there is to know about one Pod.

    Attributes:
        pod: as stored.
        backends: of its namespace.
        events: about this very Pod.
        settings: with which the controller wires; None where its Deployment cannot be read.
        not_asked: why the webhook is not asked about this namespace; empty if it is.
        chain: what the Pod's KVCachePoolBinding leads to; None if that could not be read, or was not.
        dtype_owned: whether engines are given the dtype of their Binding.
    """

    pod: Manifest
    backends: tuple[CacheBackend, ...]
    events: tuple[PodEvent, ...] = ()
    settings: Settings | None = None
    not_asked: str = ""
    chain: Chain | None = None
    dtype_owned: bool = True


async def observe(client: Client, key: Key, seconds: float) -> Seen:
    """Read everything about one Pod. Raises `Unexplained`."""
    try:
        async with asyncio.timeout(seconds):
            return await _observe(client, key)
    except TimeoutError as error:
        raise Unexplained(f"no answer of the API server within {seconds:g} s") from error
    except NotFound as error:
        raise Unexplained(f"there is no Pod {key}") from error
    except KubeError as error:
        raise Unexplained(str(error)) from error


async def _observe(client: Client, key: Key) -> Seen:
    pod = await client.get_manifest(Pod.resource, key)
    uid = str((pod.get("metadata") or {}).get("uid", ""))
    async with asyncio.TaskGroup() as group:
        command = group.create_task(_command(client))
        backends = group.create_task(read_all(client, CacheBackend, namespace=key.namespace))
        events = group.create_task(
            read_all(client, CoreEvent, namespace=key.namespace, fields=f"involvedObject.uid={uid}")
        )
        not_asked = group.create_task(_not_asked(client, key.namespace))
        chain = group.create_task(_chain(client, pod, key.namespace))
    if backends.result().failure and backends.result().served:  # without the kind there is none
        raise Unexplained(f"CacheBackends of namespace {key.namespace}: {backends.result().failure}")
    arguments = command.result()
    return Seen(
        pod=pod,
        backends=backends.result().items,
        events=merged(events.result().items, ()),
        settings=settings_of(arguments) if arguments is not None else None,
        not_asked=not_asked.result(),
        chain=chain.result(),
        dtype_owned=owns_dtype(arguments or ()),
    )


async def _chain(client: Client, pod: Manifest, namespace: str) -> Chain | None:
    """What the Binding that the Pod names leads to."""
    request, _ = read_request((pod.get("metadata") or {}).get("annotations") or {})
    if not request.binding:
        return Chain()
    try:
        return await LiveChains(client).chain(namespace, request.binding)
    except (KubeError, TimeoutError):
        return None


async def _command(client: Client) -> list[str] | None:
    """The controller's command line; None where its Deployment cannot be read."""
    try:
        deployment = await client.get(Deployment, CONTROLLER)
    except KubeError:
        return None
    containers = ((deployment.spec.get("template") or {}).get("spec") or {}).get("containers") or []
    return [str(arg) for one in containers for arg in [*(one.get("command") or ()), *(one.get("args") or ())]]


def settings_of(arguments: Sequence[str]) -> Settings | None:
    """What a controller's command line says about sidecars; None if part of that is in a file we cannot see."""
    given = _flags(arguments)
    if given.get("policy-server-ca-file"):
        return None
    return Settings(
        kvevent_subscriber_image=given.get("kvevent-subscriber-image", ""),
        policy_server_grpc_address=given.get("policy-server-grpc-address", ""),
        policy_server_tls=_true(given.get("policy-server-tls", "false")),
        policy_server_audience=given.get("policy-server-audience", ""),
        kvevent_replay_endpoint=given.get("kvevent-replay-endpoint", ""),
    )


def owns_dtype(arguments: Sequence[str]) -> bool:
    """Whether a controller with this command line hands the dtype of a Binding to engines; it does by default."""
    given = _flags(arguments)
    return "no-kv-cache-dtype-owned" not in given and _true(given.get("kv-cache-dtype-owned", "true"))


def _true(value: str) -> bool:
    """A boolean flag's value; one that was given without any is true."""
    return value.lower() in ("", "true", "1", "t")


def _flags(arguments: Sequence[str]) -> Mapping[str, str]:
    """Flags by name; the value of one without any is empty."""
    found = {}
    for index, argument in enumerate(arguments):
        if argument.startswith("-"):
            name, equals, value = argument.lstrip("-").partition("=")
            follows = arguments[index + 1] if index + 1 < len(arguments) else "-"
            found[name] = value if equals or follows.startswith("-") else follows
    return found


async def _not_asked(client: Client, namespace: str) -> str:
    """Why the webhook is not asked about Pods of a namespace; empty if it is, or if that cannot be told."""
    try:
        configuration = await client.get(WebhookConfiguration, WEBHOOKS)
    except NotFound:
        return f"MutatingWebhookConfiguration {WEBHOOKS.name} is not installed, so no Pod is ever wired"
    except KubeError:
        return ""
    webhook = next((one for one in configuration.webhooks if one.name == POD_WEBHOOK), None)
    if webhook is None:
        return f"MutatingWebhookConfiguration {WEBHOOKS.name} has no webhook {POD_WEBHOOK}, so no Pod is ever wired"
    for rule in webhook.namespace_selector.get("matchExpressions") or ():
        by_name = rule.get("key") == "kubernetes.io/metadata.name"
        if by_name and rule.get("operator") == "NotIn" and namespace in (rule.get("values") or ()):
            return f"webhook {POD_WEBHOOK} leaves the namespace {namespace} out"
    return ""
