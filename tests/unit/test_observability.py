"""Alerts and dashboard ask for series that exist, and say what the contract and the runbook say (spec 09 §3)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.series import exported
from tests.unit.test_docs import anchors

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "manifests" / "observability"
ALERTS = {
    rule["alert"]: {**rule, "group": group["name"], "interval": group["interval"]}
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
}
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

_WORDS = {"by", "and", "or", "unless", "on", "without", "ignoring", "le"}


def asked(query: str) -> set[str]:
    """The names of series in a PromQL expression."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|on|without|ignoring)\s*\([^)]*\)", " ", query)
    words = re.findall(r"[a-zA-Z_:][\w:]*(?!\w*\s*\()", bare)
    return {word for word in words if word not in _WORDS}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_asks_for_series_that_exist(name: str) -> None:
    wanted = asked(ALERTS[name]["expr"])
    assert wanted
    assert wanted - exported() == set()


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_for_series_that_exist_in_the_namespace_that_was_chosen(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        wanted = asked(target["expr"])
        assert wanted
        assert wanted - exported() == set()
        assert target["expr"].count('namespace=~"$namespace"') >= len(wanted)


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in DASHBOARD["panels"]):
        cells = {(x, y) for x in span(place["x"], place["w"]) for y in span(place["y"], place["h"])}
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def span(start: int, length: int) -> Iterable[int]:
    return range(start, start + length)


@pytest.mark.parametrize(
    ("name", "group", "severity", "patience"),
    [
        ("IndexEmpty", "health", "critical", "2m"),
        ("LMCacheT2NoHits", "health", "warning", "5m"),
        ("LookupRouteDegenerate", "routing", "warning", "5m"),
        ("LookupRouteHighTimeout", "routing", "warning", "5m"),
        ("IndexEvictionsSpike", "capacity", "info", "10m"),
        ("ServerProbeFail", "cachebackend", "critical", "5m"),
    ],
)
def test_alerts_of_the_contract(name: str, group: str, severity: str, patience: str) -> None:
    rule = ALERTS[name]
    assert (rule["group"], rule["interval"]) == (f"inferencecache-{group}", "30s")
    assert (rule["labels"], rule["for"]) == ({"severity": severity, "component": "inference-cache"}, patience)


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_leads_to_its_remedy(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["component"] == "inference-cache"
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert anchor == name.lower()
    assert anchor in anchors(ROOT / page)
    assert rule["annotations"]["summary"]
