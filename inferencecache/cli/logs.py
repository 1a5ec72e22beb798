"""Logs of the long-running commands: one JSON object per line, or readable lines for a developer.

The keys are those of controller-runtime (`level`, `ts`, `msg`), so existing log pipelines read them; the flags are
its `--zap-*` flags. Libraries that log through the standard library come out in the same shape.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@contextmanager
def _not_installed(package: str) -> Iterator[None]:
    """Have an import fail for whoever tries it in here."""
    before = sys.modules.get(package)
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]
        if before is not None:
            sys.modules[package] = before


# Where rich is installed, structlog loads it to draw tracebacks with the values of all variables, tokens among them.
# Ours are plain; and rich takes a tenth of a sidecar's memory and of the time in which a command starts.
with _not_installed("rich"):
    import structlog
    from structlog.typing import Processor


class Encoder(StrEnum):
    """How a line looks."""

    JSON = "json"
    CONSOLE = "console"


class Keys(StrEnum):
    """How the fields of a line that all lines have are called."""

    ZAP = "zap"
    """`ts`, and `level` in small letters, as controller-runtime has them."""
    SLOG = "slog"
    """`time`, and `level` in capitals (`WARN`), as Go's standard library has them."""


class TimeEncoding(StrEnum):
    """How the time of a line looks."""

    RFC3339 = "rfc3339"
    RFC3339NANO = "rfc3339nano"
    ISO8601 = "iso8601"
    EPOCH = "epoch"
    MILLIS = "millis"
    NANO = "nano"


_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "error": logging.ERROR, "panic": logging.CRITICAL}


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """The `--zap-*` flags. An unset encoder or level follows `devel`: console and debug, else JSON and info."""

    devel: bool = False
    encoder: Encoder | None = None
    level: str = ""
    stacktrace_level: str = ""
    time_encoding: TimeEncoding = TimeEncoding.RFC3339

    def __post_init__(self) -> None:
        parse_level("--zap-log-level", self.level or "info")
        parse_level("--zap-stacktrace-level", self.stacktrace_level or "error")


def parse_level(flag: str, text: str) -> int:
    """The standard library's number of a level: a name, or a verbosity above 0, which means debug.

    Raises:
        ValueError: it is neither.
    """
    if text.lower() in _LEVELS:
        return _LEVELS[text.lower()]
    if text.isdecimal() and int(text) > 0:
        return logging.DEBUG
    raise ValueError(f"{flag}={text}: needs one of {', '.join(_LEVELS)}, or a verbosity above 0")


def configure(settings: LogSettings) -> None:
    """Set logging up as the settings ask for."""
    level = parse_level("--zap-log-level", settings.level or ("debug" if settings.devel else "info"))
    stacktraces = parse_level("--zap-stacktrace-level", settings.stacktrace_level or "error")
    encoder = settings.encoder or (Encoder.CONSOLE if settings.devel else Encoder.JSON)

    set_up(encoder, level=level, stacktraces=stacktraces, time_encoding=settings.time_encoding)


def set_up(
    encoder: Encoder,
    *,
    level: int,
    stacktraces: int = logging.ERROR,
    time_encoding: TimeEncoding = TimeEncoding.RFC3339,
    keys: Keys = Keys.ZAP,
) -> None:
    """Send every log line of this process to stderr. The levels are the standard library's numbers.

    A line is about its message; the key `event_` of a call becomes `event`, for those that machines look for.
    """
    time_key = "time" if keys is Keys.SLOG else "ts"
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        _timestamp(time_encoding, time_key),
        _drop_traces_below(stacktraces),
    ]
    if keys is Keys.SLOG:
        shared.append(_capital_level)
    last: list[Processor]
    if encoder is Encoder.JSON:
        last = [structlog.processors.format_exc_info, structlog.processors.EventRenamer("msg", "event_"), _json()]
    else:
        last = [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                timestamp_key=time_key,
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]

    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(level, logging.INFO), force=True)


def _timestamp(encoding: TimeEncoding, key: str) -> Processor:
    if encoding in (TimeEncoding.RFC3339, TimeEncoding.ISO8601):
        return structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%SZ", utc=True, key=key)
    if encoding is TimeEncoding.RFC3339NANO:
        return structlog.processors.TimeStamper(fmt="iso", utc=True, key=key)
    per_second = {TimeEncoding.EPOCH: 1, TimeEncoding.MILLIS: 10**3, TimeEncoding.NANO: 10**9}[encoding]

    def stamp(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event[key] = time.time_ns() * per_second / 10**9
        return event

    return stamp


def _capital_level(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event["level"] = {"warning": "WARN", "critical": "ERROR"}.get(event["level"], event["level"].upper())
    return event


def _drop_traces_below(stacktraces: int) -> Processor:
    def drop(_logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if logging.getLevelName(method.upper()) < stacktraces:
            event.pop("exc_info", None)
        return event

    return drop


def _json() -> Processor:
    return structlog.processors.JSONRenderer(default=str, ensure_ascii=False)
