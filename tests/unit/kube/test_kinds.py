"""The views of built-in kinds."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from inferencecache.kube import kinds
from inferencecache.kube.codec import decoder_for
from inferencecache.kube.kinds import Deployment, ObjectMeta, OwnerReference, Pod, controller_of
from inferencecache.kube.resource import api_version, path_of

VIEWS = [v for v in vars(kinds).values() if isinstance(v, type) and issubclass(v, kinds.View) and "resource" in vars(v)]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_every_view_decodes_an_object_that_has_nothing(view: type[Pod]) -> None:
    assert decoder_for(view)(b"{}").metadata.name == ""
    assert path_of(view.resource).endswith(view.resource.plural)
    assert api_version(view.resource)


def test_a_view_written_out_reads_as_the_api_spells_it() -> None:
    raw = b'{"metadata": {"name": "d", "ownerReferences": [{"uid": "u", "blockOwnerDeletion": true}]}}'
    meta = msgspec.to_builtins(decoder_for(Deployment)(raw))["metadata"]
    assert meta["ownerReferences"][0]["blockOwnerDeletion"] is True


def test_the_controller_is_the_owner_that_says_so() -> None:
    owners = (OwnerReference(uid="a"), OwnerReference(uid="b", controller=True))
    assert controller_of(kinds.ConfigMap(metadata=ObjectMeta(owner_references=owners))) is owners[1]
    assert controller_of(kinds.ConfigMap(metadata=ObjectMeta(owner_references=owners[:1]))) is None
    assert controller_of(Pod()) is None


def test_importing_the_client_costs_no_generated_client() -> None:
    """Decision D12: kubernetes_asyncio is loaded when a connection is made."""
    code = "import sys, inferencecache.kube.client as _; print(any('kubernetes_asyncio' in m for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
