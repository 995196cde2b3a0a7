"""Requests take effect once, however often they are repeated."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.recent_requests import MOST_ANSWERS, RecentRequests
from broker_adapter.errors import IllegalStateException, JMSException, OperationTimedOutException
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


def test_who_repeats_a_request_that_is_under_way_waits_for_its_answer() -> None:
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
    broker.close()
