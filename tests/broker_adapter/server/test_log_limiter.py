"""Which log lines are written that any client can cause."""

from __future__ import annotations

from broker_adapter.server.log_limiter import LogLimiter


def test_a_few_lines_are_written_in_a_period_and_the_others_are_counted() -> None:
    limiter = LogLimiter(records=2, period=60.0)
    assert limiter.suppressed(0.0) == 0
    assert [limiter.may_write(10.0 + number) for number in range(5)] == [True, True, False, False, False]
    assert limiter.suppressed(69.9) == 0
    assert limiter.suppressed(70.0) == 3
    assert limiter.suppressed(1000.0) == 0


def test_a_period_begins_with_its_first_line() -> None:
    limiter = LogLimiter(records=1, period=60.0)
    assert limiter.may_write(0.0)
    assert limiter.suppressed(60.0) == 0
    assert limiter.may_write(100.0)
    assert not limiter.may_write(159.0)
    assert limiter.suppressed(159.0) == 0
    assert limiter.suppressed(160.0) == 1
