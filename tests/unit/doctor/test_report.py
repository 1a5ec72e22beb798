"""The three forms of a report, to the letter, and the exit code (spec 09 §1.4, §1.5)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.doctor.findings import CODES, Check, Finding
from inferencecache.doctor.report import Output, Report, rendered

REPORT = Report(
    (
        Finding("SV003", Check.SERVER, "s:9090", "SERVING"),
        Finding("SV001", Check.SERVER, "", "no\n  answer"),
        Finding("CB001", Check.BACKENDS, "cachebackend/ns/kv", "not Ready"),
        Finding("CP001", Check.POLICIES, "namespace/ns", "no CachePolicy"),
    )
)

HUMAN = """\
inferencecache doctor

FAIL
  FAIL SV001
      no
  answer

WARN
  WARN CB001  cachebackend/ns/kv
      not Ready

INFO
  INFO CP001  namespace/ns
      no CachePolicy

OK
  OK   SV003  s:9090
      SERVING

Summary: 1 OK, 1 INFO, 1 WARN, 1 FAIL  (exit 2)
"""

TABLE = """\
STATUS  CODE   CHECK               RESOURCE            MESSAGE
OK      SV003  ServerReachability  s:9090              SERVING
FAIL    SV001  ServerReachability  -                   no answer
WARN    CB001  CacheBackendHealth  cachebackend/ns/kv  not Ready
INFO    CP001  CachePolicyCoverage namespace/ns        no CachePolicy
"""

JSON = """\
{
  "summary": {
    "ok": 1,
    "info": 0,
    "warn": 0,
    "fail": 1,
    "exitCode": 2
  },
  "findings": [
    {
      "code": "SV003",
      "status": "OK",
      "check": "ServerReachability",
      "resource": "s:9090",
      "message": "SERVING"
    },
    {
      "code": "SV001",
      "status": "FAIL",
      "check": "ServerReachability",
      "message": "no\\n  answer"
    }
  ]
}
"""


def test_the_human_form_shows_the_worst_first_and_counts_at_the_end() -> None:
    assert rendered(REPORT, Output.HUMAN) == HUMAN


def test_the_table_keeps_the_order_of_the_checks_and_one_line_per_finding() -> None:
    lines = rendered(REPORT, Output.TABLE).splitlines()
    assert [line.split() for line in lines] == [line.split() for line in TABLE.splitlines()]
    starts = {tuple(line.find(cell) for cell in line.split()[:3]) for line in lines}
    assert len(starts) == 1, "the columns are aligned"


def test_the_json_form_is_a_contract_to_the_byte() -> None:
    assert rendered(Report(REPORT.findings[:2]), Output.JSON) == JSON


def test_an_empty_report_is_one_in_every_form() -> None:
    empty = Report(())
    assert json.loads(rendered(empty, Output.JSON)) == {
        "summary": {"ok": 0, "info": 0, "warn": 0, "fail": 0, "exitCode": 0},
        "findings": [],
    }
    assert rendered(empty, Output.TABLE) == "STATUS  CODE  CHECK  RESOURCE  MESSAGE\n"
    assert rendered(empty, Output.HUMAN) == "inferencecache doctor\n\nSummary: 0 OK, 0 INFO, 0 WARN, 0 FAIL  (exit 0)\n"


def test_colours_are_for_the_human_form_and_take_nothing_away() -> None:
    coloured = rendered(REPORT, Output.HUMAN, colour=True)
    for part in (
        "\x1b[31mFAIL\x1b[0m SV001",
        "\x1b[33mWARN\x1b[0m CB001",
        "\x1b[36mINFO\x1b[0m",
        "\x1b[32mOK  \x1b[0m",
    ):
        assert part in coloured
    assert "\x1b[1mSummary: " in coloured
    for output in (Output.JSON, Output.TABLE):
        assert "\x1b" not in rendered(REPORT, output, colour=True)


_FINDINGS = st.builds(
    Finding, st.sampled_from(sorted(CODES)), st.sampled_from(list(Check)), st.text(max_size=9), st.text(max_size=20)
)


@given(st.lists(_FINDINGS, max_size=8))
def test_json_says_everything_and_its_summary_agrees(findings: list[Finding]) -> None:
    report = Report(tuple(findings))
    document = json.loads(rendered(report, Output.JSON))
    assert [(one["code"], one["check"], one.get("resource", ""), one["message"]) for one in document["findings"]] == [
        (one.code, one.check.value, one.resource, one.message) for one in findings
    ]
    counted = document["summary"]
    assert sum(counted[key] for key in ("ok", "info", "warn", "fail")) == len(findings)
    assert counted["exitCode"] == (2 if counted["fail"] else 1 if counted["warn"] else 0) == report.exit_code


@pytest.mark.parametrize("family", ["API", "SV", "SN", "PL", "PB", "CB", "EP", "OP", "CT", "CP", "KB", "KP", "KN"])
def test_codes_are_numbered_without_gaps(family: str) -> None:
    numbers = sorted(int(code.removeprefix(family)) for code in CODES if code.rstrip("0123456789") == family)
    assert numbers == list(range(1, len(numbers) + 1))
