"""What a selector can name in a message (Jakarta Messaging 3.1 section 3.8.1.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from broker_adapter.annotations import added_properties
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, unpack, unpack_headers
from broker_adapter.errors import MessageFormatException
from broker_adapter.selectors.language import Selector
from broker_adapter.selectors.like import SHORT_TEXT

#: Bytes of a message in which no selector takes more than a millisecond, since no text is long; and how many selectors
#: are asked between two readings of the clock, of such a message and of a larger one.
SMALL_BYTES: Final = SHORT_TEXT
SMALL_AT_ONCE: Final = 64
LARGE_AT_ONCE: Final = 8

#: Reads a stored message of one format, at least its headers and properties; raises MessageFormatException.
Read = Callable[[bytes], Envelope]


class Formats:
    """The message formats that an engine can read.  Its own is known; another one has to be added."""

    def __init__(self) -> None:
        self._readers: dict[int, Read] = {ENVELOPE_FORMAT: unpack_headers}
        self._whole: dict[int, Read] = {ENVELOPE_FORMAT: unpack}

    def learn(self, message_format: int, read: Read, whole: Read | None = None) -> None:
        """Read messages of this format so.

        Args:
            message_format: of the messages.
            read: decodes at least headers and properties.
            whole: decodes the body as well; None: ``read`` does, as far as it can be done.
        """
        self._readers[message_format] = read
        self._whole[message_format] = whole or read

    def read(self, message_format: int, payload: bytes) -> Envelope:
        """The message; raises MessageFormatException where it cannot be read."""
        return _known(self._readers, message_format)(payload)

    def read_whole(self, message_format: int, payload: bytes) -> Envelope:
        """The message with its body; raises as ``read``."""
        return _known(self._whole, message_format)(payload)


def _known(readers: Mapping[int, Read], message_format: int) -> Read:
    reader = readers.get(message_format)
    if reader is None:
        raise MessageFormatException(f"this engine does not know the message format 0x{message_format:08x}")
    return reader


class Selectable:
    """The values of one message by the names that a selector uses.  Decoded when the first one is asked for."""

    __slots__ = ("_annotations", "_envelope", "_error", "_failures", "_format", "_formats", "_payload")

    def __init__(
        self,
        formats: Formats,
        message_format: int,
        payload: bytes,
        failures: int = 0,
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        """A message that is not decoded yet.

        Args:
            formats: what the engine can read.
            message_format: of the payload.
            payload: the message as it is stored.
            failures: deliveries of it that have failed.
            annotations: what was added to it.
        """
        self._formats = formats
        self._format = message_format
        self._payload = payload
        self._failures = failures
        self._annotations = added_properties(annotations) if annotations else None
        self._envelope: Envelope | None = None
        self._error: MessageFormatException | None = None

    def __call__(self, name: str) -> Any:
        """The value of a header or property; None where there is none.

        Raises:
            MessageFormatException: the message cannot be decoded.
        """
        if self._annotations is not None and name in self._annotations:
            return self._annotations[name]
        envelope = self._envelope
        if envelope is None:
            envelope = self._envelope = self._read()
        header = _HEADERS.get(name)
        if header is not None:
            value = header(envelope)
            if header is _correlation_id and value is not envelope.correlation_id:
                # A selector may ask for it a thousand times, and it may be as long as a message.
                self._envelope = envelope._replace(correlation_id=value)
            return value
        if name == "JMSXDeliveryCount":
            return self._failures + 1
        properties = envelope.properties
        return None if properties is None else properties.get(name)

    def _read(self) -> Envelope:
        """The message.  It is decoded once, also where that fails: many may have a selector for it."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        try:
            return self._formats.read(self._format, self._payload)
        except MessageFormatException as error:
            self._error = error
            raise


class RegionFields(Selectable):
    """What a selector can name in an event of a region, or in the value that a key had before.

    Beside what it can name in any message, this is ``key``, and the fields of a body that is a map, where no header and
    no property has the name.  The body is decoded when the first one of these is asked for.
    """

    __slots__ = ("_body", "_found")

    def __init__(self, formats: Formats, message_format: int, payload: bytes, key: str) -> None:
        """A message that is not decoded yet.

        Args:
            formats: what the engine can read.
            message_format: of the payload.
            payload: the message as it is stored.
            key: of the region.
        """
        super().__init__(formats, message_format, payload)
        self._body: Mapping[Any, Any] | None = None
        self._found: dict[str, Any] = {"key": key}  #: by name, since a thousand selectors may ask for one

    def __call__(self, name: str) -> Any:
        """The value of a name; None where there is none, or where it is none that a selector can compare.

        Raises:
            MessageFormatException: the message cannot be decoded.
        """
        found = self._found
        if name not in found:
            found[name] = self._value(name)
        return found[name]

    def _value(self, name: str) -> Any:
        found = super().__call__(name)
        if found is not None or name.startswith("JMS"):
            return found
        if self._body is None:
            envelope = self._read_whole()
            is_map = envelope.body_kind is BodyKind.MAP and isinstance(envelope.body, dict)
            self._body = envelope.body if is_map else _NO_FIELDS
        value = self._body.get(name)
        return value if isinstance(value, str | int | float) else None

    def _read_whole(self) -> Envelope:
        if self._error is not None:
            raise self._error.with_traceback(None)
        try:
            return self._formats.read_whole(self._format, self._payload)
        except MessageFormatException as error:
            self._error = error
            raise


_NO_FIELDS: Final[Mapping[Any, Any]] = {}


class Choosing(Protocol):
    """What may have a selector."""

    selector: Selector | None


def selectors_at_once(size: int) -> int:
    """Return how many selectors may examine a message of so many bytes between two readings of the clock."""
    return SMALL_AT_ONCE if size <= SMALL_BYTES else LARGE_AT_ONCE


def selects(selector: Selector, message: Selectable) -> bool:
    """Return whether the selector is true of the message; a message that cannot be decoded is selected by none."""
    try:
        return selector.matches(message)
    except MessageFormatException:
        return False


#: Whether a selector is true of a message, as :func:`selects` says.
Selects = Callable[[Selector, Selectable], bool]


def wanting_of(queues: Sequence[Choosing], message: Selectable, is_selected: Selects = selects) -> list[Any]:
    """Those of some queues that want a message by their selectors."""
    return [queue for queue in queues if queue.selector is None or is_selected(queue.selector, message)]


class Choice:
    """Those of some queues that want a message by their selectors, found out in parts where that takes long.

    Attributes:
        subject: what the choice is for, as the caller knows it.
        queues: among which the choice is.
        wanting: those that want it, as far as they were asked.
    """

    __slots__ = ("_asked", "_is_selected", "_message", "_most", "queues", "subject", "wanting")

    def __init__(
        self,
        subject: object,
        message: Selectable,
        size: int,
        queues: Sequence[Choosing],
        is_selected: Selects = selects,
    ) -> None:
        """A choice in which no selector was asked yet.

        Args:
            subject: what the choice is for.
            message: what selectors see of it.
            size: bytes of its payload.
            queues: those that may get it.
            is_selected: asks a selector.
        """
        self.subject = subject
        self.queues = queues
        self.wanting: list[Any] = []
        self._message = message
        self._is_selected = is_selected
        self._most = selectors_at_once(size)
        self._asked = 0

    def go_on(self, is_late: Callable[[], bool]) -> bool:
        """Ask the others.

        Args:
            is_late: asked now and then; once it returns True, the rest is for another call.

        Returns:
            Whether all were asked.
        """
        queues, message, wanting, most = self.queues, self._message, self.wanting, self._most
        for start in range(self._asked, len(queues), most):
            if is_late():
                self._asked = start
                return False
            wanting += wanting_of(queues[start : start + most], message, self._is_selected)
        self._asked = len(queues)
        return True


def _correlation_id(envelope: Envelope) -> str | None:
    value = envelope.correlation_id
    return f"ID:{value.hex().upper()}" if isinstance(value, bytes) else value


_HEADERS: Final[dict[str, Callable[[Envelope], Any]]] = {
    "JMSDeliveryMode": lambda envelope: "PERSISTENT" if envelope.persistent else "NON_PERSISTENT",
    "JMSPriority": lambda envelope: envelope.priority,
    "JMSMessageID": lambda envelope: envelope.message_id,
    "JMSTimestamp": lambda envelope: envelope.sent_at_ms,
    "JMSCorrelationID": _correlation_id,
    "JMSType": lambda envelope: envelope.type,
    "JMSXGroupID": lambda envelope: envelope.group_id,
    "JMSXGroupSeq": lambda envelope: envelope.group_sequence,
    "JMSXUserID": lambda envelope: envelope.user_id,
}
