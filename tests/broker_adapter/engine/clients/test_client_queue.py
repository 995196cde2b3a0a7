"""The queue of a durable client, read from a log of events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.engine.clients import client_queue
from broker_adapter.engine.clients.client_queue import AudiencePart, ClientQueue
from broker_adapter.engine.regions.event_records import EventRecord, Operation

BROAD = {1: 101, 2: 102}  #: the broad stream of each region


class Log:
    """A log of events in memory; its positions begin with 1."""

    def __init__(self) -> None:
        self.events: dict[int, EventRecord] = {}
        self.streams: dict[int, list[int]] = {}

    @property
    def head(self) -> int:
        return len(self.events)

    def add(self, region: int, audiences: Sequence[int]) -> int:
        position = self.head + 1
        event = EventRecord(region, Operation.UPDATE, position, 0, f"key {position}", sorted(audiences))
        self.events[position] = event
        for stream in [BROAD[region]] if event.is_broad else event.audiences:
            self.streams.setdefault(stream, []).append(position)
        return position

    def postings(self, stream: int, first: int, last: int) -> Iterator[int]:
        return iter([each for each in self.streams.get(stream, []) if first <= each <= last])

    def event(self, position: int) -> EventRecord | None:
        return self.events.get(position)

    def postings_through(self, stream: int, position: int) -> int:
        return sum(each <= position for each in self.streams.get(stream, []))


MANY = list(range(20, 40))  #: audiences of a broad event


@pytest.fixture
def log() -> Log:
    return Log()


def positions(queue: ClientQueue, log: Log, limit: int = 100) -> list[int]:
    """Dispatch what is next; returns its positions."""
    read = queue.read(log, log.head, limit)
    found = [position for position, _ in read.events]
    queue.dispatched(found, read.through)
    return found


def test_it_has_what_its_audience_got_while_it_belonged_to_it(log: Log) -> None:
    log.add(1, [5])
    queue = ClientQueue(log.head)
    assert positions(queue, log) == []
    queue.belong(1, BROAD[1], 5, log.head)
    few, broad = log.add(1, [5, 6]), log.add(1, [*MANY, 5])
    log.add(1, [6])
    log.add(1, MANY)
    log.add(2, [6])
    queue.belong(1, BROAD[1], 6, log.head)
    other = log.add(1, [6])
    log.add(1, [5])
    queue.belong(1, BROAD[1], None, log.head)
    log.add(1, [5, 6])
    assert positions(queue, log) == [few, broad, other]
    assert queue.audience_of(1) is None


def test_regions_are_read_in_the_order_of_the_log(log: Log) -> None:
    queue = ClientQueue(0)
    queue.belong(1, BROAD[1], 5, 0)
    queue.belong(2, BROAD[2], 6, 0)
    added = [log.add(1, [5]), log.add(2, [6]), log.add(2, [*MANY, 6]), log.add(1, [*MANY, 5]), log.add(1, [5])]
    assert positions(queue, log, 2) == added[:2]
    assert positions(queue, log, 2) == added[2:4]
    assert positions(queue, log, 2) == added[4:]
    assert queue.audience_of(2) == 6


def test_what_is_acknowledged_is_gone_and_all_else_comes_again_first_and_in_order(log: Log) -> None:
    queue = ClientQueue(0)
    queue.belong(1, BROAD[1], 5, 0)
    added = [log.add(1, [5]) for _ in range(6)]
    assert positions(queue, log, 4) == added[:4]
    assert queue.acknowledged(added[1]) == 2
    assert queue.acknowledged(added[0]) == 0
    assert queue.cursor == added[1]
    assert queue.rewind() == 2
    assert positions(queue, log, 10) == added[2:]
    assert queue.acknowledged(10**9) == 4
    assert queue.cursor == log.head
    assert queue.rewind() == 0


def test_nothing_is_acknowledged_that_was_not_dispatched(log: Log) -> None:
    queue = ClientQueue(0)
    queue.belong(1, BROAD[1], 5, 0)
    added = [log.add(1, [5]) for _ in range(3)]
    positions(queue, log, 1)
    assert queue.acknowledged(added[2]) == 1
    assert queue.cursor == added[0]
    assert positions(queue, log) == added[1:]


def test_the_cursor_passes_what_is_for_others(log: Log) -> None:
    queue = ClientQueue(0)
    queue.belong(1, BROAD[1], 5, 0)
    for _ in range(3):
        log.add(1, [6])
    assert positions(queue, log) == []
    assert queue.cursor == log.head
    mine = log.add(1, [5])
    log.add(1, [6])
    assert positions(queue, log) == [mine]
    assert queue.cursor == mine - 1
    queue.acknowledged(mine)
    assert queue.cursor == log.head


def test_a_part_that_has_ended_is_forgotten_when_it_is_processed(log: Log) -> None:
    queue = ClientQueue(0)
    queue.belong(1, BROAD[1], 5, 0)
    queue.belong(1, BROAD[1], 6, 0)  # nothing came between
    assert queue.parts == [AudiencePart(1, BROAD[1], 6, 1)]
    mine = log.add(1, [6])
    queue.belong(1, BROAD[1], 6, log.head)
    assert queue.parts == [AudiencePart(1, BROAD[1], 6, 1)]
    queue.belong(1, BROAD[1], 7, log.head)
    assert [part.audience for part in queue.parts] == [6, 7]
    assert positions(queue, log) == [mine]
    assert queue.remove_ended_parts() == []
    queue.acknowledged(mine)
    assert [part.audience for part in queue.remove_ended_parts()] == [6]
    assert [part.audience for part in queue.parts] == [7]


def test_an_event_that_is_gone_is_passed_over(log: Log) -> None:
    queue = ClientQueue(0)
    queue.belong(1, BROAD[1], 5, 0)
    damaged, broad, sound = log.add(1, [5]), log.add(1, [*MANY, 5]), log.add(1, [5])
    del log.events[damaged], log.events[broad]
    log.events[10] = log.events[11] = log.events[sound]  # so that the head is where it was
    read = queue.read(log, sound, 10)
    assert ([position for position, _ in read.events], read.through) == ([sound], sound)


def test_one_read_examines_so_many_broad_events_and_no_more(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_queue, "EXAMINED", 3)
    queue = ClientQueue(0)
    queue.belong(1, BROAD[1], 5, 0)
    for _ in range(7):
        log.add(1, MANY)
    mine = log.add(1, [*MANY, 5])
    reads = []
    while queue.read_through < log.head:
        reads.append((positions(queue, log), queue.read_through))
    assert reads == [([], 3), ([], 6), ([mine], 8)]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    step = st.one_of(
        st.tuples(st.just("event"), st.integers(1, 2), st.integers(0, 2**12 - 1)),
        st.tuples(st.just("belong"), st.integers(1, 2), st.integers(0, 12)),
        st.tuples(st.just("dispatch"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("acknowledge"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("rewind"), st.just(0), st.just(0)),
    )
    return draw(st.lists(step, max_size=40))


@given(histories())
def test_it_delivers_each_event_that_was_for_it_in_order_until_it_is_acknowledged(
    history: list[tuple[str, int, int]],
) -> None:
    """Against a list that gets each event as it comes."""
    log = Log()
    queue = ClientQueue(0)
    belongs: dict[int, int | None] = {1: None, 2: None}
    model: list[int] = []  # not acknowledged
    seen = 0  # of these, dispatched
    for what, first, second in history:
        if what == "event":
            audiences = [each for each in range(12) if second >> each & 1]
            if first == 2:
                audiences = [each + 50 for each in audiences]
            position = log.add(first, audiences)
            if belongs[first] in audiences:
                model.append(position)
        elif what == "belong":
            number = None if second == 12 else second + (50 if first == 2 else 0)
            belongs[first] = number
            queue.belong(first, BROAD[first], number, log.head)
        elif what == "dispatch":
            found = positions(queue, log, first)
            assert found == model[seen : seen + first]
            seen += len(found)
        elif what == "acknowledge":
            count = min(first, seen)
            through = model[count - 1] if count else 0
            assert queue.acknowledged(through) == count
            del model[:count]
            seen -= count
            queue.remove_ended_parts()
        else:
            assert queue.rewind() == seen
            seen = 0
        assert queue.size(log, log.head) == len(model)
    queue.rewind()
    assert positions(queue, log, 10**6) == model
    queue.acknowledged(log.head)
    queue.remove_ended_parts()
    assert all(part.last is None for part in queue.parts)
