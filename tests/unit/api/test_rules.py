"""The three rules of the schemas, in Python, and that every other rule is left to the webhook."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.adapters.registry import load_adapters
from inferencecache.api import CacheBackend, CachePolicy, CacheTenant
from inferencecache.api.model import CustomObject
from inferencecache.api.rules import ALL, Rule
from inferencecache.api.schema import apply_defaults
from inferencecache.api.schema_check import check_schema
from inferencecache.webhooks.validation import validate_cache_backend
from tests.unit.api.broken_rules import BACKENDS, Spec


def manifest(kind: type[CustomObject], spec: Spec) -> dict[str, Any]:
    return apply_defaults(kind, {"metadata": {"name": "kv", "namespace": "ns"}, "spec": spec})


@pytest.mark.parametrize(
    ("kind", "spec", "fields"),
    [
        (CacheBackend, {"runtime": "VLLM", "lmCache": {"hostMemory": {"capacity": "1m"}}}, []),
        (
            CacheBackend,
            {"runtime": "VLLM", "lmCache": {"hostMemory": {"capacity": "-1Gi"}}},
            ["spec.lmCache.hostMemory.capacity"],
        ),
        (
            CacheBackend,
            {"runtime": "VLLM", "lmCache": {"hostMemory": {"capacity": 0}}},
            ["spec.lmCache.hostMemory.capacity"],
        ),
        (CacheBackend, {"runtime": "VLLM", "autoscaling": {"maxReplicas": 1}}, []),
        (CacheBackend, {"runtime": "VLLM", "autoscaling": {"minReplicas": 2, "maxReplicas": 2}}, []),
        (CacheBackend, {"runtime": "VLLM", "autoscaling": {"minReplicas": 3, "maxReplicas": 2}}, ["spec.autoscaling"]),
        (CachePolicy, {"strategy": {"requireChain": True}}, []),
        (CachePolicy, {"strategy": {"requireChain": False, "enableChainMatching": False}}, []),
        (CachePolicy, {"strategy": {"requireChain": True, "enableChainMatching": False}}, ["spec"]),
        (CachePolicy, {"evictionTTL": "0s"}, []),
        (CacheTenant, {"tenantID": "inferencecache.io/probe"}, []),
    ],
)
def test_the_schema_holds_three_rules(kind: type[CustomObject], spec: Spec, fields: list[str]) -> None:
    """Spec 01 §1; what a lifetime or a tenant's id may be is the webhook's (spec 02 §7–§8)."""
    assert [finding.field for finding in check_schema(kind, manifest(kind, spec))] == fields


@pytest.mark.parametrize(("row", "spec"), BACKENDS)
def test_every_other_rule_is_the_webhooks(row: str, spec: Spec) -> None:
    """Spec 02 §2: with a fourth rule here, the user would hear of that one alone."""
    stored = manifest(CacheBackend, spec)
    assert check_schema(CacheBackend, stored) == []
    verdict = validate_cache_backend(CacheBackend.decode(stored), runtimes=load_adapters()[0])
    assert row in {violation.rule for violation in verdict.violations}


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.cel)
def test_every_message_names_a_remedy(rule: Rule) -> None:
    problem, _, remedy = rule.message.partition(": ")
    assert problem
    assert remedy


def test_an_update_is_not_held_responsible_for_what_is_stored() -> None:
    """Decision A7."""
    bad = {"runtime": "VLLM", "autoscaling": {"minReplicas": 3, "maxReplicas": 2}}
    old = manifest(CacheBackend, bad)
    edited = manifest(CacheBackend, {**bad, "replicas": 0})
    assert check_schema(CacheBackend, edited, old) == []
    worse = manifest(CacheBackend, {**bad, "lmCache": {"hostMemory": {"capacity": "0"}}})
    assert [found.field for found in check_schema(CacheBackend, worse, old)] == ["spec.lmCache.hostMemory.capacity"]
