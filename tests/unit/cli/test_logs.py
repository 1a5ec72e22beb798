"""Log lines have the shape log pipelines of Kubernetes components expect."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from inferencecache.cli.logs import LogSettings, parse_level

_PROGRAM = """
import logging, structlog
from inferencecache.cli.logs import *
configure(LogSettings({settings}))
log = structlog.get_logger()
log.debug("hidden")
log.info("started", namespace="a", name="b")
logging.getLogger("other.library").warning("foreign %s", 1)
secret = "to" + "ken"
try:
    1 / 0
except ZeroDivisionError:
    log.warning("odd", exc_info=True)
    log.exception("broken")
"""


def _lines(settings: str) -> list[str]:
    # A process of its own: logging is configured once per process.
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(settings=settings)],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_production_lines_are_json_with_known_keys() -> None:
    started, foreign, odd, broken = map(json.loads, _lines(""))
    assert started.pop("ts").endswith("Z")
    assert started == {"level": "info", "msg": "started", "namespace": "a", "name": "b"}
    assert (foreign["msg"], foreign["level"], foreign["logger"]) == ("foreign 1", "warning", "other.library")
    assert "exception" not in odd
    assert "ZeroDivisionError" in broken["exception"]


def test_times_can_be_numbers() -> None:
    assert isinstance(json.loads(_lines("time_encoding=TimeEncoding.EPOCH")[0])["ts"], float)


def test_development_lines_are_readable_and_verbose() -> None:
    assert "hidden" in _lines("devel=True")[0]


@pytest.mark.parametrize("settings", ["", "devel=True"])
def test_a_traceback_tells_no_values_of_variables(settings: str) -> None:
    told = "\n".join(_lines(settings))
    assert "ZeroDivisionError: division by zero" in told
    assert "token" not in told


def test_a_sidecar_loads_nothing_that_draws_on_a_terminal() -> None:
    program = (
        "import sys, inferencecache.cli.main, inferencecache.subscriber.run\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('rich', 'pygments', 'pydantic')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=200)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("text", ["loud", "0", "-1", ""])
def test_unknown_levels_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--zap-log-level"):
        parse_level("--zap-log-level", text)
    if text:
        with pytest.raises(ValueError, match="--zap-log-level"):
            LogSettings(level=text)
