"""Links and sessions that end: temporary destinations, and messages that go back."""

from __future__ import annotations

import pytest

from broker_adapter.amqp.events import ACCEPTED_STATE, RELEASED_STATE, LinkRemoteClose, SessionRemoteClose, Terminus
from broker_adapter.amqp.messages.values import Described, ULong, encode
from broker_adapter.amqp.wire import DISCHARGE_CODE
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from tests.broker_adapter.engine.driving import WAIT
from tests.broker_adapter.server.protocol_client import Client, decoded, encoded, in_transaction, waiting
from tests.contracts.transports import eventually


def test_a_dynamic_source_is_a_new_queue_of_this_connection(client: Client, broker: Broker) -> None:
    link = client.receiver(Terminus(dynamic=True), 5, name="r")
    source = client.opened(link).source
    assert source is not None
    assert source.dynamic
    assert source.capabilities == ("temporary-queue",)
    assert source.address is not None
    other = Client(broker).open()
    assert other.send(other.sender(source.address), "answer") == [ACCEPTED_STATE]
    client.receive(link, 1)
    assert client.bodies(link) == ["answer"]
    mine = other.peer.attach_receiver(other.session, "r", Terminus(source.address), Terminus())
    assert other.refusal(mine).condition == "amqp:not-found"
    client.close_link(link)
    client.rest()
    gone = other.peer.attach_sender(other.session, "gone", Terminus(), Terminus(source.address))
    assert other.refusal(gone).condition == "amqp:not-found"


def test_a_temporary_destination_in_use_is_not_deleted(client: Client) -> None:
    link = client.sender(Terminus(dynamic=True))
    target = client.opened(link).target
    assert target is not None
    assert target.address is not None
    consumer = client.receiver(target.address, 5, name="r")
    error = client.close_link(link).error
    assert error is not None
    assert error.condition == "amqp:illegal-state"
    assert client.send(client.sender(target.address, name="other"), "x") == [ACCEPTED_STATE]
    client.receive(consumer, 1)


@pytest.mark.parametrize("as_source", [False, True])
def test_a_dynamic_terminus_whose_link_is_gone_already_leaves_nothing_behind(
    client: Client, broker: Broker, as_source: bool
) -> None:
    before = len(broker.call(c.Statistics(), WAIT).queues)
    for number in range(5):
        if as_source:
            terminus = Terminus(dynamic=True)
            link = client.peer.attach_receiver(client.session, f"l{number}", terminus, Terminus())
        else:
            link = client.peer.attach_sender(client.session, f"l{number}", Terminus(), Terminus(dynamic=True))
        client.peer.close_link(link)
    client.until(lambda: len(client.of(LinkRemoteClose)) == 5)
    client.rest()
    eventually(lambda: len(broker.call(c.Statistics(), WAIT).queues) == before)


def test_a_closed_link_of_our_own_client_may_still_settle_what_it_was_sent(broker: Broker) -> None:
    client = Client(broker).open(properties={"product": "Holdfast"})
    client.send(client.sender("q"), "a", "b")
    link = client.receiver("q", 2, name="r")
    first, second = client.receive(link, 2)
    client.close_link(link)
    assert waiting(broker, "q") == []
    client.settle(link, [first])
    client.settle(link, [second], RELEASED_STATE)
    assert waiting(broker, "q") == ["b"]


@pytest.mark.parametrize("closed", [True, False])
def test_a_closed_link_of_another_client_gives_back_what_it_did_not_settle(
    client: Client, broker: Broker, closed: bool
) -> None:
    client.send(client.sender("q"), "a", "b", "c")
    link = client.receiver("q", 2, name="r")
    first, second = client.receive(link, 2)
    coordinator = client.coordinator()
    txn_id = client.declare(coordinator)
    client.settle(link, [first], in_transaction(txn_id, ACCEPTED_STATE))
    client.close_link(link, closed=closed)
    other = client.receiver("q", 9, name="other")
    client.drained(other)
    assert client.bodies(other) == ["b", "c"]
    assert [decoded(each.payload).delivery_count for each in client.messages(other)] == [0, 0]
    client.settle(link, [second])  # too late
    client.settle(other, client.messages(other), RELEASED_STATE)
    assert client.discharge(coordinator, txn_id) == ACCEPTED_STATE
    assert waiting(broker, "q") == ["b", "c"]


def test_links_that_are_closed_with_messages_do_not_count(broker: Broker) -> None:
    client = Client(broker, max_links=4).open()
    client.send(client.sender("q"), "x")
    for number in range(10):
        link = client.receiver("q", 1, name=f"r{number}")
        client.receive(link, 1)
        client.close_link(link)


def test_messages_on_their_way_to_a_link_that_closes_go_back_as_they_were(client: Client, broker: Broker) -> None:
    client.send(client.sender("q"), "a", "b")
    link = client.receiver("q", name="r")
    client.pump()
    client.peer.credit(link, 2)
    client.to_server()
    broker.call(c.Statistics(), WAIT)  # the engine has handed them out; the server has not sent them
    client.close_link(link)
    client.rest()
    assert client.messages(link) == []
    other = client.receiver("q", 2, name="other")
    assert [decoded(each.payload).delivery_count for each in client.receive(other, 2)] == [0, 0]


@pytest.mark.parametrize(
    ("product", "failures"), [("Holdfast", 1), ("another product", 0)], ids=["our own client", "another client"]
)
def test_the_end_of_a_session_gives_back_what_it_held(broker: Broker, product: str, failures: int) -> None:
    """Other clients say what has failed, and leave the rest, which the application has not seen, to the broker."""
    client = Client(broker).open(properties={"product": product})
    client.send(client.sender("q"), "a", "b")
    session = client.peer.begin_session()
    link = client.receiver("q", 2, session=session, name="r")
    client.receive(link, 2)
    client.peer.end_session(session)
    client.until(lambda: client.of(SessionRemoteClose))
    client.rest()
    other = client.receiver("q", 2, name="other")
    client.receive(other, 2)
    assert client.bodies(other) == ["a", "b"]
    assert [decoded(each.payload).delivery_count for each in client.messages(other)] == [failures] * 2


@pytest.mark.parametrize(("closes", "failures"), [(True, 0), (False, 1)], ids=["with a close", "without a word"])
def test_what_a_client_held_has_failed_where_it_left_without_a_word(
    broker: Broker, closes: bool, failures: int
) -> None:
    client = Client(broker).open()
    client.send(client.sender("q"), "a")
    client.receive(client.receiver("q", 2, name="r"), 1)
    if closes:
        client.peer.close()
        client.pump()
    else:
        client.server.receive_end()
    other = Client(broker).open()
    link = other.receiver("q", 2, name="r")
    other.receive(link, 1)
    assert [decoded(each.payload).delivery_count for each in other.messages(link)] == [failures]


def test_messages_on_their_way_to_a_session_that_ends_are_redelivered(client: Client, broker: Broker) -> None:
    client.send(client.sender("q"), "a", "b")
    session = client.peer.begin_session()
    link = client.receiver("q", session=session, name="r")
    client.pump()
    client.peer.credit(link, 2)
    client.to_server()
    broker.call(c.Statistics(), WAIT)
    client.peer.end_session(session)
    client.rest()
    assert client.messages(link) == []
    other = client.receiver("q", 2, name="other")
    client.receive(other, 2)
    assert client.bodies(other) == ["a", "b"]


def test_a_drain_of_a_session_that_ends_is_dropped(client: Client, broker: Broker) -> None:
    session = client.peer.begin_session()
    link = client.receiver("q", 5, session=session, name="r")
    client.rest()
    client.peer.drain(link)
    client.to_server()
    broker.call(c.Statistics(), WAIT)
    client.peer.end_session(session)
    client.rest()
    assert client.send(client.sender("q"), "the connection goes on") == [ACCEPTED_STATE]


def test_answers_for_a_session_that_has_ended_are_dropped(client: Client, broker: Broker) -> None:
    session = client.peer.begin_session()
    link = client.sender("q", session=session)
    coordinator = client.sender(Terminus(coordinator=True), session=session, name="c")
    txn_id = client.declare(coordinator)
    client.peer.send(link, encoded("x"))
    client.peer.send(coordinator, b"\x00\x53\x77" + encode(Described(ULong(DISCHARGE_CODE), [txn_id, False])))
    client.peer.attach_sender(session, "late", Terminus(), Terminus("late"))
    client.peer.attach_receiver(session, "later", Terminus("late"), Terminus())
    client.peer.attach_receiver(session, "latest", None, Terminus())
    client.peer.end_session(session)
    client.rest()
    assert waiting(broker, "q") == ["x"]
    assert client.send(client.sender("q"), "the connection goes on") == [ACCEPTED_STATE]
