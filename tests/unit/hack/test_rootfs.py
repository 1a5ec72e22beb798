"""The image says which Debian packages its files are of, though it has no dpkg."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.image import rootfs

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u4
Description: GNU C Library
 of which every program needs some
 .
 and more

Package: zlib1g
Status: install ok installed
Architecture: amd64
Version: 1:1.2.13.dfsg-1

Package: ca-certificates
Status: install ok installed
Architecture: all
Version: 20230311

Package: bash
Status: install ok installed
Architecture: amd64
Version: 5.2

Package: libgone1
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
LISTS = {
    "libc6:amd64": ["/.", "/lib", "/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu/libc.so.6"],
    "zlib1g:amd64": ["/usr", "/usr/lib", "/usr/lib/x86_64-linux-gnu/libz.so.1"],
    "ca-certificates": ["/etc", "/etc/ssl"],
    "bash": ["/bin", "/bin/bash", "/usr", "/lib"],
    "libgone1": ["/usr/lib/x86_64-linux-gnu/libgone.so.1"],
}


@pytest.fixture
def dpkg(tmp_path: Path) -> Path:
    database = tmp_path / "dpkg"
    (database / "info").mkdir(parents=True)
    (database / "status").write_text(STATUS)
    for name, paths in LISTS.items():
        (database / "info" / f"{name}.list").write_text("\n".join(paths) + "\n")
    return database


def test_each_package_that_a_file_is_of_is_recorded_with_its_licence_and_no_other(dpkg: Path, tmp_path: Path) -> None:
    root, documentation = tmp_path / "root", tmp_path / "doc"
    for path in (
        "usr/lib/x86_64-linux-gnu/libc.so.6",  # listed without /usr
        "lib/x86_64-linux-gnu/libz.so.1",  # listed with it
        "usr/lib/x86_64-linux-gnu/libgone.so.1",  # of a package that is not installed any more
        "etc/ssl/certs/ca-certificates.crt",  # listed by none
        "opt/inferencecache/bin/inferencecache",
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("content")
    (root / "bin").mkdir()
    (root / "bin/bash").symlink_to("/opt/inferencecache/bin/inferencecache")  # of ours, in the place of another's
    (documentation / "libc6").mkdir(parents=True)
    (documentation / "libc6" / "copyright").write_text("LGPL")

    rootfs.record_packages(root, dpkg, documentation)

    record = root / "var/lib/dpkg/status.d"
    assert {path.name for path in record.iterdir()} == {"libc6", "zlib1g", "ca-certificates"}
    assert (record / "libc6").read_text() == STATUS.partition("\n\n")[0] + "\n"
    assert (root / "usr/share/doc/libc6/copyright").read_text() == "LGPL"
