"""Spans: how long a piece of work took, as part of what, for whoever collects traces. Off until a process starts it.

OpenTelemetry comes with the extra `tracing`, and its SDK is imported by `start`; a process that does not trace pays for
a look at one variable. That variable is the process's own, as the SDK's is: a span belongs to what its task does at the
moment, whichever room the code is in.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

Attributes = Mapping[str, str | int | float | bool]

_NOTHING: Final = nullcontext()
_FLUSH_MILLISECONDS: Final = 3000

_provider: TracerProvider | None = None
_tracer: Tracer | None = None


class TracingUnavailable(Exception):
    """What tracing needs is not installed, or the endpoint is none; the message says what to do."""


def otlp_exporter(endpoint: str) -> SpanExporter:
    """What sends spans to a collector over OTLP/HTTP; a URL without a path gets the usual one.

    Raises `TracingUnavailable`.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise TracingUnavailable(f"--otlp-endpoint={endpoint}: needs an http:// or https:// address")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise TracingUnavailable(f"--otlp-endpoint needs `pip install 'inferencecache[tracing]'`: {error}") from error
    path = parts.path if parts.path.strip("/") else "/v1/traces"
    return OTLPSpanExporter(endpoint=parts._replace(path=path).geturl())


def start(service: str, exporter: SpanExporter) -> None:
    """Trace from now on. `OTEL_*` variables choose the sampler and add attributes, as the SDK documents them."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    global _provider, _tracer
    _provider = TracerProvider(resource=Resource.create({"service.name": service}))
    _provider.add_span_processor(BatchSpanProcessor(exporter))
    _tracer = _provider.get_tracer("inferencecache")


def stop() -> None:
    """Send what is left, and trace no more. Blocks for up to a few seconds."""
    global _provider, _tracer
    provider, _provider, _tracer = _provider, None, None
    if provider is not None:
        provider.force_flush(_FLUSH_MILLISECONDS)
        provider.shutdown()


def started() -> bool:
    """Whether anything is traced."""
    return _tracer is not None


def span(name: str, attributes: Attributes) -> AbstractContextManager[object]:
    """A span around a block, below the one that is open in this task; an exception that leaves it makes it failed."""
    if _tracer is None:
        return _NOTHING
    return _tracer.start_as_current_span(name, attributes=attributes)


def inner_span(name: str, attributes: Attributes) -> AbstractContextManager[object]:
    """The same for what is only told as part of something: without an open span in this task there is none."""
    if _tracer is None:
        return _NOTHING
    from opentelemetry.trace import get_current_span

    return span(name, attributes) if get_current_span().get_span_context().is_valid else _NOTHING


def record(name: str, attributes: Attributes, *, start_ns: int, end_ns: int, traceparent: str = "") -> None:
    """A span of work that is over, between two times of the wall clock.

    `traceparent`: what the caller said that it belongs to, in the form of the W3C; empty: nothing.
    """
    if _tracer is None:
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    _tracer.start_span(name, context=parent, attributes=attributes, start_time=start_ns).end(end_ns)
