"""Pushes all PromptTemplates to the server whenever one changes, and every interval, and says so in their statuses.

As for policies, every change names the same key.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from inferencecache.api.prompttemplate import PromptTemplate
from inferencecache.controllers.dataplane.client import ServerCallError
from inferencecache.controllers.dataplane.fan_out import write_each
from inferencecache.controllers.dataplane.push import Pusher
from inferencecache.controllers.templates.document import templates_document
from inferencecache.controllers.templates.status import template_status
from inferencecache.kube.client import Client
from inferencecache.kube.controller import Result
from inferencecache.kube.informer import Informer
from inferencecache.kube.resource import Key
from inferencecache.kube.status import write_status

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
        templates = self._templates.list()
        built = templates_document(templates)
        failure: ServerCallError | None = None
        again = None
        try:
            again = await self._pusher.push(built.document, empty=not templates)
        except ServerCallError as error:
            failure = error
        why, now = str(failure) if failure is not None else "", self._now()
        pushed = {Key.of(template): template.metadata.generation for template in templates}

        def decide(live: PromptTemplate) -> dict[str, Any] | None:
            # A newer generation than the one that was pushed is the next pass's to judge.
            if live.metadata.generation != pushed[Key.of(live)]:
                return None
            return template_status(live, built, why, now)

        async def write(template: PromptTemplate) -> None:
            await write_status(self._client, template, decide)

        unwritten = await write_each(templates, write, what="template status")
        if failure is not None:
            raise failure
        if unwritten is not None:
            raise unwritten
        return Result(again)
