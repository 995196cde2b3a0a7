"""What the engine can be asked beyond messaging, over both stores."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from ack_modes import Outcome
from broker_adapter.destination import DestinationKind, queue, topic
from broker_adapter.engine import commands as c
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.identities import CACHED_NAMES
from broker_adapter.engine.lmdb_store import LmdbStore
from broker_adapter.engine.maintenance import check_store, quarantined
from broker_adapter.engine.operation_steps import MAX_GIVEN, MAX_RANGE_BYTES
from broker_adapter.engine.operations import perform
from broker_adapter.engine.reader import Reader
from broker_adapter.engine.records import RawEntry, position_of
from broker_adapter.envelope import ENVELOPE_FORMAT, Envelope, Identity, pack, unpack
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
    StoreCorruptException,
)
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.driving import WAIT, attach, connect, depth, drained, payloads, send, settle


@pytest.fixture(params=["disk", "memory"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(EngineSettings(), str(tmp_path) if request.param == "disk" else None)
    yield broker
    broker.close()


def ask(broker: Broker, operation: str, **arguments: Any) -> Any:
    return broker.request(operation, arguments, WAIT)


def envelope(body: str, **fields: Any) -> bytes:
    return pack(Envelope(queue("target"), body=body, **fields))


def bodies(answer: dict[str, Any]) -> list[bytes]:
    return [payload for _, _, _, payload, _ in answer["messages"]]


def test_bounds_of_an_empty_queue_meet(broker: Broker) -> None:
    bounds = ask(broker, "bounds", destination="q", make=True)
    assert bounds["first"] == bounds["next"]


def test_bounds_move_with_what_comes_and_goes(broker: Broker) -> None:
    client = connect(broker)
    before = ask(broker, "bounds", destination="q", make=True)
    send(broker, client, "q", "a", "b", "c")
    after = ask(broker, "bounds", destination="q")
    assert (after["first"], after["next"]) == (before["next"], before["next"] + 3)
    ask(broker, "settle_through", destination="q", position=after["first"], incarnation=after["incarnation"])
    assert ask(broker, "bounds", destination="q")["first"] == after["first"] + 1


def test_bounds_include_what_a_consumer_holds(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", "a", "b")
    first = ask(broker, "bounds", destination="q")["first"]
    attach(broker, client, "q", credit=1)[1].wait_for(1)
    assert ask(broker, "bounds", destination="q")["first"] == first


def test_a_range_reads_the_same_until_it_is_settled_by_position_over_priorities(broker: Broker) -> None:
    client = connect(broker)
    for number in range(10):
        send(broker, client, "q", number, priority=number, persistent=number % 2 == 0)
    bounds = ask(broker, "bounds", destination="q")
    first, last = bounds["first"], bounds["next"] - 1
    for _ in range(2):
        answer = ask(broker, "read_range", destination="q", first=first, last=last, incarnation=bounds["incarnation"])
        assert bodies(answer) == [str(number).encode() for number in range(10)]
        assert answer["next"] == last + 1
    part = ask(broker, "read_range", destination="q", first=first + 2, last=first + 4)
    assert bodies(part) == [b"2", b"3", b"4"]
    assert ask(broker, "settle_through", destination="q", position=first + 2) == 3
    rest = ask(broker, "read_range", destination="q", first=first, last=last)
    assert bodies(rest) == [str(number).encode() for number in range(3, 10)]


def test_a_large_range_comes_in_chunks_that_miss_nothing(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", *(b"%06d" % number + b"x" * 100 for number in range(6000)))
    bounds = ask(broker, "bounds", destination="q")
    position, found, rounds = bounds["first"], [], 0
    while position < bounds["next"]:
        answer = ask(broker, "read_range", destination="q", first=position, last=bounds["next"] - 1, max_bytes=100_000)
        assert sum(map(len, bodies(answer))) <= 100_000
        found += bodies(answer)
        position = answer["next"]
        rounds += 1
    assert [int(body[:6]) for body in found] == list(range(6000))
    assert rounds >= 6


def test_a_message_larger_than_the_chunk_comes_alone(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", b"x" * 5000, b"y" * 5000)
    bounds = ask(broker, "bounds", destination="q")
    answer = ask(broker, "read_range", destination="q", first=bounds["first"], last=bounds["next"] - 1, max_bytes=100)
    assert bodies(answer) == [b"x" * 5000]
    assert answer["next"] == bounds["first"] + 1


def test_a_range_of_another_incarnation_is_refused(broker: Broker) -> None:
    ask(broker, "bounds", destination="q", make=True)
    with pytest.raises(InvalidDestinationException, match="deleted and made again"):
        ask(broker, "read_range", destination="q", first=1, last=2, incarnation="other-1")
    with pytest.raises(InvalidDestinationException, match="deleted and made again"):
        ask(broker, "settle_through", destination="q", position=1, incarnation="other-1")


def test_a_range_is_not_settled_under_a_consumer(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", "a")
    consumer, _ = attach(broker, client, "q")
    with pytest.raises(IllegalStateException, match="1 consumer is attached"):
        ask(broker, "settle_through", destination="q", position=1)
    broker.call(c.Detach(consumer), WAIT)
    assert ask(broker, "settle_through", destination="q", position=1) == 1


def test_a_range_is_not_settled_while_a_session_holds_messages_of_a_closed_consumer(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", *range(1, 6))
    consumer, inbox = attach(broker, client, "q", credit=2)
    inbox.wait_for(2)
    broker.call(c.Detach(consumer), WAIT)
    with pytest.raises(IllegalStateException, match="sessions hold 2 messages of it"):
        ask(broker, "settle_through", destination="q", position=5)
    bounds = ask(broker, "bounds", destination="q")
    assert (bounds["first"], bounds["next"], bounds["settled"]) == (1, 6, 0)
    broker.call(c.Disconnect(client), WAIT)
    assert ask(broker, "settle_through", destination="q", position=5) == 5
    assert ask(broker, "bounds", destination="q")["settled"] == 5


def test_what_a_consumer_took_while_a_range_was_settled_is_not_below_the_settled_mark(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", *range(1, 6))
    steps = itertools.count()

    def before_each_step() -> bool:
        if next(steps) == 1:
            attach(broker, client, "q", credit=2)[1].wait_for(2)
        return False

    with pytest.raises(IllegalStateException, match=r"1 consumer is attached.*; 3 messages were settled before"):
        broker.request("settle_through", {"destination": "q", "position": 5}, WAIT, before_each_step)
    broker.call(c.Disconnect(client), WAIT)
    bounds = ask(broker, "bounds", destination="q")
    assert (bounds["first"], bounds["settled"]) == (1, 0)
    assert ask(broker, "settle_through", destination="q", position=5) == 2


@pytest.mark.parametrize(("operation", "step"), [("purge", 3), ("redrive", 2)])
def test_what_is_deleted_meanwhile_is_neither_purged_nor_redriven_as_well(
    broker: Broker, operation: str, step: int
) -> None:
    client = connect(broker)
    for first in range(0, 12_000, 2_000):
        send(broker, client, "q", *range(first, first + 2_000))
    steps, deleted = itertools.count(), []

    def before_each_step() -> bool:
        if next(steps) == step:
            deleted.append(ask(broker, "delete", destination="q"))
        return False

    options = {"to": "other"} if operation == "redrive" else {}
    done = broker.request(operation, {"destination": "q", **options}, WAIT, before_each_step)
    if operation == "redrive":
        assert done["left"] == 0
        done = done["moved"]
    assert (done + deleted[0], depth(broker, "other")) == (12_000, done if operation == "redrive" else 0)
    assert 0 < done < 12_000


def test_a_subscription_is_read_and_settled_like_a_queue(broker: Broker) -> None:
    client = connect(broker)
    consumer, _ = attach(broker, client, topic("t"), subscription=Subscription("s", durable=True, shared=True))
    broker.call(c.Detach(consumer), WAIT)
    if not broker.is_durable:
        consumer, _ = attach(broker, client, topic("t"), subscription=Subscription("s", durable=True, shared=True))
    send(broker, client, topic("t"), "a", "b")
    bounds = ask(broker, "bounds", destination="t", kind="topic", subscription="s")
    answer = ask(
        broker, "read_range", destination="t", kind="topic", subscription="s", first=0, last=bounds["next"] - 1
    )
    assert bodies(answer) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("operation", "further"),
    [("purge", {}), ("read_range", {"first": 0, "last": 1}), ("settle_through", {"position": 1})],
)
def test_an_unknown_queue_is_an_error(broker: Broker, operation: str, further: dict[str, Any]) -> None:
    with pytest.raises(InvalidDestinationException, match="there is no queue 'nowhere'"):
        ask(broker, operation, destination="nowhere", **further)


def test_an_unknown_subscription_is_an_error(broker: Broker) -> None:
    with pytest.raises(InvalidDestinationException, match="no subscription 's' without a client id on 't'; a durable"):
        ask(broker, "bounds", destination="t", kind="topic", subscription="s")
    with pytest.raises(InvalidDestinationException, match="name a subscription"):
        ask(broker, "bounds", destination="t", kind="topic")


def test_purge_drops_what_waits_also_what_is_not_due_and_leaves_what_is_held(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", *range(50))
    send(broker, client, "q", *range(50), persistent=False, priority=7)
    send(broker, client, "q", "later", deliver_at_ms=time.time_ns() // 1_000_000 + 3_600_000)
    attach(broker, client, "q", credit=3)[1].wait_for(3)
    assert ask(broker, "purge", destination="q") == 98
    assert depth(broker, "q") == 3


def test_statistics_are_plain_data(broker: Broker) -> None:
    send(broker, connect(broker), "q", "a")
    statistics = ask(broker, "statistics")
    assert statistics["enqueued"] == 1
    (found,) = [each for each in statistics["queues"] if each["name"] == "q"]
    assert (found["messages"], found["bytes"], found["kind"]) == (1, 1, "queue")


def test_staged_messages_are_seen_only_when_they_are_published(broker: Broker) -> None:
    ask(broker, "stage", transaction="t1", queue="target", first=0, messages=[envelope("a"), envelope("b", priority=7)])
    ask(broker, "stage", transaction="t2", queue="target", first=0, messages=[envelope("c")])
    assert depth(broker, "target") == 0
    assert ask(broker, "publish", group="g", number=0, transactions=["t1", "t2"]) is True
    handouts = drained(broker, connect(broker), "target")
    assert [unpack(payload).body for payload in payloads(handouts)] == ["b", "a", "c"]
    assert all(handout.format == ENVELOPE_FORMAT for handout in handouts)
    assert not [each for each in ask(broker, "statistics")["queues"] if each["kind"] == "staged"]


def test_a_chunk_that_is_staged_again_is_not_staged_twice(broker: Broker) -> None:
    first, second = [envelope("a"), envelope("b")], [envelope("c"), envelope("d")]
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=first)
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=first)
    ask(broker, "stage", transaction="t", queue="target", first=2, messages=second)
    ask(broker, "stage", transaction="t", queue="target", first=1, messages=[*first[1:], *second])
    with pytest.raises(IllegalStateException, match="has 4 messages"):
        ask(broker, "stage", transaction="t", queue="target", first=5, messages=second)
    ask(broker, "publish", group="g", number=1, transactions=["t"])
    assert depth(broker, "target") == 4


def test_a_number_of_a_group_is_published_once(broker: Broker) -> None:
    for attempt in ("first", "again"):
        ask(broker, "stage", transaction=attempt, queue="target", first=0, messages=[envelope(attempt)])
        assert ask(broker, "publish", group="g", number=3, transactions=[attempt]) is (attempt == "first")
    assert ask(broker, "publish", group="g", number=2, transactions=[]) is False
    assert [unpack(payload).body for payload in payloads(drained(broker, connect(broker), "target"))] == ["first"]
    assert not broker._state.directory.staged


def test_publishing_what_was_never_staged_publishes_nothing(broker: Broker) -> None:
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=[envelope("a")])
    with pytest.raises(InvalidDestinationException, match="'missing' does not exist"):
        ask(broker, "publish", group="g", number=1, transactions=["t", "missing"])
    assert depth(broker, "target") == 0
    assert ask(broker, "publish", group="g", number=1, transactions=["t"]) is True


def test_discarded_transactions_are_gone(broker: Broker) -> None:
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=[envelope("a")])
    assert ask(broker, "discard", transactions=["t", "unknown"]) == 1
    with pytest.raises(JMSException, match="does not exist"):
        ask(broker, "publish", group="g", number=1, transactions=["t"])
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=[envelope("b")])
    assert ask(broker, "publish", group="g", number=1, transactions=["t"]) is True
    assert [unpack(payload).body for payload in payloads(drained(broker, connect(broker), "target"))] == ["b"]


def test_wrong_arguments_are_named(broker: Broker) -> None:
    with pytest.raises(MessageFormatException, match="unknown operation 'nothing'; the operations are statistics"):
        ask(broker, "nothing")
    with pytest.raises(MessageFormatException, match="needs the argument 'first' of type int"):
        ask(broker, "read_range", destination="q", last=1)
    with pytest.raises(MessageFormatException, match="'destination' of type str, not 5"):
        ask(broker, "bounds", destination=5)
    with pytest.raises(MessageFormatException, match="not a list of str"):
        ask(broker, "discard", transactions=[1])
    with pytest.raises(MessageFormatException, match="not a packed envelope"):
        ask(broker, "stage", transaction="t", queue="q", first=0, messages=[b"junk"])
    with pytest.raises(MessageFormatException, match="not a list of bytes"):
        ask(broker, "stage", transaction="t", queue="q", first=0, messages=["junk"])


def test_an_operation_keeps_its_deadline(broker: Broker) -> None:
    with pytest.raises(OperationTimedOutException):
        broker.request("statistics", {}, 0)


# Redriving.


def reject_all(broker: Broker, client: int, name: Any, **fields: Any) -> None:
    """Have everything that waits there set aside."""
    consumer, inbox = attach(broker, client, name, 1000, **fields)
    broker.call(c.Drain(consumer), WAIT)
    settle(broker, consumer, inbox.handouts, Outcome.REJECTED)
    broker.call(c.Detach(consumer), WAIT)


def test_dead_letters_go_back_to_the_queues_they_came_from(broker: Broker) -> None:
    client = connect(broker)
    for name in ("a", "b"):
        send(broker, client, name, f"{name} 1", f"{name} 2")
        reject_all(broker, client, name)
    assert depth(broker, "DLQ") == 4
    assert ask(broker, "redrive") == {"moved": 4, "left": 0}
    assert depth(broker, "DLQ") == 0
    found = drained(broker, client, "a")
    assert payloads(found) == [b"a 1", b"a 2"]
    assert [each.delivery_count for each in found] == [0, 0]
    assert found[0].annotations == {"JMS_HOLDFAST_REDRIVEN_FROM": "DLQ"}


def test_dead_letters_of_a_subscription_go_back_to_it_alone(broker: Broker) -> None:
    client = connect(broker, "me")
    subscription = Subscription("s", durable=True, shared=False)
    other = Subscription("other", durable=True, shared=False)
    for each in (subscription, other):
        number, _ = attach(broker, client, topic("t"), subscription=each)
        broker.call(c.Detach(number), WAIT)
    send(broker, client, topic("t"), "x")
    reject_all(broker, client, topic("t"), subscription=subscription)
    assert ask(broker, "redrive") == {"moved": 1, "left": 0}
    assert payloads(drained(broker, client, topic("t"), subscription=subscription)) == [b"x"]
    assert payloads(drained(broker, client, topic("t"), subscription=other)) == [b"x"]


def test_what_has_no_way_back_stays_and_can_be_sent_elsewhere(broker: Broker) -> None:
    client = connect(broker, "me")
    subscription = Subscription("s", durable=True, shared=False)
    number, _ = attach(broker, client, topic("t"), subscription=subscription)
    broker.call(c.Detach(number), WAIT)
    send(broker, client, topic("t"), "x")
    reject_all(broker, client, topic("t"), subscription=subscription)
    broker.call(c.Unsubscribe(client, "s"), WAIT)
    send(broker, client, "DLQ", "never a dead letter")
    assert ask(broker, "redrive") == {"moved": 0, "left": 2}
    assert depth(broker, "DLQ") == 2
    assert ask(broker, "redrive", to="elsewhere", limit=1) == {"moved": 1, "left": 0}
    assert ask(broker, "redrive", to="elsewhere") == {"moved": 1, "left": 0}
    assert payloads(drained(broker, client, "elsewhere")) == [b"x", b"never a dead letter"]


def test_redriving_stops_at_a_full_queue_and_keeps_what_consumers_hold(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(max_queue_messages=3), str(tmp_path))
    try:
        client = connect(broker)
        send(broker, client, "q", 1, 2, 3)
        reject_all(broker, client, "q")
        _, inbox = attach(broker, client, "DLQ", 1)
        inbox.wait_for(1)
        send(broker, client, "q", 4, 5)
        assert ask(broker, "redrive") == {"moved": 1, "left": 2}
        assert payloads(drained(broker, client, "q")) == [b"4", b"5", b"2"]
    finally:
        broker.close()


def test_the_messages_of_another_queue_can_be_redriven(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", "a")
    assert ask(broker, "redrive", destination="q", to="r") == {"moved": 1, "left": 0}
    assert ask(broker, "redrive", destination="q", to="q") == {"moved": 0, "left": 0}
    with pytest.raises(InvalidDestinationException):
        ask(broker, "redrive", destination="nowhere")


def named(number: int, priority: int = 4) -> c.NewMessage:
    name = Identity("producer", 1, number)
    return c.NewMessage(ENVELOPE_FORMAT, envelope(str(number), identity=name), priority, identity=name)


def given(*pairs: tuple[int, int]) -> list[tuple[int, list[Any]]]:
    """(position, number of the message) each."""
    return [(position, ["producer", 1, number]) for position, number in pairs]


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


class Weighing:
    """An engine that notes how many bytes of bodies are read at once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.most = 0

    def call(self, command: c.Command, timeout: float | None) -> Any:
        return self._broker.call(command, timeout)

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        with self._broker.reading() as reader:
            read = reader.messages

            def messages(entries: Sequence[RawEntry]) -> Any:
                found = read(entries)
                self.most = max(self.most, sum(len(body[1]) for body, _ in found if body is not None))
                return found

            reader.messages = messages  # type: ignore[method-assign]
            yield reader


@pytest.mark.parametrize("operation", ["settle_positions", "forgive"])
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
        assert perform(engine, operation, {"destination": "q", "given": wanted}, WAIT)["settled"] == count
        assert depth(broker, "q") == 0
    else:
        perform(engine, operation, {"destination": "q", "given": wanted}, WAIT)
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
    broker.submit(c.Disconnect(client))  # nobody waits for it
    assert ask(broker, "settle_positions", destination="q", given=given((1, 1)))["settled"] == 1
    assert depth(broker, "q") == 1


@pytest.mark.parametrize("committed", [False, True], ids=["settled", "committed"])
def test_what_another_consumer_has_processed_meanwhile_is_told(broker: Broker, committed: bool) -> None:
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
    monkeypatch.setattr("broker_adapter.engine.given_operations.SETTLE_ENTRIES", 3)
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(number) for number in range(1, 21)]), WAIT)
    wanted = [1, 2, 3, 4, 9, 10, 20]
    settled = ask(broker, "settle_positions", destination="q", given=given(*((each, each) for each in wanted)))
    assert settled["settled"] == len(wanted)
    assert depth(broker, "q") == 13


# What nobody saw.


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


def test_a_delivery_that_nobody_saw_does_not_count(broker: Broker) -> None:
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(1), named(2), named(3)]), WAIT)
    lose(broker, 3)
    assert ask(broker, "forgive", destination="q", given=given((2, 2), (3, 99), (9, 9))) == 1
    assert counts(broker) == {1: 1, 2: 0, 3: 1}


def test_a_delivery_is_taken_back_once_however_often_it_is_asked_for(broker: Broker) -> None:
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(1)]), WAIT)
    lose(broker, 1)
    lose(broker, 1)
    names = [(*each, 1) for each in given((1, 1))]
    assert [ask(broker, "forgive", destination="q", given=names) for _ in range(3)] == [1, 0, 0]
    assert counts(broker) == {1: 1}
    for wrong in ([(1,)], [(1, "name", "x")], [("1", "name")], [(1, "name", 2, 3)]):
        with pytest.raises(MessageFormatException, match="is not a position"):
            ask(broker, "forgive", destination="q", given=wrong)


def test_what_rests_after_it_failed_again_is_forgiven_and_comes_at_once(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(redelivery_delay_seconds=60, max_redelivery_delay_seconds=60), str(tmp_path))
    broker.call(c.Enqueue(connect(broker), queue("q"), [named(1), named(2)]), WAIT)
    consumer, inbox = attach(broker, connect(broker), "q", credit=4)
    for count in (2, 4):
        settle(broker, consumer, inbox.wait_for(count)[-2:], Outcome.FAILED)
    assert counts(broker) == {}, "both rest"
    assert ask(broker, "forgive", destination="q", given=given((2, 2))) == 1
    assert counts(broker) == {2: 1}
    broker.close()


def test_what_was_never_delivered_or_is_in_hand_cannot_be_forgiven(broker: Broker) -> None:
    client = connect(broker)
    broker.call(c.Enqueue(client, queue("q"), [named(1), named(2)]), WAIT)
    lose(broker, 1)
    _, inbox = attach(broker, client, "q", credit=1)
    inbox.wait_for(1)
    assert ask(broker, "forgive", destination="q", given=given((1, 1), (2, 2))) == 0


# Whether a commit was done.


def test_a_commit_is_resolved_by_its_id(broker: Broker) -> None:
    client = connect(broker)
    broker.call(c.Commit(client, c.CommitId("s", 3), [(queue("q"), named(1))], []), WAIT)
    resolved = {number: ask(broker, "resolve_commit", session="s", number=number) for number in (2, 3, 4)}
    assert resolved == {2: True, 3: True, 4: False}
    assert ask(broker, "resolve_commit", session="other", number=1) is False


def test_a_commit_on_its_way_is_done_before_it_is_resolved(broker: Broker) -> None:
    client = connect(broker)
    broker.submit(c.Commit(client, c.CommitId("s", 1), [(queue("q"), named(1))], []))
    assert ask(broker, "resolve_commit", session="s", number=1) is True


def test_a_commit_that_is_held_back_when_its_connection_is_lost_is_not_done(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(max_queue_messages=1, hold_timeout_seconds=60), str(tmp_path))
    client = connect(broker)
    send(broker, client, "q", "fills it")
    broker.submit(c.Commit(client, c.CommitId("s", 1), [(queue("q"), named(1))], []))
    broker.submit(c.Disconnect(client))
    assert ask(broker, "resolve_commit", session="s", number=1) is False
    ask(broker, "purge", destination="q")
    assert ask(broker, "resolve_commit", session="s", number=1) is False
    assert depth(broker, "q") == 0
    broker.close()


def test_a_commit_is_resolved_after_a_restart(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    broker.call(c.Commit(connect(broker), c.CommitId("s", 5), [(queue("q"), named(1))], []), WAIT)
    broker.close()
    broker = Broker(EngineSettings(), str(tmp_path))
    assert ask(broker, "resolve_commit", session="s", number=5) is True
    assert ask(broker, "resolve_commit", session="s", number=6) is False
    broker.close()


def test_commits_and_published_batches_are_not_forgotten_for_others(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(max_producers=3), str(tmp_path))
    client = connect(broker)
    broker.call(c.Commit(client, c.CommitId("mine", 7), [(queue("q"), named(1))], []), WAIT)
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=[envelope("x")])
    assert ask(broker, "publish", group="mine", number=3, transactions=["t"]) is True
    commits = [c.Commit(client, c.CommitId(f"session {n}", 1), [], []) for n in range(CACHED_NAMES)]
    groups = [c.Publish(f"group {n}", 1, []) for n in range(CACHED_NAMES)]
    broker.submit_all([*commits, *groups])
    for number in range(10):
        send(broker, client, "q", "x", identity=Identity(f"producer {number}", 1, 1))
    assert ask(broker, "resolve_commit", session="mine", number=7) is True
    assert ask(broker, "resolve_commit", session="mine", number=8) is False
    assert ask(broker, "publish", group="mine", number=3, transactions=[]) is False
    broker.close()


def test_a_commit_is_known_however_many_empty_ones_are_made_in_the_same_cycle(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    client = connect(broker)
    mine = c.Commit(client, c.CommitId("mine", 7), [(queue("q"), c.NewMessage(0, b"x"))], [])
    broker.call(mine, WAIT)
    others = [c.Commit(client, c.CommitId(f"session {n}", 1), [], []) for n in range(CACHED_NAMES)]
    with broker._runner:  # so that they wait for one cycle
        broker.submit_all([mine, *others])
    assert broker.call(c.Due(()), WAIT) is None
    assert depth(broker, "q") == 1
    broker.close()


def test_a_commit_is_in_doubt_only_where_it_was_made_too_long_ago(broker: Broker) -> None:
    day = 86_400_000
    assert ask(broker, "resolve_commit", session="never seen", number=1) is False
    assert ask(broker, "resolve_commit", session="never seen", number=1, age_ms=6 * day) is False
    assert ask(broker, "resolve_commit", session="never seen", number=1, age_ms=8 * day) is None
    broker.call(c.Commit(connect(broker), c.CommitId("s", 5), [(queue("q"), named(1))], []), WAIT)
    assert ask(broker, "resolve_commit", session="s", number=5, age_ms=8 * day) is True
    assert ask(broker, "resolve_commit", session="s", number=6, age_ms=8 * day) is False


def test_names_that_were_not_used_for_long_are_swept_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(EngineSettings(commit_memory_seconds=60), str(tmp_path))
    broker.call(c.Commit(connect(broker), c.CommitId("old", 5), [(queue("q"), named(1))], []), WAIT)
    broker.close()
    later = time.time_ns() + 61 * 10**9
    monkeypatch.setattr("broker_adapter.engine.broker._now_ms", lambda: later // 10**6)
    broker = Broker(EngineSettings(commit_memory_seconds=60), str(tmp_path))
    broker.call(c.Statistics(), WAIT)
    broker.call(c.Statistics(), WAIT)
    assert ask(broker, "resolve_commit", session="old", number=5, age_ms=61_000) is None
    broker.close()


# Queues that are deleted and made again.


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_queue_made_again_after_a_restart_is_another_one_of_which_nothing_is_settled(
    tmp_path: Path, restarts: int
) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    send(broker, connect(broker), "q", *range(10))
    before = ask(broker, "bounds", destination="q")
    old = {"destination": "q", "incarnation": before["incarnation"]}
    assert ask(broker, "settle_through", **old, position=10) == 10
    ask(broker, "delete", destination="q")
    assert ask(broker, "published", group=f"settled/{before['incarnation']}") is None
    for _ in range(restarts):
        broker.close()
        broker = Broker(EngineSettings(), str(tmp_path))
    assert ask(broker, "published", group=f"settled/{before['incarnation']}") is None
    send(broker, connect(broker), "q", *range(5))
    after = ask(broker, "bounds", destination="q")
    assert after["incarnation"] != before["incarnation"]
    assert after["settled"] == 0
    with pytest.raises(InvalidDestinationException, match="deleted and made again"):
        ask(broker, "settle_through", **old, position=5)
    assert depth(broker, "q") == 5
    broker.close()
    assert check_store(tmp_path, EngineSettings()).is_sound


# What reads without a consumer uses the queue.


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_what_is_read_by_ranges_is_not_idle(broker: Broker, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = broker._state.directory
    directory.settings = attrs.evolve(
        directory.settings, delete_idle_queues_seconds=60.0, delete_idle_subscriptions_seconds=60.0
    )
    now = time.monotonic_ns() // 1_000_000
    monkeypatch.setattr("broker_adapter.engine.broker._elapsed_ms", lambda: now)
    client = connect(broker)
    destination = topic("q") if kind == "topic" else queue("q")
    shared = Subscription("s", durable=True, shared=True) if kind == "topic" else None
    consumer, _ = attach(broker, client, destination, subscription=shared)
    broker.call(c.Detach(consumer), WAIT)
    names = {"destination": "q", "kind": kind, "subscription": "s" if shared else None}
    incarnation = ask(broker, "bounds", **names)["incarnation"]
    for operation, more in (
        ("bounds", {}),
        ("read_range", {"first": 1, "last": 5, "incarnation": incarnation}),
        ("settle_through", {"position": 0, "incarnation": incarnation}),
    ):
        for _ in range(2):
            now += 40_000
            ask(broker, operation, **names, **more)
            assert broker.call(c.DeleteIdle(), WAIT) == [], operation
    now += 60_000
    assert len(broker.call(c.DeleteIdle(), WAIT)) == 1


# What cannot be trusted, and what must not be stored.


def damage_body(broker: Broker, body: bytes) -> None:
    """Change one message on the disk behind the engine's back."""
    store = broker.store
    with store.snapshot() as tables:
        key, value = next((key, value) for key, value in tables.items("messages") if value.endswith(body))
    store.apply([("messages", key, value[:-1] + b"!")])
    broker._stores._cache.clear()
    broker._stores._cache_bytes = 0


@pytest.mark.damages
def test_a_damaged_message_in_a_range_is_an_error_until_it_is_left_out_and_kept_aside(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    send(broker, connect(broker), "q", "first", "second", "third")
    bounds = ask(broker, "bounds", destination="q")
    damage_body(broker, b"second")
    read = {"destination": "q", "first": bounds["first"], "last": bounds["next"] - 1}
    for _ in range(2):
        with pytest.raises(StoreCorruptException, match="position 2 of queue 'q' cannot be trusted"):
            ask(broker, "read_range", **read)
    answer = ask(broker, "read_range", **read, skip_damaged=True)
    assert bodies(answer) == [b"first", b"third"]
    assert answer["damaged"] == [2]
    assert depth(broker, "q") == 2
    assert ask(broker, "read_range", **read)["damaged"] == []
    assert ask(broker, "settle_through", destination="q", position=3) == 2
    assert {each.table for each in quarantined(broker.store)} == {"messages", "entries"}
    assert broker.call(c.Statistics(), WAIT).quarantined == 1
    broker.close()
    assert check_store(tmp_path, EngineSettings()).is_sound


@pytest.mark.damages
@pytest.mark.parametrize("in_memory", [True, False])
def test_a_damaged_message_that_a_browser_meets_is_counted_no_more(tmp_path: Path, in_memory: bool) -> None:
    settings = EngineSettings()
    broker = Broker(settings, str(tmp_path))
    send(broker, connect(broker), "q", "first", "second", "third")
    damage_body(broker, b"second")
    if not in_memory:
        broker.close()
        broker = Broker(settings, str(tmp_path))
    client = connect(broker)
    for _ in range(2):
        assert payloads(drained(broker, client, "q", browse=True)) == [b"first", b"third"]
        assert depth(broker, "q") == 2
    statistics = broker.call(c.Statistics(), WAIT)
    assert (statistics.quarantined, broker.store.quarantined()) == (1, 2)
    assert [each for each in broker.check() if not each.harmless] == []
    assert broker.request("check", {}, WAIT)["sound"]
    assert payloads(drained(broker, client, "q")) == [b"first", b"third"]
    broker.close()


def damage_entries(path: Path, *positions: int) -> None:
    """Change entries on the disk, by position, while no engine has them in memory."""
    store = LmdbStore(path, EngineSettings())
    with store.snapshot() as tables:
        entries = {position_of(key): (key, value) for key, value in tables.items("entries")}
    for key, value in map(entries.__getitem__, positions):
        store.apply([("entries", key, value[:3] + bytes([value[3] ^ 1]) + value[4:])])
    store.close()


def wrong(broker: Broker) -> list[str]:
    """What a check finds, but for bodies: nothing tells whose these are, once an entry is damaged."""
    return [each.text for each in broker.check() if each.problem != "message without an entry"]


@pytest.mark.damages
@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_damaged_entry_in_a_range_is_an_error_until_it_is_left_out_and_kept_aside(tmp_path: Path, at: int) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    send(broker, connect(broker), "q", *range(1, 6))
    broker.close()
    damage_entries(tmp_path, at)
    broker = Broker(EngineSettings(), str(tmp_path))
    bounds = ask(broker, "bounds", destination="q")
    assert (bounds["first"], bounds["next"]) == (1, 6)
    read = {"destination": "q", "first": bounds["first"], "last": bounds["next"] - 1}
    for _ in range(2):
        with pytest.raises(StoreCorruptException, match=f"position {at} of queue 'q' cannot be trusted"):
            ask(broker, "read_range", **read)
    answer = ask(broker, "read_range", **read, skip_damaged=True)
    assert bodies(answer) == [b"%d" % number for number in range(1, 6) if number != at]
    assert (answer["damaged"], answer["next"]) == ([at], 6)
    assert wrong(broker) == []
    assert depth(broker, "q") == 4
    assert broker.call(c.Statistics(), WAIT).quarantined == 1
    assert ask(broker, "read_range", **read)["damaged"] == []
    assert {each.table for each in quarantined(broker.store)} == {"entries"}
    assert ask(broker, "settle_through", destination="q", position=5) == 4
    broker.close()
    assert check_store(tmp_path, EngineSettings(), repair=True).summary.problems == {"message without an entry": 1}


@pytest.mark.damages
def test_a_damaged_entry_is_told_in_the_part_of_the_range_that_it_belongs_to(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    send(broker, connect(broker), "q", *(bytes([number]) * 1000 for number in range(1, 7)))
    broker.close()
    damage_entries(tmp_path, 2, 5)
    broker = Broker(EngineSettings(), str(tmp_path))
    read = {"destination": "q", "last": 6, "max_bytes": 2500}
    with pytest.raises(StoreCorruptException, match="position 2 "):
        ask(broker, "read_range", **read, first=1)
    found = []
    position = 1
    while position <= 6:
        answer = ask(broker, "read_range", **read, first=position, skip_damaged=True)
        found.append(([message[0] for message in answer["messages"]], answer["damaged"]))
        position = answer["next"]
    assert found == [([1, 3], [2]), ([4, 6], [5])]
    assert wrong(broker) == []
    broker.close()


@pytest.mark.damages
@pytest.mark.parametrize("operation", ["purge", "redrive", "settle_through", "delete"])
def test_damaged_entries_are_counted_no_more_once_an_operation_has_found_them(tmp_path: Path, operation: str) -> None:
    """Also delayed ones; only ``purge`` and ``delete`` come to these."""
    broker = Broker(EngineSettings(), str(tmp_path))
    client = connect(broker)
    send(broker, client, "q", *range(1, 6))
    send(broker, client, "q", "six", "seven", deliver_at_ms=4_000_000_000_000)
    broker.close()
    delayed = operation in ("purge", "delete")
    damage_entries(tmp_path, 2, 3, *((7,) if delayed else ()))
    broker = Broker(EngineSettings(), str(tmp_path))
    more = {"settle_through": {"position": 4}, "redrive": {"to": "other"}}.get(operation, {})
    ask(broker, operation, destination="q", **more)
    while broker._jobs:
        broker.call(c.Due(()), WAIT)
    assert depth(broker, "q") == {"purge": 0, "delete": 0, "redrive": 2, "settle_through": 3}[operation]
    assert depth(broker, "other") == (3 if operation == "redrive" else 0)
    assert [text for text in wrong(broker) if "schedule" not in text] == []
    assert len(list(quarantined(broker.store))) == (3 if delayed else 2)
    broker.close()


@pytest.mark.damages
@pytest.mark.parametrize("in_hand", [False, True])
def test_an_entry_that_is_damaged_on_the_disk_only_is_written_anew(tmp_path: Path, in_hand: bool) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    client = connect(broker)
    send(broker, client, "q", *range(1, 4))
    consumer, inbox = attach(broker, client, "q", credit=3 if in_hand else 0)
    inbox.wait_for(3 if in_hand else 0)
    store = broker.store
    with store.snapshot() as tables:
        key, value = next((key, value) for key, value in tables.items("entries") if position_of(key) == 2)
    store.apply([("entries", key, value[:-1] + bytes([value[-1] ^ 1]))])
    assert len(wrong(broker)) >= 1
    answer = ask(broker, "read_range", destination="q", first=1, last=3)
    assert bodies(answer) == [b"1", b"2", b"3"]
    assert [each.text for each in broker.check()] == []
    assert list(quarantined(store)) == []
    broker.call(c.Detach(consumer, give_back=True), WAIT)
    assert ask(broker, "settle_through", destination="q", position=3) == 3
    broker.close()


@pytest.mark.damages
def test_a_damaged_entry_that_a_selector_comes_to_is_counted_no_more(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    send(broker, connect(broker), "q", *range(1, 6))
    broker.close()
    damage_entries(tmp_path, 2)
    broker = Broker(EngineSettings(), str(tmp_path))
    client = connect(broker)
    consumer, _ = attach(broker, client, "q", credit=5, selector="a = 1")
    broker.call(c.Drain(consumer), WAIT)
    assert depth(broker, "q") == 4
    assert broker.call(c.Statistics(), WAIT).quarantined == 1
    broker.close()


def test_what_is_on_the_disk_is_not_put_into_a_temporary_queue(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    client = connect(broker)
    send(broker, client, "q", "bad")
    consumer, inbox = attach(broker, client, "q", credit=1)
    settle(broker, consumer, inbox.wait_for(1), Outcome.REJECTED)
    temporary = broker.call(c.DeclareTemporary(client, DestinationKind.TEMPORARY_QUEUE), WAIT)
    assert ask(broker, "redrive", to=temporary.name) == {"moved": 0, "left": 1}
    assert depth(broker, "DLQ") == 1
    assert ask(broker, "redrive") == {"moved": 1, "left": 0}
    with pytest.raises(InvalidDestinationException, match="temporary"):
        ask(broker, "stage", transaction="t", queue=temporary.name, first=0, messages=[envelope("x")])
    broker.close()


def test_what_was_dead_in_a_durable_subscription_is_not_put_into_one_in_memory(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    client = connect(broker, "me")
    durable = Subscription("s", durable=True, shared=True)
    consumer, inbox = attach(broker, client, topic("t"), credit=1, subscription=durable)
    send(broker, client, topic("t"), "bad")
    settle(broker, consumer, inbox.wait_for(1), Outcome.REJECTED)
    broker.call(c.Detach(consumer), WAIT)
    broker.call(c.Unsubscribe(client, "s"), WAIT)
    attach(broker, client, topic("t"), subscription=Subscription("s", durable=False, shared=True))
    assert ask(broker, "redrive") == {"moved": 0, "left": 1}
    assert depth(broker, "DLQ") == 1
    broker.close()


def test_a_temporary_queue_is_known_by_its_name_whatever_kind_is_said(broker: Broker) -> None:
    client = connect(broker)
    temporary = broker.call(c.DeclareTemporary(client, DestinationKind.TEMPORARY_QUEUE), WAIT)
    send(broker, client, queue(temporary.name), "reply")
    assert payloads(drained(broker, client, temporary)) == [b"reply"]
    with pytest.raises(InvalidDestinationException, match="does not exist any more"):
        send(broker, client, queue(temporary.name + "x"), "reply")


# What ends an operation before it is done.


def sparse(count: int) -> list[list[Any]]:
    """Positions so far apart that each takes a step of its own."""
    return [[number * 1_000_000, "ID:none"] for number in range(1, count + 1)]


@pytest.mark.parametrize("operation", ["settle_positions", "forgive"])
def test_a_cancelled_operation_ends_with_its_step(broker: Broker, operation: str) -> None:
    send(broker, connect(broker), "q", "a")
    asked = 0

    def is_cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 5

    with pytest.raises(ConnectionLostException, match="cancelled"):
        broker.request(operation, {"destination": "q", "given": sparse(1000)}, WAIT, is_cancelled)
    assert asked == 6


def test_a_cancelled_purge_leaves_what_it_had_not_come_to(broker: Broker) -> None:
    send(broker, connect(broker), "q", "a", "b")
    with pytest.raises(ConnectionLostException, match="cancelled"):
        broker.request("purge", {"destination": "q"}, WAIT, lambda: True)
    assert depth(broker, "q") == 2
    assert broker.request("purge", {"destination": "q"}, WAIT, lambda: False) == 2


def test_the_deadline_holds_also_where_nothing_is_found(broker: Broker) -> None:
    send(broker, connect(broker), "q", "a")
    # Between two steps, or in one, where the machine is busy.
    with pytest.raises(OperationTimedOutException, match=r"the time is over|no answer to ResolveCommit within"):
        broker.request("settle_positions", {"destination": "q", "given": sparse(MAX_GIVEN)}, 0.02)
