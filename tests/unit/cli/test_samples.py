"""Every sample is admitted, and `inject` wires an engine Pod with it as the table in `tests/samples.py` promises."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from inferencecache.api.kinds import KINDS
from inferencecache.cli.main import app
from inferencecache.cli.reference.examples import SKIP_MARK, samples_page
from tests.samples import (
    POOL_PROMISES,
    PROMISES,
    SAMPLES,
    SUBSCRIBER_IMAGE,
    PoolPromise,
    Promise,
    backend_of,
    broken,
    broken_pool,
    documents,
    engine_pod,
    pooled_deployments,
    pooled_pod,
)

ADMITTED = sorted(SAMPLES.glob("*.yaml"))
REFUSED = sorted((SAMPLES / "_test").glob("*.yaml"))


def run(*args: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)


@pytest.mark.parametrize("path", ADMITTED, ids=lambda path: path.name)
def test_a_sample_is_admitted_without_a_warning(path: Path) -> None:
    result = run("validate", "-f", path)
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize("path", REFUSED, ids=lambda path: path.name)
def test_a_wrong_sample_is_refused(path: Path) -> None:
    assert run("validate", "-f", path).exit_code == 1


@pytest.mark.parametrize("path", [*ADMITTED, *REFUSED], ids=lambda path: path.name)
def test_a_sample_starts_with_a_comment_for_its_reader(path: Path) -> None:
    first, second, *_ = path.read_text().splitlines()
    assert (second if first == SKIP_MARK else first).startswith("# ")


def test_the_list_of_samples_says_what_each_shows() -> None:
    page = samples_page(SAMPLES)
    assert page.count("\n| [") == len(ADMITTED)
    assert "[cache_v1alpha1_cacheindex](cache_v1alpha1_cacheindex.yaml) | The cluster-wide view of the" in page
    assert SKIP_MARK.removeprefix("# ") not in page


def test_every_kind_has_a_sample() -> None:
    shown = {one["kind"] for path in ADMITTED for one in documents(path)}
    assert {kind.resource.kind for kind in KINDS} <= shown


def test_every_backend_of_a_sample_has_a_promise() -> None:
    backends = {
        (path.stem, one["metadata"]["name"])
        for path in ADMITTED
        for one in documents(path)
        if one["kind"] == "CacheBackend"
    }
    assert backends == {(promise.sample, promise.backend) for promise in PROMISES}


@pytest.mark.parametrize("promise", PROMISES, ids=str)
def test_inject_wires_an_engine_as_promised(promise: Promise) -> None:
    namespace = backend_of(promise)["metadata"].get("namespace", "default")
    pod = engine_pod(promise)
    pod["metadata"]["namespace"] = namespace
    sample = SAMPLES / f"{promise.sample}.yaml"
    flag = f"--kvevent-subscriber-image={SUBSCRIBER_IMAGE}"
    result = run("inject", "-f", sample, "-f", "-", flag, stdin=yaml.safe_dump(pod))
    assert result.exit_code == 0, result.output
    assert broken(promise, yaml.safe_load(result.stdout), namespace) == [], result.stdout


def test_every_engine_of_a_sample_that_asks_for_a_pool_has_a_promise() -> None:
    engines = {(path.stem, one["metadata"]["name"]) for path in ADMITTED for one in pooled_deployments(path)}
    assert engines == {(promise.sample, promise.deployment) for promise in POOL_PROMISES}


@pytest.mark.parametrize("promise", POOL_PROMISES, ids=str)
def test_inject_gives_an_engine_its_pool_as_promised(promise: PoolPromise) -> None:
    sample = SAMPLES / f"{promise.sample}.yaml"
    result = run("inject", "-f", sample, "-f", "-", stdin=yaml.safe_dump(pooled_pod(promise)))
    assert result.exit_code == 0, result.output
    assert broken_pool(promise, yaml.safe_load(result.stdout)) == [], result.stdout
