"""The other end of a gateway: a site of ours, or a broker that is not ours.

Theory of operation
    The sender of a gateway asks the other end to apply a batch.  One of ours does.  A broker that is not ours is sent
    the messages, each to the queue or topic of its name, and what becomes of them is put together to the answer that
    one of ours would have given.  One batch is under way at a time.

    Each message gets an identity of the gateway, by its position: the same one if it is sent again.  A broker that
    rejects duplicates (ActiveMQ Artemis) gets it as a property, and takes the message once.  At others it may be there
    twice: where the connection is lost, what had no answer is sent again.

    What a broker rejects is refused.  Any other error, such as a limit that is reached, ends the connection, and the
    rest is tried again over the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from broker_adapter.clock import epoch_ms
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.engine.queues.gateway_queue import HEAD
from broker_adapter.engine.records.gateway_records import destination_of
from broker_adapter.envelope import Envelope, Identity
from broker_adapter.errors import (
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
    TransactionRolledBackException,
    copied,
)
from broker_adapter.packing import unpacked
from broker_adapter.transport import Credentials, LinkLost, Peer, RemoteTransport, SenderSpec, TransportEvent
from broker_adapter.wording import in_seconds

_log = logging.getLogger(f"holdfast.{__name__}")

#: Decodes a stored message of any format, which goes to a destination.
Decode = Callable[[bytes, Destination], Envelope]
#: The session in which everything is sent.
_SESSION: Final = 1
#: Errors and a code that say that a message will not be taken later either.
_FOR_GOOD: Final = (JMSException, InvalidDestinationException, MessageFormatException)
_TOO_LARGE: Final = "amqp:link:message-size-exceeded"
#: What ActiveMQ Artemis says where it has a message of a transaction already.
_DUPLICATE: Final = "Duplicate message detected"


#: (place, error or None) of messages.
_Answers = SimpleQueue[tuple[int, JMSException | None]]


class _Outgoing(NamedTuple):
    """A message of a batch.  ``error``: why it cannot be sent, so that it has no envelope."""

    envelope: Envelope | None
    is_joined: bool  #: whether it belongs to the transaction of the one ahead
    error: JMSException | None = None


class Bridge:
    """A connection to the other end of a gateway.

    Args:
        transport: to it; not open yet, and not restored.
        decode: reads stored messages.
        answer_seconds: longest wait for the answers to a batch, in seconds.

    Attributes:
        transport: as given.
    """

    def __init__(self, transport: RemoteTransport, decode: Decode, answer_seconds: float) -> None:
        self.transport = transport
        self._decode = decode
        self._answer_seconds = answer_seconds
        self._peer: Peer | None = None
        self._links: dict[Destination, int] = {}
        self._commits = 0
        self._has_warned = False
        self._trouble: JMSException | None = None  # why nothing more is sent over this connection

    def __repr__(self) -> str:
        return f"<Bridge {self.transport!r}>"

    def open(self, credentials: Credentials, listener: Callable[[TransportEvent], None], timeout: float | None) -> Peer:
        """See :meth:`broker_adapter.transport.Transport.open`."""

        def listen(event: TransportEvent) -> None:
            if isinstance(event, LinkLost):
                self._trouble = event.error
            listener(event)

        self._peer = self.transport.open(credentials, listen, timeout)
        return self._peer

    def close(self, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.close`."""
        self.transport.close(timeout)

    @property
    def is_holdfast(self) -> bool:
        """Whether the other end is a server of ours; once it is open."""
        assert self._peer is not None
        return self._peer.is_holdfast

    def request(self, operation: str, arguments: Mapping[str, Any], timeout: float | None) -> Any:
        """Ask the other end what the sender of a gateway asks: ``site`` or ``apply_batch``.

        Args:
            operation: see :mod:`broker_adapter.engine.operations.arrivals`.
            arguments: of the operation.
            timeout: longest wait in seconds; None: ``request_timeout_seconds`` of the URL.  That of a broker which is
                not ours is always the latter.

        Returns:
            The answer; a broker which is not ours has no site.

        Raises:
            JMSException: nothing of a batch is known to be done.
        """
        if self.is_holdfast:
            return self.transport.request(operation, arguments, timeout)
        return 0 if operation == "site" else self._apply(arguments)

    def begin_request(
        self, operation: str, arguments: Mapping[str, Any], done: Callable[[Any, JMSException | None], bool]
    ) -> None:
        """See :meth:`broker_adapter.transport.RemoteTransport.begin_request`; a foreign broker is waited for."""
        if self.is_holdfast:
            self.transport.begin_request(operation, arguments, done)
            return
        try:
            answer = self.request(operation, arguments, None)
        except JMSException as error:
            done(None, error)
        else:
            done(answer, None)

    # A broker that is not ours.

    def _apply(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        if self._trouble is not None:
            raise copied(self._trouble)
        producer, positions = f"holdfast/{batch['site']}/{batch['sender']}", batch["positions"]
        kinds, joined = [unpacked(each) for each in batch["kinds"]], frozenset(batch["joined"])
        outgoing = [
            self._outgoing(kinds[kind], payload, Identity(producer, 0, position), is_joined=position in joined)
            for position, kind, payload in zip(positions, batch["kind_of"], batch["messages"], strict=True)
        ]
        errors: list[JMSException | None] = []
        for some in self._divided(outgoing):
            found = self._send_whole(some) if some[-1].is_joined else self._send(some)
            errors += found
            trouble = next((error for error in found if self._is_trouble(error)), None)
            if trouble is not None:
                self._trouble = trouble
                break
        through, refused = 0, []
        for position, error in zip(positions, errors, strict=False):
            if self._is_trouble(error):
                break
            if error is not None:
                refused.append((position, error.reason))
            through = position
        if not through and self._trouble is not None:
            raise copied(self._trouble)
        return {"through": through, "refused": refused, "applied": through}

    def _is_trouble(self, error: JMSException | None) -> bool:
        """Return whether an error says nothing of the message itself: it may be taken later."""
        if error is None or error.error_code == _TOO_LARGE:
            return False
        return error is self._trouble or type(error) not in _FOR_GOOD

    def _outgoing(self, said: Mapping[str, Any], payload: bytes, identity: Identity, *, is_joined: bool) -> _Outgoing:
        kind, name = destination_of(said["to"])
        try:
            if kind == "region":
                assert self._peer is not None
                raise MessageFormatException(f"{self._peer.product} has no regions")
            destination = Destination(name, DestinationKind.QUEUE if kind == "queue" else DestinationKind.TOPIC)
            envelope = self._decode(payload, destination)
        except MessageFormatException as error:
            return _Outgoing(None, is_joined, error)
        envelope = envelope._replace(destination=destination, identity=identity)
        if HEAD in said:  # the times of the message itself may count from its arrival here
            envelope = envelope._replace(expires_at_ms=said[HEAD][2], deliver_at_ms=said[HEAD][3])
        if envelope.deliver_at_ms is not None and envelope.deliver_at_ms <= epoch_ms():
            envelope = envelope._replace(deliver_at_ms=None)  # a broker without delays would refuse it
        return _Outgoing(envelope, is_joined)

    def _divided(self, outgoing: Sequence[_Outgoing]) -> Iterator[Sequence[_Outgoing]]:
        """Divide a batch into what is one transaction each, and what stands between them."""
        assert self._peer is not None
        if not self._peer.has_transactions:
            if any(each.is_joined for each in outgoing) and not self._has_warned:
                self._has_warned = True
                _log.warning("! %s has no transactions: what is in one arrives a message at a time", self._peer.product)
            yield [each._replace(is_joined=False) for each in outgoing]
            return
        transactions: list[list[_Outgoing]] = []
        for each in outgoing:
            if each.is_joined and transactions:
                transactions[-1].append(each)
            else:
                transactions.append([each])
        for is_whole, some in groupby(transactions, key=lambda each: len(each) > 1):
            if is_whole:
                yield from some
            else:
                yield [each for (each,) in some]

    def _link(self, destination: Destination) -> int:
        link = self._links.get(destination)
        if link is None:
            link = self._links[destination] = self.transport.attach(SenderSpec(_SESSION, destination), None, None)
        return link

    def _send(self, some: Sequence[_Outgoing]) -> list[JMSException | None]:
        """Send messages; returns the error of each, or None, up to where nothing more was sent."""
        answers: _Answers = SimpleQueue()
        seconds, sent = self._answer_seconds, 0
        for sent, each in enumerate(some, 1):
            answer = partial(_put, answers, sent - 1)
            try:
                if each.envelope is None:
                    answer(each.error)
                else:
                    self.transport.send(self._link(each.envelope.destination), each.envelope, answer, None)
            except JMSException as error:
                answer(error)
                if self._is_trouble(error):
                    break
        unanswered = OperationTimedOutException(f"the broker did not answer within {in_seconds(seconds)}")
        errors: list[JMSException | None] = [unanswered] * sent
        deadline = time.monotonic() + seconds
        try:
            for _ in range(sent):
                place, found = answers.get(timeout=max(0.0, deadline - time.monotonic()))
                errors[place] = found
        except Empty:
            pass
        return errors

    def _send_whole(self, some: Sequence[_Outgoing]) -> Sequence[JMSException | None]:
        """Send messages in a transaction; returns the error of each, or None."""
        try:
            sends = []
            for each in some:
                if each.envelope is None:
                    assert each.error is not None
                    raise each.error
                sends.append((self._link(each.envelope.destination), each.envelope))
            self._commits += 1
            self.transport.commit(_SESSION, self._commits, sends, [], None)
        except JMSException as error:
            if _DUPLICATE in error.reason:  # it is there, as a whole unless transactions were divided before
                return self._send(some)
            is_rolled_back = isinstance(error, TransactionRolledBackException)
            cause = error.__cause__ if is_rolled_back and isinstance(error.__cause__, JMSException) else error
            if self._is_trouble(cause):
                return [cause] * len(some)
            return [MessageFormatException(f"its transaction was refused: {cause.reason}")] * len(some)
        return [None] * len(some)


def _put(answers: _Answers, place: int, error: JMSException | None) -> None:
    answers.put((place, error))
