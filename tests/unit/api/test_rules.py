"""The Python half of the schemas' rules: each row is found, at its field, with a remedy, and the webhook agrees."""

from __future__ import annotations

import pytest

from inferencecache.adapters.registry import load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.api.kinds import KINDS
from inferencecache.api.rules import ALL, Rule
from inferencecache.api.schema import apply_defaults, object_schema
from inferencecache.api.schema_check import check_schema
from inferencecache.webhooks.validation import validate_cache_backend
from tests.unit.api.broken_rules import ANSWERED, BACKENDS, GOOD_BACKENDS, VLLM, Spec, store


def stored(spec: Spec, name: str = "kv") -> Spec:
    return apply_defaults(CacheBackend, {"metadata": {"name": name, "namespace": "ns"}, "spec": spec})


@pytest.mark.parametrize(("row", "spec", "fields"), BACKENDS)
def test_each_row_is_found_at_its_field(row: str, spec: Spec, fields: set[str]) -> None:
    found = check_schema(CacheBackend, stored(spec))
    assert fields <= {finding.field for finding in found}


@pytest.mark.parametrize(("row", "spec", "fields"), BACKENDS)
def test_what_the_schema_holds_against_an_object_the_webhook_does_as_well(
    row: str, spec: Spec, fields: set[str]
) -> None:
    found = {finding.field for finding in check_schema(CacheBackend, stored(spec))}
    verdict = validate_cache_backend(CacheBackend.decode(stored(spec)), runtimes=load_adapters()[0])
    assert row in {violation.rule for violation in verdict.violations}
    assert found <= {violation.field for violation in verdict.violations}


@pytest.mark.parametrize(("row", "spec"), ANSWERED)
def test_what_the_operator_answers_is_left_to_the_webhook(row: str, spec: Spec) -> None:
    assert check_schema(CacheBackend, stored(spec)) == []
    verdict = validate_cache_backend(CacheBackend.decode(stored(spec)), runtimes=load_adapters()[0])
    assert row in {violation.rule for violation in verdict.violations}


@pytest.mark.parametrize("spec", GOOD_BACKENDS)
def test_good_specs_pass_schema_and_webhook(spec: Spec) -> None:
    assert check_schema(CacheBackend, stored(spec)) == []
    assert validate_cache_backend(CacheBackend.decode(stored(spec)), runtimes=load_adapters()[0]).violations == ()


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: f"{rule.row} {rule.field}")
def test_every_message_names_its_field_and_a_remedy(rule: Rule) -> None:
    problem, _, remedy = rule.message.partition(": ")
    assert rule.field.rpartition(".")[2] in rule.message
    assert problem
    assert remedy or "such as" in problem


def test_the_rule_of_policies() -> None:
    spec = {"strategy": {"requireChain": True, "enableChainMatching": False}}
    found = check_schema(CachePolicy, apply_defaults(CachePolicy, {"metadata": {"name": "a"}, "spec": spec}))
    assert [finding.field for finding in found] == ["spec"]


def test_a_quota_of_the_reserved_tenant_can_be_stored_as_servers_have_an_answer_to_it() -> None:
    """Spec 06 §5; the webhook refuses it all the same (T1)."""
    stored_quota = {"metadata": {"name": "a"}, "spec": {"tenantID": "inferencecache.io/probe"}}
    assert check_schema(CacheTenant, apply_defaults(CacheTenant, stored_quota)) == []


def test_an_update_is_not_held_responsible_for_what_is_stored() -> None:
    """Decision A7."""
    old = stored({**VLLM, "hiCache": {"sizeGB": 1}})
    assert check_schema(CacheBackend, old)
    edited = {**old, "spec": {**old["spec"], "replicas": 0}}
    assert check_schema(CacheBackend, edited, old) == []
    worse = {**edited, "spec": {**edited["spec"], "remoteStorage": store(redis={})}}
    assert [finding.field for finding in check_schema(CacheBackend, worse, old)] == ["spec.remoteStorage.redis"]


def test_every_rule_is_used_by_some_schema() -> None:
    def rules(schema: object) -> set[str]:
        if isinstance(schema, list):
            return set().union(*map(rules, schema))
        if not isinstance(schema, dict):
            return set()
        here = {rule["rule"] for rule in schema.get("x-kubernetes-validations", ())}
        return here.union(*map(rules, schema.values()))

    assert set().union(*(rules(object_schema(kind)) for kind in KINDS)) == {rule.text for rule in ALL}


def test_every_row_has_an_object_that_breaks_it() -> None:
    assert {rule.row for rule in ALL if rule.row.startswith(("V", "A"))} == {row for row, _, _ in BACKENDS}
