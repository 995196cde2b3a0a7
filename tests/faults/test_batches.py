"""Connections that are cut in the middle of batches, by bytes: of messages, of records, of answers."""

from __future__ import annotations

import pytest

from sdk import AcknowledgeMode, Connection, ConnectionFactory, ConnectionLostException, JMSException, Message
from tests.faults.proxy import Cut, Direction, Proxy
from tests.faults.scenarios import wait_for

pytestmark = pytest.mark.crash

COUNT = 300
#: Places of a run where its connection is cut, in each direction.
CUTS = 10
#: Messages of a list, at most.
LIMIT = 70
WAIT = 60.0


class Cuts:
    """Cuts connections at places that are spread over what goes in a direction behind their opening."""

    def __init__(self, proxy: Proxy, direction: Direction) -> None:
        self._proxy = proxy
        self._direction = direction
        self._opening = 0
        self._whole = 0
        self._next: int | None = None

    def is_open(self) -> None:
        """A connection is open."""
        self._opening = self._proxy.bytes[self._direction]
        if self._next is not None:
            behind = self._whole * (self._next + 1) // (CUTS + 1)
            into_next = (self._next * 701) % 3_000  # in the middle of a frame
            self._proxy.plan(Cut(self._direction, bytes=self._opening + behind, into_next=into_next))

    def measured(self) -> None:
        """The connection without a cut is over."""
        self._whole = self._proxy.bytes[self._direction] - self._opening

    def prepare(self, number: int) -> None:
        """The next connection is cut at the place of this number."""
        self._next = number


def sent(proxy: Proxy, queue: str, cuts: Cuts) -> None:
    """Send so many messages, which go in batches."""
    with ConnectionFactory(proxy.url).create_connection() as connection, connection.create_session() as session:
        cuts.is_open()
        session.create_producer(session.create_queue(queue)).send_all([str(number) for number in range(COUNT)])


def received(proxy: Proxy, queue: str, mode: AcknowledgeMode, cuts: Cuts) -> list[Message]:
    """Receive until nothing is left, acknowledging or committing each list."""
    found: list[Message] = []
    with ConnectionFactory(proxy.url).create_connection() as connection:
        connection.start()
        cuts.is_open()
        with connection.create_session(mode) as session:
            consumer = session.create_consumer(session.create_queue(queue))
            while len({message.body for message in found}) < COUNT:
                try:
                    messages = consumer.receive_many(LIMIT, timeout=WAIT)
                    assert messages, f"{len(found)} messages came"
                    if mode is AcknowledgeMode.CLIENT:
                        found += messages
                        messages[-1].acknowledge()
                    elif mode is AcknowledgeMode.TRANSACTED:
                        session.commit()
                        found += messages
                    else:
                        found += messages
                except JMSException as error:  # of the loss
                    if mode is AcknowledgeMode.CLIENT:
                        session.recover()
                    elif mode is AcknowledgeMode.TRANSACTED:
                        session.rollback()
                    elif not isinstance(error, ConnectionLostException):
                        raise
    return found


def left(direct: Connection, queue: str) -> int:
    return next(each for each in direct.statistics().queues if each.name == queue).messages


@pytest.mark.parametrize("direction", Direction, ids=lambda each: each.name)
def test_each_message_of_a_batch_is_stored_once_and_in_order_wherever_it_is_cut(
    direction: Direction, proxy: Proxy, direct: Connection, name: str
) -> None:
    cuts = Cuts(proxy, direction)
    sent(proxy, f"{name} first", cuts)
    cuts.measured()
    for number in range(CUTS):
        queue = f"{name} {number}"
        cuts.prepare(number)
        sent(proxy, queue, cuts)
        proxy.plan(None)
        with direct.create_session() as session:
            browsed = [message.body for message in session.create_browser(session.create_queue(queue))]
        assert browsed == [str(each) for each in range(COUNT)], f"cut {number}"
    # A busy server answers more messages at once, in fewer bytes: the last places may lie behind the end.
    assert proxy.cuts >= CUTS // 2


@pytest.mark.parametrize("direction", Direction, ids=lambda each: each.name)
@pytest.mark.parametrize(
    "mode", [AcknowledgeMode.AUTO, AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED], ids=lambda each: each.name
)
def test_the_messages_of_lists_come_at_least_once_and_marked_wherever_they_are_cut(
    mode: AcknowledgeMode, direction: Direction, proxy: Proxy, direct: Connection, name: str
) -> None:
    def filled(queue: str) -> None:
        with direct.create_session() as session:
            session.create_producer(session.create_queue(queue)).send_all([str(number) for number in range(COUNT)])

    cuts = Cuts(proxy, direction)
    filled(f"{name} first")
    received(proxy, f"{name} first", mode, cuts)
    cuts.measured()
    for number in range(CUTS):
        queue = f"{name} {number}"
        filled(queue)
        cuts.prepare(number)
        found = received(proxy, queue, mode, cuts)
        proxy.plan(None)
        first = list(dict.fromkeys(message.body for message in found))
        assert first == [str(each) for each in range(COUNT)], f"cut {number}"
        seen: set[str] = set()
        for message in found:
            assert message.redelivered or message.body not in seen, f"cut {number}: {message.body} came unmarked again"
            seen.add(message.body)
        if mode is AcknowledgeMode.TRANSACTED:
            assert len(found) == COUNT, f"cut {number}: processed twice"
            assert wait_for(lambda: left(direct, queue) == 0), f"cut {number}: left"  # noqa: B023
            continue
        # Acknowledgements may be lost with a connection that is cut as it is closed: what they were for comes marked.
        with direct.create_session() as session:
            again = session.create_consumer(session.create_queue(queue)).receive_many(COUNT, timeout=0)
        assert all(message.redelivered for message in again), f"cut {number}: unmarked again"
