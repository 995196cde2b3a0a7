"""Queues by position, and transactions in parts: what connectors build on.  Needs a Holdfast broker.

A range of positions reads the same, from any process, until it is settled: nothing is taken by reading.  So many
readers can share one range, and read it again when one of them fails; one of them settles it in the end.

A *staged* transaction is written in parts, by any process, and seen by nobody until it is published.  Publishing is
atomic over any number of staged transactions, and done once for each number of a group, however often it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from broker_adapter import Destination, Envelope, decode_payload, pack
from sdk.connection import Connection

#: Bytes of messages that one answer of the broker brings, about.
CHUNK_BYTES = 2 * 1024 * 1024
#: Bytes of messages that one request stages, about.
STAGE_BYTES = 2 * 1024 * 1024


@attrs.frozen
class Bounds:
    """What a queue has: positions from ``first`` to below ``next``; none where the two are equal.

    ``incarnation`` tells the queue from one of the same name that was made after it was deleted.
    """

    incarnation: str
    first: int
    next: int


@attrs.frozen
class RangeMessage:
    """A message of a range.

    ``delivery_count`` is the number of failed deliveries before; ``payload`` is the message as it is stored.
    """

    position: int
    delivery_count: int
    payload: bytes
    annotations: dict[str, Any] | None

    def envelope(self) -> Envelope:
        """The message, decoded; raises MessageFormatException where it cannot be."""
        envelope = decode_payload(self.payload)
        if self.annotations:
            envelope = envelope._replace(properties={**(envelope.properties or {}), **self.annotations})
        return envelope


class RangeReader:
    """Reads and settles a queue, or a durable subscription, by position.

    Args:
        connection: to a Holdfast broker.
        destination: the queue; or the topic of a subscription.
        subscription: name of a durable subscription; None for queues.
        client_id: of the subscription, where it has one; shared ones made without a client id have none.
    """

    def __init__(
        self,
        connection: Connection,
        destination: Destination,
        subscription: str | None = None,
        client_id: str | None = None,
    ) -> None:
        self._connection = connection
        self._queue: dict[str, Any] = {
            "destination": destination.name,
            "kind": "topic" if destination.is_topic else "queue",
            "subscription": subscription,
            "client_id": client_id,
        }

    def bounds(self) -> Bounds:
        """What is there.  A queue that nobody has used yet is made.

        Raises:
            InvalidDestinationException: there is no such subscription.
        """
        return Bounds(**self._connection.request("bounds", self._queue))

    def read(
        self, first: int, last: int, incarnation: str | None = None, max_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RangeMessage]]:
        """The messages with positions in [first, last], in order, a list for each answer of the broker.

        What expired or was consumed meanwhile is left out.

        Raises:
            InvalidDestinationException: the queue, or this incarnation of it, is gone.
        """
        position = first
        while position <= last:
            answer = self._connection.request(
                "read_range",
                {
                    **self._queue,
                    "first": position,
                    "last": last,
                    "max_bytes": max_bytes,
                    "incarnation": incarnation,
                },
            )
            messages = [
                RangeMessage(at, count, payload, annotations)
                for at, count, _, payload, annotations in answer["messages"]
            ]
            if messages:
                yield messages
            position = answer["next"]

    def settle_through(self, position: int, incarnation: str | None = None) -> int:
        """Take everything up to this position out of the queue; returns how many messages that were.

        Raises:
            IllegalStateException: consumers are attached to the queue.
            InvalidDestinationException: the queue, or this incarnation of it, is gone.
        """
        settled: int = self._connection.request(
            "settle_through", {**self._queue, "position": position, "incarnation": incarnation}
        )
        return settled


class StagedTransaction:
    """A transaction that is written in parts.

    What the broker has not answered yet waits here: after a lost connection ``flush`` sends it again, over another
    connection (``move_to``) as well, and nothing is staged twice.

    Args:
        connection: to a Holdfast broker.
        name: of the transaction, unique; who writes it again from the start changes nothing.
        queue: where its messages will go.
    """

    def __init__(self, connection: Connection, name: str, queue: Destination) -> None:
        self._connection = connection
        self._name = name
        self._queue = queue
        self._written = 0
        self._waiting: list[bytes] = []

    @property
    def written(self) -> int:
        """Messages so far."""
        return self._written + len(self._waiting)

    def move_to(self, connection: Connection) -> None:
        """Go on over another connection to the same broker."""
        self._connection = connection

    def add(self, envelopes: Iterable[Envelope]) -> None:
        """Add messages; ``flush`` sends them.

        Raises:
            MessageFormatException: one of them cannot be encoded; it and those behind it are not taken.
        """
        self._waiting += [pack(envelope) for envelope in envelopes]

    def flush(self) -> None:
        """Send what has gathered; it is on the broker's disk when this returns.

        Raises:
            ResourceAllocationException: a limit of the broker.
            ConnectionLostException, OperationTimedOutException: may be called again.
        """
        while self._waiting:
            messages = self._next_part()
            self._connection.request(
                "stage",
                {
                    "transaction": self._name,
                    "queue": self._queue.name,
                    "first": self._written,
                    "messages": messages,
                },
            )
            self._written += len(messages)
            del self._waiting[: len(messages)]

    def _next_part(self) -> list[bytes]:
        """Messages of about ``STAGE_BYTES``, at least one."""
        size = 0
        for number, payload in enumerate(self._waiting):
            size += len(payload)
            if size >= STAGE_BYTES:
                return self._waiting[: number + 1]
        return list(self._waiting)


def publish(connection: Connection, group: str, number: int, transactions: Sequence[str]) -> bool:
    """Publish staged transactions, in order, all or none; returns when their messages are in their queues.

    Args:
        connection: to a Holdfast broker.
        group: whose numbers count up, such as a query.
        number: at least 0; each is published once.
        transactions: their names.

    Returns:
        True; or False where this number, or a later one, was published before: these transactions are then dropped.

    Raises:
        InvalidDestinationException: one of them was dropped because nobody published it for too long.
    """
    published: bool = connection.request(
        "publish", {"group": group, "number": number, "transactions": list(transactions)}
    )
    return published


def discard(connection: Connection, transactions: Sequence[str]) -> int:
    """Drop staged transactions; returns how many there were."""
    dropped: int = connection.request("discard", {"transactions": list(transactions)})
    return dropped
