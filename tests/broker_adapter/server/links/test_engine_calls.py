"""Deferred commands and pending callbacks of one connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import Destination, DestinationKind, queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.policies import Policies, policy
from broker_adapter.server.links.engine_calls import MOST_SETTLING, EngineCalls
from broker_adapter.settings import EngineSettings


class Engine:
    """Notes what it is given."""

    settings = EngineSettings()
    policies = Policies(settings, [policy("q", {"dead_letter_queue": "dead"})])
    unique = "unique"
    run = "run"
    is_replaced = False

    def __init__(self) -> None:
        self.submitted: list[list[c.Command]] = []

    def submit_all(self, commands: Iterable[c.Command]) -> None:
        self.submitted.append(list(commands))


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_deferred_commands_are_submitted_together_and_in_order(engine: Engine) -> None:
    calls = EngineCalls(engine, lambda: None)
    calls.submit()
    assert engine.submitted == []
    first, second = c.Statistics(), c.Disconnect(1)
    calls.defer(first)
    calls.defer(second)
    assert calls.deferred == [first, second]
    calls.submit()
    calls.submit()
    assert engine.submitted == [[first, second]]
    assert calls.deferred == []


def test_an_engine_that_is_replaced_after_a_failure_gives_no_answers(engine: Engine) -> None:
    calls = EngineCalls(engine, lambda: None)
    told: list[object] = []

    def fail(result: object) -> None:
        told.append(result)
        engine.is_replaced = True
        calls.reply(told.append)("failed")

    calls.reply(fail)("before")
    calls.run_callbacks()
    calls.run_callbacks()
    assert told == ["before"]


def test_the_settings_of_a_queue_are_those_that_hold_now(engine: Engine) -> None:
    calls = EngineCalls(engine, lambda: None)
    assert calls.settings_of(queue("q")).dead_letter_queue == "dead"
    assert calls.settings_of(queue("dead")).takes_dead_letters
    engine.policies = Policies(engine.settings)
    assert calls.settings_of(queue("q")).dead_letter_queue == "DLQ"
    assert not calls.settings_of(queue("dead")).takes_dead_letters


def test_the_connection_is_woken_once_until_it_has_run_the_callbacks(engine: Engine) -> None:
    woken: list[int] = []
    happened: list[Any] = []
    calls = EngineCalls(engine, lambda: woken.append(1))
    calls.add_callback(happened.append, "a")
    calls.reply(happened.append)("b")
    assert (happened, len(woken)) == ([], 1)
    calls.run_callbacks()
    assert happened == ["a", "b"]
    calls.add_callback(happened.append, "c")
    assert len(woken) == 2
    assert "callbacks=1" in repr(calls)


def test_what_callbacks_defer_is_submitted_when_they_have_run(engine: Engine) -> None:
    calls = EngineCalls(engine, lambda: None)
    calls.add_callback(calls.defer, c.Disconnect(1))
    calls.add_callback(calls.defer, c.Disconnect(2))
    calls.run_callbacks()
    assert engine.submitted == [[c.Disconnect(1), c.Disconnect(2)]]


def test_a_temporary_destination_ends_for_the_client_that_the_engine_has_admitted(engine: Engine) -> None:
    calls = EngineCalls(engine, lambda: None)
    calls.end_temporary(None)
    calls.client = 7
    destination = Destination("temp", DestinationKind.TEMPORARY_QUEUE)
    calls.end_temporary(destination)
    assert calls.deferred == [c.DeleteTemporary(7, destination)]
    assert calls.known_client == 7


def test_what_a_callback_postpones_comes_next_turn_ahead_of_all_that_waits(engine: Engine) -> None:
    wakes: list[int] = []
    done: list[str] = []
    calls = EngineCalls(engine, lambda: wakes.append(1))

    def first() -> None:
        done.append("first")
        calls.postpone(done.append, "rest of the first")

    calls.add_callback(first)
    calls.add_callback(done.append, "second")
    assert len(wakes) == 1
    calls.run_callbacks()
    assert (done, len(wakes), calls.is_postponed) == (["first"], 2, True)
    calls.add_callback(done.append, "third")
    assert len(wakes) == 2  # it was woken for the rest already
    calls.run_callbacks()
    assert done == ["first", "rest of the first", "second", "third"]
    assert (len(wakes), calls.is_postponed) == (2, False)


def test_settlements_are_counted_until_the_engine_has_answered(engine: Engine) -> None:
    calls = EngineCalls(engine, lambda: None)
    while not calls.settles_too_much:
        calls.settle(1, range(1000), Outcome.ACCEPTED)
    assert calls.settling == MOST_SETTLING
    went_on: list[int] = []
    calls.go_on = lambda: went_on.append(1)
    for each in calls.deferred[:2]:
        assert isinstance(each, c.Settle)
        assert each.reply is not None
        each.reply(None)
    calls.run_callbacks()
    assert (calls.settling, went_on, calls.go_on) == (MOST_SETTLING - 2000, [1], None)


def test_small_settlements_are_counted_together_with_the_first_that_makes_them_many(engine: Engine) -> None:
    calls = EngineCalls(engine, lambda: None)
    for _ in range(5):
        calls.settle(1, range(100), Outcome.ACCEPTED)
        calls.settle(2, range(1), Outcome.REJECTED)
    replies = [each.reply for each in calls.deferred if isinstance(each, c.Settle)]
    assert [reply is not None for reply in replies] == [False] * 8 + [True, False]
    assert calls.settling == 504
    assert replies[8] is not None
    replies[8](None)
    calls.run_callbacks()
    assert calls.settling == 0


def test_what_is_for_the_next_turn_is_called_once_in_it(engine: Engine) -> None:
    woken: list[int] = []
    turns: list[int] = []
    calls = EngineCalls(engine, lambda: woken.append(1))

    def act() -> None:
        turns.append(calls.turn)
        if len(turns) < 3:
            calls.next_turn(act)

    calls.next_turn(act)
    assert (calls.has_next_turn, len(woken)) == (True, 1)
    for _ in range(5):
        calls.run_callbacks()
    assert (turns, calls.has_next_turn, len(woken)) == ([1, 2, 3], False, 3)


def test_those_behind_a_callback_that_raises_are_called_later(engine: Engine) -> None:
    woken: list[int] = []
    happened: list[Any] = []
    calls = EngineCalls(engine, lambda: woken.append(1))

    def fail() -> None:
        calls.defer(c.Statistics())
        raise RuntimeError("a fault")

    calls.add_callback(fail)
    calls.add_callback(happened.append, "behind")
    with pytest.raises(RuntimeError):
        calls.run_callbacks()
    assert (happened, len(woken)) == ([], 2)
    assert engine.submitted == [[c.Statistics()]]
    calls.run_callbacks()
    assert happened == ["behind"]
