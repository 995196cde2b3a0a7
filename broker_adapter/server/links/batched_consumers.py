"""The consumers to which deliveries go in batches: those of our own client, which tells of them by records.

A record (:mod:`broker_adapter.amqp.messages.consumer_records`) gives credit, asks for a drain, or says how deliveries
ended; all come on one link of the connection.  The transfers to these consumers are answered when they have come, so
that it is known what the client never got.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from ack_modes import Outcome
from broker_adapter.amqp.events import ACCEPTED, ACCEPTED_STATE, Dispositions, LinkRemoteOpen, Terminus, Transfers
from broker_adapter.amqp.messages.batches import (
    Delivered,
    batch_size,
    delivered_size,
    pack_deliveries,
)
from broker_adapter.amqp.messages.consumer_records import (
    CONSUMER_NUMBER,
    RECORDS_ADDRESS,
    Credited,
    Settled,
    unpack_records,
)
from broker_adapter.amqp.messages.payloads import packed_annotations
from broker_adapter.amqp.proton_engine.peer import Peer
from broker_adapter.engine.commands import messaging as c
from broker_adapter.errors import IllegalStateException, MessageFormatException
from broker_adapter.server.links.client import Client
from broker_adapter.server.links.consumer import Consumer
from broker_adapter.server.links.engine_calls import EngineCalls

#: Transfers that the client may send ahead on its link for records: each is taken as it comes.
_CREDIT: Final = 100_000
#: Deliveries of one command to the engine.
_SETTLED_AT_ONCE: Final = 2_000
#: Deliveries that a client may name and does not have, in all, before its connection is closed.
_MOST_MISSING: Final = 10_000
#: Messages of a consumer's credit, at most.
_MOST_CREDIT: Final = 2**31 - 1


class BatchedConsumers:
    """The consumers of one connection that get batches, and the link for their records.

    Args:
        peer: the connection's AMQP.
        calls: to the engine.
        client: the client of the connection.

    Attributes:
        on_credit: told of a consumer whose credit has grown, or whose client wants it used up.
        on_settled: told of a consumer whose client has settled something.
    """

    def __init__(
        self,
        peer: Peer,
        calls: EngineCalls,
        client: Client,
    ) -> None:
        self._peer = peer
        self._calls = calls
        self._client = client
        self.on_credit: Callable[[Consumer], None] = _ignore
        self.on_settled: Callable[[Consumer], None] = _ignore
        self._link: int | None = None
        self._credit = 0
        self._missing = 0
        self._by_number: dict[int, Consumer] = {}

    def __repr__(self) -> str:
        return f"<BatchedConsumers {len(self._by_number)}>"

    # Links.

    def is_attach(self, target: Terminus) -> bool:
        """Return whether a link to this target is for records."""
        return self._client.uses_batches and not target.dynamic and target.address == RECORDS_ADDRESS

    def attach(self, event: LinkRemoteOpen) -> None:
        """The client attached a link for records.

        Raises:
            IllegalStateException: there is one already.
        """
        if self._link is not None:
            raise IllegalStateException("a connection has one link for records of consumers")
        self._link = event.link
        self._peer.accept_link(event.link, event.source, event.target)
        self._credit = _CREDIT
        self._peer.credit(event.link, _CREDIT)

    def has_link(self, link: int) -> bool:
        """Return whether a link is for records."""
        return link == self._link

    def remove_link(self, link: int) -> None:
        """A link is gone."""
        if link == self._link:
            self._link = None

    # Consumers.

    def number_of(self, event: LinkRemoteOpen) -> int | None:
        """The client's number of a consumer to which deliveries are to go in batches; None: they go one by one."""
        number = event.properties.get(CONSUMER_NUMBER)
        if not self._client.uses_batches:
            return None
        if event.max_message_bytes is not None:  # the largest transfer, of which our own client says nothing
            return None
        return number if isinstance(number, int) and type(number) is not bool and number > 0 else None

    def add(self, consumer: Consumer) -> None:
        """A consumer was attached."""
        assert consumer.batches is not None
        self._by_number[consumer.batches] = consumer

    def remove(self, consumer: Consumer) -> None:
        """A consumer is gone, and nothing of it can be settled any more."""
        if consumer.batches is not None and self._by_number.get(consumer.batches) is consumer:
            del self._by_number[consumer.batches]

    def clear(self) -> None:
        """Drop everything, also those that are told, which refer to this."""
        self._by_number.clear()
        self.on_credit = self.on_settled = _ignore

    # Records.

    def on_transfers(self, event: Transfers) -> None:
        """Records came.

        Raises:
            JMSException: they cannot be; the connection is to be closed.
        """
        if self._link is not None:
            self._credit -= len(event.deliveries)
            if self._credit <= _CREDIT // 2:
                self._peer.credit(event.link, _CREDIT - self._credit)
                self._credit = _CREDIT
        unsettled = [number for number, _, _ in event.deliveries if number]
        if unsettled:  # our own client sends them settled
            self._peer.settle(event.link, unsettled, ACCEPTED_STATE)
        for _, payload, _ in event.deliveries:
            for record in unpack_records(payload):
                consumer = self._by_number.get(record.consumer)
                if consumer is None:
                    continue  # the engine has ended it, and the client does not know yet
                if isinstance(record, Settled):
                    numbers = self._take(consumer, record)
                    for start in range(0, len(numbers), _SETTLED_AT_ONCE):
                        some = numbers[start : start + _SETTLED_AT_ONCE]
                        self._calls.settle(consumer.number, some, record.outcome)
                    self.on_settled(consumer)
                    self._check_missing()
                elif isinstance(record, Credited):
                    consumer.credit = min(_MOST_CREDIT, consumer.credit + record.messages)
                    self.on_credit(consumer)
                else:
                    consumer.draining = True
                    self.on_credit(consumer)

    def settle_in(self, settlements: list[tuple[int, int, c.Ending]], payload: bytes) -> None:
        """Add what is settled in a transaction: (the engine's number of a consumer, delivery, outcome).

        Args:
            settlements: of the transaction.
            payload: the records.

        Raises:
            JMSException: they cannot be; what was taken until then is added.
        """
        records = unpack_records(payload)
        if not all(isinstance(record, Settled) for record in records):
            raise MessageFormatException("a transaction has records of settlements only")
        for record in records:
            consumer = self._by_number.get(record.consumer)
            if consumer is not None and isinstance(record, Settled):
                taken = self._take(consumer, record)
                settlements += [(consumer.number, number, record.outcome) for number in taken]
                self.on_settled(consumer)
                self._check_missing()

    def _take(self, consumer: Consumer, record: Settled) -> list[int]:
        numbers, missing = consumer.settle(record.ranges, _MOST_MISSING - self._missing)
        self._missing += missing
        return numbers

    def _check_missing(self) -> None:
        if self._missing > _MOST_MISSING:
            raise IllegalStateException("the client settles deliveries that it does not have")

    # Deliveries.

    def deliver(self, consumer: Consumer, handouts: Sequence[c.Handout]) -> tuple[int, int] | None:
        """Send what the engine has handed out.

        Args:
            consumer: to whom.
            handouts: with numbers that follow each other.

        Returns:
            The place of a message that is larger than the client takes, and its size; it and those behind it were not
            sent.
        """
        messages = [
            Delivered(position, failures, packed_annotations(added) if added else b"", payload)
            for _, position, failures, _, payload, added, _ in handouts
        ]
        sizes = [delivered_size(message) for message in messages]
        most_bytes = consumer.max_message_bytes
        begin = 0
        while begin < len(messages):
            count = batch_size(islice(sizes, begin, None), most_bytes)
            first = handouts[begin].number
            data = pack_deliveries(first, messages[begin : begin + count])
            if len(data) > most_bytes:
                return begin, len(data)
            sent = self._peer.send(consumer.link, data, settled=consumer.presettled)
            if not consumer.presettled:
                consumer.sent(sent, range(first, first + count))
            begin += count
        return None

    def on_answered(self, consumer: Consumer, event: Dispositions) -> None:
        """Batches have come to the client; it gives back those that came behind the end of its link."""
        if event.state.code == ACCEPTED:
            for number in event.numbers:
                consumer.under_way.pop(number, None)
        elif taken := consumer.take(event.numbers):
            self._calls.settle(consumer.number, taken, Outcome.RELEASED)
            self.on_settled(consumer)

    def drained(self, consumer: Consumer) -> None:
        """Tell the client that nothing more comes for the credit that it had given."""
        self._peer.send(consumer.link, pack_deliveries(consumer.handed + 1, (), is_drained=True), settled=True)


def _ignore(_consumer: Consumer) -> None:
    """There are no consumers yet."""
