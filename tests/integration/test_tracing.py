"""Traces: off by default and then for nothing; where they are on, a pass and a lookup are found at the collector."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator

import aiohttp
import grpc
import pytest
from typer.testing import CliRunner

from inferencecache import tracing
from inferencecache.cli.main import app
from inferencecache.kube.client import Client
from inferencecache.kube.controller import Controller
from inferencecache.kube.errors import NotFound
from inferencecache.kube.kinds import ConfigMap
from inferencecache.kube.resource import Key
from tests.integration.collector import Collector
from tests.integration.server.running import Stub, lookup
from tests.integration.server.test_process import LOCAL, process

A = b"\x01" * 8


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


async def test_a_lookup_is_part_of_the_trace_that_the_gateway_names(collector: Collector) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    async with process("--insecure-disable-auth", f"--otlp-endpoint={collector.endpoint}", *LOCAL) as server:
        started = await server.line("startup")
        async with grpc.aio.insecure_channel(started["grpc_addr"]) as channel:
            call = Stub(channel).method("LookupRoute")
            await call(lookup([A]), metadata=(("traceparent", f"00-{trace}-{parent}-01"),), timeout=60)
            await call(lookup([A], model_id="alone"), timeout=60)
        url = f"http://{started['http_addr']}/v1/lookup-route"
        headers = {"Traceparent": f"00-{trace}-{parent}-01"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json={"modelId": "h"}, headers=headers) as reply,
        ):
            assert reply.status == 200
        server.process.send_signal(signal.SIGTERM)
        assert await server.end() == 0
    assert collector.paths == {"/v1/traces"}
    within, alone, http = collector.named("LookupRoute")
    for span in (within, http):
        assert (span.service, span.trace, span.parent) == ("inference-cache-server", trace, parent)
    assert http.attributes["inferencecache.model"] == "h"
    assert (alone.parent, alone.attributes["inferencecache.model"]) == ("", "alone")
    assert within.attributes["inferencecache.reason_code"] == "NO_HINT"


async def test_a_pass_and_its_requests_are_one_trace_and_a_failed_one_says_so(
    client: Client, namespace: str, collector: Collector
) -> None:
    done = asyncio.Event()

    class Reconciler:
        async def reconcile(self, key: Key) -> None:
            done.set()
            await client.get(ConfigMap, key)

    tracing.start("test", tracing.otlp_exporter(collector.endpoint))
    try:
        controller = Controller("looker", Reconciler(), workers=1)
        running = asyncio.create_task(controller.run())
        controller.enqueue(Key(namespace, "missing"))
        await done.wait()
        with pytest.raises(NotFound):
            await client.get(ConfigMap, Key(namespace, "beside"))  # of no pass, so of no trace
        controller.stop()
        await running
    finally:
        await asyncio.to_thread(tracing.stop)
    whole, *_ = collector.named("reconcile looker")
    assert whole.failed
    assert whole.attributes == {"k8s.namespace.name": namespace, "k8s.object.name": "missing"}
    requests = [span for span in collector.named("kubernetes GET") if span.trace == whole.trace]
    assert [span.parent for span in requests] == [whole.id]
    assert not [span for span in collector.spans if str(span.attributes.get("url.path", "")).endswith("beside")]


@pytest.mark.parametrize("command", ["server", "controller"])
def test_an_endpoint_that_is_none_is_named(command: str) -> None:
    needed = ["--insecure-disable-auth"] if command == "server" else []
    result = CliRunner().invoke(app, [command, *needed, "--otlp-endpoint=collector:4318"])
    assert result.exit_code == 1
    assert "--otlp-endpoint=collector:4318" in result.output


def test_the_sdk_is_not_imported_where_it_is_off() -> None:
    code = (
        "import sys, inferencecache.server.run, inferencecache.cli.operator; "
        "sys.exit(any(name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=200, check=False).returncode == 0
