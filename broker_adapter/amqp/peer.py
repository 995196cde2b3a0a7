"""One end of an AMQP 1.0 connection: bytes in, events out; no sockets, threads or clock.

Theory of operation
    ``receive(data)`` takes what came from the network, ``events()`` returns what it meant, ``pending_output()``
    returns what is to be sent.  All calls of one peer must come from one thread.  The same class serves both
    ends; the SASL layer stands in front of it on the byte stream.

    The AMQP work is done by proton's C engine.  Connections, sessions and links are made with proton's public
    Python classes.  What happens per message (transfers, dispositions, the event pump) calls the C functions
    below them, which costs a tenth; ``PublicEngine`` offers the same functions on the public classes.

    Sessions, links and deliveries have numbers that are never reused within a peer.  A delivery is named by its
    link and number; the C object behind it is held in its link's tables from the moment it is known until it is
    settled, and is never touched after that.

    Incoming deliveries are taken out of proton's buffers at once, so a consumer that settles late does not close the
    session's window for the others.  A delivery of several frames is handed out when it is complete.

    proton never frees the buffer of a delivery, nor makes it smaller, as long as the connection lives.  So what is
    large does not go through these buffers as a whole: the payload of a large frame that comes in is kept here, and
    proton gets the frame without it; a large message that goes out is given to proton in parts, as its session's
    window takes them, and the messages behind it on its link wait here.  Where a link ends before all of that is
    written, ``withdraw`` and ``SessionRemoteClose`` tell what the peer has not got as a whole.

    A message that breaks a limit of its link (size, credit) is not handed out, and closes the link.  Neither is what
    follows it on that link, since its sender could not know yet.  ``Dropped`` tells of them, with the transactions
    that they name; each is settled with a state: rejected, but what a client has only behind such a message is
    released, so that its broker delivers it again.

    Before bytes reach proton, each frame is looked at.  proton decodes with C recursion, and a stranger must not
    choose its depth: what a performative may hold is limited by :mod:`broker_adapter.amqp.values`.  And proton trusts
    its peer with channels and handles, and is left with memory freed twice where it should not: which frames may come
    is a matter of :mod:`broker_adapter.amqp.frames`.

    proton writes ``message-format`` 0 into every transfer and shows none that it reads.  So the payload names its
    format itself, by its first octet: see :func:`broker_adapter.amqp.payloads.format_of`.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import attrs
import proton
from cproton_ffi import ffi, lib

from broker_adapter.amqp import frames
from broker_adapter.amqp.buffers import SMALL_BYTES, DeliveryBuffers
from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    PLAIN_STATES,
    RECEIVED,
    REJECTED,
    RELEASED_STATE,
    TRANSACTIONAL,
    Dispositions,
    Dropped,
    Event,
    Incoming,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
    RemoteClose,
    RemoteOpen,
    SessionRemoteClose,
    SessionRemoteOpen,
    State,
    Terminus,
    Transfers,
    TransportFailed,
)
from broker_adapter.amqp.frames import begins, disposed, has_no_array
from broker_adapter.amqp.proton_memory import (
    MAX_DESCRIPTION,
    c_text,
    read_condition,
    read_disposition,
    read_mapping,
    read_names,
    read_terminus,
    text_at,
    text_bytes,
    words_of,
    write_condition,
    write_disposition,
    write_mapping,
    write_names,
    write_terminus,
)
from broker_adapter.amqp.public_engine import PublicEngine, wrap_link, wrap_session
from broker_adapter.errors import IllegalStateException, MessageFormatException, ResourceAllocationException
from broker_adapter.settings import GIB, KIB, MIB

_log = logging.getLogger(f"holdfast.{__name__}")


@attrs.frozen(kw_only=True)
class PeerLimits:
    """What a peer accepts from the other side."""

    max_frame_bytes: int = MIB
    max_message_bytes: int = GIB
    max_unfinished_bytes: int = GIB  #: of all messages together of which only a part has come
    max_sessions: int = 256
    max_links: int = 1024  #: of all sessions together
    idle_timeout_ms: int = 60_000  #: 0: none


@attrs.define(eq=False)
class _Session:
    number: int
    endpoint: Any
    links: dict[int, _Link] = attrs.field(factory=dict)
    remote_opened: bool = False
    closed: bool = False  #: by us
    has_output: bool = False  #: whether it may have bytes to send
    later_bytes: int = 0  #: of messages that proton has not got yet
    later_links: dict[int, _Link] = attrs.field(factory=dict)  #: those of them, the one whose turn it is first


@attrs.define(eq=False)
class _Link:
    number: int
    session: _Session
    endpoint: proton.Link
    pointer: Any
    name: str
    is_sender: bool
    by_peer: bool
    credit: int = 0  #: of a sender, as last reported, less what was sent since
    drain: bool = False
    opened: bool = False  #: by us
    closed: bool = False  #: by us
    remote_opened: bool = False
    remote_closed: bool = False
    incoming: dict[int, Any] = attrs.field(factory=dict)  #: number → the C delivery, unsettled
    outgoing: dict[Any, int] = attrs.field(factory=dict)  #: the C delivery → number, unsettled
    violation: AmqpError | None = None  #: the limit that the peer broke on it: what still comes is not handed out
    partial: list[bytes | bytearray] | None = None  #: the parts of an unfinished message
    partial_bytes: int = 0
    unfinished: Any = None  #: its C delivery
    later: deque[_Later] = attrs.field(
        factory=deque
    )  #: messages that proton has not got as a whole, from a large one on
    drained_later: bool = False  #: whether the credit is to be returned behind them
    attach_bytes: int = 0  #: of the peer's attach


@attrs.define(eq=False)
class _Later:
    """A message that is given to proton in parts, or waits behind such a one."""

    number: int
    payload: bytes
    settled: bool
    state: State | None
    on_given: Callable[[], None] | None  #: told once proton has got all of it
    delivery: Any = None  #: the C delivery, once its first part was given
    given: int = 0  #: bytes


#: Bytes of the attaches of all links of a connection, which are kept as long as the links.  Further links are refused,
#: and twice this size ends the connection.
_MAX_ATTACH_BYTES: Final = 8 * MIB
#: What our attach has beside its names, filters and properties, in bytes, at most.
_ATTACH_REST_BYTES: Final = 512
#: What an answer to an attach may say beyond it, in bytes.
_ANSWER_MORE_BYTES: Final = 64
#: Links beyond the limit that may be refused at a time; one more ends the connection.
_MAX_REFUSED: Final = 64
#: A transfer of fewer bytes is read field by field.
_LEAST_TRANSFER_BYTES: Final = 24
#: A frame of more bytes goes to proton without its payload.
_LARGE_FRAME_BYTES: Final = 32 * KIB
#: Most bytes of frames that proton gets before its events are taken: what they bring stays in its buffers until then.
_PUSHED_BYTES: Final = 64 * KIB
#: A message of more bytes is given to proton in parts, of so many bytes each.
_LARGE_MESSAGE_BYTES: Final = 128 * KIB
_PART_BYTES: Final = 64 * KIB
#: What a frame of a transfer has beside its payload, at most.
_TRANSFER_BYTES: Final = 128
#: What proton keeps of a message that was settled until it has written that, in bytes.
_ANSWER_BYTES: Final = 1024
#: So many sessions are looked at for output, whether they have some or not.
_FEW_SESSIONS: Final = 8
#: Parts of fewer bytes that come in are put together as they come: each costs more than its bytes.
_SMALL_PART_BYTES: Final = 4 * KIB
_HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
_NO_CREDIT: Final = AmqpError("amqp:link:transfer-limit-exceeded", "more messages than credit")
_CUT_SHORT: Final = AmqpError("amqp:illegal-state", "the link ended when only a part of a message had come")
_new: Final = tuple.__new__


class Peer:
    """One end of an AMQP connection.  See the module's theory of operation."""

    def __init__(self, limits: PeerLimits, *, server: bool = False, public_classes: bool = False) -> None:
        """A peer that has neither sent nor received anything.

        Args:
            limits: what is accepted from the other side.
            server: whether this end waits for the other's header.
            public_classes: whether the hot path, too, uses proton's public classes; slower.
        """
        self._limits = limits
        self._server = server
        self._connection: Any = proton.Connection()
        self._transport: Any = proton.Transport(proton.Transport.SERVER if server else proton.Transport.CLIENT)
        self._transport.max_frame_size = limits.max_frame_bytes
        self._transport.channel_max = limits.max_sessions - 1
        self._transport.idle_timeout = limits.idle_timeout_ms / 1000
        self._transport.tracer = _told_by_proton(weakref.ref(self))
        self._collector: Any = proton.Collector()
        self._connection.collect(self._collector)
        self._transport.bind(self._connection)
        self._engine: Any = PublicEngine(self._transport, self._collector) if public_classes else lib
        self._c_transport = self._transport._impl
        self._c_collector = self._collector._impl
        self._rules = frames.FrameRules(max_sessions=limits.max_sessions, max_links=limits.max_links + _MAX_REFUSED)
        self._written: deque[bytes] = deque()  #: taken out of proton, and not asked for yet
        self._unwritten_begins = 0  #: begins of ours whose channel is not known yet
        self._attach_bytes = 0  #: of all links
        self._sessions: dict[int, _Session] = {}
        self._sessions_by_pointer: dict[Any, _Session] = {}
        self._opened = False
        self._unanswered_sessions: list[_Session] = []
        self._links: dict[int, _Link] = {}
        self._links_by_pointer: dict[Any, _Link] = {}
        self._next_number = 1
        self._next_delivery = 1
        self._tag_number = ffi.new("uint32_t *")
        self._tag_memory = ffi.new("pn_bytes_t *", {"size": 4, "start": ffi.cast("char *", self._tag_number)})
        self._tag = self._tag_memory[0]
        self._scratch = ffi.new("char[]", 64 * 1024)
        self._scratch_bytes = 64 * 1024
        # Input that is not yet a whole frame.
        self._header_seen = False
        self._held = bytearray()
        self._wanted_bytes = 8
        self._pushed = 0  #: how much of the input under way proton has got
        self._payload = b""  #: of the frame under way, which proton has got without it
        #: (channel, role) → the last delivery of dispositions that proton has not told of
        self._disposed: dict[tuple[bytes, bool], int] = {}
        self.unfinished_bytes = 0  #: of messages of which only a part has come
        self._unfinished: dict[_Link, None] = {}  #: where they come in
        self.unwritten_bytes = 0  #: what proton keeps, about, for the answers to messages that it has not written yet
        self._with_output: list[_Session] = []  #: sessions that may have bytes to send
        self._with_later: dict[int, _Session] = {}  #: sessions with messages that proton has not got as a whole
        self._buffers = DeliveryBuffers()
        self._begun = False  #: whether a begin came in that may not be answered yet
        self._end_waits = False  #: whether what is held starts with the end of such a session
        self._early: list[Event] = []  #: what happened and was not asked for yet
        self._released = False
        self._stuck = ""  #: why proton writes nothing more, in its own words
        self._failure: AmqpError | None = None
        self._failure_told = False
        self._output_closed = False
        self._tail_closed = False

    def __repr__(self) -> str:
        return f"<Peer sessions={len(self._sessions)} links={len(self._links)} failure={self._failure!r}>"

    # Bytes.

    def receive(self, data: bytes) -> None:
        """Take bytes from the network; ``events()`` tells what they meant.  Never raises for their content."""
        if self._failure is not None or self._tail_closed:
            return
        if self._held:
            if self._end_waits or len(self._held) + len(data) < self._wanted_bytes:
                self._held += data
                return
            data = b"".join((self._held, data))
            self._held.clear()
        self._take(data)

    def _take(self, data: bytes) -> None:
        """Take what came, which starts with a frame."""
        while True:
            self._pushed = 0
            whole, objection = self._whole_frames(data)
            self._push(data, self._pushed, whole)
            if objection is not None:
                self._fail(objection)
                return
            if self._failure is not None or whole == len(data):
                return
            if not (self._end_waits and self._opened):
                self._held += data[whole:]
                return
            # Let proton write our begins; then the rest can be taken, which starts with the end of a session.
            self._answer_begins()
            data = data[whole:]

    def _answer_begins(self) -> None:
        """Let proton write our begins, so that the end of a session can be taken."""
        self._take_events()
        self._engine.pn_transport_pending(self._c_transport)
        self._begun = self._end_waits = False

    def _whole_frames(self, data: bytes) -> tuple[int, AmqpError | None]:
        """How many of these bytes are whole frames fit for proton, and what is wrong with the next one, if anything.

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
        limit = self._limits.max_frame_bytes
        sending, disposing = self._rules.sending, self._rules.disposing
        most = self._pushed + _PUSHED_BYTES
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
                # A transfer in its short form.  Without a state (its eighth field) it has nothing that nests.
                listed = data[position + 12] if size >= _LEAST_TRANSFER_BYTES else 0
                if listed > 5 and position + 13 + listed <= after:
                    kind = data[position + 14]
                    if kind == 0x52:
                        handle = data[position + 15]
                    elif kind == 0x70:
                        handle = int.from_bytes(data[position + 15 : position + 19])
                    else:
                        handle = 0 if kind == 0x43 else -1
                    if handle in handles and (
                        0 < data[position + 13] <= 7 or has_no_array(data, position + 14, position + 13 + listed)
                    ):
                        if after > most:
                            self._push_apart(data, position, position + 13 + listed, after)
                            most = after + _PUSHED_BYTES
                        position = after
                        continue
            elif head in disposing and size > 14:
                stop = position + 13 + data[position + 12]
                which = disposed(data[position + 14 : stop]) if stop <= after else None
                if which is not None:
                    most = self._tell_earlier(data, position, most, *which)
                    if self._failure is not None:
                        return position, None
                    position = after
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
                        role, first, last = values[:3]
                        most = self._tell_earlier(data, position, most, role, first, first if last is None else last)
                        if self._failure is not None:
                            return position, None
                    self._begun = self._begun or code == frames.BEGIN
                    if code == frames.TRANSFER and after > most:
                        self._push_apart(data, position, stop, after)
                        most = after + _PUSHED_BYTES
                        if self._failure is not None:
                            return after, None
            except frames.FrameError as error:
                return position, error.error
            position = after
        self._wanted_bytes = 8
        return position, None

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
            self._payload = data[payload:end]
        self._take_events()
        self._payload = b""
        self._pushed = end

    def _push(self, data: bytes, start: int, end: int) -> None:
        push = self._engine.pn_transport_push
        transport = self._c_transport
        size = end - start
        if size <= 0:
            return
        taken = push(transport, data, size) if start == 0 else 0
        if 0 <= taken < size:
            memory = ffi.from_buffer(data)
            while 0 <= taken < size:
                more = push(transport, memory + start + taken, size - taken)
                if more <= 0:
                    break
                taken += more

    def receive_end(self) -> None:
        """The network will bring no more bytes."""
        if not self._tail_closed:
            self._tail_closed = True
            self._engine_call(self._transport.close_tail)

    def pending_output(self, limit_bytes: int | None = None) -> bytes:
        """The bytes to send now, oldest first; about ``limit_bytes`` at most, where given.

        Each byte is returned once: the caller keeps what its socket does not take.
        """
        if self._released:
            return b""
        written = self._written
        if self._unwritten_begins:
            written.append(self._take_output())
        if not written:
            return self._pull(limit_bytes)
        chunks: list[bytes] = []
        total = 0
        while written and (limit_bytes is None or total < limit_bytes):
            chunks.append(written.popleft())
            total += len(chunks[-1])
        if not written:
            chunks.append(self._pull(limit_bytes))
        return b"".join(chunks)

    def write_out(self) -> None:
        """Have what was said so far written ahead of what comes now, except parts of messages that it has not got yet.

        proton writes begins, flows and transfers ahead of dispositions, whichever was first.
        """
        if not self._released:
            later, self._with_later = self._with_later, {}
            try:
                data = self._take_output()
                if data:
                    self._written.append(data)
            finally:
                self._with_later = later

    def _take_output(self) -> bytes:
        """All that there is to send, which ends with a whole frame; begins of ours in it are noted."""
        data = self._pull(None)
        if self._unwritten_begins:
            for channel in begins(data):
                self._unwritten_begins -= 1
                self._rules.begun(channel)
        return data

    def _pull(self, limit_bytes: int | None) -> bytes:
        engine, transport = self._engine, self._c_transport
        pending, peek, pop = engine.pn_transport_pending, engine.pn_transport_peek, engine.pn_transport_pop
        unpack = ffi.unpack
        chunks: list[bytes] = []
        total = 0
        while limit_bytes is None or total < limit_bytes:
            if self._with_later:
                self._give_parts()
            size = pending(transport)
            if self._stuck and self._failure is None:
                # The peer allows fewer channels or handles than it has answered, or wants answered.
                self._fail(AmqpError("amqp:resource-limit-exceeded", f"nothing can be written: {self._stuck}"))
                continue
            if size <= 0:
                self.unwritten_bytes = 0
                if size < 0:
                    self._output_closed = True
                break
            if size > self._scratch_bytes:
                self._grow_scratch(size)
            scratch = self._scratch
            peek(transport, scratch, size)
            chunks.append(unpack(scratch, size))
            pop(transport, size)
            total += size
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    @property
    def output_closed(self) -> bool:
        """Whether everything was sent that ever will be: close the socket."""
        return self._output_closed

    def tick(self, now_ms: int, *, listens: bool = True) -> int | None:
        """Let time pass: sends keep-alives, notices a silent peer.

        Args:
            now_ms: a clock that never goes back, in milliseconds.
            listens: whether what the peer sends is read at present; otherwise its silence is ours.

        Returns:
            when to call again at the latest, on the same clock; None where nothing is waited for.
        """
        if self._released:
            return None
        if not listens and self._opened and not self._tail_closed and not self._rules.closed:
            self._push(_HEARTBEAT, 0, len(_HEARTBEAT))
        return self._engine.pn_transport_tick(self._c_transport, now_ms) or None

    def _grow_scratch(self, size: int) -> None:
        self._scratch_bytes = max(size, 2 * self._scratch_bytes)
        self._scratch = ffi.new("char[]", self._scratch_bytes)

    def _fail(self, error: AmqpError) -> None:
        """Close the connection with an error because of what the peer did."""
        if self._failure is not None or self._released:
            return
        self._failure = error
        condition = lib.pn_transport_condition(self._transport._impl)
        if not lib.pn_condition_is_set(condition):
            write_condition(condition, error)
        self._tail_closed = True
        self._engine_call(self._transport.close_tail)

    @staticmethod
    def _engine_call(call: Any) -> None:
        try:
            call()
        except proton.ProtonException:
            # The transport is closed already; its condition says why.
            return

    # Events.

    def events(self) -> list[Event]:
        """What happened since the last call, in order; transfers or dispositions of one link in a row are one event."""
        if self._released:
            return []
        self._take_events()
        happened, self._early = self._early, []
        if self._failure is not None and not self._failure_told:
            self._failure_told = True
            happened.append(TransportFailed(self._failure))
        return happened

    def _take_events(self) -> None:
        """Take what proton has to tell."""
        self._disposed.clear()
        engine, collector = self._engine, self._c_collector
        peek, pop, type_of, delivery_of = (
            engine.pn_collector_peek,
            engine.pn_collector_pop,
            engine.pn_event_type,
            engine.pn_event_delivery,
        )
        link_of, readable = engine.pn_delivery_link, engine.pn_delivery_readable
        links = self._links_by_pointer
        happened = self._early
        while True:
            event = peek(collector)
            if not event:
                break
            kind = type_of(event)
            if kind == _DELIVERY:
                delivery = delivery_of(event)
                link = links.get(link_of(delivery))
                if link is None:
                    pass  # freed meanwhile; its deliveries went with it
                elif link.is_sender:
                    self._on_disposition(link, delivery, happened)
                elif readable(delivery):
                    self._on_transfer(link, delivery, happened)
            elif kind in _TOLD:
                try:
                    self._on_event(kind, event, happened)
                except ValueError as error:
                    self._fail(AmqpError("amqp:decode-error", str(error)))
            pop(collector)

    def _on_transfer(self, link: _Link, delivery: Any, happened: list[Event]) -> None:
        engine = self._engine
        pointer = link.pointer
        size = engine.pn_delivery_pending(delivery)
        if size > self._scratch_bytes:
            self._grow_scratch(size)
        partial = engine.pn_delivery_partial(delivery)
        payload: bytes | None
        if (
            partial
            or link.partial is not None
            or self._payload
            or size > self._limits.max_message_bytes
            or link.violation is not None
        ):
            payload = self._on_part(link, delivery, size, partial, happened)
            if payload is None:
                return
        else:
            scratch = self._scratch
            taken = engine.pn_link_recv(pointer, scratch, size) if size else 0
            if taken < 0:  # aborted
                self._drop(link, delivery, happened)
                return
            payload = ffi.unpack(scratch, taken) if taken else b""
        code = engine.pn_delivery_remote_state(delivery)
        state = self._read_state(delivery, code) if code else None
        engine.pn_link_advance(pointer)
        if engine.pn_delivery_settled(delivery):
            engine.pn_delivery_settle(delivery)
            incoming = _new(Incoming, (0, payload, state))
        else:
            number = self._next_delivery
            self._next_delivery = number + 1
            link.incoming[number] = delivery
            incoming = _new(Incoming, (number, payload, state))
        if happened:
            last = happened[-1]
            if type(last) is Transfers and last.link == link.number:
                last.deliveries.append(incoming)
                return
        # Once a batch is enough: within one the excess is bounded by what was read from the network.
        if engine.pn_link_credit(pointer) < 0:
            self._violate(link, _NO_CREDIT)
        happened.append(Transfers(link.number, [incoming]))

    def _on_part(self, link: _Link, delivery: Any, size: int, partial: bool, happened: list[Event]) -> bytes | None:
        """Take what there is of a large message, or of one in several frames.

        Args:
            link: where it comes in.
            delivery: the C delivery.
            size: the bytes that proton has of it; behind them stands the payload that it has not got.
            partial: whether more is to come.
            happened: gets the event of a message that is dropped.

        Returns:
            the message, where it is now complete and wanted.
        """
        engine = self._engine
        payload, self._payload = self._payload, b""
        if link.violation is not None or engine.pn_delivery_aborted(delivery):
            self._drop(link, delivery, happened)
            return None
        limits = self._limits
        more = size + len(payload)
        error: AmqpError | None = None
        if link.partial_bytes + more > limits.max_message_bytes:
            reason = f"message of more than {limits.max_message_bytes} bytes is larger than the limit"
            error = AmqpError("amqp:link:message-size-exceeded", reason)
        elif partial and self.unfinished_bytes + more > limits.max_unfinished_bytes:
            reason = f"unfinished messages of more than {limits.max_unfinished_bytes} bytes are beyond the limit"
            error = AmqpError("amqp:resource-limit-exceeded", reason)
        elif link.partial is None and engine.pn_link_credit(link.pointer) < engine.pn_link_queued(link.pointer):
            error = _NO_CREDIT
        if error is not None:
            self._violate(link, error)
            self._drop(link, delivery, happened, State(REJECTED, error=error))
            return None
        taken = engine.pn_link_recv(link.pointer, self._scratch, size) if size else 0
        ahead = ffi.unpack(self._scratch, taken) if taken > 0 else b""
        if link.partial is None and not partial:
            return ahead + payload if ahead else payload
        if link.partial is None:
            link.partial = []
            link.unfinished = delivery
            self._unfinished[link] = None
        for part in (ahead, payload):
            if part:
                _append_part(link.partial, part)
        link.partial_bytes += more
        self.unfinished_bytes += more
        if partial:
            return None
        whole = b"".join(link.partial)
        self._forget_parts(link)
        return whole

    def _forget_parts(self, link: _Link) -> None:
        self.unfinished_bytes -= link.partial_bytes
        self._unfinished.pop(link, None)
        link.partial = link.unfinished = None
        link.partial_bytes = 0

    def has_unfinished(self, txn_id: bytes) -> bool:
        """Whether only a part has come of a message that belongs to this transaction."""
        return any(self._transaction_of(link.unfinished) == txn_id for link in self._unfinished)

    def _transaction_of(self, delivery: Any) -> bytes | None:
        """The transaction that a message which came in belongs to, so far as that is known."""
        code = self._engine.pn_delivery_remote_state(delivery)
        if not code:
            return None
        state = self._read_state(delivery, code)
        return state.txn_id if state.code == TRANSACTIONAL else None

    def _cut_short(self, link: _Link, happened: list[Event]) -> None:
        """A link ends: the rest of a message that has come in part will not come, and its transaction misses it."""
        if link.unfinished is not None:
            txn_id = self._transaction_of(link.unfinished)
            self._forget_parts(link)
            if txn_id is not None:
                happened.append(Dropped(link.number, 1, {txn_id}, _CUT_SHORT))

    def largest_unfinished_bytes(self) -> int:
        """How much of the largest message has come of which only a part has; 0: there is none."""
        return max((link.partial_bytes for link in self._unfinished), default=0)

    def refuse_largest_unfinished(self, error: AmqpError) -> None:
        """Reject the largest message of which only a part has come, if any, and close its link with this error.

        ``events()`` tells of it, as of any message that is dropped.
        """
        if self._unfinished:
            link = max(self._unfinished, key=lambda each: each.partial_bytes)
            self._violate(link, error)
            self._drop(link, link.unfinished, self._early, State(REJECTED, error=error))

    def _violate(self, link: _Link, error: AmqpError) -> None:
        """The peer broke a limit on a link: close it, and take nothing more that comes on it."""
        if link.violation is None:
            link.violation = error
            self.close_link(link.number, error)

    def _drop(self, link: _Link, delivery: Any, happened: list[Event], state: State | None = None) -> None:
        """Settle a message that is not handed out; ``state`` None: it only came behind another one, or was aborted."""
        engine = self._engine
        self._forget_parts(link)
        error = link.violation
        txn_id = self._transaction_of(delivery)
        aborted = engine.pn_delivery_aborted(delivery)
        if not aborted and error is not None and not engine.pn_delivery_settled(delivery):
            if state is None:
                reason = f"the link was closed because of a message before it: {error.description}"
                state = State(REJECTED, error=error._replace(description=reason)) if self._server else RELEASED_STATE
            write_disposition(lib.pn_delivery_local(delivery), state)
            engine.pn_delivery_update(delivery, state.code)
            self.unwritten_bytes += _ANSWER_BYTES if state.error is None else _answer_bytes(state.error)
        # This drops what is there, and what is still to come of it.
        engine.pn_delivery_settle(delivery)
        if aborted:
            error = None
        messages, txn_ids = 1, set[bytes]()
        if happened:
            last = happened[-1]
            if type(last) is Dropped and last.link == link.number and last.error == error:
                happened.pop()
                messages, txn_ids = last.messages + 1, last.txn_ids
        if not aborted and txn_id is not None:
            txn_ids.add(txn_id)
        happened.append(Dropped(link.number, messages, txn_ids, error))

    def _on_disposition(self, link: _Link, delivery: Any, happened: list[Event]) -> None:
        engine = self._engine
        number = link.outgoing.get(delivery)
        if number is None:
            return
        code = engine.pn_delivery_remote_state(delivery)
        if not engine.pn_delivery_settled(delivery) and (code == 0 or code == RECEIVED):
            return
        state = PLAIN_STATES.get(code)
        if state is None:
            state = self._read_state(delivery, code)
        del link.outgoing[delivery]
        if link.later and link.later[0].delivery == delivery:
            self._abort_unfinished(link)
        else:
            engine.pn_delivery_settle(delivery)
        if link.remote_closed and link.closed and not link.outgoing:
            self._forget_link(link)
        if happened:
            last = happened[-1]
            if type(last) is Dispositions and last.link == link.number and last.state == state:
                last.numbers.append(number)
                return
        happened.append(Dispositions(link.number, [number], state))

    def _on_event(self, kind: int, event: Any, happened: list[Event]) -> None:
        engine = self._engine
        if kind == lib.PN_LINK_FLOW:
            link = self._links_by_pointer.get(engine.pn_event_link(event))
            if link is not None:
                self._on_flow(link, happened)
        elif kind == lib.PN_LINK_REMOTE_OPEN:
            self._on_link_remote_open(engine.pn_event_link(event), happened)
        elif kind in (lib.PN_LINK_REMOTE_CLOSE, lib.PN_LINK_REMOTE_DETACH):
            link = self._links_by_pointer.get(engine.pn_event_link(event))
            if link is not None and not link.remote_closed:
                link.remote_closed = True
                self._cut_short(link, happened)
                error = read_condition(lib.pn_link_remote_condition(link.endpoint._impl))
                happened.append(LinkRemoteClose(link.number, kind == lib.PN_LINK_REMOTE_CLOSE, error))
                if link.closed:
                    self._forget_link(link)
        elif kind == lib.PN_SESSION_REMOTE_OPEN:
            self._on_session_remote_open(engine.pn_event_session(event), happened)
        elif kind == lib.PN_SESSION_REMOTE_CLOSE:
            session = self._sessions_by_pointer.get(engine.pn_event_session(event))
            if session is not None:
                error = read_condition(lib.pn_session_remote_condition(session.endpoint._impl))
                for link in session.links.values():
                    self._cut_short(link, happened)
                unsent = {number: self.withdraw(number) for number in session.links}
                happened.append(SessionRemoteClose(session.number, error, unsent))
                self._forget_session(session)
        elif kind == lib.PN_CONNECTION_REMOTE_OPEN:
            happened.append(self._read_open())
        elif kind == lib.PN_CONNECTION_REMOTE_CLOSE:
            error = read_condition(lib.pn_connection_remote_condition(self._connection._impl))
            happened.append(RemoteClose(error))
        elif kind == lib.PN_TRANSPORT_ERROR and self._failure is None:
            condition = read_condition(lib.pn_transport_condition(self._transport._impl))
            self._failure = condition or AmqpError("amqp:connection:framing-error", "the connection failed")

    def _on_flow(self, link: _Link, happened: list[Event]) -> None:
        credit = self._engine.pn_link_credit(link.pointer) - len(link.later)
        drain = bool(self._engine.pn_link_get_drain(link.pointer))
        if link.is_sender and credit == link.credit and drain == link.drain:
            return  # proton also tells of each transfer that it wrote
        link.drained_later = False  # what was to be returned is not all of it any more, or not wanted back
        link.credit = credit
        link.drain = drain
        flow = LinkFlow(link.number, credit, drain)
        if happened and type(happened[-1]) is LinkFlow and happened[-1].link == link.number:
            happened[-1] = flow
        else:
            happened.append(flow)

    def _read_open(self) -> RemoteOpen:
        connection = self._connection._impl
        return RemoteOpen(
            text_at(lib.pn_connection_remote_container(connection)) or "",
            text_at(lib.pn_connection_remote_hostname(connection)),
            frozenset(read_names(lib.pn_connection_remote_offered_capabilities(connection))),
            frozenset(read_names(lib.pn_connection_remote_desired_capabilities(connection))),
            read_mapping(lib.pn_connection_remote_properties(connection)),
        )

    def _on_session_remote_open(self, pointer: Any, happened: list[Event]) -> None:
        session = self._sessions_by_pointer.get(pointer)
        by_peer = session is None
        if session is None:
            session = self._add_session(wrap_session(pointer))
            if self._opened:
                session.endpoint.open()
            else:  # proton would forget to answer a session that came ahead of our own open
                self._unanswered_sessions.append(session)
        session.remote_opened = True
        if session.closed:
            lib.pn_session_close(pointer)
        happened.append(SessionRemoteOpen(session.number, by_peer))

    def _on_link_remote_open(self, pointer: Any, happened: list[Event]) -> None:
        size = self._rules.attach_bytes.popleft()
        link = self._links_by_pointer.get(pointer)
        if link is None:
            session = self._sessions_by_pointer.get(lib.pn_link_session(pointer))
            if session is None:
                return
            name = text_at(lib.pn_link_name(pointer)) or ""
            link = self._add_link(session, wrap_link(pointer), name, by_peer=True)
        if link.remote_opened:
            return
        link.remote_opened = True
        link.attach_bytes = size
        self._attach_bytes += size
        if self._attach_bytes > 2 * _MAX_ATTACH_BYTES:
            reason = f"the attaches of all links are far larger than the limit of {_MAX_ATTACH_BYTES} bytes"
            self._fail(AmqpError("amqp:resource-limit-exceeded", reason))
            return
        if link.by_peer and len(link.name.encode()) > self._frame_bytes - _ANSWER_MORE_BYTES:
            # Also a refusal has to repeat the name.
            self._fail(AmqpError("amqp:resource-limit-exceeded", "the name of a link does not fit into a frame"))
            return
        limit = lib.pn_link_remote_max_message_size(pointer)
        happened.append(
            LinkRemoteOpen(
                link.number,
                link.session.number,
                link.name,
                link.by_peer,
                link.is_sender,
                read_terminus(lib.pn_link_remote_source(pointer)),
                read_terminus(lib.pn_link_remote_target(pointer)),
                lib.pn_link_remote_snd_settle_mode(pointer) == lib.PN_SND_SETTLED,
                limit or None,
                read_mapping(lib.pn_link_remote_properties(pointer)),
                self._excess(size) if link.by_peer else None,
            )
        )

    def _excess(self, size: int) -> AmqpError | None:
        """The limit that the link attached last goes beyond, with an attach of so many bytes."""
        most = self._limits.max_links
        if len(self._links) > most:
            reason = f"more links than the limit of {most} of a connection; close some, or use another connection"
        elif self._attach_bytes > _MAX_ATTACH_BYTES:
            reason = f"the attaches of all links are larger than the limit of {_MAX_ATTACH_BYTES} bytes"
        elif size > self._frame_bytes - _ANSWER_MORE_BYTES:
            reason = f"the answer to an attach of {size} bytes does not fit into a frame of {self._frame_bytes} bytes"
        else:
            return None
        return AmqpError("amqp:resource-limit-exceeded", reason)

    @property
    def _frame_bytes(self) -> int:
        """The largest performative that can be sent, and repeated in an answer."""
        frame = min(self._limits.max_frame_bytes, self._transport.remote_max_frame_size or GIB)
        return min(frames.MAX_PERFORMATIVE_BYTES, frame)

    def _read_state(self, delivery: Any, code: int) -> State:
        try:
            return read_disposition(lib.pn_delivery_remote(delivery), code)
        except ValueError as error:
            self._fail(AmqpError("amqp:decode-error", str(error)))
            return State(code)

    # The connection.

    def open(
        self,
        container_id: str,
        *,
        hostname: str | None = None,
        offered_capabilities: Iterable[str] = (),
        desired_capabilities: Iterable[str] = (),
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Open the connection, or answer the peer's open."""
        connection = self._connection._impl
        try:
            lib.pn_connection_set_container(connection, c_text(container_id))
            if hostname is not None:
                lib.pn_connection_set_hostname(connection, c_text(hostname))
        except ValueError as error:
            raise MessageFormatException(f"the connection cannot be opened: {error}") from error
        self._connection.open()
        write_names(lib.pn_connection_offered_capabilities(connection), offered_capabilities)
        write_names(lib.pn_connection_desired_capabilities(connection), desired_capabilities)
        write_mapping(lib.pn_connection_properties(connection), properties)
        self._opened = True
        for session in self._unanswered_sessions:
            if session.number in self._sessions:
                session.endpoint.open()
        self._unanswered_sessions.clear()
        if self._end_waits:
            self._answer_begins()
            data = bytes(self._held)
            self._held.clear()
            if self._failure is None and not self._tail_closed:
                self._take(data)

    def close(self, error: AmqpError | None = None) -> None:
        """Close the connection, or answer the peer's close.  Legal twice."""
        if self._released:
            return
        if error is not None:
            write_condition(lib.pn_connection_condition(self._connection._impl), error)
        lib.pn_connection_close(self._connection._impl)

    def release(self) -> None:
        """Free all memory, now and not when the garbage collector gets to it.  Legal twice.

        Nothing is sent or received any more, and nothing is told.
        """
        if self._released:
            return
        self._released = self._tail_closed = self._output_closed = True
        for link in list(self._links.values()):
            self._drop_link(link)
        for session in self._sessions.values():
            session.endpoint = None
        for table in (
            *(self._sessions, self._sessions_by_pointer, self._with_later, self._links, self._links_by_pointer),
            *(self._held, self._early, self._with_output, self._unanswered_sessions, self._written),
        ):
            table.clear()
        self._payload = b""
        self._scratch = b""
        self._transport.unbind()
        self._collector.release()
        # They free what they hold as they go.
        self._transport = self._connection = self._collector = self._engine = None
        self._c_transport = self._c_collector = None

    # Sessions.

    def begin_session(self) -> int:
        """Begin a session and return its number; links may be attached at once.

        Raises:
            IllegalStateException: there are as many as the limit, ours or the peer's.
        """
        if self._released:
            raise IllegalStateException("the connection has ended")
        most = min(self._limits.max_sessions, self._transport.channel_max + 1)
        if len(self._sessions) >= most:
            raise IllegalStateException(f"{most} sessions are the limit of a connection")
        # proton chooses the channel as it writes the begin, and does not tell: it is read from what is written.  What
        # was to be written before is taken out first, so that this ends and begins with a whole frame.
        self.write_out()
        session = self._add_session(self._connection.session())
        session.endpoint.open()
        self._unwritten_begins += 1
        self.write_out()
        return session.number

    def end_session(self, session: int, error: AmqpError | None = None) -> None:
        """End a session with all its links.  Unknown numbers are ignored."""
        found = self._sessions.get(session)
        if found is not None and not found.closed:
            found.closed = True
            if error is not None:
                write_condition(lib.pn_session_condition(found.endpoint._impl), error)
            if found.remote_opened:  # else proton would not know the session any more when its begin is answered
                lib.pn_session_close(found.endpoint._impl)

    def outgoing_bytes(self, session: int) -> int:
        """Bytes of messages of this session that wait for the peer's window, or for the socket."""
        found = self._sessions.get(session)
        return 0 if found is None else _outgoing_bytes(found)

    def waiting_bytes(self) -> int:
        """The same of all sessions."""
        with_output = self._with_output
        if len(with_output) > _FEW_SESSIONS:
            for session in [each for each in with_output if not _outgoing_bytes(each)]:
                session.has_output = False
                with_output.remove(session)
        return sum([_outgoing_bytes(session) for session in with_output])

    def _add_session(self, endpoint: proton.Session) -> _Session:
        session = _Session(self._number(), endpoint)
        self._sessions[session.number] = session
        self._sessions_by_pointer[endpoint._impl] = session
        return session

    def _forget_session(self, session: _Session) -> None:
        for link in list(session.links.values()):
            self._drop_link(link)
        del self._sessions[session.number]
        del self._sessions_by_pointer[session.endpoint._impl]
        if session.has_output:
            self._with_output.remove(session)
        lib.pn_session_close(session.endpoint._impl)
        session.endpoint.free()

    # Links.

    def attach_sender(
        self, session: int, name: str, source: Terminus | None, target: Terminus | None, *, presettled: bool = False
    ) -> int:
        """Attach a link that we send on; returns its number.  Send when ``LinkFlow`` has told of credit."""
        return self._attach(session, name, source, target, presettled, is_sender=True, properties=None)

    def attach_receiver(
        self,
        session: int,
        name: str,
        source: Terminus | None,
        target: Terminus | None,
        *,
        presettled: bool = False,
        properties: dict[str, Any] | None = None,
    ) -> int:
        """Attach a link that we receive on; returns its number.  It has no credit yet."""
        return self._attach(session, name, source, target, presettled, is_sender=False, properties=properties)

    def _attach(
        self,
        session: int,
        name: str,
        source: Terminus | None,
        target: Terminus | None,
        presettled: bool,
        *,
        is_sender: bool,
        properties: dict[str, Any] | None,
    ) -> int:
        found = self._sessions.get(session)
        if found is None or found.closed:
            raise IllegalStateException(f"session {session} has ended")
        try:
            c_text(name)
        except ValueError as error:
            raise MessageFormatException(f"the link cannot be attached: {error}") from error
        size = text_bytes((name, *words_of(source), *words_of(target), properties))
        most = self._frame_bytes - min(_ATTACH_REST_BYTES, self._frame_bytes // 2)
        if size > most:
            raise ResourceAllocationException(
                f"the link cannot be attached: its names, selector and properties have {size} bytes, and at most "
                f"{most} fit into a frame to this broker and back"
            )
        endpoint = found.endpoint.sender(name) if is_sender else found.endpoint.receiver(name)
        link = self._add_link(found, endpoint, name, by_peer=False)
        try:
            self._open_link(link, source, target, presettled, properties)
        except ValueError as error:
            self._drop_link(link)
            endpoint.free()
            raise MessageFormatException(f"the link cannot be attached: {error}") from error
        return link.number

    def accept_link(
        self,
        link: int,
        source: Terminus | None,
        target: Terminus | None,
        *,
        max_message_bytes: int | None = None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Answer the peer's attach.  The settle modes are the peer's."""
        found = self._link(link)
        if max_message_bytes is not None:
            found.endpoint.max_message_size = max_message_bytes
        presettled = found.endpoint.remote_snd_settle_mode == lib.PN_SND_SETTLED
        try:
            self._open_link(found, source, target, presettled, properties)
        except ValueError as error:
            # What is echoed came from the peer: a map with keys that are no symbols, for example.
            self._fail(AmqpError("amqp:invalid-field", str(error)))

    def refuse_link(self, link: int, error: AmqpError) -> None:
        """Refuse the peer's attach: an attach without its terminus, then a detach with the error."""
        found = self._link(link)
        self._open_link(found, None, None, presettled=False, properties=None)
        self.close_link(link, error)

    def close_link(self, link: int, error: AmqpError | None = None, *, closed: bool = True) -> None:
        """Detach a link, or answer the peer's detach; ``closed`` False keeps a durable subscription.

        Deliveries that are not settled may still be settled, on both sides.  Unknown numbers are ignored.
        """
        found = self._links.get(link)
        if found is None or found.closed:
            return
        found.closed = True
        self._forget_later(found)
        pointer = found.endpoint._impl
        if error is not None:
            write_condition(lib.pn_link_condition(pointer), error)
        if closed:
            lib.pn_link_close(pointer)
        else:
            lib.pn_link_detach(pointer)
        if found.remote_closed:
            self._forget_link(found)

    def withdraw(self, link: int, *, stays: bool = False) -> list[int]:
        """Send nothing more of a link's messages, which the peer has detached, or whose connection is over.

        Args:
            link: the link's number.
            stays: the peer still has the link: it gets the messages that proton has as a whole.

        Returns:
            the numbers of those that are not settled and that the peer does not get as a whole, in order.
        """
        found = self._links.get(link)
        if found is None or not found.is_sender:
            return []
        pending = self._engine.pn_delivery_pending
        begun = found.later[0].delivery if found.later else None
        unsent = [each for each in found.outgoing if each == begun or (not stays and pending(each))]
        numbers = [found.outgoing[each] for each in unsent]
        numbers += [each.number for each in found.later if each.delivery is None and not each.settled]
        self._forget_later(found)
        for delivery in unsent:
            if found.outgoing.pop(delivery, None) is not None:
                # Settled alone, its bytes would count as bytes that wait for the session's window.
                lib.pn_delivery_abort(delivery)
        return numbers

    def abandon(self, link: int) -> None:
        """Forget what was sent on a link and is not settled: the peer will not name it any more."""
        found = self._links.get(link)
        if found is not None:
            self._forget_later(found)
            for delivery in found.outgoing:
                self._engine.pn_delivery_settle(delivery)
            found.outgoing.clear()
            if found.closed and found.remote_closed:
                self._forget_link(found)

    def credit(self, link: int, messages: int) -> None:
        """Let the peer send this many more messages on a receiver's link."""
        found = self._links.get(link)
        if found is not None and not found.closed:
            self._engine.pn_link_flow(found.pointer, messages)

    def remaining_credit(self, link: int) -> int:
        """How many messages the peer may still send, or we may; 0 for unknown links."""
        found = self._links.get(link)
        if found is None or found.drained_later:
            return 0
        credit: int = self._engine.pn_link_credit(found.pointer)
        return credit - len(found.later)

    def drain(self, link: int) -> bool:
        """Ask the peer to use up or return the credit of a receiver's link.

        Returns:
            whether there is an answer to wait for: a ``LinkFlow`` with credit 0.  False: there is no credit.
        """
        found = self._links.get(link)
        if found is None or found.closed or self._engine.pn_link_credit(found.pointer) <= 0:
            return False
        self._engine.pn_link_drain(found.pointer, 0)
        return True

    def drained(self, link: int) -> None:
        """Return the credit of a sender's link, as the peer asked for: there is nothing more to send."""
        found = self._links.get(link)
        if found is None or found.closed:
            return
        if found.later:
            found.drained_later = True
            return
        self._engine.pn_link_drained(found.pointer)
        found.credit = self._engine.pn_link_credit(found.pointer)

    def has_link(self, link: int) -> bool:
        """Whether there is a link of this number that we have not closed."""
        found = self._links.get(link)
        return found is not None and not found.closed

    def _link(self, number: int) -> _Link:
        link = self._links.get(number)
        if link is None or link.closed:
            raise IllegalStateException(f"link {number} is closed")
        return link

    def _add_link(self, session: _Session, endpoint: proton.Link, name: str, *, by_peer: bool) -> _Link:
        pointer = endpoint._impl
        link = _Link(self._number(), session, endpoint, pointer, name, bool(endpoint.is_sender), by_peer)
        session.links[link.number] = link
        self._links[link.number] = link
        self._links_by_pointer[pointer] = link
        if not by_peer:
            self._rules.attached(len(self._links))
        return link

    def _open_link(
        self,
        link: _Link,
        source: Terminus | None,
        target: Terminus | None,
        presettled: bool,
        properties: dict[str, Any] | None,
    ) -> None:
        if link.opened:
            raise IllegalStateException(f"link {link.number} is attached already")
        link.opened = True
        pointer = link.endpoint._impl
        write_terminus(lib.pn_link_source(pointer), source, lib.PN_SOURCE)
        write_terminus(lib.pn_link_target(pointer), target, lib.PN_TARGET)
        lib.pn_link_set_snd_settle_mode(pointer, lib.PN_SND_SETTLED if presettled else lib.PN_SND_UNSETTLED)
        write_mapping(lib.pn_link_properties(pointer), properties)
        lib.pn_link_open(pointer)

    def _forget_link(self, link: _Link) -> None:
        """Free a link that both sides have detached, unless a delivery of it is not settled yet."""
        if link.incoming or link.outgoing:
            return
        self._drop_link(link)
        link.endpoint.free()

    def _drop_link(self, link: _Link) -> None:
        self._links.pop(link.number, None)
        self._links_by_pointer.pop(link.pointer, None)
        link.session.links.pop(link.number, None)
        link.incoming.clear()
        link.outgoing.clear()
        self._forget_parts(link)
        self._forget_later(link)
        self._attach_bytes -= link.attach_bytes
        link.attach_bytes = 0
        link.closed = link.remote_closed = True

    def _number(self) -> int:
        number = self._next_number
        self._next_number = number + 1
        return number

    # Messages.

    def send(
        self,
        link: int,
        payload: bytes,
        *,
        settled: bool = False,
        state: State | None = None,
        on_given: Callable[[], None] | None = None,
    ) -> int:
        """Send a message on a sender's link that has credit; returns its number, by which ``Dispositions`` names it.

        Args:
            link: the link's number.
            payload: the encoded message.
            settled: whether no answer is wanted; the number is then 0.
            state: the transaction it belongs to.
            on_given: told once all of it is ahead of whatever is sent then in its session.  It is never told where the
                message is answered before, or its link or session ends.

        Raises:
            IllegalStateException: the link is closed.
        """
        found = self._links.get(link)
        if found is None or found.closed:
            raise IllegalStateException(f"link {link} is closed")
        number = self._next_delivery
        self._next_delivery = number + 1
        found.credit -= 1
        session = found.session
        if not session.has_output:
            session.has_output = True
            self._with_output.append(session)
        size = len(payload)
        is_small = size <= SMALL_BYTES  # most are: they cost no call
        if found.later or not (is_small or (size <= _LARGE_MESSAGE_BYTES and self._buffers.is_room(size))):
            found.later.append(_Later(number, payload, settled, state, on_given))
            session.later_bytes += size
            session.later_links[link] = found
            self._with_later[session.number] = session
            return 0 if settled else number
        engine, pointer = self._engine, found.pointer
        self._tag_number[0] = number & 0xFFFFFFFF
        delivery = engine.pn_delivery(pointer, self._tag)
        if state is not None:
            write_disposition(lib.pn_delivery_local(delivery), state)
            engine.pn_delivery_update(delivery, state.code)
        engine.pn_link_send(pointer, payload, size)
        if not is_small:
            self._buffers.note(delivery, size)
        engine.pn_link_advance(pointer)
        if on_given is not None:
            on_given()
        if settled:
            engine.pn_delivery_settle(delivery)
            return 0
        found.outgoing[delivery] = number
        return number

    def _give_parts(self) -> None:
        """Give proton parts of messages that it has not got, as far as its sessions take them; links take turns."""
        engine = self._engine
        given: list[Callable[[], None]] = []
        # As many whole frames as fit into a part.
        frame_bytes = self._transport.remote_max_frame_size
        size = _PART_BYTES
        if 0 < frame_bytes <= _PART_BYTES:
            size = _PART_BYTES // frame_bytes * (frame_bytes - _TRANSFER_BYTES)
        for session in list(self._with_later.values()):
            later = session.later_links
            while later:
                # What has no credit any more would only take up room in proton.
                link = next((each for each in later.values() if engine.pn_link_credit(each.pointer) > 0), None)
                if link is None:
                    break
                message, pointer = link.later[0], link.pointer
                waiting_bytes = lib.pn_session_outgoing_bytes(session.endpoint._impl)
                part_bytes = self._buffers.part_bytes(message.delivery, size)
                if waiting_bytes >= part_bytes:
                    break
                if message.delivery is None:
                    self._tag_number[0] = message.number & 0xFFFFFFFF
                    message.delivery = engine.pn_delivery(pointer, self._tag)
                    if message.state is not None:
                        write_disposition(lib.pn_delivery_local(message.delivery), message.state)
                        engine.pn_delivery_update(message.delivery, message.state.code)
                    if not message.settled:
                        link.outgoing[message.delivery] = message.number
                part = message.payload[message.given : message.given + part_bytes - waiting_bytes]
                engine.pn_link_send(pointer, part, len(part))
                self._buffers.note(message.delivery, waiting_bytes + len(part))
                message.given += len(part)
                session.later_bytes -= len(part)
                if message.given == len(message.payload):
                    engine.pn_link_advance(pointer)
                    if message.settled:
                        engine.pn_delivery_settle(message.delivery)
                    link.later.popleft()
                    if message.on_given is not None:
                        given.append(message.on_given)
                del later[link.number]
                if link.later:
                    later[link.number] = link  # the next part is one of another link
                else:
                    self._answer_later_drain(link)
            if not later:
                del self._with_later[session.number]
        for on_given in given:
            on_given()

    def _answer_later_drain(self, link: _Link) -> None:
        """Proton has got all messages of a link."""
        if link.drained_later:
            link.drained_later = False
            self.drained(link.number)

    def _abort_unfinished(self, link: _Link) -> None:
        """The receiver has settled the message of which proton has got a part: the others are not sent."""
        message = link.later.popleft()
        link.session.later_bytes -= len(message.payload) - message.given
        lib.pn_delivery_abort(message.delivery)
        if not link.later:
            link.session.later_links.pop(link.number, None)
            self._answer_later_drain(link)

    def _forget_later(self, link: _Link) -> None:
        """What proton has not got of a link's messages is not sent any more."""
        for message in link.later:
            link.session.later_bytes -= len(message.payload) - message.given
            if message.delivery is not None:
                link.outgoing.pop(message.delivery, None)
                lib.pn_delivery_abort(message.delivery)
        link.later.clear()
        link.drained_later = False
        link.session.later_links.pop(link.number, None)

    def take_back(self, link: int, messages: int) -> list[int]:
        """Do not send the last so many messages of a link, as far as proton has nothing of them.

        Returns:
            the numbers of those that are not sent: they have used up no credit.
        """
        found = self._links.get(link)
        numbers: list[int] = []
        while found is not None and found.later and len(numbers) < messages:
            last = found.later[-1]
            if last.delivery is not None or last.settled:
                break
            found.later.pop()
            found.credit += 1
            found.session.later_bytes -= len(last.payload)
            numbers.append(last.number)
        if found is not None and not found.later:
            found.session.later_links.pop(link, None)
            self._answer_later_drain(found)
        return numbers

    def settle(self, link: int, numbers: Iterable[int], state: State) -> None:
        """Settle incoming deliveries of a link, in order, all alike; unknown numbers are ignored.

        Neighbours that were accepted or released go into one frame.
        """
        found = self._links.get(link)
        if found is None:
            return
        engine, take = self._engine, found.incoming.pop
        update, settle = engine.pn_delivery_update, engine.pn_delivery_settle
        code = state.code
        plain = PLAIN_STATES.get(code) == state
        answer_bytes = _ANSWER_BYTES if plain or state.error is None else _answer_bytes(state.error)
        for number in numbers:
            delivery = take(number, None)
            if delivery is None:
                continue
            self.unwritten_bytes += answer_bytes
            if not plain:
                write_disposition(lib.pn_delivery_local(delivery), state)
            update(delivery, code)
            settle(delivery)
        if found.closed and found.remote_closed:
            self._forget_link(found)

    def is_unsettled(self, link: int, number: int) -> bool:
        """Whether an incoming delivery is known and not settled."""
        found = self._links.get(link)
        return found is not None and number in found.incoming

    def unsettled(self, link: int) -> Sequence[int]:
        """The numbers of a link's deliveries that are not settled, in order."""
        found = self._links.get(link)
        if found is None:
            return ()
        return list(found.outgoing.values()) if found.is_sender else list(found.incoming)


_DELIVERY: Final = lib.PN_DELIVERY
_TOLD: Final = frozenset(
    (
        lib.PN_LINK_FLOW,
        lib.PN_LINK_REMOTE_OPEN,
        lib.PN_LINK_REMOTE_CLOSE,
        lib.PN_LINK_REMOTE_DETACH,
        lib.PN_SESSION_REMOTE_OPEN,
        lib.PN_SESSION_REMOTE_CLOSE,
        lib.PN_CONNECTION_REMOTE_OPEN,
        lib.PN_CONNECTION_REMOTE_CLOSE,
        lib.PN_TRANSPORT_ERROR,
    )
)


def _told_by_proton(found: weakref.ref[Peer]) -> Callable[[Any, str], None]:
    """What proton is to call with what it would otherwise write to the standard error stream.

    It has no reference to the peer: proton keeps it where the garbage collector does not see it.
    """

    def told(_transport: Any, message: str) -> None:
        _log.debug("proton says: %s", message)
        peer = found()
        # It is in the middle of writing, so this is not the place to do more.
        if peer is not None and ("unable to find" in message or "process error" in message):
            peer._stuck = peer._stuck or message.partition(": ")[2] or message

    return told


def _append_part(parts: list[bytes | bytearray], part: bytes) -> None:
    last = parts[-1] if parts else None
    if len(part) >= _SMALL_PART_BYTES:
        parts.append(part)
    elif isinstance(last, bytearray) and len(last) < _PUSHED_BYTES:
        last += part
    else:
        parts.append(bytearray(part))


def _answer_bytes(error: AmqpError) -> int:
    return _ANSWER_BYTES + len((error.description or "")[:MAX_DESCRIPTION])


def _outgoing_bytes(session: _Session) -> int:
    size: int = lib.pn_session_outgoing_bytes(session.endpoint._impl)
    return size + session.later_bytes
