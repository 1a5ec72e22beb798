"""The schemas' rules on a real API server that no webhook helps: what they refuse, and what they leave to be edited."""

from __future__ import annotations

import copy
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from inferencecache.adapters.registry import Settings, load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.api.model import CustomObject
from inferencecache.api.schema import apply_defaults, prune, render_crd
from inferencecache.api.schema_check import check_schema
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane, install_crds
from inferencecache.kube.errors import ApiError, Invalid, NotFound
from inferencecache.kube.resource import Key, ResourceType, path_of
from inferencecache.webhooks.injection import Outcome, inject
from inferencecache.webhooks.pods import view_of
from tests.integration.api.installed import install_once
from tests.integration.api.laxer import without_rules
from tests.integration.kube.waiting import eventually
from tests.unit.api.broken_rules import ANSWERED, BACKENDS, GOOD_BACKENDS, VLLM, Spec, store

_CRD = ResourceType("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")


def manifest(kind: type[CustomObject], namespace: str, spec: Spec, name: str = "kv") -> dict[str, Any]:
    return {
        "apiVersion": kind.resource.api_version,
        "kind": kind.resource.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


async def refusal(client: Client, obj: dict[str, Any], kind: type[CustomObject] = CacheBackend) -> set[tuple[str, str]]:
    """The fields and reasons of what the API server holds against an object; empty if it would be stored."""
    path = path_of(kind.resource, obj["metadata"]["namespace"])
    try:
        await client.request("POST", path, body=obj, params={"dryRun": "All"})
    except Invalid as error:
        return {(cause["field"], cause["reason"]) for cause in error.details["causes"]}
    return set()


def offline(kind: type[CustomObject], obj: dict[str, Any]) -> set[str]:
    return {finding.field for finding in check_schema(kind, apply_defaults(kind, prune(kind, obj)))}


@pytest.fixture
async def server(client: Client, control_plane: ControlPlane) -> Client:
    await install_once(client, control_plane)
    return client


@pytest.mark.parametrize(("row", "spec", "fields"), BACKENDS)
async def test_each_row_holds_without_a_webhook(
    server: Client, namespace: str, row: str, spec: Spec, fields: set[str]
) -> None:
    obj = manifest(CacheBackend, namespace, spec)
    theirs = {field for field, _ in await refusal(server, obj)}
    assert fields <= theirs
    assert theirs == offline(CacheBackend, obj)


@pytest.mark.parametrize(("row", "spec"), ANSWERED)
async def test_what_the_operator_answers_can_be_stored_and_restored(
    server: Client, namespace: str, row: str, spec: Spec
) -> None:
    assert await refusal(server, manifest(CacheBackend, namespace, spec)) == set()


async def test_a_stored_backend_that_admission_would_refuse_leaves_its_pod_as_it_came(
    server: Client, namespace: str
) -> None:
    """Spec 04 §4.1 and §5, decision A6: from the object as the API server stores it to the answer to its Pod."""
    runtimes, _ = load_adapters()
    labels = {"app": "sglang"}
    metadata = {"name": "engine", "namespace": namespace, "labels": labels}
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "sglang", "image": "sglang:1"}]}}
    refused = {"V24", "V25", "V26", "V28", "V31", "V33", "V34", "A6"}
    for row, spec in [one for one in ANSWERED if one[0] in refused]:
        obj = manifest(CacheBackend, namespace, {**spec, "engineSelector": {"matchLabels": labels}})
        await server.create(obj)
        backend = await server.get(CacheBackend, Key(namespace, "kv"))
        done = inject(pod, view_of(pod), namespace, [backend], runtimes, Settings("subscriber:1"))
        assert (done.outcome, done.backend) == (Outcome.UNWIRED, f"{namespace}/kv"), row
        assert done.pod is pod, row
        assert done.reason in ("rejected", "no_adapter"), row
        await server.delete(CacheBackend.resource, Key(namespace, "kv"))


async def test_a_lifetime_is_the_webhooks_to_judge(server: Client, namespace: str) -> None:
    for lifetime in ("0s", "-5m", "soon"):
        assert await refusal(server, manifest(CachePolicy, namespace, {"evictionTTL": lifetime}), CachePolicy) == set()


@pytest.mark.parametrize("spec", GOOD_BACKENDS)
async def test_good_specs_are_stored(server: Client, namespace: str, spec: Spec) -> None:
    assert await refusal(server, manifest(CacheBackend, namespace, spec)) == set()


async def test_the_rule_of_policies_holds_without_a_webhook(server: Client, namespace: str) -> None:
    obj = manifest(CachePolicy, namespace, {"strategy": {"requireChain": True, "enableChainMatching": False}})
    assert {found for found, _ in await refusal(server, obj, CachePolicy)} == {"spec"}


async def test_a_quota_of_the_reserved_tenant_can_be_stored_and_restored(server: Client, namespace: str) -> None:
    """Servers have an answer to it (spec 06 §5)."""
    obj = manifest(CacheTenant, namespace, {"tenantID": "inferencecache.io/probe"})
    assert await refusal(server, obj, CacheTenant) == set()


# --------------------------------------------------------------------------------------------------- stored objects


class Laxer:
    """The kind under a group of its own, first without its rules, then with them."""

    def __init__(self, client: Client, namespace: str) -> None:
        group = f"g{uuid.uuid4().hex[:8]}.test.dev"
        self.client = client
        self.namespace = namespace
        self.resource = ResourceType(group, "v1alpha1", "CacheBackend", "cachebackends")
        self.crd = copy.deepcopy(render_crd(CacheBackend))
        self.crd["metadata"]["name"] = f"cachebackends.{group}"
        self.crd["spec"]["group"] = group
        del self.crd["spec"]["names"]["shortNames"]

    def key(self, name: str) -> Key:
        return Key(self.namespace, name)

    async def create(self, name: str, spec: Spec) -> None:
        obj = manifest(CacheBackend, self.namespace, spec, name)
        obj["apiVersion"] = f"{self.resource.group}/v1alpha1"
        await self.client.request("POST", path_of(self.resource, self.namespace), body=obj)

    async def patch(self, name: str, patch: dict[str, Any], subresource: str = "") -> None:
        await self.client.patch(self.resource, self.key(name), patch, subresource=subresource)

    async def tighten(self) -> None:
        """Bring the rules, and wait until the API server goes by them."""
        await install_crds(self.client, [self.crd])

        async def refused() -> bool:
            try:
                await self.create("probe", {**VLLM, "lmCache": {"hostMemory": {"capacity": "0"}}})
            except Invalid:
                return True
            await self.client.delete(self.resource, self.key("probe"))
            return False

        await eventually(refused, bool)


@pytest.fixture
async def laxer(client: Client, namespace: str) -> AsyncIterator[Laxer]:
    kind = Laxer(client, namespace)
    await install_crds(client, [without_rules(kind.crd)])
    yield kind
    await client.delete(_CRD, Key("", kind.crd["metadata"]["name"]))


async def test_what_was_stored_before_the_rules_is_still_edited_and_deleted(laxer: Laxer) -> None:
    """Decision A7, with the webhook down: every stored breach at once, and none of them blocks another change."""
    specs = {f"kv-{n}": spec for n, (_, spec, _) in enumerate(BACKENDS)}
    for name, spec in specs.items():
        await laxer.create(name, spec)
    await laxer.tighten()
    for name in specs:
        await laxer.patch(name, {"metadata": {"labels": {"team": "a"}}})
        await laxer.patch(name, {"status": {"failOpen": True}}, "status")
        await laxer.patch(name, {"spec": {"observation": {"modelID": "m"}}})
        await laxer.client.delete(laxer.resource, laxer.key(name))
        with pytest.raises(NotFound):
            await laxer.client.get_manifest(laxer.resource, laxer.key(name))


async def test_an_edit_that_breaks_a_rule_is_refused_whatever_is_stored(laxer: Laxer) -> None:
    await laxer.create("kv", {**VLLM, "hiCache": {"sizeGB": 1}})
    await laxer.tighten()
    with pytest.raises(ApiError, match=r"spec\.remoteStorage\.redis"):
        await laxer.patch("kv", {"spec": {"remoteStorage": store(redis={})}})
