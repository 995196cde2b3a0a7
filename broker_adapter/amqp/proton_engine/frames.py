"""Which frames a peer may send: the rules that hold before proton sees a frame.  Pure.

Theory of operation
    proton does not verify channels and handles: a ``begin`` on a channel that is in use, or one that answers the same
    session twice, gives one session two owners, whose memory is freed twice.  So this module also keeps the channels
    and handles that the other side has in use, and a frame that does not fit them fails the connection without
    reaching proton.

    ``check`` reads the fields that matter here in exactly the types that AMQP gives them.  proton reads a field of any
    other type as its default, so a frame that was read in two ways would be a way past these rules.

    Transfers and dispositions, of which there are many, are told by their first octets: ``sending`` and ``disposing``
    are kept up to date for that, and hold the first octets of such frames on each channel that is in use, with the list
    of their fields in its short form and in its long one, which Qpid JMS uses for a list with a state in it.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import attrs

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.messages.values import Described, Reader

OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18
_NAMES: Final = {
    OPEN: "open",
    BEGIN: "begin",
    ATTACH: "attach",
    FLOW: "flow",
    TRANSFER: "transfer",
    DISPOSITION: "disposition",
    DETACH: "detach",
    END: "end",
    CLOSE: "close",
}

#: What the AMQP layer begins with, ahead of the first frame.
AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
#: Octets of a frame ahead of its body.
FRAME_HEADER_BYTES: Final = 8
#: Most values in the performative of one frame.
_MAX_FRAME_VALUES: Final = 20_000
#: Largest performative, in bytes; the payload of a transfer does not count.
MAX_PERFORMATIVE_BYTES: Final = 256 * 1024
#: Greatest handle that proton announces and takes.
_MAX_HANDLE: Final = 0x7FFFFFFF

_NULL: Final = 0x40
_BOOLEAN: Final = frozenset((0x41, 0x42, 0x56))
_UBYTE: Final = frozenset((0x50,))
_USHORT: Final = frozenset((0x60,))
_UINT: Final = frozenset((0x43, 0x52, 0x70))
_STRING: Final = frozenset((0xA1, 0xB1))
_BINARY: Final = frozenset((0xA0, 0xB0))
_ANY: Final = frozenset(range(256))

#: The first fields of each performative: the type codes that they may have, and whether they must be there.
_FIELDS: Final[dict[int, tuple[tuple[str, frozenset[int], bool], ...]]] = {
    OPEN: (
        ("container-id", _STRING, True),
        ("hostname", _STRING, False),
        ("max-frame-size", _UINT, False),
        ("channel-max", _USHORT, False),
        ("idle-time-out", _UINT, False),
    ),
    BEGIN: (
        ("remote-channel", _USHORT, False),
        ("next-outgoing-id", _UINT, False),
        ("incoming-window", _UINT, False),
        ("outgoing-window", _UINT, False),
        ("handle-max", _UINT, False),
    ),
    ATTACH: (
        ("name", _STRING, True),
        ("handle", _UINT, True),
        ("role", _BOOLEAN, True),
        ("snd-settle-mode", _UBYTE, False),
        ("rcv-settle-mode", _UBYTE, False),
    ),
    FLOW: (
        ("next-incoming-id", _UINT, False),
        ("incoming-window", _UINT, False),
        ("next-outgoing-id", _UINT, False),
        ("outgoing-window", _UINT, False),
        ("handle", _UINT, False),
        ("delivery-count", _UINT, False),
        ("link-credit", _UINT, False),
        ("available", _UINT, False),
        ("drain", _BOOLEAN, False),
        ("echo", _BOOLEAN, False),
    ),
    TRANSFER: (
        ("handle", _UINT, True),
        ("delivery-id", _UINT, False),
        ("delivery-tag", _BINARY, False),
        ("message-format", _UINT, False),
        ("settled", _BOOLEAN, False),
        ("more", _BOOLEAN, False),
        ("rcv-settle-mode", _UBYTE, False),
        ("state", _ANY, False),
        ("resume", _BOOLEAN, False),
        ("aborted", _BOOLEAN, False),
        ("batchable", _BOOLEAN, False),
    ),
    DISPOSITION: (
        ("role", _BOOLEAN, True),
        ("first", _UINT, True),
        ("last", _UINT, False),
        ("settled", _BOOLEAN, False),
        ("state", _ANY, False),
        ("batchable", _BOOLEAN, False),
    ),
    DETACH: (("handle", _UINT, True), ("closed", _BOOLEAN, False)),
    END: (),
    CLOSE: (),
}
_HANDLE_OF_FLOW: Final = 4
_DRAIN_OF_FLOW: Final = 8
#: Fields whose text proton gives as a C string, which ends at a NUL: of the performative, or the address of a terminus.
_NAMED: Final = {OPEN: {0: "container-id", 1: "hostname"}, ATTACH: {0: "name", 5: "source", 6: "target"}}


class FrameError(ValueError):
    """A frame that the other side may not send.  ``condition``: what it is told."""

    def __init__(self, condition: str, reason: str) -> None:
        super().__init__(reason)
        self.condition = condition

    @property
    def error(self) -> AmqpError:
        """What the other side is told."""
        return AmqpError(self.condition, str(self))


@attrs.define(eq=False)
class _Channel:
    """A channel on which the other side has begun a session."""

    handles: set[int] = attrs.field(factory=set)  #: all that are attached
    sending: set[int] = attrs.field(factory=set)  #: those of links on which the other side sends


class FrameRules:
    """What the other side of a connection has in use, and so may send.

    Attributes:
        sending: first octets of a transfer on a channel → handles of its links on which the other side sends.
        disposing: first octets of a disposition on each channel.
        attaches: size, and channel and handle, of the attaches that were let through, in order, until they are taken.
        drains: channel and handle of links of which it wants the credit used up or back, until they are taken.
        closed: whether it has closed the connection.
    """

    def __init__(self, *, max_sessions: int, max_links: int) -> None:
        """The rules for a connection on which nothing has come yet.

        Args:
            max_sessions: sessions that the other side may have begun; their channels are below it.
            max_links: links that it may have attached, in all sessions together, beside its answers to ours.
        """
        self._max_sessions = max_sessions
        self._max_links = max_links
        self._max_answers = 0
        self._opened = False
        self.closed = False
        self._channels: dict[int, _Channel] = {}
        self._unanswered: set[int] = set()
        self._links = 0
        self.sending: dict[bytes, set[int]] = {}
        self.disposing: set[bytes] = set()
        self.attaches: deque[tuple[int, tuple[int, int]]] = deque()
        self.drains: set[tuple[int, int]] = set()

    def __repr__(self) -> str:
        return f"<FrameRules channels={sorted(self._channels)} links={self._links} unanswered={self._unanswered}>"

    def attached(self, links: int) -> None:
        """We have attached so many links, all of which the other side answers by an ``attach`` of its own."""
        self._max_answers = max(self._max_answers, links)

    def begun(self, channel: int) -> None:
        """We have sent a ``begin`` on this channel of ours, which the other side may answer once."""
        self._unanswered.add(channel)

    def check(self, data: bytes, start: int, end: int) -> int | None:
        """Check a whole frame, and take note of what it does.

        Args:
            data: bytes that hold the frame.
            start: where it starts.
            end: where it ends.

        Returns:
            the code of its performative; None for an empty frame.

        Raises:
            FrameError: the other side may not send it, or not now.
        """
        read = self.read(data, start, end)
        if read is None:
            return None
        code, channel, values, _ = read
        self.apply(code, channel, values, end - start)
        return code

    def read(
        self, data: bytes, start: int, end: int, reader_of: type[Reader] = Reader
    ) -> tuple[int, int, list[Any], int] | None:
        """The performative of a whole frame: its code, its channel, its first fields, and where it ends.

        Args:
            data: bytes that hold the frame.
            start: where it starts.
            end: where it ends.
            reader_of: reads the fields.

        Returns:
            these, or None for an empty frame.

        Raises:
            FrameError: it is malformed.
        """
        size = end - start
        body = start + 4 * data[start + 4] if size >= FRAME_HEADER_BYTES else end + 1
        if body < start + FRAME_HEADER_BYTES or body > end:
            raise FrameError("amqp:connection:framing-error", f"malformed frame of {size} bytes")
        if data[start + 5] != 0:
            raise FrameError("amqp:connection:framing-error", f"frame of the unknown type {data[start + 5]}")
        if body == end:
            return None
        channel = int.from_bytes(data[start + 6 : start + 8])
        try:
            code, values, stop = _performative(data, body, end, reader_of)
        except FrameError:
            raise
        except (ValueError, IndexError) as error:
            raise FrameError("amqp:decode-error", f"malformed frame: {error}") from error
        return code, channel, values, stop

    def apply(self, code: int, channel: int, values: list[Any], size: int = 0) -> None:
        """Check a performative against what the other side has in use, and take note of what it does.

        Args:
            code: of the performative.
            channel: the frame's.
            values: its first fields, as ``read`` returns them.
            size: of the frame, in bytes.

        Raises:
            FrameError: the other side may not send it now.
        """
        if code == OPEN:
            self._open(channel)
            return
        if not self._opened:
            raise FrameError("amqp:illegal-state", f"expected an open frame first, got {_NAMES[code]}")
        if self.closed:
            raise FrameError("amqp:illegal-state", f"{_NAMES[code]} after the close of the connection")
        if code == BEGIN:
            self._begin(channel, values)
            return
        if code == CLOSE:
            self.closed = True
            self.sending.clear()
            self.disposing.clear()
            return
        found = self._channels.get(channel)
        if found is None:
            raise FrameError("amqp:illegal-state", f"{_NAMES[code]} on channel {channel}, which has no session")
        if code == ATTACH:
            self._attach(channel, found, values, size)
        elif code == DETACH:
            self._attached(channel, found, values[0], code)
            found.handles.discard(values[0])
            found.sending.discard(values[0])
            self._links -= 1
        elif code == FLOW:
            if values[_HANDLE_OF_FLOW] is not None:
                self._attached(channel, found, values[_HANDLE_OF_FLOW], code)
                if values[_DRAIN_OF_FLOW]:
                    self.drains.add((channel, values[_HANDLE_OF_FLOW]))
        elif code == TRANSFER:
            handle = values[0]
            self._attached(channel, found, handle, code)
            if handle not in found.sending:
                reason = f"transfer on handle {handle} of channel {channel}, on whose link the other side receives"
                raise FrameError("amqp:not-allowed", reason)
        elif code == END:
            self._links -= len(found.handles)
            del self._channels[channel]
            for octets in _first_octets(channel, TRANSFER):
                del self.sending[octets]
            self.disposing.difference_update(_first_octets(channel, DISPOSITION))

    def _open(self, channel: int) -> None:
        if self._opened:
            raise FrameError("amqp:illegal-state", "a second open frame")
        if channel != 0:
            raise FrameError("amqp:connection:framing-error", f"open frame on channel {channel}; it belongs on 0")
        self._opened = True

    def _begin(self, channel: int, values: list[Any]) -> None:
        if channel >= self._max_sessions:
            most = self._max_sessions - 1
            raise FrameError(
                "amqp:connection:framing-error", f"begin on channel {channel}, above the greatest channel, {most}"
            )
        if channel in self._channels:
            raise FrameError("amqp:illegal-state", f"begin on channel {channel}, which has a session already")
        answered = values[0]
        if answered is not None:
            if answered not in self._unanswered:
                reason = f"begin on channel {channel} answers channel {answered}, where no session waits for an answer"
                raise FrameError("amqp:invalid-field", reason)
            self._unanswered.discard(answered)
        found = self._channels[channel] = _Channel()
        self.sending.update(dict.fromkeys(_first_octets(channel, TRANSFER), found.sending))
        self.disposing.update(_first_octets(channel, DISPOSITION))

    def _attach(self, channel: int, found: _Channel, values: list[Any], size: int) -> None:
        _, handle, receives = values[:3]
        if handle > _MAX_HANDLE:
            raise FrameError(
                "amqp:connection:framing-error", f"attach with handle {handle}, above the greatest, {_MAX_HANDLE}"
            )
        if handle in found.handles:
            reason = f"attach with handle {handle}, which channel {channel} has in use"
            raise FrameError("amqp:session:handle-in-use", reason)
        if self._links >= self._max_links + self._max_answers:
            raise FrameError("amqp:resource-limit-exceeded", f"more links than the limit of {self._max_links}")
        self._links += 1
        found.handles.add(handle)
        if not receives:
            found.sending.add(handle)
        self.attaches.append((size, (channel, handle)))
        self.drains.discard((channel, handle))

    @staticmethod
    def _attached(channel: int, found: _Channel, handle: int, code: int) -> None:
        if handle not in found.handles:
            reason = f"{_NAMES[code]} with handle {handle}, which is not attached on channel {channel}"
            raise FrameError("amqp:session:unattached-handle", reason)


def _first_octets(channel: int, code: int) -> tuple[bytes, bytes]:
    """Octets 4 to 11 of a frame without an extended header, whose performative is a list in its short or long form."""
    octets = b"\x02\x00" + channel.to_bytes(2) + bytes((0x00, 0x53, code))
    return octets + b"\xc0", octets + b"\xd0"


def _performative(data: bytes, start: int, end: int, reader_of: type[Reader]) -> tuple[int, list[Any], int]:
    """The code of a performative, its first fields (those that are missing are None), and where it ends.

    Raises:
        FrameError: it is none that there is, or too large.
        ValueError: it is malformed.
    """
    if data[start] != 0x00:
        raise ValueError("the performative is not a described value")
    kind = data[start + 1]
    if kind == 0x53:
        code, position = data[start + 2], start + 3
    elif kind == 0x80:
        code, position = int.from_bytes(data[start + 2 : start + 10]), start + 10
    else:
        raise ValueError(f"the descriptor of the performative has type 0x{kind:02x}")
    expected = _FIELDS.get(code)
    if expected is None:
        raise FrameError("amqp:not-implemented", f"unknown performative 0x{code:x}")
    form = data[position]
    if form == 0x45:
        count, position, stop = 0, position + 1, position + 1
    elif form == 0xC0:
        count, stop = data[position + 2], position + 2 + data[position + 1]
        position += 3
    elif form == 0xD0:
        count = int.from_bytes(data[position + 5 : position + 9])
        stop = position + 5 + int.from_bytes(data[position + 1 : position + 5])
        position += 9
    else:
        raise ValueError(f"the performative is of type 0x{form:02x}, not a list")
    if stop > end or position > stop:
        raise ValueError("the performative does not fit into its frame")
    if stop - start > MAX_PERFORMATIVE_BYTES:
        raise FrameError(
            "amqp:resource-limit-exceeded",
            f"performative of {stop - start} bytes is larger than the limit of {MAX_PERFORMATIVE_BYTES} bytes",
        )
    reader = reader_of(data, position, stop, _MAX_FRAME_VALUES)
    named = _NAMED.get(code, {})
    values: list[Any] = []
    for index in range(count):
        kind = data[reader.position] if reader.position < stop else _NULL
        value = reader.value()
        if index in named and _has_nul(value):
            reason = f"field {named[index]} of {_NAMES[code]} has the character NUL, which no name may have"
            raise FrameError("amqp:invalid-field", reason)
        if index < len(expected):
            name, kinds, needed = expected[index]
            if kind not in kinds and (needed or kind != _NULL):
                raise ValueError(f"field {name} of {_NAMES[code]} has type 0x{kind:02x}")
            values.append(value)
    if reader.position != stop:
        raise ValueError(f"{stop - reader.position} bytes are left over in the performative")
    for name, _, needed in expected[count:]:
        if needed:
            raise ValueError(f"{_NAMES[code]} has no {name}")
        values.append(None)
    return code, values, stop


def _has_nul(value: Any) -> bool:
    """Return whether a name, or the address of a terminus, has the character NUL."""
    if isinstance(value, Described):
        value = value.value[0] if isinstance(value.value, list) and value.value else None
    return isinstance(value, str) and "\0" in value


# Frames that are told by their octets.


def disposed(fields: bytes) -> tuple[bool, int, int] | None:
    """Role, first and last delivery of a disposition with these fields.

    None where they are something else, or may have an array, whose values need no bytes.
    """
    if 0xE0 in fields or 0xF0 in fields:
        return None
    role = _ROLES.get(fields[:1])
    if role is not None and len(fields) > 6 and fields[1] == 0x70 and fields[6] == 0x40:
        # One delivery, as proton writes it.
        only = int.from_bytes(fields[2:6])
        return role, only, only
    position = 1
    if role is None:
        role = _ROLES.get(fields[:2])
        position = 2
    first, position = _uint(fields, position)
    has_last = position < len(fields) and fields[position] != 0x40
    last, _ = _uint(fields, position) if has_last else (first, position)
    return None if role is None or first is None or last is None else (role, first, last)


#: What a boolean may be encoded as.
_ROLES: Final = {b"\x41": True, b"\x42": False, b"\x56\x01": True, b"\x56\x00": False}


def _uint(fields: bytes, position: int) -> tuple[int | None, int]:
    """A field that is a uint, and where the next one starts; None where it is something else."""
    kind = fields[position : position + 1]
    if kind == b"\x43":
        return 0, position + 1
    size = _UINT_BYTES.get(kind, 0)
    value = fields[position + 1 : position + 1 + size]
    return (int.from_bytes(value) if size and len(value) == size else None), position + 1 + size


#: Bytes of a uint by what is ahead of it.
_UINT_BYTES: Final = {b"\x52": 1, b"\x70": 4}


def long_list(data: bytes, position: int) -> tuple[int, int, int]:
    """Of a list in its long form, whose size is here: how many values it has, where the first one begins, its end."""
    size, count = _long_list(data, position)
    return count, position + 8, position + 4 + size


_long_list: Final = struct.Struct(">II").unpack_from


def has_no_array(data: bytes, start: int, end: int) -> bool:
    """Return whether a performative of few bytes cannot stand for much: only an array has values without bytes."""
    body = data[start:end]
    return 0xE0 not in body and 0xF0 not in body


def begins(data: bytes) -> Iterator[int]:
    """The channels of the begins in whole frames of proton's that answer none of the peer's."""
    position = len(AMQP_HEADER) if data.startswith(AMQP_HEADER) else 0
    while position < len(data):
        # A list in its short form, whose first field, the channel that is answered, is null.
        if data.startswith(b"\x00\x53\x11\xc0", position + 8) and data[position + 14] == 0x40:
            yield int.from_bytes(data[position + 6 : position + 8])
        position += int.from_bytes(data[position : position + 4])
