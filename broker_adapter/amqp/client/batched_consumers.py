"""Consumers to which our own server delivers in batches: their records to it, and what is unsettled of them; no I/O.

Their credit, drains and settlements go as records (:mod:`broker_adapter.amqp.messages.consumer_records`) on one link of
the connection, in the order in which they are made and ahead of whatever is sent later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain

from ack_modes import DeliveryTag, Failure, Outcome
from broker_adapter.amqp.client.links import Link, LinkTable
from broker_adapter.amqp.client.sessions import OWN_SESSION, Sessions
from broker_adapter.amqp.events import LinkFlow, LinkRemoteClose, Terminus
from broker_adapter.amqp.messages.consumer_records import (
    RECORDS_ADDRESS,
    Credited,
    DrainAsked,
    Record,
    Settled,
    pack_records,
    ranges_of,
    split_records,
)
from broker_adapter.errors import ConnectionLostException, JMSException


class Unsettled:
    """What one consumer has got and not settled; it outlives the consumer's link, until its session ends.

    Attributes:
        consumer: its number in records.
        numbers: of the deliveries.
        is_over: whether the link is gone: when the last delivery is settled, nothing is left to keep.
    """

    __slots__ = ("consumer", "is_over", "numbers", "session")

    def __init__(self, consumer: int, session: int) -> None:
        self.consumer = consumer
        self.session = session
        self.numbers: set[int] = set()
        self.is_over = False


class BatchedConsumers:
    """The consumers of a connection that get batches."""

    def __init__(self, table: LinkTable, sessions: Sessions, on_broken: Callable[[JMSException], None]) -> None:
        """None; the link for records is attached with the first one.

        Args:
            table: of all links.
            sessions: of the connection.
            on_broken: told where the server takes no records any more, which ends the connection.
        """
        self._on_broken = on_broken
        self._table = table
        self._peer = table.peer
        self._sessions = sessions
        self._link: RecordsLink | None = None
        self._by_link: dict[int, Unsettled] = {}
        self._next_number = 1

    def new_number(self) -> int:
        """A number for a consumer that is about to be attached."""
        if self._link is None:
            self._link = self._attach()
        number = self._next_number
        self._next_number = number + 1
        return number

    def _attach(self) -> RecordsLink:
        name = self._table.new_name("consumers", None)
        session = self._sessions.of(OWN_SESSION)
        link = self._peer.attach_sender(session, name, Terminus(name), Terminus(RECORDS_ADDRESS), presettled=True)
        return RecordsLink(self._table, link, self)

    def add(self, link: int, consumer: int, session: int) -> Unsettled:
        """A consumer's link is attached."""
        unsettled = self._by_link[link] = Unsettled(consumer, session)
        return unsettled

    def remove(self, link: int) -> None:
        """A consumer's link is gone; what came on it may still be settled in its session."""
        unsettled = self._by_link.get(link)
        if unsettled is not None:
            unsettled.is_over = True
            if not unsettled.numbers:
                del self._by_link[link]

    def end_session(self, session: int) -> None:
        """A session has ended: nothing of it can be settled any more."""
        for link in [link for link, each in self._by_link.items() if each.session == session]:
            del self._by_link[link]

    def broken(self) -> None:
        """The server has closed the link for records: without it no consumer of the connection can go on."""
        self._link = None
        self._on_broken(ConnectionLostException("the server takes no records of consumers any more"))

    # Records.

    def credit(self, consumer: int, messages: int) -> None:
        """Let the server send so many messages more."""
        self._send(Credited(consumer, messages))

    def drain(self, consumer: int) -> None:
        """Ask the server to use up the credit or to give it up; it answers on the consumer's link."""
        self._send(DrainAsked(consumer))

    def settle(self, link: int, outcome: Outcome | Failure, numbers: Iterable[int]) -> bool:
        """Settle deliveries of a consumer, all alike; those that are settled already are ignored.

        Returns:
            False where the link is not that of such a consumer.
        """
        unsettled = self._by_link.get(link)
        if unsettled is None:
            return False
        record = self._take(link, unsettled, outcome, numbers)
        if record is not None:
            self._send(record)
        return True

    def take(self, link: int, outcome: Outcome | Failure, numbers: Iterable[int]) -> Settled | None:
        """Take deliveries for a transaction, which settles them; None where there are none of such a consumer."""
        unsettled = self._by_link.get(link)
        return None if unsettled is None else self._take(link, unsettled, outcome, numbers)

    def _take(
        self, link: int, unsettled: Unsettled, outcome: Outcome | Failure, numbers: Iterable[int]
    ) -> Settled | None:
        held = unsettled.numbers
        taken = [number for number in numbers if number in held]
        if not taken:
            return None
        held.difference_update(taken)
        if unsettled.is_over and not held:
            del self._by_link[link]
        return Settled(unsettled.consumer, outcome, ranges_of(taken))

    def is_batched(self, link: int) -> bool:
        """Return whether deliveries of this link are settled by records."""
        return link in self._by_link

    def is_unsettled(self, tag: DeliveryTag) -> bool:
        """Return whether a delivery of such a consumer is not settled."""
        unsettled = self._by_link.get(tag.link)
        return unsettled is not None and tag.number in unsettled.numbers

    def _send(self, record: Record) -> None:
        if self._link is not None:
            self._link.send(record)


class RecordsLink(Link):
    """The link on which we send records."""

    def __init__(self, table: LinkTable, number: int, consumers: BatchedConsumers) -> None:
        super().__init__(table, number, OWN_SESSION)
        table.by_number[number] = self
        self._consumers = consumers
        self._credit = 0
        self._queue: deque[Record] = deque()

    def send(self, record: Record) -> None:
        """Send a record, ahead of whatever is sent later; until the server has given the first credit it waits."""
        self._queue.append(record)
        self._flush()

    def on_flow(self, event: LinkFlow) -> None:
        self._credit = event.credit
        self._flush()

    def on_close(self, event: LinkRemoteClose) -> None:
        super().on_close(event)
        self._leave_table()
        self._consumers.broken()

    def session_ended(self, error: JMSException) -> None:
        self._leave_table()
        self._consumers.broken()

    def _flush(self) -> None:
        if not self._queue or self._credit <= 0 or not self._peer.has_link(self.number):
            return
        payloads = split_records(self._queue)
        sent, rest = payloads[: self._credit], payloads[self._credit :]
        self._queue = deque(chain.from_iterable(rest))
        self._credit -= len(sent)
        for records in sent:
            self._peer.send(self.number, pack_records(records), settled=True)
