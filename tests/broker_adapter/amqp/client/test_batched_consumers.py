"""Consumers that get batches from our own server, against a scripted broker."""

from __future__ import annotations

import msgpack
import pytest

from ack_modes import DeliveryTag, Outcome, Settlement
from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import ACCEPTED_STATE, REJECTED, Dispositions, Incoming, LinkFlow, State, Transfers
from broker_adapter.amqp.messages.amqp_message import encode_amqp
from broker_adapter.amqp.messages.batches import Delivered, pack_deliveries
from broker_adapter.amqp.messages.consumer_records import (
    RECORDS_ADDRESS,
    Credited,
    DrainAsked,
    Record,
    Settled,
    unpack_records,
)
from broker_adapter.amqp.messages.values import Reader
from broker_adapter.envelope import BodyKind, Envelope, pack
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    ProtocolException,
    TransactionRolledBackException,
)
from broker_adapter.transport import Delivery, Failed, LinkLost
from tests.broker_adapter.amqp.client.conversations import QUEUE, attached, receiver
from tests.broker_adapter.amqp.client.scripted_broker import Result, ScriptedBroker, Wired

NO_ANNOTATIONS = b""


class Consumer:
    """A consumer's link to a broker that delivers in batches, and what has come on it."""

    def __init__(self, wired: Wired | None = None, *, session: int = 1, credit: int = 100) -> None:
        if wired is None:
            broker = ScriptedBroker()
            broker.takes_batches, broker.credit = True, credit
            wired = Wired(broker).opened()
        self.wired = wired
        self.got: list[Delivery] = []
        self.link = receiver(wired, self.got.extend, session=session)
        self.far = wired.broker.links[attached(wired).name]

    def deliver(self, first: int, *messages: Delivered, settled: bool = False, is_drained: bool = False) -> None:
        self.wired.broker.peer.send(self.far, pack_deliveries(first, messages, is_drained=is_drained), settled=settled)
        self.wired.pump()

    def records(self) -> list[Record]:
        """What the client has told so far."""
        self.wired.pump()
        broker = self.wired.broker
        link = broker.by_address[RECORDS_ADDRESS]
        transfers = [each for event in broker.of(Transfers) if event.link == link for each in event.deliveries]
        return [record for each in transfers for record in unpack_records(each.payload)]

    def settle(self, outcome: Outcome, *numbers: int) -> None:
        self.wired.client.settle([Settlement(self.tag(number), outcome) for number in numbers])

    def tag(self, number: int) -> DeliveryTag:
        return DeliveryTag(0, self.link, number)


def message(body: str, position: int = 1, count: int = 0) -> Delivered:
    return Delivered(position, count, NO_ANNOTATIONS, pack(Envelope(QUEUE, BodyKind.TEXT, body)))


def test_each_message_of_a_batch_is_a_delivery_with_its_place() -> None:
    consumer = Consumer()
    consumer.deliver(5, message("a", 11), message("b", 12, 3))

    found = [(each.tag.number, each.envelope.body, each.position, each.delivery_count) for each in consumer.got]
    assert found == [(5, "a", 11, 0), (6, "b", 12, 3)]
    assert consumer.wired.broker.of(Dispositions)[-1].state == ACCEPTED_STATE  # that the transfer came


def test_a_dead_letter_and_a_message_of_a_foreign_client_are_decoded() -> None:
    consumer = Consumer()
    added = msgpack.packb({"JMS_HOLDFAST_REASON": "rejected"})
    plain = encode_amqp(Envelope(QUEUE, BodyKind.TEXT, "plain"))
    consumer.deliver(1, message("letter")._replace(annotations=added), Delivered(2, 1, NO_ANNOTATIONS, plain))

    assert [each.envelope.body for each in consumer.got] == ["letter", "plain"]
    assert consumer.got[0].envelope.properties["JMS_HOLDFAST_REASON"] == "rejected"


def test_the_credit_of_messages_goes_by_records_and_that_of_transfers_is_there_at_once() -> None:
    consumer = Consumer()
    consumer.wired.client.credit(consumer.link, 10)

    assert consumer.records() == [Credited(1, 10)]
    flows = [each for each in consumer.wired.broker.of(LinkFlow) if each.link == consumer.far]
    assert [each.credit for each in flows] == [1_000_000]


def test_records_wait_for_the_first_credit_of_their_link_and_keep_their_order() -> None:
    consumer = Consumer(credit=0)
    consumer.wired.client.credit(consumer.link, 10)
    consumer.wired.client.drain(consumer.link, Result())
    assert consumer.records() == []
    consumer.wired.broker.peer.credit(consumer.wired.broker.by_address[RECORDS_ADDRESS], 1)

    assert consumer.records() == [Credited(1, 10), DrainAsked(1)]


def test_settlements_go_as_ranges_and_each_delivery_once() -> None:
    consumer = Consumer()
    consumer.deliver(1, *[message("x")] * 6)
    consumer.settle(Outcome.ACCEPTED, 1, 2, 3, 5)
    consumer.settle(Outcome.FAILED, 3, 4)
    consumer.settle(Outcome.ACCEPTED, 1, 99)

    assert consumer.records() == [
        Settled(1, Outcome.ACCEPTED, [(1, 3), (5, 5)]),
        Settled(1, Outcome.FAILED, [(4, 4)]),
    ]


def test_what_comes_settled_is_not_settled_again() -> None:
    consumer = Consumer()
    consumer.deliver(1, message("x"), settled=True)
    consumer.settle(Outcome.ACCEPTED, 1)

    assert len(consumer.got) == 1
    assert consumer.records() == []


def test_a_drain_is_over_when_the_broker_says_so_behind_what_it_sent() -> None:
    consumer, done = Consumer(), Result()
    consumer.wired.client.drain(consumer.link, done)
    assert consumer.records() == [DrainAsked(1)]
    consumer.deliver(1, message("last"))
    assert done.pending
    consumer.deliver(2, is_drained=True)

    assert done.value is True
    assert [each.envelope.body for each in consumer.got] == ["last"]


def test_the_answer_to_a_drain_says_nothing_of_credit_that_was_given_after_it() -> None:
    consumer, first, joined, behind = Consumer(), Result(), Result(), Result()
    client, link = consumer.wired.client, consumer.link
    client.drain(link, first)
    client.drain(link, joined)
    client.credit(link, 10)
    client.drain(link, behind)
    assert consumer.records() == [DrainAsked(1), Credited(1, 10)]
    consumer.deliver(1, is_drained=True)
    assert (first.value, joined.value, behind.pending) == (True, True, True)
    assert consumer.records() == [DrainAsked(1), Credited(1, 10), DrainAsked(1)]
    consumer.deliver(1, message("of that credit"))
    assert behind.pending
    consumer.deliver(2, is_drained=True)

    assert behind.value is True


def test_a_drain_that_waits_for_another_ends_with_the_link() -> None:
    consumer, behind = Consumer(), Result()
    client, link = consumer.wired.client, consumer.link
    client.drain(link, Result())
    client.credit(link, 10)
    client.drain(link, behind)
    client.detach(link, Result())

    with pytest.raises(IllegalStateException, match="closed"):
        assert behind.value


def test_a_broker_that_does_not_confirm_batches_delivers_one_by_one() -> None:
    broker = ScriptedBroker()
    broker.takes_batches, broker.delivers_batches = True, False
    consumer = Consumer(Wired(broker).opened())
    consumer.wired.client.credit(consumer.link, 5)
    consumer.wired.pump()
    broker.peer.send(consumer.far, message("alone").payload)
    consumer.wired.pump()
    consumer.wired.client.settle([Settlement(consumer.got[0].tag, Outcome.ACCEPTED)])

    assert consumer.records() == []
    assert len(broker.of(Dispositions)) == 1


def test_what_is_no_batch_ends_the_link() -> None:
    consumer = Consumer()
    consumer.wired.broker.peer.send(consumer.far, message("alone").payload)
    consumer.wired.pump()

    (lost,) = [each for each in consumer.wired.events if isinstance(each, LinkLost)]
    assert isinstance(lost.error, ProtocolException)
    assert consumer.got == []


def test_deliveries_of_a_closed_consumer_are_settled_until_its_session_ends() -> None:
    first = Consumer()
    second = Consumer(first.wired)
    for consumer in (first, second):
        consumer.deliver(1, message("x"), message("y"))
        consumer.wired.client.detach(consumer.link, Result())
    first.settle(Outcome.ACCEPTED, 1)
    second.settle(Outcome.RELEASED, 2)
    expected = [Settled(1, Outcome.ACCEPTED, [(1, 1)]), Settled(2, Outcome.RELEASED, [(2, 2)])]
    assert first.records() == expected
    first.wired.ask(first.wired.client.end_session, 1)
    first.settle(Outcome.ACCEPTED, 2)

    assert first.records() == expected
    assert first.wired.client._batched._by_link == {}


def test_nothing_is_kept_of_a_consumer_whose_deliveries_are_all_settled() -> None:
    consumer = Consumer()
    consumer.deliver(1, message("x"))
    consumer.wired.client.detach(consumer.link, Result())
    consumer.settle(Outcome.ACCEPTED, 1)

    assert consumer.wired.client._batched._by_link == {}


def test_a_connection_whose_link_for_records_is_closed_is_lost() -> None:
    consumer = Consumer()
    link = consumer.wired.broker.by_address[RECORDS_ADDRESS]
    consumer.wired.broker.peer.close_link(link, AmqpError("amqp:internal-error", "broken"))
    consumer.wired.pump()

    (failed,) = [each for each in consumer.wired.events if isinstance(each, Failed)]
    assert isinstance(failed.error, ConnectionLostException)


def commit(consumer: Consumer, *numbers: int) -> Result:
    result = Result()
    settlements = [Settlement(consumer.tag(number), Outcome.ACCEPTED) for number in numbers]
    consumer.wired.client.commit(1, 1, [], settlements, result)
    consumer.wired.pump()
    return result


def test_the_discharge_of_a_commit_settles_its_deliveries() -> None:
    consumer = Consumer()
    consumer.deliver(1, *[message("x")] * 3)

    assert commit(consumer, 1, 2).value is None
    ((failed, annotations),) = consumer.wired.broker.discharges
    assert (failed, annotations["x-opt-holdfast-commit-size"]) == (False, [0, 2, 0])
    assert unpack_records(annotations["x-opt-holdfast-commit-settled"]) == [Settled(1, Outcome.ACCEPTED, [(1, 2)])]
    assert consumer.records() == []


def test_what_a_commit_settles_goes_ahead_of_its_discharge_where_it_is_much() -> None:
    consumer = Consumer()
    for first in range(1, 1_000, 100):
        consumer.deliver(first, *[message("x")] * 100)
    ahead: list[bytes] = []
    coordinate = consumer.wired.broker._coordinate

    def note(link: int, delivery: Incoming) -> None:
        if b"holdfast:add:list" in delivery.payload:
            ahead.append(delivery.payload)
            consumer.wired.broker.peer.settle(link, [delivery.number], ACCEPTED_STATE)
        else:
            coordinate(link, delivery)

    consumer.wired.broker._coordinate = note  # type: ignore[method-assign]
    assert commit(consumer, *range(1, 1_001, 2)).value is None  # 500 ranges
    ((_, annotations),) = consumer.wired.broker.discharges
    found = [*map(settled_in, ahead), annotations["x-opt-holdfast-commit-settled"]]
    ranges = [each for payload in found for record in unpack_records(payload) for each in record.ranges]  # type: ignore[union-attr]
    assert ranges == [(number, number) for number in range(1, 1_001, 2)]
    assert len(found) == 3
    assert annotations["x-opt-holdfast-commit-size"] == [0, 500, 0]


def settled_in(payload: bytes) -> bytes:
    """The records of what goes ahead of a discharge."""
    section = Reader(payload).value()
    found: bytes = section.value["x-opt-holdfast-commit-settled"]
    return found


@pytest.mark.parametrize("number", [1, 9])
def test_a_commit_with_a_delivery_that_is_settled_or_unknown_does_nothing(number: int) -> None:
    consumer = Consumer()
    consumer.deliver(1, *[message("x")] * 3)
    consumer.settle(Outcome.ACCEPTED, 1)
    result = commit(consumer, 2, number)

    with pytest.raises(TransactionRolledBackException, match="has ended since"):
        _ = result.value
    assert consumer.wired.broker.discharges == []
    assert consumer.records() == [Settled(1, Outcome.ACCEPTED, [(1, 1)]), Settled(1, Outcome.MODIFIED, [(2, 2)])]


def test_what_a_refused_discharge_named_is_not_settled_again() -> None:
    consumer = Consumer()
    consumer.deliver(1, message("x"))
    consumer.wired.broker.discharge_outcome = State(REJECTED, error=AmqpError("amqp:transaction:rollback", "no room"))
    result = commit(consumer, 1)

    with pytest.raises(TransactionRolledBackException, match="no room"):
        _ = result.value
    assert consumer.records() == []
