"""An inner transport without a network, and what failover is made of around it, with a clock that a test sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ack_modes import Settlement
from broker_adapter.answers import Answer
from broker_adapter.destination import Destination, DestinationKind, queue
from broker_adapter.envelope import BodyKind, Envelope
from broker_adapter.errors import ConnectionLostException, JMSException
from broker_adapter.failover.commits import Commits
from broker_adapter.failover.current import CurrentTransport
from broker_adapter.failover.inner import EndWait, Identification, Inner
from broker_adapter.failover.links import Link, LinkState, LinkTable
from broker_adapter.failover.reattach import Reattacher
from broker_adapter.failover.rules import Reconnect
from broker_adapter.failover.transport import FailoverTransport
from broker_adapter.failover.unanswered import Send, UnansweredSends
from broker_adapter.transport import (
    Credentials,
    Failed,
    OnSettled,
    Peer,
    ReceiverSpec,
    Refresh,
    RegionChange,
    SenderSpec,
    Sink,
    TransportEvent,
)
from broker_adapter.urls.url import AmqpURL, FailoverURL, parse_url
from tests.faults.scenarios import wait_for

QUEUE = queue("q")
LOST = ConnectionLostException("the cable was cut")


def message(number: int) -> Envelope:
    return Envelope(QUEUE, BodyKind.TEXT, str(number))


def our_broker(store: str | None = "store") -> Peer:
    return Peer("Holdfast", "1", "client", is_holdfast=True, rejects_duplicates=True, store=store, run="run")


class FakeInner:
    """Writes down what it is asked, and does what a test says.

    Attributes:
        calls: the names and arguments of all calls that would reach the broker.
        sent: messages, with what is called with their answers.
        raises: call → the errors that it raises next, each once; None: it works.
        resolves: what ``resolve_commit`` returns.
        refuses: destination → the error by which a link to it is refused.
        batches: how many links were asked for at once, each time.
        before: call → what a test does in the middle of it.
        tell: gets the events of the inner transport.
        peer: the broker that it is connected to.
        answers: what messages are answered with at once, one after the other; then they have no answer.
        confirms: whether it confirms acknowledgements.
    """

    def __init__(self) -> None:
        self.is_lost = False
        self.calls: list[tuple[Any, ...]] = []
        self.sent: list[tuple[int, Envelope, OnSettled]] = []
        self.raises: dict[str, list[JMSException | None]] = {}
        self.resolves: bool | None = True
        self.refuses: dict[Destination | None, JMSException] = {}
        self.batches: list[int] = []
        self.before: dict[str, Callable[[], None]] = {}
        self.is_in_callback = False
        self.tell: Callable[[TransportEvent], None] = lambda _event: None
        self.peer = our_broker()
        self.answers: list[JMSException | None] = []
        self.confirms = True
        self._next_link = 1

    def _called(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, *arguments))
        before = self.before.pop(name, None)
        if before is not None:
            before()
        errors = self.raises.get(name)
        error = errors.pop(0) if errors else None
        if error is not None:
            raise error

    def in_callback(self) -> bool:
        return self.is_in_callback

    def open(self, credentials: Credentials, listener: Callable[[TransportEvent], None], timeout: float | None) -> Peer:
        self.tell = listener
        self._called("open")
        return self.peer

    def close(self, timeout: float | None) -> None:
        self._called("close", timeout)

    def end_session(self, session: int, timeout: float | None) -> None:
        self._called("end_session", session)

    def attach(self, spec: SenderSpec | ReceiverSpec, sink: Sink | None, timeout: float | None) -> int:
        self._called("attach", spec.destination)
        if spec.destination in self.refuses:
            raise self.refuses[spec.destination]
        self._next_link += 1
        return self._next_link - 1

    def attach_all(
        self, links: Sequence[tuple[SenderSpec | ReceiverSpec, Sink | None]], timeout: float | None
    ) -> list[int | JMSException]:
        self.batches.append(len(links))
        outcomes: list[int | JMSException] = []
        for spec, sink in links:
            try:
                outcomes.append(self.attach(spec, sink, timeout))
            except JMSException as error:
                outcomes.append(error)
        return outcomes

    def detach(self, link: int, timeout: float | None) -> None:
        self._called("detach", link)

    def restore_temporaries(self, destinations: Sequence[Destination], timeout: float | None) -> None:
        self._called("restore_temporaries", list(destinations))

    def watch(self) -> None:
        self._called("watch")

    def unsubscribe(self, name: str, timeout: float | None, session: int | None = None) -> None:
        self._called("unsubscribe", name)

    def declare_temporary(
        self, kind: DestinationKind, timeout: float | None, session: int | None = None
    ) -> Destination:
        self._called("declare_temporary")
        return Destination("temporary", kind)

    def delete_temporary(self, destination: Destination, timeout: float | None) -> None:
        self._called("delete_temporary", destination)

    def credit(self, link: int, messages: int) -> None:
        self._called("credit", link, messages)

    def drain(self, link: int, timeout: float | None) -> bool:
        self._called("drain", link)
        return True

    def confirm(
        self,
        timeout: float | None,
        session: int | None = None,
        link: int | None = None,
        *,
        outlasts_loss: bool = True,
    ) -> None:
        self.confirm_until(lambda _end_wait: None, timeout)

    def confirm_until(self, begin: Callable[[EndWait], None], timeout: float | None) -> None:
        answer = Answer()
        begin(answer.settled)
        self._called("confirm")
        if self.confirms:
            answer(True, None)
        answer.wait(timeout, "the acknowledgement")

    def settle(self, settlements: Sequence[Settlement]) -> None:
        self._called("settle", list(settlements))

    def send(self, link: int, envelope: Envelope, on_settled: OnSettled | None, timeout: float | None) -> None:
        self._called("send", link, envelope.body)
        assert on_settled is not None
        self.sent.append((link, envelope, on_settled))
        if self.answers:
            on_settled(self.answers.pop(0))

    def commit(
        self,
        session: int,
        commit_number: int,
        sends: Sequence[tuple[int, Envelope]],
        settlements: Sequence[Settlement],
        timeout: float | None,
        changes: Sequence[RegionChange] = (),
    ) -> None:
        self._called("commit", session, commit_number, [link for link, _ in sends])

    def resolve_commit(
        self, session: int, commit_number: int, age_seconds: float, timeout: float | None
    ) -> bool | None:
        self._called("resolve_commit", session, commit_number, age_seconds)
        return self.resolves

    def request(self, operation: str, arguments: Mapping[str, Any], timeout: float | None) -> Any:
        self._called("request", operation, dict(arguments))
        return operation

    def begin_request(
        self, operation: str, arguments: Mapping[str, Any], done: Callable[[Any, JMSException | None], bool]
    ) -> None:
        self._called("begin_request", operation, dict(arguments))
        done(operation, None)

    def cut(self, error: JMSException = LOST) -> None:
        """The connection is lost."""
        self.is_lost = True
        self.tell(Failed(error))


class Failover:
    """The parts of failover, connected by one inner transport, and without any thread but the test's.

    Attributes:
        now: what the clock says.
        step: by how many seconds the clock goes on each time that it is asked.
        events: what the listener was told.
        inner: the inner transport that is connected, or was last.
    """

    def __init__(self, options: str = "", peer: Peer | None = None) -> None:
        url = parse_url(f"amqp://h:1?reconnect_jitter=0&stable_seconds=0{options}")
        assert isinstance(url, FailoverURL)
        self.now = 1000.0
        self.step = 0.0
        self.events: list[TransportEvent] = []
        self.rules = Reconnect(url.addresses, url.failover, lambda: 0.5)
        self.rules.start(self.now)
        self.current = CurrentTransport(self.rules, self._clock)
        self.current.listener = self.events.append
        self.links = LinkTable()
        self.unanswered = UnansweredSends(self.current, self.links)
        self.reattacher = Reattacher(self.current, self.links, self.unanswered, url, lambda: 0.5)
        self.commits = Commits(self.current, self.links, self.reattacher)
        self.inner = FakeInner()
        self.connect(self.inner, peer)

    def _clock(self) -> float:
        self.now += self.step
        return self.now

    def begin(self, inner: FakeInner) -> None:
        """An attempt with another inner transport begins."""
        with self.current.lock:
            self.current.begin(cast(Inner, inner))

    def connect(self, inner: FakeInner, peer: Peer | None = None) -> None:
        """The connection is there, or there again, with all that hangs on it."""
        self.inner = inner
        self.begin(inner)
        self.reattacher.restore(cast(Inner, inner))
        with self.current.lock:
            assert self.current.connect(cast(Inner, inner), our_broker() if peer is None else peer)
            self.links.attach_restored()

    def lose(self) -> None:
        """The connection is lost, and that is noticed."""
        self.inner.is_lost = True
        with self.current.lock:
            self.current.connection_lost(LOST, self.now)
            self.links.detach_all()
            self.current.last_error = LOST

    def sender(self, destination: Destination = QUEUE) -> Link:
        """A new link of a producer."""
        spec = SenderSpec(1, destination)
        attachment = cast(Inner, self.inner), self.inner.attach(spec, None, None)
        link = Link(self.links.new_number(), spec, None, LinkState.ATTACHED, attachment)
        with self.current.lock:
            self.links.add(link)
        return link

    def send(self, link: Link, number: int, answers: list[Any]) -> Send:
        """Send as the transport does; the answer is appended, with the number of the message."""
        attachment = link.attachment
        assert attachment is not None
        envelope = message(number)
        serial = next(self.unanswered.serials)
        send = Send(self.unanswered, link, attachment, envelope, lambda error: answers.append((number, error)), serial)
        attachment[0].send(attachment[1], envelope, send, None)
        return send


class Connection:
    """A transport over inner ones without a network.

    Attributes:
        transport: what is tested.
        events: what its listener was told.
        inners: the inner transports so far; those in ``next`` first, then plain ones.
        addresses: where each was to connect.
        epochs: the epoch of each.
    """

    def __init__(self, options: str = "", *following: FakeInner, refresh: Refresh | None = None) -> None:
        url = parse_url(f"amqp://h:1?reconnect_jitter=0&stable_seconds=0&reconnect_delay_seconds=0.001{options}")
        assert isinstance(url, FailoverURL)
        self.events: list[TransportEvent] = []
        self.inners: list[FakeInner] = []
        self.next = list(following)
        self.addresses: list[AmqpURL] = []
        self.epochs: list[int] = []
        self.transport = FailoverTransport(url, self._make, refresh=refresh, random=lambda: 0.5)

    def _make(self, address: AmqpURL, epoch: int, identification: Identification) -> Inner:
        self.addresses.append(address)
        self.epochs.append(epoch)
        self.inners.append(self.next.pop(0) if self.next else FakeInner())
        return cast(Inner, self.inners[-1])

    def open(self, timeout: float | None = None) -> Connection:
        self.transport.open(Credentials(), self.events.append, timeout)
        return self

    @property
    def inner(self) -> FakeInner:
        """The last inner transport."""
        return self.inners[-1]

    def sender(self) -> int:
        return self.transport.attach(SenderSpec(1, QUEUE), None, 5.0)

    def has_told(self, *kinds: type[TransportEvent]) -> bool:
        """Whether exactly these events came in the end, in this order."""
        return wait_for(lambda: [type(each) for each in self.events] == list(kinds))

    def cut_and_restore(self) -> None:
        """Lose the connection, and wait until it is restored."""
        count = len(self.events)
        self.inner.cut()
        assert wait_for(lambda: len(self.events) == count + 3), self.events
