"""What a Pod asks for by its annotations.

The engine is declared and never guessed: with a wrong guess the container starts, and caches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from inferencecache.webhooks.kvcache_injection import keys
from inferencecache.webhooks.kvcache_injection.engines import ROLES, SGLANG, VLLM, VLLM_ASCEND, Engine
from inferencecache.webhooks.kvcache_injection.launch import Family
from inferencecache.webhooks.validation.findings import Violation, forbidden, invalid, not_supported, required
from inferencecache.webhooks.validation.kubernetes import is_subdomain

RULE: Final = "12.1"
ANNOTATIONS: Final = "metadata.annotations"
_ASCEND: Final = "ascend"
_FORWARDED: Final = "true"

_SETTABLE: Final = frozenset(
    {
        keys.ANNOTATION_BINDING,
        keys.ANNOTATION_ENGINE,
        keys.ANNOTATION_MANUFACTURER,
        keys.ANNOTATION_ROLE,
        keys.ANNOTATION_CONTAINER,
        keys.ANNOTATION_FORWARDED,
    }
)
_WRITTEN_BY_US: Final = "it records what was decided at admission and is written by the webhook alone: remove it"
_FORBIDDEN: Final = {
    keys.ANNOTATION_INJECTED: _WRITTEN_BY_US,
    keys.ANNOTATION_CLIENT_CONFIG: _WRITTEN_BY_US,
    keys.ANNOTATION_DOMAIN: "the reuse domain is the Binding's: remove it, and name the Binding that has the domain",
}


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """What is asked for; `binding` is empty and `engine` None where the annotation is unusable."""

    binding: str
    engine: Engine | None
    role: str
    container: str | None
    forwarded: bool


def wants_pool(labels: Mapping[str, str]) -> bool:
    """Whether a Pod with these labels is to be given a pool."""
    return labels.get(keys.LABEL_INJECT) == keys.INJECT


def read_request(annotations: Mapping[str, str]) -> tuple[PoolRequest, list[Violation]]:
    """The request, and everything that is wrong with its annotations."""
    role = annotations.get(keys.ANNOTATION_ROLE, "")
    request = PoolRequest(
        binding=_binding(annotations.get(keys.ANNOTATION_BINDING, "")),
        engine=_engine(annotations),
        role=role if role in ROLES else "",
        container=annotations.get(keys.ANNOTATION_CONTAINER),
        forwarded=annotations.get(keys.ANNOTATION_FORWARDED) == _FORWARDED,
    )
    return request, list(_problems(annotations))


def annotation(key: str) -> str:
    """The path of an annotation, for messages."""
    return f"{ANNOTATIONS}[{key}]"


def _binding(name: str) -> str:
    return name if is_subdomain(name) else ""


def _engine(annotations: Mapping[str, str]) -> Engine | None:
    engine = annotations.get(keys.ANNOTATION_ENGINE, "")
    manufacturer = annotations.get(keys.ANNOTATION_MANUFACTURER)
    if engine == Family.SGLANG and manufacturer is None:
        return SGLANG
    if engine == Family.VLLM:
        return {None: VLLM, _ASCEND: VLLM_ASCEND}.get(manufacturer)
    return None


def _problems(annotations: Mapping[str, str]) -> Iterator[Violation]:
    yield from _binding_problems(annotations.get(keys.ANNOTATION_BINDING, ""))
    yield from _engine_problems(annotations)
    role = annotations.get(keys.ANNOTATION_ROLE)
    if role is not None and role not in ROLES:
        yield invalid(
            RULE,
            annotation(keys.ANNOTATION_ROLE),
            role,
            "set Prefill or Decode for a half of a split, and leave it out for a plain server",
        )
    forwarded = annotations.get(keys.ANNOTATION_FORWARDED)
    if forwarded is not None and forwarded != _FORWARDED:
        yield invalid(
            RULE, annotation(keys.ANNOTATION_FORWARDED), forwarded, 'its only value is "true": set that, or remove it'
        )
    for key in sorted(annotations):
        if key in _FORBIDDEN:
            yield forbidden(RULE, annotation(key), _FORBIDDEN[key])
        elif key.startswith(keys.PREFIX) and key not in _SETTABLE:
            yield forbidden(
                RULE, annotation(key), f"there is no such key: correct it to one of {', '.join(sorted(_SETTABLE))}"
            )


def _binding_problems(name: str) -> Iterator[Violation]:
    where = annotation(keys.ANNOTATION_BINDING)
    if not name:
        yield required(RULE, where, "name a KVCachePoolBinding of this Pod's namespace")
    elif "/" in name:
        yield invalid(
            RULE, where, name, "a Binding of another namespace cannot be used: give the plain name of one in this one"
        )
    elif not _binding(name):
        yield invalid(RULE, where, name, "this cannot be the name of an object: give that of a KVCachePoolBinding")


def _engine_problems(annotations: Mapping[str, str]) -> Iterator[Violation]:
    where = annotation(keys.ANNOTATION_ENGINE)
    engine = annotations.get(keys.ANNOTATION_ENGINE, "")
    if not engine:
        yield required(RULE, where, "set the engine that the container runs, vLLM or SGLang; it is not guessed")
    elif engine not in list(Family):
        yield not_supported(RULE, where, engine, list(Family))
    manufacturer = annotations.get(keys.ANNOTATION_MANUFACTURER)
    if manufacturer is None:
        return
    where = annotation(keys.ANNOTATION_MANUFACTURER)
    if manufacturer != _ASCEND:
        yield not_supported(RULE, where, manufacturer, [_ASCEND])
    elif engine == Family.SGLANG:
        yield invalid(RULE, where, manufacturer, "only vLLM has a variant for it: remove it, or set the engine to vLLM")
