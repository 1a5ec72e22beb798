"""`validate`, `render` and `inject` show on files what the operator would do in a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from inferencecache.cli.main import app

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
SAMPLE = SAMPLES / "cache_v1alpha1_cachebackend.yaml"

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "engine", "labels": {"app": "cachebackend-sample"}},
    "spec": {"containers": [{"name": "vllm", "image": "engine:1", "args": ["--model", "m"]}]},
}


def run(*args: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)


def written(path: Path, *manifests: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump_all(manifests))
    return path


def test_violations_print_as_path_kind_message() -> None:
    result = run("validate", "-f", SAMPLES / "_test" / "cachebackend-invalid-scale-to-zero-no-min.yaml")
    assert result.exit_code == 1
    assert result.stdout.startswith("spec.autoscaling.minReplicas: Required value: spec.replicas=0")


def test_the_schema_answers_before_the_webhooks(tmp_path: Path) -> None:
    backend = yaml.safe_load(SAMPLE.read_text())
    backend["spec"] |= {"runtime": "vllm", "replicas": -1, "nonsense": 1}
    result = run("validate", "-f", written(tmp_path / "a.yaml", backend))
    assert result.exit_code == 1
    assert {tuple(line.split(": ")[:2]) for line in result.stdout.splitlines()} == {
        ("spec.runtime", "Unsupported value"),
        ("spec.replicas", "Invalid value"),
    }
    assert 'unknown field "spec.nonsense"' in result.stderr


@pytest.mark.parametrize("metadata", [{"name": ["a"]}, {"name": "a", "namespace": {"b": "c"}}])
def test_a_name_that_is_no_text_is_a_violation(tmp_path: Path, metadata: dict[str, Any]) -> None:
    result = run(
        "validate", "-f", written(tmp_path / "a.yaml", {**yaml.safe_load(SAMPLE.read_text()), "metadata": metadata})
    )
    assert result.exit_code == 1
    assert "Invalid value" in result.stdout


def test_a_version_that_is_not_served_is_a_violation(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.yaml", {**yaml.safe_load(SAMPLE.read_text()), "apiVersion": "inferencecache.io/v1"}, POD
    )
    said = 'apiVersion: Unsupported value: "inferencecache.io/v1": supported values: "inferencecache.io/v1alpha1"'
    result = run("validate", "-f", path)
    assert result.exit_code == 1
    assert result.stdout == f"{said}\n"
    assert all(said in run(command, "-f", path).stderr for command in ("inject", "render"))


def test_a_stored_violation_does_not_block_an_edit(tmp_path: Path) -> None:
    bad = yaml.safe_load((SAMPLES / "_test" / "cachebackend-invalid-scale-to-zero-no-min.yaml").read_text())
    stored = written(tmp_path / "old.yaml", bad)
    edited = written(tmp_path / "new.yaml", {**bad, "metadata": {**bad["metadata"], "labels": {"a": "b"}}})
    assert run("validate", "-f", edited).exit_code == 1
    assert run("validate", "-f", edited, "--old", stored).exit_code == 0


def test_render_prints_the_children() -> None:
    result = run("render", "-f", SAMPLE)
    children = list(yaml.safe_load_all(result.stdout))
    assert [(c["kind"], c["metadata"]["name"]) for c in children] == [
        ("Deployment", "cachebackend-sample"),
        ("Service", "cachebackend-sample"),
    ]
    as_json = json.loads(run("render", "-f", SAMPLE, "-o", "json").stdout)
    assert as_json["items"] == children


def test_render_says_why_there_are_no_children() -> None:
    result = run("render", "-f", SAMPLES / "cachebackend-external.yaml")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "default/external: External, no children" in result.stderr


def test_inject_wires_a_pod_to_the_endpoint_that_will_be_published(tmp_path: Path) -> None:
    result = run("inject", "-f", SAMPLE, "-f", written(tmp_path / "pod.yaml", POD))
    assert result.exit_code == 0
    pod = yaml.safe_load(result.stdout)
    environment = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert environment["LMCACHE_REMOTE_URL"] == "lm://cachebackend-sample.default.svc.cluster.local:65432"
    assert pod["metadata"]["annotations"]["inferencecache.io/injected-by"] == "default/cachebackend-sample"
    assert "wired to default/cachebackend-sample" in result.stderr


def test_inject_shows_a_diff_and_explains_an_unwired_pod(tmp_path: Path) -> None:
    other = {**POD, "metadata": {"name": "other", "labels": {"app": "else"}}}
    result = run("inject", "-f", SAMPLE, "-f", written(tmp_path / "pods.yaml", POD, other), "-o", "diff")
    assert "+    - --kv-transfer-config" in result.stdout
    assert result.stdout.count("+++ after/") == 1
    assert "(Pod other): no matching CacheBackend in namespace default" in result.stderr


def test_of_two_backends_of_one_name_the_later_is_there(tmp_path: Path) -> None:
    backend = yaml.safe_load(SAMPLE.read_text())
    metadata, spec = backend["metadata"], backend["spec"]
    later = {**backend, "spec": {**spec, "engineSelector": {"matchLabels": {"app": "other"}}}}
    result = run("inject", "-f", written(tmp_path / "a.yaml", backend, later, POD))
    assert "no matching CacheBackend" in result.stderr
    result = run("render", "-f", written(tmp_path / "b.yaml", backend, {**later, "spec": {**spec, "replicas": 3}}))
    (workload,) = (one for one in yaml.safe_load_all(result.stdout) if one["kind"] == "Deployment")
    assert (workload["metadata"]["name"], workload["spec"]["replicas"]) == (metadata["name"], 3)


def test_inject_twice_changes_nothing(tmp_path: Path) -> None:
    once = run("inject", "-f", SAMPLE, "-f", written(tmp_path / "pod.yaml", POD)).stdout
    again = run("inject", "-f", SAMPLE, "-f", "-", "-o", "diff", stdin=once)
    assert (again.exit_code, again.stdout) == (0, "")


def test_render_prints_all_that_makes_up_a_store() -> None:
    flags = ("--kv-cache-namespace=stores", "--kv-cache-backend-image=store:1")
    result = run("render", "-f", SAMPLES / "worker_v1_kvcachebackend.yaml", *flags)
    manifests = list(yaml.safe_load_all(result.stdout))
    assert {(one["kind"], one["metadata"]["namespace"]) for one in manifests} >= {
        ("Deployment", "stores"),
        ("Service", "stores"),
        ("DaemonSet", "stores"),
    }
    workloads = [one for one in manifests if one["kind"] in ("Deployment", "DaemonSet")]
    assert {one["spec"]["template"]["spec"]["containers"][0]["image"] for one in workloads} == {"store:1"}


def test_render_says_that_an_external_store_gets_nothing() -> None:
    result = run("render", "-f", SAMPLES / "kvcachebackend-external.yaml")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "KVCacheBackend kvcachebackend-external: external" in result.stderr


def pool_documents(**domain: Any) -> list[dict[str, Any]]:
    """The store, the pool and the Binding of the sample, and a second Binding with another domain."""
    store, pool, binding = yaml.safe_load_all((SAMPLES / "worker_v1_kvcachepoolbinding.yaml").read_text())
    second = {**binding, "metadata": {"name": "second"}}
    second["spec"] = {**binding["spec"], "domain": {**binding["spec"]["domain"], **domain}}
    return [store, pool, binding, second]


def test_a_binding_is_judged_among_the_documents_beside_it(tmp_path: Path) -> None:
    result = run("validate", "-f", written(tmp_path / "a.yaml", *pool_documents()))
    assert result.exit_code == 1
    assert "spec.domain.name: Duplicate value" in result.stdout
    documents = pool_documents(name="other")
    result = run("validate", "-f", written(tmp_path / "a.yaml", *documents))
    assert result.exit_code == 0
    assert "warning: KVCachePoolBinding default/" in result.stderr
    documents[0]["spec"]["connection"]["managed"]["leader"] = {"multiTenancy": False}
    result = run("validate", "-f", written(tmp_path / "a.yaml", *documents))
    assert "keeps no tenants apart" in result.stdout


def test_a_binding_alone_is_not_blamed_for_what_nobody_can_know(tmp_path: Path) -> None:
    *_, binding, _ = pool_documents()
    assert run("validate", "-f", written(tmp_path / "a.yaml", binding)).exit_code == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("validate", "-f", "absent.yaml"), "absent.yaml: cannot be read"),
        (("render", "-f", "-"), "no CacheBackend and no KVCacheBackend in -"),
        (("inject", "-f", "-"), "no Pod in -"),
        (("validate", "-f", "-"), "no custom resource of this product in -"),
    ],
)
def test_what_cannot_work_is_said_in_one_sentence(args: tuple[str, ...], said: str) -> None:
    result = run(*args, stdin="apiVersion: v1\nkind: ConfigMap\n")
    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_crds_are_printed() -> None:
    kinds = [crd["spec"]["names"]["kind"] for crd in yaml.safe_load_all(run("crds").stdout)]
    assert "CacheBackend" in kinds
    assert run("crds", "-o", "diff").exit_code == 2
