"""The bytes that come in at a peer: each frame is checked before it reaches proton.

proton decodes with C recursion, and a remote peer must not choose its depth: what a performative may hold is limited by
:mod:`broker_adapter.amqp.messages.values`.  And proton trusts its peer with channels and handles, and is left with
memory freed twice where it should not: which frames may come is a matter of
:mod:`broker_adapter.amqp.proton_engine.frames`.

The payload of a large frame that comes in is kept here, and proton gets the frame without it, since proton never frees
the buffer of a delivery as long as the connection lives.

A few bytes may settle all that was ever sent.  What stands behind a disposition that settles many deliveries waits
until ``events()`` has reported them, which it does in parts (``PeerLimits.settled_at_once``).
"""

from __future__ import annotations

import sys
from typing import Any, Final

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.messages.values import TypedReader
from broker_adapter.amqp.proton_engine import frames
from broker_adapter.amqp.proton_engine.connection import ProtonConnection
from broker_adapter.amqp.proton_engine.dispositions import LIGHT_BYTES, annotations_of, bare_frame, too_costly
from broker_adapter.amqp.proton_engine.event_reader import EventReader
from broker_adapter.amqp.proton_engine.frames import disposed, has_no_array, long_list
from broker_adapter.amqp.proton_engine.incoming import IncomingTransfers
from broker_adapter.settings import KIB

#: A transfer, or a disposition, of fewer bytes is read field by field.
_LEAST_TRANSFER_BYTES: Final = 24
_LEAST_DISPOSITION_BYTES: Final = 20
#: Type code of a list in its short form, and the bytes that it has at most.
_SHORT_LIST: Final = 0xC0
_SHORT_BYTES: Final = 256
#: A frame of more bytes goes to proton without its payload.
_LARGE_FRAME_BYTES: Final = 32 * KIB
#: Most bytes of frames that proton gets before its events are taken: what they bring stays in its buffers until then.
_PUSHED_BYTES: Final = 64 * KIB


class FrameInput:
    """What came from the network and is not yet a whole frame."""

    def __init__(
        self,
        connection: ProtonConnection,
        rules: frames.FrameRules,
        incoming: IncomingTransfers,
        events: EventReader,
    ) -> None:
        """Nothing has come.

        Args:
            connection: proton's objects.
            rules: which frames may come.
            incoming: takes the payload of large frames.
            events: takes what proton makes of the frames.
        """
        self._connection = connection
        self._rules = rules
        self._incoming = incoming
        self._push = connection.push
        self._take_events = events.take_events
        self._events = events
        self._disposed = events.disposed
        self._most_settled = connection.limits.settled_at_once or sys.maxsize
        self._bare_states = connection.limits.bare_states
        #: The fields of a disposition of fewer bytes are not read one by one.
        self._light_bytes = LIGHT_BYTES if self._bare_states else _SHORT_BYTES
        self._settled = 0  # deliveries of the ranges of the input under way, but for one of each
        self.settles_first = False  #: whether what is held waits until it was told what the input ahead of it settled
        self._header_seen = False
        self._held = bytearray()
        self._wanted_bytes = 8
        self._pushed = 0  # how much of the input under way proton has got
        self._begun = False  # whether a begin came in that may not be answered yet
        self._end_waits = False  # whether what is held starts with the end of such a session

    def receive(self, data: bytes) -> None:
        """Take bytes from the network; ``events()`` tells what they meant.  Never raises for their content."""
        connection = self._connection
        if connection.failure is not None or connection.tail_closed:
            return
        if self.settles_first or self._events.has_more:
            self.settles_first = True
            self._held += data
            return
        if self._held:
            if self._end_waits or len(self._held) + len(data) < self._wanted_bytes:
                self._held += data
                return
            data = b"".join((self._held, data))
            self._held.clear()
        self._take(data)

    def receive_end(self) -> None:
        """The network will bring no more bytes."""
        if not self._connection.tail_closed:
            self._connection.close_tail()

    def take_held(self) -> None:
        """Our open was said: take what had to wait for it."""
        if self._end_waits:
            self._answer_begins()
            data = bytes(self._held)
            self._held.clear()
            if self._connection.failure is None and not self._connection.tail_closed:
                self._take(data)

    def go_on(self) -> None:
        """Take what had to wait until ``events()`` has told of the dispositions ahead of it."""
        if self.settles_first and not self._events.has_more:
            self.settles_first = False
            data = bytes(self._held)
            self._held.clear()
            if data:
                self.receive(data)

    def _take(self, data: bytes) -> None:
        """Take what came, which starts with a frame."""
        connection = self._connection
        self._settled = 0
        while True:
            self._pushed = 0
            whole, objection = self._whole_frames(data)
            self._push(data, self._pushed, whole)
            if objection is not None:
                connection.fail(objection)
                return
            if connection.failure is not None or whole == len(data):
                return
            if self._settled > self._most_settled:
                self.settles_first = True
                self._held += data[whole:]
                return
            if not (self._end_waits and connection.opened):
                self._held += data[whole:]
                return
            # Let proton write our begins; then the rest can be taken, which starts with the end of a session.
            self._answer_begins()
            data = data[whole:]

    def _answer_begins(self) -> None:
        """Let proton write our begins, so that the end of a session can be taken."""
        self._take_events()
        self._connection.engine.pn_transport_pending(self._connection.c_transport)
        self._begun = self._end_waits = False

    def _whole_frames(self, data: bytes) -> tuple[int, AmqpError | None]:
        """Return how many of these bytes are whole frames fit for proton, and what is wrong with the next one, if
        anything.

        Large frames, and what stands before them, are given to proton at once.
        """
        end = len(data)
        position = 0
        if not self._header_seen:
            if not data.startswith(frames.AMQP_HEADER[:end]):
                # proton, too, must see bytes that are no header, to answer them; not a SASL one, which it knows.
                self._push(bytes(8), 0, 8)
                reason = f"expected the header of AMQP 1.0, got {data[:8]!r}"
                return 0, AmqpError("amqp:connection:framing-error", reason)
            if end < 8:
                self._wanted_bytes = 8
                return 0, None
            self._header_seen = True
            position = 8
        limit = self._connection.limits.max_frame_bytes
        sending, disposing = self._rules.sending, self._rules.disposing
        most = self._pushed + _PUSHED_BYTES
        light_bytes = self._light_bytes
        while end - position >= 8:
            size = int.from_bytes(data[position : position + 4])
            if size > limit:
                reason = f"frame of {size} bytes is larger than the limit of {limit} bytes"
                return position, AmqpError("amqp:connection:framing-error", reason)
            after = position + size
            if after > end:
                self._wanted_bytes = size
                return position, None
            head = data[position + 4 : position + 12]
            handles = sending.get(head)
            if handles is not None:
                # A transfer.  Without a state (its eighth field) it has nothing that nests.
                if size < _LEAST_TRANSFER_BYTES:
                    first = stop = after
                    count = 0
                elif head[7] == _SHORT_LIST:
                    count, first, stop = data[position + 13], position + 14, position + 13 + data[position + 12]
                else:
                    count, first, stop = long_list(data, position + 12)
                if first + 4 < stop <= after:
                    kind = data[first]
                    if kind == 0x52:
                        handle = data[first + 1]
                    elif kind == 0x70:
                        handle = int.from_bytes(data[first + 1 : first + 5])
                    else:
                        handle = 0 if kind == 0x43 else -1
                    if handle in handles and (
                        0 < count <= 7 or (count < _SHORT_BYTES > stop - first and has_no_array(data, first, stop))
                    ):
                        if after > most:
                            self._push_apart(data, position, stop, after)
                            most = after + _PUSHED_BYTES
                        position = after
                        continue
            elif head in disposing and size >= _LEAST_DISPOSITION_BYTES:
                if head[7] == _SHORT_LIST:
                    count, first, stop = data[position + 13], position + 14, position + 13 + data[position + 12]
                else:
                    count, first, stop = long_list(data, position + 12)
                which = None
                if stop <= after and stop - first < light_bytes > count:
                    which = disposed(data[first:stop])
                    if which is not None and stop - first >= LIGHT_BYTES and which[1] != which[2]:
                        which = None  # such a state costs for each delivery
                if which is not None:
                    most = self._tell_earlier(data, position, most, *which)
                    if self._connection.failure is not None:
                        return position, None
                    position = after
                    if which[1] != which[2]:
                        self._settled += which[2] - which[1] & 0xFFFFFFFF
                        if self._settled > self._most_settled:
                            return position, None
                    continue
            try:
                read = self._rules.read(data, position, after)
                if read is not None:
                    code, channel, values, stop = read
                    if code == frames.END and self._begun:
                        # proton would answer a begin after its end as if the session was a new one of ours, and
                        # never stop.
                        self._end_waits = True
                        return position, None
                    self._rules.apply(code, channel, values, size)
                    if code == frames.DISPOSITION:
                        role, first, last, _, state = values[:5]
                        last = first if last is None else last
                        refusal = too_costly(state, size, first, last)
                        if refusal is not None:
                            return position, refusal
                        most = self._tell_earlier(data, position, most, role, first, last)
                        if self._connection.failure is not None:
                            return position, None
                        if self._bare_states:
                            self._push(data, self._pushed, position)
                            bare = bare_frame(channel, values, self._keep_annotations(data, position, after, state))
                            self._push(bare, 0, len(bare))
                            self._pushed = after
                        self._settled += last - first & 0xFFFFFFFF
                        if self._settled > self._most_settled:
                            return after, None
                    self._begun = self._begun or code == frames.BEGIN
                    if code == frames.TRANSFER and after > most:
                        self._push_apart(data, position, stop, after)
                        most = after + _PUSHED_BYTES
                        if self._connection.failure is not None:
                            return after, None
            except frames.FrameError as error:
                return position, error.error
            position = after
        self._wanted_bytes = 8
        return position, None

    def _keep_annotations(self, data: bytes, position: int, end: int, state: Any) -> int:
        """Keep the annotations of a disposition's state until its deliveries are told of; returns their number."""
        if not annotations_of(state):
            return 0
        read = self._rules.read(data, position, end, TypedReader)
        return 0 if read is None else self._connection.keep_annotations(annotations_of(read[2][4]) or {})

    def _tell_earlier(self, data: bytes, position: int, most: int, role: bool, first: int, last: int) -> int:
        """Let proton tell of earlier dispositions of this input, where one may be about deliveries of theirs, too.

        proton keeps the last state of a delivery, also where an earlier one has settled it, and what comes after that
        is not about it (AMQP 1.0 section 2.6.12).

        Args:
            data: the input.
            position: where the frame of the disposition starts.
            most: how far proton may get input at once.
            role: of the disposition.
            first: the first delivery that it is about.
            last: the last one.

        Returns:
            how far proton may get input at once, from now on.
        """
        key = data[position + 6 : position + 8], role
        through = self._disposed.get(key)
        if through is not None and first <= through:
            self._push(data, self._pushed, position)
            self._take_events()
            self._pushed = position
            most = position + _PUSHED_BYTES
        self._disposed[key] = last
        return most

    def _push_apart(self, data: bytes, position: int, payload: int, end: int) -> None:
        """Give proton what it has not got of this input, up to and with this transfer, and take what comes of it.

        Args:
            data: the input.
            position: where the transfer starts.
            payload: where its payload starts.
            end: where it ends.
        """
        if end - position <= _LARGE_FRAME_BYTES:
            self._push(data, self._pushed, end)
        else:
            self._push(data, self._pushed, position)
            self._take_events()
            bare = (payload - position).to_bytes(4) + data[position + 4 : payload]
            self._push(bare, 0, len(bare))
            self._incoming.payload = data[payload:end]
        self._take_events()
        self._incoming.payload = b""
        self._pushed = end

    def release(self) -> None:
        """Nothing is taken any more: the connection is released."""
        self._held.clear()
        self.settles_first = self._events.has_more = False
