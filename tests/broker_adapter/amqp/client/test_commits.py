"""A client's transactions against a scripted broker, without sockets."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.conditions import IN_DOUBT, AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    REJECTED,
    TRANSACTIONAL,
    Dispositions,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
    RemoteOpen,
    SessionRemoteClose,
    SessionRemoteOpen,
    State,
    Transfers,
)
from broker_adapter.amqp.management import ManagementAnswer
from broker_adapter.amqp.messages.region_changes import unpack_changes
from broker_adapter.amqp.wire import COMMIT_CHANGES, COMMIT_ID, COMMIT_SIZE
from broker_adapter.errors import (
    ConnectionLostException,
    JMSException,
    ResourceAllocationException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)
from broker_adapter.transport import Delivery, RegionChange
from tests.broker_adapter.amqp.client.conversations import (
    BODY,
    MESSAGE,
    attached,
    delivered,
    foreign,
    held_delivery,
    receiver,
    sender,
)
from tests.broker_adapter.amqp.client.manager import Manager
from tests.broker_adapter.amqp.client.scripted_broker import Result, ScriptedBroker, Wired


@pytest.mark.parametrize("holdfast", [True, False])
def test_a_commit_does_sends_and_settlements_in_one_transaction(holdfast: bool) -> None:
    wired = Wired(ScriptedBroker(holdfast=holdfast)).opened()
    delivery, link = held_delivery(wired), sender(wired)
    settlements = [Settlement(delivery.tag, Outcome.ACCEPTED)]
    wired.ask(wired.client.commit, 1, 7, [(link, BODY)] * 3, settlements)

    transaction = State(TRANSACTIONAL, txn_id=b"%036d" % 1)
    sent = [each for event in wired.broker.of(Transfers) for each in event.deliveries if each.payload == BODY]
    assert [each.state for each in sent] == [transaction] * 3
    assert wired.broker.of(Dispositions)[-1].state == transaction._replace(outcome=ACCEPTED_STATE)
    assert wired.broker.discharges == [(False, {COMMIT_ID: ["prefix:1", 7], COMMIT_SIZE: [3, 1, 0]})]
    assert wired.broker.next_txn == 3  # the next transaction is declared already
    assert wired.sends_done == 0


def test_commits_follow_each_other_also_when_handed_over_together(wired: Wired) -> None:
    link = sender(wired)
    results = [Result() for _ in range(3)]
    for number, result in enumerate(results):
        wired.client.commit(1, number, [(link, BODY)], [], result)
    wired.pump()

    assert [result.value for result in results] == [None] * 3
    assert [annotations[COMMIT_ID][1] for _, annotations in wired.broker.discharges] == [0, 1, 2]


def test_a_commit_larger_than_the_credit_waits_for_more(wired: Wired) -> None:
    wired.broker.credit = 10
    link = sender(wired)
    far = attached(wired).link
    result = Result()
    wired.client.commit(1, 1, [(link, BODY)] * 25, [], result)
    wired.pump()
    assert result.pending
    assert wired.broker.discharges == []
    for _ in range(2):
        wired.broker.peer.credit(far, 10)
        wired.pump()

    assert result.value is None


@pytest.mark.parametrize("holdfast", [True, False])
def test_a_refused_commit_is_rolled_back(holdfast: bool) -> None:
    broker = ScriptedBroker(holdfast=holdfast)
    broker.discharge_outcome = State(REJECTED, error=AmqpError("amqp:transaction:rollback", "a message was refused"))
    wired = Wired(broker).opened()

    with pytest.raises(TransactionRolledBackException, match="a message was refused"):
        wired.ask(wired.client.commit, 1, 1, [(sender(wired), BODY)], [])


def test_a_message_refused_in_a_transaction_rolls_it_back() -> None:
    wired = Wired(ScriptedBroker(holdfast=False)).opened()
    wired.broker.accepts = False
    link = sender(wired)
    result = Result()
    wired.client.commit(1, 1, [(link, BODY)], [], result)
    wired.pump()
    assert result.pending
    wired.broker.settle(*wired.broker.held[0], State(REJECTED, error=AmqpError("amqp:resource-limit-exceeded", "full")))
    wired.pump()

    with pytest.raises(TransactionRolledBackException, match="full") as caught:
        _ = result.value
    assert isinstance(caught.value.__cause__, ResourceAllocationException)
    assert wired.broker.discharges[0][0] is True
    wired.broker.accepts = True
    wired.ask(wired.client.commit, 1, 2, [(link, BODY)], [])


def test_a_commit_with_a_stale_delivery_or_a_closed_link_sends_nothing(wired: Wired) -> None:
    delivery, link = held_delivery(wired), sender(wired)
    stale = [
        ([], [Settlement(delivery.tag._replace(epoch=3), Outcome.ACCEPTED)]),
        ([], [Settlement(delivery.tag._replace(number=99), Outcome.ACCEPTED)]),
        ([(12_345, BODY)], []),
    ]
    for sends, settlements in stale:
        with pytest.raises(TransactionRolledBackException, match="nothing was committed"):
            wired.ask(wired.client.commit, 1, 1, [*sends, (link, BODY)], settlements)
    assert wired.broker.discharges == []


def test_a_commit_whose_discharge_was_on_its_way_is_in_doubt(wired: Wired) -> None:
    link = sender(wired)
    wired.ask(wired.client.commit, 1, 1, [], [])
    result = Result()
    wired.client.commit(1, 2, [(link, BODY)], [], result)
    wired.client.pending_output()
    wired.client.receive_end()

    with pytest.raises(TransactionInDoubtException):
        _ = result.value


def test_a_commit_that_had_not_come_to_its_discharge_was_not_done(wired: Wired) -> None:
    wired.broker.credit = 1
    link = sender(wired)
    result = Result()
    wired.client.commit(1, 2, [(link, BODY)] * 5, [], result)
    wired.pump()
    wired.client.receive_end()

    with pytest.raises(ConnectionLostException):
        _ = result.value


def test_a_link_lost_during_a_commit_rolls_it_back(wired: Wired) -> None:
    wired.broker.credit = 1
    link = sender(wired)
    far = attached(wired).link
    result = Result()
    wired.client.commit(1, 2, [(link, BODY)] * 5, [], result)
    wired.pump()
    wired.broker.peer.close_link(far, AmqpError("amqp:resource-deleted", "gone"))
    wired.pump()
    wired.broker.peer.credit(wired.broker.links["holdfast:coordinator:client-1:2:None"], 10)
    wired.pump()

    with pytest.raises(TransactionRolledBackException, match="gone"):
        _ = result.value


def test_the_others_of_a_commit_are_not_committed_where_a_link_is_lost_with_the_last_message(wired: Wired) -> None:
    """Nothing is committed without what was never sent."""
    ready = sender(wired)
    wired.broker.credit = 0
    starved = sender(wired)
    far = attached(wired).link
    wired.broker.credit = 100
    result = Result()
    wired.client.commit(1, 2, [(ready, BODY), (starved, BODY)], [], result)
    wired.pump()
    assert (result.pending, wired.broker.discharges) == (True, [])
    wired.broker.peer.close_link(far, AmqpError("amqp:resource-deleted", "gone"))
    wired.pump()
    with pytest.raises(TransactionRolledBackException, match="gone"):
        _ = result.value
    assert [fails for fails, _ in wired.broker.discharges] == [True]


@pytest.mark.parametrize("holdfast", [True, False])
def test_a_discharge_is_behind_all_parts_of_large_messages(holdfast: bool) -> None:
    wired = Wired(ScriptedBroker(holdfast=holdfast)).opened()
    links = [sender(wired), sender(wired)]
    seen: list[int] = []
    coordinate = wired.broker._coordinate

    def count(on: int, delivery: Any) -> None:
        messages = [each for each in wired.broker.of(Transfers) if each.link not in wired.broker.coordinators]
        seen.append(sum(len(each.deliveries) for each in messages))
        coordinate(on, delivery)

    wired.broker._coordinate = count  # type: ignore[method-assign]
    large = b"\x00\x53\x75\xb0" + (400_000).to_bytes(4, "big") + bytes(400_000)
    sends = [(links[number % 2], large if number in (1, 2, 5) else BODY) for number in range(6)]
    result = Result()
    wired.client.commit(1, 2, sends, [], result)
    wired.pump()
    assert result.value is None
    assert seen[:2] == [0, 6], "all of them came between the declare and the discharge"


def test_a_large_message_that_is_refused_half_way_rolls_its_transaction_back(wired: Wired) -> None:
    link = sender(wired)
    far = attached(wired).link
    large = b"\x00\x53\x75\xb0" + (4_000_000).to_bytes(4, "big") + bytes(4_000_000)
    result = Result()
    wired.client.commit(1, 2, [(link, BODY), (link, large)], [], result)
    while not wired.broker.peer.unfinished_bytes:
        wired.broker.peer.receive(wired.client.pending_output(10_000))
        wired.broker.handle()
        wired.client.receive(wired.broker.peer.pending_output())
    wired.broker.peer.close_link(far, AmqpError("amqp:resource-limit-exceeded", "too large"))
    wired.client.receive(wired.broker.peer.pending_output())
    wired.pump()
    with pytest.raises(TransactionRolledBackException, match="too large"):
        _ = result.value
    assert [fails for fails, _ in wired.broker.discharges] == [True]


def unanswered_commit(wired: Wired) -> Result:
    """A commit whose discharge the broker does not answer."""
    link, result = sender(wired), Result()
    wired.pump()
    coordinate = wired.broker._coordinate

    def declare_only(on: int, delivery: Any) -> None:
        if not wired.broker.held:
            wired.broker.held.append((on, delivery))
            coordinate(on, delivery)

    wired.broker._coordinate = declare_only  # type: ignore[method-assign]
    wired.client.commit(1, 2, [(link, BODY)], [], result)
    wired.pump()
    assert result.pending
    wired.broker.held.clear()
    wired.broker.accepts = False
    return result


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        ((None, True), None, ""),
        ((None, False), TransactionRolledBackException, "nothing was committed: the session was closed"),
        ((None, None), TransactionInDoubtException, "the broker does not know"),
        ((("JMSException", "not now", None), None), TransactionInDoubtException, "not now"),
    ],
)
def test_what_became_of_a_commit_is_asked_for_once_its_session_has_ended(
    wired: Wired, answer: tuple[Any, Any], error: type[JMSException] | None, reason: str
) -> None:
    result, ended = unanswered_commit(wired), Result()
    wired.client.end_session(1, ended)
    assert result.pending
    wired.pump()
    assert (ended.value, result.pending) == (None, True)
    manager = Manager(wired)
    (request,) = manager.requests()
    assert (request.operation, request.arguments) == (
        "resolve_commit",
        {"session": "prefix:1", "number": 2, "age_ms": 0},
    )
    assert [type(each) for each in wired.broker.log if isinstance(each, SessionRemoteClose | Transfers)][-2:] == [
        SessionRemoteClose,
        Transfers,
    ], "the broker has ended the session when it is asked"
    manager.answer(ManagementAnswer(1, *answer))
    if error is None:
        assert result.value is None
        return
    with pytest.raises(error, match=reason):
        _ = result.value


def test_a_commit_whose_session_ends_is_in_doubt_where_the_broker_cannot_be_asked() -> None:
    wired = Wired(ScriptedBroker(holdfast=False)).opened()
    result = unanswered_commit(wired)
    wired.client.end_session(1, Result())
    wired.pump()
    with pytest.raises(TransactionInDoubtException, match="the session was closed during the commit"):
        _ = result.value


def test_a_commit_whose_session_ends_is_in_doubt_where_the_connection_is_lost(wired: Wired) -> None:
    result, ended = unanswered_commit(wired), Result()
    wired.client.end_session(1, ended)
    wired.client.fail(ConnectionLostException("the network is away"))
    for each, kind in ((result, TransactionInDoubtException), (ended, ConnectionLostException)):
        with pytest.raises(kind, match="the network is away"):
            _ = each.value


def end_coordinator(wired: Wired, what: str) -> None:
    """The broker ends the link to its coordinator, alone or with the session."""
    gone = AmqpError("amqp:internal-error", "it is gone")
    (coordinator,) = [each for each in wired.broker.of(LinkRemoteOpen) if each.link in wired.broker.coordinators]
    if what == "session":
        wired.broker.peer.end_session(coordinator.session, gone)
    else:
        wired.broker.peer.close_link(coordinator.link, gone)


@pytest.mark.parametrize("what", ["session", "link"])
@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        ((None, True), None, ""),
        ((None, False), TransactionRolledBackException, "nothing was committed: the transaction coordinator went away"),
        ((None, None), TransactionInDoubtException, "it is gone.*the broker does not know"),
        ((("JMSException", "not now", None), None), TransactionInDoubtException, "it is gone.*not now"),
    ],
)
def test_what_became_of_a_commit_is_asked_for_where_the_broker_ends_its_coordinator(
    wired: Wired, what: str, answer: tuple[Any, Any], error: type[JMSException] | None, reason: str
) -> None:
    result = unanswered_commit(wired)
    end_coordinator(wired, what)
    wired.pump()
    assert result.pending
    manager = Manager(wired)
    (request,) = manager.requests()
    arguments = {"session": "prefix:1", "number": 2, "age_ms": 0}
    assert (request.operation, request.arguments) == ("resolve_commit", arguments)
    assert [type(each) for each in wired.broker.log if not isinstance(each, LinkFlow | LinkRemoteOpen)][-2:] == [
        SessionRemoteClose if what == "session" else LinkRemoteClose,
        Transfers,
    ], "we have ended it as well when the broker is asked"
    manager.answer(ManagementAnswer(1, *answer))
    if error is None:
        assert result.value is None
        return
    with pytest.raises(error, match=reason):
        _ = result.value


@pytest.mark.parametrize("what", ["session", "link"])
def test_a_commit_whose_coordinator_the_broker_ends_is_in_doubt_where_the_broker_cannot_be_asked(what: str) -> None:
    wired = Wired(ScriptedBroker(holdfast=False)).opened()
    result = unanswered_commit(wired)
    end_coordinator(wired, what)
    wired.pump()
    with pytest.raises(TransactionInDoubtException, match="it is gone"):
        _ = result.value


def test_a_connection_closes_once_it_is_known_what_became_of_a_commit_whose_session_the_broker_ended(
    wired: Wired,
) -> None:
    result, closed = unanswered_commit(wired), Result()
    end_coordinator(wired, "session")
    wired.pump()
    wired.client.close(closed)
    wired.pump()
    assert (result.pending, closed.pending) == (True, True)
    Manager(wired).answer(ManagementAnswer(1, None, True))
    wired.pump()
    assert (result.value, closed.value) == (None, None)


@pytest.mark.parametrize("holdfast", [True, False])
@pytest.mark.parametrize("what", ["session", "link"])
def test_a_commit_whose_discharge_waits_for_credit_is_rolled_back_where_its_coordinator_goes(
    what: str, holdfast: bool
) -> None:
    wired = Wired(ScriptedBroker(holdfast=holdfast)).opened()
    link, result = sender(wired), Result()
    wired.broker.credit = 1  # for the declare
    wired.client.commit(1, 2, [(link, BODY)], [], result)
    wired.pump()
    assert (result.pending, wired.broker.discharges) == (True, [])
    end_coordinator(wired, what)
    wired.pump()
    with pytest.raises(TransactionRolledBackException, match="it is gone"):
        _ = result.value
    assert wired.broker.held == [], "it is not asked what became of it"


def test_a_commit_whose_discharge_waits_for_credit_is_not_done_where_it_is_withdrawn(wired: Wired) -> None:
    link, result = sender(wired), Result(waits=False)
    wired.broker.credit = 1  # for the declare
    wired.client.commit(1, 2, [(link, BODY)], [], result)
    wired.pump()
    assert wired.ask(wired.client.withdraw, 1, 2) is False
    (coordinator,) = wired.broker.coordinators
    wired.broker.peer.credit(coordinator, 10)
    wired.pump()
    assert [fails for fails, _ in wired.broker.discharges] == [True]
    with pytest.raises(TransactionRolledBackException, match="not ready in time"):
        _ = result.value


@pytest.mark.parametrize("outcome", [ACCEPTED_STATE, State(REJECTED, error=AmqpError("amqp:illegal-state", "stale"))])
def test_a_commit_under_way_is_answered_though_no_further_transaction_can_be_declared(
    wired: Wired, outcome: State
) -> None:
    link, results = sender(wired), [Result(), Result()]
    coordinate, seen = wired.broker._coordinate, []

    def refuse_the_second(on: int, delivery: Any) -> None:
        seen.append((on, delivery))
        if len(seen) == 1:
            coordinate(on, delivery)
        elif len(seen) == 3:
            too_many = State(REJECTED, error=AmqpError("amqp:resource-limit-exceeded", "too many transactions"))
            wired.broker.peer.settle(on, [delivery.number], too_many)

    wired.broker._coordinate = refuse_the_second  # type: ignore[method-assign]
    for number, result in enumerate(results, 1):
        wired.client.commit(1, number, [(link, BODY)], [], result)
    wired.pump()
    assert ([each.pending for each in results], len(seen)) == ([True, True], 3)
    discharge = seen[1]
    wired.broker.peer.settle(discharge[0], [discharge[1].number], outcome)
    wired.pump()
    if outcome == ACCEPTED_STATE:
        assert results[0].value is None
    else:
        with pytest.raises(TransactionRolledBackException, match="stale"):
            _ = results[0].value
    with pytest.raises(TransactionRolledBackException, match="too many transactions"):
        _ = results[1].value
    wired.broker._coordinate = coordinate  # type: ignore[method-assign]
    assert wired.ask(wired.client.commit, 1, 3, [(link, BODY)], []) is None


def test_a_broker_that_commits_without_a_message_that_it_refused_leaves_a_doubt() -> None:
    wired = Wired(ScriptedBroker(holdfast=True)).opened()
    wired.broker.accepts = False
    coordinate = wired.broker._coordinate

    def refuse_and_commit(on: int, delivery: Any) -> None:
        while wired.broker.held:
            full = State(REJECTED, error=AmqpError("amqp:resource-limit-exceeded", "full"))
            wired.broker.settle(*wired.broker.held.pop(), full)
        coordinate(on, delivery)

    wired.broker._coordinate = refuse_and_commit  # type: ignore[method-assign]
    with pytest.raises(TransactionInDoubtException, match=r"full.*; and it committed the others"):
        wired.ask(wired.client.commit, 1, 1, [(sender(wired), BODY)] * 2, [])


def test_a_commit_whose_discharge_was_sent_is_in_doubt_though_its_producers_link_goes_too() -> None:
    """That the link's messages have no answer does not say that they are no part of the transaction."""
    wired = Wired(ScriptedBroker(holdfast=True)).opened()
    link = sender(wired)
    far = attached(wired).link
    coordinate, seen = wired.broker._coordinate, []

    def coordinate_and_close(on: int, delivery: Any) -> None:
        seen.append(delivery)
        if len(seen) == 1:
            coordinate(on, delivery)
        else:  # of the discharge nothing is heard
            wired.broker.peer.close_link(far, AmqpError("amqp:resource-deleted", "the queue was deleted"))

    wired.broker.accepts = False
    wired.broker._coordinate = coordinate_and_close  # type: ignore[method-assign]
    result = Result()
    wired.client.commit(1, 2, [(link, BODY)], [], result)
    wired.pump()
    assert len(seen) >= 2
    wired.client.receive_end()
    with pytest.raises(TransactionInDoubtException):
        _ = result.value


def test_what_a_store_that_failed_says_of_a_commit_is_a_doubt() -> None:
    broker = ScriptedBroker(holdfast=True)
    broker.discharge_outcome = State(REJECTED, error=AmqpError(IN_DOUBT, "the store failed"))
    wired = Wired(broker).opened()
    with pytest.raises(TransactionInDoubtException, match="the store failed"):
        wired.ask(wired.client.commit, 1, 1, [(sender(wired), BODY)], [])


@pytest.mark.parametrize("sends", [1, 5])
def test_a_session_that_ends_as_its_transaction_is_declared_ends_nothing_else(wired: Wired, sends: int) -> None:
    """Both come in one read: the link is gone before the client has heard of it."""
    link = sender(wired)
    far = attached(wired).session
    wired.pump()
    result = Result()
    wired.client.commit(1, 2, [(link, BODY)] * sends, [], result)
    declare = wired.broker._coordinate

    def declare_and_end(on: int, delivery: Any) -> None:
        declare(on, delivery)
        wired.broker.peer.end_session(far, AmqpError("amqp:internal-error", "the session is gone"))

    wired.broker._coordinate = declare_and_end  # type: ignore[method-assign]
    wired.pump()
    wired.broker._coordinate = declare  # type: ignore[method-assign]
    with pytest.raises(TransactionRolledBackException, match="the session is gone"):
        _ = result.value
    other = sender(wired, session=7)
    sent: list[JMSException | None] = []
    wired.client.send_all([(other, BODY, sent.append)])
    wired.pump()
    assert sent == [None]


def test_a_coordinator_closed_by_the_broker_rolls_back_and_is_attached_again(wired: Wired) -> None:
    wired.broker.credit = 1
    link = sender(wired)
    wired.broker.credit = 100
    result = Result()
    wired.client.commit(1, 2, [(link, BODY)] * 5, [], result)
    wired.pump()
    (coordinator,) = wired.broker.coordinators
    wired.broker.peer.close_link(coordinator, AmqpError("amqp:transaction:timeout", "too slow"))
    wired.pump()
    with pytest.raises(TransactionRolledBackException, match=r"went away: too slow \[amqp:transaction:timeout\]$"):
        _ = result.value

    other = sender(wired)
    wired.ask(wired.client.commit, 1, 3, [(other, BODY)], [])
    assert len(wired.broker.coordinators) == 2


def test_a_broker_without_transactions_says_so() -> None:
    broker = ScriptedBroker(holdfast=False)
    broker.refusals[None] = AmqpError("amqp:not-implemented", "no transactions here")
    wired = Wired(broker).opened()

    with pytest.raises(TransactionRolledBackException, match="no transactions here"):
        wired.ask(wired.client.commit, 1, 1, [], [])


def test_a_commit_that_is_withdrawn_before_its_discharge_is_never_done(wired: Wired) -> None:
    wired.broker.credit = 2
    link = sender(wired)
    far = attached(wired).link
    wired.broker.credit = 100  # of the coordinator
    first, second = Result(waits=False), Result(waits=False)
    wired.client.commit(1, 1, [(link, BODY)] * 5, [], first)
    wired.client.commit(1, 2, [(link, BODY)], [], second)
    wired.pump()
    assert first.pending
    assert wired.ask(wired.client.withdraw, 1, 2) is False, "it was not begun"
    assert wired.ask(wired.client.withdraw, 1, 1) is False, "a part of it was sent"
    wired.broker.peer.credit(far, 10)
    wired.pump()
    assert [(fails, annotations[COMMIT_ID][1]) for fails, annotations in wired.broker.discharges] == [(True, 1)]
    with pytest.raises(TransactionRolledBackException):
        _ = first.value
    assert wired.ask(wired.client.commit, 1, 3, [(link, BODY)], []) is None


def test_a_commit_that_was_discharged_cannot_be_withdrawn(wired: Wired) -> None:
    link = sender(wired)
    result = Result(waits=False)
    wired.client.commit(1, 1, [(link, BODY)], [], result)
    assert wired.ask(wired.client.withdraw, 2, 1) is None, "of another session"
    wired.pump()
    assert wired.ask(wired.client.withdraw, 1, 1) is True
    discharge = wired.broker.peer.settle
    wired.broker.peer.settle = lambda *_arguments: None  # type: ignore[method-assign]
    late = Result(waits=False)
    wired.client.commit(1, 2, [(link, BODY)], [], late)
    wired.pump()
    assert late.pending
    assert wired.ask(wired.client.withdraw, 1, 2) is None
    wired.broker.peer.settle = discharge  # type: ignore[method-assign]


def test_a_repeated_commit_is_answered_without_the_broker(wired: Wired) -> None:
    link = sender(wired)
    wired.ask(lambda done: wired.client.commit(1, 7, [(link, BODY)], [], done))
    discharges = len(wired.broker.discharges)
    for number in (7, 6):
        wired.ask(lambda done, number=number: wired.client.commit(1, number, [(link, BODY)], [], done))
    assert len(wired.broker.discharges) == discharges
    wired.ask(lambda done: wired.client.commit(2, 7, [(link, BODY)], [], done))

    assert len(wired.broker.discharges) == discharges + 1


def test_changes_of_regions_go_ahead_of_the_discharge_in_their_order(wired: Wired) -> None:
    changes = [RegionChange(region, "k", number % 3, b"x" * 600_000) for number, region in enumerate("rrrs")]
    wired.ask(partial(wired.client.commit, changes=changes), 1, 7, [(sender(wired), BODY)], [])
    assert {txn_id for txn_id, _ in wired.broker.added} == {b"%036d" % 1}
    payloads = [annotations[COMMIT_CHANGES] for _, annotations in wired.broker.added]
    assert [RegionChange(region, *row) for region, rows in map(unpack_changes, payloads) for row in rows] == changes
    assert len(payloads) == 4
    assert wired.broker.discharges == [(False, {COMMIT_ID: ["prefix:1", 7], COMMIT_SIZE: [1, 0, 4]})]
    assert wired.ask(partial(wired.client.commit, changes=changes[:1]), 1, 8, [], []) is None
    assert len(wired.broker.added) == 5


def test_a_change_that_is_larger_than_the_server_takes_is_named_and_rolls_the_commit_back() -> None:
    broker = ScriptedBroker(holdfast=True)
    broker.max_message_bytes = 1_000
    wired = Wired(broker).opened()
    wired.client.request("anything", {}, Result(waits=False))  # so that the server has said how much it takes
    wired.pump()
    changes = [RegionChange("quotes", "small", 0, b"x"), RegionChange("quotes", "large", 0, b"x" * 1_000)]
    with pytest.raises(TransactionRolledBackException, match=r"key 'large' of region 'quotes'.*max_message_bytes"):
        wired.ask(partial(wired.client.commit, changes=changes), 1, 1, [(sender(wired), BODY)], [])
    assert wired.broker.added == []
    assert [failed for failed, _ in wired.broker.discharges] == [True]
    many = [RegionChange("quotes", f"k{number}", 0, b"x" * 300) for number in range(10)]
    assert wired.ask(partial(wired.client.commit, changes=many), 1, 2, [], []) is None
    assert len(wired.broker.added) == 5


def test_a_commit_that_was_rolled_back_may_be_done_again(wired: Wired) -> None:
    link = sender(wired)
    wired.broker.discharge_outcome = State(REJECTED, error=AmqpError("amqp:transaction:rollback", "no"))
    with pytest.raises(TransactionRolledBackException):
        wired.ask(lambda done: wired.client.commit(1, 1, [(link, BODY)], [], done))
    wired.broker.discharge_outcome = ACCEPTED_STATE
    wired.ask(lambda done: wired.client.commit(1, 1, [(link, BODY)], [], done))

    assert len(wired.broker.discharges) == 2


def test_a_transaction_is_a_declare_then_all_of_it_then_a_discharge() -> None:
    wired = foreign()
    wired.broker.expect(RemoteOpen, SessionRemoteOpen)
    link = sender(wired)
    inbox: list[Delivery] = []
    consumer = receiver(wired, inbox.extend)
    wired.broker.expect(SessionRemoteOpen, LinkRemoteOpen, LinkRemoteOpen)
    (settlement,) = delivered(wired, consumer, inbox, 1)
    wired.ask(wired.client.commit, 1, 1, [(link, MESSAGE)], [settlement])
    wired.broker.expect(
        (LinkRemoteOpen, lambda event: event.target.coordinator),
        Transfers,  # the declare
        (Dispositions, lambda event: event.state.code == TRANSACTIONAL),
        (Transfers, lambda event: event.deliveries[0].state.code == TRANSACTIONAL),
        Transfers,  # the discharge, and the declare of the next one
    )
