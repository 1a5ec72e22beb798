"""`inferencecache explain`: why one engine Pod is wired to its CacheBackend, or is not."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

import typer

from inferencecache.cli.diagnostics import Context, Kubeconfig, end, in_cluster
from inferencecache.cli.flags import duration


class Subject(StrEnum):
    """What can be explained."""

    POD = "pod"


class Form(StrEnum):
    """What `-o` accepts."""

    HUMAN = "human"
    JSON = "json"


def explain(
    subject: Annotated[Subject, typer.Argument(help="What to explain: pod.", metavar="pod")],
    name: Annotated[str, typer.Argument(help="Its name.", metavar="NAME")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    output: Annotated[Form, typer.Option("--output", "-o", help="human or json.")] = Form.HUMAN,
    timeout: Annotated[
        timedelta, typer.Option(parser=duration, metavar="DURATION", show_default="30s", help="Of everything together.")
    ] = timedelta(seconds=30),
    kvevent_subscriber_image: Annotated[
        str,
        typer.Option(
            help="As the controller's flag of that name.", show_default="off the Deployment of the controller"
        ),
    ] = "",
) -> None:
    """Say which CacheBackend a Pod belongs to, whether it was wired, if not why not, and what has changed since.
    Exit 0 explained, 3 could not run."""
    from inferencecache.adapters.registry import Settings, load_adapters
    from inferencecache.doctor.explain.decide import explain as explained
    from inferencecache.doctor.explain.observe import Unexplained, observe
    from inferencecache.doctor.explain.show import as_json, as_text
    from inferencecache.kube.resource import Key
    from inferencecache.webhooks.pods import UnreadablePod

    try:
        key = Key(namespace, name.removeprefix(f"{subject}/"))
        seen = in_cluster(kubeconfig, context, lambda client: observe(client, key, timeout.total_seconds()))
        if kvevent_subscriber_image:
            settings = replace(seen.settings or Settings(), kvevent_subscriber_image=kvevent_subscriber_image)
            seen = replace(seen, settings=settings)
        told = explained(seen, load_adapters()[0])
    except (Unexplained, UnreadablePod) as error:
        end(str(error))
    sys.stdout.write(as_json(told) if output is Form.JSON else as_text(told))
