"""Other ways to install: behind TLS, and by the Helm chart. Each test ends with the usual installation."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import grpc
import pytest

from e2e import certmanager
from e2e.backends import LMCACHE, PROMPT, endpoint_of, engines_of, routed
from e2e.conftest import ROOT, all_are_gone, install
from e2e.world import CONTROLLER, SERVER, SYSTEM, World, has_condition, until
from hack.onenode.processes import ClusterError
from inferencecache.wire.service import METHODS
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb

SERVED_AS = f"{SERVER}.{SYSTEM}.svc"
CERTIFICATE = "inference-cache-server-serving-cert"


@pytest.fixture
def cert_manager(installed: World) -> Iterator[None]:
    """Its kinds."""
    kinds = certmanager.kinds()
    installed.apply(*kinds)
    for kind in kinds:
        name = kind["metadata"]["name"]
        installed.kubectl("wait", f"customresourcedefinition/{name}", "--for=condition=Established", "--timeout=60s")
    yield
    for kind in kinds:
        installed.delete("customresourcedefinition", kind["metadata"]["name"])


@pytest.fixture
def restored(installed: World) -> Iterator[None]:
    """The usual installation, afterwards."""
    yield
    install(installed)
    installed.delete("secret", CERTIFICATE, "--ignore-not-found")  # the next authority is another one


def lookup(channel: grpc.Channel) -> pb.LookupRouteResponse:
    """What the server says of a model that nobody serves."""
    method = METHODS["LookupRoute"]
    call = channel.unary_unary(
        method.path,
        request_serializer=pb.LookupRouteRequest.SerializeToString,
        response_deserializer=pb.LookupRouteResponse.FromString,
    )
    answer: pb.LookupRouteResponse = call(
        pb.LookupRouteRequest(model_id="nobody", tenant_id="nobody", token_ids=range(64)), timeout=20
    )
    return answer


def secured(world: World, authority: bytes, name: str = SERVED_AS) -> grpc.Channel:
    """A channel to the server that trusts an authority and expects a name."""
    credentials = grpc.ssl_channel_credentials(authority)
    return grpc.secure_channel(world.server(9090), credentials, [("grpc.ssl_target_name_override", name)])


def finds_a_prefix(world: World) -> None:
    """A declared cache becomes ready, and a prompt at one engine is found there."""
    world.apply(LMCACHE.backend())
    endpoint_of(world, LMCACHE.name)
    world.apply(LMCACHE.engine())
    holder, _ = engines_of(world, LMCACHE)
    prompt = f"{world.namespace} {PROMPT * 3}"
    LMCACHE.prompt(holder, prompt)
    assert until(lambda: routed(world, LMCACHE, prompt)) == holder["metadata"]["name"]
    until(lambda: has_condition(world.get("cachebackend", LMCACHE.name), "Ready", "True"), within=180)


def speaks_tls_alone(installed: World, authority: bytes) -> None:
    """Who knows the authority and the name is answered, and nobody else."""
    with secured(installed, authority) as channel:
        assert not lookup(channel).replica_scores
    for channel in (
        grpc.insecure_channel(installed.server(9090)),
        secured(installed, certmanager.authority().certificate),
        secured(installed, authority, "elsewhere.example"),
    ):
        with channel, pytest.raises(grpc.RpcError) as refusal:
            lookup(channel)
        assert refusal.value.code() == grpc.StatusCode.UNAVAILABLE


def test_behind_tls_sidecars_report_and_lookups_are_answered(
    world: World, installed: World, cert_manager: None, restored: None
) -> None:
    overlay = str(ROOT / "manifests" / "overlays" / "server-tls")
    installed.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-k", overlay)
    authority = certmanager.fulfil(installed, CERTIFICATE)
    installed.rolled_out(SERVER)
    installed.rolled_out(CONTROLLER)
    speaks_tls_alone(installed, authority)
    finds_a_prefix(world)


def test_the_chart_installs_works_upgrades_to_tls_and_leaves_the_kinds(
    world: World, installed: World, cert_manager: None, restored: None
) -> None:
    all_are_gone(installed)  # while somebody is there who takes finalizers off
    installed.cluster.kubectl(
        "delete", "--ignore-not-found", "--timeout=110s", "-k", str(ROOT / "manifests" / "default")
    )
    helm(installed, "install", "e2e", str(ROOT / "charts" / "inferencecache"), "--create-namespace", "--wait")
    finds_a_prefix(world)

    helm(installed, "upgrade", "e2e", str(ROOT / "charts" / "inferencecache"), "--set=serverTLS.enabled=true")
    authority = certmanager.fulfil(installed, CERTIFICATE)
    installed.rolled_out(SERVER)
    installed.rolled_out(CONTROLLER)
    speaks_tls_alone(installed, authority)

    helm(installed, "uninstall", "e2e", "--wait")
    assert has_condition(world.get("cachebackend", LMCACHE.name), "Ready", "True")
    with pytest.raises(ClusterError, match="not found"):
        installed.get("deployment", SERVER)


def helm(installed: World, *arguments: str) -> None:
    """Run helm on the cluster; it is built the first time, which takes some minutes."""
    got = subprocess.run([ROOT / "hack" / "get-tool.sh", "helm"], stdout=subprocess.PIPE, text=True, check=True)
    environment = {**os.environ, "KUBECONFIG": str(installed.cluster.layout.kubeconfig())}
    command = [got.stdout.split()[-1], *arguments, "--namespace", SYSTEM, "--timeout=180s"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
