"""The quickstart's tour: what it applies, what it waits for, and how it shows it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.constants import READY
from inferencecache.cli.engine_trial import BLOCK_SIZE, Engine, engine, post
from inferencecache.cli.output import to_yaml, unified_diff
from inferencecache.cli.processes import ProcessError
from inferencecache.cli.trial import Trial, TrialError, trial
from inferencecache.controllers.cachebackend.reasons import ROLLOUT_IN_PROGRESS
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane, ControlPlaneError, find_binaries
from inferencecache.kube.errors import KubeError, NotFound
from inferencecache.kube.kinds import Deployment, Pod, Service
from inferencecache.kube.resource import Key, Manifest, path_of

_NAMESPACE: Final = "quickstart"
_UNMANAGED: Final = "quickstart-before"
_STEP_SECONDS: Final = 30.0
_FILLED_IN: Final = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "namespace")

_MODEL: Final = "Qwen/Qwen3-0.6B"
_PROMPT: Final = (
    "You are a patient assistant who explains Kubernetes to people who train language models. "
    "Answer in three sentences. What does a reconciler do?"
)

BACKEND: Final[Manifest] = {
    "apiVersion": "inferencecache.io/v1alpha1",
    "kind": "CacheBackend",
    "metadata": {"name": "qwen-cache", "namespace": _NAMESPACE},
    "spec": {
        "runtime": "VLLM",
        "type": "LMCache",
        "remoteStorage": {"provider": "LMCacheServer", "ownership": "Managed"},
        "observation": {"modelID": _MODEL},
        "engineSelector": {"matchLabels": {"app": "qwen"}},
    },
}
ENGINE: Final[Manifest] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "qwen-engine", "labels": {"app": "qwen"}},
    "spec": {
        "containers": [
            {
                "name": "vllm",
                "image": "lmcache/vllm-openai:latest",
                "args": ["--model", _MODEL, "--port", "8000"],
                "ports": [{"name": "http", "containerPort": 8000}],
            }
        ]
    },
}


def run(*, stay: bool) -> int:
    """Take the tour; the exit status. Everything that was started has ended when this returns."""
    console = Console(soft_wrap=True)
    try:
        with asyncio.Runner() as runner:
            return runner.run(_interruptible(console, stay))
    except (ControlPlaneError, TrialError, ProcessError, KubeError) as error:
        console.print(f"quickstart: {error}", style="red", markup=False, highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130


async def _interruptible(console: Console, stay: bool) -> int:
    """The tour, ended early by SIGINT or SIGTERM, which is how a stay is meant to end."""
    touring = asyncio.create_task(_tour(console, stay))
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        touring.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    try:
        await touring
    except asyncio.CancelledError:
        if not received:
            raise
        console.print("\nEverything that was started has ended.")
        return 0 if received == [signal.SIGINT] and stay else 128 + received[-1]
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return 0


async def _tour(console: Console, stay: bool) -> None:
    plane = ControlPlane()
    _step(console, "Starting etcd and kube-apiserver")
    # Starting and stopping block; a thread keeps signals answered, and a cancelled start is still waited for.
    starting = asyncio.create_task(asyncio.to_thread(plane.start))
    try:
        await asyncio.shield(starting)
        _step(console, "Installing CRDs, roles and webhooks, and starting the operator and the server")
        async with trial(plane) as running, contextlib.AsyncExitStack() as stack:
            pod = await _show(console, running.client)
            _step(console, "Playing the kubelet: starting a fake engine, and the sidecar with the Pod's own arguments")
            engine_ = await stack.enter_async_context(engine(pod, _MODEL, running.folder))
            lookup = await _route(console, running, engine_)
            _invite(console, running, engine_, lookup, stay)
            if stay:
                await asyncio.Event().wait()
    finally:
        await asyncio.wait([starting])
        await asyncio.to_thread(plane.stop)


async def _show(console: Console, client: Client) -> Manifest:
    """From an empty cluster to a wired engine Pod, which is returned."""
    for name in (_NAMESPACE, _UNMANAGED):
        await client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    _step(console, "Applying a CacheBackend")
    console.print(Syntax(to_yaml(BACKEND), "yaml", background_color="default"))
    await client.apply(BACKEND)

    key = Key(_NAMESPACE, str(BACKEND["metadata"]["name"]))
    await _until("the operator made a Service and a Deployment", lambda: _children(client, key))
    _step(console, "Playing the Deployment controller, which this control plane lacks: the cache server is available")
    await _roll_out(client, key)
    await _until("the operator saw the rollout and published the endpoint", lambda: _published(client, key))
    await _print_children(console, client, key)
    await _print_conditions(console, client, key)

    _step(console, "Creating an engine Pod; this is what the webhook changed in it")
    before = await _create(client, _UNMANAGED, dry_run=True)
    after = await _create(client, _NAMESPACE, dry_run=False)
    difference = unified_diff(_comparable(before), _comparable(after), "pod/qwen-engine")
    if not difference:
        raise TrialError("the engine Pod was created but not wired; see the operator's log")
    console.print(Syntax(difference, "diff", background_color="default"))
    return after


async def _route(console: Console, running: Trial, engine_: Engine) -> Manifest:
    """From a prompt the engine has seen to the answer where its like should go; returns the question."""
    _step(console, "Sending the engine a prompt; what it caches, it says")
    console.print(f"  {_PROMPT}", markup=False, highlight=False)
    completed = await post(engine_.http, "/v1/completions", {"model": _MODEL, "prompt": _PROMPT})
    console.print(f"  {completed['usage']['prompt_tokens']} tokens computed and cached, in blocks of {BLOCK_SIZE}")
    tokens = (await post(engine_.http, "/tokenize", {"model": _MODEL, "prompt": _PROMPT}))["tokens"]
    lookup: Manifest = {"modelId": _MODEL, "tenantId": _NAMESPACE, "hashScheme": "vllm", "tokenIds": tokens}
    answer: Manifest = {}

    async def found() -> bool:
        answer.update(await post(running.server_http, "/v1/lookup-route", lookup))
        return bool(answer["reasonCode"] == "PREFIX_MATCH")

    _step(console, "Asking the server where a request with the same prompt should go")
    await _until("the server heard of the engine's blocks", found)
    console.print(Syntax(json.dumps(answer, indent=2), "json", background_color="default"))
    return lookup


async def _create(client: Client, namespace: str, *, dry_run: bool) -> Manifest:
    """The engine Pod as the API server stores it. A dry run in a namespace without a backend shows it unwired."""
    import msgspec

    manifest = {**ENGINE, "metadata": {**ENGINE["metadata"], "namespace": namespace}}
    params = {"dryRun": "All"} if dry_run else None
    created: Manifest = msgspec.json.decode(
        await client.request("POST", path_of(Pod.resource, namespace), body=manifest, params=params)
    )
    return created


def _comparable(pod: Manifest) -> Manifest:
    metadata = {name: value for name, value in pod["metadata"].items() if name not in _FILLED_IN}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}


async def _children(client: Client, key: Key) -> bool:
    try:
        await client.get_manifest(Service.resource, key)
        await client.get_manifest(Deployment.resource, key)
    except NotFound:
        return False
    return True


async def _roll_out(client: Client, key: Key) -> None:
    deployment = await client.get_manifest(Deployment.resource, key)
    replicas = deployment["spec"]["replicas"]
    counters = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    status = {"observedGeneration": deployment["metadata"]["generation"], **dict.fromkeys(counters, replicas)}
    await client.patch_status(Deployment.resource, key, status)


async def _published(client: Client, key: Key) -> bool:
    backend = await client.get(CacheBackend, key)
    rolled_out = any(c.type == READY and c.reason != ROLLOUT_IN_PROGRESS for c in backend.status.conditions or ())
    return bool(backend.status.endpoint) and rolled_out


async def _until(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + _STEP_SECONDS
    while not await holds():
        if time.monotonic() > deadline:
            raise TrialError(f"waited {_STEP_SECONDS:g} s in vain until {what}")
        await asyncio.sleep(0.1)


async def _print_children(console: Console, client: Client, key: Key) -> None:
    table = Table("Child", "Name", "What", title="Made by the operator", title_justify="left")
    deployment = await client.get_manifest(Deployment.resource, key)
    service = await client.get_manifest(Service.resource, key)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    table.add_row("Deployment", str(key), f"{deployment['spec']['replicas']} × {container['image']}")
    table.add_row("Service", str(key), ", ".join(f"port {port['port']}" for port in service["spec"]["ports"]))
    console.print(table)


async def _print_conditions(console: Console, client: Client, key: Key) -> None:
    backend: Any = await client.get_manifest(CacheBackend.resource, key)
    status = backend["status"]
    table = Table("Condition", "Status", "Reason", "Message", title="CacheBackend status", title_justify="left")
    for condition in status.get("conditions", []):
        table.add_row(*(condition.get(name, "") for name in ("type", "status", "reason", "message")))
    console.print(table)
    console.print(f"endpoint: {status.get('endpoint', '')}", markup=False)


def _step(console: Console, text: str) -> None:
    console.print(f"\n▶ {text}", style="bold", markup=False, highlight=False)


def _kubectl() -> str:
    """How to call kubectl: by its name, or where it is not on the PATH, beside the control plane's binaries."""
    return "kubectl" if shutil.which("kubectl") else str(find_binaries() / "kubectl")


def _invite(console: Console, running: Trial, engine_: Engine, lookup: Manifest, stay: bool) -> None:
    if not stay:
        return
    question = running.folder / "lookup.json"
    question.write_text(json.dumps(lookup))
    _step(console, "Your turn")
    lines = (
        f"export KUBECONFIG={running.kubeconfig}",
        f"{_kubectl()} -n {_NAMESPACE} get cachebackends,deployments,services,pods",
        f"curl -s {running.server_http}/v1/lookup-route -d @{question}",
        f"""curl -s {engine_.http}/v1/completions -d '{{"prompt": "{_PROMPT}"}}'""",
        f"what the processes say: {running.folder}/*.log",
    )
    for line in lines:
        console.print(f"  {line}", markup=False, highlight=False)
    console.print("Ctrl-C ends and removes everything.")
