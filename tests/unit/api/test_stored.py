"""Objects as they are stored: what is left of one of which a part cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.stored import UNKNOWN_USER, StoredBackend, StoredBinding, StoredPool

WHOLE: dict[str, Any] = {
    "metadata": {"name": "x", "namespace": "team", "uid": "u", "finalizers": ["f"]},
    "spec": {
        "poolRef": {"name": "pool"},
        "quota": {"ceiling": "1Gi"},
        "domain": {"name": "chat", "blockSize": 64, "dtype": "bfloat16"},
    },
    "status": {
        "phase": "Ready",
        "usage": "1Mi",
        "conditions": [{"type": "QuotaObserved", "status": "True"}],
        "usedBy": [{"kind": "ModelDeployment", "namespace": "", "name": "llm"}],
    },
}


def spoiled(path: str, value: Any) -> dict[str, Any]:
    """The Binding with another value in a place."""
    copy: dict[str, Any] = json.loads(json.dumps(WHOLE))
    *way, last = path.split(".")
    place = copy
    for step in way:
        place = place[step]
    place[last] = value
    return copy


def stored(document: Any) -> StoredBinding:
    return StoredBinding.model_validate_json(json.dumps(document))


def test_a_binding_that_can_be_read_is_as_its_kind_has_it() -> None:
    found = stored(WHOLE)
    assert found.manifest() == KVCachePoolBinding.decode(WHOLE).manifest()
    assert (found.flaw, found.anybodys) == ("", False)


@pytest.mark.parametrize(
    ("path", "value", "flaw", "pool", "domain", "users", "anybodys"),
    [
        ("spec.quota.ceiling", "1e101", "spec.quota.ceiling: '1e101' is no", "pool", "chat", ["llm"], False),
        ("spec.quota", 5, "spec.quota: ", "pool", "chat", ["llm"], False),
        ("spec.domain.blockSize", "many", "spec.domain.blockSize: ", "pool", "chat", ["llm"], False),
        ("spec.domain.name", 5, "spec.domain.name: ", "pool", "", ["llm"], False),
        ("spec.domain", 5, "spec.domain: ", "pool", "", ["llm"], False),
        ("spec.poolRef.name", 5, "spec.poolRef.name: ", "", "chat", ["llm"], True),
        ("spec.poolRef", 5, "spec.poolRef: ", "", "chat", ["llm"], True),
        ("spec", 5, "spec: ", "", "", ["llm"], True),
        ("status.usedBy", 5, "status.usedBy: ", "pool", "chat", [UNKNOWN_USER.name], False),
        ("status", 5, "status: ", "pool", "chat", [UNKNOWN_USER.name], False),
        ("status.usage", "1e101", "", "pool", "chat", ["llm"], False),
        ("status.conditions", 5, "", "pool", "chat", ["llm"], False),
    ],
)
def test_what_cannot_be_read_is_told_and_the_rest_is_kept(
    path: str, value: Any, flaw: str, pool: str, domain: str, users: list[str], anybodys: bool
) -> None:
    found = stored(spoiled(path, value))
    assert found.flaw.startswith(flaw)
    assert bool(found.flaw) is bool(flaw)
    assert (found.pool, found.spec.domain.name, found.anybodys) == (pool, domain, anybodys)
    assert [user.name for user in found.status.used_by] == users
    assert (found.metadata.name, found.metadata.finalizers) == ("x", ("f",))


@pytest.mark.parametrize("document", [spoiled("metadata.uid", 5), [], "text", 5])
def test_what_has_no_readable_metadata_is_no_object(document: Any) -> None:
    with pytest.raises(ValidationError):
        stored(document)


def test_text_that_is_no_json_is_no_object() -> None:
    with pytest.raises(ValidationError):
        StoredBinding.model_validate_json(b"{")


def test_a_pool_keeps_its_backends_when_its_total_cannot_be_read() -> None:
    spec = {"backends": ["store"], "quota": {"total": "1e1.5"}}
    found = StoredPool.model_validate_json(json.dumps({"metadata": {"name": "p"}, "spec": spec}))
    assert found.backend == "store"
    assert found.flaw.startswith("spec.quota.total: '1e1.5' is no")


def test_a_backend_still_says_where_its_master_is_and_whether_that_keeps_a_ledger() -> None:
    member = {"nodeSelector": {"a": "b"}, "medium": "DRAM", "capacityPerMember": "1e101"}
    document = {
        "metadata": {"name": "store"},
        "spec": {"connection": {"managed": {"leader": {"multiTenancy": False}, "members": [member]}}},
        "status": {"endpoints": [{"name": "Admin", "address": "leader:9003"}]},
    }
    found = StoredBackend.model_validate_json(json.dumps(document))
    assert found.flaw.startswith("spec.connection.managed.members: '1e101' is no")
    assert (found.multi_tenant, found.address("Admin")) == (False, "leader:9003")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "kind", "a"]), inner),
    max_leaves=5,
)
PATHS = ["spec", "spec.poolRef", "spec.poolRef.name", "spec.quota.ceiling", "spec.domain", "spec.domain.name"]
PATHS += ["status", "status.usedBy", "status.usage", "status.conditions", "status.phase"]


@given(st.sampled_from(PATHS), ANYTHING)
def test_a_binding_with_readable_metadata_is_always_an_object(path: str, value: Any) -> None:
    document = spoiled(path, value)
    found = stored(document)
    assert found.metadata.name == "x"
    try:
        strict = KVCachePoolBinding.decode(document)
    except ValueError:
        assert found.flaw or path.startswith("status.")
    else:
        assert found.manifest() == strict.manifest()
