"""A transport over a queue in memory, whose network can be cut: for what no embedded broker ever does.

It keeps the promises of the port that the SDK relies on: deliveries are pushed as far as there is credit, in the order
of their positions, and what is given back goes to its place.  Everything happens in the calling thread, except that
``hold_drains`` makes drains time out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from ack_modes import DeliveryTag, Outcome, Settlement
from broker_adapter import (
    ClientSettings,
    ConnectionLostException,
    Credentials,
    Delivery,
    Destination,
    DestinationKind,
    Envelope,
    Failed,
    Interrupted,
    JMSException,
    LinkInterrupted,
    LinkLost,
    LinkRestored,
    MessageFormatException,
    OperationTimedOutException,
    Peer,
    ReceiverSpec,
    Restored,
    SenderSpec,
    TransportEvent,
)
from broker_adapter.transport import OnSettled, RegionChange, Sink
from sdk import AcknowledgeMode, Connection, Message, MessageConsumer, Session


@attrs.define
class Stored:
    position: int
    envelope: Envelope
    failures: int = 0


@attrs.define
class Receiver:
    spec: ReceiverSpec
    sink: Sink
    credit: int = 0
    attached: bool = True


class SmallBroker:
    """The queue, and the one connection to it."""

    def __init__(self, **settings: Any) -> None:
        self.settings = ClientSettings(**settings)
        self.waiting: dict[Destination, list[Stored]] = {}
        self.tag_links: dict[int, int] = {}  #: link → its number in tags, where that is another one
        self.held: dict[DeliveryTag, tuple[Destination, Stored]] = {}
        self.settled: list[Settlement] = []
        self.drains = 0
        self.drain_limits: list[float] = []  #: seconds that each drain could have taken, where that was said
        self.credits: list[int] = []
        self.commits: list[tuple[int, int]] = []
        self.hold_drains = False
        self.cut_untold = False  #: whether the network is away, and the news of it on its way
        self.settles_twice = False  #: whether what is settled already is ignored; else it is an error of the SDK
        self.returns_rejected = False  #: whether a rejected message is delivered again
        self.hold_answers = False
        self.answers: list[OnSettled] = []
        self.refuse_commit: JMSException | None = None
        self.refuse_send: JMSException | None = None
        self.unreadable: set[int] = set()
        self.epoch = 0
        self.error: JMSException | None = None
        self.closed = False
        self.ended_sessions: list[int] = []
        self._receivers: dict[int, Receiver] = {}
        self._senders: dict[int, SenderSpec] = {}
        self._links = itertools.count(1)
        self._positions = itertools.count(1)
        self._numbers = itertools.count(1)
        self._listener: Callable[[TransportEvent], None] = lambda _event: None

    def connect(self) -> Connection:
        return Connection(self, self.settings, Credentials(), None)

    # What happens to the network.

    def interrupt(self) -> None:
        """The connection is lost and being restored: everything delivered goes back."""
        self.cut_untold = False
        self.epoch += 1
        self._listener(Interrupted(ConnectionLostException("the cable was cut")))
        for destination, stored in self.held.values():
            stored.failures += 1
            self._put_back(destination, stored)
        self.held.clear()
        for receiver in self._receivers.values():
            receiver.credit = 0

    def restore(self) -> None:
        self._listener(Restored(self.epoch))

    def fail(self) -> None:
        self.error = ConnectionLostException("the cable is gone")
        self._listener(Failed(self.error))

    def interrupt_link(self, link: int) -> None:
        """The broker closes a link, and takes back what came on it."""
        self._listener(LinkInterrupted(link, ConnectionLostException("link closed by the broker"), link))
        for tag in [tag for tag in self.held if tag.link == link]:
            destination, stored = self.held.pop(tag)
            stored.failures += 1
            self._put_back(destination, stored)
        self._receivers[link].credit = 0

    def restore_link(self, link: int, number: int) -> None:
        """It is attached again, and has another number in the tags of its deliveries."""
        self.tag_links[link] = number
        self._listener(LinkRestored(link))

    def lose_link(self, link: int) -> None:
        number = self.tag_links.get(link, link)
        self._listener(LinkLost(link, ConnectionLostException("link closed by the broker"), number))

    # The port.

    def open(self, credentials: Credentials, listener: Callable[[TransportEvent], None], timeout: float | None) -> Peer:
        self._listener = listener
        return Peer("SmallBroker", "1", credentials.client_id or "invented", False)

    def close(self, timeout: float | None) -> None:
        self.closed = True

    def end_session(self, session: int, timeout: float | None) -> bool:
        self._check()
        self.ended_sessions.append(session)
        return True

    def attach(self, spec: SenderSpec | ReceiverSpec, sink: Sink | None, timeout: float | None) -> int:
        self._check()
        link = next(self._links)
        if isinstance(spec, ReceiverSpec):
            assert sink is not None
            self._receivers[link] = Receiver(spec, sink)
        else:
            self._senders[link] = spec
        return link

    def detach(self, link: int, timeout: float | None) -> bool:
        self._check()
        if link in self._receivers:
            self._receivers[link].attached = False
        self._senders.pop(link, None)
        return True

    def unsubscribe(self, name: str, timeout: float | None, session: int | None = None) -> None:
        self._check()

    def declare_temporary(
        self, kind: DestinationKind, timeout: float | None, session: int | None = None
    ) -> Destination:
        return Destination(f"temporary-{next(self._numbers)}", kind)

    def delete_temporary(self, destination: Destination, timeout: float | None) -> None:
        self._check()

    def credit(self, link: int, messages: int) -> None:
        self._check()
        self.credits.append(messages)
        self._receivers[link].credit += messages
        self._push()

    def drain(self, link: int, timeout: float | None) -> bool:
        self._check()
        self.drains += 1
        if timeout is not None:
            self.drain_limits.append(timeout)
        if self.hold_drains:
            raise OperationTimedOutException("the drain had no answer")
        self._push()
        self._receivers[link].credit = 0
        return True

    def confirm(
        self,
        timeout: float | None,
        session: int | None = None,
        link: int | None = None,
        *,
        outlasts_loss: bool = True,
    ) -> None:
        self._check()

    def send(self, link: int, envelope: Envelope, on_settled: OnSettled | None, timeout: float | None) -> None:
        self._check()
        if self.refuse_send is not None and on_settled is None:
            raise self.refuse_send
        if self.refuse_send is None:
            self.put(envelope)
        if on_settled is not None:
            if self.hold_answers:
                self.answers.append(on_settled)
            else:
                on_settled(self.refuse_send)

    def settle(self, settlements: Sequence[Settlement]) -> None:
        self._check()
        if self.cut_untold:
            raise ConnectionLostException("the cable is cut, which was not reported yet")
        for tag, ending in settlements:
            outcome = ending if isinstance(ending, Outcome) else Outcome.FAILED
            if tag.epoch != self.epoch or (self.settles_twice and tag not in self.held):
                continue
            self.settled.append(Settlement(tag, outcome))
            destination, stored = self.held.pop(tag)  # a KeyError: settled twice
            returned = self.returns_rejected and outcome is Outcome.REJECTED
            if returned or outcome in (Outcome.MODIFIED, Outcome.FAILED):
                stored.failures += 1
            if returned or outcome in (Outcome.MODIFIED, Outcome.FAILED, Outcome.RELEASED):
                self._put_back(destination, stored)
        self._push()

    def commit(
        self,
        session: int,
        commit_number: int,
        sends: Sequence[tuple[int, Envelope]],
        settlements: Sequence[Settlement],
        timeout: float | None,
        changes: Sequence[RegionChange] = (),
    ) -> None:
        self._check()
        if self.refuse_commit is not None:
            raise self.refuse_commit
        self.commits.append((session, commit_number))
        for _, envelope in sends:
            self.put(envelope)
        self.settle(settlements)

    def request(self, operation: str, arguments: Mapping[str, Any], timeout: float | None) -> Any:
        raise JMSException(f"no operation {operation!r}")

    # Inside.

    def put(self, envelope: Envelope) -> None:
        self._put_back(envelope.destination, Stored(next(self._positions), envelope))
        self._push()

    def outcomes(self) -> list[Outcome]:
        return [outcome for _, outcome in self.settled]

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def _put_back(self, destination: Destination, stored: Stored) -> None:
        waiting = self.waiting.setdefault(destination, [])
        waiting.append(stored)
        waiting.sort(key=lambda item: item.position)

    def _push(self) -> None:
        for link, receiver in self._receivers.items():
            waiting = self.waiting.get(receiver.spec.destination, [])
            deliveries = []
            if receiver.spec.browse:
                copies = waiting[: receiver.credit]
                deliveries = [self._delivery(link, stored) for stored in copies]
            else:
                while waiting and receiver.credit > 0 and receiver.attached and not receiver.spec.browse:
                    stored = waiting.pop(0)
                    receiver.credit -= 1
                    delivery = self._delivery(link, stored)
                    if not receiver.spec.presettled:
                        self.held[delivery.tag] = (receiver.spec.destination, stored)
                    deliveries.append(delivery)
            if deliveries:
                receiver.credit = 0 if receiver.spec.browse else receiver.credit
                receiver.sink(deliveries)

    def _delivery(self, link: int, stored: Stored) -> Delivery:
        tag = DeliveryTag(self.epoch, self.tag_links.get(link, link), next(self._numbers))
        return Delivery(tag, stored, self._decode, stored.failures, stored.position)

    def _decode(self, stored: Stored) -> Envelope:
        if stored.position in self.unreadable:
            raise MessageFormatException("the payload cannot be decoded")
        return stored.envelope


def started(broker: SmallBroker) -> Connection:
    """A connection that is started."""
    connection = broker.connect()
    connection.start()
    return connection


def fill(session: Session, count: int) -> None:
    """Send so many messages, which are numbers."""
    with session.create_producer(session.create_queue("q")) as producer:
        for number in range(count):
            producer.send(str(number))


def consumer_of(session: Session) -> MessageConsumer:
    """A consumer of the queue that is filled."""
    return session.create_consumer(session.create_queue("q"))


def with_messages(connection: Connection, mode: AcknowledgeMode, count: int) -> tuple[Session, MessageConsumer]:
    """A session, and its consumer of so many messages."""
    session = connection.create_session(mode)
    with connection.create_session() as other:
        fill(other, count)
    return session, consumer_of(session)


def received(consumer: MessageConsumer) -> Message:
    """The next message."""
    message = consumer.receive(120)
    assert message is not None
    return message


def lose(broker: SmallBroker) -> None:
    """Lose the connection, and restore it."""
    broker.interrupt()
    broker.restore()


def all_again(broker: SmallBroker, consumer: MessageConsumer) -> list[tuple[str, bool]]:
    """Four messages after a loss, with whether each is redelivered."""
    lose(broker)
    messages = [received(consumer) for _ in range(4)]
    messages[-1].acknowledge()
    return [(message.body, message.redelivered) for message in messages]
