"""What an installation has put into the cluster itself: its webhooks, what answers them, and its kinds.

The webhook configurations lead to everything else. They name the Service that the API server calls, and in its
namespace are the endpoints behind it and the Secret of the serving certificate. So an installation is found wherever
it is, under whichever namespace a chart gave it. Of the Secret the certificate alone is kept; its keys are not decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import msgspec

from inferencecache.api.kinds import KINDS
from inferencecache.doctor.reading import ABSENT, NOT_READ, Found, Read, Reader
from inferencecache.kube.kinds import ObjectMeta, Service, View
from inferencecache.kube.resource import Key, Manifest, Resource, ResourceType

CERTIFICATE_SECRET: Final = "webhook-server-cert"
"""Where both the controller and cert-manager keep the serving certificate."""


class WebhookRule(View, frozen=True):
    """`webhooks[].rules[]`: what the API server asks about."""

    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()


class ServiceReference(View, frozen=True):
    """The Service that a webhook is called through."""

    namespace: str = ""
    name: str = ""
    path: str = ""
    port: int = 443


class ClientConfig(View, frozen=True):
    """How a webhook is called; `ca_bundle` is base64 text."""

    service: ServiceReference | None = None
    url: str = ""
    ca_bundle: str = ""


class Webhook(View, frozen=True):
    """`webhooks[]` of a configuration."""

    name: str
    client_config: ClientConfig = ClientConfig()
    failure_policy: str = "Fail"
    rules: tuple[WebhookRule, ...] = ()


class MutatingConfiguration(View, frozen=True):
    """`admissionregistration.k8s.io/v1` MutatingWebhookConfiguration."""

    resource: ClassVar[Resource] = ResourceType(
        "admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", False
    )
    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[Webhook, ...] = ()


class ValidatingConfiguration(View, frozen=True):
    """`admissionregistration.k8s.io/v1` ValidatingWebhookConfiguration."""

    resource: ClassVar[Resource] = ResourceType(
        "admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False
    )
    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[Webhook, ...] = ()


WebhookConfiguration = MutatingConfiguration | ValidatingConfiguration


class _CertificateData(View, frozen=True):
    certificate: str = msgspec.field(default="", name="tls.crt")


class CertificateSecret(View, frozen=True):
    """`v1` Secret of type `kubernetes.io/tls`, without its key."""

    resource: ClassVar[Resource] = ResourceType("", "v1", "Secret", "secrets")
    metadata: ObjectMeta = ObjectMeta()
    data: _CertificateData = _CertificateData()


class _EndpointConditions(View, frozen=True):
    ready: bool | None = None


class _Endpoint(View, frozen=True):
    conditions: _EndpointConditions = _EndpointConditions()


class EndpointSlice(View, frozen=True):
    """`discovery.k8s.io/v1` EndpointSlice."""

    resource: ClassVar[Resource] = ResourceType("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
    metadata: ObjectMeta = ObjectMeta()
    endpoints: tuple[_Endpoint, ...] | None = None

    @property
    def ready(self) -> int:
        """How many endpoints take requests; one that does not say counts as ready, as the API has it."""
        return sum(one.conditions.ready is not False for one in self.endpoints or ())


class _Schema(View, frozen=True):
    open_api_v3_schema: dict[str, Any] = msgspec.field(default_factory=dict, name="openAPIV3Schema")


class CrdVersion(View, frozen=True):
    """`spec.versions[]` of a kind."""

    name: str
    served: bool = False
    schema: _Schema = _Schema()


class _CrdSpec(View, frozen=True):
    versions: tuple[CrdVersion, ...] = ()


class _CrdCondition(View, frozen=True):
    type: str = ""
    status: str = ""
    message: str = ""


class _CrdStatus(View, frozen=True):
    conditions: tuple[_CrdCondition, ...] | None = None


class CustomResourceDefinition(View, frozen=True):
    """`apiextensions.k8s.io/v1` CustomResourceDefinition."""

    resource: ClassVar[Resource] = ResourceType(
        "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", False
    )
    metadata: ObjectMeta = ObjectMeta()
    spec: _CrdSpec = _CrdSpec()
    status: _CrdStatus = _CrdStatus()

    def condition(self, kind: str) -> _CrdCondition | None:
        """A condition of the API server's, if it is there."""
        return next((one for one in self.status.conditions or () if one.type == kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What of an installation was found.

    Attributes:
        shipped: the webhook configurations that this version ships.
        configurations: those that are there, in the order of `shipped`.
        service_key: of the Service that the API server calls; None if no webhook names one.
        service: that Service, with the `endpoints` behind it.
        certificate: the Secret that holds the serving certificate.
        kinds: CRDs by name, of every kind that this version knows.
    """

    shipped: tuple[WebhookConfiguration, ...]
    configurations: tuple[Found[Any], ...]
    service_key: Key | None = None
    service: Found[Service] = ABSENT
    endpoints: Read[EndpointSlice] = NOT_READ
    certificate: Found[CertificateSecret] = ABSENT
    kinds: Mapping[str, Found[CustomResourceDefinition]]


def shipped(manifests: Sequence[Manifest]) -> tuple[WebhookConfiguration, ...]:
    """Webhook configurations from their manifests."""
    views: dict[str, type[WebhookConfiguration]] = {
        view.resource.kind: view for view in (MutatingConfiguration, ValidatingConfiguration)
    }
    return tuple(msgspec.convert(one, views[one["kind"]]) for one in manifests)


async def look(reader: Reader, expected: Sequence[WebhookConfiguration]) -> Installation:
    """Read what there is of an installation."""
    names = [f"{kind.resource.plural}.{kind.resource.group}" for kind in KINDS]
    async with asyncio.TaskGroup() as group:
        kinds = {name: group.create_task(reader.one(CustomResourceDefinition, Key("", name))) for name in names}
        configurations = [group.create_task(reader.one(type(one), Key("", one.metadata.name))) for one in expected]
    found = tuple(task.result() for task in configurations)
    key = service_of(found)
    installation = Installation(
        shipped=tuple(expected),
        configurations=found,
        service_key=key,
        kinds={name: task.result() for name, task in kinds.items()},
    )
    return installation if key is None else await _with_service(reader, installation, key)


def service_of(configurations: Sequence[Found[Any]]) -> Key | None:
    """The Service that the first webhook with one names."""
    webhooks = (webhook for found in configurations if found.item is not None for webhook in found.item.webhooks)
    services = (webhook.client_config.service for webhook in webhooks)
    return next((Key(one.namespace, one.name) for one in services if one is not None), None)


async def _with_service(reader: Reader, installation: Installation, key: Key) -> Installation:
    async with asyncio.TaskGroup() as group:
        service = group.create_task(reader.one(Service, key))
        endpoints = group.create_task(
            reader.all(EndpointSlice, namespace=key.namespace, labels={"kubernetes.io/service-name": key.name})
        )
        certificate = group.create_task(reader.one(CertificateSecret, Key(key.namespace, CERTIFICATE_SECRET)))
    return replace(
        installation, service=service.result(), endpoints=endpoints.result(), certificate=certificate.result()
    )
