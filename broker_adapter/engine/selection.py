"""What a selector can name in a message (Jakarta Messaging 3.1 section 3.8.1.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from broker_adapter.envelope import ENVELOPE_FORMAT, Envelope, unpack
from broker_adapter.errors import MessageFormatException
from broker_adapter.selector import Selector

#: Reads a stored message of one format, at least its headers and properties; raises MessageFormatException.
Read = Callable[[bytes], Envelope]


class Formats:
    """The message formats that an engine can read.  It knows its own; who brings in another one teaches it."""

    def __init__(self) -> None:
        self._readers: dict[int, Read] = {ENVELOPE_FORMAT: unpack}

    def learn(self, message_format: int, read: Read) -> None:
        """Read messages of this format so."""
        self._readers[message_format] = read

    def read(self, message_format: int, payload: bytes) -> Envelope:
        """The message; raises MessageFormatException where it cannot be read."""
        reader = self._readers.get(message_format)
        if reader is None:
            raise MessageFormatException(f"this engine does not know the message format 0x{message_format:08x}")
        return reader(payload)


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
            annotations: properties that the engine added.
        """
        self._formats = formats
        self._format = message_format
        self._payload = payload
        self._failures = failures
        self._annotations = annotations
        self._envelope: Envelope | None = None
        self._error: MessageFormatException | None = None

    def __call__(self, name: str) -> Any:
        """The value of a header or property; None where there is none.

        Raises:
            MessageFormatException: the message cannot be decoded.
        """
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
        if self._annotations is not None and name in self._annotations:
            return self._annotations[name]
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


def selects(selector: Selector, message: Selectable) -> bool:
    """Whether the selector is true of the message; a message that cannot be decoded is selected by none."""
    try:
        return selector.matches(message)
    except MessageFormatException:
        return False


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
