"""The server's protocol in memory, with a bare peer in the place of a client that we did not write."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proton import Message

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED,
    ACCEPTED_STATE,
    DECLARED,
    FAILED_STATE,
    MODIFIED,
    NO_STATE,
    REJECTED,
    RELEASED_STATE,
    TRANSACTIONAL,
    Dispositions,
    Incoming,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
    RemoteClose,
    RemoteOpen,
    SessionRemoteClose,
    State,
    Terminus,
    Transfers,
)
from broker_adapter.amqp.management import Request, pack_request, unpack_answer
from broker_adapter.amqp.payloads import decode_received, format_of, received
from broker_adapter.amqp.peer import Peer, PeerLimits
from broker_adapter.amqp.sasl import AMQP_HEADER, PLAIN, SASL_HEADER, ClientLogin, ServerLogin
from broker_adapter.amqp.values import Described, Reader, Symbol, UInt, ULong, encode
from broker_adapter.amqp.wire import (
    DECLARE_CODE,
    DISCHARGE_CODE,
    MANAGEMENT_ADDRESS,
    NO_LOCAL_CODE,
    SELECTOR_CODE,
    envelope_capabilities,
)
from broker_adapter.destination import queue
from broker_adapter.engine import commands as c
from broker_adapter.engine.broker import Broker
from broker_adapter.envelope import AMQP_FORMAT, ENVELOPE_FORMAT, ENVELOPE_VERSION, BodyKind, Envelope, pack
from broker_adapter.errors import (
    ConnectionLostException,
    JMSException,
    JMSSecurityException,
)
from broker_adapter.server.budget import Budget
from broker_adapter.server.consumers import SLICE_MESSAGES
from broker_adapter.server.protocol import ServerProtocol
from broker_adapter.settings import EngineSettings, ServerSettings
from tests.broker_adapter.amqp import frames
from tests.broker_adapter.amqp.frames import transfer
from tests.broker_adapter.engine.driving import WAIT, connect, depth, drained
from tests.contracts.transports import engine, eventually

JMS_CLIENT = ("sole-connection-for-container",)
OWN_CLIENT = tuple(envelope_capabilities(ENVELOPE_VERSION))
TOPIC = ("topic",)


class Client:
    """A peer at the other end of a pipe from the server's protocol, and all that it has heard."""

    def __init__(self, broker: Broker, login: ServerLogin | None = None, **limits: Any) -> None:
        self.broker = broker
        self.peer = Peer(PeerLimits())
        self._woken = threading.Event()
        self.server = ServerProtocol(broker, ServerSettings(**limits), login, self._woken.set, self._request)
        self.events: list[Any] = []
        self.now_ms = 1_000

    def _request(self, operation: str, arguments: dict[str, Any], done: Callable[[Any], None]) -> None:
        try:
            result = self.broker.request(operation, arguments, WAIT)
        except JMSException as error:
            result = error
        done(result)

    # Bytes.

    def to_server(self) -> bool:
        """Carry what the client has to say; the server does not answer yet."""
        data = self.peer.pending_output()
        if data:
            self.server.receive(data, self.now_ms)
        return bool(data)

    def pump(self) -> bool:
        """Carry bytes both ways until nothing moves; returns whether anything did."""
        moved = False
        while True:
            sent = self.to_server()
            data = self.server.pending_output()
            if data:
                self.peer.receive(data)
            self.events += self.peer.events()
            if not sent and not data:
                return moved
            moved = True

    def until(self, condition: Callable[[], Any]) -> Any:
        """Go on until it holds; returns what it found."""
        deadline = time.monotonic() + WAIT
        while True:
            self._woken.clear()
            self.pump()
            found = condition()
            if found:
                return found
            assert self._woken.wait(max(0, deadline - time.monotonic())), self.events[-5:]

    def rest(self) -> None:
        """Go on until neither the connection nor the engine has anything more to say."""
        quiet = 0
        while quiet < 3:
            moved = self.pump()
            self.broker.call(c.Statistics(), WAIT)
            quiet = 0 if moved or self.pump() else quiet + 1

    # What it has heard.

    def of(self, kind: type[Any], link: int | None = None) -> list[Any]:
        return [each for each in self.events if isinstance(each, kind) and (link is None or each.link == link)]

    def messages(self, link: int) -> list[Incoming]:
        return [delivery for event in self.of(Transfers, link) for delivery in event.deliveries]

    def bodies(self, link: int) -> list[Any]:
        return [decoded(each.payload).body for each in self.messages(link)]

    def answers(self, link: int) -> dict[int, State]:
        """How the messages that were sent on a link ended, by number."""
        return {number: event.state for event in self.of(Dispositions, link) for number in event.numbers}

    # What it does.

    def open(self, container: str = "foreign", capabilities: tuple[str, ...] = (), **fields: Any) -> Client:
        self.peer.open(container, desired_capabilities=capabilities, **fields)
        self.until(lambda: self.of(RemoteOpen))
        self.session = self.peer.begin_session()
        return self

    def opened(self, link: int) -> LinkRemoteOpen:
        """The server's answer to an attach."""
        answer: LinkRemoteOpen = self.until(lambda: self.of(LinkRemoteOpen, link))[0]
        return answer

    def refusal(self, link: int) -> AmqpError:
        """Why an attach was refused."""
        closed: LinkRemoteClose = self.until(lambda: self.of(LinkRemoteClose, link))[0]
        answer = self.opened(link)
        assert (answer.source, answer.target) == (None, None)
        assert closed.error is not None
        return closed.error

    def sender(
        self, target: str | Terminus | None, *, presettled: bool = False, session: int | None = None, name: str = "s"
    ) -> int:
        """A link to send on, with its first credit."""
        terminus = Terminus(target) if isinstance(target, str) else target
        link = self.peer.attach_sender(session or self.session, name, Terminus("s"), terminus, presettled=presettled)
        self.until(lambda: self.of(LinkFlow, link))
        return link

    def receiver(
        self,
        source: str | Terminus,
        credit: int = 0,
        *,
        presettled: bool = False,
        session: int | None = None,
        name: str,
    ) -> int:
        """A link to receive on."""
        terminus = Terminus(source) if isinstance(source, str) else source
        link = self.peer.attach_receiver(session or self.session, name, terminus, Terminus("t"), presettled=presettled)
        self.opened(link)
        if credit:
            self.peer.credit(link, credit)
        return link

    def send(self, link: int, *bodies: Any, state: State | None = None, **fields: Any) -> list[State]:
        """Send, and wait for the answers."""
        numbers = [self.peer.send(link, encoded(body, **fields), state=state) for body in bodies]
        self.until(lambda: self.answers(link).keys() >= set(numbers))
        return [self.answers(link)[number] for number in numbers]

    def receive(self, link: int, count: int) -> list[Incoming]:
        """The first messages of a link, once there are this many."""
        self.until(lambda: len(self.messages(link)) >= count)
        return self.messages(link)

    def settle(self, link: int, deliveries: list[Incoming], state: State = ACCEPTED_STATE) -> None:
        self.peer.settle(link, [each.number for each in deliveries], state)
        self.rest()

    def drained(self, link: int) -> None:
        """Ask for the rest of what there is, until the credit is gone."""
        if self.peer.drain(link):
            self.until(lambda: self.peer.remaining_credit(link) == 0)

    def close_link(self, link: int, *, closed: bool = True) -> LinkRemoteClose:
        self.peer.close_link(link, closed=closed)
        answer: LinkRemoteClose = self.until(lambda: self.of(LinkRemoteClose, link))[0]
        return answer

    # Transactions.

    def coordinator(self, name: str = "c") -> int:
        return self.sender(Terminus(coordinator=True), name=name)

    def control(self, link: int, code: int, *fields: Any) -> State:
        """Tell the coordinator something, and wait for its answer."""
        return self.raw(link, b"\x00\x53\x77" + encode(Described(ULong(code), list(fields))))

    def raw(self, link: int, payload: bytes, *, state: State | None = None) -> State:
        number = self.peer.send(link, payload, state=state)
        answer: State = self.until(lambda: self.answers(link).get(number))
        return answer

    def declare(self, link: int) -> bytes:
        state = self.control(link, DECLARE_CODE, None)
        assert state.code == DECLARED
        assert state.txn_id is not None
        return state.txn_id

    def discharge(self, link: int, txn_id: bytes, *, fail: bool = False) -> State:
        return self.control(link, DISCHARGE_CODE, txn_id, fail)


def encoded(body: Any, **fields: Any) -> bytes:
    return bytes(Message(body=body, **fields).encode())


def decoded(payload: bytes) -> Message:
    message = Message()
    message.decode(payload)
    return message


def in_transaction(txn_id: bytes, outcome: State | None = None) -> State:
    return State(TRANSACTIONAL, txn_id=txn_id, outcome=outcome)


def code_of(state: State) -> tuple[int, str | None]:
    return state.code, None if state.error is None else state.error.condition


def put(broker: Broker, name: str, *payloads: bytes, format: int = AMQP_FORMAT) -> None:
    """Messages into a queue, past the server."""
    messages = [c.NewMessage(format, payload) for payload in payloads]
    assert broker.call(c.Enqueue(connect(broker), queue(name), messages), WAIT) is None


def waiting(broker: Broker, name: str) -> list[Any]:
    """The bodies of what is in a queue; takes nothing."""
    client = connect(broker)
    found = [decoded(each.payload).body for each in drained(broker, client, name, browse=True)]
    broker.call(c.Disconnect(client), WAIT)
    return found


MakeClient = Callable[..., Client]


@pytest.fixture
def make_broker() -> Iterator[Callable[..., Broker]]:
    made: list[Broker] = []

    def make(**settings: Any) -> Broker:
        made.append(Broker(EngineSettings(**settings)))
        return made[-1]

    yield make
    for broker in made:
        broker.close()


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker()


@pytest.fixture
def client(broker: Broker) -> Client:
    return Client(broker).open()


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
        (["HOLDFAST-ENVELOPE", "HOLDFAST-ENVELOPE-2"], 2),
        (["HOLDFAST-ENVELOPE-2"], 2),
        (["HOLDFAST-ENVELOPE", "HOLDFAST-ENVELOPE-3"], 2),
        (["HOLDFAST-ENVELOPE-0"], 0),
        (["HOLDFAST-ENVELOPE-x", "HOLDFAST-ENVELOPES"], 0),
    ],
)
def test_our_format_is_offered_to_who_asks_for_it_in_the_lower_version(
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


def test_who_skips_a_login_that_is_needed_gets_the_header_that_is_expected(broker: Broker) -> None:
    client = Client(broker, ServerLogin(OneUser(), plain=True))
    client.server.receive(AMQP_HEADER, client.now_ms)
    assert client.server.pending_output() == SASL_HEADER
    assert client.server.output_closed


# Messages that come in.


def test_messages_are_taken_and_their_credit_is_given_back(broker: Broker) -> None:
    client = Client(broker, link_credit_messages=4).open()
    link = client.sender("q")
    assert client.peer.remaining_credit(link) == 4
    for body in range(20):
        client.until(lambda: client.peer.remaining_credit(link) > 0)
        assert client.send(link, body) == [ACCEPTED_STATE]
    assert waiting(broker, "q") == list(range(20))


def test_more_messages_than_credit_end_the_link(broker: Broker) -> None:
    client = Client(broker, link_credit_messages=1).open()
    link = client.sender("q")
    other = Client(broker, link_credit_messages=100).open()
    generous = other.sender("q")
    for _ in range(2):  # what was meant for a server that gives more
        for body in range(5):
            other.peer.send(generous, encoded(body))
        client.server.receive(other.peer.pending_output(), client.now_ms)
    closed = client.until(lambda: client.of(LinkRemoteClose, link))
    assert closed[0].error.condition == "amqp:link:transfer-limit-exceeded"
    assert depth(broker, "q") <= 10


def test_a_producer_of_large_messages_may_have_fewer_on_their_way(make_broker: Callable[..., Broker]) -> None:
    client = Client(make_broker(), max_input_bytes=1 << 20, link_credit_messages=100).open()
    link = client.sender("q")
    assert client.peer.remaining_credit(link) == 4  # nothing is known yet of its messages
    for _ in range(3):
        client.send(link, "small")
    client.rest()
    assert client.peer.remaining_credit(link) > 75
    for _ in range(100):
        client.send(link, "x" * 300_000)
    client.rest()
    assert client.peer.remaining_credit(link) <= 3
    client.send(link, "x" * 3_000_000)
    assert client.send(link, "and it goes on") == [ACCEPTED_STATE]


def test_presettled_messages_are_taken_without_a_word(client: Client, broker: Broker) -> None:
    link = client.sender("q", presettled=True)
    credit = client.peer.remaining_credit(link)
    for body in range(credit):
        client.peer.send(link, encoded(body), settled=True)
    client.until(lambda: client.peer.remaining_credit(link) >= credit)
    client.rest()
    assert client.of(Dispositions) == []
    assert depth(broker, "q") == credit


def test_an_anonymous_sender_names_the_destination_in_each_message(client: Client, broker: Broker) -> None:
    link = client.sender(Terminus())
    numbers = [client.peer.send(link, encoded(body, address=to)) for body, to in enumerate(["a", "b", "a", "b", "b"])]
    numbers.append(client.peer.send(link, encoded("nowhere")))
    numbers.append(client.peer.send(link, encoded("x", address="")))
    client.until(lambda: len(client.answers(link)) == len(numbers))
    assert [code_of(client.answers(link)[number]) for number in numbers] == [
        *[(ACCEPTED, None)] * 5,
        (REJECTED, "amqp:not-found"),
        (REJECTED, "amqp:not-found"),
    ]
    assert (waiting(broker, "a"), waiting(broker, "b")) == ([0, 2], [1, 3, 4])


def test_a_message_that_cannot_be_decoded_is_refused_alone(client: Client, broker: Broker) -> None:
    link = client.sender("q")
    good = client.peer.send(link, encoded("good"))
    bad = client.peer.send(link, b"\x00\x53\x70\xc0\x05\x02\x41\x50")
    last = client.peer.send(link, encoded("last"))
    client.until(lambda: len(client.answers(link)) == 3)
    answers = client.answers(link)
    assert [code_of(answers[number]) for number in (good, bad, last)] == [
        (ACCEPTED, None),
        (REJECTED, "amqp:decode-error"),
        (ACCEPTED, None),
    ]
    assert waiting(broker, "q") == ["good", "last"]


def test_messages_at_a_limit_of_the_engine_are_refused_one_by_one(make_broker: Callable[..., Broker]) -> None:
    client = Client(make_broker(max_queue_messages=2, hold_timeout_seconds=0)).open()
    states = client.send(client.sender("q"), *range(4))
    assert [code_of(state) for state in states] == [
        (ACCEPTED, None),
        (ACCEPTED, None),
        (REJECTED, "amqp:resource-limit-exceeded"),
        (REJECTED, "amqp:resource-limit-exceeded"),
    ]


def test_a_producer_at_a_limit_waits_with_its_credit_used_up(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(max_queue_messages=2, hold_timeout_seconds=60)
    client = Client(broker, link_credit_messages=4).open()
    link = client.sender("q")
    for body in range(4):
        client.peer.send(link, encoded(body))
    client.rest()
    assert client.peer.remaining_credit(link) == 0
    consumer = client.receiver("q", 4, name="r")
    client.settle(consumer, client.receive(consumer, 2)[:2])
    client.until(lambda: len(client.answers(link)) == 4)
    client.until(lambda: client.peer.remaining_credit(link) == 4)


def test_a_message_above_the_limit_is_refused_with_the_link(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(max_message_bytes=1000)
    client = Client(broker).open()
    link = client.sender("q")
    assert client.opened(link).max_message_bytes == 1000
    client.peer.send(link, encoded("x" * 2000))
    error = client.until(lambda: client.of(LinkRemoteClose, link))[0].error
    assert error.condition == "amqp:link:message-size-exceeded"
    assert client.send(client.sender("q", name="other"), "x") == [ACCEPTED_STATE]
    assert waiting(broker, "q") == ["x"]


@pytest.mark.parametrize("target", [None, Terminus(""), Terminus("x" * 5000)])
def test_a_sender_without_a_usable_target_is_refused(client: Client, target: Terminus | None) -> None:
    link = client.peer.attach_sender(client.session, "s", Terminus("s"), target)
    assert client.refusal(link).condition == "amqp:not-found"


# Messages that go out.


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
    bare = sent.index(b"\x00\x53\x71")  # what follows the header and is nobody's to change
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
    client.peer._sessions[client.session].endpoint.incoming_capacity = 2 << 20  # two frames
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


# Links and sessions.


def test_a_receiver_without_a_usable_source_is_refused(client: Client) -> None:
    for number, address in enumerate((None, "", "x" * 5000)):
        link = client.peer.attach_receiver(client.session, f"r{number}", Terminus(address), Terminus())
        assert client.refusal(link).condition == "amqp:not-found"


@pytest.mark.parametrize(
    ("filters", "condition"),
    [
        ({Symbol("jms-selector"): Described(ULong(SELECTOR_CODE), "a = ")}, "holdfast:invalid-selector"),
        ({Symbol("s"): Described(Symbol("apache.org:selector-filter:string"), "1")}, "holdfast:invalid-selector"),
        ({Symbol("jms-selector"): Described(ULong(SELECTOR_CODE), 1)}, "holdfast:invalid-selector"),
        ({Symbol("other"): Described(ULong(99), "x")}, "amqp:not-implemented"),
        ({Symbol("other"): "x"}, "amqp:not-implemented"),
        ({Symbol("other"): Described("a string", "x")}, "amqp:not-implemented"),
    ],
)
def test_a_filter_that_would_not_be_applied_is_refused(client: Client, filters: Any, condition: str) -> None:
    link = client.peer.attach_receiver(client.session, "r", Terminus("q", filters=filters), Terminus())
    assert client.refusal(link).condition == condition
    assert client.send(client.sender("q"), "the connection goes on") == [ACCEPTED_STATE]


def test_no_local_is_confirmed(client: Client) -> None:
    filters = {Symbol("no-local"): Described(ULong(NO_LOCAL_CODE), "NoLocalFilter{}")}
    link = client.receiver(Terminus("t", filters=filters, capabilities=TOPIC), name="r")
    source = client.opened(link).source
    assert source is not None
    assert list(source.filters or {}) == ["no-local"]


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


@pytest.mark.parametrize("end", ["link", "session", "connection"])
@pytest.mark.parametrize("capabilities", [(), ("queue",), ("temporary-queue",), TOPIC, ("temporary-topic",)])
def test_a_dynamic_target_lives_as_long_as_its_link(
    client: Client, broker: Broker, end: str, capabilities: tuple[str, ...]
) -> None:
    link = client.sender(Terminus(dynamic=True, expiry="link-detach", capabilities=capabilities))
    target = client.opened(link).target
    assert target is not None
    word = "topic" if any("topic" in each for each in capabilities) else "queue"
    assert target.capabilities == (f"temporary-{word}",)
    assert target.address is not None
    assert target.address.startswith(f"temporary-{word}/")
    session = client.peer.begin_session()
    consumer = client.receiver(target.address, 5, session=session, name="r")
    client.send(link, "x")
    client.receive(consumer, 1)
    client.close_link(consumer)
    if end == "link":
        assert client.close_link(link).error is None
    elif end == "session":
        client.peer.end_session(client.session)
    else:
        client.peer.close()
    client.rest()
    other = Client(broker).open()
    gone = other.peer.attach_sender(other.session, "gone", Terminus(), Terminus(target.address))
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
    ("product", "failures"), [("Holdfast", 1), ("somebody else", 0)], ids=["our own client", "another client"]
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


def test_messages_on_their_way_to_a_session_that_ends_come_again(client: Client, broker: Broker) -> None:
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


# Topics and subscriptions.


def durable(address: str = "news", *capabilities: str) -> Terminus:
    return Terminus(address, durable=2, expiry="never", capabilities=(*TOPIC, *capabilities))


def test_a_durable_subscription_is_kept_by_a_detach_and_ended_by_a_close(broker: Broker) -> None:
    client = Client(broker).open("me", JMS_CLIENT)
    producer = client.sender(Terminus("news", capabilities=TOPIC))
    link = client.receiver(durable(), 1, name="reader")
    client.send(producer, "first")
    client.settle(link, client.receive(link, 1))
    answer = client.close_link(link, closed=False)
    assert not answer.closed
    client.send(producer, "meanwhile")
    again = client.receiver(durable(), 9, name="reader")
    client.receive(again, 1)
    assert client.bodies(again) == ["meanwhile"]
    client.settle(again, client.messages(again))
    assert client.close_link(again, closed=True).closed
    client.rest()
    client.send(producer, "nobody listens")
    anew = client.receiver(durable(), 9, name="reader")
    client.drained(anew)
    assert client.messages(anew) == []


def test_a_durable_subscription_outlives_its_connection(broker: Broker) -> None:
    client = Client(broker).open("me", JMS_CLIENT)
    client.receiver(durable(), 1, name="reader")
    client.peer.close()
    client.rest()
    other = Client(broker).open("other", JMS_CLIENT)
    other.send(other.sender(Terminus("news", capabilities=TOPIC)), "x")
    back = Client(broker).open("me", JMS_CLIENT)
    link = back.receiver(durable(), 1, name="reader")
    back.receive(link, 1)
    assert back.bodies(link) == ["x"]


def test_a_durable_subscription_in_use_or_without_a_client_id_is_refused(broker: Broker) -> None:
    invented = Client(broker).open(properties={"product": "Holdfast"})
    link = invented.peer.attach_receiver(invented.session, "reader", durable(), Terminus())
    assert invented.refusal(link).condition == "amqp:illegal-state"
    named = Client(broker).open("me", JMS_CLIENT)
    named.receiver(durable(), name="reader")
    other = named.peer.begin_session()
    second = named.peer.attach_receiver(other, "reader", durable(), Terminus())
    assert named.refusal(second).condition == "amqp:illegal-state"


def test_the_container_id_of_another_client_names_its_subscriptions_though_others_may_have_it(broker: Broker) -> None:
    client, twin = Client(broker).open("app"), Client(broker).open("app")
    client.close_link(client.receiver(durable(), name="reader"), closed=False)
    twin.send(twin.sender(Terminus("news", capabilities=TOPIC)), "x")
    link = twin.receiver(durable(), 1, name="reader")
    twin.receive(link, 1)
    assert twin.bodies(link) == ["x"]
    second = client.peer.attach_receiver(client.session, "reader", durable(), Terminus())
    assert client.refusal(second).condition == "amqp:illegal-state"


def test_a_global_subscription_is_shared_by_clients_of_any_id(broker: Broker) -> None:
    clients = [Client(broker).open(name, JMS_CLIENT) for name in ("a", "b")]
    links = [each.receiver(durable("news", "shared", "global"), 9, name="reader|global") for each in clients]
    for client in clients:
        client.rest()  # both have credit now
    clients[0].send(clients[0].sender(Terminus("news", capabilities=TOPIC)), 0, 1)
    for client, link in zip(clients, links, strict=True):
        client.receive(link, 1)
    assert sorted(clients[0].bodies(links[0]) + clients[1].bodies(links[1])) == [0, 1]
    for client, link in zip(clients, links, strict=True):
        client.settle(link, client.messages(link))
        client.close_link(link, closed=False)
    own = clients[0].peer.attach_receiver(clients[0].session, "reader", None, Terminus())
    assert clients[0].refusal(own).condition == "amqp:not-found"
    found = clients[0].peer.attach_receiver(clients[0].session, "reader|global", None, Terminus())
    assert clients[0].opened(found).source is not None


def test_a_shared_subscription_is_named_ahead_of_the_bar(broker: Broker) -> None:
    client = Client(broker).open("me", JMS_CLIENT)
    links = [client.receiver(durable("news", "shared"), 2, name=f"reader|{number}") for number in (1, 2)]
    client.send(client.sender(Terminus("news", capabilities=TOPIC)), *range(4))
    client.rest()
    assert sorted(client.bodies(links[0]) + client.bodies(links[1])) == [0, 1, 2, 3]
    assert [len(client.messages(link)) for link in links] == [2, 2]


def test_a_null_source_finds_a_subscription_to_end_it(broker: Broker) -> None:
    client = Client(broker).open("me", JMS_CLIENT)
    client.close_link(client.receiver(durable(), name="reader"), closed=False)
    link = client.peer.attach_receiver(client.session, "reader", None, Terminus())
    source = client.opened(link).source
    assert source is not None
    assert source.address == "reader"
    assert client.close_link(link).error is None
    client.send(client.sender(Terminus("news", capabilities=TOPIC)), "nobody listens")
    assert [each.name for each in broker.call(c.Statistics(), WAIT).queues if each.kind != "topic"] == ["DLQ"]
    missing = client.peer.attach_receiver(client.session, "unknown", None, Terminus())
    assert client.refusal(missing).condition == "amqp:not-found"


def test_a_subscription_in_use_is_not_ended(broker: Broker) -> None:
    client = Client(broker).open("me", JMS_CLIENT)
    client.receiver(durable(), name="reader")
    other = client.peer.begin_session()
    link = client.peer.attach_receiver(other, "reader", None, Terminus())
    assert client.refusal(link).condition == "amqp:illegal-state"


def test_every_subscriber_of_a_topic_gets_a_copy(client: Client) -> None:
    links = [client.receiver(Terminus("news", capabilities=TOPIC), 5, name=f"r{number}") for number in range(3)]
    client.send(client.sender(Terminus("news", capabilities=TOPIC)), "x")
    for link in links:
        client.receive(link, 1)
        assert client.bodies(link) == ["x"]


# Transactions.


def test_a_transaction_is_done_at_its_discharge(client: Client, broker: Broker) -> None:
    client.send(client.sender("in", name="in"), "request")
    consumer = client.receiver("in", 1, name="r")
    (delivery,) = client.receive(consumer, 1)
    producer, coordinator = client.sender("out"), client.coordinator()
    txn_id = client.declare(coordinator)
    states = client.send(producer, "a", "b", state=in_transaction(txn_id))
    assert [(state.code, state.txn_id, state.outcome) for state in states] == [
        (TRANSACTIONAL, txn_id, ACCEPTED_STATE)
    ] * 2
    client.settle(consumer, [delivery], in_transaction(txn_id, ACCEPTED_STATE))
    assert (depth(broker, "out"), depth(broker, "in")) == (0, 1)
    assert client.discharge(coordinator, txn_id) == ACCEPTED_STATE
    assert waiting(broker, "out") == ["a", "b"]
    assert depth(broker, "in") == 0
    assert code_of(client.discharge(coordinator, txn_id)) == (REJECTED, "amqp:transaction:unknown-id")


def test_a_failed_discharge_undoes_everything(client: Client, broker: Broker) -> None:
    client.send(client.sender("in", name="in"), "request")
    consumer = client.receiver("in", 1, name="r")
    producer, coordinator = client.sender("out"), client.coordinator()
    txn_id = client.declare(coordinator)
    client.send(producer, "a", state=in_transaction(txn_id))
    client.settle(consumer, client.receive(consumer, 1), in_transaction(txn_id, ACCEPTED_STATE))
    assert client.discharge(coordinator, txn_id, fail=True) == ACCEPTED_STATE
    assert depth(broker, "out") == 0
    client.peer.credit(consumer, 1)
    again = client.receive(consumer, 2)[1]
    assert (decoded(again.payload).body, decoded(again.payload).delivery_count) == ("request", 1)


def test_settlements_of_a_transaction_keep_their_outcomes(client: Client, broker: Broker) -> None:
    client.send(client.sender("q"), *range(4))
    consumer = client.receiver("q", 4, name="r")
    deliveries = client.receive(consumer, 4)
    coordinator = client.coordinator()
    txn_id = client.declare(coordinator)
    outcomes = (ACCEPTED_STATE, RELEASED_STATE, State(REJECTED), None)
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        client.peer.settle(consumer, [delivery.number], in_transaction(txn_id, outcome))
    assert client.discharge(coordinator, txn_id) == ACCEPTED_STATE
    assert waiting(broker, "q") == [1, 3]
    assert waiting(broker, "DLQ") == [2]


def test_presettled_messages_may_be_part_of_a_transaction(client: Client, broker: Broker) -> None:
    producer, coordinator = client.sender("q", presettled=True), client.coordinator()
    txn_id = client.declare(coordinator)
    client.peer.send(producer, encoded("x"), settled=True, state=in_transaction(txn_id))
    client.rest()
    assert depth(broker, "q") == 0
    assert client.discharge(coordinator, txn_id) == ACCEPTED_STATE
    assert waiting(broker, "q") == ["x"]


def test_an_unknown_transaction_is_refused_wherever_it_is_named(client: Client, broker: Broker) -> None:
    producer, coordinator = client.sender("q"), client.coordinator()
    unknown = (REJECTED, "amqp:transaction:unknown-id")
    assert [code_of(state) for state in client.send(producer, "x", state=in_transaction(b"none"))] == [unknown]
    assert code_of(client.discharge(coordinator, b"none")) == unknown
    assert code_of(client.control(coordinator, DISCHARGE_CODE)) == unknown
    assert code_of(client.control(coordinator, DISCHARGE_CODE, 5, False)) == unknown
    assert depth(broker, "q") == 0
    client.send(producer, "y")
    consumer = client.receiver("q", 1, name="r")
    client.settle(consumer, client.receive(consumer, 1), in_transaction(b"none", ACCEPTED_STATE))
    client.peer.credit(consumer, 1)
    assert decoded(client.receive(consumer, 2)[1].payload).delivery_count == 1


@pytest.mark.parametrize(
    ("payload", "condition"),
    [
        (b"\x00\x53\x70\xc0\x05\x02\x41\x50", "amqp:decode-error"),
        (encoded("nowhere"), "amqp:not-found"),
        (encoded("x", address="y" * 5000), None),
    ],
    ids=["undecodable", "no destination", "a name too long"],
)
def test_a_refused_message_refuses_its_transaction(
    client: Client, broker: Broker, payload: bytes, condition: str | None
) -> None:
    producer, coordinator = client.sender(Terminus()), client.coordinator()
    txn_id = client.declare(coordinator)
    client.send(producer, "good", address="q", state=in_transaction(txn_id))
    state = client.raw(producer, payload, state=in_transaction(txn_id))
    if condition is not None:
        assert code_of(state) == (REJECTED, condition)
    client.send(producer, "good", address="q", state=in_transaction(txn_id))
    discharged = client.discharge(coordinator, txn_id)
    assert code_of(discharged) == (REJECTED, condition or "amqp:not-found")
    assert depth(broker, "q") == 0


class Doomed:
    """A transaction that has taken a message from the queue ``in`` and sends to ``out``; it is to fail."""

    def __init__(self, client: Client) -> None:
        self.client = client
        client.send(client.sender("in", name="in"), "request")
        self.consumer = client.receiver("in", 1, name="r")
        self.producer, self.coordinator = client.sender("out", name="out"), client.coordinator()
        self.txn_id = client.declare(self.coordinator)
        client.send(self.producer, "before", state=in_transaction(self.txn_id))
        client.settle(self.consumer, client.receive(self.consumer, 1), in_transaction(self.txn_id, ACCEPTED_STATE))

    def fails(self, reason: str) -> None:
        """Its discharge fails with this reason, nothing of it was done, and what it had taken comes again."""
        client = self.client
        state = client.discharge(self.coordinator, self.txn_id)
        assert state.code == REJECTED
        assert code_of(state)[1] != "amqp:transaction:rollback", "Qpid JMS takes that for a doubt"
        assert state.error is not None
        assert reason in str(state.error.description)
        assert depth(client.broker, "out") == 0
        client.peer.credit(self.consumer, 1)
        again = client.receive(self.consumer, 2)[1]
        assert (decoded(again.payload).body, decoded(again.payload).delivery_count) == ("request", 1)


def too_large(name: str) -> bytes:
    """A message beyond the limit of these tests, whose first frames are not."""
    return encoded(name * 4000)


@pytest.fixture
def tight(make_broker: Callable[..., Broker]) -> Client:
    """A client of a server that takes messages of 1,000 bytes, in frames of 512."""
    return Client(make_broker(max_message_bytes=1000), max_frame_bytes=512).open()


@pytest.mark.parametrize("presettled", [False, True], ids=["unsettled", "presettled"])
def test_a_message_above_the_limit_fails_its_transaction(tight: Client, presettled: bool) -> None:
    doomed = Doomed(tight)
    tight.peer.send(doomed.producer, too_large("x"), settled=presettled, state=in_transaction(doomed.txn_id))
    tight.rest()
    doomed.fails("larger than the limit")


def test_a_message_behind_one_above_the_limit_fails_its_transaction(tight: Client) -> None:
    doomed = Doomed(tight)
    tight.peer.send(doomed.producer, too_large("x"))
    tight.peer.send(doomed.producer, encoded("behind"), state=in_transaction(doomed.txn_id))
    tight.rest()
    doomed.fails("larger than the limit")


def test_every_message_that_is_dropped_is_rejected_with_a_reason(tight: Client) -> None:
    doomed = Doomed(tight)
    in_it = in_transaction(doomed.txn_id)
    large = tight.peer.send(doomed.producer, too_large("x"), state=in_it)
    behind = [tight.peer.send(doomed.producer, encoded("behind"), state=state) for state in (in_it, None, in_it, None)]
    behind.append(tight.peer.send(doomed.producer, too_large("y")))
    tight.until(lambda: tight.answers(doomed.producer).keys() >= {large, *behind})
    answers = tight.answers(doomed.producer)
    assert code_of(answers[large]) == (REJECTED, "amqp:link:message-size-exceeded")
    assert {code_of(answers[number]) for number in behind} == {(REJECTED, "amqp:link:message-size-exceeded")}
    assert all("message before it" in str(answers[number].error.description) for number in behind)  # type: ignore[union-attr]
    (closed,) = tight.until(lambda: tight.of(LinkRemoteClose, doomed.producer))
    assert closed.error.condition == "amqp:link:message-size-exceeded"
    tight.peer.close_link(doomed.producer)
    doomed.fails("larger than the limit")
    assert tight.send(tight.sender("out", name="anew"), "the session goes on") == [ACCEPTED_STATE]


class ByHand:
    """A session whose transfers are frames made by hand, on a link that its client attaches.

    Each delivery has the next number, as in a session of its own.
    """

    def __init__(self, client: Client, target: Terminus | None) -> None:
        self.client = client
        self.session = client.peer.begin_session()
        self.link = client.peer.attach_sender(self.session, "by hand", Terminus(), target)
        self.channel, self.handle, self.number = 1, 0, -1
        client.rest()

    def transfer(self, payload: bytes, *, first: bool = True, **fields: Any) -> None:
        self.number += first
        number, tag = (self.number, b"t") if first else (None, None)
        data = transfer(self.channel, self.handle, number, tag, payload, **fields)
        self.client.server.receive(data, self.client.now_ms)


def test_a_message_without_credit_fails_its_transaction(broker: Broker) -> None:
    client = Client(broker, link_credit_messages=1).open()
    doomed, hand = Doomed(client), ByHand(client, Terminus("q"))
    for body in range(3):
        hand.transfer(encoded(body))
    hand.transfer(encoded("without credit"), txn_id=doomed.txn_id)
    (closed,) = client.until(lambda: client.of(LinkRemoteClose, hand.link))
    assert closed.error.condition == "amqp:link:transfer-limit-exceeded"
    doomed.fails("more messages than credit")


def test_the_first_part_of_a_message_without_credit_ends_the_link(broker: Broker) -> None:
    client = Client(broker, link_credit_messages=1).open()
    hand = ByHand(client, Terminus("q"))
    hand.transfer(encoded("x"))
    hand.transfer(b"part", more=True)
    hand.transfer(b"part", more=True, first=False)
    (closed,) = client.until(lambda: client.of(LinkRemoteClose, hand.link))
    assert closed.error.condition == "amqp:link:transfer-limit-exceeded"


@pytest.mark.parametrize("presettled", [False, True], ids=["unsettled", "presettled"])
@pytest.mark.parametrize("target", [None, Terminus("q" * 5000)], ids=["no target", "a name too long"])
def test_a_message_on_a_refused_link_fails_its_transaction(
    client: Client, target: Terminus | None, presettled: bool
) -> None:
    doomed, hand = Doomed(client), ByHand(client, target)
    hand.transfer(encoded("x"), settled=presettled, txn_id=doomed.txn_id)
    client.rest()
    assert client.refusal(hand.link)
    doomed.fails("")


def test_a_message_that_its_sender_gives_up_is_no_part_of_the_transaction_and_uses_up_no_credit(
    client: Client, broker: Broker
) -> None:
    producer, coordinator = client.sender("q"), client.coordinator()
    hand = ByHand(client, Terminus("q"))
    txn_id = client.declare(coordinator)
    client.send(producer, "a", state=in_transaction(txn_id))
    first_credit = client.peer.remaining_credit(hand.link)
    for _ in range(first_credit):
        hand.transfer(b"part", more=True, txn_id=txn_id)
        hand.transfer(b"", first=False, aborted=True)
        hand.transfer(b"at once", aborted=True)
        client.pump()
    assert client.of(LinkRemoteClose, hand.link) == []
    # The client's own peer, which counts none of these, adds up what the server gives.
    assert client.peer.remaining_credit(hand.link) > 2.5 * first_credit
    assert client.discharge(coordinator, txn_id) == ACCEPTED_STATE
    assert waiting(broker, "q") == ["a"]


def test_a_discharge_ahead_of_the_rest_of_a_message_undoes_the_transaction(client: Client, broker: Broker) -> None:
    client.send(client.sender("in", name="in"), "request")
    consumer = client.receiver("in", 1, name="r")
    (delivery,) = client.receive(consumer, 1)
    producer, coordinator = client.sender("q"), client.coordinator()
    hand = ByHand(client, Terminus("q"))
    txn_id, other = client.declare(coordinator), client.declare(coordinator)
    client.settle(consumer, [delivery], in_transaction(txn_id, ACCEPTED_STATE))
    client.send(producer, "small", state=in_transaction(txn_id))
    client.send(producer, "of another transaction", state=in_transaction(other))
    payload = encoded("in two parts")
    hand.transfer(payload[:10], more=True, txn_id=txn_id)
    client.pump()
    assert client.discharge(coordinator, other) == ACCEPTED_STATE
    state = client.discharge(coordinator, txn_id)
    assert code_of(state) == (REJECTED, "amqp:illegal-state")
    assert "has not come as a whole" in str(state.error.description)  # type: ignore[union-attr]
    hand.transfer(payload[10:], first=False)
    client.rest()
    assert waiting(broker, "q") == ["of another transaction"]
    client.peer.credit(consumer, 1)
    assert decoded(client.receive(consumer, 2)[1].payload).delivery_count == 1


def test_the_end_of_a_coordinator_that_breaks_a_limit_rolls_its_transactions_back(tight: Client) -> None:
    doomed = Doomed(tight)
    number = tight.peer.send(doomed.coordinator, too_large("x"))
    state = tight.until(lambda: tight.answers(doomed.coordinator).get(number))
    assert code_of(state) == (REJECTED, "amqp:link:message-size-exceeded")
    tight.peer.credit(doomed.consumer, 1)
    assert decoded(tight.receive(doomed.consumer, 2)[1].payload).delivery_count == 1
    other = tight.coordinator("other")
    assert code_of(tight.discharge(other, doomed.txn_id)) == (REJECTED, "amqp:transaction:unknown-id")
    assert depth(tight.broker, "out") == 0


@pytest.mark.parametrize("limit", [{"max_transaction_messages": 3}, {"max_transaction_bytes": 300}])
def test_a_transaction_has_a_size(make_broker: Callable[..., Broker], limit: dict[str, int]) -> None:
    broker = make_broker(**limit)
    client = Client(broker).open()
    producer, coordinator = client.sender("q"), client.coordinator()
    txn_id = client.declare(coordinator)
    client.send(producer, *["x" * 60] * 3, state=in_transaction(txn_id))
    assert client.discharge(coordinator, txn_id) == ACCEPTED_STATE
    assert depth(broker, "q") == 3
    txn_id = client.declare(coordinator)
    client.send(producer, *["x" * 60] * 9, state=in_transaction(txn_id))
    state = client.discharge(coordinator, txn_id)
    assert code_of(state) == (REJECTED, "amqp:resource-limit-exceeded")
    assert state.error is not None
    assert "the transaction is larger than" in str(state.error.description)
    assert depth(broker, "q") == 3


def test_a_commit_that_the_engine_refuses_is_rolled_back(client: Client) -> None:
    client.send(client.sender("in", name="in"), "request")
    consumer = client.receiver("in", 1, name="r")
    temporary = client.sender(Terminus(dynamic=True), name="t")
    target = client.opened(temporary).target
    assert target is not None
    producer, coordinator = client.sender(target.address, name="p"), client.coordinator()
    txn_id = client.declare(coordinator)
    client.send(producer, "x", state=in_transaction(txn_id))
    client.settle(consumer, client.receive(consumer, 1), in_transaction(txn_id, ACCEPTED_STATE))
    client.close_link(temporary)
    assert code_of(client.discharge(coordinator, txn_id)) == (REJECTED, "amqp:not-found")
    client.peer.credit(consumer, 1)
    assert decoded(client.receive(consumer, 2)[1].payload).delivery_count == 1


@pytest.mark.parametrize("end", ["link", "session", "connection"])
def test_transactions_end_with_their_coordinator(client: Client, broker: Broker, end: str) -> None:
    client.send(client.sender("in", name="in"), "request")
    consumer = client.receiver("in", 1, name="r")
    session = client.peer.begin_session()
    producer = client.sender("out")
    coordinator = client.sender(Terminus(coordinator=True), session=session, name="c")
    txn_id = client.declare(coordinator)
    client.send(producer, "x", state=in_transaction(txn_id))
    client.settle(consumer, client.receive(consumer, 1), in_transaction(txn_id, ACCEPTED_STATE))
    if end == "link":
        client.close_link(coordinator)
    elif end == "session":
        client.peer.end_session(session)
    else:
        client.server.receive_end()
    client.rest()
    other = Client(broker).open()
    link = other.receiver("in", 1, name="r")
    assert decoded(other.receive(link, 1)[0].payload).delivery_count == 1
    assert depth(broker, "out") == 0
    if end != "connection":
        late = client.send(producer, "late", state=in_transaction(txn_id))
        assert code_of(late[0]) == (REJECTED, "amqp:transaction:unknown-id")


def test_a_discharge_that_is_named_is_carried_out_once(client: Client, broker: Broker) -> None:
    producer, coordinator = client.sender("q"), client.coordinator()
    name = {Symbol("x-opt-holdfast-commit-id"): ["a session", 1]}
    for _ in range(2):
        txn_id = client.declare(coordinator)
        client.send(producer, "x", state=in_transaction(txn_id))
        discharge = encode(Described(ULong(DISCHARGE_CODE), [txn_id, False]))
        payload = b"\x00\x53\x72" + encode(name) + b"\x00\x53\x77" + discharge
        assert client.raw(coordinator, payload) == ACCEPTED_STATE
    assert waiting(broker, "q") == ["x"]


def test_two_transactions_of_one_coordinator_do_not_mix(client: Client, broker: Broker) -> None:
    producer, coordinator = client.sender("q"), client.coordinator()
    first, second = client.declare(coordinator), client.declare(coordinator)
    client.send(producer, "first", state=in_transaction(first))
    client.send(producer, "second", state=in_transaction(second))
    assert client.discharge(coordinator, second) == ACCEPTED_STATE
    assert waiting(broker, "q") == ["second"]
    assert client.discharge(coordinator, first, fail=True) == ACCEPTED_STATE
    assert waiting(broker, "q") == ["second"]


def test_a_connection_has_a_thousand_open_transactions(client: Client) -> None:
    coordinator = client.coordinator()
    for _ in range(1000):
        client.declare(coordinator)
    assert code_of(client.control(coordinator, DECLARE_CODE, None)) == (REJECTED, "amqp:resource-limit-exceeded")


@pytest.mark.parametrize(
    ("payload", "condition"),
    [
        (b"", "amqp:decode-error"),
        (b"\xff\xff", "amqp:decode-error"),
        (encoded("declare"), "amqp:decode-error"),
        (encoded(None), "amqp:decode-error"),
        (b"\x00\x53\x70\x45", "amqp:decode-error"),
        (b"\x00\x53\x77" + encode(Described(ULong(0x99), [])), "amqp:not-implemented"),
    ],
)
def test_a_coordinator_refuses_what_it_does_not_know(client: Client, payload: bytes, condition: str) -> None:
    coordinator = client.coordinator()
    assert code_of(client.raw(coordinator, payload)) == (REJECTED, condition)
    client.declare(coordinator)


def test_a_coordinator_knows_its_verbs_by_name_too(client: Client, broker: Broker) -> None:
    producer, coordinator = client.sender("q"), client.coordinator()
    state = client.raw(coordinator, b"\x00\x53\x77" + encode(Described(Symbol("amqp:declare:list"), [])))
    assert state.txn_id is not None
    client.send(producer, "x", state=in_transaction(state.txn_id))
    body = Described(Symbol("amqp:discharge:list"), [state.txn_id])
    assert client.raw(coordinator, b"\x00\x53\x77" + encode(body)) == ACCEPTED_STATE
    assert depth(broker, "q") == 1


# Operations beyond messaging.


def test_requests_are_answered_and_errors_are_answers(client: Client) -> None:
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    answers = client.receiver(MANAGEMENT_ADDRESS, 10, name="answers")
    for number, operation in enumerate(("statistics", "nonsense")):
        client.peer.send(asking, pack_request(Request(number, operation, {})), settled=True)
    first, second = [unpack_answer(each.payload) for each in client.receive(answers, 2)]
    assert (first.number, first.error) == (0, None)
    assert second.error is not None
    assert "nonsense" in second.error[1]


class OddClient(Client):
    """Of a server whose operations give what cannot be carried."""

    def _request(self, operation: str, arguments: dict[str, Any], done: Callable[[Any], None]) -> None:
        done({"odd": object()} if operation == "odd" else "x" * 100_000_000)


def test_a_result_that_cannot_be_carried_is_an_error(broker: Broker) -> None:
    client = OddClient(broker).open()
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    answers = client.receiver(MANAGEMENT_ADDRESS, 10, name="answers")
    for number, operation in enumerate(("odd", "large")):
        client.peer.send(asking, pack_request(Request(number, operation, {})), settled=True)
    for number, delivery in enumerate(client.receive(answers, 2)):
        answer = unpack_answer(delivery.payload)
        assert (answer.number, answer.result) == (number, None)
        assert answer.error is not None
        assert answer.error[0] == "MessageFormatException"


def test_an_answer_for_a_connection_that_is_gone_is_dropped(client: Client) -> None:
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    client.peer.send(asking, pack_request(Request(1, "statistics", {})), settled=True)
    client.to_server()  # the answer is there, and not taken yet
    client.server.receive_end()
    client.rest()


def test_answers_wait_for_credit(client: Client) -> None:
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    client.peer.send(asking, pack_request(Request(1, "statistics", {})), settled=True)
    client.rest()
    answers = client.receiver(MANAGEMENT_ADDRESS, name="answers")
    client.rest()
    assert client.messages(answers) == []
    client.peer.credit(answers, 1)
    assert unpack_answer(client.receive(answers, 1)[0].payload).number == 1


def test_who_takes_no_answers_may_ask_no_more(client: Client) -> None:
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    most = client.peer.remaining_credit(asking)
    for number in range(most):
        client.peer.send(asking, pack_request(Request(number, "statistics", {})), settled=True)
    client.rest()
    assert client.peer.remaining_credit(asking) == 0
    answers = client.receiver(MANAGEMENT_ADDRESS, 1, name="answers")
    client.receive(answers, 1)
    client.until(lambda: client.peer.remaining_credit(asking) == 1)
    client.close_link(asking)
    client.peer.credit(answers, most)
    client.rest()
    assert len(client.messages(answers)) == 1


def test_a_request_comes_after_what_was_sent_before_it_in_the_same_breath(client: Client) -> None:
    asking, sending = client.sender(MANAGEMENT_ADDRESS, name="ask"), client.sender("q")
    answers = client.receiver(MANAGEMENT_ADDRESS, 10, name="answers")
    for number in (1, 2):
        client.peer.send(sending, encoded(f"message {number}"))
        client.peer.send(asking, pack_request(Request(number, "statistics", {})), settled=True)
        client.to_server()
    found = [unpack_answer(each.payload).result["queues"] for each in client.receive(answers, 2)]
    depths = [sum(each["messages"] for each in queues if each["name"] == "q") for queues in found]
    assert depths == [1, 2]


def test_a_request_that_cannot_be_decoded_closes_its_link(client: Client) -> None:
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    client.peer.send(asking, b"nonsense", settled=True)
    error = client.until(lambda: client.of(LinkRemoteClose, asking))[0].error
    assert error.condition == "amqp:decode-error"
    assert client.send(client.sender("q"), "the connection goes on") == [ACCEPTED_STATE]


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
    broker = make_broker(max_queue_messages=1, hold_timeout_seconds=60)
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

    def _request(self, operation: str, arguments: dict[str, Any], done: Callable[[Any], None]) -> None:
        self.pending.append(done)


def test_requests_that_are_carried_out_stop_the_reading_above_the_budget(broker: Broker) -> None:
    client = SlowClient(broker, max_connection_bytes=1 << 20).open()
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    answers = client.receiver(MANAGEMENT_ADDRESS, 10, name="answers")
    for number in range(3):
        request = Request(number, "large", {"x": b"x" * 400_000})
        client.peer.send(asking, pack_request(request), settled=True)
    client.rest()
    assert len(client.pending) == 3
    assert not client.server.wants_input
    client.pending.pop()("done")
    client.rest()
    assert client.server.wants_input
    assert len(client.messages(answers)) == 1


def test_answers_that_nobody_takes_stop_the_requests_and_are_bounded(broker: Broker) -> None:
    """Neither credit for answers without end, nor a session that takes none, makes them pile up."""
    client = SlowClient(broker, max_connection_bytes=1 << 20, max_output_bytes=1 << 16).open()
    asking = client.sender(MANAGEMENT_ADDRESS, name="ask")
    session = client.peer.begin_session()
    client.peer._sessions[session].endpoint.incoming_capacity = 1 << 20  # one frame
    answers = client.receiver(MANAGEMENT_ADDRESS, 1_000_000, session=session, name="answers")
    carried_out = 0
    while client.peer.remaining_credit(asking):
        client.peer.send(asking, pack_request(Request(carried_out, "large", {})), settled=True)
        client.to_server()
        client.pending.pop()("x" * 10_000)
        carried_out += 1
        assert carried_out < 1_000
        client.peer.receive(client.server.pending_output())  # and takes nothing out of the session
    assert carried_out < 150  # the credit for questions, and what one frame and the output take
    assert client.server.wants_input, "or nobody would hear that the session takes more"
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
        client.peer.send(asking, pack_request(Request(number, "large", {})), settled=True)
        client.rest()
        if client.pending:
            client.pending.pop()("x" * 100_000)
            client.rest()
    assert client.server.wants_input, "or nobody would hear of the credit"
    client.peer.credit(answers, count)
    found = [unpack_answer(each.payload) for each in client.receive(answers, count)]
    assert [each.number for each in found] == list(range(count))
    assert [each.error is None for each in found] == [True] * 12 + [False] * 8  # one was sent, then 11 were too many
    client.peer.send(asking, pack_request(Request(count, "large", {})), settled=True)
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
    client.peer._sessions[session].endpoint.incoming_capacity = 1 << 20  # one frame
    link = client.receiver(Terminus("q"), session=session, name="r")
    client.peer.credit(link, count)
    client.to_server()
    for _ in range(20):
        broker.call(c.Statistics(), WAIT)
        client.peer.receive(client.server.pending_output())
    assert client.server._output.waiting_bytes > 1 << 20
    assert client.server.wants_input, "or nobody would hear that the session takes more"
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
        client.peer.send(asking, pack_request(Request(number, "x", {"x": b"x" * 400_000})), settled=True)
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
        client.peer._sessions[session].endpoint.incoming_capacity = 1 << 20  # one frame
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


def test_a_transaction_that_is_left_alone_is_rolled_back_and_its_discharge_told(broker: Broker) -> None:
    client = Client(broker, transaction_timeout_seconds=10, idle_timeout_seconds=0).open()
    client.send(client.sender("in", name="in"), "request")
    consumer = client.receiver("in", 1, name="r")
    producer, coordinator = client.sender("out"), client.coordinator()
    empty, txn_id = client.declare(coordinator), client.declare(coordinator)
    assert (client.server.tick(0) or 9_000) > 1_000
    client.send(producer, "x", state=in_transaction(txn_id))
    assert client.server.tick(5_000) == 6_000
    client.settle(consumer, client.receive(consumer, 1), in_transaction(txn_id, ACCEPTED_STATE))
    client.peer.credit(consumer, 1)
    for now_ms in (14_999, 24_998):  # ten seconds from the last thing that was put into it
        client.server.tick(now_ms)
        client.rest()
        assert len(client.messages(consumer)) == 1
    client.server.tick(24_999)
    assert decoded(client.receive(consumer, 2)[1].payload).delivery_count == 1
    assert code_of(client.send(producer, "y", state=in_transaction(txn_id))[0])[0] == REJECTED
    state = client.discharge(coordinator, txn_id)
    assert code_of(state) == (REJECTED, "amqp:transaction:timeout")
    assert "left alone for 10 s (option transaction_timeout_seconds)" in str(state.error.description)  # type: ignore[union-attr]
    assert depth(broker, "out") == 0
    client.server.tick(1_000_000)
    client.send(producer, "z", state=in_transaction(empty))
    assert client.discharge(coordinator, empty) == ACCEPTED_STATE


def test_producers_share_half_the_budget_for_what_is_on_its_way(broker: Broker) -> None:
    client = Client(broker, max_connection_bytes=16 << 20).open()
    assert client.peer.remaining_credit(client.sender("q0", name="s0")) == 32  # of the size that is guessed
    for number in range(1, 4):
        last = client.sender(f"q{number}", name=f"s{number}")
    assert client.peer.remaining_credit(last) == 8
    for number in range(4, 40):
        last = client.sender(f"q{number}", name=f"s{number}")
    assert client.peer.remaining_credit(last) == 1
    for _ in range(3):
        assert client.send(last, "small") == [ACCEPTED_STATE]
    client.rest()
    assert client.peer.remaining_credit(last) > 500


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
    client.peer.send(asking, pack_request(Request(1, "statistics", {})), settled=True)
    client.receiver(MANAGEMENT_ADDRESS, 10, name="answers")
    client.rest()
    client.peer.end_session(client.session)
    client.peer.close()
    client.rest()
    broker.close()
    return client.said


@pytest.fixture(scope="module")
def patient_broker() -> Iterator[Broker]:
    broker = Broker(EngineSettings(hold_timeout_seconds=0))
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


@pytest.mark.parametrize("part", [b"", b"ten bytes!"], ids=["nothing of it", "a part of it"])
@pytest.mark.parametrize("ends", ["detach", "detach that closes", "end", "nothing ends"])
def test_a_message_of_which_only_the_start_has_come_fails_its_transaction(
    broker: Broker, ends: str, part: bytes
) -> None:
    client = Client(broker).open()
    doomed, hand = Doomed(client), ByHand(client, Terminus("q"))
    hand.transfer(part, more=True, txn_id=doomed.txn_id)
    client.pump()
    if ends == "end":
        client.peer.end_session(hand.session)
        client.pump()
    elif ends != "nothing ends":
        closed = ends == "detach that closes"
        client.server.receive(frames.detach(hand.channel, hand.handle, closed=closed), client.now_ms)
    doomed.fails("not come as a whole" if ends == "nothing ends" else "only a part of a message had come")


def test_a_message_that_its_sender_gave_up_does_not_fail_its_transaction(broker: Broker) -> None:
    client = Client(broker).open()
    coordinator, hand = client.coordinator(), ByHand(client, Terminus("q"))
    txn_id = client.declare(coordinator)
    hand.transfer(b"ten bytes!", more=True, txn_id=txn_id)
    hand.transfer(b"", first=False, aborted=True)
    client.server.receive(frames.detach(hand.channel, hand.handle, closed=True), client.now_ms)
    assert client.discharge(coordinator, txn_id) == ACCEPTED_STATE
