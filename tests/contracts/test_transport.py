"""The transport port, line by line: one suite, unchanged over every transport."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from ack_modes import Failure, Outcome, Settlement
from broker_adapter.destination import Destination, DestinationKind, queue, topic
from broker_adapter.envelope import BodyKind, Envelope, Identity, pack
from broker_adapter.errors import (
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
    ResourceAllocationException,
    TransactionRolledBackException,
)
from broker_adapter.transport import Subscription
from tests.contracts.conftest import MakeEngine
from tests.contracts.transports import WAIT, Client, Engine, eventually, message


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# The connection.


def test_the_peer_says_what_it_is(client: Client) -> None:
    peer = client.peer
    assert (peer.product, peer.is_holdfast) == ("Holdfast", True)
    assert peer.client_id


def test_closing_twice_is_legal_and_later_calls_raise(client: Client) -> None:
    link = client.sender(queue("q"))
    client.close()
    client.close()
    with pytest.raises(IllegalStateException, match="closed"):
        client.transport.send(link, message(queue("q")), None, WAIT)
    with pytest.raises(IllegalStateException, match="closed"):
        client.sender(queue("q"))


def test_a_transport_opens_once(client: Client) -> None:
    with pytest.raises(IllegalStateException):
        Client(client.transport)


def test_calls_before_opening_raise(engine: Engine) -> None:
    with pytest.raises(IllegalStateException, match="not open yet"):
        engine.transport().credit(1, 1)


def test_a_client_id_is_for_one_connection_at_a_time(engine: Engine) -> None:
    first = engine.open("me")
    with pytest.raises(InvalidClientIDException, match="'me' is in use"):
        engine.open("me")
    first.close()
    assert engine.open("me").peer.client_id == "me"


# Sending.


def test_a_sent_message_arrives_as_it_was(engine: Engine, client: Client) -> None:
    sent = Envelope(
        queue("q"),
        BodyKind.MAP,
        {"a": [1, None, b"\x00", 2.5]},
        {"p": 1, "q": "x", "r": True},
        message_id="ID:1",
        correlation_id="c",
        reply_to=topic("answers"),
        type="t",
        sent_at_ms=_now_ms(),
        expires_at_ms=_now_ms() + 60_000,
        priority=7,
        group_id="g",
        group_sequence=3,
        identity=Identity("p", 1, 1),
    )
    client.transport.send(client.sender(queue("q")), sent, None, WAIT)
    (delivery,) = client.drained("q")
    assert delivery.envelope == sent
    assert (delivery.delivery_count, delivery.position) == (0, None if engine.is_standard else 1)


def test_asynchronous_sends_are_answered_in_order(client: Client) -> None:
    link = client.sender(queue("q"))
    answers: list[tuple[int, JMSException | None]] = []
    finished = threading.Event()

    def answered(number: int, error: JMSException | None) -> None:
        answers.append((number, error))
        if number == 499:
            finished.set()

    for number in range(500):
        client.transport.send(
            link, message(queue("q"), str(number)), lambda error, number=number: answered(number, error), WAIT
        )
    assert finished.wait(WAIT)
    assert answers == [(number, None) for number in range(500)]
    assert client.bodies("q") == [str(number) for number in range(500)]


def test_an_anonymous_sender_sends_where_each_message_says(client: Client) -> None:
    link = client.sender(None)
    for name in ("a", "b", "a"):
        client.transport.send(link, message(queue(name)), None, WAIT)
    assert (len(client.bodies("a")), len(client.bodies("b"))) == (2, 1)


def test_a_message_larger_than_the_limit_is_refused_and_the_next_is_taken(make_engine: MakeEngine) -> None:
    client = make_engine("max_message_bytes=2000").open()
    link = client.sender(queue("q"))
    with pytest.raises(MessageFormatException, match=r"larger than the .*limit of 2000 bytes"):
        client.transport.send(link, message(queue("q"), "x" * 3000), None, WAIT)
    client.transport.send(link, message(queue("q"), "small"), None, WAIT)
    assert client.bodies("q") == ["small"]


def test_what_cannot_be_encoded_is_refused(client: Client) -> None:
    with pytest.raises(MessageFormatException):
        client.transport.send(client.sender(queue("q")), message(queue("q"), object()), None, WAIT)


def test_a_full_queue_holds_the_sender_back_until_there_is_room(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=5").open()
    link = client.sender(queue("q"))
    answers: list[Any] = []
    for number in range(7):
        client.transport.send(link, message(queue("q"), str(number)), answers.append, WAIT)
    receiver = client.receiver(queue("q"), 2)
    client.settle(receiver.wait_for(2))
    eventually(lambda: len(answers) == 7)
    assert answers == [None] * 7


def test_a_sender_held_back_too_long_gets_an_error(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=1&blocked_send_timeout_seconds=0.2").open()
    client.send("q", "a")
    with pytest.raises(ResourceAllocationException, match="max_queue_messages"):
        client.send("q", "b")


def test_a_send_keeps_its_deadline_and_the_connection_goes_on(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=1").open()
    client.send("q", "a")
    link = client.sender(queue("q"))
    with pytest.raises(OperationTimedOutException):
        client.transport.send(link, message(queue("q"), "b"), None, 0.2)
    client.send("other", "c")


def test_a_send_without_an_answer_says_that_it_may_have_been_sent_and_which_option_bounds_it(
    make_engine: MakeEngine,
) -> None:
    client = make_engine("max_queue_messages=1", "send_timeout_seconds=0.2").open()
    client.send("q", "a")
    link = client.sender(queue("q"))
    rest = "; the message may have been sent, and sending it again may make a second one"
    for timeout, option in ((0.1, r"0\.1 s"), (None, r"0\.2 s \(option send_timeout_seconds\)")):
        with pytest.raises(OperationTimedOutException, match=f"^the send had no answer within {option}{rest}$"):
            client.transport.send(link, message(queue("q"), "b"), None, timeout)


def test_a_repeated_identity_is_not_a_second_message(client: Client) -> None:
    for sequence in (1, 2, 2, 1, 3):
        client.send("q", str(sequence), identity=Identity("p", 1, sequence))
    assert client.bodies("q") == ["1", "2", "3"]


def test_a_send_on_a_detached_link_raises(client: Client) -> None:
    link = client.sender(queue("q"))
    client.transport.detach(link, WAIT)
    with pytest.raises((InvalidDestinationException, IllegalStateException)):
        client.transport.send(link, message(queue("q")), None, WAIT)
    client.transport.detach(link, WAIT)  # unknown numbers are ignored


# Receiving.


def test_credit_is_kept_exactly(client: Client) -> None:
    client.send("q", *[str(number) for number in range(10)])
    receiver = client.receiver(queue("q"))
    client.transport.drain(receiver.link, WAIT)
    assert receiver.deliveries == []
    client.transport.credit(receiver.link, 3)
    receiver.wait_for(3)
    client.transport.credit(receiver.link, 2)
    receiver.wait_for(5)
    client.transport.drain(receiver.link, WAIT)
    assert receiver.bodies() == ["0", "1", "2", "3", "4"]


def test_a_drain_returns_when_nothing_more_comes_and_drops_the_rest_of_the_credit(client: Client) -> None:
    client.send("q", "a", "b")
    receiver = client.receiver(queue("q"), 10)
    client.transport.drain(receiver.link, WAIT)
    assert receiver.bodies() == ["a", "b"]
    client.send("q", "c")
    client.transport.drain(receiver.link, WAIT)
    assert receiver.bodies() == ["a", "b"]
    client.transport.credit(receiver.link, 1)
    receiver.wait_for(3)


def test_a_drain_of_a_large_backlog_brings_all_of_it(client: Client) -> None:
    link = client.sender(queue("q"))
    finished = threading.Event()
    for number in range(5000):
        last = number == 4999
        client.transport.send(
            link, message(queue("q"), str(number)), lambda _error, last=last: finished.set() if last else None, WAIT
        )
    assert finished.wait(WAIT)
    receiver = client.receiver(queue("q"), 5001)
    client.transport.drain(receiver.link, WAIT)
    assert receiver.bodies() == [str(number) for number in range(5000)]


def test_two_consumers_share_a_queue(client: Client) -> None:
    first, second = client.receiver(queue("q"), 10), client.receiver(queue("q"), 10)
    client.send("q", *[str(number) for number in range(10)])
    eventually(lambda: len(first.deliveries) + len(second.deliveries) == 10)
    assert sorted(first.bodies() + second.bodies()) == [str(number) for number in range(10)]
    assert 0 < len(first.deliveries) < 10


def test_an_exclusive_consumer_gets_everything_until_it_goes(client: Client) -> None:
    plain = client.receiver(queue("q"), 10)
    first, second = (client.receiver(queue("q"), 10, exclusive=True) for _ in range(2))
    client.send("q", "a", "b")
    client.settle(first.wait_for(2))
    client.transport.detach(first.link, WAIT)
    client.send("q", "c")
    assert [each.envelope.body for each in second.wait_for(1)] == ["c"]
    assert plain.deliveries == []


def test_a_message_group_stays_with_one_consumer(client: Client) -> None:
    receivers = [client.receiver(queue("q"), 10) for _ in range(2)]
    for number, group in enumerate("abbaab"):  # in turn they would get "aba" and "bab"
        client.send("q", group, group_id=group, group_sequence=number)
    deliveries = [receiver.wait_for(3) for receiver in receivers]
    found = {"".join(each.envelope.body for each in received) for received in deliveries}
    assert found == {"aaa", "bbb"}
    sequences = {tuple(each.envelope.group_sequence for each in received) for received in deliveries}
    assert sequences == {(0, 3, 4), (1, 2, 5)}


def test_priorities_go_first(client: Client) -> None:
    for priority in (1, 9, 4):
        client.send("q", str(priority), priority=priority)
    assert [delivery.envelope.body for delivery in client.drained("q")] == ["9", "4", "1"]


def test_expired_messages_do_not_come_and_delayed_ones_come_later(client: Client) -> None:
    client.send("q", "expired", expires_at_ms=_now_ms() + 100)
    due_ms = _now_ms() + 300
    client.send("q", "late", deliver_at_ms=due_ms)
    time.sleep(0.15)
    receiver = client.receiver(queue("q"), 10)
    (delivery,) = receiver.wait_for(1)
    assert delivery.envelope.body == "late"
    assert _now_ms() >= due_ms


def test_a_browser_takes_nothing(client: Client) -> None:
    client.send("q", *[str(number) for number in range(30)])
    browser = client.receiver(queue("q"), 10, browse=True)
    client.transport.drain(browser.link, WAIT)
    assert browser.bodies() == [str(number) for number in range(10)]
    client.transport.credit(browser.link, 100)
    client.transport.drain(browser.link, WAIT)
    assert browser.bodies() == [str(number) for number in range(30)]
    client.transport.detach(browser.link, WAIT)
    assert len(client.drained("q")) == 30


def test_a_presettled_consumer_takes_as_it_receives(client: Client) -> None:
    client.send("q", "a", "b")
    receiver = client.receiver(queue("q"), 10, presettled=True)
    receiver.wait_for(2)
    assert client.bodies("q") == []


# How deliveries end.


def test_accepted_messages_are_gone(client: Client) -> None:
    client.send("q", "a", "b")
    client.settle(client.drained("q"))
    eventually(lambda: client.transport.request("statistics", {}, WAIT)["settled"] == 2)
    assert client.bodies("q") == []


def test_released_messages_are_redelivered_in_their_place_without_a_raised_count(client: Client) -> None:
    client.send("q", "a", "b", "c", "d")
    receiver = client.receiver(queue("q"), 3)
    first, second, third = receiver.wait_for(3)
    client.settle([third, first, second], Outcome.RELEASED)
    client.transport.credit(receiver.link, 4)
    again = receiver.wait_for(7)[3:]
    assert [each.envelope.body for each in again] == ["a", "b", "c", "d"]
    assert [each.delivery_count for each in again] == [0, 0, 0, 0]


def test_modified_messages_are_redelivered_with_a_raised_count(client: Client) -> None:
    client.send("q", "a")
    receiver = client.receiver(queue("q"), 1)
    client.settle(receiver.wait_for(1), Outcome.MODIFIED)
    client.transport.credit(receiver.link, 1)
    again = receiver.wait_for(2)[1]
    assert (again.delivery_count, again.position) == (1, receiver.deliveries[0].position)


def test_rejected_messages_are_dead_letters_with_the_reason(client: Client) -> None:
    client.send("q", "a")
    client.settle(client.drained("q"), Outcome.REJECTED)
    receiver = client.receiver(queue("DLQ"), 1)
    (dead,) = receiver.wait_for(1)
    assert dead.envelope.body == "a"
    assert dead.envelope.properties is not None
    assert "rejected" in dead.envelope.properties["JMS_HOLDFAST_DEAD_LETTER_REASON"]
    assert dead.envelope.properties["JMS_HOLDFAST_DEAD_LETTER_QUEUE"] == "q"


def test_a_message_that_fails_too_often_is_a_dead_letter(make_engine: MakeEngine) -> None:
    client = make_engine("max_deliveries=3").open()
    client.send("q", "a")
    receiver = client.receiver(queue("q"), 10)
    for count in range(1, 4):
        client.settle([receiver.wait_for(count)[-1]], Outcome.MODIFIED)
    (dead,) = client.receiver(queue("DLQ"), 1).wait_for(1)
    assert dead.envelope.properties is not None
    assert dead.envelope.properties["JMS_HOLDFAST_DEAD_LETTER_COUNT"] == 3


def test_what_a_listener_has_raised_is_among_the_properties_of_the_dead_letter(make_engine: MakeEngine) -> None:
    client = make_engine("max_deliveries=2").open()
    client.send("q", "a")
    receiver = client.receiver(queue("q"), 10)
    for count, text in ((1, "first"), (2, "second")):
        delivery = receiver.wait_for(count)[-1]
        assert not any("EXCEPTION" in name.upper() for name in delivery.envelope.properties or {})
        client.settle([delivery], Failure(f"ValueError: {text}"))
    (dead,) = client.receiver(queue("DLQ"), 1).wait_for(1)
    assert dead.envelope.properties is not None
    assert dead.envelope.properties["JMS_HOLDFAST_DEAD_LETTER_EXCEPTION"] == "ValueError: second"
    assert not any(name.startswith("JMS_AMQP_MA_") for name in dead.envelope.properties)


def test_why_a_message_is_rejected_and_when_it_comes_again_reach_the_engine(client: Client) -> None:
    client.send("q", "a", "b")
    receiver = client.receiver(queue("q"), 10)
    first, second = receiver.wait_for(2)
    client.settle([first], Failure("no such customer", Outcome.REJECTED))
    client.settle([second], Failure("", Outcome.FAILED, 200))
    (dead,) = client.receiver(queue("DLQ"), 1).wait_for(1)
    assert dead.envelope.properties is not None
    assert dead.envelope.properties["JMS_HOLDFAST_DEAD_LETTER_REASON"] == "rejected by a consumer: no such customer"
    assert "JMS_HOLDFAST_DEAD_LETTER_EXCEPTION" not in dead.envelope.properties
    again = receiver.wait_for(3)[-1]
    assert (again.envelope.body, again.delivery_count) == ("b", 1)


def test_what_a_closed_connection_held_is_redelivered_with_a_raised_count(engine: Engine) -> None:
    first, second = engine.open(), engine.open()
    first.send("q", "a")
    assert len(first.drained("q")) == 1
    first.close()
    (again,) = second.receiver(queue("q"), 1).wait_for(1)
    assert again.delivery_count == 1


def test_what_a_detached_consumer_holds_may_still_be_settled(client: Client) -> None:
    client.send("q", "a", "b")
    receiver = client.receiver(queue("q"), 2)
    held = receiver.wait_for(2)
    client.transport.detach(receiver.link, WAIT)
    client.settle(held[:1])
    client.settle(held[1:], Outcome.RELEASED)
    (again,) = client.receiver(queue("q"), 1).wait_for(1)
    assert (again.envelope.body, again.delivery_count) == ("b", 0)


def test_ending_a_session_gives_back_what_its_consumers_hold(client: Client) -> None:
    client.send("q", "a")
    client.receiver(queue("q"), 1, session=2).wait_for(1)
    client.transport.end_session(2, WAIT)
    client.transport.end_session(99, WAIT)  # unknown numbers are ignored
    (again,) = client.receiver(queue("q"), 1).wait_for(1)
    assert again.delivery_count == 1


def test_settlements_of_another_epoch_are_ignored(client: Client) -> None:
    client.send("q", "a")
    (held,) = client.drained("q")
    client.transport.settle([Settlement(held.tag._replace(epoch=held.tag.epoch + 1), Outcome.ACCEPTED)])
    client.settle([held], Outcome.RELEASED)
    assert len(client.receiver(queue("q"), 1).wait_for(1)) == 1


# Topics and subscriptions.


def test_a_topic_goes_to_all_subscribers(client: Client) -> None:
    first, second = client.receiver(topic("t"), 10), client.receiver(topic("t"), 10)
    client.send(topic("t"), "news")
    assert [each.wait_for(1)[0].envelope.body for each in (first, second)] == ["news", "news"]


def test_a_topic_without_subscribers_forgets(client: Client) -> None:
    client.send(topic("t"), "without a consumer")
    receiver = client.receiver(topic("t"), 10)
    client.transport.drain(receiver.link, WAIT)
    assert receiver.deliveries == []


def test_a_subscription_without_a_name_is_there_as_long_as_its_consumer(client: Client) -> None:
    client.send(topic("t"), "before")
    first = client.receiver(topic("t"), 10)
    client.send(topic("t"), "while it is there")
    client.settle(first.wait_for(1))
    client.transport.detach(first.link, WAIT)
    client.send(topic("t"), "after")
    queues = client.transport.request("statistics", {}, WAIT)["queues"]
    assert [each for each in queues if each["kind"] == "subscription"] == []
    second = client.receiver(topic("t"), 10)
    client.send(topic("t"), "for the next one")
    second.wait_for(1)
    client.transport.drain(second.link, WAIT)
    assert (first.bodies(), second.bodies()) == (["while it is there"], ["for the next one"])


def test_no_local_keeps_a_connections_own_messages_away(engine: Engine) -> None:
    mine, other = engine.open(), engine.open()
    receiver = mine.receiver(topic("t"), 10, no_local=True)
    mine.send(topic("t"), "mine")
    other.send(topic("t"), "theirs")
    assert receiver.wait_for(1)[0].envelope.body == "theirs"


def test_a_durable_subscription_waits_for_its_client(engine: Engine) -> None:
    subscription = Subscription("s", durable=True, shared=False)
    client = engine.open("me")
    receiver = client.receiver(topic("t"), subscription=subscription)
    with pytest.raises(IllegalStateException, match="in use"):
        client.receiver(topic("t"), subscription=subscription)
    client.transport.detach(receiver.link, WAIT)
    client.close()
    engine.open().send(topic("t"), "while away")
    client = engine.open("me")
    receiver = client.receiver(topic("t"), 1, subscription=subscription)
    assert receiver.wait_for(1)[0].envelope.body == "while away"


def test_unsubscribing_ends_a_subscription(engine: Engine) -> None:
    subscription = Subscription("s", durable=True, shared=False)
    client = engine.open("me")
    with pytest.raises(InvalidDestinationException):
        client.transport.unsubscribe("s", WAIT)
    receiver = client.receiver(topic("t"), subscription=subscription)
    with pytest.raises(IllegalStateException):
        client.transport.unsubscribe("s", WAIT)
    client.transport.detach(receiver.link, WAIT)
    client.send(topic("t"), "lost")
    client.transport.unsubscribe("s", WAIT)
    receiver = client.receiver(topic("t"), 1, subscription=subscription)
    client.transport.drain(receiver.link, WAIT)
    assert receiver.deliveries == []


def test_a_durable_subscription_needs_a_client_id(client: Client) -> None:
    with pytest.raises(IllegalStateException, match="client id"):
        client.receiver(topic("t"), subscription=Subscription("s", durable=True, shared=False))


@pytest.mark.parametrize("durable", [True, False])
def test_a_shared_subscription_is_shared(engine: Engine, durable: bool) -> None:
    subscription = Subscription("s", durable=durable, shared=True)
    first, second = engine.open(), engine.open()
    receivers = [each.receiver(topic("t"), 10, subscription=subscription) for each in (first, second)]
    first.send(topic("t"), *[str(number) for number in range(10)])
    eventually(lambda: sum(len(each.deliveries) for each in receivers) >= 10)
    assert all(each.deliveries for each in receivers)
    assert sorted(body for each in receivers for body in each.bodies()) == [str(number) for number in range(10)]


def test_a_shared_subscription_that_is_not_durable_ends_with_its_last_consumer(engine: Engine) -> None:
    subscription = Subscription("s", durable=False, shared=True)
    client = engine.open()
    first = client.receiver(topic("t"), subscription=subscription)
    second = client.receiver(topic("t"), subscription=subscription)
    client.transport.detach(first.link, WAIT)
    client.send(topic("t"), "a", "b", "c")
    client.transport.credit(second.link, 1)
    assert second.wait_for(1)[0].envelope.body == "a"  # it is there as long as one consumer is
    client.settle(second.deliveries)
    client.transport.detach(second.link, WAIT)
    third = client.receiver(topic("t"), 10, subscription=subscription)
    client.transport.drain(third.link, WAIT)
    assert third.deliveries == []


# Temporary destinations.


@pytest.mark.parametrize("kind", [DestinationKind.TEMPORARY_QUEUE, DestinationKind.TEMPORARY_TOPIC])
def test_a_temporary_destination_is_consumed_by_its_own_connection_only(engine: Engine, kind: DestinationKind) -> None:
    owner, other = engine.open(), engine.open()
    temporary = owner.transport.declare_temporary(kind, WAIT)
    assert temporary.kind is kind
    receiver = owner.receiver(temporary, 10)
    other.send(temporary, "answer")
    assert receiver.wait_for(1)[0].envelope.body == "answer"
    with pytest.raises(InvalidDestinationException):
        other.receiver(temporary)


def test_a_temporary_destination_ends_with_its_connection(engine: Engine) -> None:
    owner, other = engine.open(), engine.open()
    temporary = owner.transport.declare_temporary(DestinationKind.TEMPORARY_QUEUE, WAIT)
    other.send(temporary, "a")
    owner.close()
    with pytest.raises(InvalidDestinationException):
        other.send(temporary, "b")


def test_a_temporary_destination_is_deleted_when_it_is_not_in_use(client: Client) -> None:
    temporary = client.transport.declare_temporary(DestinationKind.TEMPORARY_QUEUE, WAIT)
    receiver = client.receiver(temporary)
    with pytest.raises(IllegalStateException):
        client.transport.delete_temporary(temporary, WAIT)
    client.transport.detach(receiver.link, WAIT)
    client.transport.delete_temporary(temporary, WAIT)
    with pytest.raises(InvalidDestinationException):
        client.sender(temporary)
    with pytest.raises(InvalidDestinationException):
        client.transport.delete_temporary(temporary, WAIT)


# Transactions.


def test_a_commit_does_all_of_it(client: Client) -> None:
    client.send("in", "a", "b")
    held = client.drained("in")
    link = client.sender(queue("out"))
    sends = [(link, message(queue("out"), body)) for body in ("1", "2")]
    client.transport.commit(1, 1, sends, [Settlement(each.tag, Outcome.ACCEPTED) for each in held], WAIT)
    assert (client.bodies("in"), client.bodies("out")) == ([], ["1", "2"])


def test_many_commits_in_a_row_keep_their_order(client: Client) -> None:
    link = client.sender(queue("out"))
    for number in range(1, 21):
        client.transport.commit(1, number, [(link, message(queue("out"), str(number)))], [], WAIT)
    assert client.bodies("out") == [str(number) for number in range(1, 21)]


def test_a_commit_with_a_stale_delivery_does_nothing(client: Client) -> None:
    client.send("in", "a")
    (held,) = client.drained("in")
    client.settle([held])
    link = client.sender(queue("out"))
    with pytest.raises(TransactionRolledBackException):
        client.transport.commit(1, 1, [(link, message(queue("out")))], [Settlement(held.tag, Outcome.ACCEPTED)], WAIT)
    assert client.bodies("out") == []


def test_a_commit_with_a_refused_message_does_nothing(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=3&blocked_send_timeout_seconds=0.1").open()
    client.send("in", "a")
    held = client.drained("in")
    link = client.sender(queue("out"))
    sends = [(link, message(queue("out"), str(number))) for number in range(5)]
    with pytest.raises(TransactionRolledBackException):
        client.transport.commit(1, 1, sends, [Settlement(each.tag, Outcome.ACCEPTED) for each in held], WAIT)
    assert client.bodies("out") == []
    client.close()


def test_a_transaction_beyond_its_limit_is_rolled_back(make_engine: MakeEngine) -> None:
    client = make_engine("max_transaction_messages=10").open()
    link = client.sender(queue("out"))
    with pytest.raises(TransactionRolledBackException, match="10"):
        client.transport.commit(1, 1, [(link, message(queue("out")))] * 11, [], WAIT)
    client.transport.commit(1, 2, [(link, message(queue("out")))] * 10, [], WAIT)
    assert len(client.bodies("out")) == 10


def test_an_empty_commit_is_legal(client: Client) -> None:
    client.transport.commit(1, 1, [], [], WAIT)


# Beyond messaging.


def test_requests_are_answered_and_their_errors_raised(client: Client) -> None:
    request = client.transport.request
    client.send("q", "a", "b", "c")
    bounds = request("bounds", {"destination": "q"}, WAIT)
    assert bounds["next"] - bounds["first"] == 3
    answer = request("read_range", {"destination": "q", "first": bounds["first"], "last": bounds["next"] - 1}, WAIT)
    assert [position for position, *_ in answer["messages"]] == list(range(bounds["first"], bounds["next"]))
    assert request("settle_through", {"destination": "q", "position": bounds["first"]}, WAIT) == 1
    with pytest.raises(InvalidDestinationException, match="there is no queue 'nowhere'"):
        request("purge", {"destination": "nowhere"}, WAIT)
    assert request("purge", {"destination": "q"}, WAIT) == 2
    with pytest.raises(JMSException, match="unknown operation"):
        request("nonsense", {}, WAIT)


def test_a_staged_transaction_is_published_once(client: Client) -> None:
    request = client.transport.request
    payloads = [pack(message(queue("out"), str(number))) for number in range(3)]
    for transaction in ("a", "b"):
        request("stage", {"transaction": transaction, "queue": "out", "first": 0, "messages": payloads}, WAIT)
    assert client.bodies("out") == []
    assert request("publish", {"group": "g", "number": 1, "transactions": ["a"]}, WAIT) is True
    assert request("publish", {"group": "g", "number": 1, "transactions": ["b"]}, WAIT) is False
    assert client.bodies("out") == ["0", "1", "2"]
    request("stage", {"transaction": "c", "queue": "out", "first": 0, "messages": payloads}, WAIT)
    assert request("discard", {"transactions": ["c"]}, WAIT) == 1


def test_a_destination_of_each_kind_keeps_to_itself(client: Client) -> None:
    receiver = client.receiver(topic("same"), 10)
    client.send(queue("same"), "for the queue")
    client.send(topic("same"), "for the topic")
    assert receiver.wait_for(1)[0].envelope.body == "for the topic"
    assert client.bodies(Destination("same")) == ["for the queue"]
