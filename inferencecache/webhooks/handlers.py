"""What each webhook does with a request: decode, look up what the decision needs, decide, word the answer.

The decisions themselves are in `injection`, `validation` and the api's defaulting; this module is the seam between them
and the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferencecache.adapters.registry import RuntimeRegistry, Settings
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.api.defaulting import default_cache_backend
from inferencecache.api.model import CustomObject, DecodeError
from inferencecache.kube.errors import ApiError, KubeError
from inferencecache.webhooks.injection import Injection, Outcome, inject
from inferencecache.webhooks.metrics import POD_ADMISSIONS
from inferencecache.webhooks.objects import answer_to, new_object, old_object, plain_object, unreadable
from inferencecache.webhooks.patches import diff
from inferencecache.webhooks.pods import PodView, UnreadablePod, read_pod
from inferencecache.webhooks.review import Answer, Handler, Request, allowed, denied
from inferencecache.webhooks.selection import BackendReader, LookupFailed, SiblingReader
from inferencecache.webhooks.unwired import UnwiredMemo
from inferencecache.webhooks.validation import (
    needs_tenant_siblings,
    validate_cache_backend,
    validate_cache_policy,
    validate_cache_tenant,
)


@dataclass(frozen=True)
class Handlers:
    """The webhooks of one process: what they are given to work with, and one method per webhook."""

    runtimes: RuntimeRegistry
    settings: Settings
    backends: BackendReader
    siblings: SiblingReader
    unwired: UnwiredMemo

    @property
    def objects(self) -> dict[str, Handler]:
        """The webhooks for our own kinds by their path (spec 02 §1)."""
        return {
            "/mutate-inferencecache-io-v1alpha1-cachebackend": self.default_cache_backend,
            "/mutate-inferencecache-io-v1alpha1-cachepolicy": self.leave_alone,
            "/mutate-inferencecache-io-v1alpha1-cachetenant": self.leave_alone,
            "/validate-inferencecache-io-v1alpha1-cachebackend": self.validate_cache_backend,
            "/validate-inferencecache-io-v1alpha1-cachepolicy": self.validate_cache_policy,
            "/validate-inferencecache-io-v1alpha1-cachetenant": self.validate_cache_tenant,
        }

    # -------------------------------------------------------------------------------------------------------- Pods

    async def pod(self, request: Request) -> Answer:
        """Wire an engine Pod, or say why not. Exceptions are the caller's to turn into an answer that allows."""
        if not request.operation:
            return _counted(Outcome.UNWIRED, "no_operation", allowed("no operation: nothing to do"))
        try:
            pod, view = read_pod(request.object)
        except UnreadablePod as error:
            return _counted(Outcome.UNWIRED, "unreadable", allowed(f"the Pod cannot be read (fail-open): {error}"))
        namespace = view.metadata.namespace or request.namespace
        failure = ""
        backends: Sequence[CacheBackend] = ()
        if not view.opted_out:
            try:
                backends = await self.backends.backends(namespace)
            except LookupFailed as error:
                failure = str(error)
        done = inject(pod, view, namespace, backends, self.runtimes, self.settings, lookup_failure=failure)
        if done.outcome is Outcome.UNWIRED and done.backend and not request.dry_run:
            self._remember(namespace, view, done)
        return _counted(done.outcome, done.reason, allowed(done.message, diff(pod, done.pod)))

    def _remember(self, namespace: str, view: PodView, done: Injection) -> None:
        self.unwired.note(
            namespace=namespace,
            name=view.metadata.name,
            generate_name=view.metadata.generate_name,
            labels=view.metadata.labels,
            reason=done.reason,
            message=done.message,
            backend=done.backend,
        )

    # -------------------------------------------------------------------------------------------------- defaulting

    async def default_cache_backend(self, request: Request) -> Answer:
        """Defaulting rows D1–D4, on the raw object."""
        try:
            raw = plain_object(request.object)
            backend = CacheBackend.decode(raw)
        except DecodeError as error:
            return unreadable(request, error)
        if not request.dry_run:
            # Another replica may be the one to validate it, and this one be asked about its engines.
            self.backends.admitted(backend.metadata.namespace or request.namespace)
        return allowed(patch=diff(raw, default_cache_backend(raw)))

    async def leave_alone(self, request: Request) -> Answer:
        """The defaulter of a kind without contextual defaults: only what cannot be read is refused."""
        kind = {"CachePolicy": CachePolicy, "CacheTenant": CacheTenant}.get(request.kind.kind)
        if kind is not None:
            try:
                new_object(kind, request)
            except DecodeError as error:
                return unreadable(request, error)
        return allowed()

    # -------------------------------------------------------------------------------------------------- validation

    async def validate_cache_backend(self, request: Request) -> Answer:
        """The table of spec 02 §5."""
        if request.operation == "DELETE":
            return allowed()
        try:
            new = new_object(CacheBackend, request)
        except DecodeError as error:
            return unreadable(request, error)
        verdict = validate_cache_backend(
            new,
            old_object(CacheBackend, request),
            runtimes=self.runtimes,
            neighbours=self.backends.cached(new.metadata.namespace),
        )
        if verdict.allowed and not request.dry_run:
            self.backends.admitted(new.metadata.namespace)
        return answer_to(new, verdict)

    async def validate_cache_policy(self, request: Request) -> Answer:
        """Rows P1–P3."""
        if request.operation == "DELETE":
            return allowed()
        try:
            new = new_object(CachePolicy, request)
        except DecodeError as error:
            return unreadable(request, error)
        old = old_object(CachePolicy, request)
        siblings: Sequence[CachePolicy] = ()
        if old is None:
            try:
                siblings = await self.siblings.siblings(CachePolicy, new.metadata.namespace)
            except (KubeError, TimeoutError) as error:
                return _lookup_failed(new, error)
        return answer_to(new, validate_cache_policy(new, old, siblings=siblings))

    async def validate_cache_tenant(self, request: Request) -> Answer:
        """Rows T1–T2."""
        if request.operation == "DELETE":
            return allowed()
        try:
            new = new_object(CacheTenant, request)
        except DecodeError as error:
            return unreadable(request, error)
        old = old_object(CacheTenant, request)
        siblings: Sequence[CacheTenant] = ()
        if needs_tenant_siblings(new, old):
            try:
                siblings = await self.siblings.siblings(CacheTenant, new.metadata.namespace)
            except (KubeError, TimeoutError) as error:
                return _lookup_failed(new, error)
        return answer_to(new, validate_cache_tenant(new, old, siblings=siblings))


def _counted(outcome: Outcome, reason: str, answer: Answer) -> Answer:
    POD_ADMISSIONS.labels(outcome.value, reason).inc()
    return answer


def _lookup_failed(obj: CustomObject, error: Exception) -> Answer:
    """Fail closed on a failed look-up, with the API server's own status where it gave one (spec 02 §2.4)."""
    told = (
        f"looking up the other {obj.resource.plural} in namespace {obj.metadata.namespace} failed: "
        f"{error or type(error).__name__}; try again"
    )
    if isinstance(error, ApiError):
        return denied(error.status, error.reason or "InternalError", told)
    return denied(403, "Forbidden", told)
