"""Decoding: partial views from bytes, and lists of which one broken item costs only itself."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import msgspec
import pydantic
import pytest

from inferencecache.kube.codec import decode_list, decoder_for, name_in
from inferencecache.kube.errors import DecodeError
from inferencecache.kube.kinds import Deployment, Pod
from inferencecache.kube.resource import Key, Resource, ResourceType


class Meta(pydantic.BaseModel):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = pydantic.Field("", alias="resourceVersion")


class Widget(pydantic.BaseModel):
    """A kind whose class is a pydantic model."""

    resource: ClassVar[Resource] = ResourceType("example.net", "v1", "Widget", "widgets")
    metadata: Meta = Meta()
    size: int = 0


def as_json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_a_view_takes_what_it_declares_and_skips_the_rest() -> None:
    pod = decoder_for(Pod)(as_json(metadata={"name": "p", "managedFields": [1]}, spec={"x": 1}, status={"phase": "Up"}))
    assert (pod.metadata.name, pod.status.phase) == ("p", "Up")


@pytest.mark.parametrize("wrap", [bytes, msgspec.Raw])
def test_pydantic_models_are_decoded_from_bytes_and_raw_slices(wrap: Any) -> None:
    assert decoder_for(Widget)(wrap(as_json(metadata={"name": "w"}, size=3))).size == 3


@pytest.mark.parametrize("kind", [Deployment, Widget])
def test_what_does_not_fit_is_named(kind: Any) -> None:
    body = as_json(metadata={"name": "w", "namespace": "n"}, size="no", status={"replicas": "many"})
    with pytest.raises(DecodeError, match=f"{kind.resource.kind} n/w does not fit its view"):
        decoder_for(kind)(body)


def test_one_broken_item_does_not_lose_the_page() -> None:
    items = [{"metadata": {"name": "a"}}, {"metadata": {"name": "b", "namespace": "n"}, "status": 5}, "text"]
    page = decode_list(Deployment, as_json(metadata={"resourceVersion": "7", "continue": "c"}, items=items))
    assert [d.metadata.name for d in page.items] == ["a"]
    assert [key for key, _ in page.broken] == [Key("n", "b"), Key("", "?")]
    assert (page.resource_version, page.continue_token) == ("7", "c")


@pytest.mark.parametrize("items", [None, []])
def test_an_empty_list_may_be_null(items: Any) -> None:
    assert decode_list(Pod, as_json(metadata={"resourceVersion": "1"}, items=items)).items == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"items": 5}'])
def test_a_page_that_is_no_list_is_an_error(body: bytes) -> None:
    with pytest.raises(DecodeError, match="a list of pods is not readable"):
        decode_list(Pod, body)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"metadata": 1}', b"\xff"])
def test_a_name_is_always_found(body: bytes) -> None:
    assert isinstance(name_in(body), Key)


def test_a_class_that_cannot_be_decoded_is_refused() -> None:
    class Plain:
        resource: ClassVar[Resource] = Pod.resource
        metadata: Any = None

    with pytest.raises(TypeError, match="Plain is neither"):
        decoder_for(Plain)
