"""What installations behind TLS need of cert-manager, which is not on the cluster: its kinds, and what it issues.

A test installs what is shipped, as it is, and then plays cert-manager: it issues a certificate for the names that a
Certificate asks for, and writes it to the Secret that this names, under the keys that cert-manager uses.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Final

from e2e.world import Manifest, World
from inferencecache.kube.pki import Pair, issue, make_ca
from tests.integration.kustomized import crds_of_others

_LIFETIME: Final = timedelta(days=1)


def kinds() -> list[Manifest]:
    """The definitions of Issuer and Certificate, which take anything."""
    return crds_of_others("cert-manager.io")


def authority() -> Pair:
    """A new authority."""
    return make_ca("e2e", now=datetime.now(UTC), lifetime=_LIFETIME)


def fulfil(world: World, name: str) -> bytes:
    """Issue what a Certificate asks for, by an authority of its own. The authority's certificate."""
    spec = world.get("certificates.cert-manager.io", name)["spec"]
    ca = authority()
    pair = issue(ca, spec["dnsNames"], now=datetime.now(UTC), lifetime=_LIFETIME)
    files = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": ca.certificate}
    world.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": spec["secretName"]},
            "data": {key: base64.b64encode(content).decode() for key, content in files.items()},
        }
    )
    return ca.certificate
