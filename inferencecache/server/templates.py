"""Prompts made from PromptTemplates (RenderTemplate).

The controller pushes all templates as one document, which takes the place of the one before it. Their language is that
of `wire.prompt_body`: equal inputs give equal bytes, which is what a prefix cache lives on. No conditions, no loops, no
filters; a value is put in as it is and not looked at again.

A slot is `Stable` or `Mutable`: its value is the same for many requests, or changes with each. A prompt caches well as
far as it is stable, so a template reads best with its mutable slots last.

A template belongs to its namespace. A tenant, which is a namespace, renders the templates of its own; those of others
do not exist for it, as their texts may be nobody else's business.

Rendering is text only. What a prompt's stable part is as tokens, and so as a key of the index, `rendering` finds out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Struct, field

from inferencecache.server import bodies
from inferencecache.wire.limits import LARGEST_DOCUMENT
from inferencecache.wire.prompt_body import BodyError, Placeholder, Text, parts_of
from inferencecache.wire.v1alpha1.inferencecache_pb2 import RenderTemplateRequest

MAX_PROMPT_BYTES: Final = 1 << 20
"""As much as LookupRoute takes as a prompt."""

VERSION: Final = 1

TEMPLATE_NOT_FOUND: Final = "TEMPLATE_NOT_FOUND"
RENDER_ERROR: Final = "RENDER_ERROR"


class TemplatesError(ValueError):
    """A pushed document cannot be used; the message names the field. Nothing has changed."""


class Slot(Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """One variable of a template; one that is not required may be missing, and is empty then."""

    name: str
    slot_type: Literal["Stable", "Mutable"] = field(name="type")
    required: bool = False


class Template(Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """One PromptTemplate.

    Attributes:
        namespace: of the object, and of everybody who may use it.
        name: of the object.
        body: in the language above.
        slots: the variables that `body` may name.
        revision: the controller's name for this state of it; empty: one is derived from it.
        model: whose prompts it makes; empty if that is not known.
    """

    namespace: str
    name: str
    body: str
    slots: list[Slot] = []
    revision: str = ""
    model: str = field(default="", name="modelID")


class TemplatesDocument(Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """The body of a push: all templates there are."""

    version: int
    templates: list[Template]


class Rendered(NamedTuple):
    """A prompt, how much of it is stable (its beginning up to the first mutable slot), and whose it is."""

    prompt: str
    stable: str
    model: str
    revision: str


class NotRendered(NamedTuple):
    """Why there is no prompt; `revision` is empty if there is no template."""

    reason: str
    revision: str = ""


class _Compiled(NamedTuple):
    parts: tuple[Text | Placeholder, ...] | None
    slots: frozenset[str]
    required: frozenset[str]
    mutable: frozenset[str]
    revision: str
    model: str


class TemplateStore:
    """The templates in force."""

    def __init__(self) -> None:
        self._templates: Mapping[tuple[str, str], _Compiled] = {}

    def replace(self, document: TemplatesDocument) -> list[str]:
        """Put `document` in force in place of everything before it; of two rows for one object the last counts.

        Returns:
            What is wrong with single templates. Those are known, but cannot be rendered.
        """
        compiled, complaints = {}, []
        for template in document.templates:
            try:
                parts = parts_of(template.body, {slot.name for slot in template.slots})
            except BodyError as error:
                parts = None
                complaints.append(f"{template.namespace}/{template.name}: {error}")
            compiled[template.namespace, template.name] = _Compiled(
                parts,
                frozenset(slot.name for slot in template.slots),
                frozenset(slot.name for slot in template.slots if slot.required),
                frozenset(slot.name for slot in template.slots if slot.slot_type == "Mutable"),
                template.revision or _revision(template),
                template.model,
            )
        self._templates = compiled
        return complaints

    def render(self, request: RenderTemplateRequest) -> Rendered | NotRendered:
        """The prompt that `request` asks for."""
        namespace, _, name = request.template_ref.partition("/")
        template = self._templates.get((namespace, name)) if namespace == request.tenant_id else None
        if template is None:
            return NotRendered(TEMPLATE_NOT_FOUND)
        return _render(template, request.variables) or NotRendered(RENDER_ERROR, template.revision)


def parse(body: bytes) -> TemplatesDocument:
    """The document in the body of a push.

    Raises:
        TemplatesError: over `LARGEST_DOCUMENT`, not exactly one JSON object of this shape, or of another version.
    """
    document = bodies.decode(body, _decoder, what="templates", max_bytes=LARGEST_DOCUMENT, error=TemplatesError)
    if document.version != VERSION:
        raise TemplatesError(f"unsupported templates version {document.version}: this server speaks {VERSION}")
    return document


_decoder: Final = msgspec.json.Decoder(TemplatesDocument)


def _render(template: _Compiled, variables: Mapping[str, str]) -> Rendered | None:
    """None: the template is broken, a required variable is missing, one fits no slot, or the prompt is too long."""
    if template.parts is None or not template.required <= variables.keys() <= template.slots:
        return None
    texts = [part.text if isinstance(part, Text) else variables.get(part.slot, "") for part in template.parts]
    prompt = "".join(texts)
    if len(prompt) > MAX_PROMPT_BYTES or len(prompt.encode()) > MAX_PROMPT_BYTES:
        return None
    first_mutable = next(
        (
            number
            for number, part in enumerate(template.parts)
            if isinstance(part, Placeholder) and part.slot in template.mutable
        ),
        len(texts),
    )
    return Rendered(prompt, "".join(texts[:first_mutable]), template.model, template.revision)


def _revision(template: Template) -> str:
    """Of what the prompt depends on, so that it changes when, and only when, prompts may."""
    return hashlib.sha256(msgspec.json.encode((template.body, template.slots))).hexdigest()[:16]
