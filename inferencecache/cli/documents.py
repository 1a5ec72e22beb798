"""YAML and JSON files in, the way kubectl and the API server read them.

One file may hold several documents, `-` is standard input, and a `List` counts as its items. Every object remembers
where it came from, so that an error can say which file and which document it means.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from inferencecache.cli import scalars


class DocumentError(Exception):
    """A file that cannot be used; the message says which document of which file, and why."""


@dataclass(frozen=True)
class Document:
    """One object and its origin. `index` counts the documents of its file from 1."""

    source: str
    index: int
    manifest: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.manifest.get("kind", ""))

    @property
    def where(self) -> str:
        """The origin, for messages: `backend.yaml, document 2 (CacheBackend demo)`."""
        name = (self.manifest.get("metadata") or {}).get("name") or (self.manifest.get("metadata") or {}).get(
            "generateName"
        )
        return f"{self.source}, document {self.index} ({self.kind} {name or 'without a name'})"


class _Loader(yaml.SafeLoader):
    """Scalars and keys mean what kubectl takes them for, and a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is not a text", key.start_mark)
            if key.tag != "tag:yaml.org,2002:merge" and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        self.flatten_mapping(node)
        # Each key by itself: to Python, true and 1 are one key.
        return {_key(self.construct_object(key)): self.construct_object(value, deep) for key, value in node.value}


def _key(key: Any) -> Any:
    """A key as a text: keys of JSON are. Raises `ValueError` for none at all."""
    if key is None:
        raise ValueError("a key is empty")
    return str(key).lower() if isinstance(key, bool) else str(key) if isinstance(key, int | float) else key


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    """A text; JSON may write one character as two escapes (`\\ud83d\\ude00`), as Python and others do."""
    text = str(loader.construct_scalar(node))
    if text.isascii():
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise yaml.constructor.ConstructorError(None, None, "half a character is escaped", node.start_mark) from error


def _truth(loader: _Loader, node: yaml.ScalarNode) -> bool:
    return scalars.truth(node.value)


def _number(loader: _Loader, node: yaml.ScalarNode) -> int | float | str:
    try:
        return scalars.number(node.value)
    except ValueError as error:
        raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error


_TRUTH: Final = "tag:yaml.org,2002:bool"
_NUMBER: Final = "tag:yaml.org,2002:float"
_OTHERWISE: Final = {_TRUTH, _NUMBER, *(f"tag:yaml.org,2002:{kind}" for kind in ("int", "timestamp", "value"))}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag not in _OTHERWISE]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_TRUTH, scalars.TRUTH, list(scalars.TRUTH_BEGINS))
_Loader.add_implicit_resolver(_NUMBER, scalars.NUMBER, list(scalars.NUMBER_BEGINS))
_Loader.add_constructor("tag:yaml.org,2002:str", _text)
_Loader.add_constructor(_TRUTH, _truth)
_Loader.add_constructor(_NUMBER, _number)


def load(paths: Sequence[str]) -> list[Document]:
    """Every object of the files, in order.

    Raises:
        DocumentError: a file is missing or not YAML, or a document is no Kubernetes object.
    """
    if paths.count("-") > 1:
        raise DocumentError("standard input (-f -) can be read only once")
    return [document for path in paths for document in _load(path)]


def _load(path: str) -> Iterator[Document]:
    source = "standard input" if path == "-" else path
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DocumentError(f"{source}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    index = 0
    try:
        for content in yaml.load_all(text, Loader=_Loader):
            index += 1
            if content is not None:
                yield from _objects(source, index, content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DocumentError(f"{source}, document {index + 1}: not valid YAML: {error}") from error


def _objects(source: str, index: int, content: Any) -> Iterator[Document]:
    if not isinstance(content, dict):
        raise DocumentError(f"{source}, document {index}: is a {type(content).__name__}, not a Kubernetes object")
    for field in ("apiVersion", "kind"):
        if not isinstance(content.get(field), str) or not content[field]:
            raise DocumentError(f"{source}, document {index}: has no {field}")
    if not isinstance(content.get("metadata") or {}, dict):
        raise DocumentError(f"{source}, document {index}: metadata is not an object")
    if content["kind"].endswith("List") and isinstance(content.get("items"), list):
        for item in content["items"]:
            yield from _objects(source, index, item)
        return
    yield Document(source, index, content)
