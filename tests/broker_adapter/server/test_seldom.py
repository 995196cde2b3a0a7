"""Which lines are written that strangers can cause."""

from __future__ import annotations

from broker_adapter.server.seldom import Seldom


def test_a_few_lines_are_written_in_a_period_and_the_others_are_counted() -> None:
    seldom = Seldom(lines=2, period=60.0)
    assert seldom.left_out(0.0) == 0
    assert [seldom.may_write(10.0 + number) for number in range(5)] == [True, True, False, False, False]
    assert seldom.left_out(69.9) == 0
    assert seldom.left_out(70.0) == 3
    assert seldom.left_out(1000.0) == 0


def test_a_period_begins_with_its_first_line() -> None:
    seldom = Seldom(lines=1, period=60.0)
    assert seldom.may_write(0.0)
    assert seldom.left_out(60.0) == 0
    assert seldom.may_write(100.0)
    assert not seldom.may_write(159.0)
    assert seldom.left_out(159.0) == 0
    assert seldom.left_out(160.0) == 1
