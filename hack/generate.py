"""Writes every file that follows from the code, or with --check says which of them are out of step.

    python hack/generate.py [--check]

Generated are the CRDs, the controller's ClusterRole, the roles of each kind, the webhook configurations, the alerts as
the Prometheus operator takes them, the Helm chart, the reference pages, the examples on the engines' pages and the
modules of the protobuf messages. They are committed: a reader and `kubectl apply -k` need nothing but the files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from chart import chart
from grpc_tools import protoc

from inferencecache.adapters.registry import load_adapters
from inferencecache.api.constants import GROUP
from inferencecache.api.kinds import KINDS
from inferencecache.api.schema import dump_crd, render_crd
from inferencecache.cli import install
from inferencecache.cli.output import to_yaml_stream
from inferencecache.cli.reference.api import api_page
from inferencecache.cli.reference.conditions import conditions_page
from inferencecache.cli.reference.examples import filled, samples_page
from inferencecache.cli.reference.flags import flags_page
from inferencecache.cli.reference.support import support_page

ROOT = Path(__file__).resolve().parent.parent
_HEADER = "# Generated from the code by `make generate`; change the code, not this file.\n"


def generated() -> dict[Path, str]:
    """Every generated file, by its path below the project's root."""
    manifests = Path("manifests")
    files = {
        manifests / "rbac" / "controller.yaml": to_yaml_stream(install.controller_rbac()),
        manifests / "rbac" / "users.yaml": to_yaml_stream(
            # Who may use the KV cache pool is for each cluster's administrator to say (spec 10 §15).
            [role for kind in KINDS if kind.resource.group == GROUP for role in install.user_roles(kind)]
        ),
        manifests / "webhook" / "configurations.yaml": to_yaml_stream(install.webhook_configurations()),
        manifests / "crd" / "kustomization.yaml": _kustomization([f"{kind.resource.plural}.yaml" for kind in KINDS]),
    }
    files[manifests / "observability" / "alerts-rule.yaml"] = to_yaml_stream([_alerts_rule()])
    crds = {manifests / "crd" / f"{kind.resource.plural}.yaml": dump_crd(render_crd(kind)) for kind in KINDS}
    return {path: _HEADER + text for path, text in files.items()} | crds | _pages() | _protobuf_modules()


def generated_from_manifests() -> dict[Path, str]:
    """The Helm chart. It is made from the manifests, so those have to be written first."""
    return {Path("charts") / "inferencecache" / path: text for path, text in chart(ROOT / "manifests").items()}


def _pages() -> dict[Path, str]:
    """The reference, the list of samples, and the pages of the engines with their blocks filled in."""
    reference, engines, samples = Path("docs") / "reference", Path("docs") / "engines", Path("manifests") / "samples"
    examples = {
        page.relative_to(ROOT): filled(page.read_text(), samples=ROOT / samples, engines=ROOT / engines)
        for page in sorted((ROOT / engines).glob("*.md"))
    }
    return {
        reference / "api.md": api_page(),
        reference / "flags.md": flags_page(),
        Path("docs") / "conditions.md": conditions_page(),
        reference / "support.md": support_page(*load_adapters()),
        samples / "README.md": samples_page(ROOT / samples),
        **examples,
    }


def _alerts_rule() -> dict[str, Any]:
    """The alerts in the form of the Prometheus operator, from the file that Prometheus itself reads (spec 09 §3.2)."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "inference-cache-alerts",
            "namespace": install.NAMESPACE,
            "labels": {
                "app.kubernetes.io/name": "inference-cache",
                "app.kubernetes.io/component": "observability",
                "prometheus": "k8s",
                "role": "alert-rules",
            },
        },
        "spec": yaml.safe_load((ROOT / "manifests" / "observability" / "alerts.yaml").read_text()),
    }


def _protobuf_modules() -> dict[Path, str]:
    package = Path("inferencecache") / "wire" / "v1alpha1"
    with tempfile.TemporaryDirectory() as out:
        source = package / "inferencecache.proto"
        if protoc.main(["", f"-I{ROOT}", f"--python_out={out}", f"--pyi_out={out}", str(ROOT / source)]) != 0:
            raise SystemExit(f"{source} does not compile")
        return {package / path.name: path.read_text() for path in (Path(out) / package).iterdir()}


def _kustomization(resources: list[str]) -> str:
    listed = "".join(f"  - {name}\n" for name in resources)
    return f"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{listed}"


def out_of_step(files: Mapping[Path, str]) -> list[Path]:
    """Those of these files that are not there, or differ."""
    return [p for p, text in files.items() if not (ROOT / p).exists() or (ROOT / p).read_text() != text]


def main() -> int:
    """Generate, or check; 1 when a check finds a difference."""
    parser = argparse.ArgumentParser(description="Write the files that follow from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of step")
    check = parser.parse_args().check
    failed = False
    for make in (generated, generated_from_manifests):
        files = make()
        for path in out_of_step(files):
            if check:
                failed = True
                print(f"{path} is out of step with the code; run `make generate`", file=sys.stderr)
            else:
                (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
                (ROOT / path).write_text(files[path])
                print(f"wrote {path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
