"""What the operator pushes, seen in what the real server then answers (spec 05 §8, decision D8)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.api.pdtopology import PDTopology
from inferencecache.api.prompttemplate import PromptTemplate
from inferencecache.kube.client import Client
from inferencecache.kube.kinds import Pod
from inferencecache.kube.ports import free_port
from inferencecache.kube.resource import Key
from inferencecache.server.sockets import BindAddress
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb
from tests.integration.controllers.cache_server import (
    CONTROLLER,
    OFTEN,
    engine,
    operator,
    own,
    report,
    settings,
)
from tests.integration.kube.waiting import eventually
from tests.integration.server.running import Running, Stub, calling, running
from tests.integration.server.test_auth import Accounts, guarded

A = b"\x01" * 8


@pytest.fixture
async def gateway(server: Running) -> AsyncIterator[Stub]:
    async with calling(server) as stub:
        yield stub


def reason(stub: Stub, namespace: str) -> Callable[[], Awaitable[str]]:
    """What a lookup of an unknown prefix is answered with."""

    async def look() -> str:
        request = pb.LookupRouteRequest(
            model_id="m", tenant_id=namespace, hash_scheme="vllm", prefix_hash=A, prefix_token_count=64
        )
        reply: pb.LookupRouteResponse = await stub.method("LookupRoute")(request, timeout=60)
        return reply.reason_code

    return look


def condition(client: Client, kind: type[Any], key: Key, name: str) -> Callable[[], Awaitable[tuple[str, str]]]:
    async def look() -> tuple[str, str]:
        conditions = (await client.get(kind, key)).status.conditions or ()
        return next(((one.status, one.reason) for one in conditions if one.type == name), ("", ""))

    return look


async def test_a_policy_is_in_force_as_soon_as_it_is_there_and_no_longer(
    client: Client, namespace: str, tokens: Path, server: Running, gateway: Stub
) -> None:
    key = Key(namespace, "p")
    without = await reason(gateway, namespace)()
    async with operator(client, settings(server, tokens)):
        await client.create(own("CachePolicy", key, {"strategy": {"requireChain": True}}))
        await eventually(reason(gateway, namespace), lambda seen: seen == "POLICY_REQUIRES_CHAIN")
        change = {"spec": {"strategy": {"requireChain": False}}}
        await client.patch(CachePolicy.resource, key, change)
        await eventually(reason(gateway, namespace), lambda seen: seen == without)
        await client.patch(CachePolicy.resource, key, {"spec": {"strategy": {"requireChain": True}}})
        await eventually(reason(gateway, namespace), lambda seen: seen == "POLICY_REQUIRES_CHAIN")
        await client.delete(CachePolicy.resource, key)
        await eventually(reason(gateway, namespace), lambda seen: seen == without)


async def test_a_quota_is_in_force_and_ends_with_its_tenant(
    client: Client, namespace: str, tokens: Path, server: Running, gateway: Stub
) -> None:
    async def entries() -> int:
        request = pb.GetCacheStateRequest(model_id="m", tenant_id=namespace)
        reply: pb.GetCacheStateResponse = await gateway.method("GetCacheState")(request, timeout=60)
        return reply.summary.total_prefixes

    async def after_a_report() -> int:
        await report(gateway, namespace, "e-0", 5)
        return await entries()

    key = Key(namespace, "t")
    await client.create(own("CacheTenant", key, {"tenantID": namespace, "quota": {"maxIndexEntries": 2}}))
    async with operator(client, settings(server, tokens)):
        await eventually(after_a_report, lambda held: held == 2)
        await client.delete(CacheTenant.resource, key)
        await eventually(after_a_report, lambda held: held == 5)


async def test_a_server_that_was_restarted_is_told_again(
    client: Client,
    namespace: str,
    accounts: Accounts,
    tokens: Path,
    server_identity: None,
) -> None:
    username = f"system:serviceaccount:{accounts.namespace}:controller"
    where = BindAddress("127.0.0.1", free_port())
    await client.create(own("CachePolicy", Key(namespace, "p"), {"strategy": {"requireChain": True}}))
    async with (
        guarded(accounts, snapshot_bind_address=where) as first,
        operator(client, settings(first, tokens, push=OFTEN)),
    ):
        async with calling(first) as stub:
            await eventually(reason(stub, namespace), lambda seen: seen == "POLICY_REQUIRES_CHAIN")
        first.stop.set()
        await first.ended
        async with running(allowed_controller_sa=username, snapshot_bind_address=where) as second:
            async with calling(second) as stub:
                await eventually(reason(stub, namespace), lambda seen: seen == "POLICY_REQUIRES_CHAIN")
            second.stop.set()


async def test_a_template_is_rendered_under_the_revision_of_its_status(
    client: Client, namespace: str, tokens: Path, server: Running, gateway: Stub
) -> None:
    key = Key(namespace, "chat")
    slots = [{"name": "system", "type": "Stable"}, {"name": "q", "type": "Mutable", "required": True}]

    async def rendered() -> tuple[str, str, str]:
        request = pb.RenderTemplateRequest(
            template_ref=str(key), tenant_id=namespace, variables={"system": "Be brief.", "q": "Why?"}
        )
        reply: pb.RenderTemplateResponse = await gateway.method("RenderTemplate")(request, timeout=60)
        return reply.reason_code, reply.rendered_prompt.decode(), reply.template_revision

    async def published() -> PromptTemplate:
        return await client.get(PromptTemplate, key)

    def settled(generation: int) -> Callable[[PromptTemplate], bool]:
        return lambda seen: seen.status.observed_generation == generation

    async with operator(client, settings(server, tokens)):
        await client.create(own("PromptTemplate", key, {"body": "{{ system }} {{ q }}", "slots": slots}))
        first = await eventually(published, settled(1))
        assert await rendered() == ("OK", "Be brief. Why?", first.status.template_revision)
        await eventually(condition(client, PromptTemplate, key, "Ready"), lambda seen: seen == ("True", "Served"))

        await client.patch(PromptTemplate.resource, key, {"spec": {"body": "{{ system }}\n{{ q }}"}})
        second = await eventually(published, settled(2))
        assert second.status.template_revision != first.status.template_revision
        assert await rendered() == ("OK", "Be brief.\nWhy?", second.status.template_revision)

        await client.patch(PromptTemplate.resource, key, {"spec": {"body": "{{ who }}"}})
        await eventually(published, settled(3))
        assert await condition(client, PromptTemplate, key, "Accepted")() == ("False", "InvalidBody")
        assert (await rendered())[0] == "TEMPLATE_NOT_FOUND"

        await client.patch(PromptTemplate.resource, key, {"spec": {"body": "{{ system }} {{ q }}"}})
        again = await eventually(published, settled(4))
        assert again.status.template_revision == first.status.template_revision
        await client.delete(PromptTemplate.resource, key)
        await eventually(rendered, lambda seen: seen[0] == "TEMPLATE_NOT_FOUND")


async def test_a_topology_is_routed_over_the_pods_that_run(
    client: Client, namespace: str, tokens: Path, server: Running, gateway: Stub
) -> None:
    key = Key(namespace, "pd")
    pools = {role: [{"name": role, "matchLabels": {"role": role}}] for role in ("prefill", "decode")}

    async def route() -> tuple[str, str]:
        request = pb.LookupPDRouteRequest(
            model_id="m", tenant_id=namespace, prefix_hash=A, prefix_token_count=64, pd_topology_ref=str(key)
        )
        reply: pb.LookupPDRouteResponse = await gateway.method("LookupPDRoute")(request, timeout=60)
        return reply.prefill_replica_id, reply.decode_replica_id

    async def runs(name: str) -> None:
        await client.patch_status(Pod.resource, Key(namespace, name), {"phase": "Running"})

    async def hold(name: str, finalizers: list[str] | None) -> None:
        await client.patch(Pod.resource, Key(namespace, name), {"metadata": {"finalizers": finalizers}})

    ready = condition(client, PDTopology, key, "Ready")
    async with operator(client, settings(server, tokens)):
        spec = {"prefillPools": pools["prefill"], "decodePools": pools["decode"]}
        await client.create(own("PDTopology", key, spec))
        await eventually(ready, lambda seen: seen == ("False", "NoReplicas"))
        for name, role in (("p-0", "prefill"), ("d-0", "decode"), ("d-1", "decode")):
            await client.create(engine(name, namespace, {"role": role}))
        await runs("p-0")
        await runs("d-0")
        await eventually(route, lambda seen: seen == ("p-0", "d-0"))
        await eventually(ready, lambda seen: seen == ("True", "Served"))
        await runs("d-1")
        await hold("d-0", ["example.net/hold"])
        await client.delete(Pod.resource, Key(namespace, "d-0"))
        await eventually(route, lambda seen: seen == ("p-0", "d-1"))
        await hold("d-0", None)
        await client.delete(Pod.resource, Key(namespace, "p-0"))
        await eventually(ready, lambda seen: seen == ("False", "NoReplicas"))
        await eventually(route, lambda seen: seen == ("", ""))


async def test_a_token_for_another_audience_is_refused_and_a_good_one_mends_it(
    client: Client, namespace: str, accounts: Accounts, tokens: Path, server: Running, gateway: Stub
) -> None:
    good = (tokens / "policy-token").read_text()
    (tokens / "policy-token").write_text(await accounts.token("controller", CONTROLLER))
    key = Key(namespace, "chat")
    ready = condition(client, PromptTemplate, key, "Ready")
    async with operator(client, settings(server, tokens, push=OFTEN)):
        await client.create(own("PromptTemplate", key, {"body": "x"}))
        await client.create(own("CachePolicy", Key(namespace, "p"), {"strategy": {"requireChain": True}}))
        await eventually(ready, lambda seen: seen == ("False", "PushFailed"))
        assert await reason(gateway, namespace)() != "POLICY_REQUIRES_CHAIN"
        (tokens / "policy-token").write_text(good)
        await eventually(ready, lambda seen: seen == ("True", "Served"))
        await eventually(reason(gateway, namespace), lambda seen: seen == "POLICY_REQUIRES_CHAIN")
