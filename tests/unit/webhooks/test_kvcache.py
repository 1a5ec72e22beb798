"""The webhooks of the pool's kinds: what they look up, and what they answer when that fails (spec 10 §4)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.stored import StoredPool
from inferencecache.kube.codec import decoder_for
from inferencecache.kube.errors import ApiError, Forbidden, NotFound, ServerError, TransportError
from inferencecache.webhooks.app import create_app
from inferencecache.webhooks.kvcache import LivePools, PoolHandlers
from inferencecache.webhooks.validation.kvcachepoolbinding import Claim
from tests.unit.webhooks.reviews import ask, message_of
from tests.unit.webhooks.stand_ins import Cluster, handlers

Json = dict[str, Any]
V1 = {"apiVersion": "worker.gpustack.ai/v1"}
POOL: Json = {
    **V1,
    "kind": "KVCachePool",
    "metadata": {"name": "p"},
    "spec": {"backends": ["b"], "quota": {"total": "10Gi"}},
}
BINDING: Json = {
    **V1,
    "kind": "KVCachePoolBinding",
    "metadata": {"name": "x", "namespace": "ns"},
    "spec": {
        "poolRef": {"name": "p"},
        "quota": {"ceiling": "1Gi"},
        "domain": {"name": "d", "blockSize": 64, "dtype": "bfloat16"},
    },
}
BACKEND: Json = {**V1, "kind": "KVCacheBackend", "metadata": {"name": "b"}, "spec": {"connection": {}}}


@dataclass
class Stored:
    """Objects in memory behind the reader's protocol, and what was asked of them."""

    objects: list[Any] = field(default_factory=list)
    failure: Exception | None = None
    stuck: bool = False
    asked: list[str] = field(default_factory=list)

    async def find(self, kind: type[Any], name: str) -> Any:
        await self._ask(f"{kind.__name__} {name}")
        return next((one for one in self._all(kind) if one.metadata.name == name), None)

    async def pools(self) -> Sequence[StoredPool]:
        await self._ask("pools")
        return self._all(KVCachePool)

    async def claims(self) -> Sequence[Claim]:
        await self._ask("claims")
        return [Claim.of(one) for one in self._all(KVCachePoolBinding)]

    def _all(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.objects if one.resource == kind.resource]

    async def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.stuck:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure


async def judged(stored: Stored, obj: Json, *, patience: float = 60, **more: Any) -> Json:
    others = PoolHandlers(stored, dtype_owned=True, lookup_timeout=timedelta(seconds=patience)).objects
    path = f"/validate-worker-gpustack-ai-v1-{obj['kind'].lower()}"
    return await ask(
        create_app(handlers(Cluster()), others=others), path, obj, obj["metadata"].get("namespace", ""), **more
    )


def ceiling(amount: str) -> Json:
    return {**BINDING, "spec": {**BINDING["spec"], "quota": {"ceiling": amount}}}


@pytest.mark.parametrize("obj", [POOL, BINDING], ids=["pool", "binding"])
@pytest.mark.parametrize(
    "failure",
    [
        TransportError("no answer within 10 s"),
        Forbidden("not yours", status=403),
        ServerError("etcd is away", status=500),
        TimeoutError(),
    ],
    ids=["no answer", "forbidden", "server error", "timeout"],
)
async def test_a_failed_look_up_is_an_internal_error(obj: Json, failure: Exception) -> None:
    response = await judged(Stored(failure=failure), obj)
    assert (response["allowed"], response["status"]["code"]) == (False, 500)
    assert response["status"]["reason"] == "InternalError"
    assert "try again" in message_of(response)


async def test_a_look_up_that_takes_too_long_is_an_internal_error() -> None:
    response = await judged(Stored(stuck=True), POOL, patience=0.2)
    assert response["status"]["code"] == 500
    assert "KVCacheBackend b" in message_of(response)


@pytest.mark.parametrize(
    ("obj", "old", "asked"),
    [
        (POOL, None, ["KVCacheBackend b"]),
        (POOL, POOL, []),
        ({**POOL, "spec": {**POOL["spec"], "backends": []}}, None, []),
        (BINDING, None, ["pools", "KVCacheBackend b", "claims"]),
        (BINDING, BINDING, []),
        (ceiling("1073741824"), BINDING, []),
        (ceiling("2Gi"), BINDING, ["StoredPool p"]),
        (ceiling("0"), None, []),
        (BACKEND, None, []),
    ],
)
async def test_only_what_the_verdict_depends_on_is_looked_up(obj: Json, old: Json | None, asked: list[str]) -> None:
    stored = Stored([KVCachePool.decode(POOL)])
    await judged(stored, obj, operation="UPDATE" if old else "CREATE", old=old)
    assert stored.asked == asked


@pytest.mark.parametrize("obj", [POOL, BINDING, BACKEND], ids=lambda obj: obj["kind"])
async def test_a_deletion_is_never_refused(obj: Json) -> None:
    stored = Stored(failure=ZeroDivisionError())
    assert (await judged(stored, obj, operation="DELETE"))["allowed"]


@pytest.mark.parametrize("obj", [POOL, BINDING, BACKEND], ids=lambda obj: obj["kind"])
async def test_what_cannot_be_read_is_refused(obj: Json) -> None:
    response = await judged(Stored(), {**obj, "spec": "nonsense"})
    assert (response["allowed"], response["status"]["code"]) == (False, 400)


@pytest.mark.parametrize("obj", [POOL, BINDING], ids=lambda obj: obj["kind"])
async def test_what_is_stored_unreadably_may_lose_its_finalizer_and_be_mended_but_not_be_changed_otherwise(
    obj: Json,
) -> None:
    amount = {"total": "1e101"} if obj is POOL else {"ceiling": "1e101"}
    broken = {**obj, "spec": {**obj["spec"], "quota": amount}}
    held = {**broken, "metadata": {**obj["metadata"], "finalizers": ["gpustack.ai/controlled"]}}
    stored = Stored([KVCachePool.decode(POOL), KVCacheBackend.decode(BACKEND)])

    async def update(new: Json, old: Json) -> bool:
        return bool((await judged(stored, new, operation="UPDATE", old=old))["allowed"])

    assert await update(broken, held)
    assert await update(held, broken)
    assert await update(obj, broken)
    assert not await update(broken, obj)
    assert not await update({**broken, "spec": {**broken["spec"], "more": "1"}}, broken)
    assert not (await judged(stored, broken))["allowed"]


async def test_a_refusal_names_the_group_of_the_kind() -> None:
    response = await judged(Stored(), BACKEND)
    assert response["status"]["code"] == 422
    assert response["status"]["details"]["group"] == "worker.gpustack.ai"
    assert response["status"]["details"]["kind"] == "KVCacheBackend"
    assert message_of(response).startswith('KVCacheBackend.worker.gpustack.ai "b" is invalid: spec.connection: ')


async def test_a_warning_rides_with_the_admission() -> None:
    leader = {"leader": {"multiTenancy": False}, "members": []}
    backend = KVCacheBackend.decode({**BACKEND, "spec": {"connection": {"managed": leader}}})
    response = await judged(Stored([backend]), POOL)
    assert response["allowed"]
    assert len(response["warnings"]) == 1


async def test_a_binding_is_held_against_what_is_stored() -> None:
    other = KVCachePoolBinding.decode({**BINDING, "metadata": {"name": "o", "namespace": "far"}})
    response = await judged(Stored([KVCachePool.decode(POOL), other]), BINDING)
    (cause,) = response["status"]["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldValueDuplicate", "spec.domain.name")


def total(name: str, amount: str) -> StoredPool:
    """A pool as a list of what is stored has it."""
    pool = {**POOL, "metadata": {"name": name}, "spec": {"backends": [f"of-{name}"], "quota": {"total": amount}}}
    return StoredPool.model_validate_json(json.dumps(pool))


async def test_a_pool_that_cannot_be_read_keeps_no_binding_from_another() -> None:
    others = [total("broken", "1e101"), total("p", "10Gi")]
    assert (await judged(Stored(others), BINDING))["allowed"]


@pytest.mark.parametrize("old", [None, ceiling("2Gi")], ids=["create", "update"])
async def test_a_binding_to_a_pool_that_cannot_be_read_is_told_to_mend_it(old: Json | None) -> None:
    response = await judged(Stored([total("p", "1e101")]), BINDING, operation="UPDATE" if old else "CREATE", old=old)
    (cause,) = response["status"]["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldValueInvalid", "spec.poolRef.name")
    assert "mend it first: spec.quota.total: '1e101' is not a quantity" in message_of(response)


class Api:
    """An API server that answers a read with an object, or an error."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def get(self, kind: Any, key: Any) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def list(self, kind: Any) -> list[Any]:
        return [await self.get(kind, None)]


async def test_only_the_api_servers_word_makes_an_object_absent() -> None:
    assert await LivePools(Api(NotFound("gone", status=404))).find(KVCachePool, "p") is None
    assert await LivePools(Api("the pool")).find(KVCachePool, "p") == "the pool"
    with pytest.raises(ApiError):
        await LivePools(Api(Forbidden("not yours", status=403))).find(KVCachePool, "p")
    with pytest.raises(NotFound):
        await LivePools(Api(NotFound("no such kind", status=404))).pools()


async def test_a_claim_is_read_as_the_binding_has_it() -> None:
    class Bindings:
        async def get(self, kind: Any, key: Any) -> Any:
            raise NotImplementedError

        async def list(self, kind: Any) -> list[Any]:
            unnamed = {**BINDING, "spec": {**BINDING["spec"], "domain": {"blockSize": 64, "dtype": "x"}}}
            return [decoder_for(kind)(json.dumps(one).encode()) for one in (BINDING, unnamed)]

    claims = await LivePools(Bindings()).claims()
    assert claims == [("ns", "x", "p", "d"), ("ns", "x", "p", "default")]
    assert claims[0] == Claim.of(KVCachePoolBinding.decode(BINDING))
