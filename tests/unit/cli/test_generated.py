"""The committed files that follow from the code are in step with it, and say what the contract says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from inferencecache import __version__
from inferencecache.cli.install import controller_rbac, webhook_configurations
from inferencecache.webhooks.app import POD_PATH
from inferencecache.webhooks.handlers import Handlers
from inferencecache.webhooks.kvcache import PoolHandlers
from inferencecache.webhooks.kvcache_injection.handlers import PoolInjection

ROOT = Path(__file__).parents[3]


def test_generated_files_are_in_step() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "hack" / "generate.py", "--check"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_registered_webhook_is_served() -> None:
    nothing: Any = None
    handlers = Handlers(runtimes=nothing, settings=nothing, backends=nothing, siblings=nothing, unwired=nothing)
    registered = {
        webhook["clientConfig"]["service"]["path"]
        for configuration in webhook_configurations()
        for webhook in configuration["webhooks"]
    }
    pools = PoolHandlers(nothing, dtype_owned=True).objects, PoolInjection(nothing).paths
    assert registered == {POD_PATH, *handlers.objects, *pools[0], *pools[1]}


def test_only_pods_that_ask_for_a_pool_are_ever_blocked() -> None:
    """Decision A10; the webhook of the pool comes first, as the other may add a container."""
    mutating, validating = webhook_configurations()
    asking, pods, *kinds = mutating["webhooks"]
    *others, frozen = validating["webhooks"]
    assert (pods["name"], pods["failurePolicy"]) == ("mpod.inferencecache.io", "Ignore")
    assert (asking["name"], asking["failurePolicy"]) == ("mpodkvcache.worker.gpustack.ai", "Fail")
    assert asking["objectSelector"] == {"matchLabels": {"kvcache.gpustack.ai/inject": "true"}}
    assert asking["reinvocationPolicy"] == "Never"
    assert (frozen["name"], frozen["failurePolicy"]) == ("vpodkvcache.worker.gpustack.ai", "Ignore")
    assert all(webhook["failurePolicy"] == "Fail" for webhook in [*kinds, *others])
    assert all(webhook["timeoutSeconds"] for webhook in [*mutating["webhooks"], *validating["webhooks"]])


def test_kinds_are_validated_under_their_own_group() -> None:
    (_, validating) = webhook_configurations()
    (pool,) = (one for one in validating["webhooks"] if one["name"] == "vkvcachepool.worker.gpustack.ai")
    assert pool["clientConfig"]["service"]["path"] == "/validate-worker-gpustack-ai-v1-kvcachepool"
    assert pool["rules"] == [
        {
            "apiGroups": ["worker.gpustack.ai"],
            "apiVersions": ["v1"],
            "resources": ["kvcachepools"],
            "operations": ["CREATE", "UPDATE"],
        }
    ]
    assert {key: pool[key] for key in ("failurePolicy", "timeoutSeconds", "matchPolicy", "sideEffects")} == {
        "failurePolicy": "Fail",
        "timeoutSeconds": 10,
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
    }


def test_nobody_but_the_operator_is_given_the_kinds_of_the_pool() -> None:
    """Spec 10 §15."""
    users = (ROOT / "manifests" / "rbac" / "users.yaml").read_text()
    assert "worker.gpustack.ai" not in users


def test_an_address_replaces_the_service() -> None:
    (mutating, _) = webhook_configurations({"url": "https://127.0.0.1:1"})
    assert mutating["webhooks"][1]["clientConfig"] == {"url": f"https://127.0.0.1:1{POD_PATH}"}


def test_secrets_are_named() -> None:
    rules = [
        rule for manifest in controller_rbac() for rule in manifest.get("rules", ()) if "secrets" in rule["resources"]
    ]
    assert all(rule.get("resourceNames") for rule in rules if rule["verbs"] != ["create"])


def test_the_image_has_this_version() -> None:
    deployment = yaml.safe_load((ROOT / "manifests" / "controller" / "deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"inferencecache:{__version__}"
