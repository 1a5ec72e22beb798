"""Parts die and come back, one at a time, and nothing that was there before is lost."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator

import yaml
from cryptography import x509

from e2e.backends import LMCACHE, PROMPT, REDIS, endpoint_of, engines_of, routed
from e2e.world import CONTROLLER, SERVER, SYSTEM, Manifest, World, has_condition, until
from hack.onenode.processes import ClusterError

TRIGGER = "inferencecache.io/cache-server-restart-trigger"
CERTIFICATE = "webhook-server-cert"
INJECTED = "inferencecache.io/injected-by"


def ready_with_a_prompt(world: World, name: str = "") -> tuple[list[Manifest], str]:
    """A backend that is ready, its engines, and a prompt that the first of them holds."""
    world.apply(LMCACHE.backend())
    endpoint_of(world, LMCACHE.name)
    world.apply(LMCACHE.engine())
    pods = engines_of(world, LMCACHE)
    prompt = f"{world.namespace} {name} {PROMPT * 3}"
    LMCACHE.prompt(pods[0], prompt)
    assert until(lambda: routed(world, LMCACHE, prompt)) == pods[0]["metadata"]["name"]
    until(lambda: has_condition(world.get("cachebackend", LMCACHE.name), "Ready", "True"), within=180)
    return pods, prompt


def killed(world: World, selector: str) -> None:
    """End a component's Pods as a crashed machine would: at once, without goodbye."""
    world.kubectl("delete", "pods", "--selector", selector, "--grace-period=0", "--force")


def test_engines_roll_once_when_their_cache_server_was_replaced(world: World) -> None:
    before, _ = ready_with_a_prompt(world)
    instance = world.get("cachebackend", LMCACHE.name)["status"]["observedServerInstance"]
    generation = world.get("deployment", "engine")["metadata"]["generation"]

    server = world.list("pods", "app.kubernetes.io/component=cache-server") or [
        pod for pod in world.list("pods") if pod["metadata"]["name"].startswith(f"{LMCACHE.name}-")
    ]
    world.kubectl("delete", "pod", server[0]["metadata"]["name"], "--grace-period=0", "--force")

    def rolled() -> Manifest | None:
        template = world.get("deployment", "engine")["spec"]["template"]["metadata"]
        return template if TRIGGER in template.get("annotations", {}) else None

    trigger = until(rolled, within=180)["annotations"][TRIGGER]
    world.rolled_out("engine")
    after = engines_of(world, LMCACHE)
    assert {pod["metadata"]["uid"] for pod in after}.isdisjoint(pod["metadata"]["uid"] for pod in before)
    assert trigger != instance
    until(lambda: world.get("cachebackend", LMCACHE.name)["status"]["observedServerInstance"] == trigger)

    # Once: long enough for several more passes, the Deployment is as it was after the one change.
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        assert world.get("deployment", "engine")["metadata"]["generation"] == generation + 1
        time.sleep(2)
    until(lambda: has_condition(world.get("cachebackend", LMCACHE.name), "Ready", "True"), within=180)


def test_a_killed_controller_comes_back_to_the_work_it_left(world: World, installed: World) -> None:
    pods, prompt = ready_with_a_prompt(world)
    killed(installed, "app.kubernetes.io/component=controller")

    # While nobody admits: Pods start, unwired; routing goes on.
    world.kubectl("scale", "deployment/engine", "--replicas=3")
    assert routed(world, LMCACHE, prompt) == pods[0]["metadata"]["name"]
    assert len(engines_of(world, LMCACHE, 3)) == 3
    installed.rolled_out(CONTROLLER)

    # What was declared meanwhile is done, and what was ready is again.
    until(lambda: world.apply(REDIS.backend()) or True)
    assert endpoint_of(world, REDIS.name)
    backend = until(
        lambda: has_condition(b := world.get("cachebackend", LMCACHE.name), "Ready", "True") and b, within=180
    )
    assert backend["status"]["firstKVEventObservedAt"]


def test_a_killed_server_is_told_again_what_engines_hold(world: World, installed: World) -> None:
    pods, prompt = ready_with_a_prompt(world)
    other = f"{world.namespace} other {PROMPT * 3}"
    LMCACHE.prompt(pods[1], other)
    assert until(lambda: routed(world, LMCACHE, other)) == pods[1]["metadata"]["name"]

    killed(installed, "app.kubernetes.io/component=server")
    installed.rolled_out(SERVER)

    assert until(lambda: routed(world, LMCACHE, prompt)) == pods[0]["metadata"]["name"]
    assert until(lambda: routed(world, LMCACHE, other)) == pods[1]["metadata"]["name"]
    until(lambda: has_condition(world.get("cachebackend", LMCACHE.name), "Ready", "True"), within=180)
    assert {pod["metadata"]["uid"] for pod in engines_of(world, LMCACHE)} == {pod["metadata"]["uid"] for pod in pods}


def test_etcd_is_away_for_a_while_and_engines_and_routing_do_not_notice(world: World, installed: World) -> None:
    pods, prompt = ready_with_a_prompt(world)

    def while_down() -> None:
        time.sleep(10)  # longer than a leader goes on without renewing its lease
        assert routed(world, LMCACHE, prompt, address) == pods[0]["metadata"]["name"]

    address = installed.server()
    world.cluster.restart("etcd", while_down=while_down)

    until(lambda: world.apply(REDIS.backend()) or True)
    assert endpoint_of(world, REDIS.name)
    until(lambda: has_condition(world.get("cachebackend", LMCACHE.name), "Ready", "True"), within=180)
    assert {pod["metadata"]["uid"] for pod in engines_of(world, LMCACHE)} == {pod["metadata"]["uid"] for pod in pods}
    installed.rolled_out(CONTROLLER)
    installed.rolled_out(SERVER)


def test_a_rotated_webhook_certificate_refuses_nobody(world: World, installed: World) -> None:
    world.apply(LMCACHE.backend())
    endpoint_of(world, LMCACHE.name)
    before = served_by(installed)

    installed.delete("secret", CERTIFICATE)

    refused: list[str] = []

    def rotated() -> bool:
        refused.extend(refusals(world))
        return served_by(installed) not in (b"", before)

    until(rotated, within=120, pause=0.2)
    until(rotated, within=10, pause=0.2)
    assert not refused
    bundle = installed.get("mutatingwebhookconfiguration", "inference-cache-mutating-webhook-configuration")
    trusted = base64.b64decode(bundle["webhooks"][0]["clientConfig"]["caBundle"])
    authorities = x509.load_pem_x509_certificates(trusted)
    current = x509.load_pem_x509_certificate(served_by(installed))
    assert any(authority.subject == current.issuer for authority in authorities)
    world.apply(LMCACHE.engine(replicas=1))
    (engine,) = engines_of(world, LMCACHE, 1)
    assert INJECTED in engine["metadata"]["annotations"]


def test_a_controller_that_is_replaced_refuses_nobody(world: World, installed: World) -> None:
    world.apply(LMCACHE.backend())
    endpoint_of(world, LMCACHE.name)
    (before,) = controllers(installed)
    refused: list[str] = []

    def replaced() -> bool:
        refused.extend(refusals(world))
        return before not in controllers(installed)

    installed.kubectl("rollout", "restart", f"deployment/{CONTROLLER}")
    until(replaced, within=120, pause=0.1)
    assert not refused
    installed.rolled_out(CONTROLLER)


def controllers(installed: World) -> set[str]:
    """The controller's Pods, also while they end."""
    selector = "app.kubernetes.io/component=controller"
    return set(installed.kubectl("get", "pods", "--selector", selector, "-o", "name").split())


def refusals(world: World) -> Iterator[str]:
    """What a user has to complain of at this moment: a change that is refused, and a Pod that is left unwired.

    The one is validated by a webhook, whose failure refuses; the other mutated by one, whose failure leaves it as is.
    """
    try:
        world.kubectl("annotate", "cachebackend", LMCACHE.name, f"at=t{time.monotonic_ns()}", "--overwrite")
        pod = world.kubectl("create", "--dry-run=server", "-o", "yaml", "-f", "-", document=pod_of(world))
    except ClusterError as error:
        yield str(error)
    else:
        if INJECTED not in pod:
            yield f"unwired: {pod}"


def served_by(installed: World) -> bytes:
    """The certificate in the Secret, nothing while there is none."""
    try:
        secret = installed.elsewhere(SYSTEM).get("secret", CERTIFICATE)
    except ClusterError:
        return b""
    return base64.b64decode(secret["data"]["tls.crt"])


def pod_of(world: World) -> str:
    """A Pod like those of the engines."""
    template = LMCACHE.engine()["spec"]["template"]
    metadata = {"name": "probe", **template["metadata"]}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
