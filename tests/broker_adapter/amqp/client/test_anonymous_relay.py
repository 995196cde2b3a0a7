"""Anonymous producers where the broker has no anonymous relay."""

from __future__ import annotations

from broker_adapter.amqp.client.anonymous_relay import MAX_RELAY_LINKS, AnonymousRelay
from broker_adapter.destination import Destination, queue


class Links:
    """What was attached and detached."""

    def __init__(self) -> None:
        self.attached: list[tuple[int, str]] = []
        self.detached: list[int] = []

    def attach(self, session: int, destination: Destination) -> int:
        self.attached.append((session, destination.name))
        return len(self.attached)

    def relay(self) -> AnonymousRelay:
        return AnonymousRelay(self.attach, self.detached.append)


def test_each_destination_has_a_link_that_is_made_once() -> None:
    links = Links()
    relay = links.relay()
    producer = relay.add(7)
    assert producer < 0
    assert [relay.link(producer, queue(name)) for name in "abab"] == [1, 2, 1, 2]
    assert links.attached == [(7, "a"), (7, "b")]


def test_beyond_the_limit_the_link_that_was_not_used_for_the_longest_time_goes() -> None:
    links = Links()
    relay = links.relay()
    producer = relay.add(1)
    for number in range(MAX_RELAY_LINKS):
        relay.link(producer, queue(str(number)))
    relay.link(producer, queue("0"))
    assert links.detached == []
    relay.link(producer, queue("another"))
    assert links.detached == [2]


def test_a_link_that_the_broker_closed_is_made_again() -> None:
    links = Links()
    relay = links.relay()
    producer = relay.add(1)
    assert relay.link(producer, queue("a")) == 1
    assert relay.lost(1)
    assert not relay.lost(1)
    assert relay.link(producer, queue("a")) == 2


def test_a_producer_that_is_closed_has_no_links() -> None:
    links = Links()
    relay = links.relay()
    first, second, other_session = relay.add(1), relay.add(1), relay.add(2)
    for producer in (first, second, other_session):
        relay.link(producer, queue("a"))
    relay.close(first)
    relay.close(first)
    assert links.detached == [1]
    relay.end_session(1)
    assert links.detached == [1]  # the others end with the session
    assert relay.link(second, queue("a")) is None
    assert relay.link(other_session, queue("a")) == 3
