"""The index looked at as a whole: in numbers for `/snapshot`, and as reports for another index.

Both leave out the reserved tenant. Neither counts holds: numbers are those that the nodes of the tree keep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from typing import Final

from inferencecache.server.index.model import RESERVED_TENANT, Holds, ReplicaRow, Report, Snapshot, TenantRow
from inferencecache.server.index.partition import Lane
from inferencecache.server.index.recency import seen_us, tier_of
from inferencecache.server.index.tree import StatsRow, TenantNode, Tree

DUMP_SLICE: Final = 1024
SNAPSHOT_TURN: Final = 500


def snapshot(tree: Tree) -> Generator[None, None, Snapshot]:
    """All tenants and their replicas, sorted; yields after every `SNAPSHOT_TURN` lanes or rows.

    Each replica and tenant is told as it is when its turn comes, and the total is that of what is told.
    """
    names = sorted(name for name in tree.tenants if name != RESERVED_TENANT)
    tenants = [tree.tenants[name] for name in names]
    replicas: list[ReplicaRow] = []
    rows: list[TenantRow] = []
    for number, tenant in enumerate(tenants, 1):
        of_tenant = yield from _replica_rows(tenant)
        replicas += of_tenant
        rates = [row.stats.hit_rate for row in of_tenant if row.stats is not None]
        rows.append(TenantRow(tenant.name, tenant.keys, sum(rates) / len(rates) if rates else None))
        if number % SNAPSHOT_TURN == 0:
            yield
    return Snapshot(replicas, rows, sum(row.index_entries for row in rows))


def dump(tree: Tree) -> Iterator[Report]:
    """Stats and holds as reports, while the tree may change: what was there throughout is in it."""
    for tenant in list(tree.tenants.values()):
        if tenant.name == RESERVED_TENANT:
            continue
        for model in list(tenant.models.values()):
            for replica_id, row in list(model.stats.items()):
                yield Report(replica_id, tenant.name, model.name, "", row.reported_us, (), row.stats)
            for partition in model.partitions():
                for lane in list(partition.lanes.values()):
                    yield from _dump_lane(lane)


def _replica_rows(tenant: TenantNode) -> Generator[None, None, list[ReplicaRow]]:
    """A tenant's replicas, sorted: those with stats (the newest of any model) and those with holds."""
    met = 0
    stats: dict[str, StatsRow] = {}
    for model in [tenant.models[name] for name in sorted(tenant.models, reverse=True)]:
        for replica_id, row in list(model.stats.items()):
            if replica_id not in stats or row.seen_us >= stats[replica_id].seen_us:
                stats[replica_id] = row
            if (met := met + 1) % SNAPSHOT_TURN == 0:
                yield
    holds: Counter[str] = Counter()
    newest: dict[str, int] = {}
    for partition in tenant.partitions():
        for replica_id, lane in list(partition.lanes.items()):
            if not lane.recency.stamps:
                continue  # it has gone meanwhile
            holds[replica_id] += len(lane.recency.stamps)
            if (at_us := lane.recency.newest_us()) is not None:
                newest[replica_id] = max(at_us, newest.get(replica_id, at_us))
            if (met := met + 1) % SNAPSHOT_TURN == 0:
                yield
    rows = []
    for replica_id in sorted(stats.keys() | holds.keys()):
        known = stats.get(replica_id)
        rows.append(
            ReplicaRow(
                tenant=tenant.name,
                replica_id=replica_id,
                stats=None if known is None else known.stats,
                last_update_us=None if known is None else known.seen_us,
                prefix_count=holds[replica_id],
                last_event_us=newest.get(replica_id),
            )
        )
        if (met := met + 1) % SNAPSHOT_TURN == 0:
            yield
    return rows


def _dump_lane(lane: Lane) -> Iterator[Report]:
    partition = lane.partition
    tenant, model, hash_scheme, adapter_id = partition.rank
    together: dict[int, list[bytes]] = {}
    gathered = 0

    def written() -> list[Report]:
        """What was gathered, as it must be before the first of it leaves: the index may change then."""
        reports = []
        for stamp, held in together.items():
            holds = Holds(adapter_id, tier_of(stamp), held, list(map(lane.tokens, held)))
            reports.append(Report(lane.replica_id, tenant, model, hash_scheme, seen_us(stamp), (holds,), None))
        together.clear()
        return reports

    for group in lane.walk():
        for prefix_hash, stamp in group:
            together.setdefault(stamp, []).append(prefix_hash)
        gathered += len(group)
        if gathered >= DUMP_SLICE:
            gathered = 0
            yield from written()
    yield from written()
