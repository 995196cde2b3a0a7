"""A bare peer in the place of a client that we did not write, over the server's protocol in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from proton import Message

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    DECLARED,
    TRANSACTIONAL,
    Dispositions,
    Incoming,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
    RemoteOpen,
    State,
    Terminus,
    Transfers,
)
from broker_adapter.amqp.messages.values import Described, ULong, encode
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.amqp.wire import (
    DECLARE_CODE,
    DISCHARGE_CODE,
    envelope_capabilities,
)
from broker_adapter.destination import Destination, queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import AMQP_FORMAT, ENVELOPE_VERSION
from broker_adapter.errors import (
    JMSException,
)
from broker_adapter.server.access.permissions import authorize
from broker_adapter.server.protocol import ServerProtocol
from broker_adapter.settings import ServerSettings
from tests.broker_adapter.engine.driving import WAIT, connect, drained

JMS_CLIENT = ("sole-connection-for-container",)


OWN_CLIENT = tuple(envelope_capabilities(ENVELOPE_VERSION))


TOPIC = ("topic",)


PERMITS_ALL = partial(authorize, None)


class Client:
    """A peer at the other end of a pipe from the server's protocol, and all that it has heard."""

    def __init__(
        self,
        broker: Broker,
        login: ServerLogin | None = None,
        *,
        authorize: Callable[[str, Destination | None], None] = PERMITS_ALL,
        **limits: Any,
    ) -> None:
        self.broker = broker
        self.peer = Peer(PeerLimits())
        self._woken = threading.Event()
        self.server = ServerProtocol(broker, ServerSettings(**limits), login, self._woken.set, self._request, authorize)
        self.events: list[Any] = []
        self.now_ms = 1_000

    def _request(self, operation: str, arguments: Callable[[], dict[str, Any]], done: Callable[[Any], None]) -> None:
        try:
            result = self.broker.request(operation, arguments(), WAIT, client=self.server.calls.known_client)
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


def durable(address: str = "news", *capabilities: str) -> Terminus:
    return Terminus(address, durable=2, expiry="never", capabilities=(*TOPIC, *capabilities))
