"""The documentation keeps up: links lead somewhere, no reason goes unexplained, and what a page names is there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from inferencecache.api.kinds import KINDS
from inferencecache.api.schema import object_schema
from inferencecache.cli.main import app
from inferencecache.cli.reference.markdown import GENERATED
from inferencecache.controllers.cachebackend import reasons
from tests.unit.series import exported

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("manifests/**/*.md")])


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as a forge makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_every_reason_is_explained_to_users() -> None:
    guide = "".join((ROOT / "docs" / page).read_text() for page in ("cachebackend.md", "conditions.md"))
    given = [value for name, value in vars(reasons).items() if name.isupper()]
    assert given
    assert [reason for reason in given if f"`{reason}`" not in guide] == []


HAND_WRITTEN = [page for page in PAGES if GENERATED not in page.read_text()]
# Flags of other programs that pages name, by the program.
FLAGS_OF_OTHERS = {
    "docker": "build-arg",
    "kubectl": "all all-namespaces audience from-literal ignore-not-found prune server-side subresource type",
    "kubectl krew": "archive manifest",
    "helm": "create-namespace set",
    "pytest": "hypothesis-profile",
    "hack": "as-loaded cluster e2e image url",
    "bench": "changes churn only outage pods",
    "engines": "enable-hierarchical-cache enable-lmcache enable-prefix-caching hicache- hicache-storage-backend"
    " hicache-storage-backend-extra-config kv-cache-dtype kv-events-config kv-offloading-size kv-transfer-config"
    " lmcache-config-file",
}


@pytest.fixture(scope="module")
def flags() -> set[str]:
    """Every flag of every subcommand."""
    waiting, found = [get_command(app)], set()
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        found |= {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return found


# What was chosen against others, and each engine's page, quote the command lines of those at length.
@pytest.mark.parametrize(
    "page",
    [page for page in HAND_WRITTEN if page.parent.name not in ("design", "engines")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_flag_that_a_page_names_exists(page: Path, flags: set[str]) -> None:
    known = flags | {f"--{name}" for names in FLAGS_OF_OTHERS.values() for name in names.split()}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", page.read_text()))
    assert named - known == set(), "no such flag of ours; one of another program belongs into FLAGS_OF_OTHERS"


@pytest.fixture(scope="module")
def series() -> set[str]:
    return exported()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_series_that_a_page_names_is_exported(page: Path, series: set[str]) -> None:
    named = set(
        re.findall(r"`((?:inferencecache|controller_runtime|workqueue)_[a-z0-9_]*[a-z0-9])[`{]", page.read_text())
    )
    families = {name.removesuffix("_bucket") for name in series if name.endswith("_bucket")}
    assert named - series - families == set()


@pytest.fixture(scope="module")
def subcommands() -> set[str]:
    return set(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_a_page_names_can_be_given(page: Path, subcommands: set[str]) -> None:
    text = page.read_text()
    named = set(re.findall(r"(?:`|\$ |kubectl )inferencecache ([a-z][a-z-]+)", text))
    assert named - subcommands == set()
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|\$ )make ([a-z0-9-]+)", text)) - targets == set()


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_line_of_ours_that_a_page_shows_can_be_parsed(page: Path) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    shown = re.findall(r"(?:`|^\$ )(?:kubectl )?inferencecache ([a-z][a-z-]+ [^`\n]+)", page.read_text(), re.MULTILINE)
    for line in shown:
        name, *arguments = shlex.split(line, comments=True)
        commands[name].make_context(name, arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_of_the_project_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(r"(?:`|\$ |-k )((?:manifests|hack|charts|examples|docs)/[\w./-]*\w)", page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_short_name_that_a_page_asks_kubectl_for_is_a_kind() -> None:
    ours = {
        name for kind in KINDS for name in (kind.resource.plural, kind.resource.singular, *kind.resource.short_names)
    }
    others = {"pods", "pod", "deploy", "deployments", "events", "namespace", "secret", "svc"}
    for page in PAGES:
        for names in re.findall(
            r"kubectl (?:-n [\w-]+ )?(?:get|describe|delete|edit|patch) ([a-z][a-z,]+)(?![\w-]*/)", page.read_text()
        ):
            assert set(names.split(",")) <= ours | others, (page.name, names)


@pytest.mark.parametrize("part", ["controller", "server"])
def test_the_ports_that_the_security_page_lists_are_those_that_are_installed(part: str) -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    listed = {int(port) for port in re.findall(rf"^\| {part} \| (\d+) \|", page, re.MULTILINE)}
    (deployment,) = yaml.safe_load_all((ROOT / "manifests" / part / "deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert listed == {port["containerPort"] for port in container["ports"]}


def fields_of(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The paths of a schema's fields; those of a list's items are written like the list's."""
    yield path
    for name, node in (schema.get("properties") or {}).items():
        yield from fields_of(node, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from fields_of(schema["items"], path)


@pytest.fixture(scope="module")
def fields() -> set[str]:
    """The paths of all fields of all kinds."""
    return {path for kind in KINDS for path in fields_of(object_schema(kind))}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_field_that_a_page_names_is_one(page: Path, fields: set[str]) -> None:
    named = re.findall(r"`((?:spec|status)\.[A-Za-z.\[\]]+)`", page.read_text())
    of_pods = {"spec.template.metadata", "spec.containers"}
    assert {name.replace("[]", "") for name in named} - fields - of_pods == set()


@pytest.fixture(scope="module")
def source() -> str:
    """All code and manifests."""
    files = [*(ROOT / "inferencecache").rglob("*.py"), *(ROOT / "manifests").rglob("*.yaml")]
    return "\n".join(file.read_text() for file in files)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_every_reason_kind_and_annotation_that_a_page_names_is_in_the_code(page: Path, source: str) -> None:
    text = page.read_text()
    named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][A-Za-z0-9]*)+)`", text))
    named |= set(re.findall(r"`(?:[a-z.]*gpustack\.ai|inferencecache\.io)(/[\w-]+)`", text))
    assert {name for name in named if name not in source} == set()


def test_the_page_of_the_command_line_has_every_subcommand(subcommands: set[str]) -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    listed = set(re.findall(r"^\| `([a-z-]+)[ `]", page, re.MULTILINE))
    assert listed == subcommands


def test_every_value_of_the_chart_that_a_page_names_has_a_default() -> None:
    values = yaml.safe_load((ROOT / "charts" / "inferencecache" / "values.yaml").read_text())
    for path in re.findall(rf"`((?:{'|'.join(values)})\.[A-Za-z.]+)(?:=\w+)?`", (ROOT / "docs/install.md").read_text()):
        found = values
        for name in path.split("."):
            assert name in found, path
            found = found[name]
