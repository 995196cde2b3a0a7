"""A broker that does what a test tells it, over proton: the far end of a client protocol."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from broker_adapter.amqp.client.protocol import ClientOptions, ClientProtocol
from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    DECLARED,
    Event,
    Incoming,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
    RemoteClose,
    RemoteOpen,
    State,
    Terminus,
    Transfers,
)
from broker_adapter.amqp.messages.consumer_records import CONSUMER_NUMBER
from broker_adapter.amqp.messages.values import Described, Reader
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from broker_adapter.amqp.wire import ADD_DESCRIPTOR, BATCHES_CAPABILITY, envelope_capabilities
from broker_adapter.envelope import ENVELOPE_VERSION
from broker_adapter.errors import JMSException
from broker_adapter.transport import TransportEvent

#: A kind of event, or one with a condition.
Expected = type[Any] | tuple[type[Any], Callable[[Any], bool]]


class ScriptedBroker:
    """Accepts links and messages; tests replace what it does by changing its attributes.

    ``expect`` says what the client must have done, in which order.  The broker answers by itself, refuses
    (``refusals``, ``open_error``), stalls (``accepts``, ``answers_drain``, ``closes_links``, ``credit``), or drops
    (``peer.close``, or no more ``pump``), as its attributes say.

    Attributes:
        log: everything that the client did.
        refusals: address → the error by which a link to it is refused.
        echo_filters: whether filters are confirmed.
        confirms_copies: whether it is confirmed that a browser gets copies.
        takes_batches: whether it takes several messages as one transfer.
        delivers_batches: whether it delivers in batches to who asks for that, if it takes them.
        accepts: whether messages are accepted as they come; otherwise they wait in ``held``.
        credit: what each producer's link gets.
    """

    def __init__(
        self,
        *,
        holdfast: bool = True,
        properties: dict[str, Any] | None = None,
        offered: tuple[str, ...] = ("ANONYMOUS-RELAY", "DELAYED_DELIVERY", "SHARED-SUBS"),
    ) -> None:
        self.peer = Peer(PeerLimits(), server=True)
        self.log: list[Event] = []
        self.refusals: dict[str | None, AmqpError] = {}
        self.echo_filters = True
        self.confirms_copies = True
        self.envelope_version = ENVELOPE_VERSION
        self.takes_batches = False
        self.delivers_batches = True
        self.accepts = True
        self.answers_drain = True
        self.closes_links = True
        self.credit = 100
        self.max_message_bytes: int | None = None
        self.held: list[tuple[int, Incoming]] = []
        self.links: dict[str, int] = {}
        self.by_address: dict[str | None, int] = {}
        self.coordinators: set[int] = set()
        self.discharges: list[tuple[bool, Any]] = []
        self.added: list[Any] = []  #: ahead of discharges: (transaction, annotations)
        self.discharge_outcome = ACCEPTED_STATE
        self.next_txn = 1
        self.open_error: AmqpError | None = None
        self._expected = 0  #: how much of the log was expected
        self._holdfast = holdfast
        self._properties = properties
        self._offered = offered
        self._next_temporary = 1

    def handle(self) -> bool:
        """React to what has come in; returns whether anything had."""
        events = self.peer.events()
        for event in events:
            self.log.append(event)
            self._react(event)
        return bool(events)

    def of(self, kind: type[Any]) -> list[Any]:
        """What the client did of this kind."""
        return [event for event in self.log if isinstance(event, kind)]

    def expect(self, *expected: Expected) -> None:
        """What the client did since the last ``expect``, in this order and nothing else; flows may stand in between.

        Args:
            expected: kinds of events, or (kind, condition): a condition that the event must fulfil.

        Raises:
            AssertionError: it did something else; both lists are shown, side by side.
        """
        done = [event for event in self.log[self._expected :] if not isinstance(event, LinkFlow)]
        self._expected = len(self.log)
        wanted = [each if isinstance(each, tuple) else (each, lambda _event: True) for each in expected]
        fits = len(done) == len(wanted) and all(
            isinstance(event, kind) and condition(event) for event, (kind, condition) in zip(done, wanted, strict=True)
        )
        if not fits:
            names, said = [kind.__name__ for kind, _ in wanted], [str(event)[:160] for event in done]
            lines = [f"  {name:24} {event}" for name, event in zip_longest(names, said, fillvalue="(nothing)")]
            raise AssertionError("\n".join(["expected                   and the client did", *lines]))

    def _react(self, event: Event) -> None:
        if isinstance(event, RemoteOpen):
            properties: dict[str, Any] = {"product": "Holdfast" if self._holdfast else "other", "version": "9"}
            if self.open_error is not None:
                properties["amqp:connection-establishment-failed"] = True
            offered = [*self._offered, *envelope_capabilities(self.envelope_version if self._holdfast else 0)]
            if self.takes_batches:
                offered.append(BATCHES_CAPABILITY)
            self.peer.open(
                "broker", offered_capabilities=offered, properties={**properties, **(self._properties or {})}
            )
            if self.open_error is not None:
                self.peer.close(self.open_error)
        elif isinstance(event, LinkRemoteOpen):
            if event.by_peer:
                self._attach(event)
        elif isinstance(event, Transfers):
            self._transfers(event)
        elif isinstance(event, LinkRemoteClose):
            if self.closes_links:
                self.peer.close_link(event.link, closed=event.closed)
        elif isinstance(event, LinkFlow) and event.drain and self.answers_drain:
            self.peer.drained(event.link)
        elif isinstance(event, RemoteClose):
            self.peer.close()

    def _attach(self, event: LinkRemoteOpen) -> None:
        node = event.source if event.is_sender else event.target
        address = None if node is None else node.address
        if address in self.refusals:
            self.peer.refuse_link(event.link, self.refusals[address])
            return
        source, target = event.source, event.target
        if event.is_sender and source is None:  # an unsubscribe
            source = Terminus(event.name)
        if event.is_sender and not self.echo_filters and source is not None:
            source = source._replace(filters=None)
        if event.is_sender and not self.confirms_copies and source is not None:
            source = source._replace(copies=False)
        if not event.is_sender and target is not None and target.dynamic:
            target = target._replace(address=f"temporary-{self._next_temporary}")
            self._next_temporary += 1
        self.links[event.name] = event.link
        self.by_address[address] = event.link
        if target is not None and target.coordinator:
            self.coordinators.add(event.link)
        number = event.properties.get(CONSUMER_NUMBER) if self.delivers_batches else None
        properties = None if number is None else {CONSUMER_NUMBER: number}
        self.peer.accept_link(
            event.link, source, target, max_message_bytes=self.max_message_bytes, properties=properties
        )
        if not event.is_sender:
            self.peer.credit(event.link, self.credit)

    def _transfers(self, event: Transfers) -> None:
        for delivery in event.deliveries:
            if event.link in self.coordinators:
                self._coordinate(event.link, delivery)
            elif self.accepts and delivery.number:
                self.settle(event.link, delivery)
            else:
                self.held.append((event.link, delivery))

    def settle(self, link: int, delivery: Incoming, state: State = ACCEPTED_STATE) -> None:
        """Answer a message, in its transaction where it has one."""
        if delivery.state is not None:
            state = State(delivery.state.code, txn_id=delivery.state.txn_id, outcome=state)
        self.peer.settle(link, [delivery.number], state)

    def _coordinate(self, link: int, delivery: Incoming) -> None:
        sections = []
        reader = Reader(delivery.payload)
        while reader.position < len(delivery.payload):
            sections.append(reader.value())
        command = sections[-1].value
        assert isinstance(command, Described)
        if command.descriptor == 0x31:
            txn_id = b"%036d" % self.next_txn  # as long as those of Artemis, though AMQP 1.0 section 4.5.4 says 32
            self.next_txn += 1
            self.peer.settle(link, [delivery.number], State(DECLARED, txn_id=txn_id))
        elif command.descriptor == ADD_DESCRIPTOR:
            self.added.append((command.value[0], sections[0].value))
            self.peer.settle(link, [delivery.number], ACCEPTED_STATE)
        else:
            self.discharges.append((command.value[1], sections[0].value if len(sections) > 1 else None))
            self.peer.settle(link, [delivery.number], self.discharge_outcome)


class Result:
    """A done callback that remembers."""

    def __init__(self, *, waits: bool = True) -> None:
        self.calls: list[tuple[Any, JMSException | None]] = []
        self._waits = waits

    def __call__(self, result: Any, error: JMSException | None) -> bool:
        self.calls.append((result, error))
        return self._waits

    @property
    def value(self) -> Any:
        """The result; raises the error."""
        assert len(self.calls) == 1
        result, error = self.calls[0]
        if error is not None:
            raise error
        return result

    @property
    def pending(self) -> bool:
        """Whether nothing has come yet."""
        return not self.calls


class Wired:
    """A client protocol and a scripted broker joined by a pretend wire."""

    def __init__(
        self,
        broker: ScriptedBroker | None = None,
        *,
        has_client_id: bool = True,
        envelope: bool = True,
        limits: PeerLimits | None = None,
        queue_prefix: str | None = None,
    ) -> None:
        self.broker = broker or ScriptedBroker()
        self.events: list[TransportEvent] = []
        self.sends_done = 0
        self.client = ClientProtocol(
            ClientOptions(
                container_id="client-1",
                hostname="host",
                version="1",
                has_client_id=has_client_id,
                commit_prefix="prefix",
                envelope=envelope,
                queue_prefix=queue_prefix,
                trust_broker=True,  # the script says what it applies
                limits=limits or PeerLimits(),
            ),
            None,
            self.events.append,
            self._count,
        )

    def _count(self, count: int) -> None:
        self.sends_done += count

    def pump(self) -> None:
        """Carry bytes until nothing moves."""
        moved = True
        while moved:
            data = self.client.pending_output()
            self.broker.peer.receive(data) if data else None
            handled = self.broker.handle()
            answer = self.broker.peer.pending_output()
            if answer:
                self.client.receive(answer)
            moved = bool(data or handled or answer)

    def opened(self) -> Wired:
        """Open the connection."""
        result = Result()
        self.client.open(result)
        self.pump()
        assert result.value is not None
        return self

    def ask(self, call: Callable[..., None], *arguments: Any) -> Any:
        """Call with a result, carry bytes, return the result."""
        result = Result()
        call(*arguments, result)
        self.pump()
        return result.value
