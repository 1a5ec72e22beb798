"""The Pods of leaders and members, as far as a backend's status speaks of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

import msgspec

from inferencecache.api.constants import LABEL_INSTANCE
from inferencecache.controllers.kvcachebackend.objects import COMPONENT_LEADER, LABEL_COMPONENT, position_of
from inferencecache.kube.informer import Change
from inferencecache.kube.kinds import Pod, PodMeta, View, controller_of
from inferencecache.kube.resource import Key, Resource

LABEL_STORE_ROLE: Final = "mooncake.io/store-role"
"""Put on a leader's Pod by the leader that wins an election."""
STORE_ROLE_LEADER: Final = "leader"

_STUCK: Final = frozenset(
    {
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
"""Why a container waits that will not start by itself; one that pulls its image or mounts a volume is left alone."""
_ENDED: Final = frozenset({"Succeeded", "Failed"})


class Waiting(View, frozen=True):
    """Why a container is not running."""

    reason: str = ""
    message: str = ""


class State(View, frozen=True):
    """`state` of a container, as far as it waits."""

    waiting: Waiting | None = None


class StoreContainer(View, frozen=True):
    """`status.containerStatuses[]`."""

    name: str = ""
    state: State = State()


class StoreCondition(View, frozen=True):
    """`status.conditions[]`."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class StorePodSpec(View, frozen=True):
    """`spec` of a Pod that runs a leader or a member."""

    node_name: str = ""


class StorePodStatus(View, frozen=True):
    """`status` of a Pod that runs a leader or a member."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[StoreCondition, ...] = ()
    container_statuses: tuple[StoreContainer, ...] = ()
    init_container_statuses: tuple[StoreContainer, ...] = ()


class StorePod(View, frozen=True):
    """A Pod that runs a leader or a member: where it is, and what keeps it from running."""

    resource: ClassVar[Resource] = Pod.resource
    metadata: PodMeta = PodMeta()
    spec: StorePodSpec = StorePodSpec()
    status: StorePodStatus = StorePodStatus()

    @property
    def backend(self) -> str:
        """The name of the backend."""
        return self.metadata.labels.get(LABEL_INSTANCE, "")

    @property
    def is_leader(self) -> bool:
        """Whether it runs a leader, serving or spare."""
        return self.metadata.labels.get(LABEL_COMPONENT) == COMPONENT_LEADER

    @property
    def is_elected(self) -> bool:
        """Whether it says that it won the election."""
        return self.metadata.labels.get(LABEL_STORE_ROLE) == STORE_ROLE_LEADER

    @property
    def group(self) -> int | None:
        """The position of its member group; None for a leader."""
        return position_of(self.metadata.labels.get(LABEL_COMPONENT, ""))

    @property
    def workload(self) -> str:
        """The UID of what controls it; for a member its DaemonSet."""
        owner = controller_of(self)
        return owner.uid if owner is not None else ""

    @property
    def is_leaving(self) -> bool:
        """Whether it is being deleted or has ended: nothing is expected of it any more."""
        return self.metadata.deletion_timestamp is not None or self.status.phase in _ENDED

    @property
    def ready(self) -> bool:
        """Whether it does its part."""
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions)

    @property
    def stuck(self) -> str:
        """Why it will not start without help, in its own words; empty if it may."""
        for condition in self.status.conditions:
            if condition.type == "PodScheduled" and condition.status == "False":
                return f"{condition.reason}: {condition.message}"
        for container in (*self.status.init_container_statuses, *self.status.container_statuses):
            waiting = container.state.waiting
            if waiting is not None and waiting.reason in _STUCK:
                return f"container {container.name}: {waiting.reason}: {waiting.message}"
        return ""


def stuck(pods: Iterable[StorePod]) -> str:
    """The first Pod, by name, that will not start without help, and why; empty if there is none."""
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        if not pod.is_leaving and not pod.ready and (why := pod.stuck):
            return f"Pod {pod.metadata.name}: {why}"
    return ""


def backend_of(pod: StorePod) -> tuple[Key, ...]:
    """Whom a change of the Pod may concern."""
    return (Key("", pod.backend),) if pod.backend else ()


def matters(change: Change[StorePod]) -> bool:
    """Whether something that a backend's status tells of is new."""
    old, new = change.old, change.new
    return old is None or new is None or old.status != new.status or old.is_elected != new.is_elected
