"""Whether a master tells tenants apart, by the evidence there is, strongest first (spec 10 §12)."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachechain import separates, tenant_of
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding

AVAILABLE, NO_TENANTS = ("True", "Available"), ("False", "MultiTenancyDisabled")
ON: dict[str, Any] = {"managed": {"leader": {}, "members": []}}
OFF: dict[str, Any] = {"managed": {"leader": {"multiTenancy": False}, "members": []}}
EXTERNAL: dict[str, Any] = {"external": {"endpoints": []}}


@pytest.mark.parametrize(
    ("ledger", "connection", "answer"),
    [
        (AVAILABLE, ON, True),
        (AVAILABLE, OFF, True),
        (AVAILABLE, EXTERNAL, True),
        (NO_TENANTS, ON, False),
        (NO_TENANTS, OFF, False),
        (NO_TENANTS, EXTERNAL, False),
        *(
            (ledger, connection, answer)
            for ledger in (None, ("False", "LedgerUnreachable"), ("Unknown", "MultiTenancyDisabled"))
            for connection, answer in ((ON, True), (OFF, False), (EXTERNAL, True))
        ),
    ],
)
def test_what_was_observed_counts_then_what_is_declared_then_the_usual(
    ledger: tuple[str, str] | None, connection: dict[str, Any], answer: bool
) -> None:
    conditions = [{"type": "QuotaLedgerAvailable", "status": ledger[0], "reason": ledger[1]}] if ledger else []
    pool = KVCachePool.decode({"metadata": {"name": "p"}, "status": {"conditions": conditions}})
    backend = KVCacheBackend.decode({"metadata": {"name": "b"}, "spec": {"connection": connection}})
    binding = KVCachePoolBinding.decode({"metadata": {"name": "x"}, "spec": {"domain": {"name": "chat"}}})
    assert separates(pool, backend) is answer
    assert tenant_of(binding, pool, backend) == ("chat" if answer else None)
