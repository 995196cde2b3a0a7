"""Answers that threads wait for, and the limit of the sends without one."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from broker_adapter.answers import Answer, SendWindow
from broker_adapter.errors import ConnectionLostException, JMSException, OperationTimedOutException

WAIT = 120.0
LOST = ConnectionLostException("the cable was cut")


def test_an_answer_is_what_was_given_also_where_it_came_first() -> None:
    answer = Answer()
    assert answer("result", None)
    assert answer.wait(0.0, "it") == "result"


def test_an_answer_that_is_an_error_is_raised_with_a_traceback_of_its_own() -> None:
    answer = Answer()
    answer.settled(LOST)
    with pytest.raises(ConnectionLostException, match="the cable was cut") as told:
        answer.wait(None, "it")
    assert told.value is not LOST
    assert answer.error is LOST


def test_the_first_answer_counts() -> None:
    answer = Answer()
    assert answer("first", None)
    assert answer(None, LOST), "the thread still waits, for the first one"
    assert answer.wait(0.0, "it") == "first"


def test_an_answer_that_comes_late_is_told_so() -> None:
    answer = Answer()
    with pytest.raises(OperationTimedOutException, match=r"the request had no answer within 0\.01 s"):
        answer.wait(0.01, "the request")
    assert not answer("result", None)
    assert not answer("again", None)


def test_an_answer_comes_or_is_abandoned_and_never_both() -> None:
    """A thread that gives up as another one answers: each learns of the other."""
    for _ in range(300):
        answer, given = Answer(), []
        thread = threading.Thread(target=lambda answer=answer, given=given: given.append(answer("result", None)))
        thread.start()
        arrived = answer.arrives(0.0)
        thread.join(WAIT)
        assert given == [arrived]


def test_an_answer_is_waited_for() -> None:
    answer, results = Answer(), []
    thread = threading.Thread(target=lambda: results.append(answer.wait(None, "it")))
    thread.start()
    answer("result", None)
    thread.join(WAIT)
    assert results == ["result"]


# The send window.


def test_a_window_has_so_many_places() -> None:
    window = SendWindow(2)
    window.enter(0.0)
    window.enter(0.0)
    with pytest.raises(
        OperationTimedOutException, match="not sent: no place in the send window of 2 messages within 0 s"
    ):
        window.enter(0.0)
    window.enter(0.0, waits=False)
    window.leave(2)
    window.enter(0.0)


@pytest.mark.parametrize("closed", [False, True])
def test_a_place_in_a_full_window_is_waited_for_until_the_window_is_closed(closed: bool) -> None:
    window, results = SendWindow(1), list[Any]()
    window.enter(0.0)

    def enter() -> None:
        try:
            window.enter(None)
            results.append("entered")
        except JMSException as error:
            results.append(error.reason)

    thread = threading.Thread(target=enter)
    thread.start()
    if closed:
        window.close(LOST)
    else:
        window.leave(1)
    thread.join(WAIT)
    assert results == ["the cable was cut" if closed else "entered"]
    if closed:
        with pytest.raises(ConnectionLostException):
            window.enter(0.0, waits=False)


def test_the_reply_to_a_command_is_a_result_or_an_error_and_the_first_one_counts() -> None:
    answer = Answer()
    answer.reply("done")
    answer.reply(JMSException("the engine stopped"))
    assert answer.wait(0, "the command") == "done"
    answer = Answer()
    answer.reply(JMSException("the queue is full"))
    with pytest.raises(JMSException, match="the queue is full"):
        answer.wait(0, "the command")


def test_a_reply_that_comes_too_late_is_dropped() -> None:
    answer = Answer()
    assert not answer.arrives(0)
    answer.reply("late")
    assert not answer("later", None)
