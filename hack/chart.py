"""The Helm chart, made from what kustomize applies, so that there is one description of an installation.

A component of `manifests/components` is a change of the installation; in the chart it is a condition over the values.
Whatever a component adds, patches or deletes is put between `{{ if }}` and `{{ end }}` at the same place. To get there,
conditional parts of a document are replaced by markers while it is data, and markers by template lines once it is text.
Only the forms of patches that the components use are understood; another one ends the generation with an error.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from inferencecache import __version__
from inferencecache.api.constants import GROUP
from inferencecache.cli.install import NAMESPACE, POOL_NAMESPACE
from inferencecache.cli.output import to_yaml_stream

Manifest = dict[str, Any]

# In the order in which kustomize would apply them; the last ones delete what is off.
_CONDITIONS = {
    "cert-manager": ".Values.certManager.enabled",
    "server-tls": ".Values.serverTLS.enabled",
    "controllers": ".Values.highAvailability.enabled",
    "servers": ".Values.highAvailability.enabled",
    "peers": ".Values.highAvailability.enabled",
    "caches-only": "not .Values.pools.enabled",
    "pools-only": "not .Values.cacheBackends.enabled",
}
_LABEL = {"app.kubernetes.io/name": "inference-cache"}
_IMAGE = '"{{{{ .Values.{0}.repository }}}}:{{{{ .Values.{0}.tag | default .Chart.AppVersion }}}}"'
_LIST_MARKER = re.compile(r"^(\s*)- '?@@(\d+)'?$", re.MULTILINE)
_VALUE_MARKER = re.compile(r"(?<=: )'?@@(\d+)'?$", re.MULTILINE)
_KEY_MARKER = re.compile(r"^(\s*)'?@@(\d+)'?: null$", re.MULTILINE)


@dataclass
class Chart:
    """Documents under conditions, and what their markers stand for: template lines without indentation."""

    documents: list[tuple[list[str], Manifest]] = field(default_factory=list)
    marked: list[str] = field(default_factory=list)

    def marker(self, lines: str) -> str:
        """A marker for these lines."""
        self.marked.append(lines)
        return f"@@{len(self.marked) - 1}"

    def optional(self, condition: str, part: Any) -> str:
        """A marker for entries of a list or a mapping that are there under a condition."""
        return self.marker(f"{{{{- if {condition} }}}}\n{_dump(part)}{{{{- end }}}}\n")

    def text(self, manifest: Manifest) -> str:
        """A document with its markers resolved, and its namespaces chosen by the release and the values."""

        def indented(found: re.Match[str]) -> str:
            lines = self.marked[int(found[2])].splitlines()
            return "\n".join(line if line.startswith("{{-") else found[1] + line for line in lines)

        text = _VALUE_MARKER.sub(lambda found: self.marked[int(found[1])], _dump(manifest))
        for marker in (_LIST_MARKER, _KEY_MARKER):
            text = marker.sub(indented, text)
        text = text.replace(NAMESPACE, "{{ .Release.Namespace }}")
        return re.sub(rf"{POOL_NAMESPACE}(?![\w-])", "{{ .Values.pools.namespace }}", text)


def chart(manifests: Path) -> dict[Path, str]:
    """The files of the chart by their path below it, from the folder of manifests."""
    made = Chart([([], _labelled(document)) for document in _base(manifests)])
    values = _values(made)
    for name, condition in _CONDITIONS.items():
        _apply(made, manifests / "components" / name, condition)
    for component, manifest in _deployments(made):
        # Last, as of a flag that is given twice the last counts.
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        more = f"{{{{- range .Values.{component}.extraArgs }}}}\n- {{{{ . | quote }}}}\n{{{{- end }}}}\n"
        container["args"].append(made.marker(more))
    return {
        Path("Chart.yaml"): _dump(_ABOUT),
        Path("values.yaml"): values,
        Path("templates") / "installation.yaml": "---\n".join(
            _under(conditions, made.text(manifest)) for conditions, manifest in made.documents
        ),
        Path("templates") / "crds.yaml": _CRDS,
        Path("templates") / "monitoring.yaml": _under([".Values.monitoring.enabled"], _monitoring(manifests)),
        **_files(manifests),
    }


_ABOUT = {
    "apiVersion": "v2",
    "name": "inferencecache",
    "description": "KV-cache offload and cache-aware routing for LLM inference engines",
    "type": "application",
    "version": __version__,
    "appVersion": __version__,
    "kubeVersion": ">=1.30.0-0",
}

_CRDS = """{{- if .Values.crds.install }}
{{- if .Values.cacheBackends.enabled }}
{{- range $_, $crd := .Files.Glob "files/crds/caches/*.yaml" }}
---
{{ toString $crd }}
{{- end }}
{{- end }}
{{- if .Values.pools.enabled }}
{{- range $_, $crd := .Files.Glob "files/crds/pools/*.yaml" }}
---
{{ toString $crd }}
{{- end }}
{{- end }}
{{- end }}
"""

_VALUES = """# The defaults are the installation of manifests/default.

# Of the controller and the server; tag: the chart's appVersion where it is empty.
image:
  repository: inferencecache
  tag: ""
# Of the sidecar that is injected into engine Pods.
subscriberImage:
  repository: inferencecache-subscriber
  tag: ""
imagePullSecrets: []

# The two halves: group inferencecache.io, with the server, and group worker.gpustack.ai.
cacheBackends:
  enabled: true
pools:
  enabled: true
  # Where the stores of KVCacheBackends run; made by the release, open to privileged Pods.
  namespace: inference-cache-pools

# Uninstalling leaves the CRDs, and with them all objects, and the stores' namespace where they are.
crds:
  install: true

# Two controllers, and two servers that are both told everything.
highAvailability:
  enabled: false
# Certificates of the webhooks from cert-manager, instead of from the controller itself.
certManager:
  enabled: false
# gRPC of the server behind TLS, with certificates from cert-manager.
serverTLS:
  enabled: false
# Scraping, alerts and a dashboard; needs the kinds of the Prometheus operator.
monitoring:
  enabled: false

"""


def _base(manifests: Path) -> list[Manifest]:
    """What `manifests/default` installs, without the CRDs and the namespace that the release is in."""
    folders = [manifests / name for name in ("rbac", "webhook", "controller", "server")]
    files = [manifests / "default" / "namespaces.yaml", *(file for folder in folders for file in _resources(folder))]
    documents = [document for file in files for document in _load(file)]
    documents = [one for one in documents if (one["kind"], one["metadata"]["name"]) != ("Namespace", NAMESPACE)]
    return [_kept(one) if one["kind"] == "Namespace" else one for one in documents]


def _kept(manifest: Manifest) -> Manifest:
    """With the mark that a release which ends leaves it where it is: others have something in it."""
    manifest["metadata"].setdefault("annotations", {})["helm.sh/resource-policy"] = "keep"
    return manifest


def _resources(folder: Path) -> list[Path]:
    (kustomization,) = _load(folder / "kustomization.yaml")
    return [folder / name for name in kustomization.get("resources", ())]


def _labelled(manifest: Manifest) -> Manifest:
    """With the label that the installation puts on everything."""
    manifest["metadata"].setdefault("labels", {}).update(_LABEL)
    return manifest


def _values(made: Chart) -> str:
    """Let images, resources and pull secrets of both Deployments be values; all values with their defaults."""
    defaults: Manifest = {}
    for name, manifest in _deployments(made):
        spec = manifest["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        defaults[name] = {"resources": container.pop("resources"), "extraArgs": []}
        container[made.marker(f"resources:\n{{{{- toYaml .Values.{name}.resources | nindent 10 }}}}\n")] = None
        container["image"] = made.marker(_IMAGE.format("image"))
        for variable in container.get("env", ()):
            if variable["name"] == "SUBSCRIBER_IMAGE":
                variable["value"] = made.marker(_IMAGE.format("subscriberImage"))
        spec[made.marker(_PULL_SECRETS)] = None
    return _VALUES + _dump(defaults)


def _deployments(made: Chart) -> list[tuple[str, Manifest]]:
    found = [manifest for _, manifest in made.documents if manifest["kind"] == "Deployment"]
    return [(one["metadata"]["labels"]["app.kubernetes.io/component"], one) for one in found]


_PULL_SECRETS = """{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 6 }}
{{- end }}
"""


def _apply(made: Chart, folder: Path, condition: str) -> None:
    """Put a component's changes under its condition."""
    (kustomization,) = _load(folder / "kustomization.yaml")
    for patch in kustomization.get("patches", ()):
        text = patch.get("patch") or (folder / patch["path"]).read_text()
        change = yaml.safe_load(text)
        for conditions, manifest in made.documents:
            if not _matches(patch.get("target") or _target_of(change), manifest):
                continue
            if isinstance(change, list):
                for operation in change:
                    _add(made, manifest, operation, condition)
            elif change.get("$patch") == "delete":
                conditions.append(_negated(condition))
            elif "webhooks" in change:
                _without_webhooks(made, manifest, change["webhooks"], condition)
            else:
                _merge(made, manifest, change, condition)
    for file in _resources(folder):
        made.documents += [([condition], document) for document in _load(file)]


def _target_of(change: Manifest) -> Manifest:
    return {"kind": change["kind"], "name": re.escape(change["metadata"]["name"])}


def _matches(target: Manifest, manifest: Manifest) -> bool:
    group = manifest["apiVersion"].rpartition("/")[0]
    return bool(
        target.get("group", group) == group
        and target.get("kind", manifest["kind"]) == manifest["kind"]
        and re.fullmatch(target.get("name", ".*"), manifest["metadata"]["name"])
    )


def _add(made: Chart, manifest: Manifest, operation: Manifest, condition: str) -> None:
    """An `add` of a JSON patch: to the end of a list, or of a field that is not there."""
    *path, last = operation["path"].strip("/").split("/")
    parent: Any = manifest
    for step in path:
        parent = parent[int(step)] if isinstance(parent, list) else parent[step]
    if operation["op"] == "add" and last == "-":
        parent.append(made.optional(condition, [operation["value"]]))
    elif operation["op"] == "add" and last not in parent:
        parent[made.optional(condition, {last: operation["value"]})] = None
    else:
        raise ValueError(f"the chart has no form for {operation}")


def _without_webhooks(made: Chart, manifest: Manifest, gone: Sequence[Manifest], condition: str) -> None:
    names = {webhook["name"] for webhook in gone if webhook["$patch"] == "delete"}
    manifest["webhooks"] = [
        made.optional(_negated(condition), [webhook])
        if isinstance(webhook, dict) and webhook["name"] in names
        else webhook
        for webhook in manifest["webhooks"]
    ]


def _merge(made: Chart, manifest: Manifest, change: Manifest, condition: str) -> None:
    """A patch of a Deployment: its replicas, fields that are new to its Pods, and entries to their lists."""
    spec, changed = manifest["spec"], copy.deepcopy(change["spec"])
    if "replicas" in changed:
        number = f"{{{{ ternary {changed.pop('replicas')} {spec['replicas']} ({condition}) }}}}"
        spec["replicas"] = made.marker(number)
    pod, added = spec["template"]["spec"], changed.pop("template")["spec"]
    places = [(pod, added)]
    if "containers" in added:
        ((container,), (more,)) = (pod["containers"], added.pop("containers"))
        more.pop("name")
        places.append((container, more))
    for there, new in places:
        for name, value in new.items():
            if name in there:
                there[name].append(made.optional(condition, value))
            else:
                there[made.optional(condition, {name: value})] = None
    if changed:
        raise ValueError(f"the chart has no form for {changed}")


def _negated(condition: str) -> str:
    return condition.removeprefix("not ") if condition.startswith("not ") else f"not {condition}"


def _under(conditions: Sequence[str], text: str) -> str:
    if not conditions:
        return text
    test = conditions[0] if len(conditions) == 1 else f"and {' '.join(f'({one})' for one in conditions)}"
    return f"{{{{- if {test} }}}}\n{text}{{{{- end }}}}\n"


def _monitoring(manifests: Path) -> str:
    """Texts that have braces of their own are read from files, which are no templates."""
    folder = manifests / "observability"
    (rule,) = _load(folder / "alerts-rule.yaml")
    del rule["spec"]
    (kustomization,) = _load(folder / "kustomization.yaml")
    (generated,) = kustomization["configMapGenerator"]
    metadata = {name: generated[name] for name in ("name", "namespace")} | {"labels": generated["options"]["labels"]}
    board = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    texts = [
        *map(_dump, _load(folder / "scraping.yaml")),
        _dump(rule) + 'spec:\n{{ .Files.Get "files/alerts.yaml" | indent 2 }}\n',
        _dump(board) + 'data:\n  inference-cache.json: |\n{{ .Files.Get "files/dashboard.json" | indent 4 }}\n',
    ]
    return "---\n".join(texts).replace(NAMESPACE, "{{ .Release.Namespace }}")


def _files(manifests: Path) -> dict[Path, str]:
    files = {
        Path("files") / name: (manifests / "observability" / name).read_text()
        for name in ("alerts.yaml", "dashboard.json")
    }
    for path in _resources(manifests / "crd"):
        (crd,) = _load(path)
        half = "caches" if crd["spec"]["group"] == GROUP else "pools"
        files[Path("files") / "crds" / half / path.name] = _dump(_kept(crd))
    return files


def _load(path: Path) -> list[Manifest]:
    return list(yaml.load_all(path.read_text(), yaml.CSafeLoader))


def _dump(document: Any) -> str:
    return to_yaml_stream([document])
