"""Collects what the image holds into one folder: Python, the product, the libraries both load, and no shell.

Runs inside the build stage of the Dockerfile, with that stage's own Python and no packages:

    python3 rootfs.py ROOT VENV

ROOT becomes the whole file system of an image built from nothing. A Debian with Python and `python:3.x-slim` differ in
where they keep things, so everything is asked of the interpreter and of the dynamic loader instead of being listed
here. The last step loads every library of the result in a changed root, since a missing one would otherwise be noticed
where it is needed first: in a cluster.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

# Parts of the standard library that a process in a Pod does not use: interactive tools, installers, tests, and what
# would bring further libraries with it (databases, terminals, Tk).
LEFT_OUT = {
    "__phello__",
    "__pycache__",
    "curses",
    "dbm",
    "dist-packages",
    "distutils",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "sqlite3",
    "test",
    "tests",
    "tkinter",
    "turtle.py",
    "turtledemo",
    "venv",
}
LEFT_OUT_PATTERN = re.compile(
    r"^(config-.*|_(curses|curses_panel|dbm|gdbm|sqlite3|tkinter|test\w*|xx\w*|ctypes_test)\..*so"
    r"|(readline|nis|ossaudiodev|xx\w*)\..*so)$"
)
FORBIDDEN = re.compile(
    r"(sh|bash|ash|dash|zsh|ksh|fish|csh|tcsh|pwsh|powershell|busybox"
    r"|apk|apt|apt-get|dpkg.*|rpm.*|dnf|microdnf|yum|zypper|pacman|pip[\d.]*|uv|easy_install)"
)
KEPT_COMMANDS = {"inferencecache", "kubectl-inferencecache"}
USER = 65532
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Files that no package lists, as installing it makes them.
MADE_BY = {str(CERTIFICATES): "ca-certificates"}
DPKG = Path("/var/lib/dpkg")
DOCUMENTATION = Path("/usr/share/doc")


def main() -> None:
    root, venv = Path(sys.argv[1]), Path(sys.argv[2])
    copy_interpreter(root)
    copy_standard_library(root)
    copy_venv(root, venv)
    compile_all(root)
    copy_libraries(root)
    write_system_files(root)
    record_packages(root)
    subprocess.run(["ldconfig", "-r", str(root)], check=True)
    same_times(root)
    prove(root, venv)


def copy_interpreter(root: Path) -> None:
    """The interpreter, at its own path and at every name the virtual environment may call it by."""
    real = Path(sys.executable).resolve()
    copy_file(real, root)
    for name in ("python3", "python"):
        link = root / real.parent.relative_to("/") / name
        if link.name != real.name:
            link.symlink_to(real.name)


def copy_standard_library(root: Path) -> None:
    stdlib = Path(sysconfig.get_path("stdlib"))
    # Links point to places that are not copied, as Debian's sitecustomize below /etc does, so their targets are taken.
    shutil.copytree(stdlib, root / stdlib.relative_to("/"), symlinks=False, ignore=left_out)


def left_out(_folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name in LEFT_OUT or LEFT_OUT_PATTERN.match(name)}


def copy_venv(root: Path, venv: Path) -> None:
    target = root / venv.relative_to("/")
    shutil.copytree(venv, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    for command in (target / "bin").iterdir():
        if command.name not in KEPT_COMMANDS and not command.name.startswith("python"):
            command.unlink()


def compile_all(root: Path) -> None:
    """Byte code beside every module: the image's file system is read-only, so no process could store it.

    Unchecked, since nothing in an image changes; and by content instead of time, so that two builds are alike.
    """
    compileall.compile_dir(
        root,
        quiet=2,
        force=True,
        stripdir=str(root),
        prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def copy_libraries(root: Path) -> None:
    """Every shared library that a copied file names, and the loader itself."""
    wanted: set[Path] = set()
    for binary in binaries(root):
        wanted |= {library for library in libraries_of(binary) if not library.is_relative_to(root)}
    for library in sorted(wanted):
        if not (root / library.relative_to("/")).exists():
            copy_file(library, root)
    # Where the loader finds them, below /usr/local too: what a binary itself says of that, it says of the machine that
    # built it.
    etc = root / "etc"
    etc.mkdir(exist_ok=True)
    (etc / "ld.so.conf").write_text("".join(f"{folder}\n" for folder in sorted({each.parent for each in wanted})))


def binaries(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink() and is_elf(path):
            yield path


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def libraries_of(binary: Path) -> set[Path]:
    answer = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False)
    missing = re.findall(r"^\s*(\S+) => not found", answer.stdout, re.MULTILINE)
    if missing:
        raise SystemExit(f"{binary} needs {', '.join(missing)}, which the base image does not have")
    # `name => /path (address)`, and for the loader `/path (address)`.
    named = re.findall(r"(?:=> |^\s*)(/\S+) \(0x", answer.stdout, re.MULTILINE)
    return {Path(os.path.normpath(path)) for path in named}


def copy_file(path: Path, root: Path) -> None:
    """Copy the file behind `path` to that very path below `root`."""
    copy_to(path, root / path.relative_to("/"))


def copy_to(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path.resolve(), target)
    target.chmod(path.stat().st_mode & 0o755)


def write_system_files(root: Path) -> None:
    etc = root / "etc"
    etc.mkdir(exist_ok=True)
    (etc / "passwd").write_text(f"root:x:0:0:root:/:/nonexistent\nnonroot:x:{USER}:{USER}:nonroot:/tmp:/nonexistent\n")
    (etc / "group").write_text(f"root:x:0:\nnonroot:x:{USER}:\n")
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    copy_file(CERTIFICATES, root)
    copy_file(Path("/etc/os-release"), root)
    # OpenSSL looks for certificates below its own folder, which is a link on Debian.
    ssl = root / "usr/lib/ssl"
    ssl.mkdir(parents=True, exist_ok=True)
    (ssl / "certs").symlink_to("/etc/ssl/certs")
    temporary = root / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)


def record_packages(root: Path, dpkg: Path = DPKG, documentation: Path = DOCUMENTATION) -> None:
    """Leave a record of the Debian packages that files were taken of, and their licences.

    The record is where scanners look in images that have no package manager: `/var/lib/dpkg/status.d`, a file for each
    package, named like it.
    """
    owners = owners_of_files(dpkg / "info")
    inside = ["/" + str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    taken = {owner for path in inside for spelled in both_spellings(path) if (owner := owners.get(spelled))}
    record = root / "var/lib/dpkg/status.d"
    record.mkdir(parents=True)
    for name, stanza in sorted(stanzas(dpkg / "status")):
        if name in taken:
            (record / name).write_text(stanza + "\n")
            licence = documentation / name / "copyright"
            if licence.exists():
                copy_to(licence, root / "usr/share/doc" / name / "copyright")


def owners_of_files(info: Path) -> dict[str, str]:
    """The package of each file that a package lists."""
    owners = dict(MADE_BY)
    for listing in info.glob("*.list"):
        name = listing.stem.partition(":")[0]  # libc6:amd64.list, where several architectures may be there at once
        owners |= dict.fromkeys(listing.read_text().splitlines(), name)
    return owners


def both_spellings(path: str) -> tuple[str, str]:
    """A path with and without /usr: packages list one, and the file is reached by the other."""
    return path, path.removeprefix("/usr") if path.startswith("/usr/") else f"/usr{path}"


def stanzas(status: Path) -> Iterator[tuple[str, str]]:
    """The installed packages by name, each with what dpkg knows about it."""
    for stanza in status.read_text().strip().split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status): (.+)$", stanza, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            yield fields["Package"], stanza


def same_times(root: Path) -> None:
    """One time for all files, so that equal content makes an equal layer."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    for path in [root, *root.rglob("*")]:
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def prove(root: Path, venv: Path) -> None:
    """Load all that can be loaded, within the result; raise where something is missing or can be typed into."""
    found = [path for path in root.rglob("*") if FORBIDDEN.fullmatch(path.name) and not path.is_dir()]
    if found:
        raise SystemExit(f"these have no place in the image: {', '.join(map(str, found))}")
    dynamic = [path.name.split(".")[0] for path in root.rglob("lib-dynload/*.so")]
    program = "import importlib, sys, inferencecache.cli.main\nfor name in sys.argv[1:]: importlib.import_module(name)"
    in_root([str(venv / "bin/python"), "-c", program, *dynamic], root)
    for command in KEPT_COMMANDS:
        in_root([str(venv / "bin" / command), "--version"], root)


def in_root(command: Iterable[str], root: Path) -> None:
    subprocess.run(list(command), check=True, stdout=subprocess.DEVNULL, preexec_fn=lambda: change_root(root))


def change_root(root: Path) -> None:
    os.chroot(root)
    os.chdir("/")


if __name__ == "__main__":
    main()
