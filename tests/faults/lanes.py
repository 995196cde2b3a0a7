"""What the soak does with messages, one lane for each way, and what each of them promises."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionLostException,
    InvalidDestinationException,
    JMSException,
    Message,
    MessageConsumer,
    MessageProducer,
    QueueStatistics,
    Session,
    StaleAcknowledgementException,
    TransactionRolledBackException,
)

#: Messages that the producer of a lane with one consumer sends in a second, and of one with several.
RATE = 150
SHARED_RATE = 40
#: Consumers of a lane with several, and the window of each.
SHARERS = 2
SHARED_PREFETCH = 20
#: How often one of several consumers gives back instead of acknowledging or committing.
GIVING_BACK = 0.03
#: Groups of the messages of a lane with groups.
GROUPS = 7
#: Longest wait for everything to arrive once the faults have ended, in seconds.
SETTLING = 60.0
#: Longest wait for the reply to a request before it is asked again, in seconds: longer than any fault lasts.
REPLY_SECONDS = 5.0
#: Messages that are acknowledged or committed together.
BATCH = 5


@attrs.define
class Course:
    """How far a soak has come."""

    sending: bool = True
    receiving: bool = True

    def working(
        self, lane: Lane, work: Callable[[Connection, Course], None], connection: Connection
    ) -> threading.Thread:
        """Start to do a lane's work in a thread; an error there breaks what the lane promises."""

        def run() -> None:
            try:
                work(connection, self)
            except Exception as error:
                lane.broken.append(f"{work.__name__} ended: {error!r}")

        thread = threading.Thread(target=run, name=f"{work.__name__} {lane.name}", daemon=True)
        thread.start()
        return thread


@attrs.frozen
class Faced:
    """What the lanes had to go through."""

    losses: int  #: of connections
    kills: int  #: of servers


@attrs.define
class Lane:
    """A destination with its producer and its consumer, and what they saw."""

    name: str
    sent: int = 0
    confirmed: set[int] = attrs.field(factory=set)
    received: Counter[int] = attrs.field(factory=Counter)
    raised: Counter[str] = attrs.field(factory=Counter)
    unmarked: int = 0  #: redelivered without a mark
    broken: list[str] = attrs.field(factory=list)

    #: Consumers, each of a connection of its own.
    consumers = 1

    @property
    def duplicates(self) -> int:
        """Messages that were redelivered."""
        return sum(count - 1 for count in self.received.values())

    def saw(self, message: Message) -> int:
        """A message came; returns its number."""
        number = int(message.body)
        if self.received[number] and not message.redelivered:
            self.unmarked += 1
        self.received[number] += 1
        return number

    def told(self, error: StaleAcknowledgementException) -> None:
        """The exception listener of one of the connections was told of messages, of this lane or another one."""

    def prepare(self, consuming: Connection) -> None:
        """What has to be there before the first message."""

    def produce(self, connection: Connection, course: Course) -> None:
        """Send until the course says that it is enough, and wait until all is confirmed."""
        raise NotImplementedError

    def consume(self, connection: Connection, course: Course) -> None:
        """Receive until the course says that it is enough."""
        raise NotImplementedError

    def record(self, queues: Mapping[str, QueueStatistics]) -> QueueStatistics:
        """What the engine has on record of this lane."""
        return queues[self.name]

    def problems(self, queues: Mapping[str, QueueStatistics], faced: Faced) -> Iterable[str]:
        """Promises that were broken."""
        yield from self.broken
        sent, record = set(range(self.sent)), self.record(queues)
        if self.confirmed != sent:
            yield f"{len(sent - self.confirmed)} sends were never confirmed"
        if record.next_position - 1 != self.sent:
            yield f"{self.sent} sent, {record.next_position - 1} stored"
        if record.messages:
            yield f"{record.messages} left in the queue"
        if set(self.received) != sent:
            yield f"{len(sent - set(self.received))} lost"
        if self.unmarked:
            yield f"{self.unmarked} redelivered without a mark"


@attrs.define
class QueueLane(Lane):
    """A queue in one of the modes."""

    mode: AcknowledgeMode = attrs.field(kw_only=True)
    listens: bool = attrs.field(kw_only=True, default=False)
    sends_later: bool = attrs.field(kw_only=True, default=False)  #: with completions, not waiting for each answer
    rate: int = attrs.field(kw_only=True, default=RATE)  #: messages sent a second
    ended: Counter[int] = attrs.field(factory=Counter, kw_only=True)  #: acknowledged or committed

    def producer(self, session: Session) -> MessageProducer:
        """Where messages go."""
        return session.create_producer(session.create_queue(self.name))

    def consumer(self, session: Session) -> MessageConsumer:
        """Where they come from."""
        return session.create_consumer(session.create_queue(self.name))

    def message(self, session: Session, number: int) -> Message:
        """What is sent."""
        return session.create_text_message(str(number))

    def produce(self, connection: Connection, course: Course) -> None:
        """See :meth:`Lane.produce`."""
        transacted = self.mode is AcknowledgeMode.TRANSACTED
        with connection.create_session(self.mode if transacted else AcknowledgeMode.AUTO) as session:
            producer = self.producer(session)
            while course.sending:
                if transacted:
                    self._commit_some(session, producer)
                    time.sleep(BATCH / self.rate)
                    continue
                message = self.message(session, self.sent)
                if self.sends_later:
                    producer.send(message, on_completion=self._completed)
                else:
                    producer.send(message)
                    self.confirmed.add(self.sent)
                self.sent += 1
                time.sleep(1 / self.rate)
            # A session that closes while the network is away does not wait for what has no answer.
            deadline = time.monotonic() + SETTLING
            while len(self.confirmed) < self.sent and time.monotonic() < deadline:
                time.sleep(0.01)

    def _completed(self, message: Message, error: JMSException | None) -> None:
        if error is None:
            self.confirmed.add(int(message.body))
        else:
            self.broken.append(f"a send failed: {error!r}")

    def _commit_some(self, session: Session, producer: MessageProducer) -> None:
        batch = range(self.sent, self.sent + BATCH)
        for number in batch:
            producer.send(self.message(session, number))
        try:
            session.commit()
        except TransactionRolledBackException as error:
            self.raised[type(error).__name__] += 1
            return
        self.confirmed.update(batch)
        self.sent += BATCH

    def consume(self, connection: Connection, course: Course) -> None:
        """See :meth:`Lane.consume`."""
        while course.receiving:
            with connection.create_session(self.mode) as session:
                self._use(session, course, time.monotonic() + self.turn())

    def turn(self) -> float:
        """How long to use a session before the next one, in seconds."""
        return math.inf

    def gives_back(self) -> bool:
        """Whether to recover, roll back or raise now, instead of ending what is held."""
        return False

    def _hear(self, message: Message) -> None:
        self.saw(message)
        if self.gives_back():
            raise ValueError("as it should")

    def _use(self, session: Session, course: Course, until: float) -> None:
        consumer = self.consumer(session)
        if self.listens:
            consumer.listener = self._hear
            while course.receiving and time.monotonic() < until:
                time.sleep(0.05)
            return
        held: list[tuple[Message, int]] = []
        while course.receiving and time.monotonic() < until:
            try:
                message = consumer.receive(0.2)
            except ConnectionLostException as error:
                self.raised[type(error).__name__] += 1
                continue
            if message is not None:
                held.append((message, self.saw(message)))
            if held and (message is None or len(held) >= BATCH):
                if self.gives_back():
                    (session.rollback if session.transacted else session.recover)()
                else:
                    self._end(held, session.commit if session.transacted else None)
                held = []

    def _end(self, held: list[tuple[Message, int]], commit: Callable[[], None] | None) -> None:
        """Acknowledge or commit what is held."""
        try:
            if self.mode is AcknowledgeMode.INDIVIDUAL:
                for message, number in held:
                    try:
                        message.acknowledge()
                        self.ended[number] += 1
                    except StaleAcknowledgementException as error:
                        self.raised[type(error).__name__] += 1
                return
            if commit is not None:
                commit()
            elif self.mode is AcknowledgeMode.CLIENT:
                held[-1][0].acknowledge()
            self.ended.update(number for _, number in held)
        except (StaleAcknowledgementException, TransactionRolledBackException) as error:
            self.raised[type(error).__name__] += 1

    def problems(self, queues: Mapping[str, QueueStatistics], faced: Faced) -> Iterable[str]:
        """See :meth:`Lane.problems`."""
        yield from Lane.problems(self, queues, faced)
        untold = self.untold(faced)
        if self.mode is AcknowledgeMode.AUTO and self.duplicates > faced.losses + untold:
            yield f"{self.duplicates} duplicates in {faced.losses} losses"
        if self.mode not in (AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK):
            twice = sum(count > 1 for count in self.ended.values())
            missing = set(range(self.sent)) - set(self.ended)
            if twice > untold or missing:
                yield f"{twice} ended twice, {len(missing)} never"

    def untold(self, faced: Faced) -> int:
        """Most messages that may be acknowledged twice."""
        return 0


@attrs.define
class SharedLane(QueueLane):
    """A queue with several consumers, each of a connection of its own.

    From time to time a consumer recovers, rolls back or raises, and its session is closed for another one.

    Acknowledgements that are lost with a connection may come too late: another consumer has the messages by now.  The
    first one is told which ones, by an exception or by the exception listener, unless the server was killed meanwhile.
    """

    groups: int = attrs.field(kw_only=True, default=0)  #: message groups; 0: without
    exclusive: bool = attrs.field(kw_only=True, default=False)
    consumers = SHARERS
    too_late: set[int] = attrs.field(factory=set, kw_only=True)  #: that the application was told of
    _numbers: dict[str, int] = attrs.field(factory=dict, kw_only=True)  #: by message id
    _next: Counter[int] = attrs.field(factory=Counter, kw_only=True)  #: messages of a group that came, without gaps
    _lock: threading.RLock = attrs.field(factory=threading.RLock, kw_only=True)
    _chance: random.Random = attrs.field(factory=lambda: random.Random(7), kw_only=True)
    _given_back: int = attrs.field(default=0, kw_only=True)  #: listeners that raised

    def turn(self) -> float:
        """See :meth:`QueueLane.turn`."""
        return self._chance.uniform(1, 6)

    def gives_back(self) -> bool:
        """See :meth:`QueueLane.gives_back`: in modes in which something is held, and in listeners."""
        with self._lock:
            gives = (self.listens or self.mode in _HOLDING) and self._chance.random() < GIVING_BACK
            self._given_back += gives
            return gives

    def consumer(self, session: Session) -> MessageConsumer:
        """See :meth:`QueueLane.consumer`."""
        return session.create_consumer(session.create_queue(self.name), exclusive=self.exclusive)

    def message(self, session: Session, number: int) -> Message:
        """See :meth:`QueueLane.message`."""
        message = session.create_text_message(str(number))
        if self.groups:
            message.group_id = str(number % self.groups)
        return message

    def saw(self, message: Message) -> int:
        """See :meth:`Lane.saw`; nothing comes before what was sent before it to the same consumer."""
        with self._lock:
            number = super().saw(message)
            assert message.message_id is not None
            self._numbers[message.message_id] = number
            if self.groups or self.exclusive:
                place, group = divmod(number, self.groups or 1)
                if place > self._next[group]:
                    self.broken.append(f"{number} came, and {self._next[group]} of its group have come before")
                self._next[group] = max(self._next[group], place + 1)
            return number

    def told(self, error: StaleAcknowledgementException) -> None:
        """See :meth:`Lane.told`."""
        with self._lock:
            self.too_late.update(self._numbers[each] for each in error.message_ids if each in self._numbers)

    def _end(self, held: list[tuple[Message, int]], commit: Callable[[], None] | None) -> None:
        """See :meth:`QueueLane._end`; what tells of earlier messages has ended those that are held."""
        try:
            if commit is not None:
                commit()
            elif self.mode is AcknowledgeMode.CLIENT:
                held[-1][0].acknowledge()
            elif self.mode is AcknowledgeMode.INDIVIDUAL:
                for each in held[:-1]:
                    self._end([each], None)
                held = held[-1:]
                held[0][0].acknowledge()
        except (StaleAcknowledgementException, TransactionRolledBackException) as error:
            with self._lock:
                self.raised[type(error).__name__] += 1
            if not isinstance(error, StaleAcknowledgementException) or not error.message_ids:
                return
            self.told(error)
        with self._lock:
            self.ended.update(number for _, number in held)

    def untold(self, faced: Faced) -> int:
        """See :meth:`QueueLane.untold`: twice the window of each consumer, where a killed server cannot tell."""
        if self.mode is AcknowledgeMode.TRANSACTED:
            return 0
        raised = self._given_back if self.listens else 0
        return raised + len(self.too_late) + faced.kills * self.consumers * 2 * SHARED_PREFETCH


@attrs.define
class DurableLane(QueueLane):
    """A topic with a durable subscription, which belongs to the client id of the consuming connection."""

    def prepare(self, consuming: Connection) -> None:
        """See :meth:`Lane.prepare`: a topic keeps nothing for later subscriptions."""
        with consuming.create_session() as session:
            self.consumer(session).close()

    def producer(self, session: Session) -> MessageProducer:
        """See :meth:`QueueLane.producer`."""
        return session.create_producer(session.create_topic(self.name))

    def consumer(self, session: Session) -> MessageConsumer:
        """See :meth:`QueueLane.consumer`."""
        return session.create_durable_consumer(session.create_topic(self.name), "soak")

    def record(self, queues: Mapping[str, QueueStatistics]) -> QueueStatistics:
        """See :meth:`Lane.record`."""
        (subscription,) = [each for each in queues.values() if each.kind == "subscription"]
        return subscription


@attrs.define
class ReplyLane(Lane):
    """Requests, with replies to a temporary queue whose name must stay what it is.

    A reply is asked for again where none comes: what is in a temporary queue is gone with a server that is killed.
    """

    asked: int = attrs.field(kw_only=True, default=0)  #: requests sent, with those that were sent again
    addresses: set[str] = attrs.field(kw_only=True, factory=set)  #: that the requests named for the reply

    def produce(self, connection: Connection, course: Course) -> None:
        """See :meth:`Lane.produce`."""
        with connection.create_session() as session:
            producer = session.create_producer(session.create_queue(self.name))
            answers = session.create_temporary_queue()
            consumer = session.create_consumer(answers)
            while course.sending or len(self.confirmed) < self.sent:
                if len(self.confirmed) == self.sent:
                    self.sent += 1
                number = self.sent - 1
                request = session.create_text_message(str(number))
                request.reply_to = answers
                producer.send(request)
                self.asked += 1
                if self._answered(consumer, number):
                    self.confirmed.add(number)
                    time.sleep(1 / RATE)
                else:
                    self.raised[f"no reply in {REPLY_SECONDS:g} s"] += 1

    def _answered(self, consumer: MessageConsumer, number: int) -> bool:
        deadline = time.monotonic() + REPLY_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                reply = consumer.receive(left)
            except ConnectionLostException as error:
                self.raised[type(error).__name__] += 1
                continue
            if reply is not None and int(reply.body) == number:
                return True
            if reply is not None and int(reply.body) not in self.confirmed:
                self.broken.append(f"a reply to {reply.body}, and {number} was asked")
        return False

    def consume(self, connection: Connection, course: Course) -> None:
        """See :meth:`Lane.consume`."""
        with connection.create_session() as session:
            consumer = session.create_consumer(session.create_queue(self.name))
            anywhere = session.create_producer(None)
            while course.receiving:
                try:
                    request = consumer.receive(0.2)
                except ConnectionLostException as error:
                    self.raised[type(error).__name__] += 1
                    continue
                if request is None:
                    continue
                self.saw(request)
                assert request.reply_to is not None
                self.addresses.add(request.reply_to.name)
                try:
                    anywhere.send(request.body, destination=request.reply_to)
                except InvalidDestinationException as error:
                    # The requester's connection is not restored yet, and its temporary queue with it.
                    self.raised[type(error).__name__] += 1

    def problems(self, queues: Mapping[str, QueueStatistics], faced: Faced) -> Iterable[str]:
        """See :meth:`Lane.problems`."""
        yield from self.broken
        if len(self.confirmed) != self.sent:
            yield f"{self.sent - len(self.confirmed)} requests were never answered"
        if len(self.addresses) > 1:
            yield f"the temporary queue had {len(self.addresses)} names"
        if self.asked - self.sent > faced.losses:
            yield f"{self.asked - self.sent} replies were lost in {faced.losses} losses"
        if self.record(queues).messages:
            yield f"{self.record(queues).messages} left in the queue"


def lanes() -> list[Lane]:
    """One for each mode, two for AUTO; a durable subscription; requests with replies; those with several consumers."""
    shared = [
        SharedLane(f"{kind} {mode.name.lower()}", mode=mode, sends_later=True, rate=SHARED_RATE, **options)
        for kind, options in _SHARED.items()
        for mode in (_OF_LISTENERS if "listens" in options else _ACKNOWLEDGING)
    ]
    return [
        *shared,
        QueueLane("auto receive", mode=AcknowledgeMode.AUTO),
        QueueLane("auto listener", mode=AcknowledgeMode.AUTO, listens=True, sends_later=True),
        QueueLane("dups_ok", mode=AcknowledgeMode.DUPS_OK, sends_later=True),
        QueueLane("client", mode=AcknowledgeMode.CLIENT),
        QueueLane("individual", mode=AcknowledgeMode.INDIVIDUAL, sends_later=True),
        QueueLane("transacted", mode=AcknowledgeMode.TRANSACTED),
        DurableLane("durable subscription, auto", mode=AcknowledgeMode.AUTO, sends_later=True),
        ReplyLane("request and reply, auto"),
    ]


_HOLDING: Final = (AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL, AcknowledgeMode.TRANSACTED)
_OF_LISTENERS: Final = (AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK)
_ACKNOWLEDGING: Final = (
    *_OF_LISTENERS,
    AcknowledgeMode.CLIENT,
    AcknowledgeMode.INDIVIDUAL,
    AcknowledgeMode.TRANSACTED,
)
#: Ways in which several consumers have a queue.
_SHARED: Final[dict[str, dict[str, Any]]] = {
    "shared": {},
    "shared by listeners": {"listens": True},
    "groups": {"groups": GROUPS},
    "groups, listeners": {"groups": GROUPS, "listens": True},
    "exclusive": {"exclusive": True},
}
