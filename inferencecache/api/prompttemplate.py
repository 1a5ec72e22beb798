"""PromptTemplate: a prompt with stable and mutable slots (spec 01 §7)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from inferencecache.api.model import (
    AGE,
    Column,
    Condition,
    CustomObject,
    CustomResource,
    Flag,
    Int64,
    Model,
    Schema,
    Text,
)


class Slot(Model):
    """A place in the body."""

    name: Annotated[Text, Schema(required=True, min_length=1)] = ""
    """Name of the slot."""
    type: Annotated[Text, Schema(required=True, enum=("Stable", "Mutable"))] = ""
    """Stable slots belong to the shared prefix."""
    required: Flag | None = None
    """Whether a request must fill it."""
    description: Text | None = None
    """What belongs there."""


class PromptTemplateSpec(Model):
    """A prompt and its slots."""

    body: Annotated[Text, Schema(required=True, min_length=1)] = ""
    """The text with its slots."""
    slots: Annotated[tuple[Slot, ...] | None, Schema(list_map_keys=("name",))] = None
    """The places in the body."""


class PromptTemplateStatus(Model):
    """What the server was told of the template."""

    observed_generation: Int64 | None = None
    """The generation this status was derived from."""
    template_revision: Text | None = None
    """What RenderTemplate answers with: a hash of all that prompts depend on."""
    conditions: Annotated[tuple[Condition, ...] | None, Schema(list_map_keys=("type",))] = None
    """Accepted and Ready."""


class PromptTemplate(CustomObject):
    """A prompt with stable and mutable slots."""

    resource: ClassVar[CustomResource] = CustomResource(
        kind="PromptTemplate",
        plural="prompttemplates",
        short_names=("pt",),
        columns=(Column("Revision", ".status.templateRevision"), AGE),
    )

    spec: PromptTemplateSpec = PromptTemplateSpec()
    status: PromptTemplateStatus = PromptTemplateStatus()
