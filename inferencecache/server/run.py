"""One server process from its settings to its end (spec 06 §1.3).

Everything that can fail at the start fails before anything is served: certificates, the way to the API server, then
all ports are bound. Then the server is ready. On SIGTERM or SIGINT it is not ready any more, and tells all callers to
go elsewhere. It goes on serving them for the shutdown delay, as nodes that have not heard of its end yet still send
some here. Then it stops taking requests, lets those that run end, and is gone within five seconds, open streams or not.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import time
import uuid
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import Counter

from inferencecache import __version__, build
from inferencecache.server import web
from inferencecache.server.admin import Guards, admin_app
from inferencecache.server.auth import Authenticator, Reviewer, any_service_account
from inferencecache.server.http import public_app
from inferencecache.server.index import PrefixIndex
from inferencecache.server.ingestion import Ingestion
from inferencecache.server.inputs import Tokenizer
from inferencecache.server.metrics import ServerMetrics
from inferencecache.server.peers import PeerSettings, Readiness, joined
from inferencecache.server.policy import PolicyStore
from inferencecache.server.rpc import listener as rpc
from inferencecache.server.rpc.service import methods_of
from inferencecache.server.services import Services
from inferencecache.server.sockets import BindAddress, bind
from inferencecache.server.store import StoreSettings
from inferencecache.server.tier2 import RedisTier2Prober
from inferencecache.server.tls import ServingPair, TlsError

SWEEP_SECONDS: Final = 60.0
GRPC_GRACE_SECONDS: Final = 3.0
"""What open calls have to end in. The HTTP ports stop meanwhile; with the second that the last cancellations may take,
the process is gone within five."""
INGESTION_MEMORY_SECONDS: Final = 300.0
"""Engines are many, and each reports all the time: a review every half minute for each would be a load of its own."""
INGESTION_MEMORY_SIZE: Final = 10_000

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What a server process was told; checked where it is read."""

    grpc_bind_address: BindAddress
    http_bind_address: BindAddress
    snapshot_bind_address: BindAddress
    allowed_controller_sa: str = ""
    """Empty: the controller's endpoints are open to everybody."""
    controller_audience: str = "inferencecache.io/controller"
    policy_audience: str = "inferencecache.io/policy"
    ingestion_audience: str = ""
    """Empty: everybody may report."""
    tls: tuple[Path, Path] | None = None
    tokenizer_models_dir: str = ""
    engine_block_size: int = 16
    peers: PeerSettings = field(default_factory=PeerSettings)
    allowed_peer_sa: str = ""
    """Who may call `/dump` besides the controller."""
    probe_tier2_store: StoreSettings | None = None
    """The store that the probe's third stage goes through; None skips that stage."""
    shutdown_delay: timedelta = timedelta(0)
    """How long everybody is still served after the signal to stop."""


class StartError(Exception):
    """The server cannot start; `event` is the log line's name."""

    def __init__(self, event: str, message: str) -> None:
        super().__init__(message)
        self.event = event


async def run(settings: ServerSettings) -> int:
    """Serve until SIGINT or SIGTERM; the exit status of the process."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    # What is loaded by now stays: no full collection need visit it again.
    gc.freeze()
    try:
        await serve(settings, stop)
    except StartError as error:
        _log.error(error.event, error=str(error))
        return 1
    except Exception:
        _log.exception("serve_error")
        return 1
    return 0


async def serve(settings: ServerSettings, stop: asyncio.Event, listening: asyncio.Future[Ports] | None = None) -> None:
    """Serve until `stop` is set. `listening` is told the ports once everything is served.

    Raises:
        StartError: something that is needed is not there.
    """
    metrics = ServerMetrics()
    policies = PolicyStore()
    index = PrefixIndex(policies, on_eviction=metrics.evicted)
    services = Services(
        index=index,
        policies=policies,
        metrics=metrics,
        tokenizer=_tokenizer(settings.tokenizer_models_dir),
        tier2=RedisTier2Prober(settings.probe_tier2_store) if settings.probe_tier2_store else None,
        block_size=settings.engine_block_size,
    )
    instance = uuid.uuid4().hex
    async with AsyncExitStack() as stack:
        reviewer = await _reviewer(settings, stack)
        pair = _serving_pair(settings)
        sockets = _bind(settings, stack)
        ready = asyncio.Event()
        ingestion = _ingestion(settings, reviewer, metrics)
        standing = await stack.enter_async_context(
            joined(settings.peers, services, policies, metrics, instance=instance)
        )
        readiness = Readiness(ready.is_set, standing)
        admin = await stack.enter_async_context(
            web.serving(
                admin_app(services, _guards(settings, reviewer, metrics), readiness, instance), sockets.snapshot
            )
        )
        public = await stack.enter_async_context(web.serving(public_app(services, readiness, ingestion), sockets.http))
        grpc = await stack.enter_async_context(
            rpc.serving(
                methods_of(services, ingestion), sockets.grpc, instance=instance, tls=pair.context if pair else None
            )
        )
        await stack.enter_async_context(_tidying(services))
        metrics.grpc_tls_enabled.set(1 if pair else 0)
        metrics.up.set(1)
        ready.set()
        ports = sockets.ports()
        _announce(settings, ports, tls=pair is not None)
        if listening is not None:
            listening.set_result(ports)
        await stop.wait()
        _log.info("graceful_shutdown_started")
        ready.clear()
        public.leave()
        admin.leave()
        await grpc.leave(settings.shutdown_delay.total_seconds())
        metrics.up.set(0)
        public.stop()
        admin.stop()
        await grpc.drain(GRPC_GRACE_SECONDS)
    _log.info("graceful_shutdown_done")


@dataclass(frozen=True)
class Ports:
    """The ports that were taken."""

    grpc: int
    http: int
    snapshot: int


@dataclass(frozen=True)
class _Sockets:
    grpc: socket.socket
    http: socket.socket
    snapshot: socket.socket

    def ports(self) -> Ports:
        return Ports(*(each.getsockname()[1] for each in (self.grpc, self.http, self.snapshot)))


def _tokenizer(models_dir: str) -> Tokenizer | None:
    if not models_dir:
        return None
    try:
        from inferencecache.server.tokenizer import load
    except ImportError as error:
        _log.warning("tokenizer_models_dir_ignored", tokenizer_models_dir=models_dir, error=str(error))
        return None
    return load(Path(models_dir))


def _bind(settings: ServerSettings, stack: AsyncExitStack) -> _Sockets:
    addresses = (settings.grpc_bind_address, settings.http_bind_address, settings.snapshot_bind_address)
    try:
        return _Sockets(*(stack.enter_context(closing(bind(address))) for address in addresses))
    except OSError as error:
        raise StartError("serve_error", str(error)) from error


def _serving_pair(settings: ServerSettings) -> ServingPair | None:
    if settings.tls is None:
        return None
    try:
        return ServingPair(*settings.tls)
    except TlsError as error:
        raise StartError("grpc_tls_load", str(error)) from error


async def _reviewer(settings: ServerSettings, stack: AsyncExitStack) -> Reviewer | None:
    """The way to the API server, where somebody's identity is to be reviewed."""
    if not settings.allowed_controller_sa and not settings.ingestion_audience:
        return None
    from inferencecache.kube.client import Client
    from inferencecache.kube.connection import ConnectionConfigError, connect
    from inferencecache.server.tokenreview import TokenReviews

    try:
        connection = await stack.enter_async_context(await connect())
    except ConnectionConfigError as error:
        raise StartError("in_cluster_config", str(error)) from error
    except Exception as error:
        raise StartError("kube_client", str(error)) from error
    return TokenReviews(Client(connection, field_manager="inferencecache-server"))


def _guards(settings: ServerSettings, reviewer: Reviewer | None, metrics: ServerMetrics) -> Guards:
    expected = settings.allowed_controller_sa
    peers = {expected, settings.allowed_peer_sa} - {""}
    if not expected:
        _log.warning("controller_auth_disabled")
        return Guards()
    assert reviewer is not None
    _log.info(
        "controller_auth_enabled",
        expected_sa=expected,
        controller_audience=settings.controller_audience,
        policy_audience=settings.policy_audience,
    )

    def guard(audience: str, results: Counter, allowed: Collection[str] = (expected,)) -> Authenticator:
        return Authenticator(
            reviewer,
            audience=audience,
            allowed=allowed.__contains__,
            count=lambda result: results.labels(result).inc(),
            clock=time.monotonic,
        )

    return Guards(
        snapshot=guard(settings.controller_audience, metrics.snapshot_auth),
        policy=guard(settings.policy_audience, metrics.policy_auth),
        probe=guard(settings.controller_audience, metrics.probe_auth),
        dump=guard(settings.controller_audience, metrics.dump_auth, peers),
    )


def _ingestion(settings: ServerSettings, reviewer: Reviewer | None, metrics: ServerMetrics) -> Ingestion:
    if not settings.ingestion_audience:
        return Ingestion()
    assert reviewer is not None
    return Ingestion(
        Authenticator(
            reviewer,
            audience=settings.ingestion_audience,
            allowed=any_service_account,
            count=lambda result: metrics.ingestion_auth.labels(result).inc(),
            clock=time.monotonic,
            memory_seconds=INGESTION_MEMORY_SECONDS,
            memory_size=INGESTION_MEMORY_SIZE,
        )
    )


def _announce(settings: ServerSettings, ports: Ports, *, tls: bool) -> None:
    _log.info(
        "startup",
        version=__version__,
        commit=build.commit(),
        grpc_addr=str(settings.grpc_bind_address._replace(port=ports.grpc)),
        grpc_tls=tls,
        http_addr=str(settings.http_bind_address._replace(port=ports.http)),
        snapshot_addr=str(settings.snapshot_bind_address._replace(port=ports.snapshot)),
    )


@asynccontextmanager
async def _tidying(services: Services) -> AsyncIterator[None]:
    """Remove expired holds every minute, and do what the index puts off."""

    async def sweep() -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await services.sweep()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(sweep(), name="sweep"), group.create_task(services.settle(), name="settle")]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
