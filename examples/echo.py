"""A complete operator: each Widget has a ConfigMap of its name that echoes the Widget's message.

    kubectl apply -f examples/echo.crd.yaml
    python examples/echo.py

`$KUBECONFIG`, the Pod's service account or `~/.kube/config` says which cluster. docs/framework.md explains every line.
"""

from typing import ClassVar

import uvloop

from inferencecache import kube


class WidgetSpec(kube.View, frozen=True):
    message: str = ""


class Widget(kube.View, frozen=True):
    resource: ClassVar[kube.Resource] = kube.ResourceType("example.io", "v1", "Widget", "widgets")
    metadata: kube.ObjectMeta = kube.ObjectMeta()
    spec: WidgetSpec = WidgetSpec()


class Echo:
    def __init__(self, manager: kube.Manager) -> None:
        self.client, self.cache = manager.client, manager.cache

    async def reconcile(self, key: kube.Key) -> kube.Result | None:
        widget = self.cache.get(Widget, key)
        if widget is None or kube.is_being_deleted(widget):
            return None  # the ConfigMap goes with its owner
        child = self.cache.get(kube.ConfigMap, key)
        if child is not None:
            owner = kube.controller_of(child)
            if owner is None or owner.uid != widget.metadata.uid:
                raise kube.TerminalError(f"ConfigMap {key} is somebody else's; delete it, or rename the Widget")
        data = {"message": widget.spec.message}
        if child is None or child.data != data:
            metadata = {"namespace": key.namespace, "name": key.name}
            manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            await self.client.apply(manifest, owner=widget)
        return None


async def main() -> None:
    async with await kube.connect() as connection:
        options = kube.Options(metrics_address="0", health_address="0")
        manager = kube.Manager(kube.Client(connection, field_manager="echo"), options=options)
        manager.controller("echo", Echo(manager)).watches_primary(Widget).owns(kube.ConfigMap)
        await manager.run()


if __name__ == "__main__":
    uvloop.run(main())
