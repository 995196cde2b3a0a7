"""One scenario for each mode: send some messages, receive them, end their deliveries; over a network that may be cut.

Each plays an application that knows the failover contract, and writes down all that it saw.  What it saw is then held
against the contract, and against what the engine has on record.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import attrs

from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    ConnectionLostException,
    JMSException,
    Message,
    MessageConsumer,
    Session,
    StaleAcknowledgementException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)
from tests.aio_face import Faces

#: Longest wait for a message, in seconds; a restore takes milliseconds.
WAIT = 120.0


@attrs.define
class Seen:
    """What an application saw."""

    sent: list[str] = attrs.field(factory=list)  #: confirmed sends, or sends of confirmed transactions
    received: list[tuple[str, bool]] = attrs.field(factory=list)  #: body, redelivered
    ended: list[str] = attrs.field(factory=list)  #: acknowledged, or received in a confirmed transaction
    raised: list[JMSException] = attrs.field(factory=list)
    told: list[JMSException] = attrs.field(factory=list)  #: by the exception listener
    too_many: list[str] = attrs.field(factory=list)  #: came although it was acknowledged or committed
    wait: float = WAIT
    when_sent: Callable[[], None] = lambda: None  #: called when all is sent, before anything is received

    @property
    def again(self) -> Counter[str]:
        """How often each message was received beyond the first time."""
        return Counter(
            {body: count - 1 for body, count in Counter(body for body, _ in self.received).items() if count > 1}
        )


Scenario = Callable[[Session, str, int, Seen], None]


def connect(url: str, seen: Seen, faces: Faces | None = None) -> Connection:
    """A started connection that survives a cut while it is being made; of the face for asyncio, where that is given."""
    options = (
        "startup_max_reconnect_attempts=1000&reconnect_delay_seconds=0.01&stable_seconds=0&close_timeout_seconds=2"
    )
    url = f"{url}{'&' if '?' in url else '?'}{options}"
    if faces is not None:
        faced: Connection = faces.connect(url)
        faces.events(faced, lambda told: seen.told.append(told) if isinstance(told, JMSException) else None)
        return faced
    connection = ConnectionFactory(url).create_connection()
    connection.exception_listener = seen.told.append
    connection.start()
    return connection


def play(
    mode: AcknowledgeMode,
    url: str,
    queue: str,
    count: int,
    wait: float = WAIT,
    when_sent: Callable[[], None] = lambda: None,
    faces: Faces | None = None,
) -> Seen:
    """The scenario of a mode, which waits at most so long for each message."""
    seen = Seen(wait=wait, when_sent=when_sent)
    with connect(url, seen, faces) as connection, connection.create_session(mode) as session:
        _SCENARIOS[mode](session, queue, count, seen)
        # Who closes while the network is away gives up the acknowledgements that were lost with it (docs/failover.md).
        # This returns when the network is back, and after what was repeated then.
        if connection.is_holdfast:
            connection.statistics()
    return seen


def _bodies(count: int) -> list[str]:
    return [f"message {number}" for number in range(count)]


def _send_each(session: Session, queue: str, count: int, seen: Seen) -> None:
    producer = session.create_producer(session.create_queue(queue))
    for body in _bodies(count):
        producer.send(body)
        seen.sent.append(body)
    seen.when_sent()


def _next(consumer: MessageConsumer, seen: Seen, seconds: float | None = None) -> Message | None:
    message = consumer.receive(seen.wait if seconds is None else seconds)
    if message is not None:
        seen.received.append((message.body, message.redelivered))
    return message


def _look_for_more(consumer: MessageConsumer, seen: Seen) -> None:
    """What comes although everything was acknowledged or committed."""
    message = consumer.receive(0.05)
    if message is not None:
        seen.too_many.append(message.body)


def _acknowledge_by_itself(session: Session, queue: str, count: int, seen: Seen) -> None:
    """AUTO and DUPS_OK."""
    _send_each(session, queue, count, seen)
    consumer = session.create_consumer(session.create_queue(queue))
    got: set[str] = set()
    while len(got) < count:
        try:
            message = _next(consumer, seen)
        except ConnectionLostException as error:
            seen.raised.append(error)
            continue
        assert message is not None, f"only {sorted(got)} came"
        got.add(message.body)
    # What is redelivered comes now.
    while _next(consumer, seen, 0.05) is not None:
        pass
    seen.ended = [body for body, _ in seen.received]


def _acknowledge_in_pairs(session: Session, queue: str, count: int, seen: Seen) -> None:
    """CLIENT."""
    _send_each(session, queue, count, seen)
    consumer = session.create_consumer(session.create_queue(queue))
    held: list[Message] = []
    while len(set(seen.ended)) < count:
        message = _next(consumer, seen)
        assert message is not None, f"only {sorted(seen.ended)} were acknowledged"
        held.append(message)
        if len(held) == 2 or len(set(seen.ended)) + len(held) >= count:
            try:
                message.acknowledge()
                seen.ended += [each.body for each in held]
            except StaleAcknowledgementException as error:
                seen.raised.append(error)
            held = []
    _look_for_more(consumer, seen)


def _acknowledge_each(session: Session, queue: str, count: int, seen: Seen) -> None:
    """INDIVIDUAL: the later one of two first."""
    _send_each(session, queue, count, seen)
    consumer = session.create_consumer(session.create_queue(queue))
    held: list[Message] = []
    while len(set(seen.ended)) < count:
        message = _next(consumer, seen)
        assert message is not None, f"only {sorted(seen.ended)} were acknowledged"
        held.append(message)
        if len(held) == 2 or len(set(seen.ended)) + len(held) >= count:
            for each in reversed(held):
                try:
                    each.acknowledge()
                    seen.ended.append(each.body)
                except StaleAcknowledgementException as error:
                    seen.raised.append(error)
            held = []
    _look_for_more(consumer, seen)


def _commit(session: Session, seen: Seen) -> bool:
    try:
        session.commit()
    except (TransactionRolledBackException, TransactionInDoubtException) as error:
        seen.raised.append(error)
        return False
    return True


def _in_transactions(session: Session, queue: str, count: int, seen: Seen) -> None:
    """TRANSACTED: two messages in each transaction."""
    producer = session.create_producer(session.create_queue(queue))
    bodies = _bodies(count)
    for pair in (bodies[first : first + 2] for first in range(0, count, 2)):
        while True:
            for body in pair:
                producer.send(body)
            if _commit(session, seen):
                seen.sent += pair
                break
    seen.when_sent()
    consumer = session.create_consumer(session.create_queue(queue))
    while len(seen.ended) < count:
        held: list[str] = []
        while len(held) < 2 and len(seen.ended) + len(held) < count:
            message = _next(consumer, seen)
            if message is None and any(isinstance(error, TransactionInDoubtException) for error in seen.raised):
                return  # the commit in doubt was done
            assert message is not None, f"only {sorted(seen.ended)} were committed"
            held.append(message.body)
        if _commit(session, seen):
            seen.ended += held
    _look_for_more(consumer, seen)


_SCENARIOS: dict[AcknowledgeMode, Scenario] = {
    AcknowledgeMode.AUTO: _acknowledge_by_itself,
    AcknowledgeMode.DUPS_OK: _acknowledge_by_itself,
    AcknowledgeMode.CLIENT: _acknowledge_in_pairs,
    AcknowledgeMode.INDIVIDUAL: _acknowledge_each,
    AcknowledgeMode.TRANSACTED: _in_transactions,
}

#: What an application of each mode may have raised, at most once for each cut.
PROMISED: dict[AcknowledgeMode, tuple[type[JMSException], ...]] = {
    AcknowledgeMode.AUTO: (ConnectionLostException,),
    AcknowledgeMode.DUPS_OK: (),
    AcknowledgeMode.CLIENT: (StaleAcknowledgementException,),
    AcknowledgeMode.INDIVIDUAL: (StaleAcknowledgementException,),
    AcknowledgeMode.TRANSACTED: (TransactionRolledBackException,),
}


def check(mode: AcknowledgeMode, seen: Seen, count: int, cuts: int) -> None:
    """What the contract promises for this mode over so many cuts of an open connection."""
    bodies = _bodies(count)
    assert seen.sent == bodies
    assert {body for body, _ in seen.received} == set(bodies), "lost"
    for error in seen.raised:
        assert type(error) in PROMISED[mode], f"not promised: {error!r}"
    if mode is AcknowledgeMode.INDIVIDUAL:
        assert len(seen.raised) <= 2 * cuts  # each message by itself
    else:
        assert len(seen.raised) <= cuts, "more than once"
    first: set[str] = set()
    for body, redelivered in seen.received:
        assert redelivered or body not in first, f"{body!r} was redelivered without a mark"
        first.add(body)
    if mode is AcknowledgeMode.AUTO:
        assert seen.again.total() <= cuts, f"more than the last one was redelivered: {seen.again}"
    elif mode is not AcknowledgeMode.DUPS_OK:
        assert sorted(seen.ended) == sorted(bodies), "ended twice, or not at all"
        assert not seen.too_many, "redelivered although it was acknowledged or committed"
    lost = [error for error in seen.told if isinstance(error, ConnectionLostException)]
    assert len(lost) == len(seen.told), f"told of something else: {seen.told}"


def wait_for(condition: Callable[[], bool], seconds: float = WAIT) -> bool:
    """Whether something becomes true in this time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True
