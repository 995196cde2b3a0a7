"""Everything that can go wrong, in one tree.

::

    JMSException
    ├── IllegalStateException                 the call is wrong in this state
    │   ├── QueueClaimedException             another streaming query has the queue
    │   └── StaleAcknowledgementException     what was held is gone since the connection was lost
    ├── InvalidClientIDException              the client id is in use, or not allowed
    ├── InvalidDestinationException           no such destination, or one that cannot be used so   (LookupError)
    ├── InvalidSelectorException              the selector cannot be parsed                        (ValueError)
    ├── InvalidURLException                   the connection URL cannot be used                    (ValueError)
    ├── JMSSecurityException                  a login or a permission was refused
    ├── MessageEOFException                   read past the end of a stream or bytes message       (EOFError)
    ├── MessageFormatException                a value that a message cannot carry                  (TypeError)
    ├── MessageNotReadableException           the body is write-only
    ├── MessageNotWriteableException          the message is read-only
    ├── NoSuchElementException                there is no further element                          (LookupError)
    │   └── BrowserInterruptedException       the connection was lost in the middle of an iteration
    ├── ConnectionLostException               the network failed                                   (ConnectionError)
    ├── OperationTimedOutException            the deadline passed first                            (TimeoutError)
    ├── ProtocolException                     the peer broke the protocol
    ├── ResourceAllocationException           a limit is reached
    │   └── StoreLockedException              another process owns the store
    ├── StoreException                        the store cannot be trusted or used
    │   ├── StoreCorruptException
    │   └── StoreVersionException             written by another version
    ├── TransactionRolledBackException        the work of the transaction is undone
    └── TransactionInDoubtException           it is not known whether it was committed

The names are those of JMS, because that is what people search for; where Python has a word, it is
inherited as well.  This file imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from types import MappingProxyType
from typing import Final, NamedTuple

#: Codes of the engine's errors: a queue or subscription was deleted; a limit is reached; a message is larger than the
#: limit.
DELETED: Final = "deleted"
LIMIT_REACHED: Final = "limit-reached"
MESSAGE_TOO_LARGE: Final = "message-too-large"


class JMSException(Exception):
    """Root of all errors of this project.

    Attributes:
        reason: what happened, in one sentence.
        error_code: the vendor's code: an AMQP condition such as ``amqp:not-found`` where a broker sent one, or a word
            of the embedded engine such as ``message-too-large``.
        failures: of ``send_all()``: the error of each message that failed, by its index; else empty.
    """

    failures: Mapping[int, JMSException] = MappingProxyType({})

    def __init__(self, reason: str = "", *, error_code: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error_code = error_code

    def __str__(self) -> str:
        return f"{self.reason} [{self.error_code}]" if self.error_code else self.reason


class IllegalStateException(JMSException):
    """The call does not fit the state of the object: closed, not transacted, used by two threads."""


class QueueClaimedException(IllegalStateException):
    """Another streaming query has claimed the queue, and alone may remove its messages by position."""


class StaleAcknowledgementException(IllegalStateException):
    """Messages that were held when the connection was lost can no longer be acknowledged.

    Or they were acknowledged, the acknowledgements were lost with the connection, and others have the messages, or the
    dead-letter queue has them.

    Attributes:
        stale_count: how many deliveries it concerned.
        message_ids: of those that were acknowledged, and that others have all the same, or that are dead letters.
    """

    def __init__(
        self,
        reason: str = "",
        *,
        stale_count: int = 0,
        message_ids: tuple[str, ...] = (),
        error_code: str | None = None,
    ) -> None:
        super().__init__(reason, error_code=error_code)
        self.stale_count = stale_count
        self.message_ids = message_ids


class InvalidClientIDException(JMSException):
    """The client id is in use by another connection, or is not allowed."""


class InvalidDestinationException(JMSException, LookupError):
    """The destination does not exist, or cannot be used in this way."""


class InvalidSelectorException(JMSException, ValueError):
    """The message selector cannot be parsed, or the broker does not apply it."""


class InvalidURLException(JMSException, ValueError):
    """The connection URL cannot be understood, or holds an unknown option."""


class JMSSecurityException(JMSException):
    """The broker refused the user or what the user wanted to do."""


class MessageEOFException(JMSException, EOFError):
    """The end of a stream or bytes message was reached unexpectedly."""


class MessageFormatException(JMSException, TypeError):
    """A value has a type that a message cannot carry, or cannot be converted to the type asked for."""


class MessageNotReadableException(JMSException):
    """The body of the message is write-only."""


class MessageNotWriteableException(JMSException):
    """The message was received, and is read-only."""


class NoSuchElementException(JMSException, LookupError):
    """A browser has no further element, or lost its place."""


class Redirect(NamedTuple):
    """Where a broker sends a client instead (AMQP 1.0 section 2.8.16)."""

    network_host: str
    port: int
    hostname: str | None = None  #: what to name in the open frame
    scheme: str | None = None  #: ``amqp`` or ``amqps``


class BrowserInterruptedException(NoSuchElementException):
    """The connection was lost while a browser was iterated: what it would show next is not known; iterate again."""


class ConnectionLostException(JMSException, ConnectionError):
    """The network connection to the broker failed.

    Attributes:
        redirect: where the broker sends the client instead, if it does.
    """

    def __init__(self, reason: str = "", *, error_code: str | None = None, redirect: Redirect | None = None) -> None:
        super().__init__(reason, error_code=error_code)
        self.redirect = redirect


class UnconnectedException(ConnectionLostException):
    """The connection is being restored, and the call does not wait for that: a change of a region."""


class OperationTimedOutException(JMSException, TimeoutError):
    """The deadline of a call passed before the broker answered."""


class ProtocolException(JMSException):
    """The peer broke the protocol."""


class ResourceAllocationException(JMSException):
    """A limit is reached: a full queue, a full store or disk, too many destinations."""


class StoreLockedException(ResourceAllocationException):
    """Another process owns the store."""


class StoreException(JMSException):
    """The store cannot be used."""


class StoreCorruptException(StoreException):
    """The store, or a record in it, cannot be trusted."""


class StoreVersionException(StoreException):
    """The store was written by a newer version of this software, or by one that it cannot convert."""


class UnsupportedOperationException(JMSException, NotImplementedError):
    """The broker has nothing of this kind: connect to a Holdfast server, or to the engine in the process."""


class TransactionRolledBackException(JMSException):
    """``commit()`` could not be done: the work of the transaction is undone."""


class TransactionInDoubtException(JMSException):
    """The connection was lost during ``commit()``, and the broker cannot tell whether it was done."""


def copied(error: JMSException) -> JMSException:
    """The same error for another thread: each raise of an error adds to its traceback."""
    twin: JMSException = copy(error)
    twin.__cause__ = error.__cause__
    return twin
