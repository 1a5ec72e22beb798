"""One cluster and one installation for all tests, one namespace for each; a failed test tells what the cluster saw."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.pools import backend_and_pool
from e2e.world import (
    CONTROLLER,
    ENGINE_IMAGE,
    PRODUCT_IMAGE,
    SERVER,
    STORES_IMAGE,
    SUBSCRIBER_IMAGE,
    SYSTEM,
    World,
    until,
)
from hack.onenode.cluster import Cluster
from hack.onenode.processes import ClusterError

ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--as-loaded", action="store_true", help="build and load no images: the running cluster has them")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(600))  # containers are started, some of them many times


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The running cluster."""
    cluster = Cluster(lambda line: print(f"cluster: {line}", file=sys.stderr, flush=True))
    if not cluster.is_up():
        pytest.exit("no cluster is up; `make e2e` starts one for the tests, `hack/cluster up` one that stays", 2)
    return cluster


@pytest.fixture(scope="session")
def images(cluster: Cluster, pytestconfig: pytest.Config) -> None:
    """All images, in the cluster. The product's are built by `make image`, the tests' own here."""
    if pytestconfig.getoption("--as-loaded"):
        return
    for target in ("stores", "engine"):
        command = ["docker", "build", "--quiet", "--file", "e2e/images/Dockerfile", "--target", target]
        command += ["--tag", f"inferencecache-e2e:{target}", "--build-arg", f"PRODUCT={PRODUCT_IMAGE}", *_base(), "."]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    cluster.load(PRODUCT_IMAGE, SUBSCRIBER_IMAGE, ENGINE_IMAGE, STORES_IMAGE)


def _base() -> list[str]:
    base = os.environ.get("BASE")
    return ["--build-arg", f"BASE={base}"] if base else []


@pytest.fixture(scope="session")
def installed(cluster: Cluster, images: None, pytestconfig: pytest.Config) -> Iterator[World]:
    """The product, as `manifests/default` installs it; a look at its own namespace."""
    world = World(cluster, SYSTEM)
    before = {pod["metadata"]["uid"] for pod in world.list("pods")}
    install(world)
    if not pytestconfig.getoption("--as-loaded") and before:  # the tag is the same, the image is not
        for deployment in (SERVER, CONTROLLER):
            world.kubectl("rollout", "restart", f"deployment/{deployment}")
        for deployment in (SERVER, CONTROLLER):
            world.rolled_out(deployment)
    yield world
    all_are_gone(world)


def install(world: World) -> None:
    """Apply `manifests/default`, whatever variant of it is there, and wait until it runs."""
    world.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(ROOT / "manifests" / "default"))
    for deployment in (SERVER, CONTROLLER):
        world.rolled_out(deployment)


def all_are_gone(installed: World) -> None:
    """Wait until every deleted namespace has ended: tests go on meanwhile, as it takes one half a minute."""

    def gone() -> bool:
        ending = installed.kubectl("get", "namespaces", "--field-selector=status.phase=Terminating", "-o", "name")
        assert not ending, ending
        return True

    until(gone)


@pytest.fixture
def world(installed: World, request: pytest.FixtureRequest) -> Iterator[World]:
    """A namespace of the test's own in the cluster where the product is installed."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    installed.cluster.kubectl("create", "namespace", name)
    request.node.stash[_SEEN] = world = installed.elsewhere(name)
    yield world
    installed.cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def pool(world: World) -> Iterator[str]:
    """The name of a backend with one leader and one member, and of its pool."""
    name = f"p-{uuid.uuid4().hex[:6]}"
    world.apply(*backend_and_pool(name))
    yield name
    world.kubectl("delete", "kvcachepoolbindings", "--all", "--timeout=90s")
    world.delete("kvcachepool", name)
    world.delete("kvcachebackend", name)


_SEEN = pytest.StashKey[World]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    report = yield
    world = item.stash.get(_SEEN, None)
    if report.when == "call" and report.failed and world is not None:
        report.sections.append(("what the cluster saw", _diagnosis(world)))
    return report


def _diagnosis(world: World) -> str:
    system = world.elsewhere(SYSTEM)
    looks = [
        (world, ("get", "pods,deployments,services,cachebackends", "-o", "wide")),
        (world, ("get", "cachebackends", "-o", "yaml")),
        (world, ("get", "events", "--sort-by=.lastTimestamp")),
        (world, ("logs", "--selector", "app", "--all-containers", "--prefix", "--tail=30")),
        (system, ("get", "pods", "-o", "wide")),
        (system, ("logs", f"deployment/{CONTROLLER}", "--tail=60")),
        (system, ("logs", f"deployment/{SERVER}", "--tail=20")),
    ]
    said = []
    for where, arguments in looks:
        try:
            said.append(f"$ kubectl -n {where.namespace} {' '.join(arguments)}\n{where.kubectl(*arguments)}")
        except ClusterError as error:
            said.append(str(error))
    return "\n".join(said)
