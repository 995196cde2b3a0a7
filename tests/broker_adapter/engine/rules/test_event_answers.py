"""What the selectors and queries of a region say of an event, and how far they were asked when their time was over."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from broker_adapter.destination import topic
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.records.new_message import NewMessage
from broker_adapter.engine.regions.event_records import Operation
from broker_adapter.engine.regions.interests import Interest, InterestKind
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.engine.regions.routing import Routing
from broker_adapter.engine.rules.event_answers import EventAnswers
from broker_adapter.engine.rules.matching import Matching
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack
from broker_adapter.settings import EngineSettings

SELECTOR = Interest(InterestKind.SELECTOR, "price > 3")
#: A query as it is asked, whatever the names that clients give it.
QUERY = Interest(InterestKind.QUERY, "price > 5")


def value(price: int) -> tuple[int, bytes]:
    """Format and payload of a value."""
    return ENVELOPE_FORMAT, pack(Envelope(topic("quotes"), body={"price": price}, body_kind=BodyKind.MAP))


def subject(price: int) -> tuple[str, int, bytes]:
    return ("IBM", *value(price))


class World:
    """A region with a selector and a query, and who asks them; ``asked`` has the prices of what was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        directory = Directory(EngineSettings(), durable=False, secret=b"x", unique="u")
        self.matching = Matching(directory)
        self.asked: list[str] = []
        selected = self.matching.is_selected

        def is_selected(selector: object, fields: object) -> bool:
            found = selected(selector, fields)  # type: ignore[arg-type]
            self.asked.append(getattr(selector, "text", ""))
            return found

        monkeypatch.setattr(self.matching, "is_selected", is_selected)
        self.routing = Routing(1, count(1).__next__)
        self.routing.audience(frozenset((SELECTOR, QUERY._replace(name="dear"))))
        self.answers = EventAnswers(self.matching)

    def of(self, operation: Operation, new: int, old: int | None, *, has_value: bool = True) -> dict[str, Operation]:
        before = None if old is None else subject(old)
        found = self.answers.of(self.routing, operation, subject(new), has_value, before, {})
        return {each.text: operation for each, operation in found.items()}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize(
    ("old", "new", "for_the_query"),
    [
        (None, 4, None),
        (None, 6, Operation.CREATE),
        (4, 6, Operation.CREATE),
        (6, 7, Operation.UPDATE),
        (6, 4, Operation.DESTROY),
        (4, 5, None),
    ],
)
def test_a_selector_is_asked_of_the_event_and_a_query_of_both_values(
    world: World, old: int | None, new: int, for_the_query: Operation | None
) -> None:
    found = world.of(Operation.UPDATE, new, old)
    assert found.pop(SELECTOR.text) is Operation.UPDATE
    assert found == ({} if for_the_query is None else {QUERY.text: for_the_query})


def test_a_key_without_a_value_is_in_no_result() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        world = World(monkeypatch)
        assert world.of(Operation.DESTROY, 9, 6, has_value=False)[QUERY.text] is Operation.DESTROY
        assert QUERY.text not in world.of(Operation.INVALIDATE, 9, 4, has_value=False)


def change(price: int, old: int | None = None) -> e.KeyChange:
    message = NewMessage(*value(price))
    return e.KeyChange("IBM", Wanted.PUT, message, old=None if old is None else value(old))


def late_after(times: int) -> Callable[[], bool]:
    """A slice that has time for so many groups of selectors."""
    left = iter([False] * times)
    return lambda: next(left, True)


def test_what_is_asked_ahead_is_not_asked_again(world: World) -> None:
    asked: e.Asked = {}
    command = e.ChangeKeys("quotes", [change(4, old=6), change(7)])
    assert world.answers.ask_ahead(world.routing, command, {}, asked)
    assert sorted(world.asked) == sorted([QUERY.text] * 3 + [SELECTOR.text] * 2), "of an old value only queries are"
    world.asked.clear()
    assert world.answers.ask_ahead(world.routing, command, {}, asked)
    found = world.answers.of(world.routing, Operation.UPDATE, subject(4), True, subject(6), asked)
    assert world.asked == []
    assert found == {SELECTOR: Operation.UPDATE, QUERY: Operation.DESTROY}


def test_the_old_value_is_what_the_request_itself_or_this_decision_has_put(world: World) -> None:
    asked: e.Asked = {}
    command = e.ChangeKeys("quotes", [change(4, old=1), change(7, old=1)])
    assert world.answers.ask_ahead(world.routing, command, {"IBM": value(8)}, asked)
    assert set(asked) == {subject(8), subject(4), subject(7)}


def test_what_a_slice_has_no_time_for_is_asked_in_the_next_one(world: World) -> None:
    asked: e.Asked = {}
    command = e.ChangeKeys("quotes", [change(4), change(7)])
    world.matching.is_late = late_after(1)
    assert not world.answers.ask_ahead(world.routing, command, {}, asked)
    first = list(world.asked)
    assert 0 < len(first) < 4
    world.matching.is_late = late_after(10)
    assert world.answers.ask_ahead(world.routing, command, {}, asked)
    assert sorted(world.asked) == sorted([SELECTOR.text, QUERY.text] * 2), "each once of each value"


def test_what_was_registered_since_then_is_asked_in_the_end(world: World) -> None:
    asked: e.Asked = {}
    command = e.ChangeKeys("quotes", [change(7)])
    assert world.answers.ask_ahead(world.routing, command, {}, asked)
    late = Interest(InterestKind.SELECTOR, "price > 6")
    world.routing.audience(frozenset((late,)))
    found = world.answers.of(world.routing, Operation.CREATE, subject(7), True, None, asked)
    assert set(found) == {SELECTOR, late, QUERY}
