"""The envelope: a message as it is carried and stored, and its packed form.

An envelope is an immutable tuple, so that packing it is one call of msgpack: no conversion stands between
the fields and the bytes.  Applications hold ``sdk`` messages instead; two functions there convert.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from broker_adapter.destination import MAX_NAME_BYTES, Destination, DestinationKind
from broker_adapter.errors import MessageFormatException
from broker_adapter.packing import UNCHECKED_BYTES, check, check_depth

#: ``message-format`` of a transfer whose payload is a packed envelope: a vendor number of ours (AMQP 1.0
#: section 2.8.11: the upper three bytes name the vendor's format, the last one its version).
ENVELOPE_FORMAT = 0x484F4601  # "HOF", version 1
#: ``message-format`` of a standard AMQP 1.0 message.
AMQP_FORMAT = 0

#: Deepest nesting of lists and maps in a body.
MAX_BODY_DEPTH = 32


class BodyKind(IntEnum):
    """What the body is, with the numbers of the annotation ``x-opt-jms-msg-type``."""

    NONE = 0
    OBJECT = 1
    MAP = 2
    BYTES = 3
    STREAM = 4
    TEXT = 5


class Identity(NamedTuple):
    """Who sent a message, and as which one: stable over re-sends, so that a broker can reject what it has.

    Sequences of one (producer, thread) strictly increase for each destination.
    """

    producer_id: str
    thread_id: int
    sequence: int


class Envelope(NamedTuple):
    """All that a message is.  Instants are milliseconds since the epoch; ``None`` means absent.

    ``body`` is a str (TEXT), bytes (BYTES), a dict (MAP), a list (STREAM), any msgpack value (OBJECT) or None.
    """

    destination: Destination
    body_kind: BodyKind = BodyKind.NONE
    body: Any = None
    properties: dict[str, Any] | None = None
    message_id: str | None = None
    correlation_id: str | bytes | None = None
    reply_to: Destination | None = None
    type: str | None = None
    sent_at_ms: int | None = None
    expires_at_ms: int | None = None
    deliver_at_ms: int | None = None
    priority: int = 4
    persistent: bool = True
    group_id: str | None = None
    group_sequence: int | None = None
    user_id: str | None = None
    identity: Identity | None = None


def pack(envelope: Envelope) -> bytes:
    """The envelope as bytes of :data:`ENVELOPE_FORMAT`.

    Raises:
        MessageFormatException: a value in the body or the properties has no msgpack form, or nests too deep, or there
            are more lists and maps, or members of them, than the limits of :mod:`broker_adapter.packing`.
    """
    try:
        packer = _packers.pop()
    except IndexError:
        packer = msgpack.Packer(buf_size=_PACKER_BYTES)
    try:
        data: bytes = packer.pack(envelope)
        size = len(data)
        if size <= _PACKER_BYTES:
            _packers.append(packer)
        if size > UNCHECKED_BYTES:
            check(data)
        return data
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError) as error:
        raise MessageFormatException(f"the message cannot be encoded: {error}") from error


def unpack(data: bytes | memoryview) -> Envelope:
    """The envelope in these bytes.

    Raises:
        MessageFormatException: they are not a packed envelope, or a field of it is of the wrong type or out of range.
    """
    try:
        if len(data) > UNCHECKED_BYTES:
            check(data)
        fields = msgpack.unpackb(data, strict_map_key=False, use_list=True)
        # fmt: off
        (
            destination, body_kind, body, properties, message_id, correlation_id, reply_to, message_type,
            sent_at_ms, expires_at_ms, deliver_at_ms, priority, persistent,
            group_id, group_sequence, user_id, identity,
        ) = fields
        # fmt: on
        # Most messages are like this, which is looked at in half the time of what comes next.
        if not (
            correlation_id is None
            and reply_to is None
            and message_type is None
            and expires_at_ms is None
            and deliver_at_ms is None
            and group_id is None
            and group_sequence is None
            and user_id is None
            and (persistent is True or persistent is False)
            and (properties is None or type(properties) is dict)
            and type(destination) is list
            and type(body_kind) is int
            and type(message_id) is str
            and type(sent_at_ms) is int
            and type(priority) is int
            and type(identity) is list
        ):
            types = list(map(type, fields))
            if types != _usual_types and tuple(types) not in _known_types:
                _check_types(types)
        if type(body) is list or type(body) is dict:
            check_depth(body, MAX_BODY_DEPTH)
        if not 0 <= priority <= 9:
            fields[_PRIORITY] = 0 if priority < 0 else 9
        name, kind = destination
        known = _destinations.get(name)
        fields[0] = known if known is not None and known[1] == kind else _destination(name, kind)
        fields[1] = _BODY_KINDS[body_kind]
        if reply_to is not None:
            fields[_REPLY_TO] = _destination(*reply_to)
        if identity is not None:
            if len(identity) != 3:
                raise ValueError(f"an identity has three fields, not {len(identity)}")
            fields[_IDENTITY] = _new(Identity, identity)
        return _new(Envelope, fields)
    except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException, RecursionError) as error:
        raise MessageFormatException(f"not a packed envelope: {error}") from error


def annotated(envelope: Envelope, annotations: dict[str, Any]) -> Envelope:
    """A message that its engine has set aside, or put back from there: with the engine's properties, and for good."""
    return envelope._replace(properties={**(envelope.properties or {}), **annotations}, expires_at_ms=None)


def check_stored(envelope: Envelope) -> None:
    """Whether an envelope may be stored: ``unpack`` does not look into its identity and at the names of its properties.

    Raises:
        MessageFormatException: it may not.
    """
    identity = envelope.identity
    if identity is not None:
        check_identity(*identity)
    if envelope.properties:
        for name in envelope.properties:
            if type(name) is not str:
                raise MessageFormatException(f"{name!r} cannot be the name of a property")


def check_identity(producer_id: Any, thread_id: Any, sequence: Any) -> None:
    """Whether these can be the fields of an identity.

    Raises:
        MessageFormatException: they are not a string and two numbers from 0 on that fit into 63 bits.
    """
    if type(producer_id) is not str or type(thread_id) is not int or type(sequence) is not int:
        raise MessageFormatException("the identity of a message is a producer, a thread and a sequence")
    if not (-1 < thread_id < _LIMIT and -1 < sequence < _LIMIT):
        raise MessageFormatException(
            f"thread {thread_id} or sequence {sequence} of the identity of a message does not fit into 63 bits"
        )


_PRIORITY = Envelope._fields.index("priority")
_REPLY_TO = Envelope._fields.index("reply_to")
_IDENTITY = Envelope._fields.index("identity")
#: Packers that nobody uses now: making one costs half as much as packing, and each serves one message at a time.
#: One is taken even where only one thread packs, since the garbage collector may run anything in the middle of it.
_packers: list[msgpack.Packer] = []
#: The buffer of a packer.  One that had to grow beyond it keeps what it has for ever, so it is not used again.
_PACKER_BYTES = 256 * 1024
_BODY_KINDS = {int(kind): kind for kind in BodyKind}
_KINDS = {int(kind): kind for kind in DestinationKind}


_LIMIT = 1 << 63
_NONE = type(None)
#: Types of the fields as msgpack brings them.
_TYPES: dict[str, tuple[type, ...]] = {
    "destination": (list,),
    "body_kind": (int,),
    "properties": (dict, _NONE),
    "message_id": (str, _NONE),
    "correlation_id": (str, bytes, _NONE),
    "reply_to": (list, _NONE),
    "type": (str, _NONE),
    "sent_at_ms": (int, _NONE),
    "expires_at_ms": (int, _NONE),
    "deliver_at_ms": (int, _NONE),
    "priority": (int,),
    "persistent": (bool,),
    "group_id": (str, _NONE),
    "group_sequence": (int, _NONE),
    "user_id": (str, _NONE),
    "identity": (list, _NONE),
}
_new = tuple.__new__  #: what ``_make`` calls, without counting the fields once more
#: The types of all fields of the last envelope of a kind that had not been seen, and those of all kinds.
_usual_types: list[type] = []
_known_types: set[tuple[type, ...]] = set()
_MOST_KNOWN = 10_000
#: Destinations by their names: most messages have one of few.
_destinations: dict[str, Destination] = {}


def _check_types(types: list[type]) -> None:
    global _usual_types
    for name, found in zip(Envelope._fields, types, strict=True):
        allowed = _TYPES.get(name)
        if allowed is not None and found not in allowed:
            raise ValueError(f"field {name!r} is a {found.__name__}")
    _usual_types = types
    if len(_known_types) < _MOST_KNOWN:
        _known_types.add(tuple(types))


def _destination(name: Any, kind: Any) -> Destination:
    if type(name) is not str:
        raise ValueError(f"the name of a destination is a {type(name).__name__}")
    destination = Destination(name, _KINDS[kind])
    if len(name) <= MAX_NAME_BYTES:
        if len(_destinations) >= _MOST_KNOWN:
            _destinations.clear()
        _destinations[name] = destination
    return destination
