"""A reconciler framework for Kubernetes operators; docs/framework.md shows how to write one with it.

What is listed in `__all__` is the public surface. `inferencecache.kube.predicates` is meant to be imported as a module,
`inferencecache.kube.envtest` gives tests a real control plane, and everything else is how it works inside.
"""

from inferencecache.kube.cache import Cache, CacheNotSynced
from inferencecache.kube.client import Client
from inferencecache.kube.conditions import find_condition, is_true, remove_condition, set_condition, timestamp
from inferencecache.kube.connection import Connection, ConnectionConfigError, connect
from inferencecache.kube.controller import Controller, Reconciler, Result
from inferencecache.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    DecodeError,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    LeadershipLost,
    NotFound,
    TerminalError,
    TooManyRequests,
    TransportError,
    Unauthorized,
)
from inferencecache.kube.events import EventRecorder
from inferencecache.kube.finalizers import add_finalizer, has_finalizer, is_being_deleted, remove_finalizer
from inferencecache.kube.informer import Change, Informer
from inferencecache.kube.kinds import (
    ConfigMap,
    Deployment,
    HorizontalPodAutoscaler,
    Lease,
    Namespace,
    ObjectMeta,
    OwnerReference,
    Pod,
    Secret,
    Service,
    StatefulSet,
    View,
    controller_of,
)
from inferencecache.kube.leader import LeaderElection
from inferencecache.kube.manager import ControllerBuilder, Manager, Options
from inferencecache.kube.resource import Key, Kind, Manifest, Resource, ResourceType
from inferencecache.kube.status import write_status
from inferencecache.kube.workqueue import LOW_PRIORITY, NORMAL_PRIORITY

__all__ = [
    "LOW_PRIORITY",
    "NORMAL_PRIORITY",
    "AlreadyExists",
    "ApiError",
    "Cache",
    "CacheNotSynced",
    "Change",
    "Client",
    "ConfigMap",
    "Conflict",
    "Connection",
    "ConnectionConfigError",
    "Controller",
    "ControllerBuilder",
    "DecodeError",
    "Deployment",
    "EventRecorder",
    "Forbidden",
    "Gone",
    "HorizontalPodAutoscaler",
    "Informer",
    "Invalid",
    "Key",
    "Kind",
    "KubeError",
    "LeaderElection",
    "LeadershipLost",
    "Lease",
    "Manager",
    "Manifest",
    "Namespace",
    "NotFound",
    "ObjectMeta",
    "Options",
    "OwnerReference",
    "Pod",
    "Reconciler",
    "Resource",
    "ResourceType",
    "Result",
    "Secret",
    "Service",
    "StatefulSet",
    "TerminalError",
    "TooManyRequests",
    "TransportError",
    "Unauthorized",
    "View",
    "add_finalizer",
    "connect",
    "controller_of",
    "find_condition",
    "has_finalizer",
    "is_being_deleted",
    "is_true",
    "remove_condition",
    "remove_finalizer",
    "set_condition",
    "timestamp",
    "write_status",
]
