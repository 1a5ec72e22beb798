"""Decoding CacheBackends, and the effective values of what was left out (spec 01 §2)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from inferencecache.api.cachebackend import CacheBackend, parse_ratio
from inferencecache.api.model import DecodeError


def backend(spec: dict[str, Any] | None = None, **metadata: Any) -> CacheBackend:
    return CacheBackend.decode({"metadata": {"name": "b", "namespace": "n", **metadata}, "spec": spec or {}})


def test_what_is_left_out_has_its_documented_value() -> None:
    bare = CacheBackend.decode({"metadata": {"name": "b"}})
    assert bare.runtime_id == ""
    assert bare.cache_type == "LMCache"
    assert bare.mode == "Offload"
    assert not bare.events_only
    assert bare.role == "ReadWrite"
    assert bare.fail_open is True
    assert bare.replicas == 1
    assert bare.model_id == ""
    assert bare.first_event_timeout == timedelta(minutes=5)
    assert bare.selector == {}
    assert bare.kernel_check_mode == "auto"
    assert bare.spec.remote_storage is None


def test_null_is_as_good_as_absent() -> None:
    given = backend({"runtime": "VLLM", "replicas": None, "integration": {"failOpen": None}, "remoteStorage": None})
    assert (given.replicas, given.fail_open, given.spec.remote_storage) == (1, True, None)


@pytest.mark.parametrize("timeout", ["0", "-1m", "0s"])
def test_a_timeout_that_is_not_positive_counts_as_five_minutes(timeout: str) -> None:
    assert backend({"observation": {"firstEventTimeout": timeout}}).first_event_timeout == timedelta(minutes=5)


def test_fields_with_odd_names_are_found() -> None:
    given = backend(
        {
            "runtime": "VLLM",
            "observation": {"modelID": "m"},
            "autoscaling": {"maxReplicas": 2, "targetCPUUtilizationPercent": 70},
            "hiCache": {"sizeGB": 3, "ioBackend": "kernel"},
        }
    )
    assert given.model_id == "m"
    assert given.spec.autoscaling is not None
    assert given.spec.autoscaling.target_cpu_utilization_percent == 70
    assert given.spec.hi_cache is not None
    assert (given.spec.hi_cache.size_gb, given.spec.hi_cache.io_backend) == (3, "kernel")


def test_values_of_enums_and_ranges_that_no_longer_hold_still_decode() -> None:
    given = backend({"runtime": "TGI", "type": "Mooncake", "replicas": -3, "autoscaling": {}})
    assert (given.runtime_id, given.cache_type, given.replicas) == ("tgi", "Mooncake", -3)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ({"replicas": "2"}, r"spec\.replicas: .*integer"),
        ({"replicas": 1.5}, r"spec\.replicas"),
        ({"replicas": True}, r"spec\.replicas"),
        ({"replicas": 2**31}, r"spec\.replicas"),
        ({"runtime": 3}, r"spec\.runtime: .*string"),
        (
            {"lmCache": {"hostMemory": {"capacity": "32 gigs"}}},
            r"spec\.lmCache\.hostMemory\.capacity: .*not a quantity",
        ),
        ({"observation": {"firstEventTimeout": "soon"}}, r"spec\.observation\.firstEventTimeout: .*not a duration"),
        ({"integration": {"engineOverrides": {"env": [{"name": 1}]}}}, r"engineOverrides\.env\[0\]\.name"),
        ("text", r"spec: "),
    ],
)
def test_what_cannot_be_read_is_refused_by_field(spec: Any, complaint: str) -> None:
    with pytest.raises(DecodeError, match=complaint):
        CacheBackend.decode({"metadata": {"name": "b"}, "spec": spec})


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        (None, {"a": "1"}, False),
        ({}, {"a": "1"}, False),
        ({"matchLabels": {}}, {"a": "1"}, False),
        ({"matchLabels": {"a": "1"}}, {"a": "1", "b": "2"}, True),
        ({"matchLabels": {"a": "1", "b": "2"}}, {"a": "1"}, False),
        ({"matchLabels": {"a": ""}}, {}, False),
        ({"matchLabels": {"a": ""}}, {"a": ""}, True),
    ],
)
def test_a_selector_needs_every_pair_and_at_least_one(selector: Any, labels: dict[str, str], matches: bool) -> None:
    assert backend({"engineSelector": selector}).selects(labels) is matches


def test_a_spec_comes_back_as_it_was_written() -> None:
    spec = {
        "runtime": "VLLM",
        "remoteStorage": {
            "provider": "LMCacheServer",
            "ownership": "Managed",
            "lmCacheServer": {"command": ["a"], "resources": {"limits": {"memory": "8192Mi", "cpu": 2}}},
        },
        "template": {"nodeSelector": {}, "tolerations": [{"key": "k", "operator": "Exists"}]},
        "observation": {"firstEventTimeout": "5m0s"},
    }
    assert backend(spec).spec.manifest() == spec


def test_models_are_immutable() -> None:
    with pytest.raises(ValueError, match="frozen"):
        backend().spec.runtime = "SGLang"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("one", "other", "competes"),
    [
        ({"a": "1"}, {"a": "1"}, True),
        ({"a": "1"}, {"b": "2"}, True),
        ({"a": "1", "b": "2"}, {"a": "1", "c": "3"}, True),
        ({"a": "1"}, {"a": "2"}, False),
        ({"a": "1", "b": "2"}, {"b": "3"}, False),
        ({}, {"a": "1"}, False),
        ({}, {}, False),
    ],
)
def test_two_backends_compete_where_one_pod_could_match_both(
    one: dict[str, str], other: dict[str, str], competes: bool
) -> None:
    """Decision A11."""
    first, second = (backend({"engineSelector": {"matchLabels": labels}}) for labels in (one, other))
    assert first.competes_with(second) is competes
    assert second.competes_with(first) is competes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("2.0", 2.0), ("02.0", 2.0), (".5", 0.5), ("1e2", 100.0), ("+2", 2.0)),
        *(
            (text, None)
            for text in ("", " 2", "0", "-1", "1_0", "NaN", "Inf", "1e999", "1e-999", "2 ", "\uff12", "0x1")
        ),
    ],
)
def test_a_ratio_is_a_finite_number_above_zero(text: str, value: float | None) -> None:
    assert parse_ratio(text) == value
