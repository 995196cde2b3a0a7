"""The table of a durable client's states, as it is printed and as it is executed."""

from __future__ import annotations

import pytest

from broker_adapter.engine.clients import states
from broker_adapter.engine.clients.states import Event, Refusal, State, after, outcome, pending_count
from broker_adapter.errors import IllegalStateException, InvalidClientIDException

#: The columns of the table in the docstring, and its words for refusals.
COLUMNS = {
    "connect": Event.CONNECT,
    "ready": Event.READY,
    "away": Event.AWAY,
    "close": Event.CLOSE,
    "expire": Event.EXPIRE,
    "begin drain": Event.BEGIN_DRAIN,
    "end drain": Event.END_DRAIN,
    "overflow": Event.OVERFLOW,
}
WORDS = {
    "unknown": Refusal.UNKNOWN,
    "running": Refusal.RUNNING,
    "connected": Refusal.CONNECTED,
    "not connected": Refusal.NOT_CONNECTED,
    "draining": Refusal.BEING_DRAINED,
}


def printed() -> list[tuple[State, Event, State | Refusal]]:
    """Every cell of the table in the docstring."""
    lines = (states.__doc__ or "").splitlines()
    rule = next(line for line in lines if line.startswith("===="))
    starts = [0, *(i + 1 for i in range(1, len(rule)) if rule[i] == " " and rule[i + 1 : i + 2] == "=")]
    cells = [
        [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
        for line in lines[lines.index(rule) + 1 :]
        if line and not line.startswith("=")
    ][: len(State) + 1]
    heads, *rows = cells
    return [
        (State[row[0]], COLUMNS[head], WORDS.get(cell) or State[cell])
        for row in rows
        for head, cell in zip(heads[1:], row[1:], strict=True)
    ]


def test_the_printed_table_has_a_cell_for_each_state_and_event() -> None:
    assert {(state, event) for state, event, _ in printed()} == {(state, event) for state in State for event in Event}


@pytest.mark.parametrize(("state", "event", "result"), printed(), ids=str)
def test_what_is_printed_is_what_happens(state: State, event: Event, result: State | Refusal) -> None:
    assert outcome(state, event) is result
    if isinstance(result, State):
        assert after(state, event, "desk") is result
    else:
        kind = InvalidClientIDException if result is Refusal.RUNNING else IllegalStateException
        with pytest.raises(kind, match="'desk'"):
            after(state, event, "desk")


def test_a_queue_is_kept_in_every_state_but_two() -> None:
    assert [each for each in State if not each.has_queue] == [State.ABSENT, State.TIMED_OUT]
    assert [each for each in State if each.is_here] == [State.CONNECTED, State.LIVE]


def test_no_event_ends_a_queue_but_close_overflow_and_the_end_of_the_time_of_a_client_that_is_away() -> None:
    ends = [
        (state, event)
        for state in State
        for event in Event
        if state.has_queue and isinstance(found := outcome(state, event), State) and not found.has_queue
    ]
    assert ends == [
        (State.CONNECTED, Event.CLOSE),
        (State.CONNECTED, Event.OVERFLOW),
        (State.LIVE, Event.CLOSE),
        (State.LIVE, Event.OVERFLOW),
        (State.PAUSED, Event.CLOSE),
        (State.PAUSED, Event.EXPIRE),
        (State.PAUSED, Event.OVERFLOW),
        (State.DRAINING, Event.OVERFLOW),
    ]


@pytest.mark.parametrize("state", State)
def test_a_client_that_connects_is_told_what_its_queue_has_or_why_it_has_none(state: State) -> None:
    expected = {State.ABSENT: -2, State.TIMED_OUT: -1}.get(state, 17)
    assert pending_count(state, 17) == expected
    assert pending_count(state, 0) == min(expected, 0)
