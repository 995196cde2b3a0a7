"""The server's protocol in memory: the connection, its sessions, its budget, and faults of the bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    MODIFIED,
    REJECTED,
    TRANSACTIONAL,
    LinkFlow,
    LinkRemoteClose,
    RemoteClose,
    RemoteOpen,
    SessionRemoteClose,
    State,
    Terminus,
)
from broker_adapter.amqp.management import ManagementRequest, pack_request, unpack_answer
from broker_adapter.amqp.messages.values import Described, Reader, Symbol, UInt, ULong, encode
from broker_adapter.amqp.sasl import AMQP_HEADER, PLAIN, SASL_HEADER, ClientLogin, ServerLogin
from broker_adapter.amqp.wire import (
    MANAGEMENT_ADDRESS,
    SELECTOR_CODE,
    envelope_capabilities,
)
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.errors import (
    ConnectionLostException,
    JMSSecurityException,
)
from broker_adapter.server.links.budget import Budget
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.amqp.frames import transfer
from tests.broker_adapter.engine.driving import WAIT, depth
from tests.broker_adapter.server.protocol_client import (
    JMS_CLIENT,
    Client,
    code_of,
    decoded,
    durable,
    encoded,
    in_transaction,
    put,
)
from tests.contracts.transports import eventually

# The connection.


def test_a_connection_is_answered_and_closed(broker: Broker) -> None:
    client = Client(broker)
    assert not client.server.is_open
    client.open()
    answer = client.of(RemoteOpen)[0]
    assert answer.properties["product"] == "Holdfast"
    assert {"ANONYMOUS-RELAY", "DELAYED_DELIVERY", "SHARED-SUBS"} <= answer.offered_capabilities
    assert not any(each.startswith("HOLDFAST") for each in answer.offered_capabilities)
    assert client.server.is_open
    assert "'foreign'" in repr(client.server)
    client.peer.close()
    assert client.until(lambda: client.of(RemoteClose))[0].error is None
    assert client.server.output_closed
    assert client.server.error is None


@pytest.mark.parametrize(
    ("asked", "offered"),
    [
        (["HOLDFAST-ENVELOPE"], 1),
        (["HOLDFAST-ENVELOPE", "HOLDFAST-ENVELOPE-2"], 1),
        (["HOLDFAST-ENVELOPE-2"], 1),
        (["HOLDFAST-ENVELOPE-0"], 0),
        (["HOLDFAST-ENVELOPE-x", "HOLDFAST-ENVELOPES"], 0),
    ],
)
def test_our_format_is_offered_to_a_client_that_asks_for_it_in_the_lower_version(
    broker: Broker, asked: list[str], offered: int
) -> None:
    client = Client(broker).open(capabilities=tuple(asked))
    found = {each for each in client.of(RemoteOpen)[0].offered_capabilities if each.startswith("HOLDFAST")}
    assert found == set(envelope_capabilities(offered))


def test_a_client_id_belongs_to_one_connection_at_a_time(broker: Broker) -> None:
    first = Client(broker).open("me", JMS_CLIENT)
    second = Client(broker)
    second.peer.open("me", desired_capabilities=JMS_CLIENT)
    error = second.until(lambda: second.of(RemoteClose))[0].error
    assert second.of(RemoteOpen)[0].properties["amqp:connection-establishment-failed"] is True
    assert (error.condition, error.info) == ("amqp:invalid-field", {"invalid-field": "container-id"})
    assert not second.server.is_open
    first.peer.close()
    first.rest()
    Client(broker).open("me", JMS_CLIENT)


def test_a_container_that_does_not_claim_to_be_the_only_one_may_come_twice(broker: Broker) -> None:
    Client(broker).open("same")
    Client(broker).open("same")


def test_what_comes_ahead_of_the_answers_is_answered_in_order(broker: Broker) -> None:
    client = Client(broker)
    client.peer.open("hasty")
    session = client.peer.begin_session()
    link = client.peer.attach_receiver(session, "r", Terminus("q"), Terminus())
    client.peer.credit(link, 5)
    gone = client.peer.attach_sender(session, "s", Terminus(), Terminus("q"))
    client.peer.close_link(gone)
    put(broker, "q", encoded("x"))
    assert len(client.receive(link, 1)) == 1
    client.until(lambda: client.of(LinkRemoteClose, gone))


def test_a_connection_that_opens_and_closes_at_once_leaves_nothing_behind(broker: Broker) -> None:
    client = Client(broker)
    client.peer.open("hasty", desired_capabilities=JMS_CLIENT)
    client.peer.begin_session()
    client.peer.close()
    client.until(lambda: client.server.output_closed)
    client.rest()
    Client(broker).open("hasty", JMS_CLIENT)


def frame(code: int, *fields: Any) -> bytes:
    body = encode(Described(ULong(code), list(fields)))
    return (8 + len(body)).to_bytes(4) + b"\x02\x00\x00\x00" + body


def performatives(said: bytes) -> list[tuple[int, list[Any]]]:
    """Code and fields of each frame after a header."""
    found, position = [], 8
    while position < len(said):
        size = int.from_bytes(said[position : position + 4])
        if size > 8:
            performative = Reader(said, position + 8, position + size).value()
            found.append((int(performative.descriptor), performative.value))
        position += size
    return found


OPEN, BEGIN, ATTACH, FLOW, END, CLOSE = 0x10, 0x11, 0x12, 0x13, 0x17, 0x18


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize(
    ("target", "source"),
    [
        (Described(ULong(0x30), []), Described(ULong(0x28), [MANAGEMENT_ADDRESS])),
        (Described(ULong(0x29), [MANAGEMENT_ADDRESS]), Described(ULong(0x28), ["q"])),
        (Described(ULong(0x29), []), Described(ULong(0x28), [None, 0, None, 0, True])),
        (Described(ULong(0x29), [None, 0, None, 0, True]), None),
        (Described(ULong(0x29), ["q"]), Described(ULong(0x28), [])),
        (None, Described(ULong(0x28), ["q", 0, None, 0, False, None, None, {Symbol("x"): "y"}])),
    ],
)
def test_a_session_that_begins_and_ends_in_one_piece_is_answered_once_and_leaves_nothing_behind(
    broker: Broker, opened: bool, target: Any, source: Any
) -> None:
    """proton's own client would not, since it could not take the answer."""
    server = Client(broker).server
    said = b""

    def rest() -> None:
        nonlocal said
        for _ in range(5):
            broker.call(c.Statistics(), WAIT)
            said += server.pending_output()

    first = AMQP_HEADER + frame(OPEN, "hasty")
    if opened:
        server.receive(first, 0)
        rest()
        first = b""
    limits = (UInt(0), UInt(100), UInt(100))
    piece = [
        frame(BEGIN, None, *limits),
        frame(ATTACH, "s", UInt(0), False, None, None, Described(ULong(0x28), []), target, None, None, UInt(0)),
        frame(ATTACH, "r", UInt(1), True, None, None, source, Described(ULong(0x29), [])),
        frame(FLOW, *(UInt(number) for number in (0, 100, 0, 100, 1, 0, 5, 0)), True),
        frame(END),
    ]
    for _ in range(3):
        server.receive(first + b"".join(piece), 0)
        rest()
        first = b""
    heard = performatives(said)
    sessions = [each for each in heard if each[0] in (BEGIN, END)]
    assert [code for code, _ in sessions] == [BEGIN, END] * 3
    assert [fields[0] for code, fields in sessions if code == BEGIN] == [0, 0, 0]
    assert CLOSE not in [code for code, _ in heard]
    assert [each for each in performatives(said) if each[0] == ATTACH and each[1][1] is None] == []
    eventually(lambda: all(each.name in ("q", "DLQ") for each in broker.call(c.Statistics(), WAIT).queues))
    assert not any(each.consumers for each in broker.call(c.Statistics(), WAIT).queues)
    assert server.error is None


def test_a_session_is_ended_when_its_begin_was_answered(client: Client) -> None:
    for count in (1, 2, 3):
        session = client.peer.begin_session()
        client.peer.attach_sender(session, "s", Terminus(), Terminus("q"))
        client.peer.end_session(session)
        client.rest()
        assert len(client.of(SessionRemoteClose)) == count
    assert client.send(client.sender("q"), "the connection goes on") == [ACCEPTED_STATE]


def test_closing_says_why(client: Client) -> None:
    client.server.close(ConnectionLostException("the server is stopping", error_code="amqp:connection:forced"))
    client.pump()
    error = client.of(RemoteClose)[0].error
    assert (error.condition, error.description) == ("amqp:connection:forced", "the server is stopping")


def test_a_lost_connection_gives_back_what_it_held(client: Client, broker: Broker) -> None:
    client.send(client.sender("q"), "a", "b")
    client.receive(client.receiver("q", 1, name="r"), 1)
    client.server.receive_end()
    client.server.receive_end()
    client.rest()
    again = Client(broker).open()
    link = again.receiver("q", 5, name="r")
    assert [decoded(each.payload).delivery_count for each in again.receive(link, 2)] == [1, 0]


def test_bytes_that_are_no_amqp_end_the_connection_with_a_reason(client: Client) -> None:
    client.server.receive(b"\x7f\xff\xff\xff\x02\x00\x00\x00", client.now_ms)
    client.pump()
    assert client.of(RemoteClose)[0].error.condition == "amqp:connection:framing-error"
    assert client.server.error is not None
    assert client.server.output_closed
    client.server.receive(b"more", client.now_ms)


def test_a_silent_client_is_dropped(broker: Broker) -> None:
    client = Client(broker, idle_timeout_seconds=1).open()
    assert client.server.tick(1) is not None
    client.pump()
    for now_ms in (1_000, 2_000, 3_000, 4_000):
        client.server.tick(now_ms)
    assert client.server.error is not None
    assert client.server.error.error_code == "amqp:resource-limit-exceeded"
    assert client.server.tick(5_000) is None


# The login in front.


class OneUser:
    """Bob, by PLAIN."""

    def verifier(self, username: str) -> None:
        return None

    def check(self, username: str, password: str) -> bool:
        return (username, password) == ("bob", "secret")


def log_in(client: Client, login: ClientLogin, chunk_bytes: int) -> None:
    while not login.done and login.error is None:
        data = login.pending_output()
        for start in range(0, len(data), chunk_bytes):
            client.server.receive(data[start : start + chunk_bytes], client.now_ms)
        answer = client.server.pending_output()
        login.receive(answer)
        if not data and not answer:
            break


@pytest.mark.parametrize("chunk_bytes", [1, 1000])
def test_amqp_follows_the_login(broker: Broker, chunk_bytes: int) -> None:
    client = Client(broker, ServerLogin(OneUser(), plain=True))
    assert client.server.tick(1) is None
    login = ClientLogin([PLAIN], "bob", "secret")
    log_in(client, login, chunk_bytes)
    assert login.done
    client.open()
    assert client.send(client.sender("q"), "x") == [ACCEPTED_STATE]


def test_a_login_that_fails_is_answered_and_closed(broker: Broker) -> None:
    client = Client(broker, ServerLogin(OneUser(), plain=True))
    login = ClientLogin([PLAIN], "bob", "guess")
    log_in(client, login, 1000)
    assert isinstance(login.error, JMSSecurityException)
    assert isinstance(client.server.error, JMSSecurityException)
    assert client.server.output_closed
    assert not client.server.is_open
    client.server.close()
    client.server.receive_end()


def test_a_client_that_skips_a_required_login_gets_the_header_that_is_expected(broker: Broker) -> None:
    client = Client(broker, ServerLogin(OneUser(), plain=True))
    client.server.receive(AMQP_HEADER, client.now_ms)
    assert client.server.pending_output() == SASL_HEADER
    assert client.server.output_closed


# What one connection may keep.


class Parts:
    """A second session, whose messages come in parts made by hand, each on a link of its own."""

    def __init__(self, client: Client, links: int) -> None:
        self.client = client
        session = client.peer.begin_session()
        self.links = [
            client.peer.attach_sender(session, f"parts {number}", Terminus(), Terminus("parts"))
            for number in range(links)
        ]
        client.until(lambda: all(client.of(LinkFlow, link) for link in self.links))
        self._begun: list[int] = []

    def send(self, link: int, size: int, *, more: bool = True, txn_id: bytes | None = None) -> None:
        """A part of the message of this link, counted from 0."""
        is_first = link not in self._begun
        if is_first:
            self._begun.append(link)
        number, tag = (len(self._begun) - 1, b"t") if is_first else (None, None)
        data = transfer(1, link, number, tag, bytes(size), more=more, txn_id=txn_id)
        self.client.server.receive(data, self.client.now_ms)
        self.client.rest()

    def refusal(self, link: int) -> AmqpError | None:
        closed = self.client.of(LinkRemoteClose, self.links[link])
        return closed[0].error if closed else None


@pytest.fixture
def small(broker: Broker) -> Client:
    """A client of a server that keeps a mebibyte for a connection."""
    return Client(broker, max_connection_bytes=1 << 20).open()


def test_unfinished_messages_beyond_the_budget_are_refused_the_largest_first(small: Client) -> None:
    parts = Parts(small, 4)
    for link, size in enumerate((300_000, 400_000, 200_000)):
        parts.send(link, size)
    assert [parts.refusal(link) for link in range(3)] == [None] * 3
    assert small.server.wants_input
    parts.send(3, 150_000)
    error = parts.refusal(1)
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    assert "option max_connection_bytes" in str(error.description)
    assert [parts.refusal(link) for link in (0, 2, 3)] == [None] * 3
    assert small.server.wants_input
    assert small.send(small.sender("q"), "the connection goes on") == [ACCEPTED_STATE]


def test_the_largest_transaction_beyond_the_budget_is_undone_and_its_discharge_told(
    small: Client, broker: Broker
) -> None:
    small.send(small.sender("in", name="in"), "request")
    consumer = small.receiver("in", 1, name="r")
    producer, coordinator = small.sender("out"), small.coordinator()
    large, other = small.declare(coordinator), small.declare(coordinator)
    small.settle(consumer, small.receive(consumer, 1), in_transaction(large, ACCEPTED_STATE))
    small.send(producer, *["x" * 100_000] * 6, state=in_transaction(large))
    small.send(producer, *["y" * 100_000] * 3, state=in_transaction(other))
    small.peer.credit(consumer, 1)
    small.rest()
    assert len(small.messages(consumer)) == 1
    small.send(producer, "y" * 200_000, state=in_transaction(other))
    assert decoded(small.receive(consumer, 2)[1].payload).delivery_count == 1  # at once
    late = small.send(producer, "x", state=in_transaction(large))
    assert code_of(late[0]) == (REJECTED, "amqp:resource-limit-exceeded")
    assert "option max_connection_bytes" in str(late[0].error.description)  # type: ignore[union-attr]
    state = small.discharge(coordinator, large)
    assert code_of(state) == (REJECTED, "amqp:resource-limit-exceeded")
    assert "option max_connection_bytes" in str(state.error.description)  # type: ignore[union-attr]
    assert small.discharge(coordinator, other) == ACCEPTED_STATE
    assert depth(broker, "out") == 4
    again = small.declare(coordinator)
    small.send(producer, *["z" * 100_000] * 9, state=in_transaction(again))
    assert small.discharge(coordinator, again) == ACCEPTED_STATE
    assert small.server._budget == Budget(1 << 20)


def test_unfinished_messages_and_transactions_share_the_budget(small: Client) -> None:
    parts = Parts(small, 2)
    producer, coordinator = small.sender("out"), small.coordinator()
    txn_id = small.declare(coordinator)
    small.send(producer, *["x" * 100_000] * 7, state=in_transaction(txn_id))
    parts.send(0, 300_000)
    assert parts.refusal(0) is None
    parts.send(1, 300_000)
    assert [parts.refusal(link) for link in range(2)] == [None, None]
    assert code_of(small.discharge(coordinator, txn_id)) == (REJECTED, "amqp:resource-limit-exceeded")


def test_many_small_messages_of_a_transaction_count_for_what_they_cost(broker: Broker) -> None:
    client = Client(broker, max_connection_bytes=1 << 20).open()
    producer, coordinator = client.sender("out"), client.coordinator()
    txn_id = client.declare(coordinator)
    states: list[State] = []
    while len(states) < 5_000 and all(state.code == TRANSACTIONAL for state in states[-1:]):
        client.until(lambda: client.peer.remaining_credit(producer) > 0)
        states += client.send(producer, *["x"] * client.peer.remaining_credit(producer), state=in_transaction(txn_id))
    assert 1_000 < len(states) < 4_000
    assert code_of(client.discharge(coordinator, txn_id)) == (REJECTED, "amqp:resource-limit-exceeded")


def test_messages_that_the_engine_holds_stop_the_reading_until_they_are_answered(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker(max_queue_messages=1, blocked_send_timeout_seconds=60)
    put(broker, "q", encoded("full"))
    client = Client(broker, max_connection_bytes=1 << 20, max_input_bytes=16 << 20).open()
    link = client.sender("q")
    assert client.peer.remaining_credit(link) == 2  # of half the budget
    for _ in range(2):
        client.peer.send(link, encoded("x" * 600_000))
        client.rest()
    assert not client.server.wants_input
    other = Client(broker).open()
    taker = other.receiver("q", 1, name="taker")
    other.settle(taker, other.receive(taker, 1))
    client.until(lambda: client.answers(link))
    assert client.server.wants_input


class SlowClient(Client):
    """Of a server whose requests are answered when the test says."""

    def __init__(self, *arguments: Any, **limits: Any) -> None:
        self.pending: list[Callable[[Any], None]] = []
        super().__init__(*arguments, **limits)

    def _request(self, operation: str, unpack: Callable[[], dict[str, Any]], done: Callable[[Any], None]) -> None:
        self.pending.append(done)


def test_requests_that_are_carried_out_stop_the_reading_above_the_budget(broker: Broker) -> None:
    client = SlowClient(broker, max_connection_bytes=1 << 20).open()
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    answers = client.receiver(MANAGEMENT_ADDRESS, 10, name="answers")
    for number in range(3):
        request = ManagementRequest(
            number, "stage", {"transaction": "t", "queue": "q", "first": 0, "messages": [b"x" * 400_000]}
        )
        client.peer.send(asking, pack_request(request), settled=True)
    client.rest()
    assert len(client.pending) == 3
    assert not client.server.wants_input
    client.pending.pop()("done")
    client.rest()
    assert client.server.wants_input
    assert len(client.messages(answers)) == 1


def test_answers_that_are_not_taken_stop_the_requests_and_are_bounded(broker: Broker) -> None:
    """Neither credit for answers without end, nor a session that takes none, makes them pile up."""
    client = SlowClient(broker, max_connection_bytes=1 << 20, max_output_bytes=1 << 16).open()
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    session = client.peer.begin_session()
    client.peer._endpoints.sessions[session].endpoint.incoming_capacity = 1 << 20  # one frame
    answers = client.receiver(MANAGEMENT_ADDRESS, 1_000_000, session=session, name="answers")
    carried_out = 0
    while client.peer.remaining_credit(asking):
        client.peer.send(asking, pack_request(ManagementRequest(carried_out, "statistics", {})), settled=True)
        client.to_server()
        client.pending.pop()("x" * 10_000)
        carried_out += 1
        assert carried_out < 1_000
        client.peer.receive(client.server.pending_output())  # and takes nothing out of the session
    assert carried_out < 150  # the credit for questions, and what one frame and the output take
    assert client.server.wants_input, "or the session's new window would not be read"
    client.rest()
    assert len(client.messages(answers)) == carried_out
    assert client.server.wants_input
    assert (client.server._budget.requests, client.server._budget.answers) == (0, 0)


def test_answers_above_the_budget_that_wait_for_credit_stop_the_requests_and_not_the_reading(broker: Broker) -> None:
    client = SlowClient(broker, max_connection_bytes=1 << 20).open()
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    answers = client.receiver(MANAGEMENT_ADDRESS, 1, name="answers")
    count = 20
    for number in range(count):
        client.peer.send(asking, pack_request(ManagementRequest(number, "statistics", {})), settled=True)
        client.rest()
        if client.pending:
            client.pending.pop()("x" * 100_000)
            client.rest()
    assert client.server.wants_input, "or the credit would not be read"
    client.peer.credit(answers, count)
    found = [unpack_answer(each.payload) for each in client.receive(answers, count)]
    assert [each.number for each in found] == list(range(count))
    assert [each.error is None for each in found] == [True] * 12 + [False] * 8  # one was sent, then 11 were too many
    client.peer.send(asking, pack_request(ManagementRequest(count, "statistics", {})), settled=True)
    client.rest()
    client.pending.pop()("done")
    assert unpack_answer(client.receive(answers, count + 1)[count].payload).result == "done"


def test_a_session_that_takes_nothing_does_not_stop_the_reading_and_a_socket_that_takes_nothing_does(
    broker: Broker,
) -> None:
    count = 40
    put(broker, "q", *[encoded(f"{number:090000}") for number in range(count)])
    client = Client(broker, max_connection_bytes=1 << 20).open()
    session = client.peer.begin_session()
    client.peer._endpoints.sessions[session].endpoint.incoming_capacity = 1 << 20  # one frame
    link = client.receiver(Terminus("q"), session=session, name="r")
    client.peer.credit(link, count)
    client.to_server()
    for _ in range(20):
        broker.call(c.Statistics(), WAIT)
        client.peer.receive(client.server.pending_output())
    assert client.server._output.waiting_bytes > 1 << 20
    assert client.server.wants_input, "or the session's new window would not be read"
    client.server.pause()
    assert not client.server.wants_input
    client.server.resume()
    assert client.server.wants_input
    client.receive(link, count)


def test_a_client_is_read_from_again_when_it_is_admitted(broker: Broker) -> None:
    client = Client(broker)
    assert client.server.wants_input
    client.peer.open("foreign")
    client.to_server()
    assert not client.server.wants_input
    client.until(lambda: client.of(RemoteOpen))
    assert client.server.wants_input


def test_a_client_that_is_not_read_from_is_not_taken_for_silent(broker: Broker) -> None:
    client = SlowClient(broker, max_connection_bytes=1 << 20, idle_timeout_seconds=1).open()
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    for number in range(3):
        client.peer.send(
            asking,
            pack_request(
                ManagementRequest(
                    number, "stage", {"transaction": "t", "queue": "q", "first": 0, "messages": [b"x" * 400_000]}
                )
            ),
            settled=True,
        )
    client.rest()
    for now_ms in range(0, 60_000, 500):
        client.server.tick(now_ms)
    assert not client.server.wants_input
    assert not client.server.has_ended
    for done in client.pending:
        done(None)
    client.rest()
    client.server.tick(61_000)
    client.server.tick(62_001)
    assert client.server.has_ended


@pytest.mark.parametrize("fields", [{}, {"copies": True}], ids=["consumers", "browsers"])
def test_large_messages_for_many_sessions_that_take_none_are_bounded(broker: Broker, fields: Any) -> None:
    """Each consumer may be handed one message, however large; together they may not."""
    size, consumers = 200_000, 40
    put(broker, "q", *[encoded(f"{number:0{size}}") for number in range(consumers)])
    client = Client(broker, max_connection_bytes=1 << 20, max_output_bytes=1 << 16).open()
    links = []
    for number in range(consumers):
        session = client.peer.begin_session()
        client.peer._endpoints.sessions[session].endpoint.incoming_capacity = 1 << 20  # one frame
        links.append(client.receiver(Terminus("q", **fields), session=session, name=f"r{number}"))
    for link in links:
        client.peer.credit(link, 1)
    client.to_server()
    for _ in range(20):
        broker.call(c.Statistics(), WAIT)
        client.peer.receive(client.server.pending_output())
    waits = client.server._output.waiting_bytes
    assert waits < (1 << 20) // 4 + 9 * size
    assert fields or waits < (1 << 20) // 4 + 2 * size
    client.rest()
    assert sum(len(client.messages(link)) for link in links) == consumers
    assert fields or sorted(int(body[-9:]) for link in links for body in client.bodies(link)) == list(range(consumers))
    assert [decoded(each.payload).delivery_count for link in links for each in client.messages(link)] == [0] * consumers


# Anything at all.


class Recorder(Client):
    """Notes what the client says."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.said = b""

    def to_server(self) -> bool:
        data = self.peer.pending_output()
        self.said += data
        if data:
            self.server.receive(data, self.now_ms)
        return bool(data)


@lru_cache(1)
def conversation() -> bytes:
    """What a client says that does a little of everything."""
    broker = Broker(EngineSettings())
    client = Recorder(broker)
    client.open("talker", JMS_CLIENT)
    producer = client.sender("q", name="p")
    client.send(producer, "a", "b", "c", properties={"k": "v"})
    consumer = client.receiver("q", 2, name="r")
    first, second = client.receive(consumer, 2)
    coordinator = client.coordinator()
    txn_id = client.declare(coordinator)
    client.send(producer, "d", state=in_transaction(txn_id))
    client.settle(consumer, [first], in_transaction(txn_id, ACCEPTED_STATE))
    client.discharge(coordinator, txn_id)
    client.settle(consumer, [second], State(MODIFIED, failed=True, annotations={Symbol("x"): 1}))
    client.peer.credit(consumer, 10)
    client.drained(consumer)
    client.sender(Terminus(dynamic=True), name="t")
    client.close_link(client.receiver(durable(), 1, name="reader"), closed=False)
    client.peer.attach_receiver(client.session, "unsubscribe", None, Terminus())
    filters = {Symbol("jms-selector"): Described(ULong(SELECTOR_CODE), "a = 1")}
    client.peer.attach_receiver(client.session, "selector", Terminus("q", filters=filters), Terminus())
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    client.peer.send(asking, pack_request(ManagementRequest(1, "statistics", {})), settled=True)
    client.receiver(MANAGEMENT_ADDRESS, 10, name="answers")
    client.rest()
    client.peer.end_session(client.session)
    client.peer.close()
    client.rest()
    broker.close()
    return client.said


@pytest.fixture(scope="module")
def patient_broker() -> Iterator[Broker]:
    broker = Broker(EngineSettings(blocked_send_timeout_seconds=0))
    yield broker
    broker.close()


def listen_to(broker: Broker, said: bytes, chunk_bytes: int) -> None:
    client = Client(broker)
    for start in range(0, len(said), chunk_bytes):
        client.server.receive(said[start : start + chunk_bytes], client.now_ms)
        client.server.pending_output()
    broker.call(c.Statistics(), WAIT)
    client.server.pending_output()
    client.server.receive_end()
    broker.call(c.Statistics(), WAIT)
    client.server.pending_output()
    assert broker.failed is None


@settings(max_examples=150, deadline=None)
@given(
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=3),
    chunk_bytes=st.sampled_from([7, 100, 1_000_000]),
)
def test_a_changed_octet_never_breaks_the_server(
    patient_broker: Broker, changes: list[tuple[float, int]], chunk_bytes: int
) -> None:
    said = bytearray(conversation())
    for place, octet in changes:
        said[8 + int(place * (len(said) - 8))] = octet
    listen_to(patient_broker, bytes(said), chunk_bytes)


@settings(max_examples=50, deadline=None)
@given(frames=st.lists(st.integers(0, 100), min_size=1, max_size=40))
def test_frames_left_out_repeated_or_in_another_order_never_break_the_server(
    patient_broker: Broker, frames: list[int]
) -> None:
    said = conversation()
    cut, position = [], 8
    while position < len(said):
        size = int.from_bytes(said[position : position + 4])
        cut.append(said[position : position + size])
        position += size
    chosen = [cut[0], cut[1], *[cut[number % len(cut)] for number in frames]]
    listen_to(patient_broker, said[:8] + b"".join(chosen), 1_000_000)
