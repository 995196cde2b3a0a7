"""Deliveries in batches, and the records that settle them, over the server's protocol in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.amqp.events import ACCEPTED_STATE, REJECTED, RELEASED_STATE, LinkRemoteClose, RemoteClose, Terminus
from broker_adapter.amqp.messages.batches import MOST_MESSAGES, Delivered, unpack_deliveries
from broker_adapter.amqp.messages.consumer_records import (
    CONSUMER_NUMBER,
    RECORDS_ADDRESS,
    Credited,
    DrainAsked,
    Record,
    Settled,
    pack_records,
)
from broker_adapter.amqp.messages.region_changes import pack_changes
from broker_adapter.amqp.messages.values import Described, ULong, encode
from broker_adapter.amqp.wire import (
    ADD_DESCRIPTOR,
    BATCHES_CAPABILITY,
    COMMIT_CHANGES,
    COMMIT_SETTLED,
    COMMIT_SIZE,
    DISCHARGE_CODE,
)
from broker_adapter.destination import Destination, queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack, unpack
from broker_adapter.errors import JMSSecurityException
from broker_adapter.transport import RegionChange
from tests.broker_adapter.engine.desks import make
from tests.broker_adapter.engine.driving import WAIT, connect, depth, drained
from tests.broker_adapter.engine.regions.values import values_of
from tests.broker_adapter.server.protocol_client import OWN_CLIENT, Client, code_of, put

OWN = {"product": "Holdfast"}


class Own(Client):
    """A connection of our own client, with consumers that get batches."""

    def begin(self, *, batches: bool = True) -> Own:
        """Open the connection, and the link for records."""
        capabilities = (*OWN_CLIENT, *((BATCHES_CAPABILITY,) if batches else ()))
        self.open("own", capabilities, properties=OWN)
        self.records = self.sender(RECORDS_ADDRESS, presettled=True, name="records") if batches else 0
        return self

    def consumer(self, number: int, source: Any = "q", **options: Any) -> int:
        """A consumer's link; returns the link's number."""
        terminus = Terminus(source) if isinstance(source, str) else source
        link = self.peer.attach_receiver(
            self.session, f"consumer {number}", terminus, Terminus("t"), properties={CONSUMER_NUMBER: number}, **options
        )
        self.opened(link)
        self.peer.credit(link, 100_000)
        return link

    def tell(self, *records: Record) -> None:
        """Send records."""
        self.peer.send(self.records, pack_records(records), settled=True)
        self.rest()

    def until_quiet(self, condition: Callable[[], bool]) -> bool:
        """Go on until it holds or nothing moves any more; returns whether it holds."""
        self.rest()
        return condition()

    def batches(self, link: int) -> list[tuple[int, list[Delivered], bool]]:
        """What came in batches."""
        return [unpack_deliveries(each.payload) for each in self.messages(link)]

    def got(self, link: int) -> list[tuple[int, Any, int]]:
        """The number, body and delivery count of each message that came."""
        return [
            (number, unpack(each.payload).body, each.delivery_count)
            for first, messages, _ in self.batches(link)
            for number, each in enumerate(messages, first)
        ]

    def take_transfers(self, link: int) -> None:
        """Answer the transfers that came."""
        self.peer.settle(link, [each.number for each in self.messages(link) if each.number], ACCEPTED_STATE)
        self.rest()


def filled(broker: Broker, count: int, name: str = "q") -> None:
    put(
        broker,
        name,
        *[pack(Envelope(queue(name), BodyKind.TEXT, str(n))) for n in range(count)],
        format=ENVELOPE_FORMAT,
    )


def left(broker: Broker) -> list[tuple[Any, int]]:
    """The body and delivery count of what is in the queue, for a consumer that comes now."""
    found = drained(broker, connect(broker), "q", browse=True)
    return [(unpack(each.payload).body, each.delivery_count) for each in found]


def bodies(numbers: Sequence[int]) -> list[str]:
    return [str(number) for number in numbers]


@pytest.fixture
def own(broker: Broker) -> Own:
    return Own(broker).begin()


def test_messages_come_in_batches_as_far_as_the_credit_goes(broker: Broker, own: Own) -> None:
    filled(broker, 2 * MOST_MESSAGES)
    link = own.consumer(7)
    assert own.opened(link).properties == {CONSUMER_NUMBER: 7}
    own.rest()
    assert own.got(link) == []
    own.tell(Credited(7, 10))
    assert [body for _, body, _ in own.got(link)] == bodies(range(10))
    assert len(own.messages(link)) == 1
    own.tell(Credited(7, 300), Credited(7, 1_000))

    assert [body for _, body, _ in own.got(link)] == bodies(range(2 * MOST_MESSAGES))
    assert [number for number, _, _ in own.got(link)] == list(range(1, 2 * MOST_MESSAGES + 1))
    assert all(len(messages) <= MOST_MESSAGES for _, messages, _ in own.batches(link))


def test_a_consumer_gets_single_messages_unless_both_ends_want_batches(broker: Broker) -> None:
    filled(broker, 3)
    without = Own(broker).begin(batches=False)
    link = without.consumer(1)
    assert without.opened(link).properties == {}
    assert len(without.receive(link, 3)) == 3


@pytest.mark.parametrize("number", [0, -1, True, "a", 1.5])
def test_a_number_that_no_consumer_can_have_means_single_messages(broker: Broker, own: Own, number: Any) -> None:
    filled(broker, 2)
    link = own.peer.attach_receiver(
        own.session, "c", Terminus("q"), Terminus("t"), properties={CONSUMER_NUMBER: number}
    )
    assert own.opened(link).properties == {}
    own.peer.credit(link, 5)
    assert len(own.receive(link, 2)) == 2


def test_records_settle_within_batches_and_each_delivery_once(broker: Broker, own: Own) -> None:
    filled(broker, 10)
    link = own.consumer(1)
    own.tell(Credited(1, 10))
    own.tell(
        Settled(1, Outcome.ACCEPTED, [(1, 2), (4, 4)]),
        Settled(1, Outcome.MODIFIED, [(3, 3)]),
        Settled(1, Outcome.ACCEPTED, [(1, 4)]),  # again: too late, also for the third
        Settled(1, Outcome.REJECTED, [(5, 5)]),
    )
    own.close_link(link)
    own.tell(Settled(1, Outcome.ACCEPTED, [(6, 8)]))  # of a consumer that is closed

    assert left(broker)[0] == ("2", 1)
    assert depth(broker, "q") == 3
    assert depth(broker, broker.settings.dead_letter_queue) == 1
    own.peer.end_session(own.session)
    own.rest()
    assert left(broker) == [("2", 1), ("8", 1), ("9", 1)]


def test_what_was_settled_counts_ahead_of_the_end_of_the_session(broker: Broker, own: Own) -> None:
    filled(broker, 6)
    own.consumer(1)
    own.tell(Credited(1, 10))
    own.peer.send(own.records, pack_records([Settled(1, Outcome.ACCEPTED, [(1, 5)])]), settled=True)
    own.peer.close()
    own.rest()

    assert left(broker) == [("5", 1)]


def test_a_drain_uses_up_the_credit_and_is_answered_behind_what_comes(broker: Broker, own: Own) -> None:
    filled(broker, 3)
    link = own.consumer(1)
    own.tell(Credited(1, 10), DrainAsked(1))

    assert [drained for _, _, drained in own.batches(link)][-1]
    assert len(own.got(link)) == 3
    filled(broker, 2)
    own.rest()
    assert len(own.got(link)) == 3, "the credit was given up"
    own.tell(Credited(1, 1))
    assert len(own.got(link)) == 4
    own.tell(DrainAsked(1))
    assert [drained for _, _, drained in own.batches(link)].count(True) == 2


def test_the_answer_to_a_drain_comes_to_nothing_where_the_connection_has_ended(broker: Broker, own: Own) -> None:
    own.consumer(1)
    own.tell(Credited(1, 10))
    own.peer.send(own.records, pack_records([DrainAsked(1)]), settled=True)
    own.to_server()
    own.server.receive_end()
    broker.call(c.Statistics(), WAIT)  # the engine has answered
    own.server.pending_output(0)


def test_records_of_a_consumer_that_is_not_there_are_ignored(broker: Broker, own: Own) -> None:
    own.tell(Credited(9, 5), DrainAsked(9), Settled(9, Outcome.ACCEPTED, [(1, 2**62)]))

    assert own.of(RemoteClose) == []


def test_a_client_that_settles_what_it_does_not_have_loses_its_connection(broker: Broker, own: Own) -> None:
    filled(broker, 5)
    own.consumer(1)
    own.tell(Credited(1, 10))
    for _ in range(3):
        own.tell(Settled(1, Outcome.ACCEPTED, [(100, 2_000)]))
    assert own.of(RemoteClose) == []
    own.tell(Settled(1, Outcome.ACCEPTED, [(1, 2**62)]))

    (closed,) = own.of(RemoteClose)
    assert closed.error.condition == "amqp:illegal-state"
    assert [body for body, _ in left(broker)] == bodies(range(5))


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x01", b"\x91\x93\x00\x01\xff"])
def test_records_that_cannot_be_decoded_end_the_connection(own: Own, payload: bytes) -> None:
    own.peer.send(own.records, payload, settled=True)
    own.rest()

    (closed,) = own.of(RemoteClose)
    assert closed.error.condition == "amqp:decode-error"


def test_records_that_are_not_settled_are_settled_as_they_come(broker: Broker) -> None:
    own = Own(broker)
    own.open("own", (*OWN_CLIENT, BATCHES_CAPABILITY), properties=OWN)
    own.records = own.sender(RECORDS_ADDRESS, name="records")
    number = own.peer.send(own.records, pack_records([DrainAsked(1)]))
    own.until(lambda: own.answers(own.records).get(number) == ACCEPTED_STATE)


def test_a_consumer_that_names_its_largest_message_gets_single_messages(broker: Broker, own: Own) -> None:
    filled(broker, 2)
    session = own.peer._endpoints.sessions[own.session].endpoint
    receiver = session.receiver("limited")
    receiver.source.address = "q"
    receiver.max_message_size = 1_000
    link = own.peer._endpoints._add_link(own.peer._endpoints.sessions[own.session], receiver, "limited", by_peer=False)
    own.peer._endpoints._open_link(
        link, Terminus("q"), Terminus("t"), presettled=False, properties={CONSUMER_NUMBER: 5}
    )
    assert own.opened(link.number).properties == {}
    own.peer.credit(link.number, 5)
    assert len(own.receive(link.number, 2)) == 2


def test_there_is_one_link_for_records(own: Own) -> None:
    second = own.peer.attach_sender(own.session, "more", Terminus("s"), Terminus(RECORDS_ADDRESS))

    assert own.refusal(second).condition == "amqp:illegal-state"


def test_a_foreign_client_has_no_link_for_records(broker: Broker) -> None:
    client = Client(broker).open("foreign")
    link = client.sender(RECORDS_ADDRESS)

    assert client.send(link, "a message") == [ACCEPTED_STATE]
    assert depth(broker, RECORDS_ADDRESS) == 1


def test_what_the_client_never_got_comes_again_without_a_failed_delivery(broker: Broker, own: Own) -> None:
    put(broker, "q", *[pack(Envelope(queue("q"), BodyKind.BYTES, bytes(4_000)))] * 600, format=ENVELOPE_FORMAT)
    link = own.consumer(1)
    own.peer.send(own.records, pack_records([Credited(1, 600)]), settled=True)
    own.to_server()
    own.broker.call(c.Statistics(), WAIT)
    own.server.pending_output(8_192)  # which the network loses
    own.server.receive_end()
    assert own.messages(link) == []

    counts = [count for _, count in left(broker)]
    assert len(counts) == 600
    assert (counts[0], counts[-1]) == (1, 0)


def test_a_consumer_whose_queue_is_deleted_forgets_what_it_had(broker: Broker, own: Own) -> None:
    filled(broker, 3)
    link = own.consumer(1)
    own.tell(Credited(1, 10))
    broker.request("delete", {"destination": "q", "force": True}, WAIT)
    own.until(lambda: own.of(LinkRemoteClose, link))
    own.tell(Settled(1, Outcome.ACCEPTED, [(1, 3)]))

    assert own.of(RemoteClose) == []


def test_batches_that_came_behind_the_end_of_their_link_are_given_back(broker: Broker, own: Own) -> None:
    filled(broker, 5)
    link = own.consumer(1)
    own.tell(Credited(1, 3))
    own.close_link(link)
    own.peer.settle(link, [each.number for each in own.messages(link)], RELEASED_STATE)
    own.rest()

    assert left(broker) == [(body, 0) for body in bodies(range(5))]
    other = Own(broker).begin()
    taker = other.consumer(1)
    other.tell(Credited(1, 10))
    assert [body for _, body, _ in other.got(taker)] == bodies(range(5))


def test_a_client_that_answers_no_transfers_gets_no_more_than_it_may_have(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    own = Own(broker, max_connection_bytes=1 << 20).begin()
    link = own.consumer(1)
    for number in range(1, 2_000):
        filled(broker, 1)
        own.peer.send(own.records, pack_records([Credited(1, 1)]), settled=True)
        if not own.until_quiet(lambda number=number: len(own.got(link)) >= number):  # type: ignore[misc]
            break
        own.tell(Settled(1, Outcome.ACCEPTED, [(number, number)]))
    assert 900 < len(own.messages(link)) < 1_100
    own.take_transfers(link)
    own.until(lambda: len(own.got(link)) == number)


def test_browsers_and_consumers_that_settle_nothing_get_batches(broker: Broker, own: Own) -> None:
    filled(broker, 4)
    browser = own.consumer(1, Terminus("q", copies=True), presettled=True)
    own.tell(Credited(1, 10), DrainAsked(1))
    assert [body for _, body, _ in own.got(browser)] == bodies(range(4))
    assert [each.number for each in own.messages(browser)] == [0] * len(own.messages(browser))
    taker = own.consumer(2, presettled=True)
    own.tell(Credited(2, 10))

    assert [body for _, body, _ in own.got(taker)] == bodies(range(4))
    assert depth(broker, "q") == 0


def test_a_message_of_a_foreign_client_and_a_dead_letter_come_in_batches(broker: Broker, own: Own) -> None:
    foreign = Client(broker).open("foreign")
    foreign.send(foreign.sender("q"), "plain")
    filled(broker, 1)
    link = own.consumer(1)
    own.tell(Credited(1, 10))
    own.tell(Settled(1, Outcome.REJECTED, [(1, 2)]))
    (_, messages, _) = own.batches(link)[0]
    assert [each.payload[:1] for each in messages] == [b"\x00", b"\x48"]
    letters = own.consumer(2, broker.settings.dead_letter_queue)
    own.tell(Credited(2, 10))

    found = [each for _, several, _ in own.batches(letters) for each in several]
    assert [each.payload[:1] for each in found] == [b"\x00", b"\x48"]
    assert all(each.annotations for each in found)


# Transactions.


def discharge(own: Own, control: int, txn_id: bytes, settled: bytes, size: list[int], *, fail: bool = False) -> Any:
    body = encode(Described(ULong(DISCHARGE_CODE), [txn_id, fail]))
    annotations = encode({COMMIT_SETTLED: settled, COMMIT_SIZE: [*size, 0]})
    return own.raw(control, b"\x00\x53\x72" + annotations + b"\x00\x53\x77" + body)


def in_hand(broker: Broker, count: int) -> tuple[Own, int]:
    own = Own(broker).begin()
    filled(broker, count)
    own.consumer(1)
    own.tell(Credited(1, count))
    return own, own.coordinator()


def test_a_discharge_settles_what_its_records_name(broker: Broker) -> None:
    own, control = in_hand(broker, 5)
    records = pack_records([Settled(1, Outcome.ACCEPTED, [(1, 3)]), Settled(1, Outcome.REJECTED, [(4, 4)])])

    assert discharge(own, control, own.declare(control), records, [0, 4]) == ACCEPTED_STATE
    assert depth(broker, "q") == 1
    assert depth(broker, broker.settings.dead_letter_queue) == 1


def test_a_discharge_says_that_what_it_took_is_not_held_any_more(broker: Broker) -> None:
    own, control = in_hand(broker, 5)
    txn_id = own.declare(control)
    broker.request("delete", {"destination": "q", "force": True}, WAIT)
    own.rest()

    answer = discharge(own, control, txn_id, pack_records([Settled(1, Outcome.ACCEPTED, [(1, 3)])]), [0, 3])
    assert code_of(answer) == (REJECTED, "amqp:illegal-state")
    assert "3 of 3 messages that the transaction has taken are not held any more" in str(answer.error)


@pytest.mark.parametrize("case", ["another count", "fails", "unknown", "no records", "other records"])
def test_a_discharge_that_is_refused_gives_back_what_its_records_name(broker: Broker, case: str) -> None:
    own, control = in_hand(broker, 3)
    records = pack_records([Settled(1, Outcome.ACCEPTED, [(1, 3)])])
    txn_id = own.declare(control)
    if case == "another count":
        answer = discharge(own, control, txn_id, records, [0, 4])
    elif case == "fails":
        answer = discharge(own, control, txn_id, records, [0, 3], fail=True)
    elif case == "unknown":
        answer = discharge(own, control, b"other", records, [0, 3])
    elif case == "no records":
        answer = discharge(own, control, txn_id, b"\xc1", [0, 3])
    else:
        answer = discharge(own, control, txn_id, pack_records([Credited(1, 5)]), [0, 3])

    assert (answer == ACCEPTED_STATE) == (case == "fails")
    own.tell(Settled(1, Outcome.ACCEPTED, [(1, 3)]))
    # What could not be read named nothing that was given back.
    assert depth(broker, "q") == (0 if case in ("no records", "other records") else 3)


def test_what_many_records_settle_goes_ahead_of_the_discharge(broker: Broker) -> None:
    own, control = in_hand(broker, 6)
    txn_id = own.declare(control)
    for first in (1, 3):
        records = pack_records([Settled(1, Outcome.ACCEPTED, [(first, first + 1)])])
        assert settle_ahead(own, control, txn_id, records) == ACCEPTED_STATE
    assert depth(broker, "q") == 6
    assert discharge(own, control, txn_id, pack_records([Settled(1, Outcome.ACCEPTED, [(5, 5)])]), [0, 5]) == (
        ACCEPTED_STATE
    )
    assert depth(broker, "q") == 1


@pytest.mark.parametrize("case", ["unknown", "rolled back", "a bad record behind it"])
def test_what_goes_ahead_of_a_discharge_is_given_back_where_that_is_not_done(broker: Broker, case: str) -> None:
    own, control = in_hand(broker, 3)
    txn_id = own.declare(control)
    records = pack_records([Settled(1, Outcome.ACCEPTED, [(1, 3)])])
    if case == "unknown":
        assert settle_ahead(own, control, b"other", records).code == REJECTED
    else:
        assert settle_ahead(own, control, txn_id, records) == ACCEPTED_STATE
        bad = pack_records([Settled(1, Outcome.ACCEPTED, [(1, 2**62)])])
        is_bad = case == "a bad record behind it"
        answer = discharge(own, control, txn_id, bad if is_bad else b"", [0, 3], fail=not is_bad)
        assert (answer == ACCEPTED_STATE) != is_bad
    other = Own(broker).begin()
    taker = other.consumer(1)
    other.tell(Credited(1, 10))
    assert [(body, count) for _, body, count in other.got(taker)] == [(body, 1) for body in bodies(range(3))]


def settle_ahead(own: Own, control: int, txn_id: bytes, settled: bytes) -> Any:
    body = encode(Described(ADD_DESCRIPTOR, [txn_id]))
    return own.raw(control, b"\x00\x53\x72" + encode({COMMIT_SETTLED: settled}) + b"\x00\x53\x77" + body)


def test_a_transaction_has_a_limit_of_what_it_settles(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(max_transaction_messages=2)
    own, control = in_hand(broker, 3)
    records = pack_records([Settled(1, Outcome.ACCEPTED, [(1, 3)])])

    assert code_of(discharge(own, control, own.declare(control), records, [0, 3]))[1] == "amqp:resource-limit-exceeded"
    assert depth(broker, "q") == 3


# Changes of regions.


def change_ahead(own: Own, control: int, txn_id: bytes, changed: Any) -> Any:
    body = encode(Described(ADD_DESCRIPTOR, [txn_id]))
    return own.raw(control, b"\x00\x53\x72" + encode({COMMIT_CHANGES: changed}) + b"\x00\x53\x77" + body)


def discharge_changes(own: Own, control: int, txn_id: bytes, count: int, *, fail: bool = False) -> Any:
    body = encode(Described(ULong(DISCHARGE_CODE), [txn_id, fail]))
    annotations = encode({COMMIT_SIZE: [0, 0, count]})
    return own.raw(control, b"\x00\x53\x72" + annotations + b"\x00\x53\x77" + body)


def changes(*keys: str, region: str = "quotes", size: int = 10, change: int = 0) -> bytes:
    value = pack(Envelope(topic(region), BodyKind.TEXT, "x" * size))
    (payload,) = pack_changes([RegionChange(region, key, change, value) for key in keys])
    return payload


def test_changes_of_a_transaction_are_made_at_its_discharge(broker: Broker) -> None:
    make(broker, "quotes", "orders")
    own = Own(broker).begin()
    control = own.coordinator()
    txn_id = own.declare(control)
    assert change_ahead(own, control, txn_id, changes("a", "b")) == ACCEPTED_STATE
    assert change_ahead(own, control, txn_id, changes("a", region="orders")) == ACCEPTED_STATE
    assert change_ahead(own, control, txn_id, changes("a", change=2)) == ACCEPTED_STATE
    assert values_of(broker) == {}
    assert discharge_changes(own, control, txn_id, 4) == ACCEPTED_STATE
    assert sorted(values_of(broker)) == [("orders", "a"), ("quotes", "b")]
    assert own.server._budget.transactions == own.server._budget.unanswered == 0


@pytest.mark.parametrize("case", ["fails", "is incomplete", "is unknown", "is left with its link", "has too many"])
def test_changes_of_a_transaction_that_is_not_done_are_not_made(broker: Broker, case: str) -> None:
    make(broker, "quotes")
    own = Own(broker).begin()
    control = own.coordinator()
    txn_id = own.declare(control)
    change_ahead(own, control, b"none" if case == "is unknown" else txn_id, changes("a", "b"))
    if case == "fails":
        assert discharge_changes(own, control, txn_id, 2, fail=True) == ACCEPTED_STATE
    elif case == "is left with its link":
        own.peer.close_link(control)
    else:
        count = 3 if case == "is incomplete" else 1 if case == "has too many" else 2
        assert code_of(discharge_changes(own, control, txn_id, count)) == (REJECTED, "amqp:illegal-state")
    own.rest()
    assert values_of(broker) == {}
    assert own.server._budget.transactions == own.server._budget.unanswered == 0


@pytest.mark.parametrize(
    ("bad", "condition"),
    [
        (b"\xc1", "amqp:decode-error"),
        (changes("a", change=3), "amqp:decode-error"),
        (changes("x" * 401), "amqp:not-found"),
        (changes("a", region="none"), "amqp:not-found"),
        (b"\x92\xa6quotes\x93\xa1k\x00\xc4\x01x", "amqp:decode-error"),
    ],
)
def test_a_change_that_cannot_be_refuses_the_discharge(broker: Broker, bad: bytes, condition: str) -> None:
    make(broker, "quotes")
    own = Own(broker).begin()
    control = own.coordinator()
    txn_id = own.declare(control)
    change_ahead(own, control, txn_id, changes("a"))
    change_ahead(own, control, txn_id, bad)
    change_ahead(own, control, txn_id, changes("b"))
    assert code_of(discharge_changes(own, control, txn_id, 3)) == (REJECTED, condition)
    assert values_of(broker) == {}
    assert own.server._budget.transactions == own.server._budget.unanswered == 0


@pytest.mark.parametrize("limit", [{"max_transaction_messages": 3}, {"max_transaction_bytes": 3000}])
def test_a_transaction_has_a_limit_of_what_it_changes(
    make_broker: Callable[..., Broker], limit: dict[str, int]
) -> None:
    broker = make_broker(**limit)
    make(broker, "quotes")
    own = Own(broker).begin()
    control = own.coordinator()
    for keys, is_done in (("abc", True), ("abcd", False)):
        txn_id = own.declare(control)
        for key in keys:
            change_ahead(own, control, txn_id, changes(key, size=800))
        state = discharge_changes(own, control, txn_id, len(keys))
        assert (state == ACCEPTED_STATE) == is_done
    assert code_of(state) == (REJECTED, "amqp:resource-limit-exceeded")
    assert next(iter(limit)) in str(state.error)
    assert len(values_of(broker)) == 3
    assert own.server._budget.transactions == 0


def test_a_user_who_may_not_change_a_region_commits_nothing(broker: Broker) -> None:
    make(broker, "quotes", "secret")
    asked = []

    def authorize(action: str, destination: Destination | None) -> None:
        asked.append((action, destination))
        if destination == topic("secret"):
            raise JMSSecurityException("not you")

    own = Own(broker, authorize=authorize).begin()
    control = own.coordinator()
    txn_id = own.declare(control)
    change_ahead(own, control, txn_id, changes("a"))
    change_ahead(own, control, txn_id, changes("a", region="secret"))
    assert code_of(discharge_changes(own, control, txn_id, 2)) == (REJECTED, "amqp:unauthorized-access")
    assert values_of(broker) == {}
    assert asked == [("change_keys", topic("quotes")), ("change_keys", topic("secret"))]
