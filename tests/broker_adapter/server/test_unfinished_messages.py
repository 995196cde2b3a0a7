"""Links that end while large messages are on their way: what the client did not get goes back as it was."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.amqp.events import LinkRemoteClose, RemoteClose, SessionRemoteClose, Terminus
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from tests.broker_adapter.engine.driving import WAIT
from tests.broker_adapter.server.protocol_client import Client, decoded, encoded, put

SIZE = 1_000_000
COUNT = 5
OWN, FOREIGN = "Holdfast", "another product"


class Reader(Client):
    """A client that takes its bytes a few at a time."""

    def opened_as(self, product: str) -> Reader:
        self.open(properties={"product": product})
        return self

    def step(self) -> None:
        """Take as little as the server writes at once, and say what there is to say."""
        self.to_server()
        data = self.server.pending_output(1)
        if data:
            self.peer.receive(data)
        self.events += self.peer.events()

    def half_way(self, link: int, messages: int) -> None:
        """Take so many messages and a part of the next one."""
        for _ in range(10_000):
            if len(self.messages(link)) >= messages and self.peer.unfinished_bytes:
                break
            self.broker.call(c.Statistics(), WAIT)
            self.step()
        assert len(self.messages(link)) == messages
        assert self.peer.unfinished_bytes

    def numbers(self, link: int) -> list[int]:
        """Which messages came on a link."""
        return [int(body[:8]) for body in self.bodies(link)]


def fill(broker: Broker, name: str = "q", count: int = COUNT, size: int = SIZE) -> None:
    """Messages that start with their number."""
    put(broker, name, *[encoded(f"{number:08}" + "x" * size) for number in range(count)])


def in_hand(broker: Broker, name: str = "q") -> int:
    (found,) = [each for each in broker.call(c.Statistics(), WAIT).queues if each.name == name]
    return found.in_hand


def rest_of(broker: Broker, name: str = "q", count: int = COUNT) -> list[tuple[int, int]]:
    """Number and failed deliveries of what a queue has to give, in order; takes it."""
    client = Client(broker).open()
    link = client.receiver(name, count, name="rest")
    client.drained(link)
    found = [decoded(each.payload) for each in client.messages(link)]
    client.settle(link, client.messages(link))
    client.peer.close()
    client.rest()
    return [(int(each.body[:8]), each.delivery_count) for each in found]


def untouched(*numbers: int) -> list[tuple[int, int]]:
    return [(number, 0) for number in numbers]


@pytest.mark.parametrize("closed", [True, False], ids=["for good", "for now"])
def test_what_our_own_client_did_not_get_of_a_closed_link_goes_to_others(broker: Broker, closed: bool) -> None:
    fill(broker)
    client = Reader(broker).opened_as(OWN)
    link = client.receiver("q", name="r")
    client.peer.credit(link, COUNT)
    client.half_way(link, 2)
    client.close_link(link, closed=closed)
    client.rest()

    assert in_hand(broker) == 2
    assert rest_of(broker) == untouched(2, 3, 4)
    client.settle(link, client.messages(link))
    assert in_hand(broker) == 0
    assert rest_of(broker) == []


def test_what_another_client_did_not_settle_of_a_closed_link_goes_to_others(broker: Broker) -> None:
    fill(broker)
    client = Reader(broker).opened_as(FOREIGN)
    link = client.receiver("q", name="r")
    client.peer.credit(link, COUNT)
    client.half_way(link, 2)
    client.close_link(link)
    client.rest()

    assert in_hand(broker) == 0
    assert rest_of(broker) == untouched(0, 1, 2, 3, 4)


@pytest.mark.parametrize(("product", "failures"), [(OWN, 1), (FOREIGN, 0)], ids=["our own client", "another client"])
def test_what_a_session_did_not_get_before_its_end_goes_back_as_it_was(
    broker: Broker, product: str, failures: int
) -> None:
    fill(broker)
    client = Reader(broker).opened_as(product)
    session = client.peer.begin_session()
    link = client.receiver("q", session=session, name="r")
    client.peer.credit(link, COUNT)
    client.half_way(link, 2)
    client.peer.end_session(session)
    client.until(lambda: client.of(SessionRemoteClose))
    client.rest()

    assert rest_of(broker) == [(0, failures), (1, failures), *untouched(2, 3, 4)]


@pytest.mark.parametrize(
    ("product", "end", "failures"),
    [(OWN, "close", 1), (FOREIGN, "close", 0), (OWN, "cut", 1), (FOREIGN, "cut", 1), (OWN, "stop", 1)],
)
def test_what_a_connection_did_not_get_before_its_end_goes_back_as_it_was(
    broker: Broker, product: str, end: str, failures: int
) -> None:
    fill(broker)
    client = Reader(broker).opened_as(product)
    link = client.receiver("q", name="r")
    client.peer.credit(link, COUNT)
    client.half_way(link, 2)
    if end == "close":
        client.peer.close()
        client.until(lambda: client.of(RemoteClose))
    elif end == "stop":
        client.server.close()
        client.until(lambda: client.of(RemoteClose))
    else:
        client.server.receive_end()

    assert rest_of(broker) == [(0, failures), (1, failures), *untouched(2, 3, 4)]


@pytest.mark.parametrize("end", ["session", "cut", "bad bytes"])
def test_what_the_engine_has_handed_out_and_the_server_has_not_sent_is_no_failure(broker: Broker, end: str) -> None:
    fill(broker, size=10)
    client = Reader(broker).opened_as(OWN)
    session = client.peer.begin_session()
    link = client.receiver("q", session=session, name="r")
    client.peer.credit(link, COUNT)
    client.to_server()
    broker.call(c.Statistics(), WAIT)
    assert in_hand(broker) == COUNT
    if end == "session":
        client.peer.end_session(session)
        client.rest()
    elif end == "cut":
        client.server.receive_end()
    else:
        client.server.receive(b"\xff" * 8, 0)

    assert rest_of(broker) == untouched(*range(COUNT))


def test_a_queue_that_is_deleted_by_force_ends_a_link_half_way(broker: Broker) -> None:
    fill(broker)
    client = Reader(broker).opened_as(OWN)
    link = client.receiver("q", name="r")
    client.peer.credit(link, COUNT)
    client.half_way(link, 2)
    broker.call(c.Delete(queue("q"), force=True), WAIT)
    client.until(lambda: client.of(LinkRemoteClose, link))
    client.rest()
    assert len(client.messages(link)) == 2
    client.settle(link, client.messages(link))

    fill(broker, "other", 1)
    other = client.receiver("other", 1, name="other")
    assert len(client.receive(other, 1)) == 1


def test_a_queue_is_purged_and_deleted_after_a_consumer_closed_half_way(broker: Broker) -> None:
    fill(broker)
    client = Reader(broker).opened_as(OWN)
    link = client.receiver("q", name="r")
    client.peer.credit(link, COUNT)
    client.half_way(link, 1)
    client.close_link(link)
    client.settle(link, client.messages(link))

    assert broker.request("purge", {"destination": "q"}, WAIT) == COUNT - 1
    broker.request("delete", {"destination": "q"}, WAIT)


def test_a_link_that_closes_does_not_disturb_others_with_messages_half_way(broker: Broker) -> None:
    client = Reader(broker).opened_as(OWN)
    sessions = [client.session, client.session, client.peer.begin_session()]
    links = []
    for number, session in enumerate(sessions):
        fill(broker, f"q{number}")
        links.append(client.receiver(f"q{number}", name=f"r{number}", session=session))
    for link in links:
        client.peer.credit(link, COUNT)
    client.half_way(links[0], 1)
    client.close_link(links[0])
    client.rest()

    assert [client.numbers(link) for link in links[1:]] == [list(range(COUNT))] * 2
    seen = client.numbers(links[0])
    assert rest_of(broker, "q0") == untouched(*range(len(seen), COUNT))


def test_a_drain_half_way_brings_what_there_is_and_returns_the_credit(broker: Broker) -> None:
    fill(broker)
    client = Reader(broker).opened_as(OWN)
    link = client.receiver("q", name="r")
    client.peer.credit(link, COUNT + 3)
    client.half_way(link, 2)
    client.drained(link)

    assert client.numbers(link) == list(range(COUNT))
    client.peer.credit(link, 1)
    fill(broker, count=2)
    client.receive(link, COUNT + 1)
    client.rest()
    assert client.numbers(link) == [*range(COUNT), 0]


@pytest.mark.parametrize("drains_again", [False, True])
def test_credit_that_comes_while_a_drain_waits_behind_a_large_message_is_used(
    broker: Broker, drains_again: bool
) -> None:
    fill(broker, count=2)
    client = Reader(broker).opened_as(OWN)
    link = client.receiver("q", name="r")
    client.peer.credit(link, 5)
    client.half_way(link, 1)
    client.peer.drain(link)
    client.to_server()
    broker.call(c.Statistics(), WAIT)
    client.step()  # the credit is to be returned behind the second message
    assert len(client.messages(link)) == 1
    fill(broker, count=4, size=10)
    client.peer.credit(link, 2)
    if drains_again:
        client.drained(link)
    client.rest()

    assert client.numbers(link)[:2] == [0, 1]
    assert len(client.messages(link)) == 6


# Receivers that take no large messages.


def limited(client: Client, name: str, size: int, credit: int, **fields: Any) -> int:
    """A receiver's link with a limit for the size of messages."""
    link = client.peer.attach_receiver(client.session, name, Terminus("q"), Terminus("t"), **fields)
    client.peer._endpoints.links[link].endpoint.max_message_size = size
    client.opened(link)
    client.peer.credit(link, credit)
    return link


def refused(client: Client, link: int) -> tuple[str, str]:
    """Why the server closed a link."""
    error = client.until(lambda: client.of(LinkRemoteClose, link))[0].error
    return error.condition, error.description


@pytest.mark.parametrize("product", [OWN, FOREIGN])
@pytest.mark.parametrize("behind", [10, SIZE])
def test_a_message_that_is_larger_than_a_receiver_takes_closes_its_link(
    broker: Broker, product: str, behind: int
) -> None:
    fill(broker, count=2, size=1_000)
    put(broker, "q", encoded(f"{2:08}" + "x" * 2_000_000), encoded(f"{3:08}" + "x" * behind))
    client = Reader(broker).opened_as(product)
    link = limited(client, "r", 1_500_000, 4)
    condition, reason = refused(client, link)
    assert condition == "amqp:link:message-size-exceeded"
    assert "larger than the 1500000 bytes that the receiver takes" in reason
    assert client.numbers(link) == [0, 1]

    client.settle(link, client.messages(link)[:1])
    client.peer.close_link(link)
    client.rest()
    assert in_hand(broker) == (1 if product == OWN else 0)
    client.settle(link, client.messages(link)[1:])
    assert in_hand(broker) == 0
    assert rest_of(broker) == untouched(*([2, 3] if product == OWN else [1, 2, 3]))


def test_large_messages_ahead_of_one_that_is_too_large_go_back_where_they_were_not_sent(broker: Broker) -> None:
    put(broker, "q", *[encoded(f"{number:08}" + "x" * size) for number, size in enumerate((SIZE, SIZE, 2 * SIZE))])
    client = Reader(broker).opened_as(FOREIGN)
    link = limited(client, "r", SIZE + 1_000, 4)
    refused(client, link)
    client.settle(link, client.messages(link))
    client.peer.close_link(link)
    client.rest()
    assert client.peer.unfinished_bytes == 0
    assert in_hand(broker) == 0
    seen = client.numbers(link)
    assert seen == list(range(len(seen)))
    assert rest_of(broker) == untouched(*range(len(seen), 3))


def test_a_message_that_one_receiver_does_not_take_goes_to_another(broker: Broker) -> None:
    fill(broker, count=2)
    client = Reader(broker).opened_as(FOREIGN)
    link = limited(client, "r", 10_000, 4)
    refused(client, link)
    other = limited(client, "other", 2 * SIZE, 4)
    client.receive(other, 2)
    assert client.numbers(other) == [0, 1]
    assert client.numbers(link) == []


def test_a_presettled_receiver_with_a_limit_loses_nothing_that_is_larger(broker: Broker) -> None:
    fill(broker, count=2, size=10)
    fill(broker, count=2)
    client = Reader(broker).opened_as(FOREIGN)
    link = limited(client, "r", 10_000, 9, presettled=True)
    refused(client, link)
    client.peer.close_link(link)
    client.rest()
    assert [each.number for each in client.messages(link)] == [0, 0]
    assert in_hand(broker) == 0
    assert rest_of(broker) == untouched(0, 1)


def test_the_end_of_a_session_gives_back_what_a_link_held_that_the_server_had_closed(broker: Broker) -> None:
    fill(broker, count=2, size=10)
    fill(broker, count=1)
    client = Reader(broker).opened_as(FOREIGN)
    link = limited(client, "r", 10_000, 4)
    refused(client, link)
    assert in_hand(broker) == 2
    client.peer.end_session(client.session)
    client.rest()
    assert rest_of(broker) == untouched(0, 1, 0)


def test_a_browser_that_takes_no_large_messages_is_closed_at_the_first(broker: Broker) -> None:
    fill(broker, count=1, size=10)
    fill(broker, count=1)
    client = Reader(broker).opened_as(FOREIGN)
    link = client.peer.attach_receiver(client.session, "b", Terminus("q", copies=True), Terminus("t"), presettled=True)
    client.peer._endpoints.links[link].endpoint.max_message_size = 10_000
    client.opened(link)
    client.peer.credit(link, 9)
    assert refused(client, link)[0] == "amqp:link:message-size-exceeded"
    assert len(client.messages(link)) == 1
    client.peer.close_link(link)
    client.rest()
    assert rest_of(broker) == untouched(0, 0)


def test_what_the_server_gives_back_for_lack_of_room_is_not_passed_by_what_comes_later(broker: Broker) -> None:
    """The engine hands out the next message before it is told that the one before is given back."""
    client = Client(broker, max_connection_bytes=1 << 20).open()
    client.receiver("large", 10, name="large")
    link = client.receiver("small", 50, name="small")
    client.rest()
    for _ in range(2):
        put(broker, "large", encoded("x" * 200_000))  # on their way to the connection's thread
    put(broker, "small", encoded("first"))  # goes back: too much is on its way already
    submit, sent = client.server.calls.submit, []

    def hand_out_and_submit() -> None:
        if not sent and any(isinstance(each, c.Settle) for each in client.server.calls.deferred):
            sent.append(True)
            put(broker, "small", encoded("second"))
        submit()

    client.server.calls.submit = hand_out_and_submit  # type: ignore[method-assign]
    client.rest()
    assert sent
    assert client.bodies(link) == ["first", "second"]
