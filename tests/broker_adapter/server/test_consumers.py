"""Links that the client of the protocol in memory receives on: credit, deliveries, their end."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    FAILED_STATE,
    MODIFIED,
    NO_STATE,
    REJECTED,
    RELEASED_STATE,
    LinkRemoteClose,
    SessionRemoteClose,
    State,
    Terminus,
)
from broker_adapter.amqp.payloads import as_amqp, decode_received, format_of, received
from broker_adapter.amqp.values import Described, Symbol, ULong, encode
from broker_adapter.amqp.wire import (
    DISCHARGE_CODE,
)
from broker_adapter.destination import queue
from broker_adapter.engine import commands as c
from broker_adapter.engine.broker import Broker
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack
from broker_adapter.server import consumers
from broker_adapter.server.consumers import SLICE_MESSAGES
from broker_adapter.server.protocol import ServerProtocol
from tests.broker_adapter.engine.driving import WAIT, connect, depth, drained
from tests.broker_adapter.server import protocol_client
from tests.broker_adapter.server.protocol_client import (
    OWN_CLIENT,
    Client,
    decoded,
    encoded,
    in_transaction,
    put,
    waiting,
)
from tests.contracts.transports import engine, eventually


def test_a_message_goes_through_unchanged(client: Client) -> None:
    sent = encoded(
        {"k": [1, 2.5, None, b"\x00", "é"]},
        id=b"\x01\x02",
        correlation_id="c",
        subject="s",
        priority=9,
        durable=True,
        reply_to="answers",
        content_type="x/y",
        properties={"n": 1, "s": "t", "b": True},
        annotations={Symbol("x-opt-mine"): [1, 2]},
        instructions={Symbol("x-opt-once"): 1},
        user_id=b"me",
        group_id="g",
        group_sequence=3,
    )
    client.raw(client.sender("q"), sent)
    link = client.receiver("q", 1, name="r")
    (got,) = client.receive(link, 1)
    assert got.payload == sent
    client.settle(link, [got], FAILED_STATE)
    client.peer.credit(link, 1)
    again = client.receive(link, 2)[1]
    message = decoded(again.payload)
    assert (message.delivery_count, message.priority, message.durable) == (1, 9, True)
    bare = sent.index(b"\x00\x53\x71")  # what follows the header and must not be changed
    assert again.payload.endswith(sent[bare:])


@pytest.mark.parametrize(
    "sections",
    [
        b"\x00\x53\x75\xa0\x03abc" + b"\x00\x53\x75\xa0\x03def",
        b"\x00\x53\x76\xc0\x05\x02\x54\x01\x54\x02",
        b"\x00\x53\x77\x40",
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x77\xa1\x01x",
        b"\x00\x53\x77\xa1\x01x" + b"\x00\x53\x78\xc1\x07\x02\xa3\x01f\xa1\x01v",
    ],
    ids=["two data", "sequence", "null", "long descriptor", "footer"],
)
def test_bodies_of_every_kind_keep_their_bytes(client: Client, sections: bytes) -> None:
    assert client.raw(client.sender("q"), sections) == ACCEPTED_STATE
    assert client.receive(client.receiver("q", 1, name="r"), 1)[0].payload == sections


def test_a_consumer_gets_exactly_its_credit(client: Client) -> None:
    client.send(client.sender("q"), *range(10))
    link = client.receiver("q", name="r")
    client.rest()
    assert client.messages(link) == []
    client.peer.credit(link, 3)
    client.rest()
    assert client.bodies(link) == [0, 1, 2]
    client.peer.credit(link, 1)
    client.peer.credit(link, 4)
    client.rest()
    assert client.bodies(link) == list(range(8))


def test_credit_beyond_a_slice_is_passed_on_in_slices(client: Client, broker: Broker) -> None:
    count = 2 * SLICE_MESSAGES + 500
    put(broker, "q", *[encoded(body) for body in range(count)])
    link = client.receiver("q", count - 1, name="r")
    client.receive(link, count - 1)
    client.rest()
    assert len(client.messages(link)) == count - 1


def test_credit_that_is_taken_back_is_not_used(client: Client) -> None:
    link = client.receiver("q", 10, name="r")
    client.rest()
    client.peer.credit(link, -7)
    client.rest()
    client.send(client.sender("q"), *range(10))
    client.rest()
    assert client.bodies(link) == [0, 1, 2]
    other = client.receiver("q", 9, name="other")
    client.drained(other)
    assert client.bodies(other) == [3, 4, 5, 6, 7, 8, 9]


def test_messages_on_their_way_for_credit_that_is_taken_back_go_to_others(client: Client, broker: Broker) -> None:
    client.send(client.sender("q"), *range(5))
    link = client.receiver("q", name="r")
    client.pump()
    client.peer.credit(link, 5)
    client.to_server()
    broker.call(c.Statistics(), WAIT)  # the engine has handed out all five
    client.peer.credit(link, -3)
    client.to_server()
    client.rest()
    assert client.bodies(link) == [0, 1]
    other = client.receiver("q", 9, name="other")
    client.drained(other)
    assert client.bodies(other) == [2, 3, 4]
    client.peer.credit(link, 1)
    client.send(client.sender("q", name="again"), "x")
    client.receive(link, 3)


def test_two_consumers_share_a_queue_and_each_keeps_to_its_credit(client: Client) -> None:
    client.send(client.sender("q"), *range(10))
    first = client.receiver("q", 3, name="first")
    second = client.receiver("q", 4, name="second")
    client.rest()
    assert sorted(client.bodies(first) + client.bodies(second)) == list(range(7))
    assert (len(client.messages(first)), len(client.messages(second))) == (3, 4)


@pytest.mark.parametrize("credit", [10, SLICE_MESSAGES + 1, 10 * SLICE_MESSAGES, 2**31 - 1])
@pytest.mark.parametrize("count", [0, 4])
def test_a_drain_brings_what_there_is_and_ends_the_credit(client: Client, credit: int, count: int) -> None:
    if count:
        client.send(client.sender("q"), *range(count))
    link = client.receiver("q", credit, name="r")
    client.drained(link)
    assert client.bodies(link) == list(range(count))


def test_a_drain_of_more_than_a_slice_brings_all_of_it(client: Client, broker: Broker) -> None:
    count = 2 * SLICE_MESSAGES + 7
    put(broker, "q", *[encoded(body) for body in range(count)])
    link = client.receiver("q", 10 * SLICE_MESSAGES, name="r")
    client.drained(link)
    assert len(client.messages(link)) == count


def test_a_drain_that_the_messages_use_up_ends_as_well(client: Client) -> None:
    client.send(client.sender("q"), *range(4))
    link = client.receiver("q", 3, name="r")
    client.drained(link)
    assert client.bodies(link) == [0, 1, 2]
    client.peer.credit(link, 1)
    assert len(client.receive(link, 4)) == 4


def test_a_drain_that_comes_with_the_attach_is_answered(client: Client) -> None:
    client.send(client.sender("q"), "x")
    link = client.peer.attach_receiver(client.session, "r", Terminus("q"), Terminus())
    client.peer.credit(link, 5)
    client.drained(link)
    assert client.bodies(link) == ["x"]


def test_a_consumer_goes_on_after_a_drain(client: Client) -> None:
    link = client.receiver("q", 5, name="r")
    producer = client.sender("q")
    for body in range(3):
        client.drained(link)
        client.send(producer, body)
        client.rest()
        assert len(client.messages(link)) == body
        client.peer.credit(link, 5)
        client.receive(link, body + 1)
    assert client.bodies(link) == [0, 1, 2]


def test_a_client_that_takes_no_more_costs_a_bounded_amount(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    body = b"x" * 8192
    put(broker, "q", *[encoded(body)] * 200)
    client = Client(broker, max_output_bytes=65536).open()
    link = client.receiver("q", name="r")
    client.server.pause()
    client.peer.credit(link, 200)
    client.rest()
    assert client.messages(link) == []
    client.server.resume()
    broker.call(c.Statistics(), WAIT)  # the engine has handed out what it may
    client.server.pause()
    client.rest()
    got = len(client.messages(link))
    assert 0 < got <= 8  # 65,536 bytes
    client.server.resume()
    broker.call(c.Statistics(), WAIT)
    client.server.pause()
    client.rest()
    assert 0 < len(client.messages(link)) - got <= 16  # what the engine had, and one slice more
    got = len(client.messages(link))
    client.peer.drain(link)
    client.rest()
    assert len(client.messages(link)) == got
    client.server.resume()
    client.until(lambda: client.peer.remaining_credit(link) == 0)
    assert len(client.messages(link)) == 200


@pytest.mark.parametrize("fields", [{}, {"copies": True}], ids=["consumer", "browser"])
def test_large_messages_are_handed_out_few_at_a_time(make_broker: Callable[..., Broker], fields: Any) -> None:
    broker = make_broker()
    put(broker, "q", *[encoded(str(number) * 10_000) for number in range(100)])
    client = Client(broker, max_output_bytes=65536).open()
    link = client.receiver(Terminus("q", **fields), name="r")
    client.peer.credit(link, 1000)
    client.to_server()
    broker.call(c.Statistics(), WAIT)  # the engine has handed out what it may
    client.server.pause()
    client.rest()
    assert len(client.messages(link)) == 7
    client.server.resume()
    client.drained(link)
    assert [body[:1] for body in client.bodies(link)] == [str(number)[0] for number in range(100)]


def test_links_share_what_a_connection_may_have_on_its_way(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    client = Client(broker, max_output_bytes=1 << 20).open()
    links = [client.receiver(f"q{number}", 1000, name=f"r{number}") for number in range(16)]
    client.rest()
    client.server.pause()
    for number in range(16):
        put(broker, f"q{number}", *[encoded("x" * 10_000)] * 100)
    client.rest()
    assert sum(each.in_hand for each in broker.call(c.Statistics(), WAIT).queues) * 10_000 < 4 << 20
    client.server.resume()
    client.until(lambda: all(len(client.messages(link)) == 100 for link in links))


def test_a_session_that_takes_no_more_costs_a_bounded_amount(make_broker: Callable[..., Broker]) -> None:
    count = 200
    broker = make_broker()
    put(broker, "q", *[encoded(f"{number:010000}") for number in range(count)])
    client = Client(broker, max_output_bytes=65536).open()
    client.peer._endpoints.sessions[client.session].endpoint.incoming_capacity = 2 << 20  # two frames
    link = client.receiver("q", name="r", presettled=True)
    client.peer.credit(link, count)
    client.to_server()
    for _ in range(20):
        broker.call(c.Statistics(), WAIT)
        client.peer.receive(client.server.pending_output())  # and takes nothing out of the session
    assert count - depth(broker, "q") <= 20
    client.until(lambda: len(client.messages(link)) == count)
    assert [int(body[-9:]) for body in client.bodies(link)] == list(range(count))


@pytest.mark.parametrize(
    ("state", "count", "dead"),
    [
        (ACCEPTED_STATE, None, False),
        (RELEASED_STATE, 0, False),
        (FAILED_STATE, 1, False),
        (State(MODIFIED), 0, False),
        (State(REJECTED), None, True),
        (State(REJECTED, error=AmqpError("my:reason", "because")), None, True),
        (State(MODIFIED, failed=True, undeliverable=True), None, True),
        (NO_STATE, 0, False),
    ],
    ids=["accepted", "released", "failed", "modified", "rejected", "with a reason", "undeliverable", "without a word"],
)
def test_a_delivery_ends_as_the_client_says(
    client: Client, broker: Broker, state: State, count: int | None, dead: bool
) -> None:
    client.send(client.sender("q"), "x", "y")
    link = client.receiver("q", 1, name="r")
    client.settle(link, client.receive(link, 1)[:1], state)
    other = client.receiver("q", 9, name="other")
    client.drained(other)
    found = {decoded(each.payload).body: decoded(each.payload).delivery_count for each in client.messages(other)}
    assert found.get("x") == count
    assert list(found) == (["y"] if count is None else ["x", "y"])
    assert depth(broker, "DLQ") == int(dead)


def test_a_presettled_consumer_has_nothing_to_give_back(client: Client, broker: Broker) -> None:
    client.send(client.sender("q"), "a", "b")
    link = client.receiver("q", 1, presettled=True, name="r")
    assert client.opened(link).presettled
    assert client.receive(link, 1)[0].number == 0
    client.server.receive_end()
    client.rest()
    assert waiting(broker, "q") == ["b"]


def test_a_browser_gets_copies_and_its_end_is_told(client: Client, broker: Broker) -> None:
    client.send(client.sender("q"), *range(5))
    link = client.receiver(Terminus("q", copies=True), 3, name="b")
    client.rest()
    assert client.bodies(link) == [0, 1, 2]
    client.peer.credit(link, 100)
    client.drained(link)
    assert client.bodies(link) == [0, 1, 2, 3, 4]
    assert client.close_link(link).error is None
    assert depth(broker, "q") == 5


def test_an_expired_message_is_not_delivered(client: Client) -> None:
    client.now_ms = time.time_ns() // 1_000_000
    producer = client.sender("q")
    client.send(producer, "short", ttl=0.001)
    client.send(producer, "long", ttl=1000)
    deadline = time.monotonic() + 0.01
    while time.monotonic() < deadline:
        client.rest()
    link = client.receiver("q", 9, name="r")
    client.drained(link)
    assert client.bodies(link) == ["long"]


def test_messages_of_our_own_format_are_plain_amqp_to_others(tmp_path: Path) -> None:
    with engine("amqp in memory", tmp_path / "data") as found:
        ours = found.open()
        ours.send("q", "hello", priority=6)
        client = Client(found.broker).open()
        link = client.receiver("q", 1, name="r")
        message = decoded(client.receive(link, 1)[0].payload)
        assert (message.body, message.address, message.priority) == ("hello", "q", 6)
        client.settle(link, client.messages(link))
        client.send(client.sender("q"), "back", priority=7, correlation_id="c")
        envelope = ours.receiver(queue("q"), 1).wait_for(1)[0].envelope
        assert (envelope.body, envelope.priority, envelope.correlation_id) == ("back", 7, "c")


def test_a_stored_message_that_cannot_be_read_is_a_dead_letter_and_uses_no_credit(
    client: Client, broker: Broker
) -> None:
    put(broker, "q", b"nonsense", format=ENVELOPE_FORMAT)
    put(broker, "q", encoded("good"))
    link = client.receiver("q", 1, name="r")
    client.receive(link, 1)
    assert client.bodies(link) == ["good"]
    client.rest()
    assert depth(broker, "DLQ") == 1


def test_our_own_client_is_told_the_place_of_a_message(broker: Broker) -> None:
    client = Client(broker).open(capabilities=OWN_CLIENT)
    client.send(client.sender("q"), "x")
    payload = client.receive(client.receiver("q", 1, name="r"), 1)[0].payload
    assert (received(payload).position, received(payload).delivery_count) == (1, 0)
    assert decode_received(payload, queue("q")).body == "x"


def test_a_client_of_an_older_version_gets_messages_in_its_form(broker: Broker) -> None:
    envelope = Envelope(queue("q"), BodyKind.TEXT, "x", {"n": 1})
    own, first = pack(envelope), pack(envelope, 1)
    put(broker, "q", own[:-1] + b"\xff", format=ENVELOPE_FORMAT)  # no UTF-8
    for payload in (own, first):
        put(broker, "q", payload, format=format_of(payload))
    put(broker, "q", encoded("standard"))
    client = Client(broker).open(capabilities=("HOLDFAST-ENVELOPE",))
    link = client.receiver("q", 3, name="r")
    payloads = [each.payload for each in client.receive(link, 3)]
    assert [each.endswith(first) for each in payloads] == [True, True, False]
    assert [decode_received(each).body for each in payloads] == ["x", "x", "standard"]
    client.rest()
    assert depth(broker, "DLQ") == 1


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


class Conversions:
    """Counts conversions of messages, and is a clock that goes on with each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now = 0.0
        self.count = 0

        def convert(form: int, payload: bytes) -> bytes:
            self.now += seconds
            self.count += 1
            return as_amqp(form, payload)

        monkeypatch.setattr(consumers, "as_amqp", convert)
        paced = partial(ServerProtocol, clock=lambda: self.now)
        monkeypatch.setattr(protocol_client, "ServerProtocol", paced)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Conversions:
    """Each conversion takes four milliseconds."""
    return Conversions(monkeypatch, 0.004)


def to_convert(broker: Broker, count: int, name: str = "q") -> None:
    put(
        broker,
        name,
        *[pack(Envelope(queue(name), BodyKind.TEXT, f"{n}" + "x" * 20_000)) for n in range(count)],
        format=ENVELOPE_FORMAT,
    )


def handed_out(client: Client, broker: Broker) -> None:
    """Have the engine hand out what it may, while the connection's thread does nothing."""
    client.to_server()
    broker.call(c.Statistics(), WAIT)
    broker.call(c.Statistics(), WAIT)


def test_conversions_for_a_client_are_spread_over_turns(slow: Conversions, broker: Broker) -> None:
    to_convert(broker, 10)
    client = Client(broker).open()
    link = client.receiver("q", 10, name="r")
    handed_out(client, broker)
    counts = []
    for _ in range(4):
        client._woken.clear()
        client.peer.receive(client.server.pending_output())
        counts.append(slow.count)
        assert client._woken.is_set() is (slow.count < 10)  # it asks for its next turn
    assert counts == [3, 6, 9, 10]
    client.receive(link, 10)
    assert [body[0] for body in client.bodies(link)] == list("0123456789")


def test_credit_that_a_client_takes_back_does_not_count_twice_where_conversions_wait(
    slow: Conversions, broker: Broker
) -> None:
    to_convert(broker, 20)
    client = Client(broker).open()
    link = client.receiver("q", 10, name="r")
    handed_out(client, broker)
    client.peer.credit(link, -4)
    client.receive(link, 6)
    client.rest()
    assert [body[0] for body in client.bodies(link)] == list("012345")
    client.peer.credit(link, 4)
    client.receive(link, 10)
    client.rest()
    assert (len(client.messages(link)), client.peer.remaining_credit(link)) == (10, 0)


def test_all_links_of_a_connection_share_the_time_of_a_turn(slow: Conversions, broker: Broker) -> None:
    client = Client(broker).open()
    for name in ("a", "b", "c"):
        to_convert(broker, 3, name)
    for link in [client.receiver(name, name=name) for name in ("a", "b", "c")]:
        client.peer.credit(link, 3)
    handed_out(client, broker)
    client.server.pending_output()
    assert slow.count == 3
    client.until(lambda: slow.count == 9)


def test_a_drain_is_answered_behind_the_conversions_of_later_turns(slow: Conversions, broker: Broker) -> None:
    to_convert(broker, 10)
    client = Client(broker).open()
    link = client.receiver("q", name="r")
    client.peer.credit(link, 20)
    client.peer.drain(link)
    client.until(lambda: client.peer.remaining_credit(link) == 0)
    assert [body[0] for body in client.bodies(link)] == list("0123456789")


@pytest.mark.parametrize("end", ["link", "session", "connection", "loss"])
def test_what_waits_for_its_conversion_goes_back_untouched(slow: Conversions, broker: Broker, end: str) -> None:
    to_convert(broker, 10)
    client = Client(broker).open()
    link = client.receiver("q", 10, name="r")
    handed_out(client, broker)
    client.peer.receive(client.server.pending_output())
    assert slow.count == 3
    if end == "link":
        client.peer.close_link(link)
    elif end == "session":
        client.peer.end_session(client.session)
    elif end == "connection":
        client.peer.close()
    else:
        client.server.receive_end()
    client.rest()
    assert slow.count == 3
    other = connect(broker)
    left = drained(broker, other, "q")
    assert [decode_received(each.payload).body[0] for each in left] == list("0123456789")  # type: ignore[index]
    assert [each.delivery_count for each in left][3:] == [0] * 7


def broken(broker: Broker, count: int, good: bytes) -> None:
    """So many dead letters that cannot be read, ahead of a good one."""
    put(broker, "q", *[b"nonsense"] * count, format=ENVELOPE_FORMAT)
    put(broker, "q", good, format=format_of(good))
    client = connect(broker)
    for _ in range(count + 1):  # rejected one by one, in their order
        got: list[c.Handout] = []
        number = broker.call(c.Attach(client, queue("q"), got.extend), WAIT)
        broker.call(c.Credit(number, 1), WAIT)
        eventually(lambda got=got: len(got) == 1)
        broker.call(c.Settle(number, (got[0].number,), Outcome.REJECTED), WAIT)
        broker.call(c.Detach(number), WAIT)
    broker.call(c.Disconnect(client), WAIT)
    assert depth(broker, "DLQ") == count + 1


@pytest.mark.parametrize("presettled", [False, True])
def test_a_dead_letter_that_cannot_be_decoded_is_delivered_as_bytes(
    client: Client, broker: Broker, presettled: bool
) -> None:
    broken(broker, 12, encoded("good"))
    link = client.receiver("DLQ", 10, presettled=presettled, name="r")
    client.settle(link, client.receive(link, 10))
    client.peer.credit(link, 3)
    first, *_, last = client.receive(link, 13)
    client.settle(link, client.messages(link)[10:])
    message = decoded(first.payload)
    assert (message.body, message.content_type) == (b"nonsense", "application/octet-stream")
    assert "nonsense" not in message.annotations["x-opt-holdfast-undecodable"]
    assert message.properties == {
        "JMS_HOLDFAST_DEAD_LETTER_REASON": "rejected by a consumer",
        "JMS_HOLDFAST_DEAD_LETTER_QUEUE": "q",
        "JMS_HOLDFAST_DEAD_LETTER_COUNT": 0,
    }
    assert decoded(last.payload).body == "good"
    assert depth(broker, "DLQ") == 0


def test_a_dead_letter_that_cannot_be_decoded_says_how_often_it_was_delivered(client: Client, broker: Broker) -> None:
    broken(broker, 1, encoded("good"))
    link = client.receiver("DLQ", 1, name="r")
    client.settle(link, client.receive(link, 1), FAILED_STATE)
    client.peer.credit(link, 1)
    assert [decoded(each.payload).delivery_count for each in client.receive(link, 2)] == [0, 1]


def test_a_client_of_an_older_version_gets_a_broken_dead_letter_as_bytes(broker: Broker) -> None:
    broken(broker, 2, pack(Envelope(queue("q"), BodyKind.TEXT, "good")))
    client = Client(broker).open(capabilities=("HOLDFAST-ENVELOPE",))
    link = client.receiver("DLQ", 3, name="r")
    envelopes = [decode_received(each.payload, queue("DLQ")) for each in client.receive(link, 3)]
    assert [each.body for each in envelopes] == [b"nonsense", b"nonsense", "good"]
    assert (envelopes[0].properties or {})["JMS_HOLDFAST_DEAD_LETTER_QUEUE"] == "q"


def test_a_browser_of_the_dead_letters_sees_those_that_cannot_be_decoded(client: Client, broker: Broker) -> None:
    broken(broker, 1, encoded("good"))
    link = client.receiver(Terminus("DLQ", copies=True), 2, name="r")
    envelopes = [decode_received(each.payload, queue("DLQ")) for each in client.receive(link, 2)]
    assert [each.body for each in envelopes] == [b"nonsense", "good"]
    assert depth(broker, "DLQ") == 2


def test_a_message_that_cannot_be_decoded_does_not_vanish_on_a_presettled_link(
    monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    logged: list[str] = []
    log = partial(ServerProtocol, log=lambda kind, text, *arguments: logged.append(text % arguments))
    monkeypatch.setattr(protocol_client, "ServerProtocol", log)
    put(broker, "q", b"nonsense", format=ENVELOPE_FORMAT)
    put(broker, "q", encoded("good"))
    client = Client(broker).open()
    browser = client.receiver(Terminus("q", copies=True), 2, name="b")
    client.receive(browser, 1)
    client.rest()
    assert depth(broker, "DLQ") == 0
    link = client.receiver("q", 1, presettled=True, name="r")
    client.receive(link, 1)
    client.rest()
    assert client.bodies(link) == ["good"]
    assert depth(broker, "DLQ") == 1
    assert ["browser" in each for each in logged] == [True, False]
    dead = client.receiver("DLQ", 1, name="d")
    assert decode_received(client.receive(dead, 1)[0].payload, queue("DLQ")).body == b"nonsense"


#: The least budget of a connection, and what it may have in hand then.
_SMALL_BYTES = 1 << 20
_IN_HAND = 1000


def fill(broker: Broker, count: int) -> None:
    sender = connect(broker)
    assert broker.call(c.Enqueue(sender, queue("q"), [c.NewMessage(0, encoded("x"))] * count), WAIT) is None


def test_a_connection_holds_a_bounded_number_of_messages(broker: Broker) -> None:
    client = Client(broker, max_connection_bytes=_SMALL_BYTES).open()
    fill(broker, 3000)
    links = [client.receiver("q", 2000, name=f"r{number}") for number in range(3)]
    client.rest()
    counts = [len(client.messages(link)) for link in links]
    assert sum(counts) <= _IN_HAND + len(links) * 16
    assert min(counts) >= 16, "or a consumer would starve beside one that does not settle"
    done: dict[int, int] = dict.fromkeys(links, 0)
    while sum(done.values()) < 3000:
        for link in links:
            got = client.messages(link)[done[link] :]
            done[link] += len(got)
            client.settle(link, got)


def test_consumers_of_empty_queues_are_no_reason_for_a_warning(broker: Broker) -> None:
    logged: list[Any] = []
    client = Client(broker, max_connection_bytes=_SMALL_BYTES)
    client.server._consumers._log = lambda *said: logged.append(said)
    client.open()
    for number in range(_IN_HAND // 100):
        client.receiver(f"empty {number}", 1000, name=f"r{number}")
    client.rest()
    assert client.server._consumers._room == 0
    assert not logged
    fill(broker, 3000)
    client.receiver("q", 3000, name="first")
    client.receiver("q", 3000, name="second")
    client.rest()
    assert not logged, "they have few in hand"


def test_a_client_that_holds_all_that_it_may_is_logged_once(broker: Broker) -> None:
    logged: list[Any] = []
    client = Client(broker, max_connection_bytes=_SMALL_BYTES)
    client.server._consumers._log = lambda *said: logged.append(said)
    client.open()
    fill(broker, 3000)
    for number in range(3):
        client.receiver("q", 2000, name=f"r{number}")
    client.rest()
    ((kind, text, held),) = logged
    assert kind == "in hand"
    assert "unsettled messages gets few more" in text
    assert 2 * held >= _IN_HAND


def test_a_consumer_that_settles_gets_more_beside_others_that_hold_all_that_the_connection_may(broker: Broker) -> None:
    """The server writes after each read, and when it is woken: nothing else happens on the connection, no heartbeat."""
    client = Client(broker, max_connection_bytes=_SMALL_BYTES).open()
    fill(broker, 3000)
    for number in range(3):
        client.receiver("q", 2000, name=f"holder {number}")
    client.rest()
    link = client.receiver("q", 100, name="settles")
    client.rest()

    def write() -> None:
        while data := client.server.pending_output():
            client.peer.receive(data)
        client.events += client.peer.events()

    done = 0
    for _ in range(6):
        got = client.messages(link)[done:]
        assert got
        done += len(got)
        client.peer.settle(link, [each.number for each in got], ACCEPTED_STATE)
        client.peer.credit(link, len(got))
        client.to_server()
        write()
        for _ in range(20):
            broker.call(c.Statistics(), WAIT)  # what was asked of the engine before is answered
            if client._woken.is_set():
                client._woken.clear()
                write()


def test_a_drain_ends_where_the_connection_holds_too_much(broker: Broker) -> None:
    client = Client(broker, max_connection_bytes=_SMALL_BYTES).open()
    fill(broker, 3000)
    first = client.receiver("q", 2000, name="first")
    client.rest()
    other = client.receiver("q", 50, name="other")
    client.drained(other)
    client.drained(first)
    assert len(client.messages(first)) <= _IN_HAND + 16
    assert len(client.messages(other)) >= 16


def test_settlements_of_an_open_transaction_are_in_hand(broker: Broker) -> None:
    client = Client(broker, max_connection_bytes=_SMALL_BYTES).open()
    fill(broker, 3000)
    coordinator = client.coordinator()
    txn_id = client.declare(coordinator)
    link = client.receiver("q", 3000, name="r")
    client.rest()
    got = client.messages(link)
    client.settle(link, got, in_transaction(txn_id, ACCEPTED_STATE))
    assert len(client.messages(link)) <= len(got) + 16
    assert client.discharge(coordinator, txn_id) == ACCEPTED_STATE
    client.rest()
    assert len(client.messages(link)) > len(got) + 16
