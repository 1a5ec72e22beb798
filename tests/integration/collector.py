"""A collector of traces: takes what an exporter sends over OTLP/HTTP, and shows the spans."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """A span as it arrived; ids in hexadecimal, `parent` empty for the first of a trace."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    failed: bool
    attributes: dict[str, Any]


class Collector:
    """Listens while it is a context."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.paths: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.paths.add(self.path)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.spans += _spans(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _spans(request: ExportTraceServiceRequest) -> list[Span]:
    found = []
    for group in request.resource_spans:
        service = next(one.value.string_value for one in group.resource.attributes if one.key == "service.name")
        found += [
            Span(
                service,
                span.name,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                span.status.code == 2,
                {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in span.attributes},
            )
            for scope in group.scope_spans
            for span in scope.spans
        ]
    return found
