"""May this caller report for this tenant? (decision D9)

A tenant is a namespace, and an engine reports from a Pod in it: where ingestion is guarded, the ServiceAccount that a
token proves must live in the namespace that a message names.
"""

from __future__ import annotations

from inferencecache.server.auth import Authenticator, Verdict, namespace_of


class IngestionRefused(Exception):
    """The caller may not report this; the verdict is what an HTTP face says."""

    def __init__(self, verdict: Verdict, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict


class Reporter:
    """A caller that may report: for one tenant, or for all if ingestion is not guarded."""

    def __init__(self, tenant: str | None) -> None:
        self._tenant = tenant

    def require(self, tenant: str) -> None:
        """Raises `IngestionRefused` if the caller may not report for `tenant`."""
        if self._tenant is not None and tenant != self._tenant:
            raise IngestionRefused(
                Verdict("forbidden", 403, "forbidden"),
                f"a ServiceAccount of namespace {self._tenant!r} cannot report for tenant {tenant!r}",
            )


class Ingestion:
    """The guard of everything that changes the index; without an authenticator it lets everybody in."""

    def __init__(self, authenticator: Authenticator | None = None) -> None:
        self._authenticator = authenticator

    def recall(self, authorization: str) -> Reporter | None:
        """The caller, if it is known without asking anybody. Raises `IngestionRefused`."""
        if self._authenticator is None:
            return _ANYBODY
        verdict = self._authenticator.recall(authorization)
        return None if verdict is None else _reporter(verdict)

    async def identify(self, authorization: str) -> Reporter:
        """The caller of an `Authorization` header. Raises `IngestionRefused`."""
        if self._authenticator is None:
            return _ANYBODY
        return _reporter(await self._authenticator.check(authorization))


_ANYBODY = Reporter(None)


def _reporter(verdict: Verdict) -> Reporter:
    if verdict.status != 200:
        raise IngestionRefused(verdict, verdict.message)
    return Reporter(namespace_of(verdict.username))
