"""Warnings that may come often."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from broker_adapter import limited_log
from broker_adapter.limited_log import PERIOD_SECONDS, LimitedLog


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(clock: Clock, caplog: pytest.LogCaptureFixture) -> Callable[[int], LimitedLog]:
    caplog.set_level(logging.WARNING)
    return lambda records: LimitedLog(logging.getLogger("holdfast.test"), records, clock)


def test_of_each_kind_a_few_are_written_and_the_others_are_counted(
    make: Callable[[int], LimitedLog], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    log = make(2)
    for number in range(5):
        log.write("a", "! a happened to %d", number)
    log.write("b", "! b happened", records=1)
    assert caplog.messages == ["! a happened to 0", "! a happened to 1", "! b happened"]
    assert repr(log) == "<LimitedLog ['a', 'b']>"
    clock.now = PERIOD_SECONDS
    log.report()
    assert caplog.messages[3:] == ["! 3 more within 60 s, the last one: a happened to 4"]
    log.report()
    assert len(caplog.messages) == 4
    assert repr(log) == "<LimitedLog []>"


def test_a_period_begins_with_the_first_of_its_kind(
    make: Callable[[int], LimitedLog], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    log = make(1)
    for clock.now in (0.0, 59.0, 60.0, 100.0, 119.0):
        log.write("a", "! at %d s", int(clock.now))
    assert caplog.messages == ["! at 0 s", "! 1 more within 60 s, the last one: at 59 s", "! at 60 s"]
    clock.now = 119.9
    log.report()
    assert len(caplog.messages) == 3
    clock.now = 120.0
    log.report()
    assert caplog.messages[3:] == ["! 2 more within 60 s, the last one: at 119 s"]


def test_kinds_beyond_the_most_are_counted_as_one(
    make: Callable[[int], LimitedLog], clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited_log, "MAX_KINDS", 3)
    log = make(1)
    for number in range(6):
        log.write(number, "! %d", number)
    assert caplog.messages == ["! 0", "! 1", "! 2", "! 3"]
    clock.now = PERIOD_SECONDS
    log.write(7, "! 7")
    assert caplog.messages[4:] == ["! 2 more within 60 s, the last one: 5", "! 7"]
