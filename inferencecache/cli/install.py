"""The parts of an installation that follow from the code: webhook configurations and roles.

`hack/generate.py` writes them below `manifests/`, and the quickstart applies the same configurations with the address
replaced by its own, so what a trial shows is what an installation gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.api.constants import GROUP
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.model import CustomObject
from inferencecache.controllers.rbac import pool_rules, rbac_rules, store_rules
from inferencecache.webhooks.kvcache_injection.handlers import MUTATING_PATH, VALIDATING_PATH
from inferencecache.webhooks.kvcache_injection.keys import (
    ANNOTATION_CLIENT_CONFIG,
    ANNOTATION_INJECTED,
    INJECT,
    LABEL_INJECT,
)

NAMESPACE: Final = "inference-cache-system"
POOL_NAMESPACE: Final = "inference-cache-pools"
"""Where stores run: a namespace of its own, as RDMA needs more than the operator's namespace permits."""
WEBHOOK_SERVICE: Final = "webhook-service"
MUTATING_CONFIGURATION: Final = "inference-cache-mutating-webhook-configuration"
VALIDATING_CONFIGURATION: Final = "inference-cache-validating-webhook-configuration"
CERTIFICATE_SECRET: Final = "webhook-server-cert"
CONTROLLER: Final = "inference-cache-controller-manager"
MANAGER_ROLE: Final = "inference-cache-manager-role"
POOLS_ROLE: Final = "inference-cache-pools-role"
STORES_ROLE: Final = "inference-cache-stores-role"
LEADER_ELECTION_ROLE: Final = "inference-cache-leader-election-role"
CERTIFICATES_ROLE: Final = "inference-cache-webhook-certificates-role"

# The kinds that have admission webhooks; the others are held to their schema alone (spec 02 §1, spec 10 §4).
_DEFAULTED: Final = (CacheBackend, CachePolicy, CacheTenant)
_VALIDATED: Final = (*_DEFAULTED, KVCacheBackend, KVCachePool, KVCachePoolBinding)

_NO_MIRROR_POD: Final = {
    "name": "is-not-a-mirror-pod",
    "expression": "!has(object.metadata.annotations) || "
    "!('kubernetes.io/config.mirror' in object.metadata.annotations)",
}
# A Pod is of interest if a selector can match it (it has labels) or it carries an annotation of ours; a selector
# without labels never matches (spec 03 §4). The kubelet's mirror Pods are descriptions of what already runs.
_POD_CONDITIONS: Final = [
    {
        "name": "has-labels-or-our-annotations",
        "expression": "(has(object.metadata.labels) && size(object.metadata.labels) > 0) || "
        "(has(object.metadata.annotations) && "
        f"object.metadata.annotations.exists(name, name.startsWith('{GROUP}/')))",
    },
    _NO_MIRROR_POD,
]
# What was injected stays as it is. Annotations cannot be selected, so the API server looks at them itself.
_FROZEN_POD: Final = {
    "name": "carries-a-frozen-key",
    "expression": "[object, oldObject].exists(pod, "
    f"(has(pod.metadata.labels) && '{LABEL_INJECT}' in pod.metadata.labels) || (has(pod.metadata.annotations) && "
    f"('{ANNOTATION_INJECTED}' in pod.metadata.annotations || "
    f"'{ANNOTATION_CLIENT_CONFIG}' in pod.metadata.annotations)))",
}
# Neither the cluster's own Pods nor ours wait for a webhook of ours (decision A9).
_PODS_OF_OTHERS: Final = {
    "matchExpressions": [
        {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["kube-system", NAMESPACE, POOL_NAMESPACE],
        }
    ]
}


def service_address(path: str) -> dict[str, Any]:
    """How an installed webhook is reached: through the Service. The controller fills in `caBundle`."""
    return {"service": {"name": WEBHOOK_SERVICE, "namespace": NAMESPACE, "path": path, "port": 443}}


def webhook_configurations(address: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Both webhook configurations (spec 02 §1, decision A9).

    Args:
        address: a `clientConfig` without path, such as `{"url": "https://127.0.0.1:9443"}`; the Service when omitted.
    """

    def client_config(path: str) -> dict[str, Any]:
        if address is None:
            return service_address(path)
        return {**address, "url": f"{address['url']}{path}"}

    mutating = [
        # Before the next one, which may add a container: a Pod with one container need not say which is the engine's.
        {
            "name": f"mpodkvcache.{KVCachePool.resource.group}",
            "clientConfig": client_config(MUTATING_PATH),
            "rules": [_pods("CREATE")],
            # Whoever sets the label asks for a pool: the Pod starts with it or not at all (decision A10).
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "reinvocationPolicy": "Never",
            "timeoutSeconds": 10,
            "namespaceSelector": _PODS_OF_OTHERS,
            "objectSelector": {"matchLabels": {LABEL_INJECT: INJECT}},
            "matchConditions": [_NO_MIRROR_POD],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        },
        {
            "name": "mpod.inferencecache.io",
            "clientConfig": client_config("/mutate--v1-pod"),
            "rules": [_pods("CREATE")],
            # Pods must start whether or not this operator lives (decision A1); the handler answers within two seconds.
            "failurePolicy": "Ignore",
            "timeoutSeconds": 3,
            "namespaceSelector": _PODS_OF_OTHERS,
            "matchConditions": _POD_CONDITIONS,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        },
        *(_kind_webhook("mutate", kind, client_config) for kind in _DEFAULTED),
    ]
    return [
        _configuration("MutatingWebhookConfiguration", MUTATING_CONFIGURATION, mutating),
        _configuration(
            "ValidatingWebhookConfiguration",
            VALIDATING_CONFIGURATION,
            [
                *(_kind_webhook("validate", kind, client_config) for kind in _VALIDATED),
                {
                    "name": f"vpodkvcache.{KVCachePool.resource.group}",
                    "clientConfig": client_config(VALIDATING_PATH),
                    "rules": [_pods("UPDATE")],
                    # A Pod that cannot be updated cannot be let go of; the record is worth less than that.
                    "failurePolicy": "Ignore",
                    "matchPolicy": "Equivalent",
                    "timeoutSeconds": 10,
                    "namespaceSelector": _PODS_OF_OTHERS,
                    "matchConditions": [_FROZEN_POD],
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                },
            ],
        ),
    ]


def _pods(operation: str) -> dict[str, list[str]]:
    return {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": [operation]}


def _kind_webhook(verb: str, kind: type[CustomObject], client_config: Any) -> dict[str, Any]:
    resource = kind.resource
    return {
        "name": f"{verb[0]}{resource.singular}.{resource.group}",
        "clientConfig": client_config(
            f"/{verb}-{resource.group.replace('.', '-')}-{resource.version}-{resource.singular}"
        ),
        "rules": [
            {
                "apiGroups": [resource.group],
                "apiVersions": [resource.version],
                "resources": [resource.plural],
                "operations": ["CREATE", "UPDATE"],
            }
        ],
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "timeoutSeconds": 10,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


def _configuration(kind: str, name: str, webhooks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "webhooks": list(webhooks),
    }


def controller_rbac() -> list[dict[str, Any]]:
    """Who the controller is and what it may do (spec 05 §1.4, decision A8).

    In the cluster, what the reconcilers of each half say they need, which covers what its webhooks read; where stores
    run, what makes them up; in its own namespace the Lease and the Secret of its webhook certificates.
    """
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": CONTROLLER, "namespace": NAMESPACE}},
        _role("ClusterRole", MANAGER_ROLE, rbac_rules()),
        _binding("ClusterRoleBinding", "inference-cache-manager-rolebinding", MANAGER_ROLE),
        _role("ClusterRole", POOLS_ROLE, pool_rules()),
        _binding("ClusterRoleBinding", "inference-cache-pools-rolebinding", POOLS_ROLE),
        _role("Role", STORES_ROLE, store_rules(), POOL_NAMESPACE),
        _binding("RoleBinding", "inference-cache-stores-rolebinding", STORES_ROLE, POOL_NAMESPACE),
        _role("Role", LEADER_ELECTION_ROLE, _LEADER_ELECTION_RULES),
        _binding("RoleBinding", "inference-cache-leader-election-rolebinding", LEADER_ELECTION_ROLE),
        _role("Role", CERTIFICATES_ROLE, _CERTIFICATE_SECRET_RULES),
        _binding("RoleBinding", "inference-cache-webhook-certificates-rolebinding", CERTIFICATES_ROLE),
        _role("ClusterRole", CERTIFICATES_ROLE, _CA_BUNDLE_RULES),
        _binding("ClusterRoleBinding", "inference-cache-webhook-certificates-rolebinding", CERTIFICATES_ROLE),
    ]


_LEADER_ELECTION_RULES: Final = [
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"]},
]
_CERTIFICATE_SECRET_RULES: Final = [
    # A name cannot be checked where the object does not exist yet, so creating is granted for the namespace.
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": [CERTIFICATE_SECRET],
        "verbs": ["get", "list", "update", "watch"],
    },
]
_CA_BUNDLE_RULES: Final = [
    {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": [resource],
        "resourceNames": [name],
        "verbs": ["get", "list", "patch", "watch"],
    }
    for resource, name in (
        ("mutatingwebhookconfigurations", MUTATING_CONFIGURATION),
        ("validatingwebhookconfigurations", VALIDATING_CONFIGURATION),
    )
]


def user_roles(kind: type[CustomObject]) -> list[dict[str, Any]]:
    """The editor and the viewer ClusterRole of a kind; both may only read its status (spec 09 §2.3)."""
    status = {"apiGroups": [GROUP], "resources": [f"{kind.resource.plural}/status"], "verbs": ["get"]}
    verbs = {
        "editor": ["create", "delete", "get", "list", "patch", "update", "watch"],
        "viewer": ["get", "list", "watch"],
    }
    return [
        _role(
            "ClusterRole",
            f"{kind.resource.singular}-{role}-role",
            [{"apiGroups": [GROUP], "resources": [kind.resource.plural], "verbs": allowed}, status],
        )
        for role, allowed in verbs.items()
    ]


def _in_scope(kind: str, namespace: str) -> dict[str, str]:
    return {} if kind.startswith("Cluster") else {"namespace": namespace}


def _role(kind: str, name: str, rules: Sequence[Mapping[str, Any]], namespace: str = NAMESPACE) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, **_in_scope(kind, namespace)},
        "rules": [dict(rule) for rule in rules],
    }


def _binding(kind: str, name: str, role: str, namespace: str = NAMESPACE) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, **_in_scope(kind, namespace)},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind.removesuffix("Binding"), "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": CONTROLLER, "namespace": NAMESPACE}],
    }
