"""How acknowledgements that were lost are repeated, and lost deliveries are taken back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from ack_modes import Outcome, Settlement
from broker_adapter import (
    ConnectionLostException,
    Identity,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    ResourceAllocationException,
)
from sdk import acknowledgements
from sdk.acknowledgements import (
    Acknowledgements,
    LostAcknowledgements,
    Source,
    uncount_deliveries,
)
from tests.sdk.acknowledged import SOURCE, Told, accept, ignore, keys, record, tag


class Broker:
    def __init__(self, fails_after: int = 1000) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self._fails_after = fails_after

    def request(self, operation: str, arguments: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        assert operation == "settle_positions"
        if len(self.asked) >= self._fails_after:
            raise ConnectionLostException("again")
        self.asked.append(arguments)
        return {"settled": len(arguments["given"]), "lost": []}


def test_they_are_repeated_by_source_with_positions_and_names() -> None:
    lost = LostAcknowledgements()
    subscription = Source("news", "topic", "mine", "client", durable=False)
    lost.add([record(1), record(2), record(3, subscription), (SOURCE, "ID:4", 4, 7, "ID:4")], ignore)
    broker = Broker()
    lost.give_again(broker.request)
    assert broker.asked == [
        {
            "destination": "orders",
            "kind": "queue",
            "given": [(1, ["producer", 1, 1], 1), (2, ["producer", 1, 2], 2), (4, "ID:4", 7)],
        },
        {
            "destination": "news",
            "kind": "topic",
            "subscription": "mine",
            "client_id": "client",
            "durable": False,
            "given": [(3, ["producer", 1, 3], 0)],
        },
    ]
    assert len(lost) == 0


def test_a_source_that_is_gone_is_passed_over_and_a_loss_is_not() -> None:
    lost = LostAcknowledgements()
    lost.add([record(1, Source("gone")), record(2)], ignore)
    asked: list[str] = []

    def request(operation: str, arguments: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        asked.append(arguments["destination"])
        if arguments["destination"] == "gone":
            raise InvalidDestinationException("no such queue")
        return {"settled": 1, "lost": []}

    lost.give_again(request)
    assert asked == ["gone", "orders"]
    assert len(lost) == 0


def test_what_the_broker_refuses_to_hear_waits_for_its_message() -> None:
    lost = LostAcknowledgements()
    lost.add([record(1)], ignore)
    broker = Told(ResourceAllocationException("the disk is full"))
    lost.give_again(broker.request)
    assert [name for name, _ in broker.asked] == ["settle_positions"]
    assert keys(lost, 1) == [True]


def test_since_when_the_broker_refuses_is_known_until_it_hears_all() -> None:
    lost = LostAcknowledgements()
    lost.add([record(1), record(2, Source("other"))], ignore)
    assert lost.refused_at == 0
    lost.give_again(Told(*[ResourceAllocationException("the disk is full")] * 2).request, "token", 3)
    assert lost.refused_at == 3
    with pytest.raises(ConnectionLostException):
        lost.give_again(Told(ConnectionLostException("again")).request, "token", 4)
    assert lost.refused_at == 3
    lost.give_again(Broker().request, "token", 5)
    assert lost.refused_at == 0
    assert len(lost) == 0


def test_what_the_broker_has_refused_to_hear_is_told_of_with_the_next_loss() -> None:
    lost = LostAcknowledgements()
    told: list[list[str]] = []
    lost.add([record(1)], told.append)
    lost.give_again(Told(ResourceAllocationException("the disk is full")).request)
    lost.give_again(lambda *_: {"settled": 0, "lost": [1]})
    assert told == [["ID:1"]]


def test_what_was_lost_at_another_store_is_given_to_that_one() -> None:
    lost = LostAcknowledgements("first")
    lost.add([record(1)], ignore)
    lost.move("second", 1)
    lost.add([record(2)], ignore)
    broker = Broker()
    lost.give_again(broker.request)
    assert [each["given"] for each in broker.asked] == [[(2, ["producer", 1, 2], 2)]]
    lost.move("first", 2)
    lost.give_again(broker.request)
    assert [each["given"] for each in broker.asked[1:]] == [[(1, ["producer", 1, 1], 1)]]
    assert len(lost) == 0


def test_what_was_never_delivered_is_uncounted_where_it_has_a_position() -> None:
    asked: list[tuple[str, Any]] = []

    def request(operation: str, arguments: Mapping[str, Any], timeout: float | None) -> int:
        asked.append((operation, arguments["given"]))
        return 1

    uncount_deliveries(request, [(record(1), 3), (record(2, position=None), 0)])
    assert asked == [("uncount", [(1, ["producer", 1, 1], 3)])]
    uncount_deliveries(request, [])
    assert len(asked) == 1


def test_the_connection_that_lost_what_was_never_delivered_is_named() -> None:
    asked: list[Any] = []

    def request(operation: str, arguments: Mapping[str, Any], timeout: float | None) -> int:
        asked.append(arguments.get("token", "none"))
        return 1

    uncount_deliveries(request, [(record(1), 3)], "token")
    uncount_deliveries(request, [(record(1), 3)])
    assert asked == ["token", "none"]


@pytest.mark.parametrize("answer", [{"settled": 1, "lost": [2]}, ResourceAllocationException("the disk is full")])
def test_what_was_acknowledged_and_others_may_have_was_seen(answer: Any) -> None:
    """Else the engine takes the delivery back, in the hands of the others."""
    lost = LostAcknowledgements()
    told: list[list[str]] = []
    lost.add([record(1), record(2)], told.append)
    asked: list[tuple[str, Any]] = []

    def request(operation: str, arguments: Mapping[str, Any], timeout: float | None) -> Any:
        asked.append((operation, arguments.get("positions")))
        if operation == "settle_positions" and isinstance(answer, JMSException):
            raise answer
        return answer

    lost.give_again(request)
    lost.uncount_rest(request, "token")
    seen = [1, 2] if isinstance(answer, JMSException) else [2]
    assert told == ([] if isinstance(answer, JMSException) else [["ID:2"]])
    assert asked == [("settle_positions", None), ("seen", seen), ("uncount_rest", None)]


def test_an_acknowledgement_that_is_forgotten_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message is redelivered, and is marked."""
    monkeypatch.setattr(acknowledgements, "MAX_ACK_RECORDS", 10)
    lost = LostAcknowledgements()
    lost.add([record(number) for number in range(12)], ignore)
    broker = Told()
    lost.uncount_rest(broker.request, "token")
    assert broker.asked == [("seen", [0, 1]), ("uncount_rest", None)]


def test_what_was_seen_is_told_once_by_position_and_the_rest_is_uncounted() -> None:
    lost = LostAcknowledgements()
    lost.add_seen([record(1), record(2, position=None)])
    lost.add([record(3), (SOURCE, None, 4, 0, None)], ignore)
    broker = Told()
    lost.uncount_rest(broker.request, "token")
    lost.uncount_rest(broker.request, "token")
    assert broker.asked == [("seen", [1, 4]), ("uncount_rest", None), ("uncount_rest", None)]


def test_what_was_given_back_may_not_have_arrived_and_was_seen() -> None:
    lost = LostAcknowledgements()
    session = Acknowledgements(lost, ignore)
    session.widen(10)
    accept(session, 1, outcome=Outcome.MODIFIED)
    accept(session, *range(2, 60))  # the first one has arrived by now
    accept(session, 60, outcome=Outcome.FAILED)
    session.settled([Settlement(tag(61), Outcome.RELEASED)])  # which was only prefetched
    session.interrupted()
    broker = Told()
    lost.uncount_rest(broker.request, "token")
    assert broker.asked == [("seen", [60]), ("uncount_rest", None)]
    assert lost.was_seen(record(60))


def test_what_came_on_a_lost_link_is_told_where_it_is_lost_again_with_the_connection() -> None:
    """Else a later delivery of it counts as seen, which was lost on its way."""
    lost = LostAcknowledgements()
    session = Acknowledgements(lost, ignore)
    session.delivered(tag(1, link=1), record(1))
    session.delivered(tag(2, link=1), record(2))
    session.link_lost(1, for_good=False)
    session.delivered(tag(2, link=2), record(2))
    session.interrupted()
    broker = Told()
    lost.uncount_rest(broker.request, "token")
    assert broker.asked == [("seen", [2]), ("uncount_rest", None)]


def test_what_was_seen_is_told_again_where_the_connection_is_lost_meanwhile() -> None:
    lost = LostAcknowledgements()
    lost.add_seen([record(1)])
    broker = Told(InvalidDestinationException("gone"), ConnectionLostException("cut"))
    with pytest.raises(ConnectionLostException):
        lost.uncount_rest(broker.request, "token")
    lost.add_seen([record(2)])
    lost.uncount_rest(broker.request, "token")
    assert broker.asked == [("seen", [1]), ("uncount_rest", None), ("seen", [1, 2]), ("uncount_rest", None)]


@pytest.mark.parametrize("asked", ["seen", "uncount_rest", "seen_rest"])
@pytest.mark.parametrize("error", [TypeError("an answer of another form"), KeyboardInterrupt()])
def test_what_was_seen_is_told_again_whatever_the_first_attempt_raised(
    error: BaseException, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledgements, "MAX_ACK_RECORDS", 1 if asked == "seen_rest" else 10)
    lost = LostAcknowledgements()
    lost.add_seen([record(1), record(2)])

    def request(operation: str, arguments: Mapping[str, Any], timeout: float | None) -> int:
        if operation == asked:
            raise error
        return 1

    with pytest.raises(type(error)):
        lost.uncount_rest(request, "token")
    broker = Told()
    lost.uncount_rest(broker.request, "token")
    rest = [("seen_rest", None)]
    assert broker.asked == (rest if asked == "seen_rest" else [("seen", [1, 2]), ("uncount_rest", None)])


ANSWERS = [
    {"settled": 1},
    {"lost": []},
    {"settled": 1, "lost": 2},
    {"settled": 1, "lost": [[2]]},
    {"settled": "1", "lost": []},
    5,
    [],
    "yes",
]


@pytest.mark.parametrize("answer", ANSWERS, ids=repr)
def test_an_answer_of_another_form_counts_as_a_refusal(answer: object, caplog: pytest.LogCaptureFixture) -> None:
    lost = LostAcknowledgements()
    lost.add([record(1), record(2)], ignore)
    lost.give_again(lambda *_: answer, "token", 4)
    assert "answered" in caplog.text
    assert lost.refused_at == 4
    broker = Told()
    lost.uncount_rest(broker.request, "token")
    assert broker.asked == [("seen", [1, 2]), ("uncount_rest", None)]
    assert keys(lost, 1, 2) == [True, True]


def test_nothing_is_uncounted_by_a_broker_that_does_not_know_how() -> None:
    lost = LostAcknowledgements()
    lost.add_seen([record(1)])
    broker = Told(MessageFormatException("unknown operation"))
    lost.uncount_rest(broker.request, "token")
    assert broker.asked == [("seen", [1])]


def test_nothing_is_uncounted_where_more_was_seen_than_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledgements, "MAX_ACK_RECORDS", 10)
    lost = LostAcknowledgements()
    lost.add_seen([record(number) for number in range(11)])
    broker = Told()
    lost.uncount_rest(broker.request, "token")
    assert broker.asked == [("seen_rest", None)]
    lost.add_seen([record(12)])
    lost.uncount_rest(broker.request, "token")
    assert broker.asked[1:] == [("seen", [12]), ("uncount_rest", None)], "of the next loss it is known"


@pytest.mark.parametrize("error", [ConnectionLostException("cut"), ResourceAllocationException("the disk is full")])
def test_that_too_much_was_seen_is_told_again_where_the_broker_could_not_be_told(
    error: JMSException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledgements, "MAX_ACK_RECORDS", 10)
    lost = LostAcknowledgements()
    lost.add_seen([record(number) for number in range(11)])
    broker = Told(error)
    with suppress(ConnectionLostException):
        lost.uncount_rest(broker.request, "token")
    lost.add_seen([record(12)])
    lost.uncount_rest(broker.request, "token")
    assert broker.asked == [("seen_rest", None), ("seen_rest", None)]


def test_what_was_seen_is_told_again_where_the_broker_has_no_room() -> None:
    lost = LostAcknowledgements()
    lost.add_seen([record(1)])
    broker = Told(ResourceAllocationException("the disk is full"))
    lost.uncount_rest(broker.request, "token")
    lost.uncount_rest(broker.request, "token")
    assert broker.asked == [("seen", [1]), ("seen", [1]), ("uncount_rest", None)]


def test_what_was_seen_is_counted_once_and_as_it_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledgements, "MAX_ACK_RECORDS", 10)
    lost = LostAcknowledgements()
    for _ in range(3):
        lost.add_seen([record(number) for number in range(10)])
    with pytest.raises(ConnectionLostException):
        lost.uncount_rest(Told(ConnectionLostException("cut")).request, "token")
    lost.add_seen([record(number) for number in range(5)])
    broker = Told()
    lost.uncount_rest(broker.request, "token")
    assert broker.asked == [("seen", list(range(10))), ("uncount_rest", None)]
    lost.add_seen([record(number) for number in range(9)])
    with pytest.raises(ConnectionLostException):
        lost.uncount_rest(Told(ConnectionLostException("cut")).request, "token")
    lost.add_seen([record(20), record(21, Source("other"))])
    lost.uncount_rest(broker.request, "token")
    assert broker.asked[2:] == [("seen_rest", None)]


def test_what_was_seen_of_another_broker_is_not_told() -> None:
    lost = LostAcknowledgements()
    lost.add_seen([record(1)])
    lost.move("another", 1)
    broker = Told()
    lost.uncount_rest(broker.request, "token")
    assert broker.asked == [("uncount_rest", None)]


def test_those_without_a_position_wait_for_their_message() -> None:
    lost = LostAcknowledgements()
    lost.add([record(1, position=None)], ignore)
    broker = Broker()
    lost.give_again(broker.request)
    assert broker.asked == []
    assert keys(lost, 1) == [True]


def test_a_long_list_is_given_in_parts_and_what_was_not_given_is_kept() -> None:
    lost = LostAcknowledgements()
    lost.add([record(number) for number in range(12_000)], ignore)
    broker = Broker(fails_after=2)
    with pytest.raises(ConnectionLostException):
        lost.give_again(broker.request)
    assert [len(each["given"]) for each in broker.asked] == [5000, 5000]
    assert len(lost) == 2000


def test_each_session_is_told_once_of_what_others_have() -> None:
    lost = LostAcknowledgements()
    told: dict[str, list[list[str]]] = {"a": [], "b": []}
    other = Source("other")
    lost.add([record(1), record(2), record(3, other)], told["a"].append)
    lost.add([record(1, other), record(4)], told["b"].append)

    def request(operation: str, arguments: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        return {"settled": 0, "lost": [1, 2, 3] if arguments["destination"] == "other" else [1, 2, 4]}

    lost.give_again(request)
    assert told == {"a": [["ID:1", "ID:2", "ID:3"]], "b": [["ID:4", "ID:1"]]}
    lost.give_again(request)
    assert [len(each) for each in told.values()] == [1, 1]


def test_what_others_have_is_told_also_where_the_connection_is_lost_again_meanwhile() -> None:
    lost = LostAcknowledgements()
    told: list[list[str]] = []
    lost.add([record(number) for number in range(6000)], told.append)
    asked = 0

    def request(operation: str, arguments: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise ConnectionLostException("again")
        return {"settled": 0, "lost": [7]}

    with pytest.raises(ConnectionLostException):
        lost.give_again(request)
    assert told == [["ID:7"]]
    assert len(lost) == 1000


def test_acknowledgements_may_be_lost_while_others_are_repeated() -> None:
    """Each session has a thread, and the restored connection one more."""
    lost = LostAcknowledgements()
    stop = threading.Event()

    def lose(producer: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            lost.add([(SOURCE, Identity(f"producer {producer}", 1, number), number, 0, None)], ignore)

    threads = [threading.Thread(target=lose, args=(number,)) for number in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for _ in range(3):
            lost.add([record(number) for number in range(2000)], ignore)
            lost.give_again(lambda _operation, _arguments, _timeout: {"settled": 0, "lost": []})
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
