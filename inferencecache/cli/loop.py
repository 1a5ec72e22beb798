"""The event loop of the long-running commands."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog
import uvloop

_TLS_FAILED: Final = "Fatal error on SSL protocol"
"""uvloop's word for bytes of TLS that it could no longer take or give, as where the peer has just gone."""

_log = structlog.get_logger(__name__)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, which tells of a TLS connection that broke in a line, as that is the peer's doing and no fault here."""
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    loop.set_exception_handler(_tell)
    return loop


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if context.get("message") == _TLS_FAILED:
        _log.info("a TLS connection broke", error=repr(context.get("exception")))
    else:
        loop.default_exception_handler(context)
