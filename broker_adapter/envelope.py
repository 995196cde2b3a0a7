"""The envelope: a message as it is carried and stored, and its packed form.

Applications hold ``sdk`` messages instead; two functions there convert.

A packed envelope, all integers big-endian::

    octet   what
        0   0x48, which no other payload of ours begins with, and no AMQP message
        1   the version: 1
        2   flags: 1 persistent, 2 it expires, 4 it is delivered later, 8 it has an identity, 16 a group, 32 a time of
            sending, 64 a message id
        3   priority
        4   kind of the body (:class:`BodyKind`)
        5   form of the body: 0 none, 1 UTF-8 text, 2 bytes, 3 msgpack
        6   kind of the destination (:class:`broker_adapter.destination.DestinationKind`)
        7   0
        8   sizes in bytes, 7 times u32: name of the destination, group, producer's id, message id, further headers,
            properties, body
       36   5 times i64: expiry, delivery time, time of sending (milliseconds since the epoch), thread and sequence of
            the identity
       76   what has these sizes, in the same order: the first four in UTF-8, the next two as maps in msgpack, which
            have no bytes where there are none; nothing is behind the body

What routes a message reads the head by itself (:func:`read_head`), and a selector all but the body
(:func:`unpack_headers`).  The map of further headers grows: what is not known in it is ignored, and stays where it is,
since messages are stored and passed on as the bytes that came; what is missing is absent from the message.  Everything
else needs another version, which is refused by programs that do not know it.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

import msgpack

from broker_adapter.annotations import added_properties, is_set_aside
from broker_adapter.destination import MAX_NAME_BYTES, Destination, DestinationKind
from broker_adapter.errors import MessageFormatException
from broker_adapter.packing import UNCHECKED_BYTES, check, check_depth, map_members, unpacked
from broker_adapter.wording import why_unencodable

#: The version of packed envelopes.
ENVELOPE_VERSION = 1
#: ``message-format`` of a packed envelope: a vendor number of ours (AMQP 1.0 section 2.8.11: the upper three bytes name
#: the vendor's format, the last one its version).
ENVELOPE_FORMAT = 0x484F4600 | ENVELOPE_VERSION  # "HOF", version
#: The first octet of a packed envelope, whatever its version.
ENVELOPE_OCTET = 0x48
#: ``message-format`` of a standard AMQP 1.0 message.
AMQP_FORMAT = 0

#: Properties that the engine adds to a message as it becomes a dead letter: why, and where it was.
DEAD_LETTER_PREFIX = "JMS_HOLDFAST_DEAD_LETTER_"
DEAD_LETTER_REASON = f"{DEAD_LETTER_PREFIX}REASON"
DEAD_LETTER_QUEUE = f"{DEAD_LETTER_PREFIX}QUEUE"
DEAD_LETTER_SUBSCRIPTION = f"{DEAD_LETTER_PREFIX}SUBSCRIPTION"
#: What the listener has raised that failed on it last.
DEAD_LETTER_EXCEPTION = f"{DEAD_LETTER_PREFIX}EXCEPTION"
#: Properties that the engine adds to an event of a region that reaches a plain consumer of the topic of its name: where
#: it happened, to which key, and what ("create", "update", "invalidate" or "destroy"); the version that the key has
#: from then on; the time and the site of the change's stamp; whether the message was stored before the consumer
#: attached.
REGION_PROPERTY = "JMS_Holdfast_Region"
KEY_PROPERTY = "JMS_Holdfast_Key"
OPERATION_PROPERTY = "JMS_Holdfast_Operation"
VERSION_PROPERTY = "JMS_Holdfast_Version"
STAMP_PROPERTY = "JMS_Holdfast_Stamp"
#: Of a value that resolves a conflict between sites: True.
RESOLVED_PROPERTY = "JMS_Holdfast_Resolved"
SITE_PROPERTY = "JMS_Holdfast_Site"
REPLAYED_PROPERTY = "JMS_Holdfast_Replayed"
#: A client may not send them: a message that comes in loses these, which all begin alike.
RESERVED = frozenset(
    (
        *(REGION_PROPERTY, KEY_PROPERTY, OPERATION_PROPERTY, VERSION_PROPERTY),
        *(STAMP_PROPERTY, SITE_PROPERTY, RESOLVED_PROPERTY, REPLAYED_PROPERTY),
    )
)
RESERVED_BYTES = b"JMS_Holdfast_"
#: Property of a dead letter that cannot be decoded: why not.
UNDECODABLE_PROPERTY = "JMS_HOLDFAST_UNDECODABLE"
MAX_REASON = 1000  #: characters of it

#: Most properties of a message; a selector may read all of them at once.
MAX_PROPERTIES = 10_000
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
    """Which producer sent a message, and as which one: stable over re-sends, so that a broker can reject what it has.

    Sequences of one (producer, thread) strictly increase for each destination.
    """

    producer_id: str
    thread_id: int
    sequence: int


class Head(NamedTuple):
    """What routes a message; see :class:`Envelope`."""

    format: int  #: ``message-format`` of the message
    destination: Destination | None  #: None: an AMQP message that names none
    priority: int
    persistent: bool
    expires_at_ms: int | None
    deliver_at_ms: int | None
    group_id: str | None
    identity: Identity | None
    allowed: bytes | None = None  #: the message without properties that a client may not send; None: it has none


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
    """Encode an envelope.

    Raises:
        MessageFormatException: a value in the body or the properties has no msgpack form, or nests too deep, or there
            are more lists and maps, or members of them, than the limits of :mod:`broker_adapter.packing`, or more than
            :data:`MAX_PROPERTIES`; a number does not fit into 63 bits.
    """
    try:
        if envelope.properties is not None and len(envelope.properties) > MAX_PROPERTIES:
            raise ValueError(f"{len(envelope.properties)} properties, more than the limit of {MAX_PROPERTIES}")
        # fmt: off
        (
            (name, destination_kind), body_kind, body, properties, message_id, correlation_id, reply_to, message_type,
            sent_at_ms, expires_at_ms, deliver_at_ms, priority, persistent,
            group_id, group_sequence, user_id, identity,
        ) = envelope
        # fmt: on
        further = b""
        others = correlation_id, reply_to, message_type, group_sequence, user_id
        if others != _NO_OTHERS:
            further = _packed({key: value for key, value in zip(_HEADERS, others, strict=True) if value is not None})
        if not 0 <= priority <= 9:
            priority = 0 if priority < 0 else 9
        flags = _PERSISTENT if persistent else 0
        group = producer = named = b""
        thread_id = sequence = 0
        if expires_at_ms is None:
            expires_at_ms = 0
        else:
            flags |= _EXPIRES
        if deliver_at_ms is None:
            deliver_at_ms = 0
        else:
            flags |= _DELIVERED_LATER
        if group_id is not None:
            flags |= _GROUPED
            group = group_id.encode()
        if sent_at_ms is None:
            sent_at_ms = 0
        else:
            flags |= _SENT
        if message_id is not None:
            flags |= _NAMED
            named = message_id.encode()
        if identity is not None:
            flags |= _IDENTIFIED
            producer_id, thread_id, sequence = identity
            producer = producer_id.encode()
        if type(body) is str:
            form, content = _TEXT, body.encode()
        elif type(body) is bytes:
            form, content = _BYTES, body
        elif body is None:
            form, content = _NO_BODY, b""
        else:
            form, content = _MSGPACK, _packed(body)
        destination = name.encode()
        values = b"" if properties is None else _packed(properties)
        # fmt: off
        head = _pack_head(
            ENVELOPE_OCTET, ENVELOPE_VERSION, flags, priority, body_kind, form, destination_kind,
            len(destination), len(group), len(producer), len(named), len(further), len(values), len(content),
            expires_at_ms, deliver_at_ms, sent_at_ms, thread_id, sequence,
        )
        # fmt: on
        return b"".join((head, destination, group, producer, named, further, values, content))
    except (TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
        raise MessageFormatException(f"the message cannot be encoded: {why_unencodable(error)}") from error


def unpack(data: bytes) -> Envelope:
    """Decode an envelope.

    Raises:
        MessageFormatException: they are not a packed envelope, or a field of it is of the wrong type or out of range;
            or the envelope is of a newer version.
    """
    return _unpack(data, True)


def unpack_headers(data: bytes) -> Envelope:
    """The envelope in these bytes without its body, as far as that can be left out.  Raises as :func:`unpack`."""
    return _unpack(data, False)


def unpack_properties(data: bytes) -> dict[str, Any]:
    """Decode the properties in these bytes of a packed envelope, as :func:`unpack` reads them.

    Raises:
        MessageFormatException: there are none in them.
    """
    try:
        properties = _unpacked_map(data, "properties")
        "".join(properties)  # raises TypeError for a name that is no str
    except _UNPACKING_ERRORS as error:
        raise MessageFormatException(f"not a packed envelope: {_why_not(error)}") from error
    return properties


def unpack_further(data: bytes) -> tuple[str | bytes | None, str | None]:
    """Return the correlation id and the type in the further headers of a packed envelope.

    Raises:
        MessageFormatException: there are no headers in these bytes.
    """
    try:
        correlation_id, _, message_type, _, _ = _further(data)
    except _UNPACKING_ERRORS as error:
        raise MessageFormatException(f"not a packed envelope: {_why_not(error)}") from error
    return correlation_id, message_type


def read_head(data: bytes) -> Head:
    """Decode what routes a message from its packed envelope, in the same time however large it is.

    Raises:
        MessageFormatException: this part is damaged; or the envelope is of a newer version, or none.
    """
    try:
        # fmt: off
        (
            octet, version, flags, priority, body_kind, form, destination_kind,
            name_bytes, group_bytes, producer_bytes, id_bytes, further_bytes, property_bytes, body_bytes,
            expires_at_ms, deliver_at_ms, _, thread_id, sequence,
        ) = _read_head(data)
        # fmt: on
        group = _HEAD_BYTES + name_bytes
        producer = group + group_bytes
        named = producer + producer_bytes
        body = named + id_bytes + further_bytes + property_bytes
        end = body + body_bytes
        if octet != ENVELOPE_OCTET or version != ENVELOPE_VERSION or end != len(data):
            _refuse(octet, version, end, len(data))
        if form not in _FORMS[body_kind]:
            _refuse_form(body_kind, form)
        identity = None
        if flags & _IDENTIFIED:
            if thread_id < 0 or sequence < 0:
                raise ValueError(_BELOW)
            identity = _new(Identity, (data[producer:named].decode(), thread_id, sequence))
        allowed = None
        if property_bytes and data.find(RESERVED_BYTES, body - property_bytes, body) >= 0:
            allowed = _allowed(data, body - property_bytes, body)
        name = data[_HEAD_BYTES:group]
        return _new(
            Head,
            (
                ENVELOPE_FORMAT,
                _destinations[destination_kind].get(name) or _new_destination(name, destination_kind),
                priority if priority < 10 else 9,
                flags & _PERSISTENT != 0,
                expires_at_ms if flags & _EXPIRES else None,
                deliver_at_ms if flags & _DELIVERED_LATER else None,
                data[group:producer].decode() if flags & _GROUPED else None,
                identity,
                allowed,
            ),
        )
    except _UNPACKING_ERRORS as error:
        raise MessageFormatException(f"not a packed envelope: {_why_not(error)}") from error


def may_expire(data: bytes) -> bool:
    """Return whether a packed envelope has an expiry, for a fraction of :func:`read_head`."""
    return len(data) > _FLAGS_AT and data[_FLAGS_AT] & _EXPIRES != 0


def without_reserved(envelope: Envelope) -> Envelope:
    """Return a message without properties that a client may not send; the same object where it has none such."""
    properties = envelope.properties
    if not properties or RESERVED.isdisjoint(properties):
        return envelope
    return envelope._replace(properties=_own(properties) or None)


def _own(properties: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name not in RESERVED}


def annotated(envelope: Envelope, annotations: dict[str, Any]) -> Envelope:
    """A message with the properties that its engine, and consumers that gave it back, have added."""
    envelope = envelope._replace(properties={**(envelope.properties or {}), **added_properties(annotations)})
    return envelope._replace(expires_at_ms=None) if is_set_aside(annotations) else envelope


def undecodable_dead_letter(
    payload: bytes, annotations: dict[str, Any], error: MessageFormatException, destination: Destination | None = None
) -> Envelope:
    """A dead letter that cannot be decoded, as a bytes message that can: a consumer may examine it, and accept it.

    Any other message that cannot be decoded is rejected, so that it becomes a dead letter.

    Args:
        payload: the message as it is stored.
        annotations: the properties that the engine has added.
        error: says why it cannot be decoded.
        destination: where it was received from, for one that does not say where it was when it became a dead letter.

    Raises:
        MessageFormatException: it is no dead letter; this is ``error``.
    """
    if DEAD_LETTER_REASON not in annotations:
        raise error
    name = annotations.get(DEAD_LETTER_QUEUE)
    kind = DestinationKind.TOPIC if DEAD_LETTER_SUBSCRIPTION in annotations else DestinationKind.QUEUE
    origin = Destination(str(name), kind) if name is not None else destination or Destination("")
    return Envelope(
        *(origin, BodyKind.BYTES, payload),
        properties={**added_properties(annotations), UNDECODABLE_PROPERTY: error.reason[:MAX_REASON]},
    )


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


#: The fields of the head by their codes in ``struct``, big-endian: for those who read many heads at once.
HEAD_FIELDS: tuple[tuple[str, str], ...] = (
    ("octet", "B"),
    ("version", "B"),
    ("flags", "B"),
    ("priority", "B"),
    ("body_kind", "B"),
    ("form", "B"),
    ("destination_kind", "B"),
    ("nothing", "x"),
    ("name_bytes", "I"),
    ("group_bytes", "I"),
    ("producer_bytes", "I"),
    ("id_bytes", "I"),
    ("further_bytes", "I"),
    ("property_bytes", "I"),
    ("body_bytes", "I"),
    ("expires_at_ms", "q"),
    ("deliver_at_ms", "q"),
    ("sent_at_ms", "q"),
    ("thread_id", "q"),
    ("sequence", "q"),
)
_HEAD = struct.Struct(f">{''.join(code for _, code in HEAD_FIELDS)}")
_HEAD_BYTES = _HEAD.size
_FLAGS_AT = [name for name, _ in HEAD_FIELDS].index("flags")
_PROPERTY_BYTES = [name for name, code in HEAD_FIELDS if code != "x"].index("property_bytes")
_pack_head = _HEAD.pack
_read_head = _HEAD.unpack_from


class HeadFlag(IntFlag):
    """Flags of the head."""

    PERSISTENT = 1
    EXPIRES = 2
    DELIVERED_LATER = 4
    IDENTIFIED = 8
    GROUPED = 16
    SENT = 32
    NAMED = 64


class BodyForm(IntEnum):
    """Forms of the body."""

    NONE = 0
    TEXT = 1
    BYTES = 2
    MSGPACK = 3


_PERSISTENT, _EXPIRES, _DELIVERED_LATER, _IDENTIFIED, _GROUPED, _SENT, _NAMED = map(int, HeadFlag)
_NO_BODY, _TEXT, _BYTES, _MSGPACK = map(int, BodyForm)
_BODY_KINDS = {int(kind): kind for kind in BodyKind}
#: The forms that a body of each kind may have, and the types that it may have in Python.
_FORMS: dict[int, tuple[int, ...]] = {
    BodyKind.NONE: (_NO_BODY, _TEXT, _BYTES, _MSGPACK),
    BodyKind.OBJECT: (_NO_BODY, _TEXT, _BYTES, _MSGPACK),
    BodyKind.MAP: (_NO_BODY, _MSGPACK),
    BodyKind.BYTES: (_NO_BODY, _BYTES),
    BodyKind.STREAM: (_NO_BODY, _MSGPACK),
    BodyKind.TEXT: (_NO_BODY, _TEXT),
}
_BODY_TYPES: dict[int, tuple[type, ...]] = {
    BodyKind.MAP: (dict, type(None)),
    BodyKind.BYTES: (bytes, type(None)),
    BodyKind.STREAM: (list, type(None)),
    BodyKind.TEXT: (str, type(None)),
}
_KINDS = {int(kind): kind for kind in DestinationKind}
_BELOW = "the thread or the sequence of its identity is below 0"
_UNPACKING_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    struct.error,
    msgpack.UnpackException,
    RecursionError,
)

#: Packers that are not in use now: making one costs half as much as packing, and each serves one message at a time.
#: One is taken even where only one thread packs, since the garbage collector may run anything in the middle of it.
_packers: list[msgpack.Packer] = []
#: The buffer of a packer.  One that had to grow beyond it keeps what it has for ever, so it is not used again.
_PACKER_BYTES = 256 * 1024

_LIMIT = 1 << 63
_NONE = type(None)
#: The further headers, and their types as msgpack brings them.
_HEADERS: dict[str, tuple[type, ...]] = {
    "corr": (str, bytes),
    "reply": (list,),
    "type": (str,),
    "seq": (int,),
    "user": (str,),
}
_NO_OTHERS = (None,) * len(_HEADERS)
_new = tuple.__new__  #: what ``_make`` calls, without counting the fields once more
#: Destinations by their kinds, and their names in UTF-8: most messages have one of few.
_destinations: dict[int, dict[bytes, Destination]] = {int(kind): {} for kind in DestinationKind}
_MOST_KNOWN = 10_000


def _packed(value: Any) -> bytes:
    """A value in msgpack; raises what :func:`pack` catches."""
    try:
        packer = _packers.pop()
    except IndexError:
        packer = msgpack.Packer(buf_size=_PACKER_BYTES)
    data: bytes = packer.pack(value)
    size = len(data)
    if size <= _PACKER_BYTES:
        _packers.append(packer)
    if size > UNCHECKED_BYTES:
        check(data)
    return data


def _unpacked_map(data: bytes, what: str) -> dict[str, Any]:
    """The headers or the properties in these bytes; raises what :func:`unpack` catches."""
    if len(data) > MAX_PROPERTIES and map_members(data) > MAX_PROPERTIES:
        raise ValueError(f"{map_members(data)} {what}, more than the limit of {MAX_PROPERTIES}")
    values = unpacked(data)
    if type(values) is not dict:
        raise ValueError(f"its {what} are a {type(values).__name__}")
    return values


def _allowed(data: bytes, begin: int, end: int) -> bytes | None:
    """A packed envelope without properties that a client may not send; its properties are between two places."""
    properties = _unpacked_map(data[begin:end], "properties")
    left = _own(properties)
    if len(left) == len(properties):
        return None
    packed = _packed(left) if left else b""
    head = list(_read_head(data))
    head[_PROPERTY_BYTES] = len(packed)
    return b"".join((_pack_head(*head), data[_HEAD_BYTES:begin], packed, data[end:]))


def _unpack(data: bytes, with_body: bool) -> Envelope:
    try:
        # fmt: off
        (
            octet, version, flags, priority, body_kind, form, destination_kind,
            name_bytes, group_bytes, producer_bytes, id_bytes, further_bytes, property_bytes, body_bytes,
            expires_at_ms, deliver_at_ms, sent_at_ms, thread_id, sequence,
        ) = _read_head(data)
        # fmt: on
        group = _HEAD_BYTES + name_bytes
        producer = group + group_bytes
        named = producer + producer_bytes
        further = named + id_bytes
        values = further + further_bytes
        start = values + property_bytes
        if octet != ENVELOPE_OCTET or version != ENVELOPE_VERSION or start + body_bytes != len(data):
            _refuse(octet, version, start + body_bytes, len(data))
        if form not in _FORMS[body_kind]:
            _refuse_form(body_kind, form)
        name = data[_HEAD_BYTES:group]
        properties = correlation_id = reply_to = message_type = group_sequence = user_id = None
        if property_bytes:
            properties = _unpacked_map(data[values:start], "properties")
            "".join(properties)  # raises TypeError for a name that is no str
        if further_bytes:
            correlation_id, reply_to, message_type, group_sequence, user_id = _further(data[further:values])
        identity = None
        if flags & _IDENTIFIED:
            if thread_id < 0 or sequence < 0:
                raise ValueError(_BELOW)
            identity = _new(Identity, (data[producer:named].decode(), thread_id, sequence))
        body: Any = None
        if with_body and form != _NO_BODY:
            if form == _TEXT:
                body = data[start:].decode()
            elif form == _BYTES:
                body = data[start:]
            else:
                body = unpacked(data[start:], strict_map_key=False)
                _check_body(body_kind, body)
        return _new(
            Envelope,
            (
                _destinations[destination_kind].get(name) or _new_destination(name, destination_kind),
                _BODY_KINDS[body_kind],
                body,
                properties,
                data[named:further].decode() if flags & _NAMED else None,
                correlation_id,
                reply_to,
                message_type,
                sent_at_ms if flags & _SENT else None,
                expires_at_ms if flags & _EXPIRES else None,
                deliver_at_ms if flags & _DELIVERED_LATER else None,
                priority if priority < 10 else 9,
                flags & _PERSISTENT != 0,
                data[group:producer].decode() if flags & _GROUPED else None,
                group_sequence,
                user_id,
                identity,
            ),
        )
    except _UNPACKING_ERRORS as error:
        raise MessageFormatException(f"not a packed envelope: {_why_not(error)}") from error


def _why_not(error: Exception) -> str:
    """Why bytes are no packed envelope, from one of ``_UNPACKING_ERRORS``."""
    return f"the kind {error} of its body or of a destination is unknown" if type(error) is KeyError else str(error)


def _refuse_form(kind: int, form: int) -> None:
    raise ValueError(f"a body of kind {BodyKind(kind).name} does not have the form {form}")


def _check_body(kind: int, body: Any) -> None:
    """Whether a body has the type of its kind, and does not nest too deep."""
    types = _BODY_TYPES.get(kind)
    if types is not None and type(body) not in types:
        raise ValueError(f"its body of kind {BodyKind(kind).name} is a {type(body).__name__}")
    if type(body) is list or type(body) is dict:
        check_depth(body, MAX_BODY_DEPTH)


def _refuse(octet: int, version: int, announced: int, size: int) -> None:
    if octet != ENVELOPE_OCTET:
        raise ValueError(f"it begins with octet 0x{octet:02x}")
    if version > ENVELOPE_VERSION:
        raise ValueError(
            f"it has version {version} of our format, and this software knows versions up to {ENVELOPE_VERSION}:"
            " upgrade it"
        )
    if version < ENVELOPE_VERSION:
        raise ValueError(f"there is no version {version} of our format")
    raise ValueError(f"its head announces {announced} bytes, and it has {size}")


def _further(data: bytes) -> list[Any]:
    """The further headers that are known, in the order of ``_HEADERS``; None where there is none."""
    headers = _unpacked_map(data, "headers")
    known: list[Any] = []
    for key, types in _HEADERS.items():
        value = headers.get(key)
        if value is not None:
            if type(value) not in types:
                raise ValueError(f"its header {key!r} is a {type(value).__name__}")
            if key == "reply":
                value = _destination(*value)
        known.append(value)
    return known


def _new_destination(name: bytes, kind: int) -> Destination:
    """A destination by its name in UTF-8, that was not among the known ones."""
    destination = Destination(name.decode(), _KINDS[kind])
    if len(name) <= MAX_NAME_BYTES:
        known = _destinations[kind]
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known[name] = destination
    return destination


def _destination(name: Any, kind: Any) -> Destination:
    if type(name) is not str:
        raise ValueError(f"the name of a destination is a {type(name).__name__}")
    return Destination(name, _KINDS[kind])
