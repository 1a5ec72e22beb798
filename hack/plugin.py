"""Packs the command line as a kubectl plugin, for machines on which nothing is to be installed with pip.

    python hack/plugin.py [--into FOLDER] [--url URL]

Writes `kubectl-inferencecache_VERSION_OS_ARCH.tar.gz`, and with the URL at which that will be found, its Krew manifest
`inferencecache.yaml` beside it. Both come from one run, so the digest in the manifest is that of the archive; there is
no manifest without an archive.

What is in the archive is what is installed here: this checkout, and the packages it depends on at the versions of the
lock. Some of them are compiled for one minor version of Python and one platform, and so is the archive. Its command
says which Python it needs where that is missing. Equal contents make equal archives.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.metadata as metadata
import io
import platform
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from inferencecache import __version__
from inferencecache.build import commit

ROOT: Final = Path(__file__).resolve().parent.parent
COMMAND: Final = "kubectl-inferencecache"
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
LEFT_OUT: Final = ("__pycache__", "tests", "direct_url.json")

LAUNCHER: Final = f"""\
#!/usr/bin/env python3
import os
import shutil
import sys

if "%d.%d" % sys.version_info[:2] != "{PYTHON}":
    found = shutil.which("python{PYTHON}")
    if not found:
        sys.stderr.write("error: this build of kubectl inferencecache needs python{PYTHON} on the PATH\\n")
        sys.exit(3)
    os.execv(found, [found, os.path.realpath(__file__)] + sys.argv[1:])
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "lib"))
from inferencecache.cli.main import main

main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Pack the command line as a kubectl plugin.")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="where to write (%(default)s)")
    parser.add_argument("--url", help="where the archive will be found; writes the Krew manifest")
    given = parser.parse_args()
    for path in pack(given.into, given.url):
        print(path)


def pack(into: Path, url: str | None) -> Iterator[Path]:
    """Write the archive, and if it has a URL, its manifest."""
    into.mkdir(parents=True, exist_ok=True)
    system, architecture = platform.system().lower(), ARCHITECTURES.get(platform.machine(), platform.machine())
    path = into / f"{COMMAND}_{__version__}_{system}_{architecture}.tar.gz"
    content = archive()
    path.write_bytes(content)
    yield path
    if url:
        beside = into / "inferencecache.yaml"
        digest = hashlib.sha256(content).hexdigest()
        beside.write_text(yaml.safe_dump(manifest(url, digest, system, architecture), sort_keys=False))
        yield beside


def archive() -> bytes:
    """The plugin as a gzipped tar, with the same bytes for the same content."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in sorted(content_of().items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o755 if name == COMMAND else 0o644
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), compresslevel=3, mtime=0)


def content_of() -> dict[str, bytes]:
    """The archive's files by name."""
    files = {COMMAND: LAUNCHER.encode(), "LICENSE": (ROOT / "LICENSE").read_bytes()}
    for path in sorted((ROOT / "inferencecache").rglob("*")):
        inside = path.relative_to(ROOT)
        if path.is_file() and not set(LEFT_OUT) & set(inside.parts):
            files[f"lib/{inside}"] = path.read_bytes()
    files["lib/inferencecache/COMMIT"] = f"{commit()}\n".encode()
    for distribution in distributions("inferencecache"):
        for file in distribution.files or ():
            if ".." not in file.parts and not set(LEFT_OUT) & set(file.parts) and file.suffix != ".pth":
                files.setdefault(f"lib/{file}", Path(str(distribution.locate_file(file))).read_bytes())
    return files


def distributions(name: str) -> Iterator[metadata.Distribution]:
    """An installed package and all that it depends on, without extras."""
    waiting, seen = [name], set()
    while waiting:
        current = canonicalize_name(waiting.pop())
        if current not in seen:
            seen.add(current)
            found = metadata.distribution(current)
            needed = map(Requirement, found.requires or ())
            waiting += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
            yield found


def manifest(url: str, digest: str, system: str, architecture: str) -> dict[str, Any]:
    """What Krew wants to know."""
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "inferencecache"},
        "spec": {
            "version": f"v{__version__}",
            "shortDescription": "Look at KV caches of inference engines and at their operator",
            "description": "Says what is wrong with an installation of inferencecache (doctor), why an engine Pod is "
            "wired to a cache or not (explain), and who holds how much of a KV cache pool (pool). Needs no cluster to "
            "hold manifests to their rules and to show what would be made of them (validate, render, inject).",
            "caveats": f"It is a Python program with the libraries that it needs, and runs on python{PYTHON}, which "
            "has to be on the PATH. The libraries are built for the GNU C library.",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": system, "arch": architecture}},
                    "uri": url,
                    "sha256": digest,
                    "bin": COMMAND,
                    "files": [{"from": "*", "to": "."}],
                }
            ],
        },
    }


if __name__ == "__main__":
    main()
