"""PDTopology: which replicas prefill and which decode (spec 01 §7)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from inferencecache.api.model import (
    AGE,
    Column,
    Condition,
    CustomObject,
    CustomResource,
    Int32,
    Int64,
    Model,
    Schema,
    Text,
)


class Pool(Model):
    """A set of replicas with one role."""

    name: Annotated[Text, Schema(required=True, min_length=1)] = ""
    """Name of the pool."""
    match_labels: dict[Text, Text] | None = None
    """Labels of the replicas' Pods; none select none."""
    replicas: Annotated[Int32 | None, Schema(minimum=0)] = None
    """How many replicas it has."""
    accelerator_type: Text | None = None
    """Name of an entry of acceleratorTypes."""


class AcceleratorType(Model):
    """A kind of accelerator."""

    name: Annotated[Text, Schema(required=True, min_length=1)] = ""
    """What pools call it."""
    vendor: Text | None = None
    """Who makes it."""
    model: Text | None = None
    """Its model."""
    match_labels: dict[Text, Text] | None = None
    """Labels of the nodes that have it."""


class PDTopologySpec(Model):
    """Pools by role."""

    prefill_pools: Annotated[tuple[Pool, ...] | None, Schema(list_map_keys=("name",))] = None
    """Pools that prefill."""
    decode_pools: Annotated[tuple[Pool, ...] | None, Schema(list_map_keys=("name",))] = None
    """Pools that decode."""
    accelerator_types: Annotated[tuple[AcceleratorType, ...] | None, Schema(list_map_keys=("name",))] = None
    """Accelerators that pools may refer to."""


class PDTopologyStatus(Model):
    """What the server was told of the topology."""

    observed_generation: Int64 | None = None
    """The generation this status was derived from."""
    conditions: Annotated[tuple[Condition, ...] | None, Schema(list_map_keys=("type",))] = None
    """Accepted and Ready."""


class PDTopology(CustomObject):
    """Which replicas prefill and which decode."""

    resource: ClassVar[CustomResource] = CustomResource(
        kind="PDTopology",
        plural="pdtopologies",
        short_names=("pdt",),
        spec_required=False,
        columns=(
            Column("Prefill", ".spec.prefillPools[*].name"),
            Column("Decode", ".spec.decodePools[*].name"),
            AGE,
        ),
    )

    spec: PDTopologySpec = PDTopologySpec()
    status: PDTopologyStatus = PDTopologyStatus()
