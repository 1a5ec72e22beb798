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

ROOT = Path(__file__).parents[3]


def test_generated_files_are_in_step() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "hack" / "generate.py", "--check"],
        capture_output=True,
        text=True,
        timeout=120,
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
    assert registered == {POD_PATH, *handlers.objects, *PoolHandlers(nothing, dtype_owned=True).objects}


def test_webhooks_of_pods_never_block() -> None:
    mutating, validating = webhook_configurations()
    pods, *kinds = mutating["webhooks"]
    assert (pods["name"], pods["failurePolicy"]) == ("mpod.inferencecache.io", "Ignore")
    assert all(webhook["failurePolicy"] == "Fail" for webhook in [*kinds, *validating["webhooks"]])
    assert all(webhook["timeoutSeconds"] for webhook in [*mutating["webhooks"], *validating["webhooks"]])


def test_an_address_replaces_the_service() -> None:
    (mutating, _) = webhook_configurations({"url": "https://127.0.0.1:1"})
    assert mutating["webhooks"][0]["clientConfig"] == {"url": f"https://127.0.0.1:1{POD_PATH}"}


def test_secrets_are_named() -> None:
    rules = [
        rule for manifest in controller_rbac() for rule in manifest.get("rules", ()) if "secrets" in rule["resources"]
    ]
    assert all(rule.get("resourceNames") for rule in rules if rule["verbs"] != ["create"])


def test_the_image_has_this_version() -> None:
    deployment = yaml.safe_load((ROOT / "manifests" / "controller" / "deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"inferencecache:{__version__}"
