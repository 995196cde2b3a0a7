"""Transactions of the protocol in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from ack_modes import Outcome
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    REJECTED,
    RELEASED_STATE,
    TRANSACTIONAL,
    LinkRemoteClose,
    RemoteClose,
    State,
    Terminus,
)
from broker_adapter.amqp.messages.values import Described, Symbol, ULong, encode
from broker_adapter.amqp.wire import (
    COMMIT_ID,
    COMMIT_SIZE,
    DECLARE_CODE,
    DISCHARGE_CODE,
)
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.errors import IllegalStateException
from broker_adapter.server.links.coordinator import Coordinator, Transaction
from tests.broker_adapter.amqp import frames
from tests.broker_adapter.amqp.frames import transfer
from tests.broker_adapter.engine.driving import WAIT, depth
from tests.broker_adapter.server.protocol_client import (
    Client,
    code_of,
    decoded,
    encoded,
    in_transaction,
    waiting,
)


def test_a_transaction_is_done_at_its_discharge(client: Client, broker: Broker) -> None:
    client.send(client.sender("in", name="in"), "request")
    consumer = client.receiver("in", 1, name="r")
    (delivery,) = client.receive(consumer, 1)
    producer, coordinator = client.sender("out"), client.coordinator()
    txn_id = client.declare(coordinator)
    states = client.send(producer, "a", "b", state=in_transaction(txn_id))
    assert [(state.code, state.txn_id, state.outcome) for state in states] == [
        (TRANSACTIONAL, txn_id, ACCEPTED_STATE)
    ] * 2
    client.settle(consumer, [delivery], in_transaction(txn_id, ACCEPTED_STATE))
    assert (depth(broker, "out"), depth(broker, "in")) == (0, 1)
    assert client.discharge(coordinator, txn_id) == ACCEPTED_STATE
    assert waiting(broker, "out") == ["a", "b"]
    assert depth(broker, "in") == 0
    assert code_of(client.discharge(coordinator, txn_id)) == (REJECTED, "amqp:transaction:unknown-id")


def test_what_a_transaction_keeps_that_is_given_up_is_taken_off_once() -> None:
    coordinator = object.__new__(Coordinator)
    coordinator._budget = Mock(transactions=0)
    coordinator._calls = Mock()
    coordinator._timeout_seconds = 1
    transaction = Transaction(1, ACCEPTED_STATE)
    transaction.settlements = [(1, number, Outcome.MODIFIED) for number in range(10)]
    transaction.annotation_bytes = 40_960
    coordinator._budget.transactions = transaction.kept_bytes
    coordinator.give_up(transaction, IllegalStateException("left alone"))
    coordinator._transactions = {b"1": transaction}
    for now_ms in (10_000, 20_000):
        coordinator.end_idle(now_ms)
    assert (coordinator._budget.transactions, transaction.kept_bytes) == (0, 0)


def test_a_failed_discharge_undoes_everything(client: Client, broker: Broker) -> None:
    client.send(client.sender("in", name="in"), "request")
    consumer = client.receiver("in", 1, name="r")
    producer, coordinator = client.sender("out"), client.coordinator()
    txn_id = client.declare(coordinator)
    client.send(producer, "a", state=in_transaction(txn_id))
    client.settle(consumer, client.receive(consumer, 1), in_transaction(txn_id, ACCEPTED_STATE))
    assert client.discharge(coordinator, txn_id, fail=True) == ACCEPTED_STATE
    assert depth(broker, "out") == 0
    client.peer.credit(consumer, 1)
    again = client.receive(consumer, 2)[1]
    assert (decoded(again.payload).body, decoded(again.payload).delivery_count) == ("request", 1)


def test_settlements_of_a_transaction_keep_their_outcomes(client: Client, broker: Broker) -> None:
    client.send(client.sender("q"), *range(4))
    consumer = client.receiver("q", 4, name="r")
    deliveries = client.receive(consumer, 4)
    coordinator = client.coordinator()
    txn_id = client.declare(coordinator)
    outcomes = (ACCEPTED_STATE, RELEASED_STATE, State(REJECTED), None)
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        client.peer.settle(consumer, [delivery.number], in_transaction(txn_id, outcome))
    assert client.discharge(coordinator, txn_id) == ACCEPTED_STATE
    assert waiting(broker, "q") == [1, 3]
    assert waiting(broker, "DLQ") == [2]


def test_presettled_messages_may_be_part_of_a_transaction(client: Client, broker: Broker) -> None:
    producer, coordinator = client.sender("q", presettled=True), client.coordinator()
    txn_id = client.declare(coordinator)
    client.peer.send(producer, encoded("x"), settled=True, state=in_transaction(txn_id))
    client.rest()
    assert depth(broker, "q") == 0
    assert client.discharge(coordinator, txn_id) == ACCEPTED_STATE
    assert waiting(broker, "q") == ["x"]


def test_messages_of_a_transaction_that_came_together_are_answered_together(
    client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those of others in between by themselves, in order."""
    producer, coordinator = client.sender("q"), client.coordinator()
    one, other = client.declare(coordinator), client.declare(coordinator)
    settle, settled = client.server._peer.settle, list[tuple[int, bytes | None]]()

    def noted(link: int, numbers: Sequence[int], state: State) -> None:
        settled.append((len(numbers), state.txn_id))
        settle(link, numbers, state)

    monkeypatch.setattr(client.server._peer, "settle", noted)
    bad = b"\x00\x53\x70\xc0\x05\x02\x41\x50"
    for payload, txn_id in ((b"", one), (b"", one), (b"", other), (bad, other), (b"", one), (b"", one), (b"", one)):
        client.peer.send(producer, payload, state=in_transaction(txn_id))
    client.pump()
    assert settled == [(2, one), (1, other), (1, None), (3, one)]
    assert client.discharge(coordinator, one) == ACCEPTED_STATE
    assert code_of(client.discharge(coordinator, other)) == (REJECTED, "amqp:decode-error")
    assert depth(broker, "q") == 5


def test_an_unknown_transaction_is_refused_wherever_it_is_named(client: Client, broker: Broker) -> None:
    producer, coordinator = client.sender("q"), client.coordinator()
    unknown = (REJECTED, "amqp:transaction:unknown-id")
    assert [code_of(state) for state in client.send(producer, "x", state=in_transaction(b"none"))] == [unknown]
    assert code_of(client.discharge(coordinator, b"none")) == unknown
    assert code_of(client.control(coordinator, DISCHARGE_CODE)) == unknown
    assert code_of(client.control(coordinator, DISCHARGE_CODE, 5, False)) == unknown
    assert depth(broker, "q") == 0
    client.send(producer, "y")
    consumer = client.receiver("q", 1, name="r")
    client.settle(consumer, client.receive(consumer, 1), in_transaction(b"none", ACCEPTED_STATE))
    client.peer.credit(consumer, 1)
    assert decoded(client.receive(consumer, 2)[1].payload).delivery_count == 1


@pytest.mark.parametrize(
    ("payload", "condition"),
    [
        (b"\x00\x53\x70\xc0\x05\x02\x41\x50", "amqp:decode-error"),
        (encoded("nowhere"), "amqp:not-found"),
        (encoded("x", address="y" * 5000), None),
    ],
    ids=["undecodable", "no destination", "a name too long"],
)
def test_a_refused_message_refuses_its_transaction(
    client: Client, broker: Broker, payload: bytes, condition: str | None
) -> None:
    producer, coordinator = client.sender(Terminus()), client.coordinator()
    txn_id = client.declare(coordinator)
    client.send(producer, "good", address="q", state=in_transaction(txn_id))
    state = client.raw(producer, payload, state=in_transaction(txn_id))
    if condition is not None:
        assert code_of(state) == (REJECTED, condition)
    client.send(producer, "good", address="q", state=in_transaction(txn_id))
    discharged = client.discharge(coordinator, txn_id)
    assert code_of(discharged) == (REJECTED, condition or "amqp:not-found")
    assert depth(broker, "q") == 0


class Doomed:
    """A transaction that has taken a message from the queue ``in`` and sends to ``out``; it is to fail."""

    def __init__(self, client: Client) -> None:
        self.client = client
        client.send(client.sender("in", name="in"), "request")
        self.consumer = client.receiver("in", 1, name="r")
        self.producer, self.coordinator = client.sender("out", name="out"), client.coordinator()
        self.txn_id = client.declare(self.coordinator)
        client.send(self.producer, "before", state=in_transaction(self.txn_id))
        client.settle(self.consumer, client.receive(self.consumer, 1), in_transaction(self.txn_id, ACCEPTED_STATE))

    def fails(self, reason: str) -> None:
        """Its discharge fails with this reason, nothing of it was done, and what it had taken is redelivered."""
        client = self.client
        state = client.discharge(self.coordinator, self.txn_id)
        assert state.code == REJECTED
        assert code_of(state)[1] != "amqp:transaction:rollback", "Qpid JMS takes that for a doubt"
        assert state.error is not None
        assert reason in str(state.error.description)
        assert depth(client.broker, "out") == 0
        client.peer.credit(self.consumer, 1)
        again = client.receive(self.consumer, 2)[1]
        assert (decoded(again.payload).body, decoded(again.payload).delivery_count) == ("request", 1)


def too_large(name: str) -> bytes:
    """A message beyond the limit of these tests, whose first frames are not."""
    return encoded(name * 4000)


@pytest.fixture
def tight(make_broker: Callable[..., Broker]) -> Client:
    """A client of a server that takes messages of 1,000 bytes, in frames of 512."""
    return Client(make_broker(max_message_bytes=1000), max_frame_bytes=512).open()


@pytest.mark.parametrize("presettled", [False, True], ids=["unsettled", "presettled"])
def test_a_message_above_the_limit_fails_its_transaction(tight: Client, presettled: bool) -> None:
    doomed = Doomed(tight)
    tight.peer.send(doomed.producer, too_large("x"), settled=presettled, state=in_transaction(doomed.txn_id))
    tight.rest()
    doomed.fails("larger than the limit")


def test_a_message_behind_one_above_the_limit_fails_its_transaction(tight: Client) -> None:
    doomed = Doomed(tight)
    tight.peer.send(doomed.producer, too_large("x"))
    tight.peer.send(doomed.producer, encoded("behind"), state=in_transaction(doomed.txn_id))
    tight.rest()
    doomed.fails("larger than the limit")


def test_every_message_that_is_dropped_is_rejected_with_a_reason(tight: Client) -> None:
    doomed = Doomed(tight)
    in_it = in_transaction(doomed.txn_id)
    large = tight.peer.send(doomed.producer, too_large("x"), state=in_it)
    behind = [tight.peer.send(doomed.producer, encoded("behind"), state=state) for state in (in_it, None, in_it, None)]
    behind.append(tight.peer.send(doomed.producer, too_large("y")))
    tight.until(lambda: tight.answers(doomed.producer).keys() >= {large, *behind})
    answers = tight.answers(doomed.producer)
    assert code_of(answers[large]) == (REJECTED, "amqp:link:message-size-exceeded")
    assert {code_of(answers[number]) for number in behind} == {(REJECTED, "amqp:link:message-size-exceeded")}
    assert all("message before it" in str(answers[number].error.description) for number in behind)  # type: ignore[union-attr]
    (closed,) = tight.until(lambda: tight.of(LinkRemoteClose, doomed.producer))
    assert closed.error.condition == "amqp:link:message-size-exceeded"
    tight.peer.close_link(doomed.producer)
    doomed.fails("larger than the limit")
    assert tight.send(tight.sender("out", name="again"), "the session goes on") == [ACCEPTED_STATE]


class ByHand:
    """A session whose transfers are frames made by hand, on a link that its client attaches.

    Each delivery has the next number, as in a session of its own.
    """

    def __init__(self, client: Client, target: Terminus | None) -> None:
        self.client = client
        self.session = client.peer.begin_session()
        self.link = client.peer.attach_sender(self.session, "by hand", Terminus(), target)
        self.channel, self.handle, self.number = 1, 0, -1
        client.rest()

    def transfer(self, payload: bytes, *, first: bool = True, **fields: Any) -> None:
        self.number += first
        number, tag = (self.number, b"t") if first else (None, None)
        data = transfer(self.channel, self.handle, number, tag, payload, **fields)
        self.client.server.receive(data, self.client.now_ms)


def test_a_message_without_credit_fails_its_transaction(broker: Broker) -> None:
    client = Client(broker, link_credit_messages=1).open()
    doomed, hand = Doomed(client), ByHand(client, Terminus("q"))
    for body in range(3):
        hand.transfer(encoded(body))
    hand.transfer(encoded("without credit"), txn_id=doomed.txn_id)
    (closed,) = client.until(lambda: client.of(LinkRemoteClose, hand.link))
    assert closed.error.condition == "amqp:link:transfer-limit-exceeded"
    doomed.fails("more messages than credit")


def test_the_first_part_of_a_message_without_credit_ends_the_link(broker: Broker) -> None:
    client = Client(broker, link_credit_messages=1).open()
    hand = ByHand(client, Terminus("q"))
    hand.transfer(encoded("x"))
    hand.transfer(b"part", more=True)
    hand.transfer(b"part", more=True, first=False)
    (closed,) = client.until(lambda: client.of(LinkRemoteClose, hand.link))
    assert closed.error.condition == "amqp:link:transfer-limit-exceeded"


@pytest.mark.parametrize("presettled", [False, True], ids=["unsettled", "presettled"])
@pytest.mark.parametrize("target", [None, Terminus("q" * 5000)], ids=["no target", "a name too long"])
def test_a_message_on_a_refused_link_fails_its_transaction(
    client: Client, target: Terminus | None, presettled: bool
) -> None:
    doomed, hand = Doomed(client), ByHand(client, target)
    hand.transfer(encoded("x"), settled=presettled, txn_id=doomed.txn_id)
    client.rest()
    assert client.refusal(hand.link)
    doomed.fails("")


def test_a_message_that_its_sender_gives_up_is_no_part_of_the_transaction_and_uses_up_no_credit(
    client: Client, broker: Broker
) -> None:
    producer, coordinator = client.sender("q"), client.coordinator()
    hand = ByHand(client, Terminus("q"))
    txn_id = client.declare(coordinator)
    client.send(producer, "a", state=in_transaction(txn_id))
    first_credit = client.peer.remaining_credit(hand.link)
    for _ in range(first_credit):
        hand.transfer(b"part", more=True, txn_id=txn_id)
        hand.transfer(b"", first=False, aborted=True)
        hand.transfer(b"at once", aborted=True)
        client.pump()
    assert client.of(LinkRemoteClose, hand.link) == []
    # The client's own peer, which counts none of these, adds up what the server gives.
    assert client.peer.remaining_credit(hand.link) > 2.5 * first_credit
    assert client.discharge(coordinator, txn_id) == ACCEPTED_STATE
    assert waiting(broker, "q") == ["a"]


def test_a_discharge_ahead_of_the_rest_of_a_message_undoes_the_transaction(client: Client, broker: Broker) -> None:
    client.send(client.sender("in", name="in"), "request")
    consumer = client.receiver("in", 1, name="r")
    (delivery,) = client.receive(consumer, 1)
    producer, coordinator = client.sender("q"), client.coordinator()
    hand = ByHand(client, Terminus("q"))
    txn_id, other = client.declare(coordinator), client.declare(coordinator)
    client.settle(consumer, [delivery], in_transaction(txn_id, ACCEPTED_STATE))
    client.send(producer, "small", state=in_transaction(txn_id))
    client.send(producer, "of another transaction", state=in_transaction(other))
    payload = encoded("in two parts")
    hand.transfer(payload[:10], more=True, txn_id=txn_id)
    client.pump()
    assert client.discharge(coordinator, other) == ACCEPTED_STATE
    state = client.discharge(coordinator, txn_id)
    assert code_of(state) == (REJECTED, "amqp:illegal-state")
    assert "has not come as a whole" in str(state.error.description)  # type: ignore[union-attr]
    hand.transfer(payload[10:], first=False)
    client.rest()
    assert waiting(broker, "q") == ["of another transaction"]
    client.peer.credit(consumer, 1)
    assert decoded(client.receive(consumer, 2)[1].payload).delivery_count == 1


def test_the_end_of_a_coordinator_that_breaks_a_limit_rolls_its_transactions_back(tight: Client) -> None:
    doomed = Doomed(tight)
    number = tight.peer.send(doomed.coordinator, too_large("x"))
    state = tight.until(lambda: tight.answers(doomed.coordinator).get(number))
    assert code_of(state) == (REJECTED, "amqp:link:message-size-exceeded")
    tight.peer.credit(doomed.consumer, 1)
    assert decoded(tight.receive(doomed.consumer, 2)[1].payload).delivery_count == 1
    other = tight.coordinator("other")
    assert code_of(tight.discharge(other, doomed.txn_id)) == (REJECTED, "amqp:transaction:unknown-id")
    assert depth(tight.broker, "out") == 0


@pytest.mark.parametrize("limit", [{"max_transaction_messages": 3}, {"max_transaction_bytes": 300}])
def test_a_transaction_has_a_size(make_broker: Callable[..., Broker], limit: dict[str, int]) -> None:
    broker = make_broker(**limit)
    client = Client(broker).open()
    producer, coordinator = client.sender("q"), client.coordinator()
    txn_id = client.declare(coordinator)
    client.send(producer, *["x" * 60] * 3, state=in_transaction(txn_id))
    assert client.discharge(coordinator, txn_id) == ACCEPTED_STATE
    assert depth(broker, "q") == 3
    txn_id = client.declare(coordinator)
    client.send(producer, *["x" * 60] * 9, state=in_transaction(txn_id))
    state = client.discharge(coordinator, txn_id)
    assert code_of(state) == (REJECTED, "amqp:resource-limit-exceeded")
    assert state.error is not None
    assert "the transaction is larger than" in str(state.error.description)
    assert depth(broker, "q") == 3


def test_settlements_count_for_the_size_of_a_transaction(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(max_transaction_messages=5)
    client = Client(broker).open()
    client.send(client.sender("q"), *["x"] * 6)
    consumer, coordinator = client.receiver("q", 6, name="r"), client.coordinator()
    txn_id = client.declare(coordinator)
    client.settle(consumer, client.receive(consumer, 6), in_transaction(txn_id, ACCEPTED_STATE))
    (found,) = [each for each in broker.call(c.Statistics(), WAIT).queues if each.name == "q"]
    assert found.in_hand == 0, "it is rolled back at once"
    state = client.discharge(coordinator, txn_id)
    assert code_of(state) == (REJECTED, "amqp:resource-limit-exceeded")
    assert state.error is not None
    assert "option max_transaction_messages" in str(state.error.description)


def test_a_rollback_gives_the_engine_few_commands(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.send(client.sender("q"), *["x"] * 300)
    links = [client.receiver("q", 150, name=name) for name in ("one", "two")]
    coordinator = client.coordinator()
    txn_id = client.declare(coordinator)
    for link in links:
        client.settle(link, client.receive(link, 150), in_transaction(txn_id, ACCEPTED_STATE))
    settles: list[c.Settle] = []
    submit_all = client.broker.submit_all

    def submitted(commands: list[c.Command]) -> None:
        settles.extend([each for each in commands if isinstance(each, c.Settle)])
        submit_all(commands)

    monkeypatch.setattr(client.broker, "submit_all", submitted)
    assert client.discharge(coordinator, txn_id, fail=True) == ACCEPTED_STATE
    assert [len(each.numbers) for each in settles] == [150, 150]


def test_a_commit_that_the_engine_refuses_is_rolled_back(client: Client) -> None:
    client.send(client.sender("in", name="in"), "request")
    consumer = client.receiver("in", 1, name="r")
    temporary = client.sender(Terminus(dynamic=True), name="t")
    target = client.opened(temporary).target
    assert target is not None
    producer, coordinator = client.sender(target.address, name="p"), client.coordinator()
    txn_id = client.declare(coordinator)
    client.send(producer, "x", state=in_transaction(txn_id))
    client.settle(consumer, client.receive(consumer, 1), in_transaction(txn_id, ACCEPTED_STATE))
    client.close_link(temporary)
    assert code_of(client.discharge(coordinator, txn_id)) == (REJECTED, "amqp:not-found")
    client.peer.credit(consumer, 1)
    assert decoded(client.receive(consumer, 2)[1].payload).delivery_count == 1


@pytest.mark.parametrize("end", ["link", "session", "connection"])
def test_transactions_end_with_their_coordinator(client: Client, broker: Broker, end: str) -> None:
    client.send(client.sender("in", name="in"), "request")
    consumer = client.receiver("in", 1, name="r")
    session = client.peer.begin_session()
    producer = client.sender("out")
    coordinator = client.sender(Terminus(coordinator=True), session=session, name="c")
    txn_id = client.declare(coordinator)
    client.send(producer, "x", state=in_transaction(txn_id))
    client.settle(consumer, client.receive(consumer, 1), in_transaction(txn_id, ACCEPTED_STATE))
    if end == "link":
        client.close_link(coordinator)
    elif end == "session":
        client.peer.end_session(session)
    else:
        client.server.receive_end()
    client.rest()
    other = Client(broker).open()
    link = other.receiver("in", 1, name="r")
    assert decoded(other.receive(link, 1)[0].payload).delivery_count == 1
    assert depth(broker, "out") == 0
    if end != "connection":
        late = client.send(producer, "late", state=in_transaction(txn_id))
        assert code_of(late[0]) == (REJECTED, "amqp:transaction:unknown-id")


def test_a_discharge_that_is_named_is_carried_out_once(client: Client, broker: Broker) -> None:
    producer, coordinator = client.sender("q"), client.coordinator()
    name = {Symbol("x-opt-holdfast-commit-id"): ["a session", 1]}
    for _ in range(2):
        txn_id = client.declare(coordinator)
        client.send(producer, "x", state=in_transaction(txn_id))
        discharge = encode(Described(ULong(DISCHARGE_CODE), [txn_id, False]))
        payload = b"\x00\x53\x72" + encode(name) + b"\x00\x53\x77" + discharge
        assert client.raw(coordinator, payload) == ACCEPTED_STATE
    assert waiting(broker, "q") == ["x"]


def test_two_transactions_of_one_coordinator_do_not_mix(client: Client, broker: Broker) -> None:
    producer, coordinator = client.sender("q"), client.coordinator()
    first, second = client.declare(coordinator), client.declare(coordinator)
    client.send(producer, "first", state=in_transaction(first))
    client.send(producer, "second", state=in_transaction(second))
    assert client.discharge(coordinator, second) == ACCEPTED_STATE
    assert waiting(broker, "q") == ["second"]
    assert client.discharge(coordinator, first, fail=True) == ACCEPTED_STATE
    assert waiting(broker, "q") == ["second"]


def test_a_connection_has_a_thousand_open_transactions(client: Client) -> None:
    coordinator = client.coordinator()
    for _ in range(1000):
        client.declare(coordinator)
    assert code_of(client.control(coordinator, DECLARE_CODE, None)) == (REJECTED, "amqp:resource-limit-exceeded")


@pytest.mark.parametrize(
    ("payload", "condition"),
    [
        (b"", "amqp:decode-error"),
        (b"\xff\xff", "amqp:decode-error"),
        (encoded("declare"), "amqp:decode-error"),
        (encoded(None), "amqp:decode-error"),
        (b"\x00\x53\x70\x45", "amqp:decode-error"),
        (b"\x00\x53\x77" + encode(Described(ULong(0x99), [])), "amqp:not-implemented"),
    ],
)
def test_a_coordinator_refuses_what_it_does_not_know(client: Client, payload: bytes, condition: str) -> None:
    coordinator = client.coordinator()
    assert code_of(client.raw(coordinator, payload)) == (REJECTED, condition)
    client.declare(coordinator)


def test_a_request_that_a_coordinator_does_not_have_is_named(client: Client) -> None:
    state = client.raw(client.coordinator(), b"\x00\x53\x77" + encode(Described(ULong(0x99), [])))
    assert state.error is not None
    assert state.error.description == "a coordinator has declare and discharge, not 153"


def test_a_coordinator_knows_its_verbs_by_name_too(client: Client, broker: Broker) -> None:
    producer, coordinator = client.sender("q"), client.coordinator()
    state = client.raw(coordinator, b"\x00\x53\x77" + encode(Described(Symbol("amqp:declare:list"), [])))
    assert state.txn_id is not None
    client.send(producer, "x", state=in_transaction(state.txn_id))
    body = Described(Symbol("amqp:discharge:list"), [state.txn_id])
    assert client.raw(coordinator, b"\x00\x53\x77" + encode(body)) == ACCEPTED_STATE
    assert depth(broker, "q") == 1


def test_a_transaction_that_is_left_alone_is_rolled_back_and_its_discharge_told(broker: Broker) -> None:
    client = Client(broker, transaction_timeout_seconds=10, idle_timeout_seconds=0).open()
    client.send(client.sender("in", name="in"), "request")
    consumer = client.receiver("in", 1, name="r")
    producer, coordinator = client.sender("out"), client.coordinator()
    empty, txn_id = client.declare(coordinator), client.declare(coordinator)
    assert (client.server.tick(0) or 9_000) > 1_000
    client.send(producer, "x", state=in_transaction(txn_id))
    assert client.server.tick(5_000) == 6_000
    client.settle(consumer, client.receive(consumer, 1), in_transaction(txn_id, ACCEPTED_STATE))
    client.peer.credit(consumer, 1)
    for now_ms in (14_999, 24_998):  # ten seconds from the last thing that was put into it
        client.server.tick(now_ms)
        client.rest()
        assert len(client.messages(consumer)) == 1
    client.server.tick(24_999)
    assert decoded(client.receive(consumer, 2)[1].payload).delivery_count == 1
    assert code_of(client.send(producer, "y", state=in_transaction(txn_id))[0])[0] == REJECTED
    state = client.discharge(coordinator, txn_id)
    assert code_of(state) == (REJECTED, "amqp:transaction:timeout")
    assert "left alone for 10 s (option transaction_timeout_seconds)" in str(state.error.description)  # type: ignore[union-attr]
    assert depth(broker, "out") == 0
    client.server.tick(1_000_000)
    client.send(producer, "z", state=in_transaction(empty))
    assert client.discharge(coordinator, empty) == ACCEPTED_STATE


@pytest.mark.parametrize("part", [b"", b"ten bytes!"], ids=["nothing of it", "a part of it"])
@pytest.mark.parametrize("ends", ["detach", "detach that closes", "end", "nothing ends"])
def test_a_message_of_which_only_the_start_has_come_fails_its_transaction(
    broker: Broker, ends: str, part: bytes
) -> None:
    client = Client(broker).open()
    doomed, hand = Doomed(client), ByHand(client, Terminus("q"))
    hand.transfer(part, more=True, txn_id=doomed.txn_id)
    client.pump()
    if ends == "end":
        client.peer.end_session(hand.session)
        client.pump()
    elif ends != "nothing ends":
        closed = ends == "detach that closes"
        client.server.receive(frames.detach(hand.channel, hand.handle, closed=closed), client.now_ms)
    doomed.fails("not come as a whole" if ends == "nothing ends" else "only a part of a message had come")


def test_a_message_that_its_sender_gave_up_does_not_fail_its_transaction(broker: Broker) -> None:
    client = Client(broker).open()
    coordinator, hand = client.coordinator(), ByHand(client, Terminus("q"))
    txn_id = client.declare(coordinator)
    hand.transfer(b"ten bytes!", more=True, txn_id=txn_id)
    hand.transfer(b"", first=False, aborted=True)
    client.server.receive(frames.detach(hand.channel, hand.handle, closed=True), client.now_ms)
    assert client.discharge(coordinator, txn_id) == ACCEPTED_STATE


@pytest.mark.parametrize("split", [False, True], ids=["in one read", "in two reads"])
@pytest.mark.parametrize("what", ["message", "acknowledgement"])
def test_a_discharge_behind_what_cannot_be_decoded_commits_nothing(
    client: Client, broker: Broker, what: str, split: bool
) -> None:
    """One bit of the frame is changed, which makes a string of the transaction's id."""
    client.send(client.sender("in", name="in"), "first", "second")
    consumer = client.receiver("in", 2, name="r")
    deliveries = client.receive(consumer, 2)
    producer, coordinator = client.sender("out"), client.coordinator()
    txn_id = client.declare(coordinator)
    data = []
    for number in range(2):
        client.peer.settle(consumer, [deliveries[number].number], in_transaction(txn_id, ACCEPTED_STATE))
        data.append(client.peer.pending_output())
        client.peer.send(producer, encoded(str(number)), state=in_transaction(txn_id))
        data.append(client.peer.pending_output())
    changed = 3 if what == "message" else 2
    assert data[changed].count(b"\xa0\x08" + txn_id) == 1
    data[changed] = data[changed].replace(b"\xa0\x08" + txn_id, b"\xa1\x08" + txn_id)
    client.peer.send(coordinator, b"\x00\x53\x77" + encode(Described(ULong(DISCHARGE_CODE), [txn_id, False])))
    data.append(client.peer.pending_output())
    if split:
        client.server.receive(b"".join(data[:4]), client.now_ms)
        client.server.receive(data[4], client.now_ms)
    else:
        client.server.receive(b"".join(data), client.now_ms)
    closed = client.until(lambda: client.of(RemoteClose))[0]
    assert closed.error.condition == "amqp:decode-error"
    assert waiting(broker, "out") == []
    assert waiting(broker, "in") == ["first", "second"]


@pytest.mark.parametrize("size", [[2, 1, 0], [3, 1, 0], [2, 0, 0], [2, 2, 0], [2, 1, 1], [2, 1], [], "2", None])
def test_a_discharge_that_says_how_much_belongs_to_it_is_done_where_all_of_that_has_come(
    client: Client, broker: Broker, size: Any
) -> None:
    """A message or an acknowledgement whose frame was changed may be that of another transaction."""
    client.send(client.sender("in", name="in"), "request")
    consumer = client.receiver("in", 1, name="r")
    producer, coordinator = client.sender("out"), client.coordinator()
    txn_id = client.declare(coordinator)
    client.send(producer, "a", "b", state=in_transaction(txn_id))
    client.settle(consumer, client.receive(consumer, 1), in_transaction(txn_id, ACCEPTED_STATE))
    annotations = b"" if size is None else b"\x00\x53\x72" + encode({COMMIT_SIZE: size})
    body = b"\x00\x53\x77" + encode(Described(ULong(DISCHARGE_CODE), [txn_id, False]))
    state = client.raw(coordinator, annotations + body)
    if size in ([2, 1, 0], None):
        assert state == ACCEPTED_STATE
        assert (waiting(broker, "out"), depth(broker, "in")) == (["a", "b"], 0)
    else:
        assert code_of(state) == (REJECTED, "amqp:illegal-state")
        missing = "1 of 2 messages that the transaction has taken are not held any more"
        told = missing if size == [2, 2, 0] else "2 messages, 1 acknowledgements and 0 changes of the transaction"
        assert told in str(state.error)
        client.rest()
        assert (depth(broker, "out"), waiting(broker, "in")) == (0, ["request"])


def test_a_discharge_whose_session_has_a_long_name_is_refused(client: Client, broker: Broker) -> None:
    """The server keeps the name as long as the link is attached."""
    producer, coordinator = client.sender("out"), client.coordinator()
    for size, refused in ((400, False), (401, True), (1_000_000, True)):
        txn_id = client.declare(coordinator)
        client.send(producer, "x", state=in_transaction(txn_id))
        annotations = b"\x00\x53\x72" + encode({COMMIT_ID: ["s" * size, 1]})
        body = b"\x00\x53\x77" + encode(Described(ULong(DISCHARGE_CODE), [txn_id, False]))
        state = client.raw(coordinator, annotations + body)
        assert code_of(state) == ((REJECTED, "amqp:illegal-state") if refused else (ACCEPTED_STATE.code, None))
    assert waiting(broker, "out") == ["x"]


def test_a_discharge_is_refused_where_the_transaction_of_an_unfinished_message_cannot_be_decoded(
    client: Client, broker: Broker
) -> None:
    producer, coordinator = client.sender("out"), client.coordinator()
    hand = ByHand(client, Terminus("out"))
    txn_id = client.declare(coordinator)
    client.send(producer, "whole", state=in_transaction(txn_id))
    part = transfer(hand.channel, hand.handle, 0, b"t", b"part", more=True, txn_id=txn_id)
    client.server.receive(part.replace(b"\xa0\x08" + txn_id, b"\xa1\x08" + txn_id), client.now_ms)
    client.peer.send(coordinator, b"\x00\x53\x77" + encode(Described(ULong(DISCHARGE_CODE), [txn_id, False])))
    assert client.until(lambda: client.of(RemoteClose))[0].error.condition == "amqp:decode-error"
    assert waiting(broker, "out") == []
