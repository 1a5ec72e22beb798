"""Where the cache server is, and what it is called with: settings of all loops towards it.

Templates and topologies go to the server that takes the policies, beside them and with the same token.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

from inferencecache.controllers.dataplane.client import Endpoint, ServerClient, TokenFile

_TOKENS: Final = Path("/var/run/secrets/inferencecache.io")
_EVERY: Final = timedelta(seconds=30)


@dataclass(frozen=True, kw_only=True)
class CacheServer:
    """The server's addresses, the files of our tokens, and how often we speak to it.

    An empty `snapshot_url` or `probe_url` means not to poll, or not to probe.
    """

    snapshot_url: str
    policy_url: str
    probe_url: str = ""
    refresh_interval: timedelta = _EVERY
    push_interval: timedelta = _EVERY
    controller_token: Path = _TOKENS / "controller-token" / "token"
    policy_token: Path = _TOKENS / "policy-token" / "token"

    def snapshot(self, client: ServerClient) -> Endpoint:
        """Where the index is read."""
        return Endpoint(name="snapshot", client=client, url=self.snapshot_url, token=TokenFile(self.controller_token))

    def probe(self, client: ServerClient) -> Endpoint:
        """Where a backend is tried. A token that is there must be readable: the answer is about the backend, and
        should not be about us."""
        return Endpoint(
            name="probe",
            client=client,
            url=self.probe_url,
            token=TokenFile(self.controller_token),
            insists_on_token=True,
        )

    def document(self, client: ServerClient, name: str) -> Endpoint:
        """Where the document of that name is pushed: `policy`, `templates` or `topologies`."""
        url = self.policy_url if name == "policy" else urljoin(self.policy_url, name)
        return Endpoint(name=name, client=client, url=url, token=TokenFile(self.policy_token))
