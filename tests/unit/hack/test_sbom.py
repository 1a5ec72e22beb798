"""The bill of materials lists what the lock of the image installs, no more and no less; both locks agree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hack import sbom

ROOT = Path(__file__).parents[3]
IMAGE_LOCK = ROOT / "requirements-image.lock"
CREATED = datetime(2026, 11, 30, 11, 0, tzinfo=UTC)


def rows(lock: Path) -> dict[str, tuple[str, set[str]]]:
    """Version and hashes of each package, read with less cleverness than the script's."""
    found: dict[str, tuple[str, set[str]]] = {}
    name = ""
    for line in lock.read_text().splitlines():
        if row := re.match(r"([a-z][a-z0-9._-]*)==([^ \\;]+)", line):
            name = row[1]
            found[name] = (row[2], set())
        elif digest := re.match(r" +--hash=(\S+)", line):
            found[name][1].add(digest[1])
    return found


def test_every_package_of_the_lock_is_listed_but_those_for_other_systems() -> None:
    listed = {p.name: p.version for p in sbom.python_packages(IMAGE_LOCK.read_text())}
    locked = {name: version for name, (version, _) in rows(IMAGE_LOCK).items()}
    assert listed.items() <= locked.items()
    assert len(listed) > 50
    elsewhere = {name for name in locked if name not in listed}
    text = IMAGE_LOCK.read_text()
    for name in elsewhere:
        assert re.search(rf"^{name}==.*(win32|emscripten|PyPy)", text, re.MULTILINE), name


@pytest.mark.parametrize(
    ("row", "listed"),
    [
        ("one==1.0 \\\n    --hash=sha256:aa\n", True),
        ("one==1.0 ; sys_platform == 'win32' \\\n    --hash=sha256:aa\n", False),
        ("one==1.0 ; sys_platform != 'emscripten' \\\n    --hash=sha256:aa\n", True),
        ("one==1.0 ; implementation_name == 'pypy' or platform_python_implementation != 'PyPy' \\\n", True),
        ("one==1.0\n", True),
        ("# one==1.0\n", False),
        ("    # via one==1.0\n", False),
    ],
)
def test_a_row_counts_if_the_image_would_install_it(row: str, *, listed: bool) -> None:
    assert [(p.name, p.version) for p in sbom.python_packages(row)] == ([("one", "1.0")] if listed else [])


def test_the_document_describes_the_product_and_what_it_depends_on() -> None:
    document: dict[str, Any] = sbom.document("one==1.0 \\\ntwo==2.0 \\\n", version="9.9", created=CREATED)
    assert document["spdxVersion"] == "SPDX-2.3"
    assert document["creationInfo"]["created"] == "2026-11-30T11:00:00Z"
    by_id = {p["SPDXID"]: (p["name"], p["versionInfo"]) for p in document["packages"]}
    assert set(by_id.values()) == {("inferencecache", "9.9"), ("one", "1.0"), ("two", "2.0")}
    related = {(r["spdxElementId"], r["relationshipType"], r["relatedSpdxElement"]) for r in document["relationships"]}
    product = "SPDXRef-Package-pypi-inferencecache"
    assert related == {
        ("SPDXRef-DOCUMENT", "DESCRIBES", product),
        (product, "DEPENDS_ON", "SPDXRef-Package-pypi-one"),
        (product, "DEPENDS_ON", "SPDXRef-Package-pypi-two"),
    }
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", key) for key in by_id)


OS_RELEASE = 'PRETTY_NAME="Debian"\nVERSION_ID="12"\nID=debian\n'
LIBRARY = """\
Package: libstdc++6
Status: install ok installed
Maintainer: Debian GCC Maintainers <debian-gcc@lists.debian.org>
Architecture: amd64
Multi-Arch: same
Source: gcc-12
Version: 1:12.2.0-14+deb12u1
Description: GNU Standard C++ Library v3
 Version: this is prose
"""
PYTHON = "Package: libpython3.11-stdlib\nArchitecture: amd64\nVersion: 3.11.2-6\n"


def test_with_an_image_its_debian_packages_are_listed_as_scanners_look_them_up() -> None:
    system = list(sbom.debian_packages([LIBRARY, PYTHON], OS_RELEASE))
    document = sbom.document("one==1.0\n", version="9.9", created=CREATED, system=system)
    found = {p["name"]: p for p in document["packages"]}
    library = found["libstdc++6"]
    assert library["versionInfo"] == "1:12.2.0-14+deb12u1"
    assert library["supplier"] == "Organization: Debian GCC Maintainers (debian-gcc@lists.debian.org)"
    assert [one["referenceLocator"] for one in library["externalRefs"]] == [
        "pkg:deb/debian/libstdc%2B%2B6@1:12.2.0-14%2Bdeb12u1?arch=amd64&distro=debian-12"
    ]
    assert found["libpython3.11-stdlib"]["supplier"] == "NOASSERTION"
    related = {r["relatedSpdxElement"] for r in document["relationships"] if r["relationshipType"] == "DEPENDS_ON"}
    assert related == {p["SPDXID"] for p in document["packages"]} - {"SPDXRef-Package-pypi-inferencecache"}
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", p["SPDXID"]) for p in document["packages"])


DOCKER = """\
#!{python}
import io, os, sys, tarfile

def tar(files):
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as out:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            out.addfile(member, io.BytesIO(text.encode()))

what, *rest = sys.argv[1:]
if what == "create":
    print("c0ffee")
elif what == "cp" and rest[0] == "c0ffee:/etc/os-release":
    tar({{"os-release": {os_release!r}}})
elif what == "cp":
    tar({{f"status.d/{{number}}": text for number, text in enumerate({records!r})}})
elif what == "run":
    print("Python 3.13.1")
"""


@pytest.mark.parametrize(
    ("records", "listed"),
    [
        ([LIBRARY], {"libstdc++6": "1:12.2.0-14+deb12u1", "python": "3.13.1"}),
        ([LIBRARY, PYTHON], {"libstdc++6": "1:12.2.0-14+deb12u1", "libpython3.11-stdlib": "3.11.2-6"}),
    ],
)
def test_python_is_listed_once_whoever_it_is_from(tmp_path: Path, records: list[str], listed: dict[str, str]) -> None:
    docker = tmp_path / "docker"  # answers as Docker would of such an image
    docker.write_text(DOCKER.format(python=sys.executable, os_release=OS_RELEASE, records=records))
    docker.chmod(0o755)
    said = subprocess.run(
        [sys.executable, str(ROOT / "hack" / "sbom.py"), "--image", "inferencecache:9.9"],
        env={**os.environ, "DOCKER": str(docker)},
        capture_output=True,
        check=True,
    ).stdout
    found = [p for p in json.loads(said)["packages"] if "pkg:pypi/" not in p["externalRefs"][0]["referenceLocator"]]
    assert {p["name"]: p["versionInfo"] for p in found} == listed


def test_every_identifier_is_given_once_in_the_real_document() -> None:
    document = sbom.document(IMAGE_LOCK.read_text(), version="9.9", created=CREATED)
    ids = [p["SPDXID"] for p in document["packages"]]
    assert len(set(ids)) == len(ids)


def test_the_script_prints_the_same_document_twice() -> None:
    said = [
        subprocess.run(
            [sys.executable, str(ROOT / "hack" / "sbom.py")],
            env={**os.environ, "SOURCE_DATE_EPOCH": "0"},
            capture_output=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert said[0] == said[1]
    assert json.loads(said[0])["creationInfo"]["created"] == "1970-01-01T00:00:00Z"


def test_the_image_gets_nothing_that_is_not_tested() -> None:
    """The lock of the image is part of the lock that tests run with, to the hash."""
    tested = rows(ROOT / "requirements.lock")
    for name, (version, hashes) in rows(IMAGE_LOCK).items():
        assert name in tested, f"{name}: run `make lock`"
        assert (version, hashes) == tested[name], f"{name}: run `make lock`"
