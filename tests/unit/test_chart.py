"""The chart's files, without helm: `make packaging` renders them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from inferencecache import __version__
from inferencecache.api.kinds import KINDS
from inferencecache.cli.install import NAMESPACE, POOL_NAMESPACE

CHART = Path(__file__).parents[2] / "charts" / "inferencecache"
TEMPLATES = sorted((CHART / "templates").iterdir())


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_what_is_opened_is_closed_and_no_namespace_is_fixed(template: Path) -> None:
    text = template.read_text()
    opened = re.findall(r"\{\{-? (?:if|range|with) ", text)
    assert opened
    assert len(opened) == len(re.findall(r"\{\{-? end \}\}", text))
    assert "@@" not in text
    assert NAMESPACE not in text
    assert not re.search(rf"{POOL_NAMESPACE}(?![\w-])", text)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_every_value_has_a_default(template: Path) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for path in re.findall(r"\.Values((?:\.\w+)+)", template.read_text()):
        found = values
        for name in path.strip(".").split("."):
            assert name in found, path
            found = found[name]


def test_the_chart_has_this_version_and_every_kind() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == __version__
    crds = {path.name for path in (CHART / "files" / "crds").rglob("*.yaml")}
    assert crds == {f"{kind.resource.plural}.yaml" for kind in KINDS}
