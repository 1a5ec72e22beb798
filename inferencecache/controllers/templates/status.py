"""What a PromptTemplate's status says.

| the template                                   | Accepted              | Ready                        |
|------------------------------------------------|-----------------------|------------------------------|
| its body cannot be rendered                    | False, InvalidBody    | False, NotAccepted           |
| all templates together are too long for one push, and it is too young | False, DocumentFull | False, NotAccepted |
| the server has this revision                   | True, Accepted        | True, Served                 |
| the server could not be told of this revision  | True, Accepted        | False, PushFailed            |

`templateRevision` is what RenderTemplate answers with; with `Ready` it tells that prompts are made of it by now.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from inferencecache.api.prompttemplate import PromptTemplate
from inferencecache.controllers.dataplane.served import (
    ACCEPTED_REASON,
    DOCUMENT_FULL,
    NOT_ACCEPTED,
    Claim,
    ready,
    was_served,
    with_claims,
)
from inferencecache.controllers.templates.document import Templates, revision_of
from inferencecache.kube.resource import Key

INVALID_BODY: Final = "InvalidBody"


def template_status(template: PromptTemplate, pushed: Templates, failure: str, now: datetime) -> dict[str, Any] | None:
    """The fields to write, or None if the status says all that already.

    Args:
        template: whose status it is.
        pushed: the document that was built with it.
        failure: why the push of the document failed; empty if it did not.
        now: for conditions that change.
    """
    status, generation, revision = template.status, template.metadata.generation, revision_of(template)
    accepted = _accepted(Key.of(template), pushed)
    if accepted.status == "True":
        told_before = was_served(status.conditions, generation) and status.template_revision == revision
        readiness = ready(failure=failure, told_before=told_before, message=f"revision {revision} is being rendered")
    else:
        readiness = Claim("False", NOT_ACCEPTED, "the server is not told of it; see Accepted")
    after = {
        "observedGeneration": generation,
        "templateRevision": revision,
        "conditions": with_claims(status.conditions, accepted, readiness, generation, now),
    }
    return None if status.manifest() == after else after


def _accepted(key: Key, pushed: Templates) -> Claim:
    if key in pushed.broken:
        return Claim("False", INVALID_BODY, f"spec.body: {pushed.broken[key]}")
    if key in pushed.left_out:
        return Claim("False", DOCUMENT_FULL, "all PromptTemplates together are longer than the server takes")
    return Claim("True", ACCEPTED_REASON, "the body can be rendered")
