"""Random histories of links, sessions and connections that end while messages of all sizes are on their way."""

from __future__ import annotations

import os
import random
from collections import defaultdict

import attrs
import pytest

from broker_adapter.amqp.events import ACCEPTED_STATE, FAILED_STATE, RELEASED_STATE, Incoming, Transfers
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT
from tests.broker_adapter.server.protocol_client import decoded, encoded, put
from tests.broker_adapter.server.test_unfinished_messages import FOREIGN, OWN, Reader, in_hand, rest_of

SEEDS = int(os.environ.get("LINK_HISTORIES", "8"))
MESSAGES = 24
STEPS = 150
SIZES = (1, 1, 100, 5_000, 60_000, 140_000, 400_000, 1_000_000, 3_000_000)


@attrs.define(eq=False)
class Link:
    """A receiver's link, as its client knows it."""

    number: int
    session: int
    heard: int = 0  #: events that were looked at
    is_open: bool = True
    held: dict[int, Incoming] = attrs.field(factory=dict)  #: message → its delivery, not settled


@attrs.define(eq=False)
class Connected:
    """A client with its sessions and links."""

    reader: Reader
    product: str
    sessions: list[int] = attrs.field(factory=list)
    links: list[Link] = attrs.field(factory=list)
    heard: int = 0  #: events that were looked at


class History:
    """What happens, and what must have come of it."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        self.clients: list[Connected] = []
        self.links = 0  #: attached so far
        self.failures: defaultdict[int, int] = defaultdict(int)
        self.accepted: set[int] = set()
        self.holders: dict[int, Link] = {}
        for number in range(MESSAGES):
            size = self.random.choice(SIZES)
            put(broker, "q", encoded(f"{number:08}" + "x" * size))

    def go(self) -> None:
        acts = [self.connect, self.attach, self.credit, self.settle, self.drain, self.close_link]
        acts += [self.end_session, self.end_connection]
        weights = [1, 4, 8, 10, 3, 4, 1, 1]
        for _ in range(STEPS):
            (act,) = self.random.choices(acts, weights)
            act()
            for _ in range(self.random.choice((0, 1, 1, 2, 5, 20))):
                self.step()

    def step(self) -> None:
        """Everybody takes a little of what there is."""
        self.broker.call(c.Statistics(), WAIT)
        for client in self.clients:
            client.reader.step()
            self.listen(client)

    def hear_out(self, client: Connected) -> None:
        """Take what the server has written, and no more: when a client ends, that counts as seen."""
        peer = client.reader.server._peer
        outgoing = peer._outgoing
        later, outgoing.with_later = outgoing.with_later, {}
        client.reader.peer.receive(peer.pending_output())
        outgoing.with_later = later
        client.reader.events += client.reader.peer.events()
        self.listen(client)

    def listen(self, client: Connected) -> None:
        """Look at what a client has heard."""
        events = client.reader.events
        links = {link.number: link for link in client.links}
        for event in events[client.heard :]:
            if isinstance(event, Transfers) and event.link in links:
                for delivery in event.deliveries:
                    self.take(client, links[event.link], delivery)
        client.heard = len(events)

    def take(self, client: Connected, link: Link, delivery: Incoming) -> None:
        """A message has come, as a whole."""
        if not link.is_open:
            if client.product == OWN:
                client.reader.peer.settle(link.number, [delivery.number], RELEASED_STATE)
                client.reader.to_server()
            return
        message = decoded(delivery.payload)
        number = int(message.body[:8])
        assert number not in self.accepted
        assert number not in self.holders
        assert message.delivery_count == self.failures[number]
        self.holders[number] = link
        link.held[number] = delivery

    # What clients do.

    def connect(self) -> None:
        if len(self.clients) < 3:
            product = self.random.choice((OWN, FOREIGN))
            client = Connected(Reader(self.broker).opened_as(product), product)
            client.sessions.append(client.reader.session)
            client.sessions.append(client.reader.peer.begin_session())
            self.clients.append(client)

    def attach(self) -> None:
        if not self.clients:
            return
        client = self.random.choice(self.clients)
        if not client.sessions:
            client.sessions.append(client.reader.peer.begin_session())
        session = self.random.choice(client.sessions)
        self.links += 1
        number = client.reader.receiver("q", session=session, name=f"r{self.links}")
        client.links.append(Link(number, session))
        self.listen(client)
        client.reader.peer.credit(number, self.random.choice((1, 3, 10)))

    def some_link(self) -> tuple[Connected, Link] | None:
        """A link that is open, or that belongs to our own client and holds messages."""
        found = [
            (client, link)
            for client in self.clients
            for link in client.links
            if link.is_open or (link.held and client.product == OWN)
        ]
        return self.random.choice(found) if found else None

    def credit(self) -> None:
        found = self.some_link()
        if found is not None and found[1].is_open:
            found[0].reader.peer.credit(found[1].number, self.random.choice((1, 2, 10)))

    def drain(self) -> None:
        found = self.some_link()
        if found is not None and found[1].is_open:
            found[0].reader.peer.drain(found[1].number)

    def settle(self) -> None:
        """Acknowledge, recover, or give back some of what a link brought."""
        found = self.some_link()
        if found is None or not found[1].held:
            return
        client, link = found
        numbers = self.random.sample(sorted(link.held), self.random.randint(1, len(link.held)))
        state = self.random.choice((ACCEPTED_STATE, FAILED_STATE, RELEASED_STATE))
        client.reader.peer.settle(link.number, [link.held[number].number for number in sorted(numbers)], state)
        if state is ACCEPTED_STATE:
            self.accepted.update(numbers)
        self.let_go(link, numbers, failed=state is FAILED_STATE)
        client.reader.to_server()

    def let_go(self, link: Link, numbers: list[int], *, failed: bool) -> None:
        for number in numbers:
            del link.held[number]
            del self.holders[number]
            self.failures[number] += failed

    def close_link(self) -> None:
        found = self.some_link()
        if found is None or not found[1].is_open:
            return
        client, link = found
        link.is_open = False
        client.reader.peer.close_link(link.number)
        client.reader.to_server()
        if client.product == FOREIGN:
            self.let_go(link, list(link.held), failed=False)

    def end_session(self) -> None:
        client = self.random.choice(self.clients) if self.clients else None
        if client is not None and client.sessions:
            self.hear_out(client)
            session = client.sessions.pop(self.random.randrange(len(client.sessions)))
            client.reader.peer.end_session(session)
            self.gone(client, [link for link in client.links if link.session == session], client.product == OWN)
            client.reader.to_server()

    def end_connection(self) -> None:
        if not self.clients:
            return
        client = self.clients.pop(self.random.randrange(len(self.clients)))
        self.hear_out(client)
        end = self.random.choice(("close", "cut", "stop"))
        if end == "close":
            client.reader.peer.close()
            client.reader.to_server()
        elif end == "cut":
            client.reader.server.receive_end()
        else:
            client.reader.server.close()
        self.gone(client, client.links, end != "close" or client.product == OWN)

    def gone(self, client: Connected, links: list[Link], failed: bool) -> None:
        for link in links:
            link.is_open = False
            self.let_go(link, list(link.held), failed=failed)
        client.links = [link for link in client.links if link not in links]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_message_is_seen_as_often_as_its_ends_say(seed: int) -> None:
    broker = Broker(EngineSettings(max_deliveries=None, redelivery_delay_seconds=0))
    try:
        history = History(broker, seed)
        history.go()
        while history.clients:
            history.end_connection()
        assert history.holders == {}
        assert in_hand(broker) == 0
        left = [number for number in range(MESSAGES) if number not in history.accepted]
        assert rest_of(broker, count=MESSAGES) == [(number, history.failures[number]) for number in left]
        assert in_hand(broker) == 0
    finally:
        broker.close()
