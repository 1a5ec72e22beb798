"""The index's shape: a tenant has models, a model has scopes (by hash scheme), a scope has partitions (by adapter).

Every node counts what lies below it, so that nothing ever has to be counted. A node exists as long as it has holds or
stats: whoever takes the last ones away calls `shrink`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from inferencecache.server.index.key_orders import KeyOrders
from inferencecache.server.index.model import Scope, Stats
from inferencecache.server.index.names import Names, Node
from inferencecache.server.index.partition import Change, Lane, Partition
from inferencecache.server.index.recency import Recency


@dataclass(slots=True, eq=False)
class StatsRow:
    """A replica's last stats. Liveness events move `seen_us` alone (spec 06 §3.5)."""

    model: ModelNode
    replica_id: str
    stats: Stats
    reported_us: int
    seen_us: int


class ScopeNode:
    """`serving` has every replica with at least one hold, and how many, over all adapters."""

    __slots__ = ("hash_scheme", "model", "partitions", "serving")

    def __init__(self, model: ModelNode, hash_scheme: str) -> None:
        self.model = model
        self.hash_scheme = hash_scheme
        self.partitions: dict[str, Partition] = {}
        self.serving: dict[str, int] = {}


class ModelNode:
    """`keys` is the number of distinct keys below."""

    __slots__ = ("keys", "name", "scopes", "stats", "tenant")

    def __init__(self, tenant: TenantNode, name: str) -> None:
        self.tenant = tenant
        self.name = name
        self.keys = 0
        self.scopes: dict[str, ScopeNode] = {}
        self.stats: dict[str, StatsRow] = {}

    def partitions(self) -> Iterator[Partition]:
        """All partitions; the caller may remove those it has been given."""
        for scope in list(self.scopes.values()):
            yield from list(scope.partitions.values())


class TenantNode:
    """`keys` is the number of distinct keys below; `key_orders` exists once the tenant had to be held to a quota."""

    __slots__ = ("key_orders", "keys", "models", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.keys = 0
        self.models: dict[str, ModelNode] = {}
        self.key_orders: KeyOrders | None = None

    def partitions(self) -> Iterator[Partition]:
        """All partitions; the caller may remove those it has been given."""
        for model in list(self.models.values()):
            yield from model.partitions()

    def order_keys(self) -> KeyOrders:
        """The order of the tenant's keys, kept from now on."""
        if self.key_orders is None:
            self.key_orders = KeyOrders(self.partitions())
        return self.key_orders

    def forget_key_orders(self) -> list[Recency]:
        """Keep no order of keys any longer; returns what is left to be freed."""
        orders, self.key_orders = self.key_orders, None
        return [] if orders is None else [left for partition in self.partitions() for left in orders.remove(partition)]


class Tree:
    """All tenants, by name."""

    def __init__(self) -> None:
        self.tenants: dict[str, TenantNode] = {}
        self.names = Names()

    def model(self, tenant: str, model: str) -> ModelNode | None:
        """The node of a model, if it has holds or stats."""
        node = self.tenants.get(tenant)
        return None if node is None else node.models.get(model)

    def scope(self, scope: Scope) -> ScopeNode | None:
        """The node of a scope, if it has holds."""
        model = self.model(scope.tenant, scope.model)
        return None if model is None else model.scopes.get(scope.hash_scheme)

    def grow_model(self, tenant: str, model: str) -> ModelNode:
        """The node of a model, made if need be."""
        tenant_node = self.tenants.get(tenant)
        if tenant_node is None:
            tenant_node = self.tenants[tenant] = TenantNode(tenant)
            self.names.add(Node.TENANT, tenant)
        model_node = tenant_node.models.get(model)
        if model_node is None:
            model_node = tenant_node.models[model] = ModelNode(tenant_node, model)
            self.names.add(Node.MODEL, model)
        return model_node

    def put_stats(self, model: ModelNode, replica_id: str, stats: Stats, at_us: int) -> None:
        """Note a replica's stats in place of those it had."""
        row = model.stats.get(replica_id)
        if row is None:
            row = model.stats[replica_id] = StatsRow(model, replica_id, stats, at_us, at_us)
            self.names.add(Node.STATS, replica_id)
        else:
            row.stats, row.reported_us, row.seen_us = stats, at_us, at_us
        self.names.hear(row)

    def drop_stats(self, row: StatsRow) -> None:
        """Take a replica's stats away."""
        del row.model.stats[row.replica_id]
        self.names.forget(row)
        self.names.drop(Node.STATS, row.replica_id)

    def grow_lane(self, model: ModelNode, hash_scheme: str, adapter_id: str, replica_id: str) -> Lane:
        """The lane of a replica, made if need be."""
        scope = model.scopes.get(hash_scheme)
        if scope is None:
            scope = model.scopes[hash_scheme] = ScopeNode(model, hash_scheme)
            self.names.add(Node.SCOPE, hash_scheme)
        partition = scope.partitions.get(adapter_id)
        if partition is None:
            partition = scope.partitions[adapter_id] = Partition(scope, adapter_id)
            self.names.add(Node.PARTITION, adapter_id)
            if model.tenant.key_orders is not None:
                model.tenant.key_orders.add(partition)
        lane = partition.lanes.get(replica_id)
        if lane is None:
            lane = partition.lanes[replica_id] = Lane(partition, replica_id)
            self.names.add(Node.LANE, replica_id)
        self.names.hear(lane)
        return lane

    def leave(self, lane: Lane) -> None:
        """Take in that a lane has left its partition."""
        self.names.forget(lane)
        self.names.drop(Node.LANE, lane.replica_id)

    def count(self, partition: Partition, replica_id: str, change: Change) -> None:
        """Carry a change of one replica's holds in a partition to all nodes above it."""
        scope = partition.scope
        model = scope.model
        model.keys += change.keys
        model.tenant.keys += change.keys
        if holds := scope.serving.get(replica_id, 0) + change.holds:
            scope.serving[replica_id] = holds
        else:
            scope.serving.pop(replica_id, None)

    def shrink(self, partition: Partition) -> list[Recency]:
        """Take a partition away that has no lanes left, and what is empty above it; returns what there is to free."""
        scope = partition.scope
        tenant = scope.model.tenant
        del scope.partitions[partition.adapter_id]
        self.names.drop(Node.PARTITION, partition.adapter_id)
        partition.abandoned = True
        left = [] if tenant.key_orders is None else tenant.key_orders.remove(partition)
        if not scope.partitions:
            del scope.model.scopes[scope.hash_scheme]
            self.names.drop(Node.SCOPE, scope.hash_scheme)
            self.shrink_model(scope.model)
        return left

    def shrink_model(self, model: ModelNode) -> None:
        """Take a model away that has neither holds nor stats left, and its tenant with the last model."""
        tenant = model.tenant
        if not model.scopes and not model.stats and tenant.models.get(model.name) is model:
            del tenant.models[model.name]
            self.names.drop(Node.MODEL, model.name)
            if not tenant.models:
                del self.tenants[tenant.name]
                self.names.drop(Node.TENANT, tenant.name)
