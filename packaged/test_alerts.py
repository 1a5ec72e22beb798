"""Alerts fire when they should and not otherwise, judged by Prometheus' own tool."""

from __future__ import annotations

from packaged.tools import ROOT, run


def test_the_rules_are_well_formed() -> None:
    said = run("promtool", "check", "rules", str(ROOT / "manifests" / "observability" / "alerts.yaml"))
    assert "SUCCESS" in said


def test_each_alert_fires_when_it_should_and_not_otherwise() -> None:
    run("promtool", "test", "rules", str(ROOT / "packaged" / "alerts_test.yaml"))
