"""The doctor against a real API server and a real cache server: health is OK, and every seeded fault is named."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from inferencecache.doctor.checks import examine
from inferencecache.doctor.observe import Scope, observe
from inferencecache.doctor.server import Address
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import Key, Manifest, ResourceType
from inferencecache.server.sockets import BindAddress
from tests.integration.controllers.cache_server import engine, operator, own, report, settings
from tests.integration.doctor.running_doctor import SCRIPTS, Ran, run
from tests.integration.kube.waiting import eventually
from tests.integration.kustomized import kubectl
from tests.integration.server.running import Running, calling, running
from tests.integration.server.test_auth import Accounts
from tests.integration.server.test_auth import kubeconfig as kubeconfig_of
from tests.integration.server.test_tls import Pair

BACKENDS = ResourceType("inferencecache.io", "v1alpha1", "CacheBackend", "cachebackends")
TENANTS = ResourceType("inferencecache.io", "v1alpha1", "CacheTenant", "cachetenants")
POOL_KINDS = {
    kind: ResourceType("worker.gpustack.ai", "v1", kind, plural, namespaced=kind.endswith("Binding"))
    for kind, plural in (
        ("KVCacheBackend", "kvcachebackends"),
        ("KVCachePool", "kvcachepools"),
        ("KVCachePoolBinding", "kvcachepoolbindings"),
    )
}
LABELS = {"app": "engine"}
OFFLOAD: Manifest = {
    "runtime": "VLLM",
    "engineSelector": {"matchLabels": LABELS},
    "observation": {"modelID": "m"},
}
LONG_AGO = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


def just_now() -> str:
    """Asked when a test runs: in a long run that is long after this module was read."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, status: str = "True", reason: str = "R", message: str = "M") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": just_now()}


def ready() -> Manifest:
    """The status of a backend that is well."""
    return {
        "conditions": [condition("Ready")],
        "matchedEnginePods": 1,
        "firstKVEventObservedAt": LONG_AGO,
        "indexParticipation": {"prefixCount": 1, "lastEventAt": just_now()},
    }


async def made(client: Client, manifest: Manifest, resource: Any = BACKENDS, **status: Any) -> str:
    """Create an object with a status; its UID."""
    created = await client.create(manifest)
    meta = created["metadata"]
    if status:
        await client.patch_status(resource, Key(meta.get("namespace", ""), meta["name"]), status)
    uid: str = meta["uid"]
    return uid


async def doctor(control_plane: ControlPlane, *args: object) -> Ran:
    return await run("inferencecache", "doctor", "-o", "json", *args, kubeconfig=control_plane.admin)


async def test_a_working_installation_is_ok_and_exits_0(
    control_plane: ControlPlane, client: Client, namespace: str, server: Running, tokens: Path, endpoint: str
) -> None:
    await client.create(own("CacheBackend", Key(namespace, "kv"), OFFLOAD))
    await client.create(own("CachePolicy", Key(namespace, "p"), {}))
    await client.create(own("CacheTenant", Key(namespace, "t"), {"tenantID": namespace}))
    uid = (await client.get_manifest(BACKENDS, Key(namespace, "kv")))["metadata"]["uid"]
    stamps = {"inferencecache.io/injected-by": f"{namespace}/kv", "inferencecache.io/injected-by-uid": uid}
    await client.create(engine("engine-0", namespace, LABELS, **stamps))
    arguments = ("-n", namespace, "--server-endpoint", endpoint, "--snapshot-token-file", tokens / "controller-token")
    async with operator(client, settings(server, tokens)), calling(server) as stub:
        await report(stub, namespace, "engine-0", blocks=3)
        # It is well before its engine's first prefixes have come round.
        ran = await eventually(
            lambda: doctor(control_plane, *arguments),
            lambda ran: ran.exit == 0 and "3 prefixes" in ran.out,
            seconds=200,
        )
    assert {code for code, _ in ran.findings} == {
        *("SV003", "SN004", "PL002", "PB002", "CB006", "EP002", "CT002", "CP002")
    }
    assert ran.report["summary"] == {"ok": 8, "info": 0, "warn": 0, "fail": 0, "exitCode": 0}
    assert ran.err == ""


async def test_every_seeded_fault_is_named_beside_all_others(
    control_plane: ControlPlane, client: Client, namespace: str, server: Running, tokens: Path, endpoint: str
) -> None:
    async def backend(name: str, *, selects: str = "", **status: Any) -> str:
        selector = {"matchLabels": {"app": selects or name}}
        manifest = own("CacheBackend", Key(namespace, name), {**OFFLOAD, "engineSelector": selector})
        return await made(client, manifest, **{**ready(), **status})

    await backend("a-not-ready", conditions=[condition("Ready", "False", "ReplicasUnavailable", "0 of 1")])
    await backend("b-unmatched", matchedEnginePods=0)
    await backend("c-silent", firstKVEventObservedAt=None, indexParticipation=None)
    lost = {"prefixCount": 0, "lastEventAt": LONG_AGO}
    await backend("d-lost", indexParticipation=lost)
    await backend("e-idle", indexParticipation=lost)
    await backend("f-probe", conditions=[condition("Ready"), condition("FunctionalProbeOK", "False", "ProbeT2Failed")])
    dead = {"provider": "Redis", "ownership": "External", "endpoint": "127.0.0.1:1"}
    manifest = own("CacheBackend", Key(namespace, "g-dead"), {"runtime": "SGLang", "remoteStorage": dead})
    await made(client, manifest, conditions=[condition("Ready")], endpoint="127.0.0.1:1")
    await backend("h-wires", selects="wired")
    await client.create(engine("unwired", namespace, {"app": "wired"}))
    stale = {"inferencecache.io/injected-by": f"{namespace}/h-wires", "inferencecache.io/injected-by-uid": "gone"}
    await client.create(engine("stale", namespace, {"app": "wired"}, **stale))
    await client.create(engine("out", namespace, {"app": "wired"}, **{"inferencecache.io/skip-inject": "true"}))
    await client.create(engine("idle-0", namespace, {"app": "e-idle"}))
    over = condition("QuotaExceeded", message="too many")
    await made(client, own("CacheTenant", Key(namespace, "t"), {"tenantID": "x"}), TENANTS, conditions=[over])
    for name in ("two", "one"):
        await client.create(own("CachePolicy", Key(namespace, name), {}))
    await orphan_event(client, namespace)
    async with calling(server) as stub:
        await report(stub, namespace, "idle-0", blocks=0, pressure=0)
        ran = await doctor(
            control_plane,
            *("-n", namespace, "--server-endpoint", endpoint),
            *("--snapshot-token-file", tokens / "controller-token"),
        )
    expected = {
        ("CB001", f"cachebackend/{namespace}/a-not-ready"),
        ("CB002", f"cachebackend/{namespace}/b-unmatched"),
        ("CB003", f"cachebackend/{namespace}/c-silent"),
        ("CB004", f"cachebackend/{namespace}/d-lost"),
        ("CB008", f"cachebackend/{namespace}/e-idle"),
        ("CB007", f"cachebackend/{namespace}/f-probe"),
        ("CB005", f"cachebackend/{namespace}/g-dead"),
        ("CB006", f"cachebackend/{namespace}/h-wires"),
        ("EP001", f"pod/{namespace}/unwired"),
        ("EP001", f"pod/{namespace}/stale"),
        ("EP003", f"pod/{namespace}/out"),
        ("EP001", f"pod/{namespace}/idle-0"),
        ("OP001", f"pod/{namespace}/orphan"),
        ("CT001", f"cachetenant/{namespace}/t"),
        ("CP003", f"namespace/{namespace}"),
    }
    about_objects = {(code, resource) for code, resource in ran.findings if code[:2] not in ("SV", "SN", "PL", "PB")}
    assert about_objects == expected
    assert ran.exit == ran.report["summary"]["exitCode"] == 1
    assert len([one for one in ran.report["findings"] if one["code"] == "OP001"]) == 1, (
        "seen through both APIs, told once"
    )
    assert "0 of 1" in ran.message("CB001")


async def orphan_event(client: Client, namespace: str) -> None:
    """What a Pod without a backend would be told, if anybody told it."""
    pod = {"kind": "Pod", "namespace": namespace, "name": "orphan", "uid": "u", "apiVersion": "v1"}
    await client.create(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "orphan.1", "namespace": namespace},
            "involvedObject": pod,
            "reason": "NoMatchingCacheBackend",
            "message": "nothing matches",
            "type": "Warning",
            "lastTimestamp": just_now(),
        }
    )


async def test_the_pools_half_is_looked_at_when_the_whole_cluster_is(
    control_plane: ControlPlane, client: Client, namespace: str, tokens: Path
) -> None:
    external = {"external": {"endpoints": [{"name": n, "address": "m:1"} for n in ("Client", "Admin")]}}

    async def pool_object(kind: str, name: str, spec: Manifest, **status: Any) -> None:
        metadata = {"name": name, **({"namespace": namespace} if POOL_KINDS[kind].namespaced else {})}
        manifest = {"apiVersion": "worker.gpustack.ai/v1", "kind": kind, "metadata": metadata, "spec": spec}
        await made(client, manifest, POOL_KINDS[kind], **status)

    store, pool = f"store-{namespace}", f"pool-{namespace}"
    used = [{"kind": "KVCachePool", "namespace": "", "name": name} for name in (pool, f"gone-{namespace}")]
    await pool_object("KVCacheBackend", store, {"connection": external}, phase="Ready", usedBy=used)
    await pool_object(
        "KVCachePool",
        pool,
        {"backends": [store], "quota": {"total": "1Gi"}},
        phase="Error",
        phaseMessage="the master does not answer",
        conditions=[condition("QuotaWithinTotal", "False", "Oversubscribed", "2Gi of 1Gi")],
    )
    domain = {"name": "d", "blockSize": 16, "dtype": "bfloat16"}
    binding = {"poolRef": {"name": pool}, "quota": {"ceiling": "1Gi"}, "domain": domain}
    await pool_object(
        "KVCachePoolBinding", "full", binding, phase="Ready", effectiveQuota="16Mi", usage="16Mi", overQuota=False
    )
    await pool_object(
        "KVCachePoolBinding", "lonely", {**binding, "poolRef": {"name": f"no-{namespace}"}}, phase="Error"
    )
    ran = await doctor(control_plane, "--config-only")
    assert {
        ("KB004", f"kvcachebackend/{store}"),
        ("KP001", f"kvcachepool/{pool}"),
        ("KP004", f"kvcachepool/{pool}"),
        ("KN004", f"kvcachepoolbinding/{namespace}/full"),
        ("KN001", f"kvcachepoolbinding/{namespace}/lonely"),
        ("KN005", f"kvcachepoolbinding/{namespace}/lonely"),
    } <= ran.findings
    assert "the master does not answer" in ran.message("KP001", f"kvcachepool/{pool}")
    ran = await doctor(control_plane, "--config-only", "-n", namespace)
    assert not {code for code, _ in ran.findings} & {"KB001", "KB004", "KP001", "KN005"}, "a namespace has no pools"
    assert ("KN004", f"kvcachepoolbinding/{namespace}/full") in ran.findings


async def test_a_server_that_is_not_there_fails_with_the_remedy_and_the_rest_is_still_checked(
    control_plane: ControlPlane, client: Client, namespace: str, tokens: Path, host: str
) -> None:
    await made(client, own("CacheBackend", Key(namespace, "kv"), OFFLOAD), **ready())
    ran = await doctor(control_plane, "-n", namespace, "--server-endpoint", host)
    assert ran.exit == 2
    assert {
        ("SV001", f"{host}:9090"),
        ("SN001", f"http://{host}:8081/snapshot"),
        ("PL001", f"http://{host}:8081/policy"),
        ("PB001", f"http://{host}:8081/probe"),
        ("CB006", f"cachebackend/{namespace}/kv"),
    } <= ran.findings
    for code in ("SN001", "PL001", "PB001"):
        assert "NetworkPolicy" in ran.message(code)
        assert "--config-only" in ran.message(code)


async def test_without_a_service_one_finding_stands_for_the_whole_server(
    control_plane: ControlPlane, namespace: str, tokens: Path
) -> None:
    ran = await doctor(control_plane, "-n", namespace)
    assert ran.findings == {("SV001", "")}
    assert "--server-endpoint" in ran.message("SV001")
    assert "warning: the cache server was not found" in ran.err
    assert ran.exit == 2


async def test_the_service_is_found_in_whichever_namespace_it_is(
    control_plane: ControlPlane, client: Client, namespace: str, tokens: Path
) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "inference-cache-server", "namespace": namespace},
        "spec": {"ports": [{"port": 9090}]},
    }
    await client.create(service)
    ran = await doctor(control_plane, "-n", namespace, "--timeout", "20s")
    await client.delete(ResourceType("", "v1", "Service", "services"), Key(namespace, "inference-cache-server"))
    assert ("SV001", f"inference-cache-server.{namespace}.svc:9090") in ran.findings, "the name means nothing here"
    assert "port-forward" in ran.message("SV001")


@asynccontextmanager
async def hanging(host: str) -> AsyncIterator[int]:
    """Somebody who takes connections, on 8081 too, and says nothing."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, host, 0) as grpc, await asyncio.start_server(silent, host, 8081):
        yield grpc.sockets[0].getsockname()[1]


async def test_a_server_that_hangs_costs_the_timeout_and_no_more(
    client: Client, namespace: str, tokens: Path, host: str
) -> None:
    async with hanging(host) as port:
        begun = asyncio.get_running_loop().time()
        report = examine(await observe(client, Scope(namespace=namespace, address=Address(host, port), seconds=2)))
        assert asyncio.get_running_loop().time() - begun < 30, "the time for a process to start is not counted"
    said = {one.code: one.message for one in report.findings}
    assert said.keys() == {"SV001", "SN001", "PL001", "PB001"}
    assert "no answer in time" in said["SN001"]


async def test_a_token_is_asked_for_and_never_shown(
    control_plane: ControlPlane, namespace: str, server: Running, tokens: Path, endpoint: str, tmp_path: Path
) -> None:
    secret = "eyJ-this-is-no-good-token"
    (tmp_path / "bad").write_text(secret)
    (tmp_path / "split").write_text(f"{secret}\r\nX-Header: 1")
    seen = []
    for file, code, words in (
        ("none", "SN005", "no token was sent"),
        ("bad", "SN005", "the token was refused"),
        ("split", "SN001", "ValueError"),
        ("policy-token", "SN005", "the token was refused"),
        ("controller-token", "SN004", "index"),
    ):
        ran = await doctor(
            control_plane, "-n", namespace, "--server-endpoint", endpoint, "--snapshot-token-file", tmp_path / file
        )
        assert words in ran.message(code), file
        seen.append(ran.out + ran.err)
    given = [secret, *((tokens / name).read_text().strip() for name in ("controller-token", "policy-token"))]
    assert [token for token in given if any(token in text for text in seen)] == []


async def test_a_token_file_that_cannot_be_read_is_a_warning_on_stderr(
    control_plane: ControlPlane, namespace: str, server: Running, tokens: Path, endpoint: str, tmp_path: Path
) -> None:
    ran = await doctor(control_plane, "-n", namespace, "--server-endpoint", endpoint, "--snapshot-token-file", tmp_path)
    assert f"warning: --snapshot-token-file {tmp_path}" in ran.err
    assert "no token was sent" in ran.message("SN005")


async def test_grpc_over_tls_is_checked_with_the_given_cas(
    control_plane: ControlPlane, namespace: str, tokens: Path, host: str, tmp_path: Path
) -> None:
    pair = Pair(tmp_path)
    pair.write(host)
    async with running(
        grpc_bind_address=BindAddress(host, 0),
        snapshot_bind_address=BindAddress(host, 8081),
        tls=pair.files,
    ) as server:
        where = ("-n", namespace, "--timeout", "30s", "--server-endpoint", f"{host}:{server.ports.grpc}")
        trusted = await doctor(control_plane, *where, "--server-ca-file", pair.files[0])
        plain = await doctor(control_plane, *where)
        unknown = await doctor(control_plane, *where, "--server-tls")
    assert {code for code, _ in trusted.findings} == {"SV003", "SN003", "SN004", "PL002", "PB002"}
    assert ("SV001", f"{host}:{server.ports.grpc}") in plain.findings & unknown.findings
    assert "--server-ca-file" in plain.message("SV001")
    assert trusted.err == plain.err == unknown.err == ""


READER_RULES = [
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["list"]},
    {
        "apiGroups": ["inferencecache.io"],
        "resources": ["cachebackends", "cachetenants", "cachepolicies"],
        "verbs": ["list"],
    },
    {
        "apiGroups": ["worker.gpustack.ai"],
        "resources": ["kvcachebackends", "kvcachepools", "kvcachepoolbindings"],
        "verbs": ["list"],
    },
    {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
        "verbs": ["get"],
    },
    {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]},
]


async def reader(client: Client, namespace: str, rules: list[Manifest]) -> None:
    """Bind rules to the account `reader` of the namespace."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": namespace}}
    await client.apply({**role, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace}
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": namespace}
    await client.apply({**role, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]})


async def test_the_documented_role_is_enough_and_what_is_missing_is_named(
    control_plane: ControlPlane, client: Client, namespace: str, accounts: Accounts, tokens: Path, tmp_path: Path
) -> None:
    await made(client, own("CacheBackend", Key(namespace, "kv"), OFFLOAD), **ready())
    kubeconfig = kubeconfig_of(control_plane, await accounts.token("reader"), tmp_path / "reader.kubeconfig")

    async def api_failures() -> set[str]:
        ran = await run("inferencecache", "doctor", "-o", "json", "--config-only", kubeconfig=kubeconfig)
        return {resource for code, resource in ran.findings if code == "API001"}

    await reader(client, namespace, READER_RULES)
    await eventually(api_failures, lambda missing: not missing)
    await reader(client, namespace, READER_RULES[:1] + READER_RULES[3:])
    await eventually(api_failures, lambda missing: missing == {"Pod", "Event"})
    page = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()
    documented = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    assert documented["rules"] == READER_RULES


async def test_without_any_cluster_it_could_not_run(namespace: str, tmp_path: Path) -> None:
    ran = await run("inferencecache", "doctor", "--kubeconfig", tmp_path / "nowhere")
    assert (ran.exit, ran.out) == (3, "")
    assert "error: kubeconfig" in ran.err


async def test_kubectl_runs_it_as_a_plugin(
    control_plane: ControlPlane, namespace: str, tokens: Path, tmp_path: Path
) -> None:
    (tmp_path / "kubectl-inferencecache").symlink_to(SCRIPTS / "kubectl-inferencecache")
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    ran = await run(
        *(kubectl(), "inferencecache", "doctor", "--config-only", "-n", namespace, "-o", "json"),
        kubeconfig=control_plane.admin,
        environment=environment,
    )
    assert ran.exit == 0, ran.err
    assert json.loads(ran.out)["summary"]["exitCode"] == 0
    ran = await run(
        kubectl(),
        "inferencecache",
        "doctor",
        "--bogus",
        kubeconfig=control_plane.admin,
        environment=environment,
    )
    assert ran.exit == 3


async def test_nothing_is_written(control_plane: ControlPlane, client: Client, namespace: str, tokens: Path) -> None:
    await made(client, own("CacheBackend", Key(namespace, "kv"), OFFLOAD), **ready())
    await client.create(engine("engine-0", namespace, LABELS))
    keys = ((BACKENDS, Key(namespace, "kv")), (Pod.resource, Key(namespace, "engine-0")))
    before = [await client.get_manifest(*key) for key in keys]
    assert (await doctor(control_plane, "--config-only", "-n", namespace)).exit == 1
    assert [await client.get_manifest(*key) for key in keys] == before
