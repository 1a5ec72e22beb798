"""Stores, pools and Bindings through a real API server and the webhooks of an installation (spec 10 §4, §16)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from inferencecache.api.kinds import crds
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.model import CustomObject
from inferencecache.cli.install import webhook_configurations
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.errors import ApiError, Invalid, NotFound
from inferencecache.kube.resource import Key, Manifest
from inferencecache.webhooks.kvcache import LivePools, PoolHandlers
from tests.integration.kube.waiting import eventually
from tests.integration.kvcache.listening import PATIENCE, listening, patient

FINALIZER = "gpustack.ai/controlled"
_MARK = "pool-admission"


class Kinds:
    """Objects of the three kinds, all marked so that only this test's webhooks judge them."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self._made: list[tuple[type[CustomObject], Key]] = []

    def name(self, name: str) -> str:
        """A name of the cluster that is this test's own."""
        return f"{self.namespace}-{name}"

    async def backend(self, name: str = "b", **leader: Any) -> Manifest:
        group = {"nodeSelector": {"a": "b"}, "medium": "DRAM", "capacityPerMember": "1Gi"}
        connection = {"managed": {"leader": leader, "members": [group]}}
        return await self.make(KVCacheBackend, self.name(name), {"connection": connection})

    async def pool(self, name: str = "p", backend: str = "b", total: Any = "10Gi", **metadata: Any) -> Manifest:
        spec = {"backends": [self.name(backend)], "quota": {"total": total}}
        return await self.make(KVCachePool, self.name(name), spec, **metadata)

    async def binding(
        self, name: str = "x", pool: str = "p", ceiling: Any = "1Gi", domain: Manifest | None = None, **metadata: Any
    ) -> Manifest:
        spec = {
            "poolRef": {"name": self.name(pool)},
            "quota": {"ceiling": ceiling},
            "domain": {"name": "d", "blockSize": 64, "dtype": "bfloat16"} | (domain or {}),
        }
        return await self.make(KVCachePoolBinding, name, spec, **metadata)

    async def make(self, kind: type[CustomObject], name: str, spec: Manifest, **metadata: Any) -> Manifest:
        where = {"namespace": self.namespace} if kind.resource.namespaced else {}
        made = await self.client.create(
            {
                "apiVersion": kind.resource.api_version,
                "kind": kind.resource.kind,
                "metadata": {"name": name, **where, "labels": {_MARK: self.namespace}, **metadata},
                "spec": spec,
            }
        )
        self._made.append((kind, self.key(kind, name)))
        return made

    def key(self, kind: type[CustomObject], name: str) -> Key:
        return Key(self.namespace if kind.resource.namespaced else "", name)

    async def edit(self, kind: type[CustomObject], name: str, **patch: Any) -> Manifest:
        return await self.client.patch(kind.resource, self.key(kind, name), patch)

    async def clean(self) -> None:
        for kind, key in reversed(self._made):
            with contextlib.suppress(NotFound):
                await self.client.patch(kind.resource, key, {"metadata": {"finalizers": None}})
                await self.client.delete(kind.resource, key)


@pytest.fixture
async def kinds(client: Client, namespace: str) -> AsyncIterator[Kinds]:
    await install_crds(client, crds())
    handlers = PoolHandlers(LivePools(client), dtype_owned=True, lookup_timeout=PATIENCE)
    async with listening(handlers.objects) as address:
        (_, configuration) = webhook_configurations(address)
        configuration["webhooks"] = [one for one in configuration["webhooks"] if one["name"].startswith("vkvcache")]
        for webhook in configuration["webhooks"]:
            webhook["objectSelector"] = {"matchLabels": {_MARK: namespace}}
        configuration["metadata"]["name"] = namespace
        await client.create(patient(configuration))
        made = Kinds(client, namespace)
        try:
            # Called as soon as the API server says no where its schema says yes.
            await eventually(lambda: said(made.pool("probe", total="0")), lambda text: "greater than zero" in text)
            yield made
        finally:
            await made.clean()
            resource, key = await client.locate(configuration)
            await client.delete(resource, key)


async def said(attempt: Any) -> str:
    """What the API server says against something; empty if nothing."""
    try:
        await attempt
    except ApiError as error:
        return str(error)
    return ""


def causes(refusal: ApiError) -> list[tuple[str, str]]:
    return [(one["reason"], one["field"]) for one in refusal.details["causes"]]


async def test_a_store_a_pool_and_a_binding_are_made_one_after_the_other(kinds: Kinds) -> None:
    """As in one `kubectl apply`: no informer has to have seen the one before."""
    await kinds.backend()
    await kinds.pool()
    made = await kinds.binding(domain={"name": None})
    assert made["spec"]["domain"]["name"] == "default"


async def test_all_that_is_wrong_is_one_refusal_with_a_cause_each(kinds: Kinds) -> None:
    with pytest.raises(Invalid) as refused:
        await kinds.binding(ceiling="0", domain={"name": "_d", "blockSize": 0, "dtype": "FP8"})
    assert refused.value.status == 422
    assert refused.value.details["group"] == "worker.gpustack.ai"
    assert causes(refused.value) == [
        ("FieldValueInvalid", "spec.domain.name"),
        ("FieldValueInvalid", "spec.domain.blockSize"),
        ("FieldValueInvalid", "spec.domain.dtype"),
        ("FieldValueInvalid", "spec.quota.ceiling"),
    ]


async def test_what_is_named_must_exist(kinds: Kinds) -> None:
    with pytest.raises(Invalid) as refused:
        await kinds.pool()
    assert causes(refused.value) == [("FieldValueNotFound", "spec.backends[0]")]
    with pytest.raises(Invalid) as refused:
        await kinds.binding()
    assert causes(refused.value) == [("FieldValueNotFound", "spec.poolRef.name")]


async def test_a_second_claim_names_the_holder_and_the_shared_store(kinds: Kinds) -> None:
    await kinds.backend()
    await kinds.backend("c")
    await kinds.pool()
    await kinds.pool("q")
    await kinds.pool("r", "c")
    await kinds.binding()
    with pytest.raises(Invalid) as refused:
        await kinds.binding("y", "q")
    assert causes(refused.value) == [("FieldValueDuplicate", "spec.domain.name")]
    assert f"{kinds.namespace}/x" in str(refused.value)
    assert kinds.name("b") in str(refused.value)
    await kinds.binding("y", "r")


async def test_a_store_without_tenants_takes_one_domain(kinds: Kinds) -> None:
    await kinds.backend(multiTenancy=False)
    await kinds.pool()
    await kinds.binding()
    with pytest.raises(Invalid) as refused:
        await kinds.binding("y", domain={"name": "e"})
    assert causes(refused.value) == [("FieldValueInvalid", "spec.domain.name")]


async def test_creates_that_race_for_a_domain_end_in_an_order_of_their_own(kinds: Kinds) -> None:
    """Both may pass, one may be refused as the second; neither fails otherwise, and whoever comes later is refused."""
    await kinds.backend()
    await kinds.pool()
    outcomes = await asyncio.gather(*(said(kinds.binding(name)) for name in ("x", "y")))
    assert sum(not outcome for outcome in outcomes) >= 1
    assert all("Duplicate value" in outcome for outcome in outcomes if outcome)
    with pytest.raises(Invalid) as refused:
        await kinds.binding("z")
    assert causes(refused.value) == [("FieldValueDuplicate", "spec.domain.name")]


@pytest.mark.parametrize("name", ["on", "1e3", "null", "0"])
async def test_a_domain_may_be_named_what_yaml_takes_for_something_else(kinds: Kinds, name: str) -> None:
    await kinds.backend()
    await kinds.pool()
    made = await kinds.binding(domain={"name": name, "dtype": "1e3"})
    assert (made["spec"]["domain"]["name"], made["spec"]["domain"]["dtype"]) == (name, "1e3")


@pytest.mark.parametrize(
    ("total", "complaint"),
    [
        (2**63 - 1, ""),
        ("9223372036854775807", ""),
        (2**63, "must be of type integer"),  # by the schema already: as a number, JSON's integers end there
        ("9223372036854775808", "64 bits"),
        ("8Ei", "64 bits"),
        ("9223372036854775807.1", "64 bits"),
    ],
)
async def test_a_total_is_at_most_what_64_bits_hold(kinds: Kinds, total: Any, complaint: str) -> None:
    await kinds.backend()
    told = await said(kinds.pool(total=total))
    assert complaint in told
    assert bool(told) is bool(complaint)


async def test_what_is_fixed_stays_so_while_it_is_deleted_and_can_still_be_let_go(kinds: Kinds) -> None:
    await kinds.backend()
    await kinds.pool(total="2Ti", finalizers=[FINALIZER])
    await kinds.binding(ceiling="1Ti", finalizers=[FINALIZER])
    for kind, name in ((KVCachePoolBinding, "x"), (KVCachePool, kinds.name("p")), (KVCacheBackend, kinds.name("b"))):
        await kinds.client.delete(kind.resource, kinds.key(kind, name))
    with pytest.raises(Invalid) as refused:
        await kinds.edit(KVCachePoolBinding, "x", spec={"domain": {"dtype": "fp8_e4m3", "blockSize": 32}})
    assert {cause for cause, _ in causes(refused.value)} == {"FieldValueForbidden"}
    with pytest.raises(Invalid):
        await kinds.edit(KVCachePool, kinds.name("p"), spec={"backends": ["elsewhere"]})
    await kinds.edit(KVCachePool, kinds.name("p"), metadata={"finalizers": None})
    # The pool is gone: another spelling of the ceiling does not ask for it, another ceiling does.
    await kinds.edit(KVCachePoolBinding, "x", spec={"quota": {"ceiling": "1099511627776"}})
    with pytest.raises(Invalid) as refused:
        await kinds.edit(KVCachePoolBinding, "x", spec={"quota": {"ceiling": "1Gi"}})
    assert causes(refused.value) == [("FieldValueNotFound", "spec.poolRef.name")]
    await kinds.edit(KVCachePoolBinding, "x", metadata={"finalizers": None})
    with pytest.raises(NotFound):
        await kinds.client.get(KVCachePoolBinding, kinds.key(KVCachePoolBinding, "x"))


async def test_a_used_store_keeps_its_ledger(kinds: Kinds) -> None:
    await kinds.backend()
    key, off = kinds.key(KVCacheBackend, kinds.name("b")), {"leader": {"multiTenancy": False}}
    used = [{"kind": "KVCachePool", "namespace": "", "name": "p"}]
    await kinds.client.patch_status(KVCacheBackend.resource, key, {"usedBy": used})
    with pytest.raises(Invalid) as refused:
        await kinds.edit(KVCacheBackend, key.name, spec={"connection": {"managed": off}})
    assert causes(refused.value) == [("FieldValueForbidden", "spec.connection.managed.leader.multiTenancy")]
    await kinds.client.patch_status(KVCacheBackend.resource, key, {"usedBy": []})
    await kinds.edit(KVCacheBackend, key.name, spec={"connection": {"managed": off}})


async def test_one_connection_gives_way_to_the_other_in_one_edit_only(kinds: Kinds) -> None:
    await kinds.backend()
    name = kinds.name("b")
    endpoints = [{"name": "Client", "address": "s:50051"}, {"name": "Admin", "address": "s:9003"}]
    with pytest.raises(Invalid) as refused:
        await kinds.edit(KVCacheBackend, name, spec={"connection": {"external": {"endpoints": endpoints}}})
    assert causes(refused.value) == [("FieldValueForbidden", "spec.connection.external")]
    await kinds.edit(KVCacheBackend, name, spec={"connection": {"managed": None, "external": {"endpoints": endpoints}}})


async def test_a_failed_look_up_refuses_and_is_not_taken_for_an_absent_object(kinds: Kinds, client: Client) -> None:
    class Unreadable(LivePools):
        async def find(self, kind: Any, name: str) -> Any:
            raise ApiError("forbidden", status=403)

    handlers = PoolHandlers(Unreadable(client), dtype_owned=True)
    async with listening(handlers.objects) as address:
        (_, configuration) = webhook_configurations(address)
        configuration["webhooks"] = [
            one for one in configuration["webhooks"] if one["name"].startswith("vkvcachepool.")
        ]
        configuration["webhooks"][0]["objectSelector"] = {"matchLabels": {_MARK: kinds.namespace}}
        configuration["metadata"]["name"] = f"{kinds.namespace}-unreadable"
        await kinds.backend()
        await client.create(configuration)
        resource, key = await client.locate(configuration)
        try:
            await eventually(
                lambda: said(kinds.pool("q")),
                lambda text: "looking up KVCacheBackend" in text and "NotFound" not in text,
            )
        finally:
            await client.delete(resource, key)
