"""Prints what the image holds as an SPDX 2.3 document.

    python hack/sbom.py [--lock FILE] [--image NAME] >inferencecache.spdx.json

Of Python these are the product and every package of the image's lock. The lock is the source and not the image, so that
this much can be had before, and without, building one; the image installs the lock's packages by hash and nothing else.
Packages that the lock holds for other systems are left out.

With a built image, the Debian packages are listed that its libraries are of: `hack/image/rootfs.py` has left their
record in it. Where its Python is of no such package, as in `python:3.x-slim`, that is listed by its version.

Equal inputs give equal documents when $SOURCE_DATE_EPOCH says when they were made.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

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
    """Something that an image holds.

    Attributes:
        name: in its ecosystem.
        version: as that spells it.
        purl: its package URL, which scanners go by.
        supplier: whom it is from, as SPDX spells that.
        licence: an SPDX expression, where it was declared as one.
        cpe: its name in the vulnerability database, where its package URL says too little.
    """

    name: str
    version: str
    purl: str
    supplier: str = "NOASSERTION"
    licence: str = "NOASSERTION"
    cpe: str = ""

    @property
    def key(self) -> str:
        """Its identifier within the document."""
        ecosystem = self.purl.removeprefix("pkg:").partition("/")[0]
        return f"SPDXRef-Package-{ecosystem}-{re.sub(r'[^A-Za-z0-9.-]', '-', self.name)}"


def python_packages(lock: str) -> Iterator[Package]:
    """The packages that a lock installs in the image, in its order, by the names that the package index uses."""
    for row in _ROW.finditer(lock):
        if row["marker"] is None or Marker(row["marker"]).evaluate(IMAGE):
            yield Package(row["name"], row["version"], f"pkg:pypi/{row['name']}@{row['version']}")


def debian_packages(records: Iterable[str], os_release: str) -> Iterator[Package]:
    """The Debian packages with these records, each as dpkg keeps it; `os_release` says of which distribution."""
    system = dict(re.findall(r'^(\w+)="?(.*?)"?$', os_release, re.MULTILINE))
    for record in records:
        fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", record, re.MULTILINE))
        name, version = fields["Package"], fields["Version"]
        qualifiers = f"arch={fields['Architecture']}&distro={system['ID']}-{system['VERSION_ID']}"
        person = re.fullmatch(r"(.+?) *<(.+)>", fields.get("Maintainer", ""))
        yield Package(
            name,
            version,
            f"pkg:deb/{system['ID']}/{quote(name, safe='')}@{quote(version, safe=':')}?{qualifiers}",
            supplier=f"Organization: {person[1]} ({person[2]})" if person else "NOASSERTION",
        )


def product(version: str) -> Package:
    """What all this is for."""
    purl = f"pkg:pypi/{PRODUCT}@{version}"
    return Package(PRODUCT, version, purl, f"Organization: {PRODUCT}", licence="Apache-2.0")


def interpreter(version: str) -> Package:
    """Python, where it is of no Debian package."""
    cpe = f"cpe:2.3:a:python:python:{version}:*:*:*:*:*:*:*"
    supplier = "Organization: Python Software Foundation"
    return Package("python", version, f"pkg:generic/python@{version}", supplier, "PSF-2.0", cpe)


def document(lock: str, *, version: str, created: datetime, system: Sequence[Package] = ()) -> dict[str, Any]:
    """The SPDX document of the product in that version, with what the lock adds to it, and `system` below both."""
    ours, parts = product(version), list(python_packages(lock))
    everything = [ours, *parts, *system]
    digest = hashlib.sha256(json.dumps([one.purl for one in everything]).encode() + lock.encode()).hexdigest()
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
        "packages": [_element(one) for one in everything],
        "relationships": [
            _relationship("SPDXRef-DOCUMENT", "DESCRIBES", ours.key),
            *(_relationship(ours.key, "DEPENDS_ON", part.key) for part in (*parts, *system)),
        ],
    }


def _element(package: Package) -> dict[str, Any]:
    references = [("PACKAGE-MANAGER", "purl", package.purl)]
    if package.cpe:
        references.append(("SECURITY", "cpe23Type", package.cpe))
    return {
        "SPDXID": package.key,
        "name": package.name,
        "versionInfo": package.version,
        "supplier": package.supplier,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": package.licence,
        "copyrightText": "NOASSERTION",
        "externalRefs": [
            {"referenceCategory": category, "referenceType": kind, "referenceLocator": locator}
            for category, kind, locator in references
        ],
    }


def _relationship(element: str, kind: str, related: str) -> dict[str, str]:
    return {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": related}


def of_image(name: str) -> list[Package]:
    """What a built image holds below the packages of Python; asks Docker, as $DOCKER names it."""
    container = docker("create", name).decode().strip()
    try:
        records = list(files_of(container, "/var/lib/dpkg/status.d"))
        (os_release,) = files_of(container, "/etc/os-release")
    finally:
        docker("rm", container)
    system = list(debian_packages(records, os_release))
    if not any(one.name.startswith("libpython3") for one in system):
        said = docker("run", "--rm", "--network=none", "--entrypoint=python", name, "--version").decode()
        system.append(interpreter(said.removeprefix("Python ").strip()))
    return system


def files_of(container: str, path: str) -> Iterator[str]:
    """The files at or below a path, by name."""
    with tarfile.open(fileobj=io.BytesIO(docker("cp", f"{container}:{path}", "-"))) as tar:
        for member in sorted(tar.getmembers(), key=lambda one: one.name):
            if file := tar.extractfile(member):
                yield file.read().decode()


def docker(*arguments: str) -> bytes:
    """What Docker answers."""
    return subprocess.run([os.environ.get("DOCKER", "docker"), *arguments], stdout=subprocess.PIPE, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Print what the image holds as an SPDX 2.3 document.")
    parser.add_argument("--lock", type=Path, default=LOCK, help="what is installed of Python (%(default)s)")
    parser.add_argument("--image", help="a built image, to list its Debian packages too")
    given = parser.parse_args()
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    created = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    system = of_image(given.image) if given.image else ()
    made = document(given.lock.read_text(), version=__version__, created=created, system=system)
    json.dump(made, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
