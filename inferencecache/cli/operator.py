"""The operator's composition root: from settings to a manager that runs reconcilers and webhooks.

Reconcilers and webhooks share one pair of adapter registries, so whatever admission accepts can be rendered and wired,
and one informer per kind, so a Pod is admitted from what the reconcilers already hold.
"""

from __future__ import annotations

import asyncio

import structlog
from fastapi import FastAPI

from inferencecache import __version__
from inferencecache.adapters.registry import Settings, load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.cli.install import (
    CERTIFICATE_SECRET,
    MUTATING_CONFIGURATION,
    VALIDATING_CONFIGURATION,
    WEBHOOK_SERVICE,
)
from inferencecache.cli.loop import new_event_loop
from inferencecache.cli.settings import ControllerSettings, SettingsError
from inferencecache.controllers import CacheServer, kvcachebackend, kvcachepool, register
from inferencecache.controllers.mooncake.admin import MooncakeClients
from inferencecache.kube.certificates import SelfMadeCertificates, ServingCertificate, read_files, watch_files
from inferencecache.kube.client import Client
from inferencecache.kube.connection import connect
from inferencecache.kube.errors import KubeError
from inferencecache.kube.leader import LeaderElection
from inferencecache.kube.manager import Manager, Options
from inferencecache.kube.resource import Key
from inferencecache.webhooks.app import create_app
from inferencecache.webhooks.handlers import Handlers
from inferencecache.webhooks.kvcache import LivePools, PoolHandlers
from inferencecache.webhooks.kvcache_injection.handlers import LiveChains, PoolInjection
from inferencecache.webhooks.selection import BackendReader, InformedBackends, LiveSiblings, NoBackends
from inferencecache.webhooks.server import WebhookServer
from inferencecache.webhooks.unwired import UnwiredMemo

FIELD_MANAGER = "inferencecache-controller"
LEASE = "inference-cache-controller-leader-lock"

_log = structlog.get_logger(__name__)


def run(settings: ControllerSettings) -> int:
    """Run the operator until SIGTERM; the exit status of the process."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(settings))


async def _run(settings: ControllerSettings) -> int:
    _log.info("starting", version=__version__)
    try:
        async with await connect(settings.kubeconfig or None) as connection:
            manager = build(settings, Client(connection, field_manager=FIELD_MANAGER))
            await manager.run()
    except (SettingsError, ValueError) as error:
        _log.error("cannot start", error=str(error))
        return 1
    except (KubeError, OSError) as error:
        _log.error("ended", error=str(error), kind=type(error).__name__)
        return 1
    except Exception:
        _log.exception("ended by a bug")
        return 1
    return 0


def build(settings: ControllerSettings, client: Client) -> Manager:
    """A manager with everything the operator consists of, not yet running. Raises `SettingsError`, `ValueError`."""
    namespace = settings.namespace()
    manager = Manager(client, options=_options(settings, namespace))
    registries = load_adapters()
    unwired = UnwiredMemo()
    backends: BackendReader = NoBackends()
    if settings.enable_cache_backends:
        register(manager, registries=registries, notes=unwired, server=_server(settings))
        informer = manager.cache.informer(CacheBackend)
        backends = InformedBackends(informer, client)
        informer.on_change(backends.changed)
    handlers = Handlers(
        runtimes=registries[0],
        settings=_sidecars(settings),
        backends=backends,
        siblings=LiveSiblings(client),
        unwired=unwired,
    )
    if settings.enable_kv_cache_pools:
        _pools(manager, settings)
    # Objects of a half that is off are judged all the same: they must stay editable, and their finalizers removable.
    # So are Pods that ask for a pool, as nobody else answers them and without an answer they are refused.
    pools = PoolHandlers(LivePools(client), dtype_owned=settings.dtype_owned)
    pods = PoolInjection(LiveChains(client), dtype_owned=settings.dtype_owned)
    others = {**pools.objects, **pods.paths}
    app = create_app(handlers, others=others, wires_pods=settings.enable_cache_backends)
    _serve(manager, app, settings, namespace)
    return manager


def _pools(manager: Manager, settings: ControllerSettings) -> None:
    """Add the reconcilers of stores and pools, and the connections to masters that they share."""
    masters, namespace = MooncakeClients(), settings.pool_namespace()
    manager.add(masters.run, name="mooncake-clients")
    kvcachebackend.register(manager, namespace=namespace, image=settings.backend_image, masters=masters)
    kvcachepool.register(manager, namespace=namespace, masters=masters)


def _options(settings: ControllerSettings, namespace: str) -> Options:
    election = None
    if settings.leader_elect:
        if not namespace:
            raise SettingsError(
                "--leader-elect outside a cluster needs the namespace of the Lease: give --leader-election-namespace"
            )
        election = LeaderElection(namespace=namespace, name=LEASE)
    return Options(
        metrics_address=settings.metrics_bind_address,
        metrics_secure=settings.metrics_secure,
        health_address=settings.health_probe_bind_address,
        leader_election=election,
    )


def _sidecars(settings: ControllerSettings) -> Settings:
    return Settings(
        kvevent_subscriber_image=settings.kvevent_subscriber_image,
        policy_server_grpc_address=settings.policy_server_grpc_address,
        policy_server_tls=settings.policy_server_tls,
        policy_server_ca=settings.policy_server_ca,
        policy_server_audience=settings.policy_server_audience,
        kvevent_replay_endpoint=settings.kvevent_replay_endpoint,
    )


def _server(settings: ControllerSettings) -> CacheServer:
    return CacheServer(
        snapshot_url=settings.server_snapshot_url,
        policy_url=settings.server_policy_url,
        probe_url=settings.server_probe_url,
        refresh_interval=settings.cacheindex_refresh_interval,
        push_interval=settings.cachepolicy_push_interval,
    )


def _serve(manager: Manager, app: FastAPI, settings: ControllerSettings, namespace: str) -> None:
    """Add the webhook listener and whatever keeps its certificate."""
    certificate = ServingCertificate()
    server = WebhookServer(
        app,
        port=settings.webhook_port,
        tls=certificate.context,
        shutdown_delay=settings.webhook_shutdown_delay,
    )

    async def serve() -> None:
        await certificate.wait_loaded()
        await server.run()

    async def follow_files() -> None:
        await watch_files(settings.webhook_cert_dir, certificate)

    if read_files(settings.webhook_cert_dir) is not None:
        manager.add(follow_files, name="webhook-certificate-files")
    elif namespace:
        # Loopback names let an API server on the same machine call this process, as the quickstart does.
        service = f"{WEBHOOK_SERVICE}.{namespace}.svc"
        SelfMadeCertificates(
            manager.unguarded_client,
            certificate,
            secret=Key(namespace, CERTIFICATE_SECRET),
            hosts=[service, f"{service}.cluster.local", "localhost", "127.0.0.1"],
            mutating=[MUTATING_CONFIGURATION],
            validating=[VALIDATING_CONFIGURATION],
        ).install(manager)
    else:
        raise SettingsError(
            f"there is no tls.crt and tls.key in {settings.webhook_cert_dir}, and outside a cluster no namespace to "
            "keep self-made certificates in: give --webhook-cert-dir or --leader-election-namespace"
        )
    manager.add(serve, name="webhook-server")
    manager.add_ready_check("webhook-certificate", certificate.complaint)
    manager.add_ready_check(
        "webhook-server", lambda: None if server.started.is_set() else "the webhook listener is not open yet"
    )
