"""TokenReview through the API server. Imported only where authentication is on: it brings the Kubernetes client
(decision D12)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec

from inferencecache.kube.client import Client
from inferencecache.kube.errors import KubeError
from inferencecache.server.auth import Review, ReviewUnavailable

PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
TIMEOUT: Final = timedelta(seconds=4)
"""Below the 5 s that the controller waits for its own request."""


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Status(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()
    error: str = ""


class _Answer(msgspec.Struct, frozen=True):
    status: _Status | None = None


class TokenReviews:
    """Asks with a client of the API server. The client must be allowed to create tokenreviews."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def review(self, token: str, audiences: Sequence[str]) -> Review:
        """See `auth.Reviewer`."""
        spec: dict[str, object] = {"token": token}
        if audiences:
            spec["audiences"] = list(audiences)
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        try:
            # A review changes nothing, so it may be asked again when no answer came.
            answer = await self._client.request("POST", PATH, body=body, timeout=TIMEOUT, repeatable=True)
            status = msgspec.json.decode(answer, type=_Answer).status
        except (KubeError, msgspec.MsgspecError) as error:
            raise ReviewUnavailable(str(error)) from error
        if status is None:
            raise ReviewUnavailable("the review has no status")
        return Review(status.authenticated, status.user.username, status.error)
