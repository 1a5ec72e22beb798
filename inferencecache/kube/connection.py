"""The way to one API server: where it is, who we are, and the connections that both give.

Configuration loading, authentication, TLS and the HTTP client are kubernetes-asyncio's (decision D13); this module is
the only one that knows it. Importing that library takes half a second, so it happens when a connection is made and
not when the framework is imported.

Credentials rotate under a running process. Tokens of a service account are re-read every minute, those of exec plugins
when they expire, and whatever was loaded is loaded anew, once, when the server answers 401.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from inferencecache.kube.errors import KubeError
from inferencecache.kube.http import HttpPool

Load = Callable[[], Awaitable[Any]]


class ConnectionConfigError(KubeError):
    """No usable configuration; the message names what was tried and the remedy."""


class Connection:
    """Connections to one API server, and the header that authenticates requests.

    `http` pools the connections and holds the TLS settings; `url` has no trailing slash. Close it when done, or use it
    as an async context manager.
    """

    def __init__(self, configuration: Any, load: Load) -> None:
        from kubernetes_asyncio.client.rest import RESTClientObject

        self._configuration = configuration
        self._load = load
        self._reloading = asyncio.Lock()
        self._rest = RESTClientObject(configuration, maxsize=0)
        self.url: str = configuration.host.rstrip("/")
        connector = self._rest.pool_manager.connector
        if connector is None:
            raise KubeError("the HTTP client of kubernetes-asyncio was closed")
        self.http = HttpPool(
            connector,
            self.url,
            proxy=self._rest.proxy or _proxy_from_environment(self.url),
            proxy_headers=self._rest.proxy_headers,
            server_hostname=self._rest.server_hostname,
        )

    async def authorization(self) -> str:
        """The value of the `Authorization` header, or an empty string for client certificates."""
        token: str | None = await self._configuration.get_api_key_with_prefix("BearerToken")
        if token:
            return token
        if self._configuration.username:
            basic: str = self._configuration.get_basic_auth_token()
            return basic
        return ""

    async def renew_authorization(self, refused: str) -> bool:
        """Load the credentials anew after `refused` was answered with 401; true if they are now different."""
        async with self._reloading:
            if await self.authorization() != refused:
                return True
            fresh = await self._load()
            self._configuration.api_key = fresh.api_key
            self._configuration.refresh_api_key_hook = fresh.refresh_api_key_hook
            return await self.authorization() != refused

    async def close(self) -> None:
        """Close the pooled connections."""
        await self._rest.close()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _proxy_from_environment(url: str) -> str | None:
    """The proxy that `HTTPS_PROXY` and its kin name for this address, unless `NO_PROXY` excepts it."""
    address = urlsplit(url)
    if not address.hostname or proxy_bypass(address.hostname):
        return None
    return getproxies().get(address.scheme)


async def connect(kubeconfig: str | os.PathLike[str] | None = None, context: str = "") -> Connection:
    """Connect as Kubernetes tools do: the given file, `$KUBECONFIG`, the Pod's service account, `~/.kube/config`.

    `context` names one of a file's contexts other than its current one; a service account has none, so it is then
    passed over.

    Raises `ConnectionConfigError` if none of them is usable.
    """
    first = "kubernetes_asyncio" not in sys.modules
    from kubernetes_asyncio import config
    from kubernetes_asyncio.client import Configuration

    if first:
        # That library's thousand model classes live as long as the process; no full collection need visit them again.
        gc.freeze()

    async def from_file(path: str) -> Any:
        configuration = Configuration()
        await config.load_kube_config(
            config_file=path, context=context or None, client_configuration=configuration, persist_config=False
        )
        return configuration

    async def from_pod() -> Any:
        configuration = Configuration()
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        return configuration

    chosen = os.fspath(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG", "")
    default = Path.home() / ".kube" / "config"
    load: Load
    if chosen:
        load, source = (lambda: from_file(chosen)), f"kubeconfig {chosen}"
    elif os.environ.get("KUBERNETES_SERVICE_HOST") and not context:
        load, source = from_pod, "the Pod's service account"
    elif default.exists():
        load, source = (lambda: from_file(str(default))), f"kubeconfig {default}"
    else:
        raise ConnectionConfigError(
            f"no cluster to talk to: give --kubeconfig, set KUBECONFIG, run inside a Pod, or create {default}"
        )
    try:
        return Connection(await load(), load)
    except Exception as error:  # the library lets whatever its parsers and plugins raise through
        raise ConnectionConfigError(f"{source} cannot be used: {error}") from error
