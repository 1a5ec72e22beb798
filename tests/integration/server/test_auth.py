"""Authentication against a real API server: ServiceAccount tokens with audiences (spec 06 §4.5, decision D9)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
import yaml

from inferencecache.kube.client import Client
from inferencecache.kube.connection import connect
from inferencecache.kube.envtest import ControlPlane
from inferencecache.server import tokenreview
from inferencecache.server.auth import ReviewUnavailable
from inferencecache.server.tokenreview import TokenReviews
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb
from tests.integration.kube.waiting import eventually
from tests.integration.server.running import Running, Stub, calling, get, lookup, request, running, update

RBAC = Path(__file__).parents[3] / "manifests" / "server" / "rbac.yaml"
CONTROLLER, POLICY, INGESTION = (f"inferencecache.io/{name}" for name in ("controller", "policy", "ingestion"))
A = b"\x01" * 8


class Accounts:
    """ServiceAccounts of one namespace, and tokens of theirs."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    async def token(self, account: str, *audiences: str) -> str:
        manifest = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": account, "namespace": self.namespace},
        }
        await self._client.apply(manifest)
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": list(audiences), "expirationSeconds": 600},
        }
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        answer = json.loads(await self._client.request("POST", path, body=body))
        token: str = answer["status"]["token"]
        return token


@pytest.fixture
def accounts(client: Client, namespace: str) -> Accounts:
    return Accounts(client, namespace)


def kubeconfig(control_plane: ControlPlane, token: str, file: Path) -> Path:
    """The way to the API server with a token."""
    config = yaml.safe_load(control_plane.admin.read_text())
    config["users"][0]["user"] = {"token": token}
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.fixture
async def server_identity(
    control_plane: ControlPlane, client: Client, accounts: Accounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let servers of this process reach the API server as one that may do what the manifests allow, and no more."""
    token = await accounts.token("inference-cache-server")
    for manifest in yaml.safe_load_all(RBAC.read_text()):
        if manifest["kind"] == "ClusterRoleBinding":
            manifest["metadata"]["name"] = accounts.namespace
            manifest["subjects"][0]["namespace"] = accounts.namespace
        if manifest["kind"] != "ServiceAccount":
            await client.apply(manifest)
    way = kubeconfig(control_plane, token, tmp_path / "server.kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(way))
    monkeypatch.setattr(tokenreview, "TIMEOUT", timedelta(seconds=60))  # a busy API server may take that long
    async with await connect(way) as connection:
        reviews = TokenReviews(Client(connection, field_manager="test"))

        async def permitted() -> bool:
            try:
                await reviews.review(token, [])
            except ReviewUnavailable:
                return False
            return True

        await eventually(permitted, bool)  # the API server hears of roles in its own time


@asynccontextmanager
async def guarded(accounts: Accounts, **settings: object) -> AsyncIterator[Running]:
    """A server for the controller's ServiceAccount in the test's namespace."""
    username = f"system:serviceaccount:{accounts.namespace}:controller"
    async with running(allowed_controller_sa=username, **settings) as server:
        yield server


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.usefixtures("server_identity")
async def test_each_endpoint_takes_the_controllers_token_with_its_own_audience_and_no_other(
    accounts: Accounts,
) -> None:
    tokens = {
        "controller": await accounts.token("controller", CONTROLLER),
        "policy": await accounts.token("controller", POLICY),
        "stranger": await accounts.token("stranger", CONTROLLER, POLICY),
        "garbage": "abc",
    }
    async with guarded(accounts) as server:
        seen = {
            (path, name): (await get(server.url(path), headers=bearer(token)))[0]
            for path in ("/snapshot", "/policy", "/probe")
            for name, token in tokens.items()
        }
        bare = [(await get(server.url(path)))[0] for path in ("/snapshot", "/policy", "/probe")]
        _, metrics = await get(server.url("/metrics"))
    # 405 is the answer of an endpoint that let the caller in: these are all GETs.
    assert seen == {
        ("/snapshot", "controller"): 200,
        ("/snapshot", "policy"): 401,
        ("/snapshot", "stranger"): 403,
        ("/snapshot", "garbage"): 401,
        ("/policy", "controller"): 401,
        ("/policy", "policy"): 405,
        ("/policy", "stranger"): 403,
        ("/policy", "garbage"): 401,
        ("/probe", "controller"): 405,
        ("/probe", "policy"): 401,
        ("/probe", "stranger"): 403,
        ("/probe", "garbage"): 401,
    }
    assert bare == [401, 401, 401]
    for endpoint in ("snapshot", "policy", "probe"):
        for result, count in (("ok", 1), ("unauth", 3), ("forbidden", 1)):
            assert f'inferencecache_{endpoint}_auth_total{{result="{result}"}} {count}.0' in metrics


@pytest.mark.usefixtures("server_identity")
async def test_public_endpoints_ask_for_nothing(accounts: Accounts) -> None:
    async with guarded(accounts) as server:
        assert (await get(server.url("/readyz")))[0] == 200
        assert (await request("POST", server.url("/v1/lookup-route"), data="{}"))[0] == 200


async def test_without_permission_to_review_nobody_enters(
    accounts: Accounts, control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await accounts.token("controller", CONTROLLER)
    nobody = await accounts.token("nobody")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(control_plane, nobody, tmp_path / "nobody.kubeconfig")))
    async with guarded(accounts) as server:
        status, body = await get(server.url("/snapshot"), headers=bearer(token))
    assert (status, body) == (503, "token review unavailable\n")


async def test_a_review_of_an_api_server_that_says_nothing_sensible_is_unavailable() -> None:
    class Nonsense:
        def __init__(self, answer: bytes) -> None:
            self._answer = answer

        async def request(self, *_args: object, **_more: object) -> bytes:
            return self._answer

    for answer in (b"{}", b"not json", b'{"status":null}', b'{"status":{"authenticated":"yes"}}'):
        with pytest.raises(ReviewUnavailable):
            await TokenReviews(Nonsense(answer)).review("t", ["a"])  # type: ignore[arg-type]


# -- reports -----------------------------------------------------------------------------------------------------------


def metadata(token: str) -> Sequence[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


@pytest.mark.usefixtures("server_identity")
async def test_guarded_ingestion_takes_reports_of_a_service_account_for_its_own_namespace(accounts: Accounts) -> None:
    token = await accounts.token("engine", INGESTION)
    own = accounts.namespace
    async with guarded(accounts, ingestion_audience=INGESTION) as server, calling(server) as stub:
        report, publish = stub.method("ReportCacheState"), stub.method("PublishEvent")
        assert (await report(iter([update("pod-a", [A], tenant_id=own)]), metadata=metadata(token))).accepted
        assert (await stub.lookup([A], tenant_id=own)).reason_code == "PREFIX_MATCH"
        event = pb.CacheEvent(type=pb.CacheEvent.ALL_CLEARED, replica_id="pod-a", model_id="m", tenant_id=own)
        for _ in range(2):
            assert (await publish(event, metadata=metadata(token))).accepted
        assert not (await stub.lookup([A], tenant_id=own)).replica_scores


@pytest.mark.usefixtures("server_identity")
async def test_guarded_ingestion_refuses_all_others_and_changes_nothing(accounts: Accounts) -> None:
    engine = await accounts.token("engine", INGESTION)
    wrong = await accounts.token("engine", CONTROLLER)
    own, other = accounts.namespace, "another-namespace"
    expected = [
        ((), own, grpc.StatusCode.UNAUTHENTICATED),
        (metadata("abc"), own, grpc.StatusCode.UNAUTHENTICATED),
        (metadata(wrong), own, grpc.StatusCode.UNAUTHENTICATED),
        (metadata(engine), other, grpc.StatusCode.PERMISSION_DENIED),
    ]
    async with guarded(accounts, ingestion_audience=INGESTION) as server, calling(server) as stub:
        for credentials, tenant, code in expected:
            assert await refusal(stub, "ReportCacheState", update("pod-a", [A], tenant_id=tenant), credentials) is code
            event = pb.CacheEvent(type=pb.CacheEvent.ALL_CLEARED, tenant_id=tenant)
            assert await refusal(stub, "PublishEvent", event, credentials) is code
        for tenant in (own, other):
            reply = await stub.method("LookupRoute")(lookup([A], tenant_id=tenant))
            assert reply.reason_code == "NO_HINT"


async def refusal(stub: Stub, name: str, message: object, credentials: Sequence[tuple[str, str]]) -> grpc.StatusCode:
    method = stub.method(name)
    sent = iter([message]) if name == "ReportCacheState" else message
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await method(sent, metadata=credentials)
    return refused.value.code()


@pytest.mark.usefixtures("server_identity")
async def test_guarded_ingestion_guards_json_too(accounts: Accounts) -> None:
    token = await accounts.token("engine", INGESTION)
    own = {"tenantId": accounts.namespace, "modelId": "m", "replicaId": "pod-a", "hashScheme": "vllm"}
    async with guarded(accounts, ingestion_audience=INGESTION) as server:
        for path, body in (("/v1/cache-state", own), ("/v1/events", {"tenantId": accounts.namespace})):
            url, data = server.url(path), json.dumps(body)
            assert (await request("POST", url, data=data))[0] == 401
            assert (await request("POST", url, data=data, headers=bearer(token)))[0] == 200
            foreign = json.dumps(body | {"tenantId": "another"})
            status, answer = await request("POST", url, data=foreign, headers=bearer(token))
            assert status == 403
            assert "another" in json.loads(answer)["error"]["message"]
