"""The messages are those other people's clients speak (spec 06 §2)."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from inferencecache.wire.service import METHODS, SERVICE_NAME
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb

H0, H1 = bytes.fromhex("ea06fc71a5ee6e88"), bytes.fromhex("ad01835a37dd294c")

SAMPLES: dict[str, tuple[Message, str]] = {
    "lookup by chain": (
        pb.LookupRouteRequest(
            model_id="m",
            tenant_id="t",
            hash_scheme="vllm",
            slo=pb.SLO(ttft_ms=100),
            block_hashes=[H0, H1],
            block_token_counts=[16, 16],
            adapter_id="a",
        ),
        "0a016d1201742a04766c6c6d320208643a08ea06fc71a5ee6e883a08ad01835a37dd294c420210105a0161",
    ),
    "lookup by tokens": (
        pb.LookupRouteRequest(model_id="m", tenant_id="t", hash_scheme="vllm", token_ids=[1, 2, 300]),
        "0a016d1201742a04766c6c6d4a040102ac02",
    ),
    "report": (
        pb.CacheStateUpdate(
            replica_id="r",
            model_id="m",
            tenant_id="t",
            hash_scheme="vllm",
            timestamp_us=1700000000000000,
            prefixes=[pb.PrefixEntry(prefix_hash=H0, token_count=16, tier=pb.CACHE_TIER_T1)],
            stats=pb.ReplicaStats(
                replica_id="r",
                cache_memory_bytes=1024,
                hit_rate=0.5,
                pressure=0.25,
                t2_hit_tokens=6,
                t2_query_tokens=10,
            ),
        ),
        "0a017212016d1a01742204766c6c6d288080f9c0c1c48203320e0a08ea06fc71a5ee6e88101028013a140a01721080081d0000003f250000"
        "803e3006380a",
    ),
    "answer": (
        pb.LookupRouteResponse(
            replica_scores=[
                pb.ReplicaScore(
                    replica_id="r",
                    score=92.8,
                    matched_tokens=192,
                    estimated_cache_hit_prob=0.5,
                    tier=pb.CACHE_TIER_T2,
                )
            ],
            reason_code="PREFIX_MATCH",
            lookup_latency_us=7,
            adapter_id="a",
        ),
        "0a120a0172159a99b94218c001250000003f2802120c5052454649585f4d4154434818072a0161",
    ),
    "event": (
        pb.CacheEvent(
            type=pb.CacheEvent.PREFIX_EVICTED,
            replica_id="r",
            model_id="m",
            tenant_id="t",
            prefix_hash=b"\x01",
            timestamp_us=5,
            adapter_id="a",
        ),
        "08021201721a016d2201742a010130053a0161",
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_bytes_on_the_wire(name: str) -> None:
    message, expected = SAMPLES[name]
    assert message.SerializeToString().hex() == expected
    assert type(message).FromString(bytes.fromhex(expected)) == message


def test_methods_of_the_service() -> None:
    assert SERVICE_NAME == "inferencecache.v1alpha1.InferenceCache"
    assert {
        name: (
            method.request.DESCRIPTOR.name,
            method.response.DESCRIPTOR.name,
            method.client_streams,
            method.server_streams,
        )
        for name, method in METHODS.items()
    } == {
        "RenderTemplate": ("RenderTemplateRequest", "RenderTemplateResponse", False, False),
        "LookupRoute": ("LookupRouteRequest", "LookupRouteResponse", False, False),
        "LookupPDRoute": ("LookupPDRouteRequest", "LookupPDRouteResponse", False, False),
        "GetCacheState": ("GetCacheStateRequest", "GetCacheStateResponse", False, False),
        "ReportCacheState": ("CacheStateUpdate", "Ack", True, False),
        "PublishEvent": ("CacheEvent", "Ack", False, False),
        "StreamCacheEvents": ("StreamEventsRequest", "CacheEvent", False, True),
        "StreamMetrics": ("StreamMetricsRequest", "Metric", False, True),
    }
    assert METHODS["LookupRoute"].path == "/inferencecache.v1alpha1.InferenceCache/LookupRoute"


FIELDS = {
    "RenderTemplateRequest": {1: "template_ref", 2: "variables", 3: "tenant_id"},
    "RenderTemplateResponse": {
        1: "rendered_prompt", 2: "stable_prefix_hash", 3: "tenant_namespace", 4: "reason_code", 5: "template_revision",
    },
    "SLO": {1: "ttft_ms", 2: "tbt_ms"},
    "LookupRouteRequest": {
        1: "model_id", 2: "tenant_id", 3: "prefix_hash", 4: "prefix_token_count", 5: "hash_scheme", 6: "slo",
        7: "block_hashes", 8: "block_token_counts", 9: "token_ids", 10: "prompt_text", 11: "adapter_id",
    },
    "ReplicaScore": {1: "replica_id", 2: "score", 3: "matched_tokens", 4: "estimated_cache_hit_prob", 5: "tier"},
    "LookupRouteResponse": {
        1: "replica_scores", 2: "reason_code", 3: "lookup_latency_us", 4: "token_ids", 5: "adapter_id",
    },
    "LookupPDRouteRequest": {
        1: "model_id", 2: "tenant_id", 3: "prefix_hash", 4: "prefix_token_count", 5: "pd_topology_ref",
    },
    "LookupPDRouteResponse": {
        1: "prefill_replica_id", 2: "decode_replica_id", 3: "transport_hint", 4: "reason_code",
    },
    "PrefixEntry": {
        1: "prefix_hash", 2: "token_count", 3: "block_hashes", 4: "block_token_counts", 5: "tier", 6: "adapter_id",
    },
    "ReplicaStats": {
        1: "replica_id", 2: "cache_memory_bytes", 3: "hit_rate", 4: "pressure", 5: "client_version",
        6: "t2_hit_tokens", 7: "t2_query_tokens",
    },
    "CacheStateUpdate": {
        1: "replica_id", 2: "model_id", 3: "tenant_id", 4: "hash_scheme", 5: "timestamp_us", 6: "prefixes", 7: "stats",
        8: "adapter_id",
    },
    "CacheSummary": {1: "total_prefixes", 2: "hot_prefixes"},
    "GetCacheStateRequest": {1: "model_id", 2: "tenant_id"},
    "GetCacheStateResponse": {1: "replicas", 2: "summary"},
    "CacheEvent": {
        1: "type", 2: "replica_id", 3: "model_id", 4: "tenant_id", 5: "prefix_hash", 6: "timestamp_us", 7: "adapter_id",
    },
    "StreamEventsRequest": {1: "model_id", 2: "tenant_id", 3: "types"},
    "StreamMetricsRequest": {1: "names"},
    "Metric": {1: "name", 2: "type", 3: "labels", 4: "value", 5: "timestamp_us"},
    "Ack": {1: "accepted", 2: "reason_code"},
}  # fmt: skip


def test_every_field_keeps_its_frozen_number() -> None:
    messages = pb.DESCRIPTOR.message_types_by_name
    assert {
        name: {field.number: field.name for field in message.fields} for name, message in messages.items()
    } == FIELDS


def test_enum_values() -> None:
    assert dict(pb.CacheTier.items()) == {
        "CACHE_TIER_UNSPECIFIED": 0,
        "CACHE_TIER_T1": 1,
        "CACHE_TIER_T2": 2,
        "CACHE_TIER_T3": 3,
    }
    assert dict(pb.CacheEvent.Type.items()) == {
        "TYPE_UNSPECIFIED": 0,
        "PREFIX_ADDED": 1,
        "PREFIX_EVICTED": 2,
        "REPLICA_UPDATED": 3,
        "ALL_CLEARED": 4,
    }
