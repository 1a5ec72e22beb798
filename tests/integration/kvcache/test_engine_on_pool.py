"""What engines are told lets the client of a real master write on the Binding's account (spec 10 §12)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.kube.resource import Key
from inferencecache.webhooks.kvcache_injection import inject
from inferencecache.webhooks.kvcache_injection.handlers import LiveChains
from tests.integration.kube.waiting import eventually
from tests.integration.kvcache.pool_world import MIB, World, operator
from tests.mooncake import Master, Store
from tests.unit.webhooks.kvcache_injection.pools import PREFIX, pod

NOT_REGISTERED = -1701


async def told(world: World, engine: str) -> dict[str, Any]:
    """The settings of the store's client in an injected Pod, under the store's own names."""
    chain = await LiveChains(world.client).chain(world.namespace, "team-a")
    asking = pod(engine)
    done = inject(asking, asking["metadata"]["annotations"], world.namespace, chain, dtype_owned=True).pod
    if engine == "vLLM":
        config: dict[str, Any] = json.loads(done["metadata"]["annotations"][f"{PREFIX}client-config"])
        return config
    env = {one["name"]: one.get("value") for one in done["spec"]["containers"][0]["env"]}
    return {
        "master_server_address": env["MOONCAKE_MASTER"],
        "global_segment_size": int(env["MOONCAKE_GLOBAL_SEGMENT_SIZE"] or ""),
        "local_buffer_size": 16 * MIB,  # SGLang's own
        **({"tenant_id": env["MOONCAKE_TENANT_ID"]} if "MOONCAKE_TENANT_ID" in env else {}),
    }


def client_of(master: Master, config: dict[str, Any]) -> Store:
    """The client that an engine makes of its settings; it sends no tenant if it is told none."""
    assert config["master_server_address"] == master.client
    tenant = {"tenant": config["tenant_id"]} if "tenant_id" in config else {}
    return Store(master, segment=config["global_segment_size"], buffer=config["local_buffer_size"], **tenant)


async def usage(world: World) -> Any:
    return (await world.status(KVCachePoolBinding, Key(world.namespace, "team-a"))).get("usage")


@pytest.mark.parametrize("engine", ["vLLM", "SGLang"])
async def test_an_engine_writes_on_the_account_of_its_binding_and_one_that_names_nobody_may_not(
    world: World, master: Master, engine: str
) -> None:
    await world.backend(admin=master.admin, client=master.client)
    pool = await world.pool()
    binding = await world.binding("team-a", domain="chat", ceiling="16Mi")
    with Store(master, segment=64 * MIB):
        async with operator(world):
            await world.says(KVCachePoolBinding, binding, phase="Ready")
            await world.says(KVCachePool, pool, phase="Ready")
            with client_of(master, await told(world, engine)) as client:
                assert client.put("block", MIB) == 0
                assert client.get("block") == MIB
                await eventually(lambda: usage(world), lambda seen: seen == "1Mi")
            with Store(master) as nobody:
                assert nobody.put("block", MIB) == NOT_REGISTERED


async def test_on_a_master_without_tenants_an_engine_is_told_none_and_writes(
    world: World, single_tenant: Master
) -> None:
    await world.backend(admin=single_tenant.admin, client=single_tenant.client)
    pool = await world.pool()
    await world.binding("team-a", domain="chat")
    with Store(single_tenant, segment=64 * MIB):
        async with operator(world):
            await world.says(KVCachePool, pool, phase="Ready", QuotaLedgerAvailable=("False", "MultiTenancyDisabled"))
            config = await told(world, "vLLM")
            assert "tenant_id" not in config
            with client_of(single_tenant, config) as client:
                assert client.put("block", MIB) == 0
