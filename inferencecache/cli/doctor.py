"""`inferencecache doctor`: what is wrong with an installation (spec 09 §1)."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from inferencecache.cli.diagnostics import Context, Kubeconfig, end, in_cluster
from inferencecache.cli.flags import duration
from inferencecache.doctor.report import Output

_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
_SERVER = "Cache server"


def doctor(
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "-n",
            help="Look at the objects of this namespace only. The server is looked for everywhere all the same.",
            show_default="all namespaces",
        ),
    ] = "",
    output: Annotated[Output, typer.Option("--output", "-o", help="human, json or table.")] = Output.HUMAN,
    no_color: Annotated[bool, typer.Option("--no-color/--color", help="No colours, on a terminal either.")] = False,
    config_only: Annotated[
        bool, typer.Option("--config-only/--no-config-only", help="Look at objects only: ask no server, dial no store.")
    ] = False,
    timeout: Annotated[
        timedelta,
        typer.Option(
            parser=duration, metavar="DURATION", show_default="30s", help="Of everything together, and of each request."
        ),
    ] = timedelta(seconds=30),
    server_endpoint: Annotated[
        str,
        typer.Option(
            help="The server as host or host:grpcPort; its HTTP port is 8081.",
            show_default="found by its Service",
            rich_help_panel=_SERVER,
        ),
    ] = "",
    snapshot_token_file: Annotated[
        str, typer.Option(help="File with the bearer token for /snapshot; no file, no token.", rich_help_panel=_SERVER)
    ] = _TOKEN,
    server_tls: Annotated[
        bool, typer.Option("--server-tls/--no-server-tls", help="Speak TLS to the gRPC port.", rich_help_panel=_SERVER)
    ] = False,
    server_ca_file: Annotated[
        str,
        typer.Option(
            help="CAs that the server's certificate is checked against; empty: the system's. Implies --server-tls.",
            rich_help_panel=_SERVER,
        ),
    ] = "",
) -> None:
    """Look at an installation without changing anything, and report what is wrong. Exit 0 fine, 1 warnings, 2 failures,
    3 could not run."""
    # The gRPC library would tell on stderr what is in the report already; it asks for this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from inferencecache.cli.install import webhook_configurations
    from inferencecache.cli.settings import SettingsError, read_certificates
    from inferencecache.doctor.checks import examine
    from inferencecache.doctor.installation import shipped
    from inferencecache.doctor.observe import Scope, observe
    from inferencecache.doctor.report import rendered
    from inferencecache.doctor.server import EndpointError, Tls, parse_address, read_token

    if timeout <= timedelta(0):
        end("--timeout must be more than zero")
    try:
        address = parse_address(server_endpoint) if server_endpoint else None
    except EndpointError as error:
        end(f"--server-endpoint: {error}")
    try:
        ca = read_certificates("--server-ca-file", server_ca_file)
    except SettingsError as error:
        end(str(error))
    token = read_token(Path(snapshot_token_file))
    if token.problem:
        typer.echo(f"warning: --snapshot-token-file {token.problem}; /snapshot is asked without a token", err=True)
    scope = Scope(
        namespace=namespace,
        config_only=config_only,
        address=address,
        token=token,
        tls=Tls(ca) if server_tls or ca else None,
        webhooks=shipped(webhook_configurations()),
        seconds=timeout.total_seconds(),
    )
    seen = in_cluster(kubeconfig, context, lambda client: observe(client, scope))
    if seen.server is not None and seen.server.discovery:
        typer.echo(f"warning: the cache server was not found: {seen.server.discovery}", err=True)
    report = examine(seen)
    colour = output is Output.HUMAN and sys.stdout.isatty() and not no_color
    sys.stdout.write(rendered(report, output, colour=colour))
    raise typer.Exit(report.exit_code)
