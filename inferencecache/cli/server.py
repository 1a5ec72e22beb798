"""`inferencecache server`: the data plane's process, its flags and what they may say together (spec 06 §1.2).

A flag or a combination that nobody can mean ends the process with exit 2 and a sentence, before anything is opened.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from inferencecache.cli.flags import duration
from inferencecache.cli.logs import Encoder, set_up
from inferencecache.cli.traces import OTLP_ENDPOINT, traced_process

if TYPE_CHECKING:
    from inferencecache.server.peers import PeerSettings
    from inferencecache.server.store import StoreSettings

_LISTENERS = "Listeners"
_CALLERS = "Callers"
_PEERS = "Several servers"
_LOGGING = "Logging"

_FORMATS: Final = {"": Encoder.JSON, "json": Encoder.JSON, "text": Encoder.CONSOLE}
_LEVELS: Final = {
    "": logging.INFO,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
DEFAULT_BLOCK_SIZE: Final = 16

T = TypeVar("T")


def server(
    grpc_bind_address: Annotated[str, typer.Option(help="Where gRPC is served.", rich_help_panel=_LISTENERS)] = ":9090",
    http_bind_address: Annotated[
        str,
        typer.Option(help="Where /healthz, /readyz, /metrics and /v1 are served.", rich_help_panel=_LISTENERS),
    ] = ":8080",
    snapshot_bind_address: Annotated[
        str,
        typer.Option(
            help="Where /snapshot, /policy, /templates, /topologies, /probe and /dump are served.",
            rich_help_panel=_LISTENERS,
        ),
    ] = ":8081",
    shutdown_delay: Annotated[
        timedelta,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            show_default="0s",
            help="How long everybody is still served after SIGTERM, for nodes and clients to hear that this Pod ends.",
            rich_help_panel=_LISTENERS,
        ),
    ] = timedelta(0),
    tls_cert_file: Annotated[
        str,
        typer.Option(
            help="Certificate chain of the gRPC port; read anew when the file changes.", rich_help_panel=_LISTENERS
        ),
    ] = "",
    tls_key_file: Annotated[str, typer.Option(help="Key of that certificate.", rich_help_panel=_LISTENERS)] = "",
    allowed_controller_sa: Annotated[
        str,
        typer.Option(
            help="Who may call /snapshot, /policy and /probe: system:serviceaccount:<namespace>:<name>.",
            rich_help_panel=_CALLERS,
        ),
    ] = "",
    insecure_disable_auth: Annotated[
        bool,
        typer.Option(
            "--insecure-disable-auth/--no-insecure-disable-auth",
            help="Let everybody call them; the only way to start without --allowed-controller-sa.",
            rich_help_panel=_CALLERS,
        ),
    ] = False,
    controller_audience: Annotated[
        str, typer.Option(help="Audience of the tokens for /snapshot and /probe.", rich_help_panel=_CALLERS)
    ] = "inferencecache.io/controller",
    policy_audience: Annotated[
        str, typer.Option(help="Audience of the tokens for /policy.", rich_help_panel=_CALLERS)
    ] = "inferencecache.io/policy",
    ingestion_audience: Annotated[
        str,
        typer.Option(
            help="Audience of the ServiceAccount tokens that reports and events must carry, each for the tenant that "
            "is its namespace; empty: everybody may report.",
            rich_help_panel=_CALLERS,
        ),
    ] = "",
    tokenizer_models_dir: Annotated[
        str, typer.Option(help="Folder of tokenizers, for lookups by prompt_text; empty: those find nothing.")
    ] = "",
    engine_block_size: Annotated[
        int, typer.Option(help="Tokens per block of the engines; 0 or less: 16.")
    ] = DEFAULT_BLOCK_SIZE,
    index_store: Annotated[
        str,
        typer.Option(
            help="Redis or Valkey through which several servers hold the same: redis://host:6379/0, rediss:// for TLS; "
            "empty: this server holds what it is told.",
            rich_help_panel=_PEERS,
        ),
    ] = "",
    index_store_password_file: Annotated[
        str,
        typer.Option(help="File with the store's password, read for each connection.", rich_help_panel=_PEERS),
    ] = "",
    warm_from: Annotated[
        str,
        typer.Option(
            help="URL of another server's /dump, to start with what that one holds; for servers without --index-store.",
            rich_help_panel=_PEERS,
        ),
    ] = "",
    warm_token_file: Annotated[
        str, typer.Option(help="File with the bearer token to show there.", rich_help_panel=_PEERS)
    ] = "",
    allowed_peer_sa: Annotated[
        str,
        typer.Option(
            help="Who may call /dump besides the controller: the ServiceAccount of the other servers.",
            rich_help_panel=_PEERS,
        ),
    ] = "",
    probe_t2_store: Annotated[
        str,
        typer.Option(help="Redis that /probe puts a value into and gets it back from; empty: that stage is skipped."),
    ] = "",
    otlp_endpoint: Annotated[
        str,
        typer.Option(help=OTLP_ENDPOINT, rich_help_panel=_LOGGING),
    ] = "",
    log_format: Annotated[str, typer.Option(help="json or text.", rich_help_panel=_LOGGING)] = "json",
    log_level: Annotated[str, typer.Option(help="debug, info, warn or error.", rich_help_panel=_LOGGING)] = "info",
) -> None:
    """Run the server: the prefix index, and the RPCs around it, until SIGTERM."""
    # Here and not above: every other command would pay for what only the server imports.
    from inferencecache.server.run import ServerSettings
    from inferencecache.server.sockets import BindAddress

    def address(flag: str, text: str) -> BindAddress:
        try:
            return BindAddress.parse(text)
        except ValueError as error:
            raise Unusable(f"{flag}: {error}") from error

    try:
        encoder = _choice("--log-format", log_format, _FORMATS)
        level = _choice("--log-level", log_level, _LEVELS)
        check_callers(
            allowed_controller_sa=allowed_controller_sa,
            insecure_disable_auth=insecure_disable_auth,
            controller_audience=controller_audience,
            policy_audience=policy_audience,
            ingestion_audience=ingestion_audience,
        )
        _require_trimmed("--allowed-peer-sa", allowed_peer_sa)
        settings = ServerSettings(
            grpc_bind_address=address("--grpc-bind-address", grpc_bind_address),
            http_bind_address=address("--http-bind-address", http_bind_address),
            snapshot_bind_address=address("--snapshot-bind-address", snapshot_bind_address),
            allowed_controller_sa=allowed_controller_sa,
            controller_audience=controller_audience,
            policy_audience=policy_audience,
            ingestion_audience=ingestion_audience,
            tls=_pair(tls_cert_file, tls_key_file),
            tokenizer_models_dir=tokenizer_models_dir,
            engine_block_size=engine_block_size if engine_block_size > 0 else DEFAULT_BLOCK_SIZE,
            peers=_peers(index_store, index_store_password_file, warm_from, warm_token_file),
            allowed_peer_sa=allowed_peer_sa,
            probe_tier2_store=_store("--probe-t2-store", probe_t2_store),
            shutdown_delay=max(shutdown_delay, timedelta(0)),
        )
    except Unusable as error:
        typer.echo(f"inferencecache server: {error}", err=True)
        raise typer.Exit(2) from None
    set_up(encoder, level=level)

    from inferencecache.cli.loop import new_event_loop
    from inferencecache.server.run import run

    with (
        traced_process("inference-cache-server", otlp_endpoint),
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        raise typer.Exit(runner.run(run(settings)))


class Unusable(Exception):
    """A flag, or flags together, that nobody can mean; the message names them."""


def check_callers(
    *,
    allowed_controller_sa: str,
    insecure_disable_auth: bool,
    controller_audience: str,
    policy_audience: str,
    ingestion_audience: str,
) -> None:
    """Whether the flags about callers go together; the first that does not is named. Raises `Unusable`."""
    if allowed_controller_sa and insecure_disable_auth:
        raise Unusable("--allowed-controller-sa and --insecure-disable-auth are mutually exclusive")
    if not allowed_controller_sa and not insecure_disable_auth:
        raise Unusable(
            "missing --allowed-controller-sa: name the controller's ServiceAccount, or give --insecure-disable-auth"
        )
    _require_trimmed("--allowed-controller-sa", allowed_controller_sa)
    _require_trimmed("--ingestion-audience", ingestion_audience)
    if insecure_disable_auth:
        return
    for flag, audience in (("--controller-audience", controller_audience), ("--policy-audience", policy_audience)):
        if not audience.strip():
            raise Unusable(f"{flag} cannot be empty")
        _require_trimmed(flag, audience)


def _peers(index_store: str, password_file: str, warm_from: str, token_file: str) -> PeerSettings:
    from inferencecache.server.peers import PeerSettings

    if index_store and warm_from:
        raise Unusable("--index-store and --warm-from are mutually exclusive: a shared log is read from its start")
    if password_file and not index_store:
        raise Unusable("--index-store-password-file needs --index-store")
    if token_file and not warm_from:
        raise Unusable("--warm-token-file needs --warm-from")
    if warm_from and not warm_from.startswith(("http://", "https://")):
        raise Unusable(f"--warm-from={warm_from}: needs the URL of a /dump, http://host:8081/dump")
    return PeerSettings(
        index_store=_store("--index-store", index_store, Path(password_file) if password_file else None),
        warm_from=warm_from,
        warm_token_file=Path(token_file) if token_file else None,
    )


def _store(flag: str, url: str, password_file: Path | None = None) -> StoreSettings | None:
    from inferencecache.server.store import parse

    if not url:
        return None
    try:
        return parse(url, password_file)
    except ValueError as error:
        raise Unusable(f"{flag}: {error}") from error


def _require_trimmed(flag: str, value: str) -> None:
    if value != value.strip():
        raise Unusable(f"{flag} has leading/trailing whitespace: {value!r}")


def _choice(flag: str, text: str, choices: dict[str, T]) -> T:
    chosen = choices.get(text.strip().lower())
    if chosen is None:
        raise Unusable(f"{flag}={text}: needs one of {', '.join(filter(None, choices))}")
    return chosen


def _pair(certificate: str, key: str) -> tuple[Path, Path] | None:
    if bool(certificate) != bool(key):
        raise Unusable("--tls-cert-file and --tls-key-file must be given together")
    return (Path(certificate), Path(key)) if certificate else None
