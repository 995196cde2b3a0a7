"""A broker that is not ours as the other end of a gateway: what it gets, and what its answers mean."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from broker_adapter.amqp.messages.amqp_message import encode_amqp
from broker_adapter.amqp.messages.payloads import decode_payload
from broker_adapter.clock import epoch_ms
from broker_adapter.destination import Destination, queue, topic
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import AMQP_FORMAT, BodyKind, Envelope, Identity
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    OperationTimedOutException,
    ResourceAllocationException,
    TransactionRolledBackException,
)
from broker_adapter.gateways.bridge import Bridge
from broker_adapter.gateways.sender import columns_of
from broker_adapter.gateways.senders import Senders
from broker_adapter.transport import Credentials, LinkLost, OnSettled, Peer, SenderSpec, TransportEvent
from tests.broker_adapter.engine.sites import Site, in_queue, read
from tests.faults.scenarios import wait_for

NO_ROOM = ResourceAllocationException("the address is full")
REJECTED = JMSException("not today")


class Foreign:
    """A broker that is not ours, without a network.

    Attributes:
        has: the messages that it has taken.
        commits: how many of them each commit has brought.
        answers: body → the errors that its message is answered with, each once; an exception that is no error of JMS:
            there is no answer.
        refuses: destination → the error by which a link to it is refused.
    """

    def __init__(self, *, has_transactions: bool = True) -> None:
        self.has: list[Envelope] = []
        self.commits: list[int] = []
        self.answers: dict[str, list[Any]] = {}
        self.refuses: dict[Destination, JMSException] = {}
        self.links: list[Destination] = []
        self.opened = 0
        self.tell: Callable[[TransportEvent], None] = lambda _event: None
        self._has_transactions = has_transactions

    def open(self, credentials: Credentials, listener: Callable[[TransportEvent], None], timeout: float | None) -> Peer:
        self.tell = listener
        self.opened += 1
        return Peer("Foreign", "1", "me", is_holdfast=False, has_transactions=self._has_transactions)

    def close(self, timeout: float | None) -> None:
        """There is nothing to close."""

    def attach(self, spec: SenderSpec, sink: None, timeout: float | None) -> int:
        assert spec.destination is not None
        if spec.destination in self.refuses:
            raise self.refuses[spec.destination]
        self.links.append(spec.destination)
        return len(self.links)

    def send(self, link: int, envelope: Envelope, on_settled: OnSettled, timeout: float | None) -> None:
        assert self.links[link - 1] == envelope.destination
        error = self._answer(envelope)
        if error is None:
            self.has.append(envelope)
        if not isinstance(error, LookupError):
            on_settled(error)

    def commit(
        self, session: int, number: int, sends: Sequence[tuple[int, Envelope]], settlements: object, timeout: object
    ) -> None:
        for _, envelope in sends:
            error = self._answer(envelope)
            if error is not None:
                raise TransactionRolledBackException(f"it was refused: {error.reason}") from error
        self.has += [envelope for _, envelope in sends]
        self.commits.append(len(sends))

    def _answer(self, envelope: Envelope) -> Any:
        answers = self.answers.get(str(envelope.body))
        return answers.pop(0) if answers else None

    def bodies(self) -> list[str]:
        return [str(each.body) for each in self.has]


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site(1, gateway_retry_seconds=0.01)
    with closing(made.broker):
        yield made


def connected(foreign: Foreign, answer_seconds: float = 60) -> Bridge:
    bridge = Bridge(foreign, decode_payload, answer_seconds)  # type: ignore[arg-type]
    bridge.open(Credentials(), lambda _event: None, None)
    return bridge


def batch(site: Site, *joined: int) -> dict[str, Any]:
    """What the sender of gateway ``g`` hands over.

    Args:
        site: that has the gateway.
        joined: places of messages that belong to the transaction of the one ahead.
    """
    found = read(site, "g")
    columns = columns_of(found["entries"])
    positions = [columns["positions"][place] for place in joined]
    return {"site": 1, "sender": found["sender"], "after": 0, "joined": positions, **columns}


def test_messages_go_to_the_queues_and_topics_of_their_names(site: Site) -> None:
    foreign = Foreign()
    site.gateway("g", "queue:q", "topic:news")
    until_ms = epoch_ms() + 3_600_000
    site.send("q", "one", "two", properties={"colour": "red"}, message_id="ID:7", priority=7, correlation_id="c")
    site.send(topic("news"), "three", expires_at_ms=until_ms, group_id="G", persistent=False)
    asked = batch(site)
    bridge = connected(foreign)
    assert bridge.request("site", {}, None) == 0
    last = asked["positions"][-1]
    assert bridge.request("apply_batch", asked, None) == {"through": last, "refused": [], "applied": last}
    assert [(each.destination, each.body) for each in foreign.has] == [
        *((queue("q"), body) for body in ("one", "two")),
        (topic("news"), "three"),
    ]
    one, _, three = foreign.has
    assert (one.properties, one.message_id, one.priority) == ({"colour": "red"}, "ID:7", 7)
    assert (one.correlation_id, one.persistent) == ("c", True)
    assert (three.expires_at_ms, three.group_id, three.persistent) == (until_ms, "G", False)
    assert foreign.links == [queue("q"), topic("news")]


def test_a_message_of_another_client_goes_as_it_came(site: Site) -> None:
    foreign, now_ms = Foreign(), epoch_ms()
    site.gateway("g", "queue:q")
    payload = encode_amqp(Envelope(queue("elsewhere"), BodyKind.MAP, {"n": 1}, properties={"p": 2.5}))
    times = {"expires_at_ms": now_ms + 60_000, "deliver_at_ms": now_ms + 30_000}
    site.send_messages(queue("q"), c.NewMessage(AMQP_FORMAT, payload, **times))
    connected(foreign).request("apply_batch", batch(site), None)
    (found,) = foreign.has
    assert (found.destination, found.body, found.properties) == (queue("q"), {"n": 1}, {"p": 2.5})
    assert (found.expires_at_ms, found.deliver_at_ms) == (now_ms + 60_000, now_ms + 30_000)


def test_a_delay_that_is_over_is_not_asked_for(site: Site) -> None:
    foreign = Foreign()
    site.gateway("g", "queue:q")
    site.send("q", "now", deliver_at_ms=1000)
    connected(foreign).request("apply_batch", batch(site), None)
    assert foreign.has[0].deliver_at_ms is None


def test_each_message_has_an_identity_that_is_the_same_when_it_is_sent_again(site: Site) -> None:
    foreign = Foreign()
    site.gateway("g", "queue:q")
    site.send("q", "one", "two", identity=Identity("app", 0, 5))
    asked = batch(site)
    for _ in range(2):
        connected(foreign).request("apply_batch", batch(site), None)
    sent = [Identity(f"holdfast/1/{asked['sender']}", 0, position) for position in asked["positions"]]
    assert [each.identity for each in foreign.has] == sent * 2


def test_what_the_broker_rejects_is_refused_with_its_reason(site: Site) -> None:
    foreign = Foreign()
    site.gateway("g", "queue:q", "queue:missing", "region:r")
    site.ask("create_region", region="r")
    site.send("q", "one", "two")
    site.send("missing", "three")
    site.change("r", ("key", "value"))
    site.send("q", "four")
    too_large = ResourceAllocationException("too large", error_code="amqp:link:message-size-exceeded")
    foreign.answers = {"two": [REJECTED], "four": [too_large]}
    foreign.refuses = {queue("missing"): InvalidDestinationException("no such queue")}
    asked = batch(site)
    _, two, three, key, four = positions = asked["positions"]
    refused = [(two, "not today"), (three, "no such queue"), (key, "Foreign has no regions"), (four, "too large")]
    assert connected(foreign).request("apply_batch", asked, None) == {
        "through": positions[-1],
        "refused": refused,
        "applied": positions[-1],
    }
    assert foreign.bodies() == ["one"]


def test_what_was_not_done_is_sent_over_the_next_connection(site: Site) -> None:
    foreign = Foreign()
    site.gateway("g", "queue:q")
    site.send("q", *"abcd")
    foreign.answers = {"c": [NO_ROOM, NO_ROOM]}
    bridge, asked = connected(foreign), batch(site)
    second = asked["positions"][1]
    assert bridge.request("apply_batch", asked, None) == {"through": second, "refused": [], "applied": second}
    rest = {**asked, **{each: asked[each][2:] for each in ("positions", "kind_of", "messages")}}
    with pytest.raises(ResourceAllocationException, match="full"):
        bridge.request("apply_batch", rest, None)
    assert foreign.bodies() == ["a", "b", "d"]  # nothing more over this connection
    with pytest.raises(ResourceAllocationException, match="full"):
        connected(foreign).request("apply_batch", rest, None)
    connected(foreign).request("apply_batch", rest, None)
    assert foreign.bodies() == [*"abddcd"]


def test_a_link_that_the_broker_ends_is_trouble_and_refuses_nothing(site: Site) -> None:
    foreign = Foreign()
    site.gateway("g", "queue:q")
    site.send("q", "a")
    bridge = connected(foreign)
    foreign.answers = {"a": [REJECTED]}
    foreign.tell(LinkLost(1, REJECTED))
    with pytest.raises(JMSException, match="not today"):
        bridge.request("apply_batch", batch(site), None)
    assert (foreign.has, foreign.links) == ([], [])


def test_a_link_that_is_lost_during_a_batch_refuses_nothing(site: Site) -> None:
    foreign = Foreign()
    site.gateway("g", "queue:q")
    site.send("q", "a", "b")
    bridge = connected(foreign)
    send = foreign.send

    def lose(link: int, envelope: Envelope, on_settled: OnSettled, timeout: float | None) -> None:
        if envelope.body == "b":
            foreign.tell(LinkLost(1, REJECTED))
            on_settled(REJECTED)
        else:
            send(link, envelope, on_settled, timeout)

    foreign.send = lose  # type: ignore[method-assign]
    asked = batch(site)
    first = asked["positions"][0]
    assert bridge.request("apply_batch", asked, None) == {"through": first, "refused": [], "applied": first}


@pytest.mark.parametrize(
    "error",
    [ConnectionLostException("cut"), IllegalStateException("link 1 is closed"), OperationTimedOutException("too late")],
    ids=lambda each: type(each).__name__,
)
def test_an_error_that_is_not_about_the_message_is_raised(site: Site, error: JMSException) -> None:
    foreign = Foreign()
    site.gateway("g", "queue:q")
    site.send("q", "a", "b")
    foreign.answers = {"a": [error], "b": [error]}
    with pytest.raises(type(error), match=error.reason):
        connected(foreign).request("apply_batch", batch(site), None)


def test_a_broker_that_does_not_answer_is_trouble(site: Site) -> None:
    foreign = Foreign()
    site.gateway("g", "queue:q")
    site.send("q", "a", "b")
    foreign.answers = {"b": [LookupError()] * 2, "a": [None, LookupError()]}
    asked = batch(site)
    assert connected(foreign, 0).request("apply_batch", asked, None)["through"] == asked["positions"][0]
    with pytest.raises(OperationTimedOutException, match="did not answer within 0 s"):
        connected(foreign, 0).request("apply_batch", asked, None)


def test_a_transaction_is_one_at_the_broker(site: Site) -> None:
    foreign = Foreign()
    site.gateway("g", "queue:q", "topic:t")
    site.send("q", *"ab")
    site.send(topic("t"), *"cd")
    site.send("q", *"efgh")
    asked = batch(site, 2, 3, 6)
    answer = connected(foreign).request("apply_batch", asked, None)
    assert (foreign.bodies(), foreign.commits) == ([*"abcdefgh"], [3, 2])
    assert answer["through"] == asked["positions"][-1]


def test_a_transaction_is_refused_as_a_whole(site: Site) -> None:
    foreign = Foreign()
    site.gateway("g", "queue:q", "region:r")
    site.ask("create_region", region="r")
    site.send("q", *"abcd")
    site.change("r", ("key", "value"))
    site.send("q", "e")
    foreign.answers = {"b": [REJECTED]}
    asked = batch(site, 1, 4)
    a, b, _, d, key, last = asked["positions"]
    reasons = (
        ["its transaction was refused: not today"] * 2,
        ["its transaction was refused: Foreign has no regions"] * 2,
    )
    assert connected(foreign).request("apply_batch", asked, None) == {
        "through": last,
        "refused": [*zip((a, b), reasons[0], strict=True), *zip((d, key), reasons[1], strict=True)],
        "applied": last,
    }
    assert foreign.bodies() == ["c", "e"]


def test_a_transaction_that_finds_no_room_is_tried_again_as_a_whole(site: Site) -> None:
    foreign = Foreign()
    site.gateway("g", "queue:q")
    site.send("q", *"abcd")
    foreign.answers = {"c": [NO_ROOM]}
    asked = batch(site, 2)
    first = asked["positions"][0]
    assert connected(foreign).request("apply_batch", asked, None)["through"] == first
    assert foreign.bodies() == ["a"]


def test_a_transaction_that_the_broker_has_already_is_done(site: Site) -> None:
    foreign = Foreign()
    site.gateway("g", "queue:q")
    site.send("q", *"ab")
    foreign.answers = {"a": [JMSException("Duplicate message detected - message will not be routed")]}
    asked = batch(site, 1)
    answer = connected(foreign).request("apply_batch", asked, None)
    assert (answer["through"], answer["refused"], foreign.commits) == (asked["positions"][-1], [], [])


def test_a_broker_without_transactions_gets_a_message_at_a_time(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    foreign = Foreign(has_transactions=False)
    site.gateway("g", "queue:q")
    site.send("q", *"abcd")
    asked, bridge = batch(site, 1, 3), connected(foreign)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            bridge.request("apply_batch", asked, None)
    assert (foreign.bodies(), foreign.commits) == ([*"abcd"] * 2, [])
    assert caplog.text.count("Foreign has no transactions: what is in one arrives a message at a time") == 1


def test_a_gateway_sends_to_a_broker_that_is_not_ours(site: Site) -> None:
    foreign = Foreign()
    foreign.answers = {"2": [NO_ROOM, ConnectionLostException("cut")], "5": [REJECTED] * 3}
    site.gateway("g", "queue:q", batch_ms=0)
    senders = Senders(site.broker, lambda _url: Bridge(foreign, decode_payload, 60))  # type: ignore[arg-type]
    senders.start()
    try:
        site.send("q", *map(str, range(8)))
        assert wait_for(lambda: site.gateways("g")["waiting"] == 0)
    finally:
        senders.stop()
    found = site.gateways("g")
    assert (found["distributed"], found["refused"], found["trouble"]) == (7, 1, "")
    assert set(foreign.bodies()) == {*"0123467"}
    assert foreign.opened == 3
    assert in_queue(site, "$gateway/g/refused") == ["5"]
