"""The link for events at the protocol in memory: attaches that come twice, late and again; credit, bounds, ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import LinkRemoteClose, Terminus
from broker_adapter.amqp.management import ManagementRequest, pack_request, unpack_answer
from broker_adapter.amqp.messages.region_events import (
    EVENTS_ADDRESS,
    EVENTS_CAPABILITY,
    EventsRequest,
    as_properties,
    decode,
)
from broker_adapter.amqp.wire import MANAGEMENT_ADDRESS
from broker_adapter.destination import Destination, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest, InterestKind
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.envelope import BodyKind, Envelope, pack, read_head
from broker_adapter.errors import JMSSecurityException
from broker_adapter.server.links import event_links
from broker_adapter.settings import KIB, MIB
from tests.broker_adapter.engine.desks import Desk, make
from tests.broker_adapter.engine.driving import WAIT
from tests.broker_adapter.server.protocol_client import OWN_CLIENT, Client

ALL_KEYS_OF_REQUEST = (1, "", "")
SOURCE = Terminus(EVENTS_ADDRESS, capabilities=(EVENTS_CAPABILITY,))


class Raw:
    """A client of a server over an engine with region r."""

    def __init__(self, broker: Broker, name: str = "desk", **fields: Any) -> None:
        make(broker, "r")
        self.broker = broker
        self.client = Client(broker, **fields).open(name, OWN_CLIENT, properties={"product": "Holdfast"})
        self._names = 0

    @property
    def number(self) -> int:
        return self.client.server.calls.known_client

    def attach(
        self,
        window: int = 10,
        *,
        credit: int | None = None,
        presettled: bool = True,
        session: int | None = None,
        **changed: Any,
    ) -> int:
        """Ask for a link for events, with the window as credit, and wait for nothing."""
        properties = {**as_properties(EventsRequest(None, window)), **changed}
        self._names += 1
        peer = self.client.peer
        link: int = peer.attach_receiver(
            *(session or self.client.session, f"events {self._names}", SOURCE, Terminus("t")),
            presettled=presettled,
            properties=properties,
        )
        peer.credit(link, window if credit is None else credit)
        return link

    def attached(self, *arguments: Any, **fields: Any) -> int:
        """A link whose events come."""
        link = self.attach(*arguments, **fields)
        assert self.client.opened(link).source is not None
        self.want()
        return link

    def want(self) -> None:
        self.call(e.RegisterInterest(self.number, "r", [ALL_KEYS], True))
        self.call(e.ReadyForEvents(self.number))

    def call(self, command: Any) -> Any:
        return self.broker.call(command, WAIT)

    def put(self, *keys: str, size: int = 1) -> list[int]:
        """Put values; returns the versions."""
        payload = pack(Envelope(topic("r"), BodyKind.BYTES, b"x" * size))
        changes = [e.KeyChange(key, Wanted.PUT, c.from_head(payload, read_head(payload))) for key in keys]
        return [version for _, version in self.call(e.ChangeKeys("r", changes))]

    def keys(self, link: int) -> list[str]:
        """What has come on a link once all is at rest."""
        self.client.rest()
        found = [decode(each.payload) for each in self.client.messages(link)]
        return [each.key if each.region else "marker" for each in found]

    @property
    def waiting(self) -> int:
        return self.client.server._event_links.waiting

    def budget(self) -> int:
        return self.client.server._budget.events


@pytest.fixture
def raw(broker: Broker) -> Raw:
    return Raw(broker)


def test_events_come_as_there_is_credit_for_them(raw: Raw) -> None:
    link = raw.attached(window=10, credit=1)
    raw.put("a", "b", "c")
    assert raw.keys(link) == ["marker"]
    assert raw.waiting == 3
    assert raw.budget() > 3 * 500
    raw.client.peer.credit(link, 2)
    assert raw.keys(link) == ["marker", "a", "b"]
    raw.client.peer.credit(link, 10)
    assert raw.keys(link) == ["marker", "a", "b", "c"]
    assert (raw.waiting, raw.budget()) == (0, 0)


def test_events_go_round_in_turns_and_keep_their_order(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_links, "_SENT_AT_ONCE", 3)
    link = raw.attached(window=100)
    names = [f"k{number}" for number in range(50)]
    raw.put(*names)
    assert raw.keys(link) == ["marker", *names]


def test_a_drain_takes_the_rest_of_the_credit_back(raw: Raw) -> None:
    link = raw.attached(window=10)
    raw.put("a")
    assert raw.keys(link) == ["marker", "a"]
    raw.client.drained(link)
    raw.put("b")
    assert raw.keys(link) == ["marker", "a"]
    raw.client.peer.credit(link, 1)
    assert raw.keys(link) == ["marker", "a", "b"]


def test_the_engine_hands_out_a_share_of_what_a_connection_may_keep(broker: Broker) -> None:
    raw = Raw(broker, max_connection_bytes=MIB)
    link = raw.attached(window=1_000, credit=0)
    names = [f"k{number}" for number in range(60)]
    for name in names:
        raw.put(name, size=10_000)
    raw.client.rest()
    assert 24 <= raw.waiting <= 27
    raw.client.peer.credit(link, 1_000)
    assert 24 <= len(raw.keys(link)) <= 27
    while len(raw.keys(link)) < 61:
        got = decode(raw.client.messages(link)[-1].payload)
        assert raw.call(e.AcknowledgeEvents(raw.number, got.position)) > 0
    assert raw.keys(link) == ["marker", *names]


def test_output_that_is_full_holds_events_back_as_they_were_handed_out(broker: Broker) -> None:
    raw = Raw(broker, max_output_bytes=64 * KIB)
    link = raw.attached(window=1_000)
    raw.client.rest()
    raw.client.server.pause()
    for number in range(20):
        raw.put(f"k{number}", size=20_000)
    raw.client.rest()
    assert raw.keys(link) == ["marker"]
    assert raw.waiting == 20
    assert raw.client.server.wants_input, "they are within the budget"
    raw.client.server.resume()
    assert raw.keys(link) == ["marker", *[f"k{number}" for number in range(20)]]


def test_input_waits_while_events_are_above_the_budget_and_the_socket_is_full(broker: Broker) -> None:
    raw = Raw(broker, max_connection_bytes=MIB)
    link = raw.attached(window=1_000)
    raw.client.rest()
    raw.client.server.pause()
    raw.put("big", size=2 * MIB)
    raw.broker.call(e.MakeRegion("r"), WAIT)
    raw.client.server.pending_output()
    assert not raw.client.server.wants_input
    raw.client.server.resume()
    assert raw.keys(link) == ["marker", "big"]
    assert raw.client.server.wants_input


def test_a_request_is_carried_out_after_the_attach_that_came_before_it(raw: Raw) -> None:
    asking = raw.client.sender(MANAGEMENT_ADDRESS, name="ask")
    answers = raw.client.receiver(MANAGEMENT_ADDRESS, 10, name="answers")
    link = raw.attach()
    for number, (operation, arguments) in enumerate(
        (
            ("pending_events", {}),
            ("register_interest", {"region": "r", "interests": [ALL_KEYS_OF_REQUEST]}),
            ("ready_for_events", {}),
        )
    ):
        raw.client.peer.send(asking, pack_request(ManagementRequest(number, operation, arguments)), settled=True)
    found = [unpack_answer(each.payload) for each in raw.client.receive(answers, 3)]
    assert [each.error for each in found] == [None] * 3
    assert found[0].result == -2
    raw.put("a")
    assert raw.keys(link) == ["marker", "a"]


# One on a connection, and one of a client id.


def test_a_second_link_on_a_connection_is_refused_and_the_first_one_goes_on(raw: Raw) -> None:
    first = raw.attached()
    refused = raw.client.refusal(raw.attach())
    assert (refused.condition, "is that of durable client 'desk' already" in (refused.description or "")) == (
        "amqp:illegal-state",
        True,
    )
    raw.put("a")
    assert raw.keys(first) == ["marker", "a"]


def test_of_two_that_are_attached_at_once_the_first_one_is_taken(raw: Raw) -> None:
    first, second = raw.attach(), raw.attach()
    refused = raw.client.refusal(second)
    assert refused.condition == "amqp:illegal-state"
    assert raw.client.opened(first).source is not None
    raw.want()
    raw.put("a")
    assert raw.keys(first) == ["marker", "a"]


def test_another_connection_of_the_client_id_is_refused_as_such(raw: Raw) -> None:
    raw.attached()
    other = Raw(raw.broker)
    refused = other.client.refusal(other.attach())
    assert refused.condition == "amqp:invalid-field"
    assert refused.info == {"invalid-field": "container-id"}


def test_a_client_that_has_left_by_a_request_may_attach_another_link(raw: Raw) -> None:
    former = raw.attached()
    raw.call(e.LeaveDurable(raw.number, keep=True))
    raw.put("a")
    link = raw.attached()
    assert raw.keys(link) == ["a", "marker"]
    assert raw.keys(former) == ["marker"]
    raw.client.close_link(former)
    raw.put("b")
    assert raw.keys(link) == ["a", "marker", "b"], "the end of the former link is not that of the client"


def test_the_former_link_may_end_while_another_one_is_being_attached(raw: Raw) -> None:
    former = raw.attached()
    raw.call(e.LeaveDurable(raw.number, keep=True))
    link = raw.attach()
    raw.client.peer.close_link(former)
    raw.client.until(lambda: raw.client.of(LinkRemoteClose, former))
    assert raw.client.opened(link).source is not None
    raw.want()
    raw.put("a")
    assert raw.keys(link) == ["marker", "a"]


def test_a_link_may_end_while_another_one_is_refused(raw: Raw) -> None:
    former = raw.attached()
    link = raw.attach()
    raw.client.peer.close_link(former)
    raw.client.until(lambda: raw.client.of(LinkRemoteClose, former))
    assert raw.client.refusal(link).condition == "amqp:illegal-state"
    again = raw.attached()
    assert raw.keys(again) == ["marker"]


def test_what_waits_for_the_former_link_is_not_sent_on_the_next_one_twice(raw: Raw) -> None:
    raw.attached(credit=1)
    raw.put("a", "b")
    raw.client.rest()
    assert raw.waiting == 2
    raw.call(e.LeaveDurable(raw.number, keep=True))
    link = raw.attached()
    assert raw.keys(link) == ["a", "b", "marker"]
    assert raw.budget() == 0


# The end of a link.


@pytest.mark.parametrize("closed", [True, False])
def test_a_link_that_is_detached_lets_the_client_leave_and_its_queue_is_kept(raw: Raw, closed: bool) -> None:
    link = raw.attached(credit=0)
    raw.put("a")
    raw.client.rest()
    assert raw.waiting == 2
    raw.client.close_link(link, closed=closed)
    assert raw.budget() == 0
    desk = Desk(raw.broker, "desk")
    assert desk.pending == 1


def test_a_session_that_ends_lets_the_client_leave_and_its_queue_is_kept(raw: Raw) -> None:
    session = raw.client.peer.begin_session()
    raw.attached(session=session)
    raw.put("a")
    raw.client.rest()
    raw.client.peer.end_session(session)
    raw.client.rest()
    assert Desk(raw.broker, "desk").pending == 1


@pytest.mark.parametrize("end", ["link", "session", "connection", "without a word"])
def test_a_link_that_is_gone_before_the_engine_has_answered_leaves_no_client_behind(raw: Raw, end: str) -> None:
    session = raw.client.peer.begin_session()
    link = raw.attach(session=session)
    raw.client.to_server()
    if end == "link":
        raw.client.peer.close_link(link)
    elif end == "session":
        raw.client.peer.end_session(session)
    elif end == "connection":
        raw.client.peer.close()
    else:
        raw.client.server.receive_end()
    raw.client.rest()
    assert Desk(raw.broker, "desk").pending in (-2, 0)
    assert raw.client.server._budget.events == 0


def test_a_lost_connection_keeps_the_queue(raw: Raw) -> None:
    raw.attached(credit=0)
    raw.put("a")
    raw.client.server.receive_end()
    raw.client.rest()
    assert (raw.waiting, raw.budget()) == (0, 0)
    assert Desk(raw.broker, "desk").pending == 1


def test_events_that_are_on_their_way_as_the_link_ends_are_not_sent(raw: Raw) -> None:
    link = raw.attached()
    raw.client.rest()
    raw.put("a")  # its callback was not called yet
    raw.client.peer.close_link(link)
    raw.client.to_server()
    raw.client.rest()
    assert raw.keys(link) == ["marker"]
    output = raw.client.server._output
    assert output.arrived_bytes == output.taken_bytes


def test_a_queue_that_is_dropped_ends_the_link_with_the_reason(make_broker: Callable[..., Broker]) -> None:
    raw = Raw(make_broker(max_client_queue_events=64))
    link = raw.attached(window=5)
    raw.put(*[f"k{number}" for number in range(80)])
    (closed,) = raw.client.until(lambda: raw.client.of(LinkRemoteClose, link))
    assert closed.error is not None
    assert closed.error.condition == "amqp:resource-limit-exceeded"
    assert "max_client_queue_events" in (closed.error.description or "")
    raw.client.peer.close_link(link)
    raw.client.rest()
    assert (raw.waiting, raw.budget()) == (0, 0)
    again = raw.attached()
    assert raw.keys(again) == ["marker"]


def test_a_queue_that_is_dropped_before_the_attach_is_answered_refuses_it(make_broker: Callable[..., Broker]) -> None:
    raw = Raw(make_broker())
    link = raw.attach()
    raw.client.to_server()
    pending = raw.client.server._event_links._pending
    assert pending is not None
    raw.client.server._event_links._take(pending, [e.QueueDroppedHandout("too many")], [0])
    refused = raw.client.refusal(link)
    assert (refused.condition, refused.description) == ("amqp:resource-limit-exceeded", "too many")


def test_an_event_larger_than_the_client_takes_ends_the_link_and_keeps_the_queue(raw: Raw) -> None:
    link = raw.attached()
    raw.client.rest()
    current = raw.client.server._event_links._current
    assert current is not None
    current.max_message_bytes = 1_000
    raw.put("small")
    raw.put("large", size=2_000)
    (closed,) = raw.client.until(lambda: raw.client.of(LinkRemoteClose, link))
    assert closed.error.condition == "amqp:link:message-size-exceeded"
    assert raw.keys(link) == ["marker", "small"]
    assert Desk(raw.broker, "desk").pending == 2


# What an attach says.


@pytest.mark.parametrize(
    ("changed", "condition"),
    [
        ({"window": 0}, "amqp:decode-error"),
        ({"window": 10_001}, "amqp:decode-error"),
        ({"window": "x"}, "amqp:decode-error"),
        ({"timeout-ms": -5}, "amqp:decode-error"),
        ({"conflation": "?"}, "amqp:decode-error"),
        ({"presettled": False}, "amqp:illegal-state"),
    ],
    ids=repr,
)
def test_a_strange_attach_is_refused(raw: Raw, changed: dict[str, Any], condition: str) -> None:
    link = raw.attach(credit=1, **changed)
    assert raw.client.refusal(link).condition == condition
    raw.attached()


def test_a_client_without_a_container_id_that_could_be_a_client_id_is_refused(broker: Broker) -> None:
    raw = Raw(broker, "d" * 5_000)
    assert isinstance(raw.client.refusal(raw.attach()), AmqpError)


def test_the_door_is_asked_for_the_client_id_and_before_the_engine(broker: Broker) -> None:
    asked: list[tuple[str, Destination | None]] = []

    def authorize(action: str, destination: Destination | None) -> None:
        asked.append((action, destination))
        raise JMSSecurityException("not you")

    raw = Raw(broker, authorize=authorize)
    assert raw.client.refusal(raw.attach()).condition == "amqp:unauthorized-access"
    assert asked == [("receive_events", topic("desk"))]
    assert Desk(broker, "desk").pending == -2


def test_ten_thousand_interests_cost_the_server_their_number_and_not_their_texts(raw: Raw) -> None:
    link = raw.attached(window=10_000, credit=0)
    texts = [f"k.*|{number:0500}" for number in range(500)]
    raw.call(e.RegisterInterest(raw.number, "r", [Interest(InterestKind.EXPRESSION, each) for each in texts], True))
    raw.put(*[f"k{number}" for number in range(100)])
    raw.client.rest()
    assert 100 * 500 * 16 <= raw.budget() < 100 * 10_000
    raw.client.peer.credit(link, 2)
    raw.client.rest()
    found = decode(raw.client.messages(link)[-1].payload)
    assert len(found.interests) == 501
    assert raw.waiting == 99
