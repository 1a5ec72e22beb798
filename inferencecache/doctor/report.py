"""The report: what was found, how it counts, and its three forms (spec 09 §1.4, §1.5).

The JSON form is a contract: keys, their order and the exit code in it stay. The human form is for a terminal, the table
for `grep` and `awk`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from inferencecache.doctor.findings import Finding, Status

EXIT_CODES: Final = {Status.OK: 0, Status.INFO: 0, Status.WARN: 1, Status.FAIL: 2}
_TITLE: Final = "inferencecache doctor"
_WORST_FIRST: Final = (Status.FAIL, Status.WARN, Status.INFO, Status.OK)
_COLUMNS: Final = ("STATUS", "CODE", "CHECK", "RESOURCE", "MESSAGE")
_BOLD: Final = "1"
_COLOURS: Final = {Status.FAIL: "31", Status.WARN: "33", Status.INFO: "36", Status.OK: "32"}


class Output(StrEnum):
    """The forms."""

    HUMAN = "human"
    JSON = "json"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Report:
    """Findings in the order in which the checks made them."""

    findings: tuple[Finding, ...]

    @property
    def counts(self) -> dict[Status, int]:
        """How many findings there are of each status, the best first."""
        return {status: sum(one.status is status for one in self.findings) for status in Status}

    @property
    def exit_code(self) -> int:
        """What the worst finding amounts to."""
        return max((EXIT_CODES[one.status] for one in self.findings), default=0)


def rendered(report: Report, output: Output, *, colour: bool = False) -> str:
    """The report as text that ends with a newline; `colour` concerns the human form only."""
    if output is Output.JSON:
        return _json(report)
    if output is Output.TABLE:
        return _table(report.findings)
    return _human(report, colour=colour)


def _json(report: Report) -> str:
    counted = {status.value.lower(): count for status, count in report.counts.items()}
    findings = []
    for one in report.findings:
        entry: dict[str, Any] = {"code": one.code, "status": one.status.value, "check": one.check.value}
        if one.resource:
            entry["resource"] = one.resource
        findings.append({**entry, "message": one.message})
    document = {"summary": {**counted, "exitCode": report.exit_code}, "findings": findings}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _human(report: Report, *, colour: bool) -> str:
    def painted(text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if colour else text

    lines = [painted(_TITLE, _BOLD), ""]
    for status in _WORST_FIRST:
        found = [one for one in report.findings if one.status is status]
        if not found:
            continue
        lines.append(painted(status.value, _BOLD))
        for one in found:
            lines.append(f"  {painted(f'{status.value:<4}', _COLOURS[status])} {one.code}  {one.resource}".rstrip())
            lines.append(f"      {one.message}")
        lines.append("")
    counted = ", ".join(f"{count} {status.value}" for status, count in report.counts.items())
    lines.append(painted(f"Summary: {counted}  (exit {report.exit_code})", _BOLD))
    return "\n".join(lines) + "\n"


def _table(findings: Sequence[Finding]) -> str:
    rows = [_COLUMNS] + [
        (one.status.value, one.code, one.check.value, one.resource or "-", " ".join(one.message.split()))
        for one in findings
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS) - 1)]
    return "".join(
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]]) + "\n"
        for row in rows
    )
