"""The generated pages say what the code does: every field, every combination, and examples that are really wired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferencecache.adapters.registry import load_adapters
from inferencecache.api.kinds import KINDS
from inferencecache.api.model import CustomObject
from inferencecache.api.schema import object_schema
from inferencecache.cli.reference.api import api_page
from inferencecache.cli.reference.examples import BlockError, filled
from inferencecache.cli.reference.markdown import table
from inferencecache.cli.reference.support import support_page
from tests.samples import SAMPLES

ENGINES = Path(__file__).parents[3] / "docs" / "engines"
PAGES = sorted(path for path in ENGINES.glob("*.md") if path.name != "README.md")


def row(page: str, field: str) -> list[str]:
    """The cells of a field's row."""
    (line,) = {line for line in page.splitlines() if line.startswith(f"| `{field}` |")}
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.kind)
def test_every_field_of_a_kind_has_a_row(kind: type[CustomObject]) -> None:
    page = api_page()
    section = page[page.index(f"## {kind.resource.kind}\n") :]
    for part in ("spec", "status"):
        for name, node in object_schema(kind)["properties"][part].get("properties", {}).items():
            assert f"| `{part}.{name}` |" in section
            assert node.get("description", "").partition("|")[0] in section


def test_a_row_tells_type_default_bounds_and_meaning() -> None:
    page = api_page()
    assert row(page, "spec.integration.mode") == [
        "`spec.integration.mode`",
        "string",
        '`"Offload"`',
        "`Offload` or `EventsOnly`",
        "Offload: routing and KV offload. EventsOnly: routing only.",
    ]
    assert row(page, "spec.observation.firstEventTimeout")[1:3] == ["duration", '`"5m"`']
    assert row(page, "spec.autoscaling.targetCPUUtilizationPercent")[3] == "1 to 100"
    assert row(page, "spec.remoteStorage.provider")[3].startswith("**given**")
    assert row(page, "spec.integration.engineOverrides.env")[1] == "list of EnvVar"
    assert row(page, "spec.prefillPools")[3] == "unique by `name`"
    assert row(page, "spec.prefillPools[].name")[3] == "**given**; not empty"
    assert row(page, "spec.template.tolerations")[1] == "list of Toleration"


def test_every_field_says_what_it_is() -> None:
    rows = [line.strip("|").split("|") for line in api_page().splitlines() if line.startswith(("| `spec", "| `status"))]
    assert rows
    assert [cells[0].strip() for cells in rows if not cells[-1].strip()] == []


def test_every_rule_of_a_schema_is_listed() -> None:
    def messages(node: Any) -> set[str]:
        if isinstance(node, list):
            return set().union(*map(messages, node))
        if not isinstance(node, dict):
            return set()
        own = {rule["message"] for rule in node.get("x-kubernetes-validations", ())}
        return own.union(*map(messages, node.values()))

    page = api_page()
    wanted = set().union(*(messages(object_schema(kind)) for kind in KINDS))
    assert wanted
    assert [message for message in wanted if f": {message}\n" not in page] == []


# (runtime, type): the stores whose protocol its engines speak, and the cells for Offload, ReadOnly, WriteOnly and
# EventsOnly over one of them and over none (spec 02 §5.3, spec 04 §1.1).
SPOKEN = {
    ("VLLM", "LMCache"): ({"LMCacheServer", "Mooncake"}, "yyy-", "yyyy"),
    ("VLLM", "SGLangHiCache"): (set(), "----", "----"),
    ("SGLang", "LMCache"): ({"Redis"}, "y---", "y--y"),
    ("SGLang", "SGLangHiCache"): (set(), "----", "y---"),
}


@pytest.mark.parametrize("pair", SPOKEN)
def test_the_matrix_says_what_admission_says(pair: tuple[str, str]) -> None:
    page = support_page(*load_adapters())
    section = page.partition(f"## {pair[0]} with {pair[1]}\n")[2].partition("\n## ")[0]
    stores, over_one, over_none = SPOKEN[pair]
    expected = {"none": over_none}
    for provider in ("Redis", "LMCacheServer", "Mooncake"):
        for ownership in ("Managed", "External"):
            expected[f"`{provider}` `{ownership}`"] = over_one if provider in stores else "----"
    expected["`Mooncake` `Managed`, on a pool"] = expected["`Mooncake` `Managed`"]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    answers = {cells[0].strip(): "".join("y" if c.strip() == "yes" else "-" for c in cells[1:5]) for cells in lines}
    assert answers == expected


def test_the_matrix_says_which_engines_can_be_given_a_pool_by_a_label() -> None:
    section = support_page(*load_adapters()).partition("## Pods with the label ")[2]
    told, _, transports = section.partition("Whether it is admitted")
    assert row(told, "vLLM")[1:] == [
        f'`--kv-transfer-config {{"kv_connector":"MooncakeStoreConnector","kv_role":"{role}"}}`'
        for role in ("kv_both", "kv_producer", "kv_consumer")
    ]
    assert "AscendStoreConnector" in told
    assert row(told, "SGLang")[1:3] == ["`--hicache-storage-backend mooncake --enable-hierarchical-cache`"] * 2
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in transports.splitlines() if "| " in line]
    answers = {cells[0]: dict(zip(lines[0][1:], cells[1:], strict=True)) for cells in lines[1:]}
    assert set(answers["`vLLM`"].values()) == set(answers["`SGLang`"].values()) == {"yes"}
    assert {protocol for protocol, answer in answers["`vLLM` `ascend`"].items() if answer == "yes"} == {"`CANN`"}


def test_every_refusal_of_the_matrix_has_its_reason() -> None:
    for section in support_page(*load_adapters()).split("\n## ")[1:]:
        lines = section.splitlines()
        cells = [c.strip() for line in lines if line.startswith("| ") for c in line.strip("|").split("|")[1:]]
        numbers = {int(n) for cell in cells for n in cell.split(",") if n.strip().isdigit()}
        assert numbers == {int(line.partition(".")[0]) for line in lines if line[:1].isdigit()}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_shows_what_is_written_what_runs_and_a_wired_pod(page: Path) -> None:
    text = page.read_text()
    for block in ("sample", "children", "pod"):
        assert text.count(f"<!-- {block}: ") == 1
    assert "+    inferencecache.io/injected-by: " in text


def test_filling_a_filled_page_changes_nothing() -> None:
    once = filled(
        "Before.\n\n<!-- pod: cachebackend-external -->\nstale\n<!-- end -->\n\nAfter.\n",
        samples=SAMPLES,
        engines=ENGINES,
    )
    assert "stale" not in once
    assert once.startswith("Before.\n")
    assert once.endswith("\nAfter.\n")
    assert "+      value: lm://my-cache.example.com:8200" in once
    assert filled(once, samples=SAMPLES, engines=ENGINES) == once


@pytest.mark.parametrize(
    ("block", "said"), [("pod: nowhere", "no such sample"), ("pods: cachebackend-external", "there are blocks sample")]
)
def test_a_block_that_cannot_be_filled_is_named(block: str, said: str) -> None:
    with pytest.raises(BlockError, match=f"<!-- {block} -->: {said}"):
        filled(f"<!-- {block} -->\n<!-- end -->", samples=SAMPLES, engines=ENGINES)


def test_cells_of_a_table_cannot_break_it() -> None:
    assert table(("a", "b"), [("x | y", "two\nlines")]) == "| a | b |\n|---|---|\n| x \\| y | two lines |\n"
