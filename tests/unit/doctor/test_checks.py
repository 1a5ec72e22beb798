"""Each situation leads to its code: one row per situation, and no code without a row."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from inferencecache.controllers.kvcachebackend import reasons as stores
from inferencecache.controllers.kvcachepool import reasons as bindings
from inferencecache.doctor.checks import examine
from inferencecache.doctor.checks.pools import HOLD_REMEDIES
from inferencecache.doctor.findings import CODES, Check, Finding, Status
from inferencecache.doctor.observe import Observations
from inferencecache.doctor.reading import ABSENT, Found, Read
from inferencecache.doctor.server import Health, ServerAnswers
from inferencecache.kube import pki
from tests.unit.doctor import seen as s

HEALTHY = {
    "SV003",
    "SN004",
    "PL002",
    "PB002",
    "CB006",
    "EP002",
    "CT002",
    "CP002",
    "KB005",
    "KP005",
    "KN006",
    "WH010",
    "CD004",
}

_LATE = {"indexParticipation": {"prefixCount": 7, "lastEventAt": s.stamp(s.LONG_AGO)}}
_NEVER = {"indexParticipation": None, "firstKVEventObservedAt": None}
_DELETED = {"deletionTimestamp": s.stamp(s.NOW)}


def _server(**changed: Any) -> dict[str, Any]:
    return {"server": s.server(**changed)}


def _backends(*items: Any, **more: Any) -> dict[str, Any]:
    return {"backends": s.read(*items), **more}


def _quiet(document: Any, **more: Any) -> dict[str, Any]:
    answer = s.answered("/snapshot", status=200, document=document)
    return {**_backends(s.backend(status=_LATE)), **_server(snapshot=answer), **more}


def _installed(*args: Any, **changed: Any) -> dict[str, Any]:
    return {"installation": s.installation(*args, **changed)}


def _without(*names: str) -> s.Edit:
    """Leaves webhooks out; a name that ends all of a half's names leaves that half out."""

    def edit(document: s.Document) -> None:
        document["webhooks"] = [one for one in s.webhooks_of(document) if not one["name"].endswith(names)]

    return edit


def _webhook(name: str, **changed: Any) -> s.Edit:
    """Changes one webhook."""

    def edit(document: s.Document) -> None:
        for one in s.webhooks_of(document):
            if one["name"] == name:
                one.update(changed)

    return edit


def _elsewhere(path: str) -> s.Document:
    service = {"name": "webhook-service", "namespace": "inference-cache-system", "path": path}
    return {"service": service, "caBundle": s.base64_of(s.CA.certificate)}


def _crd(plural: str, *path: str | int, value: Any = None) -> s.Edit:
    """Changes a field of one kind's CRD, or takes it away."""

    def edit(document: s.Document) -> None:
        if document["spec"]["names"]["plural"] == plural:
            node: Any = document
            for step in path[:-1]:
                node = node[step]
            if value is None:
                del node[path[-1]]
            else:
                node[path[-1]] = value

    return edit


def _kinds_without(*names: str) -> dict[str, Any]:
    whole = s.installation()
    missing = {name: ABSENT if name.partition(".")[0] in names else found for name, found in whole.kinds.items()}
    return _installed(kinds=missing)


_OTHER_CA = pki.make_ca("other", now=s.LONG_AGO, lifetime=timedelta(days=365))
_ALONE = s.serving(_OTHER_CA)
_POD, _MUTATING = (
    "mpod.inferencecache.io",
    "mutatingwebhookconfiguration/inference-cache-mutating-webhook-configuration",
)
_SERVICE = "service/inference-cache-system/webhook-service"
_SECRET = "secret/inference-cache-system/webhook-server-cert"
_INDICES = "customresourcedefinition/cacheindices.inferencecache.io"
_SCHEMA = ("spec", "versions", 0, "schema", "openAPIV3Schema", "properties")

ROWS: list[tuple[str, dict[str, Any], str, str, str]] = [
    # what is so, how it differs from good health, the code, the resource, and words of the message
    ("no server", {"server": ServerAnswers(None, discovery="gone")}, "SV001", "", "--server-endpoint"),
    ("gRPC silent", _server(health=Health(problem="UNAVAILABLE: x")), "SV001", "10.0.0.1:9090", "--server-tls"),
    ("not serving", _server(health=Health("NOT_SERVING")), "SV002", "10.0.0.1:9090", "NOT_SERVING"),
    (
        "8081 closed",
        _server(snapshot=s.answered("/snapshot", problem="no answer in time")),
        "SN001",
        "http://10.0.0.1:8081/snapshot",
        "NetworkPolicy",
    ),
    ("snapshot 500", _server(snapshot=s.answered("/snapshot", status=500)), "SN001", "", "HTTP 500"),
    ("snapshot moved", _server(snapshot=s.answered("/snapshot", status=302)), "SN001", "", "HTTP 302"),
    (
        "snapshot unreadable",
        _server(snapshot=s.answered("/snapshot", status=200, unreadable="it is no JSON")),
        "SN002",
        "",
        "no JSON",
    ),
    ("no token sent", _server(token_sent=False), "SN003", "", "not enforced"),
    ("token refused", _server(snapshot=s.answered("/snapshot", status=401)), "SN005", "", "token was refused"),
    (
        "token missing",
        _server(snapshot=s.answered("/snapshot", status=403), token_sent=False),
        "SN005",
        "",
        "inferencecache.io/controller",
    ),
    ("policy silent", _server(policy=s.answered("/policy", problem="refused")), "PL001", "", "--config-only"),
    ("policy missing", _server(policy=s.answered("/policy", status=404)), "PL001", "", "route"),
    ("policy failing", _server(policy=s.answered("/policy", status=500)), "PL003", "", "500"),
    ("probe silent", _server(probe=s.answered("/probe", problem="refused")), "PB001", "", "port-forward"),
    ("probe missing", _server(probe=s.answered("/probe", status=404)), "PB001", "", "route"),
    ("probe failing", _server(probe=s.answered("/probe", status=503)), "PB003", "", "503"),
    ("backends forbidden", {"backends": s.failed()}, "API001", "CacheBackend", "forbidden"),
    ("a backend unreadable", {"backends": Read((), unreadable=("ns/x: bad",))}, "API001", "CacheBackend", "ns/x"),
    (
        "no Ready condition",
        _backends(s.backend(status={"conditions": []})),
        "CB001",
        "cachebackend/ns/kv",
        "controller has not come",
    ),
    (
        "not Ready",
        _backends(s.backend(status={"conditions": [s.condition("Ready", "False", "R", "M")]})),
        "CB001",
        "cachebackend/ns/kv",
        "False, R: M",
    ),
    (
        "Ready unknown",
        _backends(s.backend(status={"conditions": [s.condition("Ready", "Unknown", "R", "M")]})),
        "CB001",
        "",
        "Unknown, R: M",
    ),
    (
        "HiCache that says it is not Ready",
        _backends(
            s.backend(
                runtime="SGLang",
                type="SGLangHiCache",
                remoteStorage=None,
                status={"conditions": [s.condition("Ready", "False")]},
            )
        ),
        "CB001",
        "",
        "False",
    ),
    (
        "matched 0 in status",
        _backends(s.backend(status={"matchedEnginePods": 0})),
        "CB002",
        "cachebackend/ns/kv",
        "LikelySelectorMismatch",
    ),
    (
        "matched 0 by counting",
        _backends(s.backend(status={"matchedEnginePods": None}), pods=s.read(s.pod(labels={"app": "x"}))),
        "CB002",
        "",
        "app=engine",
    ),
    (
        "Pods forbidden, so nothing can be counted",
        _backends(s.backend(status={"matchedEnginePods": None}), pods=s.failed()),
        "API001",
        "cachebackend/ns/kv",
        "CB002 is open",
    ),
    ("no event ever", _backends(s.backend(status=_NEVER)), "CB003", "", "EngineNotReportingState"),
    (
        "no event ever, sidecar heard",
        _backends(s.backend(status=_NEVER)),
        "CB003",
        "",
        "a sidecar reports load",
    ),
    ("no model to observe", _backends(s.backend(status=_NEVER, observation=None)), "CB003", "", "modelID"),
    ("sidecars silent", _quiet(s.snapshot(s.LONG_AGO)), "CB004", "", "EngineStale"),
    ("sidecars unknown to the server", _quiet(s.snapshot(None)), "CB004", "", "no sidecar"),
    ("another Pod is heard", _quiet(s.snapshot(replica="other")), "CB004", "", "no sidecar"),
    ("idle engines", _quiet(s.snapshot(s.RECENTLY)), "CB008", "cachebackend/ns/kv", "idle"),
    ("quiet, and the snapshot was not read", _backends(s.backend(status=_LATE), server=None), "CB008", "", "not read"),
    ("quiet, and Pods are unknown", _quiet(s.snapshot(), pods=s.failed()), "CB008", "", "not read"),
    ("no endpoint", _backends(s.backend(status={"endpoint": None})), "CB005", "", "status.endpoint is empty"),
    ("store dead", {"dials": {"kv.ns.svc:65432": "Connection refused"}}, "CB005", "", "Connection refused"),
    (
        "External store dead",
        _backends(
            s.backend(remoteStorage=s.EXTERNAL, status={"endpoint": "redis.ns:6379", **_NEVER, "matchedEnginePods": 0}),
            dials={"redis.ns:6379": "no such name"},
        ),
        "CB005",
        "",
        "no such name",
    ),
    (
        "probe failing for a backend",
        _backends(s.backend(status={"conditions": [s.condition("Ready"), s.condition("FunctionalProbeOK", "False")]})),
        "CB007",
        "",
        "False, Fine: told",
    ),
    ("Pods forbidden", {"pods": s.failed()}, "API001", "Pod", "forbidden"),
    ("Events forbidden", {"event_failures": ("core/v1: forbidden",)}, "API001", "Event", "core/v1"),
    ("no proof", {"pods": s.read(s.pod(**s.UNWIRED))}, "EP001", "pod/ns/engine-0", "recreate the Pod"),
    (
        "told why not",
        {"pods": s.read(s.pod(**s.UNWIRED)), "events": (s.event("NotInjected", message="status.endpoint is not"),)},
        "EP001",
        "",
        "status.endpoint is not",
    ),
    (
        "the annotation of another uid",
        {
            "pods": s.read(s.pod(injected_by="ns/kv", injected_by_uid="old")),
            "events": (s.event("InjectedByCacheBackend"),),
        },
        "EP001",
        "",
        "made anew",
    ),
    (
        "an annotation without a uid proves nothing",
        {"pods": s.read(s.pod(injected_by="ns/kv"))},
        "EP001",
        "",
        "no proof",
    ),
    (
        "an Event about a namesake proves nothing",
        {"pods": s.read(s.pod(**s.UNWIRED)), "events": (s.event("InjectedByCacheBackend", pod="other"),)},
        "EP001",
        "",
        "no proof",
    ),
    (
        "opted out",
        {"pods": s.read(s.pod(skip_inject="true", inject_skipped="skip-inject-annotation"))},
        "EP003",
        "pod/ns/engine-0",
        "skip-inject",
    ),
    (
        "left to its pool",
        {"pods": s.read(s.pod(labels={"app": "engine", "kvcache.gpustack.ai/inject": "true"}, **s.UNWIRED))},
        "EP003",
        "",
        "asks for a pool",
    ),
    (
        "left to its pool, but events were to be heard",
        _backends(
            s.backend(remoteStorage=None, integration={"mode": "EventsOnly"}),
            pods=s.read(s.pod(labels={"app": "engine", "kvcache.gpustack.ai/inject": "true"}, **s.UNWIRED)),
        ),
        "EP001",
        "",
        "no proof",
    ),
    ("orphan", {"events": (s.event("NoMatchingCacheBackend"),)}, "OP001", "pod/ns/engine-0", "LikelyOperatorMis"),
    (
        "orphan of unknown age",
        {"events": (s.event("NoMatchingCacheBackend", at=None),)},
        "OP001",
        "pod/ns/engine-0",
        "told",
    ),
    (
        "over quota",
        {"tenants": s.read(s.tenant(s.condition("QuotaExceeded", message="too many"), entries=None, quota=None))},
        "CT001",
        "cachetenant/ns/t",
        "team-a has unknown entries, quota unset: too many",
    ),
    (
        "a quota that is not in effect",
        {"tenants": s.read(s.tenant(s.condition("Ready", "False", message="too long an id")))},
        "CT002",
        "cachetenant/ns/t",
        "team-a has 5 entries, quota 10; it is not ready: too long an id",
    ),
    ("tenants forbidden", {"tenants": s.failed()}, "API001", "CacheTenant", "forbidden"),
    ("no policy", {"policies": s.read()}, "CP001", "namespace/ns", "defaults"),
    ("two policies", {"policies": s.read(s.policy("b"), s.policy("a"))}, "CP003", "namespace/ns", "2 CachePolicies: a"),
    ("policies forbidden", {"policies": s.failed()}, "API001", "CachePolicy", "forbidden"),
    ("store in error", {"stores": s.read(s.store("Error"))}, "KB001", "kvcachebackend/store", "Error: told"),
    ("store degraded", {"stores": s.read(s.store("Degraded"))}, "KB001", "", "Degraded: told"),
    ("store coming up", {"stores": s.read(s.store("Provisioning"))}, "KB002", "", "Provisioning"),
    ("store not looked at", {"stores": s.read(s.store(""))}, "KB002", "", "controller has not come"),
    (
        "store held",
        {"stores": s.read(s.store("Deleting", s.condition("Deletable", "False", "InUse", "by pool"), **_DELETED))},
        "KB003",
        "",
        "delete the pools",
    ),
    ("claim of no pool", {"stores": s.read(s.store(used_by=("pool", "gone")))}, "KB004", "", "not exist: gone"),
    ("stores forbidden", {"stores": s.failed()}, "API001", "KVCacheBackend", "forbidden"),
    ("pool in error", {"pools": s.read(s.pool("Error"))}, "KP001", "kvcachepool/pool", "Error: told"),
    ("pool coming up", {"pools": s.read(s.pool("Provisioning"))}, "KP002", "", "Provisioning"),
    (
        "pool held by bindings",
        {"pools": s.read(s.pool("Deleting", s.condition("Releasable", "False", "HeldByBindings"), **_DELETED))},
        "KP003",
        "",
        "delete the KVCachePoolBindings",
    ),
    (
        "pool held by its ledger",
        {"pools": s.read(s.pool("Deleting", s.condition("Releasable", "False", "LedgerNotReleased"), **_DELETED))},
        "KP003",
        "",
        "drained",
    ),
    (
        "oversubscribed",
        {"pools": s.read(s.pool("Ready", s.condition("QuotaWithinTotal", "False", "Oversubscribed", "3 of 2")))},
        "KP004",
        "",
        "Oversubscribed: 3 of 2",
    ),
    ("pools forbidden", {"pools": s.failed()}, "API001", "KVCachePool", "forbidden"),
    ("binding in error", {"bindings": s.read(s.binding("Error"))}, "KN001", "kvcachepoolbinding/ns/b", "Error: told"),
    ("binding coming up", {"bindings": s.read(s.binding(""))}, "KN002", "", "no phase yet"),
    *(
        (
            f"binding held, {reason}",
            {"bindings": s.read(s.binding("Deleting", s.condition("Releasable", "False", reason), **_DELETED))},
            "KN003",
            "",
            remedy,
        )
        for reason, remedy in (
            ("HeldByWorkloads", "remove the workloads"),
            ("LedgerNotReleased", "drained"),
            ("LedgerRequestFailed", "draining changes nothing"),
        )
    ),
    ("domain full", {"bindings": s.read(s.binding(usage="2048Ki"))}, "KN004", "", "2048Ki of 2Mi"),
    ("grant cut", {"bindings": s.read(s.binding(usage="3Mi", over=True))}, "KN004", "", "cut below"),
    ("no such pool", {"bindings": s.read(s.binding(pool="nope"))}, "KN005", "", "no KVCachePool nope"),
    ("claim of no backend", {"bindings": s.read(s.binding(used_by=("kv", "gone")))}, "KN007", "", "not exist: gone"),
    ("bindings forbidden", {"bindings": s.failed()}, "API001", "KVCachePoolBinding", "forbidden"),
    (
        "no webhook configuration",
        _installed(configurations=(ABSENT, ABSENT)),
        "WH001",
        _MUTATING,
        "apply the installation",
    ),
    (
        "configurations forbidden",
        _installed(configurations=(Found(failure="forbidden"), ABSENT)),
        "API001",
        "MutatingWebhookConfiguration",
        "forbidden",
    ),
    ("a webhook missing", _installed(_without(_POD)), "WH002", _MUTATING, _POD),
    (
        "failurePolicy changed",
        _installed(_webhook(_POD, failurePolicy="Fail")),
        "WH003",
        _MUTATING,
        f"{_POD} has failurePolicy Fail and not Ignore",
    ),
    ("rules changed", _installed(_webhook(_POD, rules=[])), "WH003", "", "other rules"),
    (
        "another path",
        _installed(_webhook(_POD, clientConfig=_elsewhere("/old"))),
        "WH003",
        "",
        "path /old and not /mutate--v1-pod",
    ),
    ("caBundle empty", _installed(bundle=b""), "WH004", _MUTATING, "is empty"),
    ("caBundle rubbish", _installed(bundle=b"x"), "WH004", "", "holds no certificate in"),
    (
        "caBundle expired",
        _installed(bundle=pki.make_ca("old", now=s.LONG_AGO, lifetime=timedelta(hours=2)).certificate),
        "WH004",
        "",
        "until 2026-06-01",
    ),
    ("one caBundle empty", _installed(_webhook(_POD, clientConfig={"url": "https://x"})), "WH004", "", f"in {_POD}:"),
    ("no Service", _installed(service=ABSENT), "WH005", _SERVICE, "is not there"),
    ("Service forbidden", _installed(service=Found(failure="forbidden")), "API001", "Service", "forbidden"),
    ("no endpoint", _installed(endpoints=()), "WH005", _SERVICE, "no endpoint is ready"),
    ("no ready endpoint", _installed(endpoints=(False,)), "WH005", _SERVICE, "no endpoint is ready"),
    ("endpoints forbidden", _installed(endpoints=s.failed()), "API001", "EndpointSlice", "forbidden"),
    ("certificate expired", _installed(certificate=s.serving(days=0.1)), "WH006", _SECRET, "valid from"),
    ("certificate of another name", _installed(certificate=s.serving(host="x")), "WH006", "", "webhook-service."),
    ("certificate of another CA", _installed(certificate=s.serving(_OTHER_CA)), "WH006", "", "not issued by"),
    ("certificate unreadable", _installed(certificate=b"x"), "WH006", "", "no certificate"),
    ("certificate old", _installed(certificate=s.serving(days=0.14)), "WH007", _SECRET, "overdue"),
    (
        "the Secret forbidden",
        _installed(certificate=Found(failure="forbidden")),
        "WH008",
        _SECRET,
        "not looked at: forbidden",
    ),
    ("no Secret", _installed(certificate=ABSENT), "WH008", _SECRET, "kept elsewhere"),
    ("a half without webhooks", _installed(_without("worker.gpustack.ai")), "WH009", "worker.gpustack.ai", "off"),
    ("a kind missing", _kinds_without("cacheindices"), "CD001", _INDICES, "CacheIndex"),
    (
        "a kind refused",
        _installed(crd=_crd("cachebackends", "status", value={"conditions": [s.condition("Established", "False")]})),
        "CD002",
        "customresourcedefinition/cachebackends.inferencecache.io",
        "Established is False: told",
    ),
    (
        "a version not served",
        _installed(crd=_crd("kvcachepools", "spec", "versions", 0, "name", value="v0")),
        "CD002",
        "",
        "version v1 is not served",
    ),
    (
        "an older kind",
        _installed(crd=_crd("cachebackends", *_SCHEMA, "spec", "properties", "engineSelector")),
        "CD003",
        "customresourcedefinition/cachebackends.inferencecache.io",
        "spec.engineSelector",
    ),
    (
        "a much older kind",
        _installed(crd=_crd("cachebackends", *_SCHEMA, "spec", "properties", value={"runtime": {}})),
        "CD003",
        "",
        "more is dropped",
    ),
    (
        "CRDs forbidden",
        _installed(kinds={name: Found(failure="forbidden") for name in s.installation().kinds}),
        "API001",
        "CustomResourceDefinition",
        "forbidden",
    ),
]


def found(seen: Observations) -> dict[str, Finding]:
    """One finding per code."""
    return {finding.code: finding for finding in examine(seen).findings}


@pytest.mark.parametrize(
    ("changed", "code", "resource", "words"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_a_situation_leads_to_its_code(changed: dict[str, Any], code: str, resource: str, words: str) -> None:
    findings = [one for one in examine(s.seen(**changed)).findings if one.code == code]
    match = [one for one in findings if words in one.message and resource in ("", one.resource)]
    assert match, f"{code} with {words!r} about {resource!r} is not among {findings}"


def test_every_code_has_a_row_or_belongs_to_good_health() -> None:
    assert {row[2] for row in ROWS} | HEALTHY == set(CODES)


def test_good_health_is_ok_throughout() -> None:
    report = examine(s.seen())
    assert {finding.code for finding in report.findings} == HEALTHY
    assert {finding.status for finding in report.findings} == {Status.OK}
    assert report.exit_code == 0


def test_the_checks_report_in_their_order() -> None:
    order = [finding.check for finding in examine(s.seen(events=(s.event("NoMatchingCacheBackend"),))).findings]
    assert list(dict.fromkeys(order)) == list(Check)


@pytest.mark.parametrize(
    ("changed", "absent"),
    [
        (_server(snapshot=s.answered("/snapshot", status=500)), {"SN003", "SN004"}),
        # what a namespace alone, or looking at objects alone, leaves out
        ({"server": None}, {"SV001", "SV003", "SN001", "SN004", "PL001", "PL002", "PB001", "PB002"}),
        ({"server": ServerAnswers(None, discovery="gone")}, {"SV003", "SN001", "PL001", "PB001"}),
        ({"stores": None, "pools": None}, {"KB005", "KP005", "KN005", "KB004", "API001"}),
        # clusters without the pools' kinds are in order
        (
            {name: s.failed(served=False) for name in ("stores", "pools", "bindings")},
            {"API001", "KB005", "KP005", "KN006"},
        ),
        # pools alone: no cache server is missed
        (
            {name: s.failed(served=False) for name in ("backends", "policies", "tenants")}
            | {"server": ServerAnswers(None, discovery="gone"), "pods": None},
            {"API001", "SV001", "CP001", "KN007"},
        ),
        ({"backends": s.failed(), "bindings": s.read(s.binding(used_by=("gone",)))}, {"KN007"}),
        # SGLang's own cache has no conditions by design
        (
            _backends(
                s.backend(
                    runtime="SGLang",
                    type="SGLangHiCache",
                    remoteStorage=None,
                    status={"conditions": [], "endpoint": None},
                )
            ),
            {"CB001", "CB005"},
        ),
        # External: Ready and endpoint only
        (
            _backends(
                s.backend(
                    remoteStorage=s.EXTERNAL,
                    status={
                        **_NEVER,
                        "matchedEnginePods": 0,
                        "conditions": [s.condition("Ready"), s.condition("FunctionalProbeOK", "False")],
                    },
                )
            ),
            {"CB002", "CB003", "CB004", "CB007", "CB008"},
        ),
        (_backends(s.backend(engineSelector=None, status={"matchedEnginePods": None}), pods=None), {"CB002", "API001"}),
        (_backends(s.backend(status={"indexParticipation": {"prefixCount": 0}})), {"CB003", "CB004", "CB008"}),
        # a Pod that has ended is no engine any more
        ({"pods": s.read(s.pod(phase="Succeeded", **s.UNWIRED))}, {"EP001", "EP002"}),
        ({"pods": s.read(s.pod(labels={"app": "web"}, **s.UNWIRED))}, {"EP001", "EP002"}),
        ({"events": (s.event("NoMatchingCacheBackend", at=s.NOW - timedelta(hours=25)),)}, {"OP001"}),
        ({"tenants": s.read(s.tenant(s.condition("QuotaExceeded", "False")))}, {"CT001"}),
        # a binding that is not observed, or granted nothing, discards nothing
        ({"bindings": s.read(s.binding(usage=None, grant=None))}, {"KN004"}),
        ({"bindings": s.read(s.binding(usage="0", grant="0"))}, {"KN004"}),
        # being deleted is no fault as long as nothing holds it
        ({"pools": s.read(s.pool("Deleting", **_DELETED))}, {"KP001", "KP002", "KP003"}),
        # a namespace alone has no webhooks and no kinds
        ({"installation": None}, {"API001", "WH001", "WH010", "CD001", "CD004"}),
        # either half alone is whole, and what it leaves behind when it is switched off is no fault
        (
            {name: s.failed(served=False) for name in ("stores", "pools", "bindings")}
            | _installed(_without("worker.gpustack.ai")),
            {"WH001", "WH002", "WH009"},
        ),
        (_installed(_without("inferencecache.io")), {"WH001", "WH002"}),
        (_kinds_without("kvcachebackends", "kvcachepools", "kvcachepoolbindings"), {"CD001"}),
        # the order of rules says nothing, and an endpoint that does not say is ready
        (_installed(endpoints=(False, None)), {"WH005"}),
        # a CA on its way in and one on its way out
        (
            _installed(certificate=s.serving(_OTHER_CA), bundle=s.CA.certificate + _OTHER_CA.certificate),
            {"WH004", "WH006"},
        ),
        # a certificate that is trusted itself
        (_installed(certificate=_ALONE, bundle=_ALONE), {"WH004", "WH006"}),
        (_installed(certificate=s.behind_an_intermediate()), {"WH006"}),
        # called at an address of its own, as a trial does, there is no Service and no Secret to look at
        (_installed(service_key=None, certificate=ABSENT, service=ABSENT), {"WH005", "WH006", "WH008"}),
        # a newer kind holds all that is written
        (_installed(crd=_crd("cachebackends", *_SCHEMA, "new", value={"type": "string"})), {"CD003"}),
        (
            _installed(
                crd=_crd("cachebackends", *_SCHEMA, "spec", value={"x-kubernetes-preserve-unknown-fields": True})
            ),
            {"CD003"},
        ),
        # one kind that cannot be read costs what is said of it, and of what is laid beside it
        ({"pools": s.failed()}, {"KN005", "KB004", "KP005"}),
        ({"policies": s.failed()}, {"CP001", "CP002"}),
    ],
)
def test_a_situation_leads_to_no_such_code(changed: dict[str, Any], absent: set[str]) -> None:
    assert not absent & found(s.seen(**changed)).keys()


def test_without_either_half_it_is_the_caches_that_are_missed() -> None:
    nothing = {
        name: s.failed(served=False) for name in ("backends", "policies", "tenants", "stores", "pools", "bindings")
    }
    missed = [one.resource for one in examine(s.seen(**nothing, pods=None)).findings if one.code == "API001"]
    assert missed == ["CacheBackend", "CacheTenant", "CachePolicy"]


def test_every_reason_that_holds_a_deletion_has_its_remedy() -> None:
    assert set(HOLD_REMEDIES) == {
        stores.IN_USE,
        bindings.HELD_BY_BINDINGS,
        bindings.HELD_BY_WORKLOADS,
        bindings.LEDGER_NOT_RELEASED,
        bindings.LEDGER_REQUEST_FAILED,
    }


def test_a_pod_is_wired_by_its_annotations_or_by_the_event_that_tells_of_it() -> None:
    assert "wired to CacheBackend kv" in found(s.seen())["EP002"].message
    told = found(s.seen(pods=s.read(s.pod(**s.UNWIRED)), events=(s.event("InjectedByCacheBackend"),)))["EP002"]
    assert "CacheBackend kv" not in told.message, "the Event does not say which one"


def test_of_overlapping_selectors_the_first_by_name_is_held_responsible() -> None:
    changed = _backends(s.backend("b"), s.backend("a"), pods=s.read(s.pod(**s.UNWIRED)))
    assert "CacheBackend a selects it" in found(s.seen(**changed))["EP001"].message


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "7 prefixes in the index; endpoint kv.ns.svc:65432 reachable"),
        ({"dials": {}}, "endpoint kv.ns.svc:65432 present"),
        (_backends(s.backend(remoteStorage=None)), "an endpoint is not applicable"),
        (_backends(s.backend(engineSelector=None)), "no engineSelector"),
        (_backends(s.backend(remoteStorage=s.EXTERNAL)), "not applicable"),
        (
            _backends(s.backend(runtime="SGLang", type="SGLangHiCache", remoteStorage=None, status={"conditions": []})),
            "publishes no Ready",
        ),
    ],
)
def test_a_backend_in_good_health_says_what_was_looked_at(changed: dict[str, Any], words: str) -> None:
    assert words in found(s.seen(**changed))["CB006"].message


def test_several_complaints_about_one_backend_come_together_and_without_ok() -> None:
    status = {"matchedEnginePods": 0, "endpoint": None, "conditions": [s.condition("FunctionalProbeOK", "False")]}
    codes = [one.code for one in examine(s.seen(**_backends(s.backend(status={**status, **_NEVER})))).findings]
    assert [code for code in codes if code.startswith("CB")] == ["CB001", "CB002", "CB003", "CB007", "CB005"]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({}, 0),
        ({"policies": s.read()}, 0),
        (_backends(s.backend(status={"endpoint": None})), 1),
        ({"backends": s.failed(), "policies": s.read()}, 2),
    ],
)
def test_the_worst_finding_decides_the_exit_code(changed: dict[str, Any], code: int) -> None:
    assert examine(s.seen(**changed)).exit_code == code


def test_nothing_that_was_read_can_make_the_checks_fail() -> None:
    for document in (None, [], {"replicas": 3}, {"replicas": [3, {"tenant": 4, "lastUpdate": "never"}]}):
        assert examine(s.seen(**_quiet(document))).findings
