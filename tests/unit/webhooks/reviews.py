"""Sends AdmissionReviews through the app the way the API server does, and reads the answers."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import jsonpatch
from fastapi import FastAPI

from tests.unit.webhooks.stand_ins import post

POD_PATH = "/mutate--v1-pod"


def path_for(verb: str, kind: str) -> str:
    """The webhook path of a kind: verb is mutate or validate."""
    return f"/{verb}-inferencecache-io-v1alpha1-{kind.lower()}"


def review_of(obj: Any, namespace: str, *, operation: str = "CREATE", old: Any = None, **more: Any) -> dict[str, Any]:
    """An AdmissionReview with a request for `obj`."""
    group, _, version = obj.get("apiVersion", "v1").rpartition("/")
    request = {
        "uid": "b6f4c2e0-0000-4000-8000-000000000001",
        "kind": {"group": group, "version": version, "kind": obj.get("kind", "Pod")},
        "name": (obj.get("metadata") or {}).get("name", ""),
        "namespace": namespace,
        "operation": operation,
        "userInfo": {"username": "somebody"},
        "object": obj,
        "oldObject": old,
        "dryRun": False,
        "options": {},
        **more,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


async def ask(app: FastAPI, path: str, obj: Any, namespace: str, **more: Any) -> dict[str, Any]:
    """The response of a webhook to an object."""
    review = review_of(obj, namespace, **more)
    status, body = await post(app, path, json.dumps(review).encode())
    assert status == 200, body
    answer = json.loads(body)
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: dict[str, Any] = answer["response"]
    assert response["uid"] == review["request"]["uid"]
    return response


def patched(obj: Any, response: dict[str, Any]) -> Any:
    """The object as the API server has it after the response's patch."""
    if "patch" not in response:
        return copy.deepcopy(obj)
    assert response["patchType"] == "JSONPatch"
    return jsonpatch.apply_patch(copy.deepcopy(obj), json.loads(base64.b64decode(response["patch"])))


def message_of(response: dict[str, Any]) -> str:
    """The reason text of a response."""
    return str((response.get("status") or {}).get("message", ""))
