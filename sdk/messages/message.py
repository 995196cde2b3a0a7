"""The headers, the properties and the body of a message (Jakarta Messaging 3.1 section 3).

A message that was received is read-only: its properties and its body cannot be set before ``clear_properties()`` and
``clear_body()``.  Headers can always be set; those that a send decides are overwritten by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from datetime import timedelta
from enum import IntEnum
from typing import Any, ClassVar, TypeVar

from ack_modes import DeliveryTag, Failure, Outcome, shortened_reason
from broker_adapter import (
    BodyKind,
    Destination,
    IllegalStateException,
    MessageFormatException,
    MessageNotWriteableException,
    checked_property_name,
)
from sdk.messages.conversion import Type, checked, converted
from sdk.messages.typed_values import NamedValues
from sdk.messages.values import PropertyValue, checked_ms, checked_priority, checked_property, shortened

_T = TypeVar("_T")
#: ``message.acknowledge()`` calls the function that the session gave it, with the tag of its delivery; ``reject()`` and
#: ``retry()`` with how it ends instead.
Acknowledge = Callable[[DeliveryTag, Failure | None], Any]


class DeliveryMode(IntEnum):
    """Whether a message survives a restart of the broker."""

    NON_PERSISTENT = 1  #: it is kept in memory
    PERSISTENT = 2  #: it is on disk


def checked_mode(value: object) -> DeliveryMode:
    """A delivery mode; ValueError where it can be none."""
    if not isinstance(value, DeliveryMode):
        raise ValueError(f"delivery_mode={value!r} is neither DeliveryMode.PERSISTENT nor DeliveryMode.NON_PERSISTENT")
    return value


def check_body_type(kind: object) -> None:
    """Make sure that this is the type of a body; TypeError where it is no type."""
    if not isinstance(kind, type):
        raise TypeError(f"{kind!r} is not the type of a body, such as str, bytes, dict or list")


class MessageProperties(MutableMapping[str, PropertyValue], NamedValues):
    """The application's properties of a message: names as in JMS, values bool, int, float, str or None.

    A mapping of the values as they are; ``get_int(name)`` and its like convert them.
    """

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    def __getitem__(self, name: str) -> PropertyValue:
        values = self._message._property_values
        if values is None:
            raise KeyError(name)
        return values[name]  # type: ignore[no-any-return]

    def __setitem__(self, name: str, value: PropertyValue) -> None:
        if type(name) is not str:
            raise MessageFormatException(f"property name {name!r} is not a string")
        checked_property_name(name)
        self._writable()[name] = checked_property(name, value)

    def __delitem__(self, name: str) -> None:
        del self._writable()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._message._property_values or ())

    def __len__(self) -> int:
        return len(self._message._property_values or ())

    def __repr__(self) -> str:
        return repr(self._message._property_values or {})

    def _get(self, name: str, wanted: Type) -> Any:
        values = self._message._property_values
        return converted(None if values is None else values.get(name), wanted, f"property {name!r}")

    def _set(self, name: str, value: Any, written: Type) -> None:
        self[name] = checked(value, written, f"property {name!r}")

    def _writable(self) -> dict[str, Any]:
        message = self._message
        if not message._properties_writable:
            raise MessageNotWriteableException(
                "the properties of a received message are read-only; call clear_properties() first"
            )
        if message._property_values is None:
            message._property_values = {}
        return message._property_values


class Message:
    """A message; by itself one without a body.

    Attributes:
        destination: where it was sent to; set by ``send``.
        message_id: ``ID:...``, unique; set by ``send``.
        correlation_id: of the application; str or bytes.
        reply_to: where an answer is wanted.
        type: of the application.
        delivery_mode: set by ``send``.
        sent_at_ms: when it was sent, in milliseconds since the epoch; set by ``send``.
        expires_at_ms: when it expires; None: never; set by ``send``.
        deliver_at_ms: before which it is not delivered; set by ``send``.
        group_id: ``JMSXGroupID``.
        group_sequence: ``JMSXGroupSeq``.
        user_id: its sender (``JMSXUserID``), where the sender's connection says so (option ``populate_user_id``); set
            by ``send``.
    """

    __slots__ = (
        "_acknowledge",
        "_body",
        "_body_writable",
        "_delivery_count",
        "_priority",
        "_properties_writable",
        "_property_values",
        "_tag",
        "correlation_id",
        "deliver_at_ms",
        "delivery_mode",
        "destination",
        "expires_at_ms",
        "group_id",
        "group_sequence",
        "message_id",
        "reply_to",
        "sent_at_ms",
        "type",
        "user_id",
    )

    body_kind: ClassVar[BodyKind] = BodyKind.NONE  #: what the stored form of the message calls its body

    def __init__(self, body: Any = None) -> None:
        """A message to be sent.

        Args:
            body: see the class; None: no body yet.

        Raises:
            MessageFormatException: the body has another type than this kind of message carries.
        """
        self.destination: Destination | None = None
        self.message_id: str | None = None
        self.correlation_id: str | bytes | None = None
        self.reply_to: Destination | None = None
        self.type: str | None = None
        self._priority = 4
        self.delivery_mode = DeliveryMode.PERSISTENT
        self.sent_at_ms: int | None = None
        self.expires_at_ms: int | None = None
        self.deliver_at_ms: int | None = None
        self._delivery_count = 0
        self.group_id: str | None = None
        self.group_sequence: int | None = None
        self.user_id: str | None = None
        self._body: Any = None
        self._body_writable = True
        self._property_values: dict[str, Any] | None = None
        self._properties_writable = True
        self._acknowledge: Acknowledge | None = None
        self._tag: DeliveryTag | None = None
        if body is not None:
            self._body = self._checked_body(body)

    @property
    def priority(self) -> int:
        """0 to 9; set by ``send``."""
        return self._priority

    @priority.setter
    def priority(self, value: int) -> None:
        self._priority = checked_priority(value)

    @property
    def delivery_count(self) -> int:
        """Which delivery this is, 1 for the first (``JMSXDeliveryCount``); 0: it was not received."""
        return self._delivery_count

    @delivery_count.setter
    def delivery_count(self, value: int) -> None:
        if type(value) is not int or value < 0:
            raise ValueError(f"delivery_count={value!r} is not a number of deliveries")
        self._delivery_count = value

    @property
    def body(self) -> Any:
        """What the message says; its type is told by the class.

        Raises:
            MessageNotWriteableException: set on a received message; ``clear_body()`` makes it writable.
            MessageFormatException: set to a value that this kind of message does not carry.
        """
        return self._body

    @body.setter
    def body(self, value: Any) -> None:
        self._set_body(value)

    def _set_body(self, value: Any) -> None:
        self._require_writable_body()
        self._body = None if value is None else self._checked_body(value)

    def _require_writable_body(self) -> None:
        if not self._body_writable:
            raise MessageNotWriteableException(
                "the body of a message that was received or reset is read-only; call clear_body() first"
            )

    @property
    def properties(self) -> MessageProperties:
        """The application's properties, as a mapping."""
        return MessageProperties(self)

    @property
    def redelivered(self) -> bool:
        """Whether an earlier delivery of it has failed, so that it may have been seen before."""
        return self._delivery_count > 1

    def is_body_assignable_to(self, kind: type) -> bool:
        """Return whether ``get_body(kind)`` gives the body (as ``Message.isBodyAssignableTo``)."""
        check_body_type(kind)
        return self._body is None or isinstance(self.body, kind)

    def get_body(self, kind: type[_T]) -> _T | None:
        """The body as a value of this type; None where there is no body.

        Raises:
            MessageFormatException: the body has another type.
            TypeError: this is no type.
        """
        check_body_type(kind)
        body = self.body
        if body is not None and not isinstance(body, kind):
            raise MessageFormatException(f"the body is a {type(body).__name__}, not a {kind.__name__}")
        return body

    def clear_body(self) -> None:
        """Drop the body; it can then be set."""
        self._body = None
        self._body_writable = True

    def clear_properties(self) -> None:
        """Drop the properties; they can then be set."""
        self._property_values = None
        self._properties_writable = True

    def acknowledge(self) -> Any:
        """Acknowledge as the session's mode says: CLIENT everything received, INDIVIDUAL this; others ignore it.

        Returns:
            None; of a message that came through :mod:`sdk.aio`, what is awaited.

        Raises:
            IllegalStateException: the message was not received, or its session is closed.
            StaleAcknowledgementException: it was held when the connection was lost; it will be redelivered.
            OperationTimedOutException: with ``synchronous_acknowledge``: the broker has not confirmed it within
                ``request_timeout_seconds``; the next ``acknowledge()`` asks again.
        """
        return self._end("acknowledge", None)

    def reject(self, reason: str) -> Any:
        """End this message alone, which then goes to the dead-letter queue with the reason.

        In CLIENT and INDIVIDUAL at once, in TRANSACTED with ``commit()``, in AUTO and DUPS_OK only while its listener
        runs.  On a Holdfast broker the dead letter says why in ``JMS_HOLDFAST_DEAD_LETTER_REASON``.

        Args:
            reason: at most 1,000 bytes of it are kept; not empty.

        Raises:
            IllegalStateException: the message has ended already, or the mode is NO_ACK; or as ``acknowledge()``.
            StaleAcknowledgementException, OperationTimedOutException: as ``acknowledge()``.
        """
        if not isinstance(reason, str) or not reason:
            raise ValueError(f"reason={reason!r} is not a text that says why the message is rejected")
        return self._end("reject", Failure(shortened_reason(reason), Outcome.REJECTED))

    def retry(self, delay: float | timedelta = 0.0) -> Any:
        """End this delivery alone, which has failed, and have the message redelivered after the delay.

        When, as for ``reject()``.  It counts as a delivery: at ``max_deliveries`` the message becomes a dead letter.
        With a delay it loses its place: it comes behind what is in the queue by then.

        Args:
            delay: seconds, or a timedelta; 0: as one whose listener raised, which is at once for the first time.

        Raises:
            ValueError: the delay is negative, or no number.
            UnsupportedOperationException: there is a delay, and the broker is another one than Holdfast.
            IllegalStateException, StaleAcknowledgementException, OperationTimedOutException: as ``reject()``.
        """
        return self._end("retry", Failure("", Outcome.FAILED, checked_ms("delay", delay, 0)))

    def _end(self, what: str, failure: Failure | None) -> Any:
        if self._acknowledge is None or self._tag is None:
            raise IllegalStateException(f"cannot {what}: the message was not received by a consumer")
        return self._acknowledge(self._tag, failure)

    def __repr__(self) -> str:
        facts = [
            f"{name}={value!r}"
            for name, value in (
                ("message_id", self.message_id),
                ("destination", None if self.destination is None else str(self.destination)),
                ("body", shortened(self._body)),
                ("properties", self._property_values),
                ("correlation_id", self.correlation_id),
                ("delivery_count", self._delivery_count or None),
            )
            if value is not None
        ]
        return f"<{' '.join([type(self).__name__, *facts])}>"

    def _add_named(
        self,
        properties: Mapping[str, PropertyValue] | None,
        group_id: str | None,
        correlation_id: str | bytes | None,
    ) -> None:
        """Add what a send names beside the message, also where it was received; None: as the message has it."""
        if properties is not None:
            if not isinstance(properties, Mapping):
                raise TypeError(f"properties={properties!r} is not a dict of names and values")
            added = Message()
            added.properties.update(properties)
            self._property_values = {**(self._property_values or {}), **(added._property_values or {})}
        if group_id is not None:
            self.group_id = group_id
        if correlation_id is not None:
            self.correlation_id = correlation_id

    def _checked_body(self, value: Any) -> Any:
        raise MessageFormatException(f"a message without a body cannot carry {shortened(value)!r}")

    def _body_to_send(self) -> Any:
        """The body, checked and copied as far as the application could still change it."""
        return self._body
