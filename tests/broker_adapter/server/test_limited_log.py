"""Warnings that unauthenticated clients can cause."""

from __future__ import annotations

import logging
import time

import pytest

from broker_adapter.server.limited_log import LimitedLog


def test_of_each_kind_a_few_are_written_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    log = LimitedLog()
    for number in range(5):
        log.write("a", "a happened to %d", number, records=2)
    log.write("b", "b happened", records=2)
    assert caplog.messages == ["a happened to 0", "a happened to 1", "b happened"]
    log.report_suppressed(time.monotonic() + 3600)
    assert caplog.messages[3:] == ["! 3 more records like these were suppressed (a)"]
    assert repr(log) == "<LimitedLog ['a', 'b']>"
