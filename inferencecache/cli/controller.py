"""`inferencecache controller`: the operator's process, its flags and how its parts are wired together.

Flags are spec 05 §1.1, with the webhook listener's and the leader election's namespace added. A value nobody can
start with ends the process with exit 1 and a sentence; an unknown flag with exit 2.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from inferencecache.adapters import DEFAULT_POLICY_SERVER
from inferencecache.cli.flags import duration
from inferencecache.cli.logs import Encoder, LogSettings, TimeEncoding, configure
from inferencecache.cli.settings import (
    BACKEND_IMAGE,
    CERT_DIR,
    POOL_NAMESPACE,
    REFRESH_INTERVAL,
    SERVER,
    ControllerSettings,
    SettingsError,
    read_certificates,
)
from inferencecache.cli.traces import OTLP_ENDPOINT, traced_process

_LISTENERS = "Listeners"
_SERVER = "Cache server"
_POOLS = "KV cache pools"
_LOGGING = "Logging"


def controller(
    kubeconfig: Annotated[
        str, typer.Option(help="How to reach the API server. Else $KUBECONFIG, in-cluster, then ~/.kube/config.")
    ] = "",
    metrics_bind_address: Annotated[
        str, typer.Option(help="Where /metrics is served; 0 switches it off.", rich_help_panel=_LISTENERS)
    ] = ":8080",
    metrics_secure: Annotated[
        bool,
        typer.Option(
            "--metrics-secure/--no-metrics-secure",
            help="Serve metrics over HTTPS with a self-signed certificate. Adds no authentication.",
            rich_help_panel=_LISTENERS,
        ),
    ] = False,
    enable_http2: Annotated[
        bool,
        typer.Option(
            "--enable-http2/--no-enable-http2",
            help="Accepted for compatibility. Every listener speaks HTTP/1.1, with or without it.",
            rich_help_panel=_LISTENERS,
        ),
    ] = False,
    health_probe_bind_address: Annotated[
        str,
        typer.Option(help="Where /healthz and /readyz are served; 0 switches them off.", rich_help_panel=_LISTENERS),
    ] = ":8081",
    webhook_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the admission webhooks.", rich_help_panel=_LISTENERS)
    ] = 9443,
    webhook_cert_dir: Annotated[
        str,
        typer.Option(
            help="Folder with tls.crt and tls.key of the webhooks. A pair found there wins over a self-made one.",
            show_default="k8s-webhook-server/serving-certs below the temporary directory",
            rich_help_panel=_LISTENERS,
        ),
    ] = "",
    webhook_shutdown_delay: Annotated[
        timedelta,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            show_default="0s",
            help="How long admissions are still answered after SIGTERM, for nodes to hear that this Pod ends.",
            rich_help_panel=_LISTENERS,
        ),
    ] = timedelta(0),
    leader_elect: Annotated[
        bool,
        typer.Option("--leader-elect/--no-leader-elect", help="Reconcile only while holding the Lease."),
    ] = False,
    leader_election_namespace: Annotated[
        str, typer.Option(help="Namespace of the Lease outside a cluster. Inside, the Pod's own namespace is used.")
    ] = "",
    kvevent_subscriber_image: Annotated[
        str, typer.Option(help="Image of the KV-event sidecar; empty: no sidecar is ever added.")
    ] = "",
    kvevent_replay_endpoint: Annotated[
        str,
        typer.Option(
            help="Where injected sidecars ask their engine for events that they missed, such as tcp://127.0.0.1:5558, "
            "for engines that have a replay_endpoint; empty: nowhere."
        ),
    ] = "",
    policy_server_grpc_address: Annotated[
        str, typer.Option(help="Address the injected sidecar dials.")
    ] = DEFAULT_POLICY_SERVER,
    policy_server_tls: Annotated[
        bool, typer.Option("--policy-server-tls/--no-policy-server-tls", help="Injected sidecars speak TLS to it.")
    ] = False,
    policy_server_ca_file: Annotated[
        str,
        typer.Option(
            help="CAs that injected sidecars check its certificate against, read at the start; empty: those of their "
            "image. Implies --policy-server-tls."
        ),
    ] = "",
    policy_server_audience: Annotated[
        str,
        typer.Option(
            help="Audience of the ServiceAccount token that injected sidecars show it, its --ingestion-audience; "
            "empty: none."
        ),
    ] = "",
    server_snapshot_url: Annotated[
        str, typer.Option(help="Where the cache server's snapshot is read.", rich_help_panel=_SERVER)
    ] = f"{SERVER}/snapshot",
    server_policy_url: Annotated[
        str, typer.Option(help="Where the cache server takes policies; must not be empty.", rich_help_panel=_SERVER)
    ] = f"{SERVER}/policy",
    server_probe_url: Annotated[
        str,
        typer.Option(help="Where the cache server tests itself; empty: no functional probe.", rich_help_panel=_SERVER),
    ] = f"{SERVER}/probe",
    cacheindex_refresh_interval: Annotated[
        timedelta,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            show_default="30s",
            help="Time between two reads of the snapshot; 0 or less: 30s.",
            rich_help_panel=_SERVER,
        ),
    ] = REFRESH_INTERVAL,
    cachepolicy_push_interval: Annotated[
        timedelta,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            show_default="30s",
            help="Time between two pushes of all policies; 0 or less: 30s.",
            rich_help_panel=_SERVER,
        ),
    ] = REFRESH_INTERVAL,
    enable_cache_backends: Annotated[
        bool,
        typer.Option(
            "--enable-cache-backends/--no-enable-cache-backends",
            help="Run the half of group inferencecache.io: caches of engines, and the prefix index.",
        ),
    ] = True,
    enable_kv_cache_pools: Annotated[
        bool,
        typer.Option(
            "--enable-kv-cache-pools/--no-enable-kv-cache-pools",
            help="Run the half of group worker.gpustack.ai: stores, pools and their quotas.",
            rich_help_panel=_POOLS,
        ),
    ] = True,
    kv_cache_namespace: Annotated[
        str,
        typer.Option(
            help="Where stores run, with their Services and their quota policies.",
            show_default=f"the controller's own, {POOL_NAMESPACE} outside a cluster",
            rich_help_panel=_POOLS,
        ),
    ] = "",
    kv_cache_backend_image: Annotated[
        str,
        typer.Option(
            help="Image of a store's leader and members where the KVCacheBackend names none.",
            show_default=f"$GPUSTACK_KV_CACHE_BACKEND_IMAGE, else {BACKEND_IMAGE}",
            rich_help_panel=_POOLS,
        ),
    ] = "",
    kv_cache_dtype_owned: Annotated[
        bool | None,
        typer.Option(
            "--kv-cache-dtype-owned/--no-kv-cache-dtype-owned",
            help="Whether engines get the dtype of their KVCachePoolBinding, and may name none themselves.",
            show_default="$GPUSTACK_MODEL_DEPLOYMENT_KV_CACHE_DTYPE_OWNED, else true",
            rich_help_panel=_POOLS,
        ),
    ] = None,
    otlp_endpoint: Annotated[str, typer.Option(help=OTLP_ENDPOINT, rich_help_panel=_LOGGING)] = "",
    zap_devel: Annotated[
        bool,
        typer.Option(
            "--zap-devel/--no-zap-devel",
            help="Readable lines at level debug, for development.",
            rich_help_panel=_LOGGING,
        ),
    ] = False,
    zap_encoder: Annotated[
        Encoder | None,
        typer.Option(help="json or console.", show_default="json, console with --zap-devel", rich_help_panel=_LOGGING),
    ] = None,
    zap_log_level: Annotated[
        str,
        typer.Option(
            help="debug, info, error, panic, or a verbosity above 0, which means debug.",
            show_default="info, debug with --zap-devel",
            rich_help_panel=_LOGGING,
        ),
    ] = "",
    zap_stacktrace_level: Annotated[
        str,
        typer.Option(
            help="The level from which stack traces are printed: info, error or panic.",
            show_default="error",
            rich_help_panel=_LOGGING,
        ),
    ] = "",
    zap_time_encoding: Annotated[
        TimeEncoding, typer.Option(help="How times are written.", show_default="rfc3339", rich_help_panel=_LOGGING)
    ] = TimeEncoding.RFC3339,
) -> None:
    """Run the operator: reconcilers and admission webhooks, until SIGTERM."""
    try:
        logs = LogSettings(
            devel=zap_devel,
            encoder=zap_encoder,
            level=zap_log_level,
            stacktrace_level=zap_stacktrace_level,
            time_encoding=zap_time_encoding,
        )
        settings = ControllerSettings(
            kubeconfig=kubeconfig,
            metrics_bind_address=metrics_bind_address,
            metrics_secure=metrics_secure,
            health_probe_bind_address=health_probe_bind_address,
            webhook_port=webhook_port,
            webhook_cert_dir=Path(webhook_cert_dir) if webhook_cert_dir else CERT_DIR,
            webhook_shutdown_delay=max(webhook_shutdown_delay, timedelta(0)),
            leader_elect=leader_elect,
            leader_election_namespace=leader_election_namespace,
            kvevent_subscriber_image=kvevent_subscriber_image,
            kvevent_replay_endpoint=kvevent_replay_endpoint,
            policy_server_grpc_address=policy_server_grpc_address,
            policy_server_tls=policy_server_tls or bool(policy_server_ca_file),
            policy_server_ca=read_certificates("--policy-server-ca-file", policy_server_ca_file),
            policy_server_audience=policy_server_audience,
            server_snapshot_url=server_snapshot_url,
            server_policy_url=server_policy_url,
            server_probe_url=server_probe_url,
            cacheindex_refresh_interval=cacheindex_refresh_interval,
            cachepolicy_push_interval=cachepolicy_push_interval,
            enable_cache_backends=enable_cache_backends,
            enable_kv_cache_pools=enable_kv_cache_pools,
            kv_cache_namespace=kv_cache_namespace,
            kv_cache_backend_image=kv_cache_backend_image,
            kv_cache_dtype_owned=kv_cache_dtype_owned,
        )
    except (SettingsError, ValueError) as error:
        typer.echo(f"inferencecache controller: {error}", err=True)
        raise typer.Exit(1) from None
    configure(logs)
    from inferencecache.cli.operator import run

    with traced_process("inference-cache-controller", otlp_endpoint):
        raise typer.Exit(run(settings))
