"""Adapters for what is served already."""

from __future__ import annotations

from typing import Any

NOTHING = object()


class SecondVLLM:
    """Wants a pair that is built in."""

    def supports(self, *_: Any) -> bool:
        return True

    def supported_pairs(self) -> list[tuple[str, str]]:
        return [("vllm", "LMCache")]


class SecondRedis:
    """Wants a store that is built in."""

    def supports(self, storage: Any) -> bool:
        return bool(storage.provider == "Redis")


class OtherProtocol:
    """Says that a known provider speaks something else."""

    def protocols(self) -> dict[str, str]:
        return {"Redis": "memcache"}

    def supports(self, storage: Any) -> bool:
        return False
