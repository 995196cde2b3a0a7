"""What requests share: the queue that they name, and settling in parts."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.destination import DestinationKind, queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.operations.requests import request_of
from broker_adapter.engine.operations.steps import settle
from broker_adapter.errors import InvalidDestinationException, MessageFormatException
from tests.broker_adapter.engine.desks import make
from tests.broker_adapter.engine.driving import WAIT, Engines, connect, send


def asked_of(name: str | None, operation: str = "read_range", **fields: Any) -> Any:
    further = {"first": 0, "last": 0} if operation == "read_range" else {}
    return request_of(operation, {"destination": name, **further, **fields})


def test_a_queue_is_found_by_its_name_and_incarnation(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    send(broker, client, "q", "a")
    send(broker, client, "DLQ", "dead")
    temporary = broker.call(c.DeclareTemporary(client, DestinationKind.TEMPORARY_QUEUE), WAIT)
    with broker.reading() as reader:
        found = asked_of("q").queue_in(reader.state)
        assert found is reader.state.directory.by_destination[queue("q")]
        assert asked_of(None, "redrive").queue_in(reader.state).label == "DLQ"
        assert asked_of(temporary.name).queue_in(reader.state).id > found.id
        incarnation = reader.state.directory.incarnation(found)
        assert asked_of("q", incarnation=incarnation).this_queue(reader) is found
        with pytest.raises(InvalidDestinationException, match="deleted and made again"):
            asked_of("q", incarnation="another").this_queue(reader)
        with pytest.raises(InvalidDestinationException, match="there is no queue 'none'"):
            asked_of("none").queue_in(reader.state)
        with pytest.raises(InvalidDestinationException, match="name a subscription"):
            asked_of("t", kind="topic").queue_in(reader.state)
        with pytest.raises(InvalidDestinationException):
            asked_of("t", kind="topic", subscription="s").queue_in(reader.state)


def test_where_a_region_is_named_as_a_queue_the_error_says_that_it_is_one(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    with (
        broker.reading() as reader,
        pytest.raises(InvalidDestinationException, match="there is no queue 'quotes': it is a region, which cannot be"),
    ):
        asked_of("quotes").queue_in(reader.state)


def test_one_request_names_a_bounded_number_of_messages() -> None:
    given = [(1, "ID:1", 2), (2, "ID:2")]
    assert asked_of("q", "uncount", given=given).checked() == given
    with pytest.raises(MessageFormatException, match="is not a position"):
        asked_of("q", "uncount", given=[(-1, "ID:1")]).checked()


def test_a_range_is_settled_in_parts_until_its_end() -> None:
    steps = settle(3, 9, first=2)
    first = steps.send(None)
    assert isinstance(first, c.Trim)
    assert (first.range.queue, first.range.first, first.range.last) == (3, 2, 9)
    second = steps.send((4, 6))
    assert isinstance(second, c.Trim)
    assert second.range.first == 6
    with pytest.raises(StopIteration) as end:
        steps.send((3, None))
    assert end.value.value == 7
