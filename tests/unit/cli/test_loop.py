"""What the event loop of a long-running command says of what went wrong on it."""

from __future__ import annotations

import logging

import pytest
from structlog.testing import capture_logs

from inferencecache.cli.loop import new_event_loop


def test_a_tls_connection_that_broke_is_a_line_and_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    loop = new_event_loop()
    with capture_logs() as lines:
        loop.call_exception_handler({"message": "Fatal error on SSL protocol", "exception": RuntimeError("gone")})
    loop.close()
    assert [(line["event"], line["error"]) for line in lines] == [("a TLS connection broke", "RuntimeError('gone')")]
    assert caplog.records == []


def test_any_other_error_on_the_loop_is_told_in_full(caplog: pytest.LogCaptureFixture) -> None:
    loop = new_event_loop()
    error = RuntimeError("a bug")
    loop.call_exception_handler({"message": "Task exception was never retrieved", "exception": error})
    loop.close()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[1] is error
