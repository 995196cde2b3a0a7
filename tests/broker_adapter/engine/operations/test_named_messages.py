"""Messages that a client names, and what a lost connection had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.clock import epoch_ms
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.requests import perform, request_of
from broker_adapter.engine.operations.steps import MAX_RANGE_BYTES
from broker_adapter.engine.records.layout import RawEntry
from broker_adapter.envelope import ENVELOPE_FORMAT, Identity, unpack
from broker_adapter.errors import InvalidDestinationException, MessageFormatException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.asking import (
    ask,
    bodies,
    envelope,
    given,
    named,
)
from tests.broker_adapter.engine.driving import WAIT, attach, connect, depth, eventually, send, settle


class Weighing:
    """An engine that notes how many bytes of bodies are read at once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.most = 0

    def call(self, command: c.Command, timeout: float | None) -> Any:
        return self._broker.call(command, timeout)

    @contextmanager
    def reading(self, timeout: float | None) -> Iterator[Reader]:
        with self._broker.reading(timeout) as reader:
            read = reader.messages

            def messages(entries: Sequence[RawEntry]) -> Any:
                found = read(entries)
                self.most = max(self.most, sum(len(body[1]) for body, _ in found if body is not None))
                return found

            reader.messages = messages  # type: ignore[method-assign]
            yield reader


def counts(broker: Broker) -> dict[int, int]:
    """Position → delivery count, as a new consumer is told; it gives everything back."""
    client = connect(broker)
    consumer, inbox = attach(broker, client, "q", credit=100)
    broker.call(c.Drain(consumer), WAIT)
    found = {each.position: each.delivery_count for each in inbox.wait_for(0)}
    broker.call(c.Disconnect(client, failed=False), WAIT)
    return found


def lose(broker: Broker, messages: int) -> None:
    """A client takes these, and vanishes."""
    client = connect(broker)
    _, inbox = attach(broker, client, "q", credit=messages)
    inbox.wait_for(messages)
    broker.call(c.Disconnect(client), WAIT)


def test_what_was_acknowledged_is_settled_by_position_and_name(broker: Broker) -> None:
    client = connect(broker)
    # Priorities: positions are not in the order of delivery.
    broker.call(c.Enqueue(client, queue("q"), [named(1, 1), named(2, 9), named(3, 4), named(4, 4)]), WAIT)
    settled = ask(broker, "settle_positions", destination="q", given=given((1, 1), (2, 2), (3, 99), (7, 7)))
    assert settled == {"settled": 2, "lost": []}, "another name, and no such position"
    assert [
        unpack(payload).body for payload in bodies(ask(broker, "read_range", destination="q", first=0, last=9))
    ] == [
        "3",
        "4",
    ]


@pytest.mark.parametrize("operation", ["settle_positions", "uncount"])
def test_of_positions_that_are_given_a_bounded_part_of_the_bodies_is_read_at_once(
    broker: Broker, operation: str
) -> None:
    client = connect(broker)
    count = 5 * MAX_RANGE_BYTES // 1_000_000
    for number in range(1, count + 1):
        name = Identity("producer", 1, number)
        body = envelope("x" * 1_000_000, identity=name)
        broker.call(c.Enqueue(client, queue("q"), [c.NewMessage(ENVELOPE_FORMAT, body, identity=name)]), WAIT)
    engine = Weighing(broker)
    wanted = [(*each, 0) for each in given(*((number, number) for number in range(1, count + 1)))]
    if operation == "settle_positions":
        assert perform(engine, request_of(operation, {"destination": "q", "given": wanted}), WAIT)["settled"] == count
        assert depth(broker, "q") == 0
    else:
        perform(engine, request_of(operation, {"destination": "q", "given": wanted}), WAIT)
        assert depth(broker, "q") == count
    assert 0 < engine.most < MAX_RANGE_BYTES + 1_100_000


def test_what_is_settled_by_position_is_not_taken_from_a_consumer(broker: Broker) -> None:
    client = connect(broker)
    broker.call(c.Enqueue(client, queue("q"), [named(1), named(2)]), WAIT)
    consumer, inbox = attach(broker, client, "q", credit=1)
    got = inbox.wait_for(1)
    settled = ask(broker, "settle_positions", destination="q", given=given((1, 1), (2, 2)))
    assert settled == {"settled": 1, "lost": [1]}
    settle(broker, consumer, got, Outcome.ACCEPTED)
    assert depth(broker, "q") == 0


def test_what_a_lost_connection_held_is_given_back_before_it_is_settled_by_position(broker: Broker) -> None:
    client = connect(broker)
    broker.call(c.Enqueue(client, queue("q"), [named(1), named(2)]), WAIT)
    attach(broker, client, "q", credit=2)
    broker.submit(c.Disconnect(client))  # no call waits for it
    assert ask(broker, "settle_positions", destination="q", given=given((1, 1)))["settled"] == 1
    assert depth(broker, "q") == 1


@pytest.mark.parametrize("committed", [False, True], ids=["settled", "committed"])
def test_what_another_consumer_has_processed_meanwhile_is_reported(broker: Broker, committed: bool) -> None:
    lost = connect(broker)
    broker.call(c.Enqueue(lost, queue("q"), [named(1), named(2), named(3)]), WAIT)
    first, inbox = attach(broker, lost, "q", credit=3)
    settle(broker, first, inbox.wait_for(3)[:1], Outcome.ACCEPTED)
    broker.call(c.Disconnect(lost), WAIT)
    other = connect(broker)
    second, inbox = attach(broker, other, "q", credit=1)
    got = inbox.wait_for(1)
    if committed:
        broker.call(c.Commit(other, None, [], [(second, got[0].number, Outcome.ACCEPTED)]), WAIT)
    else:
        settle(broker, second, got, Outcome.ACCEPTED)
    acknowledged = [(*each, 0) for each in given((1, 1), (2, 2), (3, 3))]
    for _ in range(2):  # it may be asked twice
        answer = ask(broker, "settle_positions", destination="q", given=acknowledged)
        assert answer["lost"] == [2], "the first one had arrived, the third one is settled now"
    assert depth(broker, "q") == 0
    after_the_loss = [(*each, 1) for each in given((2, 2))]
    assert ask(broker, "settle_positions", destination="q", given=after_the_loss)["lost"] == [], "it was this delivery"


def lost_by(broker: Broker, token: str, messages: int, *, until_ms: int = 0) -> None:
    """A connection with this token takes these, and breaks, not before this time."""
    client = broker.call(c.Connect(None, token=token), WAIT)
    _, inbox = attach(broker, client, "q", credit=messages)
    inbox.wait_for(messages)
    eventually(lambda: epoch_ms() > until_ms)
    broker.call(c.Disconnect(client), WAIT)


def settled_again(broker: Broker, token: str | None, failures: int, *positions: int) -> Any:
    """What the client of a lost connection hears that had acknowledged these."""
    wanted = [(*each, failures) for each in given(*((position, position) for position in positions))]
    return ask(broker, "settle_positions", destination="q", given=wanted, token=token)


@pytest.mark.parametrize("token", ["a", None], ids=["by its token", "by the count"])
@pytest.mark.parametrize("how", ["presettled", "presettled in turns", "given again", "through a position"])
def test_what_others_have_processed_is_told_however_that_ended(broker: Broker, how: str, token: str | None) -> None:
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(number) for number in range(1, 4)]), WAIT)
    lost_by(broker, "a", 3)
    if how == "given again":
        lost_by(broker, "b", 3)
        answer = {"settled": 3, "lost": []}
        assert settled_again(broker, "b", 1, 1, 2, 3) == answer
        assert settled_again(broker, "b", 1, 1, 2, 3) == {"settled": 0, "lost": []}, (
            "it was itself, when it asked before"
        )
        assert settled_again(broker, None, 1, 1, 2, 3) == {"settled": 0, "lost": []}
    elif how == "through a position":
        assert ask(broker, "settle_through", destination="q", position=3) == 3
    else:
        client = connect(broker)
        count = 1 if how == "presettled" else 2
        consumers = [attach(broker, client, "q", presettled=True) for _ in range(count)]
        for consumer, _ in consumers:
            broker.submit(c.Credit(consumer, 3))
        broker.call(c.Drain(consumers[0][0]), WAIT)
    assert depth(broker, "q") == 0
    for _ in range(2):  # it may be asked twice
        assert settled_again(broker, token, 0, 1, 2, 3) == {"settled": 0, "lost": [1, 2, 3]}


@pytest.mark.parametrize("token", ["a", None], ids=["by its token", "by the count"])
@pytest.mark.parametrize("most", [1, 2])
def test_what_was_acknowledged_and_is_a_dead_letter_by_its_loss_is_told(
    tmp_path: Path, most: int, token: str | None
) -> None:
    broker = Broker(EngineSettings(max_deliveries=most), str(tmp_path))
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(1), named(2)]), WAIT)
    for _ in range(most - 1):
        lose(broker, 2)
    lost_by(broker, "a", 2)
    assert depth(broker, "DLQ") == 2
    for _ in range(2):
        assert settled_again(broker, token, most - 1, 2) == {"settled": 0, "lost": [2]}
    broker.close()


@pytest.mark.parametrize("expires", ["as it waits", "in hand"])
@pytest.mark.parametrize("expiry_queue", ["late", None])
@pytest.mark.parametrize("token", ["a", None], ids=["by its token", "by the count"])
def test_what_was_acknowledged_and_is_in_the_expiry_queue_is_told(
    tmp_path: Path, token: str | None, expiry_queue: str | None, expires: str
) -> None:
    broker = Broker(EngineSettings(expiry_queue=expiry_queue), str(tmp_path))
    at_ms = epoch_ms() + 200
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(1)._replace(expires_at_ms=at_ms)]), WAIT)
    lost_by(broker, "a", 1, until_ms=at_ms if expires == "in hand" else 0)
    eventually(lambda: depth(broker, "q") == 0)
    assert settled_again(broker, token, 0, 1) == {"settled": 0, "lost": [] if expiry_queue is None else [1]}
    broker.close()


@pytest.mark.parametrize("token", ["a", None], ids=["by its token", "by the count"])
def test_what_was_acknowledged_and_another_one_rejects_is_told(broker: Broker, token: str | None) -> None:
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(1)]), WAIT)
    lost_by(broker, "a", 1)
    consumer, inbox = attach(broker, connect(broker), "q", credit=1)
    settle(broker, consumer, inbox.wait_for(1), Outcome.REJECTED)
    assert settled_again(broker, token, 0, 1) == {"settled": 0, "lost": [1]}


def test_what_was_purged_meanwhile_was_processed_by_nobody_else(broker: Broker) -> None:
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(1), named(2)]), WAIT)
    lost_by(broker, "a", 2)
    assert ask(broker, "purge", destination="q") == 2
    for token in ("a", None):
        assert settled_again(broker, token, 0, 1, 2)["lost"] == []


def test_what_another_has_processed_is_told_though_a_third_one_never_saw_it(broker: Broker) -> None:
    """The loss of the third one does not count any more, so the counts of the other two do not tell."""
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(1)]), WAIT)
    lost_by(broker, "third", 1)
    lost_by(broker, "a", 1)
    consumer, inbox = attach(broker, connect(broker), "q", credit=1)
    got = inbox.wait_for(1)
    assert ask(broker, "uncount_rest", token="third") == 1
    settle(broker, consumer, got, Outcome.ACCEPTED)
    assert settled_again(broker, "a", 1, 1)["lost"] == [1]


def test_what_had_arrived_before_the_loss_is_not_told_though_it_was_redelivered(broker: Broker) -> None:
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(1), named(2)]), WAIT)
    lost_by(broker, "third", 2)
    client = broker.call(c.Connect(None, token="a"), WAIT)
    consumer, inbox = attach(broker, client, "q", credit=2)
    got = inbox.wait_for(2)
    settle(broker, consumer, got[:1], Outcome.ACCEPTED)
    broker.call(c.Disconnect(client), WAIT)
    assert settled_again(broker, "a", 0, 1, 2) == {"settled": 1, "lost": []}


def test_a_message_without_an_identity_is_settled_by_its_id(broker: Broker) -> None:
    client = connect(broker)
    payload = envelope("x", message_id="ID:1")
    broker.call(c.Enqueue(client, queue("q"), [c.NewMessage(ENVELOPE_FORMAT, payload)] * 2), WAIT)
    assert ask(broker, "settle_positions", destination="q", given=[(1, "ID:1"), (2, "ID:2")])["settled"] == 1


@pytest.mark.parametrize("wrong", [[1], [("1", "ID:1")], [(1, "a", "b")], "text", [(True, "ID:1")]])
def test_positions_and_names_of_another_form_are_refused(broker: Broker, wrong: Any) -> None:
    send(broker, connect(broker), "q", "a")
    with pytest.raises(MessageFormatException):
        ask(broker, "settle_positions", destination="q", given=wrong)


def test_more_positions_than_one_read_takes_are_all_settled(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_adapter.engine.operations.named_messages.SETTLE_ENTRIES", 3)
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(number) for number in range(1, 21)]), WAIT)
    wanted = [1, 2, 3, 4, 9, 10, 20]
    settled = ask(broker, "settle_positions", destination="q", given=given(*((each, each) for each in wanted)))
    assert settled["settled"] == len(wanted)
    assert depth(broker, "q") == 13


def test_a_delivery_that_no_application_saw_does_not_count(broker: Broker) -> None:
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(1), named(2), named(3)]), WAIT)
    lose(broker, 3)
    assert ask(broker, "uncount", destination="q", given=given((2, 2), (3, 99), (9, 9))) == 1
    assert counts(broker) == {1: 1, 2: 0, 3: 1}


def test_a_delivery_is_taken_back_once_however_often_it_is_asked_for(broker: Broker) -> None:
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(1)]), WAIT)
    lose(broker, 1)
    lose(broker, 1)
    names = [(*each, 1) for each in given((1, 1))]
    assert [ask(broker, "uncount", destination="q", given=names) for _ in range(3)] == [1, 0, 0]
    assert counts(broker) == {1: 1}
    for wrong in ([(1,)], [(1, "name", "x")], [("1", "name")], [(1, "name", 2, 3)]):
        with pytest.raises(MessageFormatException, match="is not a position"):
            ask(broker, "uncount", destination="q", given=wrong)


@pytest.mark.parametrize("operation", ["settle_positions", "uncount"])
def test_a_message_without_identity_and_id_is_named_by_nothing(broker: Broker, operation: str) -> None:
    nameless = c.NewMessage(ENVELOPE_FORMAT, envelope("nameless"), 4)
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(1), nameless, named(3)]), WAIT)
    lose(broker, 3)
    wanted = [(*each, 0) for each in given((1, 1))] + [(2, None, 0), (3, None, 0)]
    answer = ask(broker, operation, destination="q", given=wanted)
    if operation == "uncount":
        assert answer == 2
        assert counts(broker) == {1: 0, 2: 0, 3: 1}, "the third one has a name"
    else:
        assert answer == {"settled": 2, "lost": []}
        assert counts(broker) == {3: 1}


def test_a_delayed_redelivery_is_uncounted_and_stays_delayed(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(redelivery_delay_seconds=60, max_redelivery_delay_seconds=60), str(tmp_path))
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(1), named(2)]), WAIT)
    consumer, inbox = attach(broker, connect(broker), "q", credit=4, keep_order=True)
    for count in (2, 4):
        settle(broker, consumer, inbox.wait_for(count)[-2:], Outcome.FAILED)
    assert counts(broker) == {}, "both wait, and so does their consumer"
    assert ask(broker, "uncount", destination="q", given=given((2, 2))) == 1
    assert counts(broker) == {}
    broker.call(c.Detach(consumer), WAIT)
    assert counts(broker) == {1: 2, 2: 1}
    broker.close()


def test_what_was_never_delivered_cannot_be_uncounted_and_what_others_have_in_hand_can(broker: Broker) -> None:
    client = connect(broker)
    broker.call(c.Enqueue(client, queue("q"), [named(1), named(2)]), WAIT)
    lose(broker, 1)
    _, inbox = attach(broker, client, "q", credit=1)
    inbox.wait_for(1)
    assert [ask(broker, "uncount", destination="q", given=given((1, 1), (2, 2))) for _ in range(2)] == [1, 0]


def test_settling_in_a_queue_that_was_deleted_is_refused(broker: Broker) -> None:
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(1)]), WAIT)
    with pytest.raises(InvalidDestinationException, match="nowhere"):
        ask(broker, "settle_positions", destination="nowhere", given=given((1, 1)))
    assert ask(broker, "settle_positions", destination="nowhere", given=[]) == {"settled": 0, "lost": []}
    assert depth(broker, "q") == 1


def test_a_message_in_a_format_that_the_engine_does_not_know_has_no_name(broker: Broker) -> None:
    broker.call(c.Enqueue(connect(broker), queue("q"), [c.NewMessage(7, b"x"), named(2)]), WAIT)
    assert ask(broker, "settle_positions", destination="q", given=given((1, 1), (2, 2)))["settled"] == 1
    assert depth(broker, "q") == 1


def test_what_was_sent_before_is_there_when_a_confirmation_comes(broker: Broker) -> None:
    client = connect(broker)
    broker.submit(c.Enqueue(client, queue("q"), [named(number) for number in range(1, 101)]))
    assert ask(broker, "confirm") is True
    assert depth(broker, "q") == 100


def test_of_a_lost_connection_what_was_seen_counts_and_the_rest_does_not(broker: Broker) -> None:
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(1), named(2), named(3)]), WAIT)
    client = broker.call(c.Connect(None, token="token"), WAIT)
    _, inbox = attach(broker, client, "q", credit=3)
    inbox.wait_for(3)
    broker.submit(c.Disconnect(client))  # no call waits for it
    assert ask(broker, "seen", destination="q", token="token", positions=[2]) is True
    assert ask(broker, "uncount_rest", token="token") == 2
    assert ask(broker, "uncount_rest", token="token") == 0
    assert counts(broker) == {1: 0, 2: 1, 3: 0}


@pytest.mark.parametrize("operation", ["uncount", "uncount_rest"])
def test_all_deliveries_of_a_lost_connection_are_uncounted_where_it_takes_several_steps(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr("broker_adapter.engine.operations.named_messages.LOST_ENTRIES", 3)
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(number) for number in range(1, 11)]), WAIT)
    client = broker.call(c.Connect(None, token="token"), WAIT)
    _, inbox = attach(broker, client, "q", credit=10)
    inbox.wait_for(10)
    broker.call(c.Disconnect(client), WAIT)
    names = [(*each, 0) for each in given(*((number, number) for number in range(1, 11)))]
    arguments = {"destination": "q", "given": names} if operation == "uncount" else {}
    assert ask(broker, operation, token="token", **arguments) == 10
    assert counts(broker) == dict.fromkeys(range(1, 11), 0)
