"""Every row of the admission tables of the KV cache pool (spec 10 §4, §14), as pure functions."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.webhooks.validation import Verdict
from inferencecache.webhooks.validation.kvcachebackend import (
    LONGEST_NAME,
    RESERVED_FLAGS,
    is_reserved,
    validate_kv_cache_backend,
)
from inferencecache.webhooks.validation.kvcachepool import needs_backend, validate_kv_cache_pool
from inferencecache.webhooks.validation.kvcachepoolbinding import (
    Claim,
    Neighbourhood,
    validate_kv_cache_pool_binding,
)
from inferencecache.webhooks.validation.text import LONGEST_WARNING

Json = dict[str, Any]
BYTES = 2**63


def causes(verdict: Verdict) -> list[tuple[str, str]]:
    """Kind and field of each violation, the kind without its common prefix."""
    return [(one.kind.value.removeprefix("FieldValue"), one.field) for one in verdict.violations]


def changed(base: Json, **fields: Any) -> Json:
    """A copy with fields by dotted path (written with `__`) set; None takes one away."""
    copy = {name: changed(value) if isinstance(value, dict) else value for name, value in base.items()}
    for path, value in fields.items():
        *parents, last = path.split("__")
        node = copy
        for name in parents:
            node = node.setdefault(name, {})
        if value is None:
            node.pop(last, None)
        else:
            node[last] = value
    return copy


# ----------------------------------------------------------------------------------------------------------- amounts

AMOUNTS = [
    ("1", None),
    ("1500m", None),
    ("500m", None),
    (1, None),
    (BYTES - 1, None),
    (f"{BYTES - 1}", None),
    ("8191Pi", None),
    ("1e3", None),
    ("0", "greater than zero"),
    (0, "greater than zero"),
    ("-1Gi", "greater than zero"),
    (-1, "greater than zero"),
    (-BYTES, "greater than zero"),
    (BYTES, "64 bits"),
    (f"{BYTES - 1}001m", "64 bits"),
    ("8Ei", "64 bits"),
    ("1e30", "64 bits"),
    (-BYTES - 1, "64 bits"),
    ("-9Ei", "64 bits"),
]


@pytest.mark.parametrize(("amount", "complaint"), AMOUNTS)
def test_an_amount_is_above_zero_and_fits_into_64_bits(amount: Any, complaint: str | None) -> None:
    verdict = validate_kv_cache_pool(pool(quota__total=amount), pool())
    binding_verdict = validate_kv_cache_pool_binding(
        binding(quota__ceiling=amount), binding(quota__ceiling=amount, domain__dtype="x"), dtype_owned=True
    )
    if complaint is None:
        assert verdict.allowed
        return
    assert causes(verdict) == [("Invalid", "spec.quota.total")]
    assert complaint in verdict.violations[0].message
    assert causes(binding_verdict) == [("Forbidden", "spec.domain.dtype")], (
        "what is stored already is not held against it"
    )
    (found,) = validate_kv_cache_pool_binding(binding(quota__ceiling=amount), dtype_owned=True).violations
    assert (found.field, found.kind.value) == ("spec.quota.ceiling", "FieldValueInvalid")
    assert complaint in found.message


# ------------------------------------------------------------------------------------------------------------- pools

POOL: Json = {"metadata": {"name": "p"}, "spec": {"backends": ["b"], "quota": {"total": "10Gi"}}}


def pool(name: str = "p", *, ledger: tuple[str, str] | None = None, **spec: Any) -> KVCachePool:
    conditions = [{"type": "QuotaLedgerAvailable", "status": ledger[0], "reason": ledger[1]}] if ledger else []
    document = changed(POOL, metadata__name=name, **{f"spec__{path}": value for path, value in spec.items()})
    return KVCachePool.decode({**document, "status": {"conditions": conditions}})


def managed(name: str = "b", *, multi_tenancy: bool | None = None, used_by: list[Json] | None = None) -> KVCacheBackend:
    leader: Json = {} if multi_tenancy is None else {"multiTenancy": multi_tenancy}
    return backend(name, {"managed": {"leader": leader, "members": [group()]}}, used_by=used_by)


def external(name: str = "b") -> KVCacheBackend:
    return backend(name, {"external": {"endpoints": [endpoint("Client"), endpoint("Admin")]}})


def backend(name: str, connection: Json, *, used_by: list[Json] | None = None, **spec: Any) -> KVCacheBackend:
    return KVCacheBackend.decode(
        {
            "metadata": {"name": name},
            "spec": {"connection": connection, **spec},
            "status": {"usedBy": used_by or []},
        }
    )


def group(selector: str = "a", medium: str = "DRAM", **more: Any) -> Json:
    return {"nodeSelector": {"group": selector}, "medium": medium, "capacityPerMember": "1Gi", **more}


def endpoint(name: str, address: str = "store.example.com:50051") -> Json:
    return {"name": name, "address": address}


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        ([], [("Invalid", "spec.backends")]),
        (["a", "b"], [("Invalid", "spec.backends")]),
        ([""], [("Required", "spec.backends[0]")]),
        (["a", ""], [("Invalid", "spec.backends"), ("Required", "spec.backends[1]")]),
        *(([name], [("Invalid", "spec.backends[0]")]) for name in ("b?x", "../b", "b/status", "B", "b b", "b" * 254)),
    ],
)
def test_a_pool_has_exactly_one_named_backend(backends: list[str], expected: list[tuple[str, str]]) -> None:
    assert causes(validate_kv_cache_pool(pool(backends=backends))) == expected


def test_all_that_is_wrong_with_a_pool_is_told_at_once() -> None:
    verdict = validate_kv_cache_pool(pool(backends=["", ""], quota__total="0"))
    assert causes(verdict) == [
        ("Invalid", "spec.backends"),
        ("Required", "spec.backends[0]"),
        ("Required", "spec.backends[1]"),
        ("Invalid", "spec.quota.total"),
    ]


def test_the_backend_of_a_new_pool_exists() -> None:
    verdict = validate_kv_cache_pool(pool(), backend=None)
    assert causes(verdict) == [("NotFound", "spec.backends[0]")]
    assert verdict.violations[0].message.startswith('Not found: "b"')
    assert validate_kv_cache_pool(pool(), backend=None, looked=False).allowed, "offline nobody knows"


@pytest.mark.parametrize(
    ("of", "warned"),
    [
        (managed(), False),
        (managed(multi_tenancy=True), False),
        (managed(multi_tenancy=False), True),
        (external(), False),
    ],
    ids=["omitted", "on", "off", "external"],
)
def test_a_pool_over_a_store_without_a_ledger_is_admitted_with_a_warning(of: KVCacheBackend, warned: bool) -> None:
    verdict = validate_kv_cache_pool(pool(), backend=of)
    assert verdict.allowed
    assert [("no ledger" in one, "one reuse domain" in one) for one in verdict.warnings] == [(True, True)] * warned


def test_the_backend_is_asked_for_only_when_a_good_pool_is_made() -> None:
    assert needs_backend(pool(), None)
    assert not needs_backend(pool(quota__total="0"), None)
    assert not needs_backend(pool(), pool())


def test_a_pool_keeps_its_backend_and_may_lower_its_total() -> None:
    assert causes(validate_kv_cache_pool(pool(backends=["c"]), pool())) == [("Forbidden", "spec.backends")]
    assert validate_kv_cache_pool(pool(quota__total="1"), pool()).allowed


def test_what_a_stored_pool_breaks_does_not_keep_it_from_being_edited() -> None:
    """Decision A7: it must be possible to take its finalizer."""
    stored = pool(backends=["a", "b"], quota__total="0")
    assert validate_kv_cache_pool(stored, stored).allowed


# ---------------------------------------------------------------------------------------------------------- bindings

BINDING: Json = {
    "metadata": {"name": "x", "namespace": "team"},
    "spec": {
        "poolRef": {"name": "p"},
        "quota": {"ceiling": "1Gi"},
        "domain": {"name": "d", "blockSize": 64, "dtype": "bfloat16"},
    },
}


def binding(name: str = "x", namespace: str = "team", **spec: Any) -> KVCachePoolBinding:
    of = {f"spec__{path}": value for path, value in spec.items()}
    return KVCachePoolBinding.decode(changed(BINDING, metadata__name=name, metadata__namespace=namespace, **of))


def around(
    *bindings: KVCachePoolBinding,
    pools: tuple[KVCachePool, ...] | None = None,
    backends: tuple[KVCacheBackend, ...] = (),
) -> Neighbourhood:
    return Neighbourhood(
        pools={one.metadata.name: one for one in ((pool(),) if pools is None else pools)},
        backends={one.metadata.name: one for one in backends},
        claims=tuple(map(Claim.of, bindings)),
    )


def judged(new: KVCachePoolBinding, where: Neighbourhood | None = None, *, dtype_owned: bool = True) -> Verdict:
    return validate_kv_cache_pool_binding(new, dtype_owned=dtype_owned, around=where or around())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"poolRef__name": ""}, ("Required", "spec.poolRef.name")),
        ({"domain__name": ""}, ("Required", "spec.domain.name")),
        ({"domain__blockSize": 0}, ("Invalid", "spec.domain.blockSize")),
        ({"domain__blockSize": -64}, ("Invalid", "spec.domain.blockSize")),
        ({"domain__dtype": ""}, ("Required", "spec.domain.dtype")),
        ({"domain__dtype": "BF16"}, ("Invalid", "spec.domain.dtype")),
        ({"domain__dtype": "bfloat16\n"}, ("Invalid", "spec.domain.dtype")),
        ({"domain__dtype": "fp8\x00"}, ("Invalid", "spec.domain.dtype")),
        ({"domain__dtype": "fp8\u2028e4m3"}, ("Invalid", "spec.domain.dtype")),
        ({"domain__dtype": "auto"}, ("Invalid", "spec.domain.dtype")),
    ],
)
def test_a_binding_is_well_formed(fields: Json, expected: tuple[str, str]) -> None:
    assert causes(judged(binding(**fields))) == [expected]


@pytest.mark.parametrize(
    "name", ["_d", "D", "a_b", "a.b", "-a", "a-", "a b", "a\tb", "a\x00", "ü", "x" * 64, "d\n", "~"]
)
def test_a_domain_name_is_a_dns_label(name: str) -> None:
    assert causes(judged(binding(domain__name=name))) == [("Invalid", "spec.domain.name")]


@pytest.mark.parametrize("name", ["d", "default", "on", "null", "1e3", "0", "123", "x" * 63, "a--b", "yes", "0x1f"])
def test_a_dns_label_is_a_domain_name_whatever_it_looks_like(name: str) -> None:
    assert judged(binding(domain__name=name)).allowed


def test_a_domain_without_a_name_is_the_stores_own() -> None:
    assert binding(domain__name=None).spec.domain.name == "default"
    assert judged(binding(domain__name=None)).allowed


def test_all_that_is_wrong_with_a_binding_is_told_at_once_and_nothing_looked_up() -> None:
    wrong = binding(poolRef__name="", domain__name="_", domain__blockSize=0, domain__dtype="FP8", quota__ceiling="0")
    assert causes(judged(wrong, around(pools=()))) == [
        ("Required", "spec.poolRef.name"),
        ("Invalid", "spec.domain.name"),
        ("Invalid", "spec.domain.blockSize"),
        ("Invalid", "spec.domain.dtype"),
        ("Invalid", "spec.quota.ceiling"),
    ]


def test_the_models_own_dtype_is_refused_for_new_bindings_while_bindings_own_it() -> None:
    auto = binding(domain__dtype="auto")
    assert judged(auto, dtype_owned=False).allowed
    assert validate_kv_cache_pool_binding(auto, auto, dtype_owned=True).allowed, "a stored one stays usable"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"poolRef__name": "q"}, "spec.poolRef.name"),
        ({"domain__name": "e"}, "spec.domain.name"),
        ({"domain__blockSize": 32}, "spec.domain.blockSize"),
        ({"domain__dtype": "fp8_e4m3"}, "spec.domain.dtype"),
    ],
)
@pytest.mark.parametrize("deleted", [None, "2026-01-01T00:00:00Z"], ids=["live", "deleting"])
def test_domain_and_pool_cannot_be_changed(fields: Json, field: str, deleted: str | None) -> None:
    new, old = (
        one.model_copy(update={"metadata": one.metadata.model_copy(update={"deletion_timestamp": deleted})})
        for one in (binding(**fields), binding())
    )
    assert causes(validate_kv_cache_pool_binding(new, old, dtype_owned=True)) == [("Forbidden", field)]


def test_all_changes_of_what_is_fixed_are_told_at_once() -> None:
    new = binding(poolRef__name="q", domain__name="e", domain__blockSize=1, domain__dtype="f", quota__ceiling="-1")
    assert causes(validate_kv_cache_pool_binding(new, binding(), dtype_owned=True)) == [
        ("Invalid", "spec.quota.ceiling"),
        ("Forbidden", "spec.poolRef.name"),
        ("Forbidden", "spec.domain.name"),
        ("Forbidden", "spec.domain.blockSize"),
        ("Forbidden", "spec.domain.dtype"),
    ]


@pytest.mark.parametrize(
    ("ceiling", "pools", "expected"),
    [
        ("10Gi", (pool(),), []),
        ("10737418240", (pool(),), []),
        ("10737418241", (pool(),), [("Invalid", "spec.quota.ceiling")]),
        ("1Gi", (), [("NotFound", "spec.poolRef.name")]),
        ("1Gi", (pool("other"),), [("NotFound", "spec.poolRef.name")]),
    ],
    ids=["all", "all, spelled out", "one byte more", "no pool", "another pool"],
)
def test_a_ceiling_is_within_its_pool(
    ceiling: str, pools: tuple[KVCachePool, ...], expected: list[tuple[str, str]]
) -> None:
    assert causes(judged(binding(quota__ceiling=ceiling), around(pools=pools))) == expected
    moved = validate_kv_cache_pool_binding(
        binding(quota__ceiling=ceiling), binding(quota__ceiling="2Gi"), dtype_owned=True, around=around(pools=pools)
    )
    assert causes(moved) == expected


def test_a_binding_on_a_pool_that_is_being_deleted_is_admitted_with_a_warning() -> None:
    """Nothing would be written into its status, and the pool waits for it."""
    leaving = pool()
    document = leaving.manifest()
    document["metadata"] = {"name": "p", "deletionTimestamp": "2026-11-30T12:00:00Z"}
    (warning,) = judged(binding(), around(pools=(KVCachePool.decode(document),))).warnings
    assert "KVCachePool p is being deleted" in warning
    assert not judged(binding(), around(pools=(leaving,))).warnings


def test_a_ceiling_that_is_only_spelled_otherwise_is_not_held_against_the_pool() -> None:
    new, old = binding(quota__ceiling="1099511627776"), binding(quota__ceiling="1Ti")
    assert validate_kv_cache_pool_binding(new, old, dtype_owned=True, around=around(pools=())).allowed


def test_ceilings_of_siblings_are_not_added_up() -> None:
    others = [binding(f"o{i}", domain__name=f"o{i}", quota__ceiling="10Gi") for i in range(3)]
    assert judged(binding(quota__ceiling="10Gi"), around(*others)).allowed


# other Binding, the pools, the backends, what is found, whether a warning is given
NEIGHBOURS: list[Any] = [
    ("nobody else", [], (pool(),), (), None, False),
    ("the same on the same pool", [binding("o", "far")], (pool(),), (), "Duplicate", False),
    (
        "the same on another pool of the backend",
        [binding("o", "far", poolRef__name="q")],
        (pool(), pool("q")),
        (),
        "Duplicate",
        False,
    ),
    (
        "the same on another backend",
        [binding("o", "far", poolRef__name="q")],
        (pool(), pool("q", backends=["c"])),
        (),
        None,
        False,
    ),
    ("the same on a pool that is gone", [binding("o", "far", poolRef__name="q")], (pool(),), (), None, False),
    (
        "the same on a pool without backends",
        [binding("o", "far", poolRef__name="q")],
        (pool(), pool("q", backends=[])),
        (),
        None,
        False,
    ),
    ("another domain, store unknown", [binding("o", domain__name="e")], (pool(),), (), None, True),
    ("another domain, tenants by default", [binding("o", domain__name="e")], (pool(),), (managed(),), None, True),
    (
        "another domain, no tenants declared",
        [binding("o", domain__name="e")],
        (pool(),),
        (managed(multi_tenancy=False),),
        "Invalid",
        False,
    ),
    ("another domain, external", [binding("o", domain__name="e")], (pool(),), (external(),), None, True),
    (
        "another domain, no tenants seen by this pool",
        [binding("o", domain__name="e")],
        (pool(ledger=("False", "MultiTenancyDisabled")),),
        (external(),),
        "Invalid",
        False,
    ),
    (
        "another domain, no tenants seen by the other pool",
        [binding("o", domain__name="e", poolRef__name="q")],
        (pool(), pool("q", ledger=("False", "MultiTenancyDisabled"))),
        (managed(),),
        "Invalid",
        False,
    ),
    (
        "another domain, ledger unreachable",
        [binding("o", domain__name="e")],
        (pool(ledger=("False", "LedgerUnreachable")),),
        (external(),),
        None,
        True,
    ),
    (
        "another domain on another store without tenants",
        [binding("o", domain__name="e", poolRef__name="q")],
        (pool(), pool("q", backends=["c"])),
        (managed("c", multi_tenancy=False),),
        None,
        False,
    ),
    (
        "the same domain on a store without tenants",
        [binding("o", "far")],
        (pool(),),
        (managed(multi_tenancy=False),),
        "Duplicate",
        False,
    ),
]


@pytest.mark.parametrize(
    ("others", "pools", "backends", "kind", "warned"),
    [row[1:] for row in NEIGHBOURS],
    ids=[row[0] for row in NEIGHBOURS],
)
def test_a_domain_is_unclaimed_and_can_be_kept_apart(
    others: list[KVCachePoolBinding],
    pools: tuple[KVCachePool, ...],
    backends: tuple[KVCacheBackend, ...],
    kind: str | None,
    warned: bool,
) -> None:
    verdict = judged(binding(), around(*others, pools=pools, backends=backends))
    assert causes(verdict) == ([(kind, "spec.domain.name")] if kind else [])
    assert len(verdict.warnings) == warned
    assert all(len(one) <= LONGEST_WARNING for one in verdict.warnings)
    told = [*(one.message for one in verdict.violations), *verdict.warnings]
    assert all(f"{others[0].metadata.namespace}/o" in text and "KVCacheBackend b" in text for text in told)


def test_the_first_neighbour_by_name_is_told() -> None:
    others = [binding(name, namespace, domain__name=name) for namespace, name in (("b", "a"), ("a", "z"), ("a", "c"))]
    (warning,) = judged(binding(), around(*others)).warnings
    assert "a/c" in warning
    off = around(*others, backends=(managed(multi_tenancy=False),))
    (violation,) = judged(binding(), off).violations
    assert "a/c has domain c" in violation.message


def test_a_binding_does_not_compete_with_itself() -> None:
    assert judged(binding(), around(binding())) == Verdict()


def test_a_contested_name_on_an_inseparable_store_is_told_as_both() -> None:
    others = (binding("o", "far"), binding("p", domain__name="e"))
    verdict = judged(binding(), around(*others, backends=(managed(multi_tenancy=False),)))
    assert causes(verdict) == [("Duplicate", "spec.domain.name"), ("Invalid", "spec.domain.name")]


# ---------------------------------------------------------------------------------------------------------- backends


def with_leader(**leader: Any) -> KVCacheBackend:
    return backend("b", {"managed": {"leader": leader, "members": [group()]}})


def with_groups(*groups: Json) -> KVCacheBackend:
    return backend("b", {"managed": {"leader": {}, "members": list(groups)}})


@pytest.mark.parametrize(
    "of", [managed(), external(), managed(multi_tenancy=False)], ids=["managed", "external", "off"]
)
def test_a_good_backend_is_admitted(of: KVCacheBackend) -> None:
    assert validate_kv_cache_backend(of) == Verdict()


_M, _E = "spec.connection.managed", "spec.connection.external"


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (backend("b", {}), [("Required", "spec.connection")]),
        (
            backend("b", {**managed().spec.connection.manifest(), **external().spec.connection.manifest()}),
            [("Forbidden", _E)],
        ),
        (backend("b", {"external": {"endpoints": []}}), [("Required", f"{_E}.endpoints")] * 2),
        (backend("b", {"external": {"endpoints": [endpoint("Client")]}}), [("Required", f"{_E}.endpoints")]),
        (
            backend("b", {"external": {"endpoints": [endpoint("Admin", "http://a:1"), endpoint("Client", "a")]}}),
            [("Invalid", f"{_E}.endpoints[0].address"), ("Invalid", f"{_E}.endpoints[1].address")],
        ),
        (
            backend("b", {"external": {"endpoints": [endpoint("Admin", "u@h:1"), endpoint("Client", "u:p@h:1")]}}),
            [("Invalid", f"{_E}.endpoints[0].address"), ("Invalid", f"{_E}.endpoints[1].address")],
        ),
        (
            backend("b", {"external": {"endpoints": [endpoint("Admin", "a:0"), endpoint("Client", " a:1")]}}),
            [("Invalid", f"{_E}.endpoints[0].address"), ("Invalid", f"{_E}.endpoints[1].address")],
        ),
        (backend("b", external().spec.connection.manifest(), image=" i"), [("Invalid", "spec.image")]),
        (
            backend("b", external().spec.connection.manifest(), imagePullSecrets=[{"name": n} for n in ("a", "", "a")]),
            [("Required", "spec.imagePullSecrets[1].name"), ("Duplicate", "spec.imagePullSecrets[2].name")],
        ),
        (with_leader(extraArgs={"--x": "1"}), [("Invalid", f"{_M}.leader.extraArgs[--x]")]),
        (with_leader(extraArgs={"a=b": "1"}), [("Invalid", f"{_M}.leader.extraArgs[a=b]")]),
        (with_leader(extraArgs={"enable_ha": "true"}), [("Forbidden", f"{_M}.leader.extraArgs[enable_ha]")]),
        (with_leader(extraEnv=[{"name": "A B"}]), [("Invalid", f"{_M}.leader.extraEnv[0].name")]),
        (
            with_leader(extraEnv=[{"name": "KUBERNETES_POD_IP", "value": "1"}]),
            [("Forbidden", f"{_M}.leader.extraEnv[0].name")],
        ),
        (
            with_groups(group(extraEnv=[{"name": "MOONCAKE_MASTER"}], extraArgs={"protocol": "tcp"})),
            [("Forbidden", f"{_M}.members[0].extraArgs[protocol]"), ("Forbidden", f"{_M}.members[0].extraEnv[0].name")],
        ),
        (with_leader(extraEnv=[{"name": "A=B"}]), [("Invalid", f"{_M}.leader.extraEnv[0].name")]),
        (
            with_leader(resources={"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}),
            [("Invalid", f"{_M}.leader.resources.limits[memory]")],
        ),
        (with_groups(group(capacityPerMember="0")), [("Invalid", f"{_M}.members[0].capacityPerMember")]),
        (with_groups(group(capacityPerMember="8Ei")), [("Invalid", f"{_M}.members[0].capacityPerMember")]),
        (with_groups(group(localBufferSize="-1")), [("Invalid", f"{_M}.members[0].localBufferSize")]),
        (with_groups(group(nodeSelector={"a/b/c": "d"})), [("Invalid", f"{_M}.members[0].nodeSelector")]),
        (with_groups(group(nodeSelector={"a": "-"})), [("Invalid", f"{_M}.members[0].nodeSelector[a]")]),
        (with_leader(nodeSelector={f"{'x' * 254}/a": ""}), [("Invalid", f"{_M}.leader.nodeSelector")]),
        (with_groups(group(image="i ")), [("Invalid", f"{_M}.members[0].image")]),
        (with_groups(group(extraArgs={"": "1"})), [("Invalid", f"{_M}.members[0].extraArgs[]")]),
        (
            with_groups(group(localDisks=[{"path": "/da\nta", "capacity": "1Gi"}])),
            [("Invalid", f"{_M}.members[0].localDisks[0].path")],
        ),
        (
            with_groups(group(localDisks=[{"path": "data", "capacity": "0"}])),
            [
                ("Invalid", f"{_M}.members[0].localDisks[0].path"),
                ("Invalid", f"{_M}.members[0].localDisks[0].capacity"),
            ],
        ),
        (
            with_groups(group(localDisks=[{"path": f"/{d}", "capacity": "1Gi"} for d in "ab"])),
            [("Invalid", f"{_M}.members[0].localDisks")],
        ),
        (
            with_groups(*(group(one, localDisks=[{"path": "/d", "capacity": "1Gi"}]) for one in "abc")),
            [("Forbidden", f"{_M}.members[1].localDisks"), ("Forbidden", f"{_M}.members[2].localDisks")],
        ),
    ],
)
def test_a_backend_that_cannot_work_is_refused(of: KVCacheBackend, expected: list[tuple[str, str]]) -> None:
    assert causes(validate_kv_cache_backend(of)) == expected
    assert validate_kv_cache_backend(of, of).allowed, "but stays editable once it is stored (decision A7)"


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("x" * LONGEST_NAME, True),
        ("x" * (LONGEST_NAME + 1), False),
        ("a.b", False),
        ("1a", False),
        ("mooncake-dram", True),
    ],
)
def test_the_leaders_service_bears_the_backends_name(name: str, good: bool) -> None:
    assert len(f"{'x' * LONGEST_NAME}-leader") == 63
    assert causes(validate_kv_cache_backend(managed(name))) == ([] if good else [("Invalid", "metadata.name")])
    assert validate_kv_cache_backend(external(name)).allowed, "an external one has no Service"


def test_flags_of_the_leader_are_reserved_in_every_spelling_that_it_takes() -> None:
    for flag in RESERVED_FLAGS:
        assert is_reserved(flag)
        assert is_reserved(flag.replace("_", "-"))
        assert is_reserved(f"no{flag}")
    assert is_reserved("enable_snapshot_restore")
    assert is_reserved("snapshot_interval_seconds")


@pytest.mark.parametrize(
    "flag", ["default_kv_lease_ttl", "metrics_host", "eviction_ratio", "eviction_high_watermark_ratio", "client_ttl"]
)
def test_flags_that_are_the_users_to_set_stay_so(flag: str) -> None:
    assert validate_kv_cache_backend(with_leader(extraArgs={flag: "1"})).allowed


USERS = [{"kind": "KVCachePool", "namespace": "", "name": f"p{i:02}"} for i in range(23)]


@pytest.mark.parametrize(
    ("old", "new", "used_by", "refused"),
    [
        (None, False, USERS[:1], True),
        (True, False, USERS[:1], True),
        (True, False, [], False),
        (None, None, USERS, False),
        (False, None, USERS, False),
        (False, True, USERS, False),
        (False, False, USERS, False),
    ],
)
def test_a_used_store_keeps_its_ledger(old: bool | None, new: bool | None, used_by: list[Json], refused: bool) -> None:
    verdict = validate_kv_cache_backend(managed(multi_tenancy=new), managed(multi_tenancy=old, used_by=used_by))
    assert causes(verdict) == [("Forbidden", f"{_M}.leader.multiTenancy")] * refused


def test_at_most_twenty_users_are_named() -> None:
    (found,) = validate_kv_cache_backend(managed(multi_tenancy=False), managed(used_by=USERS)).violations
    assert "KVCachePool/p00, " in found.detail
    assert "KVCachePool/p19 and 3 more" in found.detail
    assert "p20" not in found.detail


def test_a_ledger_matters_between_managed_stores_only() -> None:
    off, used = managed(multi_tenancy=False), external().model_copy(update={"status": managed(used_by=USERS).status})
    assert validate_kv_cache_backend(off, used).allowed
    assert validate_kv_cache_backend(external(), managed(used_by=USERS)).allowed


A, B, C = group("a"), group("b"), group("c")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([A], [A, B], []),
        ([A, B], [A], []),
        ([A, B], [A, C], []),
        ([A, B], [A, {**B, "capacityPerMember": "2Gi"}], []),
        ([A, B], [B], ["members[0]"]),
        ([A, B], [B, A], ["members[0]", "members[1]"]),
        ([A, B, C], [A, C], ["members[1]"]),
        ([A, B], [C, A, B], ["members[1]"]),
        ([A, B], [C, A], ["members[1]"]),
        ([A, A], [A], []),
        ([A, B], [B, B], []),
        ([A], [group("a", "VRAM")], ["members[0].medium"]),
        ([A], [group("b", "VRAM")], ["members[0].medium"]),
        ([A, group("a", "VRAM")], [group("a", "VRAM"), A], ["members[0]", "members[1]"]),
    ],
)
def test_a_group_keeps_its_position_and_its_memory(before: list[Json], after: list[Json], expected: list[str]) -> None:
    verdict = validate_kv_cache_backend(with_groups(*after), with_groups(*before))
    assert causes(verdict) == [("Forbidden", f"{_M}.{field}") for field in expected]


@given(st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=5, unique_by=lambda one: str(one)), st.data())
def test_taking_groups_from_the_end_is_always_allowed_and_from_elsewhere_never(groups: list[Json], data: Any) -> None:
    kept = data.draw(st.integers(1, len(groups)))
    assert validate_kv_cache_backend(with_groups(*groups[:kept]), with_groups(*groups)).allowed
    if kept < len(groups):
        assert not validate_kv_cache_backend(with_groups(*groups[len(groups) - kept :]), with_groups(*groups)).allowed


@pytest.mark.parametrize(
    ("leader", "warnings"),
    [
        ({}, 0),
        ({"replicas": 3}, 0),
        ({"electionBackend": "None"}, 0),
        ({"electionBackend": "None", "replicas": 3}, 1),
        ({"electionBackend": "None", "replicas": 2, "memberAddressing": "Lease"}, 2),
    ],
)
def test_what_is_without_effect_for_want_of_an_election_is_warned_of(leader: Json, warnings: int) -> None:
    verdict = validate_kv_cache_backend(with_leader(**leader))
    assert verdict.allowed
    assert len(verdict.warnings) == warnings


def test_long_lists_take_no_longer_than_they_are() -> None:
    secrets = [{"name": f"s{number}"} for number in range(20_000)]
    there = backend("b", {"managed": {"members": [group(f"n{number}") for number in range(6_000)]}})
    moved = {"managed": {"members": [group(f"n{number + 1}") for number in range(6_000)]}}
    started = time.process_time()
    twice = validate_kv_cache_backend(backend("b", moved, imagePullSecrets=[*secrets, secrets[0]]), there)
    # Half a second; comparing each with each took minutes.
    assert time.process_time() - started < 20
    fields = [one.field for one in twice.violations]
    assert fields[0] == "spec.imagePullSecrets[20000].name"
    assert fields[1:] == [f"spec.connection.managed.members[{number}]" for number in range(5_999)]
