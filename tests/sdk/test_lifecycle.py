"""The one state table: every state times every event."""

from __future__ import annotations

import itertools
import logging

import pytest

from broker_adapter import ConnectionLostException, IllegalStateException
from sdk.lifecycle import TRANSITIONS, Event, Lifecycle, State

#: How to get there from a new one.
_WAYS: dict[State, list[Event]] = {
    State.STOPPED: [],
    State.STARTED: [Event.START],
    State.FAILED: [Event.FAIL],
    State.CLOSING: [Event.BEGIN_CLOSE],
    State.CLOSED: [Event.BEGIN_CLOSE, Event.END_CLOSE],
}

_TABLE = """
            START    STOP     FAIL     BEGIN_CLOSE  END_CLOSE
STOPPED     STARTED  STOPPED  FAILED   CLOSING      -
STARTED     STARTED  STOPPED  FAILED   CLOSING      -
CLOSING     -        -        CLOSING  CLOSING      CLOSED
CLOSED      -        -        CLOSED   CLOSED       CLOSED
FAILED      -        -        FAILED   CLOSING      -
"""


def _in(state: State) -> Lifecycle:
    lifecycle = Lifecycle("session 3")
    for event in _WAYS[state]:
        lifecycle.process(event)
    return lifecycle


def _cells() -> list[tuple[str, str, str]]:
    head, *rows = [line.split() for line in _TABLE.strip().splitlines()]
    return [(row[0], event, cell) for row in rows for event, cell in zip(head, row[1:], strict=True)]


@pytest.mark.parametrize(("state", "event", "becomes"), _cells())
def test_state_goes_where_the_table_says(state: str, event: str, becomes: str) -> None:
    lifecycle = _in(State[state])

    if becomes == "-":
        with pytest.raises(IllegalStateException, match=f"session 3 is {state}"):
            lifecycle.process(Event[event])
        assert lifecycle.state is State[state]
    else:
        assert lifecycle.process(Event[event]) == (becomes != state)
        assert lifecycle.state is State[becomes]
        assert lifecycle.usable == (becomes in ("STOPPED", "STARTED"))


def test_table_is_complete() -> None:
    cells = {(State[state], Event[event]): State[becomes] for state, event, becomes in _cells() if becomes != "-"}

    assert cells == TRANSITIONS
    assert len(_cells()) == len(list(itertools.product(State, Event)))


def test_failed_object_raises_its_reason_as_a_new_error_each_time() -> None:
    lifecycle = _in(State.STARTED)
    reason = ConnectionLostException("the cable was cut", error_code="amqp:connection:forced")

    assert lifecycle.fail(reason)
    assert not lifecycle.fail(ConnectionLostException("later"))
    with pytest.raises(ConnectionLostException, match="the cable was cut") as caught:
        lifecycle.require_usable()
    assert caught.value is not reason
    assert caught.value.__cause__ is reason
    assert caught.value.error_code == "amqp:connection:forced"


def test_change_of_state_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "holdfast.sdk"):
        _in(State.STARTED).process(Event.STOP)

    assert [record.getMessage() for record in caplog.records] == ["= session 3 is STARTED", "= session 3 is STOPPED"]
    assert repr(_in(State.CLOSED)) == "<Lifecycle session 3 is CLOSED>"


def test_a_failure_is_not_lost_to_what_another_thread_does_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    lifecycle = _in(State.STOPPED)

    class Table(dict[tuple[State, Event], State]):
        def get(self, key: tuple[State, Event], default: State | None = None) -> State | None:
            if key == (State.STOPPED, Event.START):
                lifecycle.fail(ConnectionLostException("the cable was cut"))  # by another thread, between the two steps
            return dict.get(self, key, default)

    monkeypatch.setattr("sdk.lifecycle.TRANSITIONS", Table(TRANSITIONS))

    with pytest.raises(ConnectionLostException, match="the cable was cut"):
        lifecycle.process(Event.START)
    assert lifecycle.state is State.FAILED
    assert not lifecycle.usable


def test_what_is_closed_stays_closed_whoever_fails_it_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    lifecycle = _in(State.STARTED)

    class Table(dict[tuple[State, Event], State]):
        def get(self, key: tuple[State, Event], default: State | None = None) -> State | None:
            if key == (State.STARTED, Event.FAIL):
                lifecycle.process(Event.BEGIN_CLOSE)
                lifecycle.process(Event.END_CLOSE)
            return dict.get(self, key, default)

    monkeypatch.setattr("sdk.lifecycle.TRANSITIONS", Table(TRANSITIONS))
    assert not lifecycle.fail(ConnectionLostException("the cable was cut"))
    assert lifecycle.state is State.CLOSED
