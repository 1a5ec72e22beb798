"""Pushes all PromptTemplates to the server whenever one changes, and every interval, and says so in their statuses.

As for policies, every change names the same key.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from inferencecache.api.prompttemplate import PromptTemplate
from inferencecache.controllers.dataplane.push import Pusher
from inferencecache.controllers.dataplane.telling import push_then_tell
from inferencecache.controllers.templates.document import templates_document
from inferencecache.controllers.templates.status import template_status
from inferencecache.kube.client import Client
from inferencecache.kube.controller import Result
from inferencecache.kube.informer import Informer
from inferencecache.kube.resource import Key

DOCUMENT: Final = Key("", "templates")


class TemplatePushReconciler:
    """Keeps the server's templates those of the cluster. `now` gives the wall-clock time, with a time zone."""

    def __init__(
        self,
        *,
        client: Client,
        templates: Informer[PromptTemplate],
        pusher: Pusher,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._templates = templates
        self._pusher = pusher
        self._now = now

    async def reconcile(self, _key: Key) -> Result:
        """Push what the cache holds. Raises why that, or the status of a template, did not succeed."""
        if self._templates.missing:
            return Result()
        templates, now = self._templates.list(), self._now()
        built = templates_document(templates)

        def status(live: PromptTemplate, failure: str) -> dict[str, Any] | None:
            return template_status(live, built, failure, now)

        return await push_then_tell(
            self._client, self._pusher, built.document, templates, status, what="template status"
        )
