"""The quickstart runs the sidecar that admission made, not one of its own."""

from __future__ import annotations

import pytest

from inferencecache.cli.engine_trial import subscriber_arguments


def test_the_arguments_are_the_pods_with_its_name_and_namespace_filled_in() -> None:
    pod = {
        "metadata": {"name": "engine-0", "namespace": "team-a"},
        "spec": {
            "containers": [
                {"name": "vllm", "args": ["--replica-id=nobody"]},
                {"name": "kvevent-subscriber", "args": ["--replica-id=$(POD_NAME)", "--tenant-id=$(POD_NAMESPACE)"]},
            ]
        },
    }
    assert subscriber_arguments(pod) == ["--replica-id=engine-0", "--tenant-id=team-a"]


def test_a_pod_without_a_sidecar_is_told_apart() -> None:
    pod = {"metadata": {"name": "engine-0", "namespace": "team-a"}, "spec": {"containers": [{"name": "vllm"}]}}
    with pytest.raises(ValueError, match="was not wired"):
        subscriber_arguments(pod)
