"""Queues by position, and transactions in parts: what connectors build on.  Needs a Holdfast broker.

A range of positions reads the same, from any process, until it is settled: nothing is taken by reading.  So many
readers can share one range, and read it again when one of them fails; one of them settles it in the end.

A *staged* transaction is written in parts, by any process, and invisible until it is published.  Publishing is
atomic over any number of staged transactions, and done once for each number of a group, however often it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from broker_adapter import (
    MESSAGE_TOO_LARGE,
    Destination,
    Envelope,
    JMSException,
    MessageFormatException,
    RangeBlock,
    ResourceAllocationException,
    annotated,
    decode_payload,
    pack,
    unpacked_block,
)
from sdk.connection import Connection
from sdk.producer import MessageProducer

#: Bytes of messages that one answer of the broker brings, about.
CHUNK_BYTES = 2 * 1024 * 1024
#: Most bytes of messages that one request stages, unless one message has more.
STAGE_BYTES = 2 * 1024 * 1024

#: Queues that one request asks about, the bytes of their names that a broker takes, and those of a name beside its own.
QUEUES_OF_REQUEST = 1000
_NAMES_BYTES = 32 * 1000
_NAME_HEAD_BYTES = 5


def is_above_limit(error: JMSException) -> bool:
    """Return whether an error says that a message is larger than the limit of the broker or of the embedded engine."""
    return error.error_code in ("amqp:link:message-size-exceeded", MESSAGE_TOO_LARGE)


def is_too_large(error: JMSException) -> bool:
    """Return whether an error says that a message is larger than the broker or the client takes."""
    return isinstance(error, MessageFormatException) or is_above_limit(error)


@attrs.frozen
class Bounds:
    """What a queue has.

    Attributes:
        incarnation: tells the queue from one of the same name that was made after it was deleted.
        first: the lowest position that is there; equal to ``next`` where the queue is empty.
        next: the position that the next message will get.
        run: the start of the broker in which this queue gives these positions.
        kept: positions below this one, seen in the run that was asked about, are known to be still those of the same
            messages.  Less than what was seen: the broker's store was replaced by another copy, or has started more
            often since than it remembers.
        settled: the last position through which ``settle_through`` was asked to settle; 0: none.
        aging: whether the broker will forget the run that was asked about before long.  A client that keeps positions
            below ``kept`` should keep ``run`` with them instead.
        events: position of the last event of all regions at the same moment; 0: there is none.
        message_bytes: of a message on average, rounded up; None where there is none.
    """

    incarnation: str
    first: int
    next: int
    run: str
    kept: int
    settled: int
    aging: bool = False
    events: int = 0
    message_bytes: int | None = None


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
        """The message, decoded; raises MessageFormatException where it cannot be.

        One that the broker has set aside has the reason among its properties, and does not expire any more.
        """
        envelope = decode_payload(self.payload)
        return annotated(envelope, self.annotations) if self.annotations else envelope


def messages_of(block: RangeBlock) -> list[RangeMessage]:
    """The messages of a block."""
    return [RangeMessage(*row) for row in block.rows()]


class RangeReader:
    """Reads and settles a queue, or a durable subscription, by position.

    Args:
        connection: to a Holdfast broker.
        destination: the queue; or the topic of a subscription.
        subscription: name of a durable subscription; None for queues.
        client_id: of the subscription, where it has one; shared ones made without a client id have none.
        claim: under which ``bounds`` and ``settle_through`` are asked for; None: under none, which is not refused.
    """

    # A misspelt attribute is an error.
    __slots__ = (
        "__weakref__",
        "_claim",
        "_connection",
        "_queue",
    )

    def __init__(
        self,
        connection: Connection,
        destination: Destination,
        subscription: str | None = None,
        client_id: str | None = None,
        claim: str | None = None,
    ) -> None:
        self._connection = connection
        self._claim = claim
        self._queue: dict[str, Any] = {
            "destination": destination.name,
            "kind": "topic" if destination.is_topic else "queue",
            "subscription": subscription,
            "client_id": client_id,
        }

    def bounds(self, run: str | None = None, *, make: bool = True) -> Bounds:
        """Return what is there.

        Args:
            run: in which positions were seen; ``kept`` tells which of them are still valid.
            make: whether a queue that does not exist yet is made.

        Raises:
            InvalidDestinationException: there is no such subscription, or queue.
            QueueClaimedException: it has another claim than this reader.
        """
        make = make and self._queue["kind"] == "queue"
        arguments = {**self._queue, "run": run, "make": make, "claim": self._claim}
        return _bounds_from(self._connection.request("bounds", arguments))

    def claim(self, claim: str, holder: str, *, take_over: bool = False) -> None:
        """Have the queue settled by readers with this claim only, until ``end_claim``; idempotent.

        It is kept with the queue, also while no connection is open and over restarts of the broker.

        Args:
            claim: an id that no other streaming query has.
            holder: who that is, for the error that others get.
            take_over: whether another claim is replaced.

        Raises:
            InvalidDestinationException: there is no such subscription, or queue.
            QueueClaimedException: it has another claim, which is not replaced.
        """
        arguments = {**self._queue, "claim": claim, "holder": holder, "take_over": take_over}
        self._connection.request("claim", arguments)

    def end_claim(self, claim: str) -> None:
        """End a claim, if the queue has it; the errors are those of ``claim``."""
        self._connection.request("end_claim", {**self._queue, "claim": claim})

    def read(
        self,
        first: int,
        last: int,
        incarnation: str | None = None,
        max_bytes: int = CHUNK_BYTES,
        run: str | None = None,
        on_damaged: Callable[[list[int]], None] | None = None,
        selector: str | None = None,
    ) -> Iterator[list[RangeMessage]]:
        """The messages with positions in [first, last], in order, a list for each answer of the broker.

        What expired or was consumed meanwhile is left out.

        Args:
            first: lowest position.
            last: highest position.
            incarnation: of the queue in which they were seen; None: any.
            max_bytes: of messages that one answer brings, about.
            run: of the broker in which they were seen; None: any.
            on_damaged: called with the positions of messages whose checksum is wrong, which are then left out, and
                kept in the broker's quarantine; None: such a message is an error, and stays where it is.
            selector: chooses messages, at the broker; None: all.

        Raises:
            InvalidSelectorException: the selector is invalid.
            InvalidDestinationException: the queue, or this incarnation of it, is gone; or the positions are those of
                other messages since the broker's store was replaced by an older copy.
            StoreCorruptException: a message cannot be trusted, and there is no ``on_damaged``.
        """
        for block in self.read_blocks(first, last, incarnation, max_bytes, run, on_damaged, selector):
            yield messages_of(block)

    def read_blocks(
        self,
        first: int,
        last: int,
        incarnation: str | None = None,
        max_bytes: int = CHUNK_BYTES,
        run: str | None = None,
        on_damaged: Callable[[list[int]], None] | None = None,
        selector: str | None = None,
    ) -> Iterator[RangeBlock]:
        """The same as columns: a block for each answer of the broker that has a message, no object for each message.

        Args and errors are those of ``read``.
        """
        for block, _ in self.read_answers(first, last, incarnation, max_bytes, run, on_damaged, selector):
            if block.length:
                yield block

    def read_answers(
        self,
        first: int,
        last: int,
        incarnation: str | None = None,
        max_bytes: int = CHUNK_BYTES,
        run: str | None = None,
        on_damaged: Callable[[list[int]], None] | None = None,
        selector: str | None = None,
    ) -> Iterator[tuple[RangeBlock, int]]:
        """The same for each answer of the broker, also for one without a message; with the position to go on at.

        Args and errors are those of ``read``.
        """
        position = first
        while position <= last:
            arguments = {
                **self._queue,
                "first": position,
                "last": last,
                "max_bytes": max_bytes,
                "incarnation": incarnation,
                "run": run,
                "skip_damaged": on_damaged is not None,
                "selector": selector,
                "columns": True,
            }
            answer = self._connection.request("read_range", arguments)
            position = answer["next"]
            if on_damaged is not None and answer["damaged"]:
                on_damaged(answer["damaged"])
            yield unpacked_block(answer["block"]), position

    def settle_through(
        self, position: int, incarnation: str | None = None, first: int = 0, run: str | None = None
    ) -> int:
        """Take the messages with positions in [first, position] out of the queue; returns how many that were.

        Args:
            position: highest position.
            incarnation: of the queue in which they were seen; None: any.
            first: lowest position.
            run: of the broker in which they were seen; None: any.

        Raises:
            IllegalStateException: consumers are attached to the queue, or sessions hold messages of such as are closed;
                ``QueueClaimedException``: the queue has another claim than this reader.
            InvalidDestinationException: the queue, or this incarnation of it, is gone; or it has not given this
                position yet, or given it to another message since the broker's store was replaced by an older copy.
        """
        settled: int = self._connection.request(
            "settle_through",
            {
                **self._queue,
                "position": position,
                "incarnation": incarnation,
                "first": first,
                "run": run,
                "claim": self._claim,
            },
        )
        return settled


def send_envelopes(producer: MessageProducer, envelopes: Iterable[Envelope]) -> None:
    """Send what is to be carried, as ``send_all`` sends messages, without a message for each.

    Args:
        producer: with a destination of its own, which is that of the envelopes.
        envelopes: any number of them, whose bodies and properties do not change any more.  Each gets the time of
            sending, the user, an identity, and an id by the policy of the connection; where that is ``uuid``, it keeps
            the id that it has.

    Raises:
        JMSException: as :meth:`sdk.MessageProducer.send_all`, with the attribute ``failures``.
    """
    producer._send_envelopes(envelopes)


def bounds_of_queues(
    connection: Connection, runs: Mapping[str, str], *, make: bool = False, claim: str | None = None
) -> dict[str, Bounds | None]:
    """Return what several queues have, in one request for :data:`QUEUES_OF_REQUEST` of them, or for fewer with long
    names.

    Args:
        connection: to a Holdfast broker.
        runs: of each queue by its name, the run in which positions were seen; empty: none.
        make: whether queues that do not exist yet are made.
        claim: as of ``RangeReader``.

    Returns:
        By name; None for a queue that there is not.

    Raises:
        JMSSecurityException: the user may not ask about one of them.
        QueueClaimedException: one of them has another claim.
    """
    found: dict[str, Bounds | None] = {}
    for names in requests_for(runs):
        arguments = {"destinations": list(names), "runs": [runs[name] for name in names], "make": make, "claim": claim}
        answers = connection.request("bounds_of_queues", arguments)
        found |= {name: each and _bounds_from(each) for name, each in zip(names, answers, strict=True)}
    return found


def requests_for(names: Iterable[str]) -> Iterator[list[str]]:
    """Names of queues in parts that one request may have.

    A name that has no form in UTF-8 is in one of them: the request raises ``MessageFormatException`` for it.
    """
    part: list[str] = []
    size = 0
    for name in names:
        length = len(name.encode(errors="surrogatepass")) + _NAME_HEAD_BYTES
        if part and (len(part) == QUEUES_OF_REQUEST or size + length > _NAMES_BYTES):
            yield part
            part, size = [], 0
        part.append(name)
        size += length
    if part:
        yield part


def _bounds_from(answer: Mapping[str, Any]) -> Bounds:
    """Return what the broker has answered."""
    return Bounds(
        answer["incarnation"],
        answer["first"],
        answer["next"],
        answer["run"],
        answer["kept"],
        answer["settled"],
        answer["aging"],
        answer["events"],
        -(-answer["bytes"] // answer["messages"]) if answer["messages"] else None,
    )


class StagedTransaction:
    """A transaction that is written in parts.

    What the broker has not answered yet waits here: after a lost connection ``flush`` sends it again, over another
    connection (``move_to``) as well, and nothing is staged twice.

    Args:
        connection: to a Holdfast broker.
        name: of the transaction, unique; writing it again from the start changes nothing.  Of the form
            ``GROUP/NUMBER/TASK`` it is kept with the others of that group and number, which are timed out together and
            are dropped when a later number of the group begins or this one is published.
        queue: where its messages will go.
    """

    # A misspelt attribute is an error.
    __slots__ = (
        "__weakref__",
        "_connection",
        "_name",
        "_part_bytes",
        "_queue",
        "_waiting",
        "_was_published",
        "_written",
    )

    def __init__(self, connection: Connection, name: str, queue: Destination) -> None:
        self._connection = connection
        self._name = name
        self._queue = queue
        self._written = 0
        self._waiting: list[bytes] = []
        self._part_bytes = STAGE_BYTES
        self._was_published = False

    @property
    def written(self) -> int:
        """Messages so far."""
        return self._written + len(self._waiting)

    @property
    def was_published(self) -> bool:
        """Whether its number was published before, so that nothing of it is staged; what is added goes nowhere."""
        return self._was_published

    @property
    def answered(self) -> int:
        """Messages that the broker has on its disk; the next one is that of a failed ``flush``."""
        return self._written

    def move_to(self, connection: Connection) -> None:
        """Go on over another connection to the same broker."""
        self._connection = connection

    def add(self, envelopes: Iterable[Envelope]) -> None:
        """Add messages; ``flush`` sends them.

        Raises:
            MessageFormatException: one of them cannot be encoded; it and those behind it are not taken.
        """
        for envelope in envelopes:
            self._waiting.append(pack(envelope))

    def flush(self) -> None:
        """Send what has gathered; it is on the broker's disk when this returns.

        Raises:
            MessageFormatException: the next message is larger than a request may be.
            ResourceAllocationException: a limit of the broker; that of the size of the next message, where
                :func:`is_above_limit` says so.
            ConnectionLostException, OperationTimedOutException: may be called again.
        """
        while self._waiting:
            messages = self._next_part()
            try:
                staged = self._connection.request(
                    "stage",
                    {
                        "transaction": self._name,
                        "queue": self._queue.name,
                        "first": self._written,
                        "messages": messages,
                    },
                )
            except (MessageFormatException, ResourceAllocationException) as error:
                if not is_too_large(error) or len(messages) == 1:
                    raise
                # The broker may take less at once than we send; and of several, one is to be named in the end.
                self._part_bytes = sum(map(len, messages)) // 2
                continue
            self._was_published = self._was_published or staged is False
            self._written += len(messages)
            del self._waiting[: len(messages)]

    def _next_part(self) -> list[bytes]:
        """Messages up to a size, at least one."""
        size = 0
        for number, payload in enumerate(self._waiting):
            size += len(payload)
            if size > self._part_bytes:
                return self._waiting[: max(number, 1)]
        return list(self._waiting)


def renew(connection: Connection, group: str, number: int) -> float:
    """Say that a client still works on a number of a group: what is staged for it is not dropped for its age.

    Args:
        connection: to a Holdfast broker.
        group: whose numbers count up, such as a query.
        number: for which transactions ``GROUP/NUMBER/TASK`` are, or will be, staged.

    Returns:
        The seconds for which they are kept from now on.
    """
    seconds: float = connection.request("renew", {"group": group, "number": number})
    return seconds


def publish(
    connection: Connection,
    group: str,
    number: int,
    transactions: Sequence[str],
    counts: Sequence[int] | None = None,
    timeout: float | None = None,
) -> bool:
    """Publish staged transactions, in order, all or none; returns when their messages are in their queues.

    Other transactions that were staged for this number of the group, or an earlier one, are dropped, and no more is
    staged for it: with no transactions at all the number is closed.

    Args:
        connection: to a Holdfast broker.
        group: whose numbers count up, such as a query.
        number: at least 0; each is published once.
        transactions: their names.
        counts: how many messages each of them has; None: any number.
        timeout: longest wait in seconds; None: ``request_timeout_seconds`` of the URL.

    Returns:
        True; or False where this number, or a later one, was published before: these transactions are then dropped.

    Raises:
        InvalidDestinationException: one of them was dropped because it was not published for too long.
        IllegalStateException: one of them has another number of messages.
        ResourceAllocationException: a queue has no room for them now; they stay staged.
    """
    done: bool = connection.request(
        "publish",
        {
            "group": group,
            "number": number,
            "transactions": list(transactions),
            "counts": None if counts is None else list(counts),
        },
        timeout,
    )
    return done


def published(connection: Connection, group: str) -> int | None:
    """The last number of a group that was published; None where none was, or the broker has forgotten it."""
    last: int | None = connection.request("published", {"group": group})
    return last


def discard(
    connection: Connection,
    transactions: Sequence[str] = (),
    prefixes: Sequence[str] = (),
    keep: Sequence[str] = (),
    timeout: float | None = None,
) -> int:
    """Drop staged transactions that are not published.

    Args:
        connection: to a Holdfast broker.
        transactions: their names.
        prefixes: what the names of further ones begin with.
        keep: what the names of those begin with that are not dropped for their prefix.
        timeout: longest wait in seconds; None: ``request_timeout_seconds`` of the URL.

    Returns:
        How many there were.
    """
    names = {"transactions": list(transactions), "prefixes": list(prefixes), "keep": list(keep)}
    dropped: int = connection.request("discard", names, timeout)
    return dropped
