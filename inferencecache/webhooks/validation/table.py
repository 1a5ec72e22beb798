"""The table of CacheBackend rules: small functions in the order of spec 02 §5, each registered under its row.

A rule looks at a `Subject` and yields what it finds. Rules know nothing of each other; the order in which they are
registered is the order in which findings are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from inferencecache.adapters.registry import NoAdapter, RuntimeAdapter, RuntimeRegistry
from inferencecache.api.cachebackend import CacheBackend, CacheBackendSpec, RemoteStorage
from inferencecache.webhooks.validation.findings import Violation


@dataclass(frozen=True)
class Subject:
    """The object under judgement, and the adapters that would have to serve it (None: the registry is missing)."""

    backend: CacheBackend
    runtimes: RuntimeRegistry | None

    @property
    def spec(self) -> CacheBackendSpec:
        """`spec`."""
        return self.backend.spec

    @property
    def storage(self) -> RemoteStorage | None:
        """`spec.remoteStorage`."""
        return self.backend.spec.remote_storage

    @cached_property
    def adapter(self) -> RuntimeAdapter | None:
        """The adapter for (runtime, type), or None if there is none or no registry to ask."""
        if self.runtimes is None:
            return None
        try:
            return self.runtimes.select(self.backend.runtime_id, self.backend)
        except NoAdapter:
            return None


Rule: TypeAlias = Callable[[Subject], Iterable[Violation]]


class RuleTable:
    """Rules in order, with the spec rows each one covers."""

    def __init__(self) -> None:
        self.rows: list[tuple[tuple[str, ...], Rule]] = []

    def rule(self, *rows: str) -> Callable[[Rule], Rule]:
        """Register a function as the rule for these rows of spec 02 §5."""

        def register(function: Rule) -> Rule:
            self.rows.append((rows, function))
            return function

        return register

    def judge(self, subject: Subject) -> list[Violation]:
        """All findings, in the order of the table."""
        return [finding for _, rule in self.rows for finding in rule(subject)]
