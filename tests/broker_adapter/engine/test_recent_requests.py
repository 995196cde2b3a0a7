"""Requests take effect once, however often they are repeated."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.recent_requests import MOST_ANSWERS, MOST_WAITING, UNDER_WAY, RecentRequests
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    JMSException,
    OperationTimedOutException,
    ResourceAllocationException,
)
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, connect, depth, send


def test_a_repeated_request_has_the_first_answer() -> None:
    requests = RecentRequests()
    answers = iter(range(10))
    assert [requests.once("a", lambda: next(answers), WAIT) for _ in range(3)] == [0, 0, 0]
    assert requests.once("b", lambda: next(answers), WAIT) == 1


def test_an_error_is_an_answer_and_a_time_out_is_none() -> None:
    requests = RecentRequests()
    calls: list[int] = []

    def fail(error: JMSException) -> Any:
        calls.append(1)
        raise error

    for _ in range(2):
        with pytest.raises(IllegalStateException, match="no"):
            requests.once("a", lambda: fail(IllegalStateException("no")), WAIT)
    assert len(calls) == 1
    for _ in range(2):
        with pytest.raises(OperationTimedOutException):
            requests.once("b", lambda: fail(OperationTimedOutException("late")), WAIT)
    assert len(calls) == 3


def test_a_repeated_request_waits_for_the_answer_of_the_one_under_way() -> None:
    requests = RecentRequests()
    begun, go_on = threading.Event(), threading.Event()
    answers: list[Any] = []

    def act() -> str:
        begun.set()
        assert go_on.wait(WAIT)
        return "done"

    first = threading.Thread(target=lambda: answers.append(requests.once("a", act, WAIT)))
    first.start()
    assert begun.wait(WAIT)
    with pytest.raises(OperationTimedOutException, match="still under way"):
        requests.once("a", lambda: "twice", 0)
    second = threading.Thread(target=lambda: answers.append(requests.once("a", lambda: "twice", WAIT)))
    second.start()
    go_on.set()
    for thread in (first, second):
        thread.join(WAIT)
    assert answers == ["done", "done"]


def test_old_answers_are_forgotten_and_what_is_under_way_is_not() -> None:
    requests = RecentRequests()
    begun, go_on = threading.Event(), threading.Event()

    def act() -> str:
        begun.set()
        assert go_on.wait(WAIT)
        return "done"

    slow = threading.Thread(target=requests.once, args=("slow", act, WAIT))
    slow.start()
    assert begun.wait(WAIT)
    for number in range(3 * MOST_ANSWERS):
        requests.once(str(number), lambda: None, WAIT)
    assert len(requests) <= MOST_ANSWERS + 2
    go_on.set()
    assert requests.once("slow", lambda: "twice", WAIT) == "done"
    slow.join(WAIT)


def test_a_purge_that_is_asked_for_again_leaves_what_came_after_it(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    client = connect(broker)
    send(broker, client, "q", "a", "b")
    purge = {"destination": "q", "request_id": "one", "request_run": broker.run}
    assert broker.request("purge", purge, WAIT) == 2
    send(broker, client, "q", "c")
    assert broker.request("purge", purge, WAIT) == 2
    assert depth(broker, "q") == 1
    broker.close()
    broker = Broker(EngineSettings(), str(tmp_path))
    with pytest.raises(IllegalStateException, match="started again"):
        broker.request("purge", purge, WAIT)
    assert depth(broker, "q") == 1
    assert broker.request("purge", {**purge, "request_run": broker.run}, WAIT) == 1
    run = broker.request("bounds", {"destination": "q"}, WAIT)["run"]
    assert broker.request("purge", {**purge, "request_run": run}, WAIT) == 1, "as the bounds of a queue name it"
    broker.close()


class Slow:
    """A request under way in a thread of its own, until it may go on."""

    def __init__(self, requests: RecentRequests, request_id: str) -> None:
        self._begun, self._go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=requests.once, args=(request_id, self._act, WAIT))
        self._thread.start()
        assert self._begun.wait(WAIT)

    def _act(self) -> str:
        self._begun.set()
        assert self._go_on.wait(WAIT)
        return "done"

    def finish(self) -> None:
        self._go_on.set()
        self._thread.join(WAIT)


def test_a_repetition_that_is_answered_later_holds_no_thread() -> None:
    requests = RecentRequests()
    slow = Slow(requests, "a")
    answers: list[Any] = []
    for _ in range(3):
        assert requests.once("a", lambda: "twice", WAIT, None, answers.append) is UNDER_WAY
    assert answers == []
    slow.finish()
    assert answers == ["done"] * 3
    assert requests.once("a", lambda: "twice", WAIT, None, answers.append) == "done"


def test_callers_that_are_answered_later_get_errors_as_answers() -> None:
    requests = RecentRequests()
    answers: list[Any] = []

    def fail() -> Any:
        assert requests.once("a", lambda: "twice", WAIT, None, answers.append) is UNDER_WAY
        raise IllegalStateException("no")

    with pytest.raises(IllegalStateException):
        requests.once("a", fail, WAIT)
    assert [str(each) for each in answers] == ["no"]


def test_a_cancelled_caller_stops_waiting_and_the_request_goes_on() -> None:
    requests = RecentRequests()
    slow = Slow(requests, "a")
    with pytest.raises(ConnectionLostException):
        requests.once("a", lambda: "twice", None, lambda: True)
    slow.finish()
    assert requests.once("a", lambda: "twice", WAIT, lambda: True) == "done"


def test_so_many_repetitions_wait_and_those_of_clients_that_left_do_not_count() -> None:
    requests = RecentRequests()
    slow = Slow(requests, "a")
    left = [False]
    answers: list[Any] = []
    for _ in range(MOST_WAITING):
        requests.once("a", lambda: "twice", WAIT, lambda: left[0], answers.append)
    with pytest.raises(ResourceAllocationException, match="ask again"):
        requests.once("a", lambda: "twice", WAIT, None, answers.append)
    left[0] = True
    assert requests.once("a", lambda: "twice", WAIT, None, answers.append) is UNDER_WAY
    slow.finish()
    assert answers == ["done"]


def test_a_check_ends_with_the_connection_that_asked_for_it(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    with pytest.raises(ConnectionLostException, match="cancelled"):
        broker.request("check", {}, WAIT, lambda: True)
    assert broker.request("check", {}, WAIT, lambda: False)["sound"]
    broker.close()


def test_a_caller_that_stops_waiting_leaves_the_request_going_on() -> None:
    requests = RecentRequests()
    begun, go_on = threading.Event(), threading.Event()
    told: list[Any] = []

    def act() -> str:
        begun.set()
        assert go_on.wait(WAIT)
        return "done"

    def raises(_answer: Any) -> None:
        raise ZeroDivisionError("a fault")

    first = threading.Thread(target=requests.once, args=("a", act, WAIT))
    first.start()
    assert begun.wait(WAIT)
    looks = iter([False, True])
    with pytest.raises(ConnectionLostException, match="the request goes on"):
        requests.once("a", act, WAIT, lambda: next(looks))
    with pytest.raises(OperationTimedOutException, match="still under way"):
        requests.once("a", act, 0.01, lambda: False)
    for later in (raises, told.append):
        assert requests.once("a", act, WAIT, later=later) is UNDER_WAY
    go_on.set()
    first.join(WAIT)
    assert told == ["done"], "also where another one that is told raises"
    assert requests.once("a", act, WAIT, lambda: False) == "done"


def test_a_request_that_fails_unexpectedly_has_that_as_its_answer() -> None:
    requests = RecentRequests()

    def act() -> None:
        raise ZeroDivisionError("a fault")

    with pytest.raises(ZeroDivisionError):
        requests.once("a", act, WAIT)
    with pytest.raises(JMSException, match=r"the request failed: ZeroDivisionError\('a fault'\)"):
        requests.once("a", act, WAIT)
