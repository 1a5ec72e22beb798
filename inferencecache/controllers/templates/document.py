"""All PromptTemplates as the body of `/templates`, and what keeps single ones out of it.

A template whose body cannot be rendered is left out: the server could do nothing with it. Its revision is a hash of
what prompts depend on, so it changes when, and only when, prompts may.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from inferencecache.api.prompttemplate import PromptTemplate
from inferencecache.controllers.dataplane.push import Row, fit
from inferencecache.kube.resource import Key
from inferencecache.wire.prompt_body import BodyError, parts_of

VERSION: Final = 1

_LIST: Final = "templates"
_REVISION_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Templates:
    """A document; what is wrong with the templates that cannot be rendered, and which others found no place."""

    document: bytes
    broken: dict[Key, str]
    left_out: frozenset[Key]


def templates_document(templates: Iterable[PromptTemplate]) -> Templates:
    """The body, with all that can be rendered and fits."""
    rows, broken = [], {}
    for template in templates:
        key = Key.of(template)
        try:
            parts_of(template.spec.body, {slot.name for slot in template.spec.slots or ()})
        except BodyError as error:
            broken[key] = str(error)
        else:
            rows.append(Row(key, template.metadata.creation_timestamp or "", _row(template)))
    fitted = fit(VERSION, {_LIST: rows})
    return Templates(fitted.document, broken, fitted.left_out[_LIST])


def revision_of(template: PromptTemplate) -> str:
    """The revision of a template, in hexadecimal digits; what slots are for does not count."""
    content = msgspec.json.encode((template.spec.body, _slots(template)))
    return hashlib.sha256(content).hexdigest()[:_REVISION_DIGITS]


def _row(template: PromptTemplate) -> dict[str, Any]:
    return {
        "namespace": template.metadata.namespace,
        "name": template.metadata.name,
        "body": template.spec.body,
        "slots": _slots(template),
        "revision": revision_of(template),
    }


def _slots(template: PromptTemplate) -> list[dict[str, Any]]:
    return [
        {"name": slot.name, "type": slot.type, "required": bool(slot.required)} for slot in template.spec.slots or ()
    ]
