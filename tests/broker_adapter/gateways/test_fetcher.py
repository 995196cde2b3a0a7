"""Gateways that fetch: what comes to queues and topics of another broker, put into those here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.amqp.messages.amqp_message import encode_amqp
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.connect import transport_to_site
from broker_adapter.destination import queue, topic
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import AMQP_FORMAT, BodyKind, Envelope, Identity, unpack
from broker_adapter.errors import IllegalStateException, InvalidDestinationException, MessageFormatException
from broker_adapter.gateways.senders import Senders
from broker_adapter.server.listener import Listener
from broker_adapter.settings import ServerSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.driving import drained, subscribe
from tests.broker_adapter.engine.sites import Site, in_queue, text_message
from tests.faults.proxy import Cut, Direction, Proxy
from tests.faults.scenarios import wait_for
from tests.faults.sites import numbered

DURABLE = Subscription("s", durable=True, shared=False)
MOST = 10_000  #: bytes of a message here


class Fetching:
    """A site, what it fetches from, and a proxy on the way.

    Attributes:
        near: the site.
        far: has the messages.
        way: what the site connects to.
    """

    def __init__(self, path: Path | None = None, **settings: Any) -> None:
        given = {"gateway_retry_seconds": 0.01, "max_message_bytes": MOST, **settings}
        self.near, self.far = Site(1, path, **given), Site(2)
        self._listener = Listener(
            self.far.broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True)
        )
        _, port = self._listener.start()
        self.way = Proxy(port)
        self._start()

    def _start(self) -> None:
        self._senders = Senders(self.near.broker, transport_to_site)
        self._senders.start()

    def restart(self) -> None:
        self._senders.stop()
        self.near.restart()
        self._start()

    def close(self) -> None:
        self._senders.stop()
        self.way.close()
        self._listener.stop()
        for site in (self.near, self.far):
            site.broker.close()

    def create(self, *destinations: str, **options: Any) -> None:
        """Create gateway ``g``, which speaks as with a broker that is not ours."""
        url = f"{self.way.url}?envelope=false&idle_timeout_seconds=5"
        arguments = {"name": "g", "url": url, "destinations": list(destinations), "fetches": True, "state": "running"}
        self.near.ask("create_gateway", **{**arguments, **options})

    def change(self, **fields: Any) -> None:
        """Change the gateway, and return when nothing is under way but in its state."""
        self.near.ask("change_gateway", name="g", **fields)
        assert wait_for(lambda: self.near.gateways("g")["state"] == "running" or not self.is_sending)

    @property
    def is_sending(self) -> bool:
        return bool(self.near.gateways("g")["is_sending"])

    def here(self, name: str = "q") -> list[str]:
        """What a queue has here."""
        try:
            return in_queue(self.near, name)
        except InvalidDestinationException:  # nothing has come
            return []

    def left(self, name: str = "q") -> int:
        """How many messages a queue of the other end has."""
        return len(self.far.ask("read_range", destination=name, first=1, last=1 << 40)["messages"])


@pytest.fixture
def fetching() -> Iterator[Fetching]:
    with closing(Fetching()) as made:
        yield made


def test_messages_of_queues_and_topics_come_here_and_are_accepted_there(fetching: Fetching) -> None:
    near, far = fetching.near, fetching.far
    subscribe(near.broker, near.client, "news", "s")
    fetching.create("queue:q", "topic:news")
    assert wait_for(lambda: fetching.is_sending)
    far.send("q", "one", "two", properties={"colour": "red"}, message_id="ID:7", priority=7)
    far.send(topic("news"), "three", group_id="G")
    far.send("other", "stays")
    assert wait_for(lambda: near.gateways("g")["received"] == 3)
    found = [unpack(each.payload) for each in drained(near.broker, near.client, "q")]
    assert [(each.body, each.destination) for each in found] == [("one", queue("q")), ("two", queue("q"))]
    assert (found[0].properties, found[0].message_id, found[0].priority) == ({"colour": "red"}, "ID:7", 7)
    (three,) = drained(near.broker, near.client, topic("news"), subscription=DURABLE)
    assert (unpack(three.payload).body, unpack(three.payload).group_id) == ("three", "G")
    assert wait_for(lambda: (fetching.left("q"), fetching.left("other")) == (0, 1))
    counted = near.gateways("g")
    assert (counted["distributed"], counted["refused"], counted["waiting"]) == (3, 0, 0)


def test_what_comes_to_a_topic_while_the_gateway_is_paused_is_kept_there(fetching: Fetching) -> None:
    near, far = fetching.near, fetching.far
    subscribe(near.broker, near.client, "news", "s")
    fetching.create("topic:news", "queue:q")
    assert wait_for(lambda: fetching.is_sending)
    for number in range(5):
        fetching.change(state="paused")
        far.send(topic("news"), str(number))
        far.send("q", str(number))
        assert near.gateways("g")["received"] == 2 * number
        fetching.change(state="running")
        assert wait_for(lambda count=2 * number + 2: near.gateways("g")["received"] == count)
    found = drained(near.broker, near.client, topic("news"), subscription=DURABLE)
    assert [unpack(each.payload).body for each in found] == near.bodies("q") == numbered(0, 5)


def test_a_gateway_that_fetches_takes_nothing_of_what_is_sent_here(tmp_path: Path) -> None:
    with closing(Fetching(tmp_path)) as fetching:
        fetching.create("queue:q")
        for _ in range(2):
            fetching.near.send("q", "own")
            assert fetching.near.gateways("g")["received"] == 0
            fetching.restart()
        fetching.far.send("q", "fetched")
        assert wait_for(lambda: fetching.here() == ["own", "own", "fetched"])


def test_what_finds_no_room_here_stays_there(tmp_path: Path) -> None:
    with closing(Fetching(max_queue_messages=3, blocked_send_timeout_seconds=0)) as fetching:
        near = fetching.near
        fetching.far.send_messages(
            queue("q"), *(text_message(str(number), identity=Identity("app", 0, number)) for number in range(10))
        )
        fetching.create("queue:q")
        assert wait_for(lambda: fetching.left() == 7)
        for _ in range(20):
            assert wait_for(lambda: "'q' is full" in near.gateways("g")["trouble"])
            assert (fetching.here(), fetching.left()) == (numbered(0, 3), 7)
        found: list[str] = []
        while len(found) < 10:
            assert wait_for(lambda: fetching.here() != [])
            some = near.ask("read_range", destination="q", first=1, last=1 << 40)["messages"]
            found += [unpack(payload).body for _, _, _, payload, _ in some]
            near.ask("settle_through", destination="q", position=some[-1][0])
        assert found == numbered(0, 10)
        assert wait_for(lambda: fetching.left() == 0)
        assert near.gateways("g")["received"] == 10


def test_what_cannot_be_stored_here_is_left_there(fetching: Fetching, caplog: pytest.LogCaptureFixture) -> None:
    near, far = fetching.near, fetching.far
    unreadable = b"\x00\x53\x75\xa0\x05short"[:-2]
    far.send("q", "one", "x" * MOST)
    far.send_messages(queue("q"), c.NewMessage(AMQP_FORMAT, unreadable))
    far.send("q", "two")
    fetching.create("queue:q")
    assert wait_for(lambda: fetching.here() == ["one", "two"])
    assert wait_for(lambda: near.gateways("g")["refused"] >= 2)
    assert "a message of 'q' cannot be stored here, and is left there: message of " in caplog.text
    fetching.change(state="paused")
    assert near.bodies("q") == ["one", "two"]
    assert wait_for(lambda: fetching.left() == 2), "the others are acknowledged"


def test_messages_of_other_clients_are_put_here_as_any_message_is(fetching: Fetching) -> None:
    body = {"n": [1, 2.5, None, b"x"]}
    payload = encode_amqp(Envelope(queue("q"), BodyKind.MAP, body, correlation_id="c"))
    fetching.far.send_messages(queue("q"), c.NewMessage(AMQP_FORMAT, payload))
    fetching.create("queue:q")
    assert wait_for(lambda: fetching.here() != [])
    (found,) = drained(fetching.near.broker, fetching.near.client, "q")
    envelope = unpack(found.payload)
    assert (envelope.body, envelope.correlation_id, envelope.identity) == (body, "c", None)


def test_a_selector_and_its_change_hold_at_the_other_end(fetching: Fetching) -> None:
    near, far = fetching.near, fetching.far
    fetching.create("queue:q", selector="colour = 'red'")
    assert wait_for(lambda: fetching.is_sending)
    far.send("q", "blue", properties={"colour": "blue"})
    far.send("q", "red", properties={"colour": "red"})
    assert wait_for(lambda: fetching.here() == ["red"])
    near.ask("change_gateway", name="g", selector="")
    assert wait_for(lambda: fetching.here() == ["red", "blue"])


@pytest.mark.parametrize("direction", Direction, ids=lambda each: each.name)
def test_what_our_own_software_sent_comes_once_wherever_the_connection_is_cut(
    fetching: Fetching, direction: Direction
) -> None:
    near, far, way = fetching.near, fetching.far, fetching.way
    fetching.create("queue:q", state="created")
    sent = cuts = after = 0
    while True:
        messages = [text_message(str(number), identity=Identity("app", 0, number)) for number in range(sent, sent + 3)]
        sent += 3
        way.plan(Cut(direction, frames=after, into_next=5 * (after % 2)))
        fetching.change(state="running")
        far.send_messages(queue("q"), *messages)
        assert wait_for(lambda: fetching.left() == 0)
        fetching.change(state="paused")
        assert wait_for(lambda: way.open == 0)
        if way.cuts == cuts:
            break  # that is more frames than there are
        cuts = way.cuts
        after += 1
    assert after >= 10
    assert near.bodies("q") == numbered(0, sent)


def test_a_gateway_whose_broker_is_away_says_so_and_fetches_later(fetching: Fetching) -> None:
    fetching.way.refuse()
    fetching.far.send("q", "one")
    fetching.create("queue:q")
    assert wait_for(lambda: fetching.near.gateways("g")["trouble"] != "")
    fetching.way.refuse(False)
    assert wait_for(lambda: fetching.here() == ["one"])
    assert fetching.near.gateways("g")["trouble"] == ""


@pytest.mark.parametrize("destination", ["region:r", "move:q"])
def test_only_queues_and_topics_can_be_fetched(fetching: Fetching, destination: str) -> None:
    with pytest.raises(MessageFormatException, match=f"fetches from queues and topics, and '{destination}' is neither"):
        fetching.create("topic:t", destination)


def test_nothing_is_copied_to_a_gateway_that_fetches(fetching: Fetching) -> None:
    fetching.near.send("q", "own")
    fetching.create("queue:q")
    with pytest.raises(IllegalStateException, match="gateway 'g' fetches, and sends nothing"):
        fetching.near.ask("copy_to_gateway", name="g", queue="q")
