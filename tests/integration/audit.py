"""What an identity asked of an API server, read from its audit log, beside what roles grant it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

# Discovery and health are granted to everybody.
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "nonResourceURLs": ["/*"]}, {"level": "Metadata"}],
}


class Use(NamedTuple):
    """A verb on a resource. `name` is empty where any object is meant, `namespace` where it is the whole cluster."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = "".join(f" {part}" for part in (self.name, f"in {self.namespace}" if self.namespace else "") if part)
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}{where}"


class Audit:
    """The log of one API server; `flags` are what it has to be started with."""

    def __init__(self, folder: Path) -> None:
        policy = folder / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(_POLICY))
        self._log = folder / "audit.log"
        self.flags = [f"--audit-policy-file={policy}", f"--audit-log-path={self._log}", "--audit-log-mode=blocking"]

    def used(self, user: str) -> set[Use]:
        """What a user was allowed to do, and did.

        An apply that made its object used `create` as well: the API server checks it within the same request.
        """
        return {use for event in self._events(user) if _allowed(event) for use in _uses(event)}

    def refused(self, user: str) -> set[Use]:
        """What a user tried, and no role allowed."""
        return {use for event in self._events(user) if not _allowed(event) for use in _uses(event)}

    def _events(self, user: str) -> Iterator[dict[str, Any]]:
        for line in self._log.read_text().splitlines():
            event: dict[str, Any] = json.loads(line)
            if event["user"]["username"] == user and "objectRef" in event:
                yield event


def _allowed(event: dict[str, Any]) -> bool:
    # What a handler finds to be forbidden, as `create` within an apply, was allowed before it came to that.
    return bool(
        event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow"
        and event.get("responseStatus", {}).get("code") != 403
    )


def _uses(event: dict[str, Any]) -> Iterator[Use]:
    found = event["objectRef"]
    resource = "/".join(part for part in (found["resource"], found.get("subresource")) if part)
    use = Use(event["verb"], found.get("apiGroup", ""), resource, found.get("namespace", ""), found.get("name", ""))
    yield use
    if event["verb"] == "patch" and event.get("responseStatus", {}).get("code") == 201:
        yield use._replace(verb="create")


def granted(manifests: Iterable[dict[str, Any]], account: str) -> set[Use]:
    """What roles in these manifests grant a ServiceAccount: one use for each verb, resource and name."""
    documents = list(manifests)
    roles = {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in documents}
    uses: set[Use] = set()
    for binding in documents:
        if not binding["kind"].endswith("RoleBinding") or account not in [s["name"] for s in binding["subjects"]]:
            continue
        reference, namespace = binding["roleRef"], binding["metadata"].get("namespace", "")
        of = namespace if reference["kind"] == "Role" else ""
        for rule in roles[reference["kind"], of, reference["name"]]["rules"]:
            uses |= {
                Use(verb, group, resource, namespace, name)
                for verb in rule["verbs"]
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for name in rule.get("resourceNames", [""])
            }
    return uses


def covers(grant: Use, use: Use) -> bool:
    """Whether a grant was exercised by a use."""
    return (
        grant[:3] == use[:3]
        and grant.namespace in ("", use.namespace)
        # The name of what is created is known only to the request's body; a watch of one object names it by selector.
        and (grant.name in ("", use.name) or not use.name)
    )
