"""Destinations: where messages go to and come from (Jakarta Messaging 3.1 section 4.2)."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeGuard

from broker_adapter.errors import InvalidDestinationException

#: Longest name of a destination, subscription or staged transaction, in UTF-8 bytes: it is a key in the store, whose
#: keys end at 511 bytes.
MAX_NAME_BYTES = 400
#: What the names of temporary destinations begin with.
TEMPORARY_QUEUE_PREFIX = "temporary-queue/"
TEMPORARY_TOPIC_PREFIX = "temporary-topic/"


class DestinationKind(IntEnum):
    """The kinds, with the numbers of the annotation ``x-opt-jms-dest`` of the AMQP JMS mapping."""

    QUEUE = 0  #: each message goes to one consumer
    TOPIC = 1  #: each message goes to every subscription
    TEMPORARY_QUEUE = 2  #: ends with the connection that made it
    TEMPORARY_TOPIC = 3  #: ends with the connection that made it


class Destination(NamedTuple):
    """A named queue or topic.  ``str(destination)`` is its name; equal by name and kind."""

    name: str  #: 1 to 400 bytes in UTF-8
    kind: DestinationKind = DestinationKind.QUEUE  #: queue or topic, temporary or not

    @property
    def is_topic(self) -> bool:
        """Whether each subscriber gets a copy, instead of one consumer the message."""
        return self.kind in (DestinationKind.TOPIC, DestinationKind.TEMPORARY_TOPIC)

    @property
    def is_temporary(self) -> bool:
        """Whether it lives no longer than the connection that made it."""
        return self.kind >= DestinationKind.TEMPORARY_QUEUE

    def __str__(self) -> str:
        return self.name


_PREFIXES = {
    TEMPORARY_QUEUE_PREFIX: DestinationKind.TEMPORARY_QUEUE,
    TEMPORARY_TOPIC_PREFIX: DestinationKind.TEMPORARY_TOPIC,
}


def resolved(destination: Destination) -> Destination:
    """Return the destination with its kind, which the prefix of a temporary name says: not every client does."""
    if destination.kind is DestinationKind.QUEUE or destination.kind is DestinationKind.TOPIC:
        for prefix, kind in _PREFIXES.items():
            if destination.name.startswith(prefix):
                return Destination(destination.name, kind)
    return destination


def queue(name: str) -> Destination:
    """A queue of this name; raises InvalidDestinationException for a name that cannot be one."""
    return Destination(checked_name(name), DestinationKind.QUEUE)


def topic(name: str) -> Destination:
    """A topic of this name; raises InvalidDestinationException for a name that cannot be one."""
    return Destination(checked_name(name), DestinationKind.TOPIC)


def checked_destination(destination: object) -> Destination:
    """The destination itself, if there can be such a one: a program may have made it without ``queue`` and ``topic``.

    Raises:
        InvalidDestinationException: it is no destination, or one with a name or of a kind that none can have.
    """
    if not is_destination(destination):
        raise InvalidDestinationException(
            f"{destination!r:.500} is not a destination such as create_queue() and create_topic() make"
        )
    checked_name(destination.name)
    return destination


def is_destination(value: object) -> TypeGuard[Destination]:
    """Return whether this is a destination, of whatever name: a program may have made it of a name or kind that is
    none.
    """
    return isinstance(value, Destination) and isinstance(value.name, str) and isinstance(value.kind, DestinationKind)


def checked_name(name: object, what: str = "destination") -> str:
    """The name itself, if a destination can have it; raises InvalidDestinationException otherwise.

    Args:
        name: the name.
        what: whose name it is, for the error.
    """
    if not isinstance(name, str) or not name:
        raise InvalidDestinationException(f"{what} name {name!r:.500} is not a string of at least one character")
    if "\0" in name:
        raise InvalidDestinationException(f"{what} name {name!r:.500} has the character NUL, which no name may have")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidDestinationException(f"{what} name {name!r:.500} is not valid Unicode") from error
    if size > MAX_NAME_BYTES:
        raise InvalidDestinationException(
            f"{what} name of {size} bytes is longer than the limit of {MAX_NAME_BYTES} bytes: {name:.40}..."
        )
    return name
