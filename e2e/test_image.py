"""The images by themselves, in Docker: no shell, no rights, nothing to write to, and every subcommand starts."""

from __future__ import annotations

import io
import json
import re
import stat
import subprocess
import tarfile
from collections.abc import Iterator

import pytest

from e2e.world import PRODUCT_IMAGE, SUBSCRIBER_IMAGE, read, until

FORBIDDEN = re.compile(
    r"(sh|bash|ash|dash|zsh|ksh|fish|csh|tcsh|pwsh|powershell|busybox"
    r"|apk|apt|apt-get|dpkg.*|rpm.*|dnf|microdnf|yum|zypper|pacman|pip[\d.]*|uv)"
)


def docker(*arguments: str) -> bytes:
    done = subprocess.run(["docker", *arguments], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture(scope="module")
def files() -> list[tarfile.TarInfo]:
    """The image's whole file system."""
    container = docker("create", PRODUCT_IMAGE).decode().strip()
    try:
        with tarfile.open(fileobj=io.BytesIO(docker("export", container))) as archive:
            return archive.getmembers()
    finally:
        docker("rm", container)


def test_there_is_nothing_to_type_into_or_to_install_with(files: list[tarfile.TarInfo]) -> None:
    assert len(files) > 1000
    named = [file.name for file in files if not file.isdir() and FORBIDDEN.fullmatch(file.name.rpartition("/")[2])]
    assert named == []


def test_nothing_runs_but_python_and_the_product(files: list[tarfile.TarInfo]) -> None:
    commands = [file for file in files if re.search(r"(^|/)s?bin/", file.name) and not file.isdir()]
    names = {file.name.rpartition("/")[2] for file in commands}
    assert {name for name in names if not name.startswith("python")} == {"inferencecache", "kubectl-inferencecache"}
    assert [file.name for file in files if file.mode & (stat.S_ISUID | stat.S_ISGID)] == []


def test_nothing_can_be_written_but_the_folder_for_temporary_files(files: list[tarfile.TarInfo]) -> None:
    # Docker itself puts device nodes and links of its own into what it exports.
    writable = [f.name for f in files if f.mode & stat.S_IWOTH and not f.issym() and not f.name.startswith("dev")]
    assert writable in (["tmp"], ["tmp/"])


@pytest.mark.parametrize(
    ("image", "entry_point"),
    [(PRODUCT_IMAGE, ["inferencecache"]), (SUBSCRIBER_IMAGE, ["inferencecache", "kvevent-subscriber"])],
)
def test_an_image_starts_its_program_as_a_user_without_rights(image: str, entry_point: list[str]) -> None:
    (description,) = json.loads(docker("image", "inspect", image))
    assert description["Config"]["User"] == "65532:65532"
    assert description["Config"]["Entrypoint"] == entry_point


def test_both_images_have_the_same_content() -> None:
    layers = [json.loads(docker("image", "inspect", image))[0]["RootFS"] for image in (PRODUCT_IMAGE, SUBSCRIBER_IMAGE)]
    assert layers[0] == layers[1]


@pytest.mark.parametrize(
    "command",
    [
        "controller",
        "server",
        "kvevent-subscriber",
        "kvevent-fake-engine",
        "doctor",
        "inject",
        "render",
        "validate",
        "crds",
    ],
)
def test_every_subcommand_starts_on_a_read_only_root(command: str) -> None:
    docker("run", "--rm", "--read-only", "--network=none", "--cap-drop=ALL", PRODUCT_IMAGE, command, "--help")


@pytest.fixture
def server() -> Iterator[str]:
    """A server in a container of its own, without anything it could write to; its address."""
    container = docker(
        *("run", "--detach", "--rm", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"),
        *("--publish=127.0.0.1::8080", PRODUCT_IMAGE, "server", "--insecure-disable-auth"),
    )
    name = container.decode().strip()
    yield docker("port", name, "8080").decode().strip()
    docker("stop", name)


def test_a_server_runs_on_a_read_only_root(server: str) -> None:
    assert until(lambda: read(f"http://{server}/readyz"), within=60).startswith("ok")
    assert "inferencecache_server_up 1.0" in read(f"http://{server}/metrics")
