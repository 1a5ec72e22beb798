"""Prints what the image holds of Python as an SPDX 2.3 document: the product and every package of its lock.

    python hack/sbom.py [LOCK] >inferencecache.spdx.json

The lock is the source and not the image, so that the document can be had before, and without, building one; the image
installs the lock's packages by hash and nothing else. Packages that the lock holds for other systems are left out.
Equal locks give equal documents when $SOURCE_DATE_EPOCH says when they were made.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.markers import Marker

from inferencecache import __version__

LOCK = Path(__file__).parent.parent / "requirements-image.lock"
PRODUCT = "inferencecache"
# What the image runs on, whatever runs this script.
IMAGE = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "sys_platform": "linux",
}
_ROW = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)\s*(?:;\s*(?P<marker>[^\\]+?))?\s*\\?$", re.MULTILINE
)


@dataclass(frozen=True)
class Package:
    """A row of the lock, by the names the package index uses."""

    name: str
    version: str


def packages(lock: str) -> Iterator[Package]:
    """The packages that a lock installs in the image, in its order."""
    for row in _ROW.finditer(lock):
        if row["marker"] is None or Marker(row["marker"]).evaluate(IMAGE):
            yield Package(row["name"], row["version"])


def document(lock: str, *, version: str, created: datetime) -> dict[str, Any]:
    """The SPDX document of the product in that version, with what the lock adds to it."""
    product = _element(Package(PRODUCT, version), license_declared="Apache-2.0")
    parts = [_element(package) for package in packages(lock)]
    digest = hashlib.sha256(lock.encode()).hexdigest()
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{PRODUCT}-{version}",
        "documentNamespace": f"https://inferencecache.io/spdx/{PRODUCT}-{version}-{digest}",
        "creationInfo": {
            "created": created.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": [f"Tool: {PRODUCT}-sbom-{version}"],
        },
        "packages": [product, *parts],
        "relationships": [
            _relationship("SPDXRef-DOCUMENT", "DESCRIBES", product["SPDXID"]),
            *(_relationship(product["SPDXID"], "DEPENDS_ON", part["SPDXID"]) for part in parts),
        ],
    }


def _element(package: Package, license_declared: str = "NOASSERTION") -> dict[str, Any]:
    return {
        "SPDXID": f"SPDXRef-Package-{package.name}",
        "name": package.name,
        "versionInfo": package.version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": license_declared,
        "copyrightText": "NOASSERTION",
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": f"pkg:pypi/{package.name}@{package.version}",
            }
        ],
    }


def _relationship(element: str, kind: str, related: str) -> dict[str, str]:
    return {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": related}


def main() -> None:
    lock = Path(sys.argv[1]) if len(sys.argv) > 1 else LOCK
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    created = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    json.dump(document(lock.read_text(), version=__version__, created=created), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
