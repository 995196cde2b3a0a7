"""The objects of proton for one connection, and what all parts of a peer need of them."""

from __future__ import annotations

import logging
import secrets
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs
import proton
from cproton_ffi import ffi, lib

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import RemoteOpen, State
from broker_adapter.amqp.messages.values import ULong
from broker_adapter.amqp.proton_engine import frames
from broker_adapter.amqp.proton_engine.dispositions import KEPT, KEPT_CONDITION
from broker_adapter.amqp.proton_engine.memory import (
    c_text,
    read_condition,
    read_disposition,
    read_mapping,
    read_names,
    text_at,
    write_condition,
    write_mapping,
    write_names,
)
from broker_adapter.errors import MessageFormatException
from broker_adapter.settings import GIB, KIB, MIB

_log = logging.getLogger(f"holdfast.{__name__}")


#: Smallest idle-time-out of the other side that is kept, in milliseconds: what ``idle_timeout_seconds=0.5`` asks for.
LEAST_IDLE_TIMEOUT_MS: Final = 250


@attrs.frozen(kw_only=True)
class PeerLimits:
    """What a peer accepts from the other side."""

    max_frame_bytes: int = MIB
    max_message_bytes: int = GIB
    max_unfinished_bytes: int = GIB  #: of all messages together of which only a part has come
    max_sessions: int = 256
    max_links: int = 1024  #: of all sessions together, beside ``extra_links``
    idle_timeout_ms: int = 60_000  #: 0: none
    max_settling: int = 10_000  #: deliveries with an outcome whose sender has not settled them (mode ``second``)
    settled_at_once: int = 0  #: deliveries whose states ``events()`` tells at once, about; 0: all of them
    bare_states: bool = False  #: of a large state only what a server reads is wanted

    @property
    def extra_links(self) -> int:
        """How many links there may be of those that an application does not ask for.

        That is two for requests, one for records of consumers, and one for the transactions of each session: a client
        that has as many links as it may still commits, and restores the same links after it was lost.
        """
        return 3 + self.max_sessions


class UndecodableError(Exception):
    """What the peer has sent cannot be decoded: the connection has failed, and nothing behind it counts."""


class ProtonConnection:
    """A connection, transport and collector of proton, and how they stand.

    Attributes:
        limits: what is accepted from the other side.
        is_server: whether this end waits for the other's header.
        connection: proton's.
        transport: proton's.
        engine: the functions that are called for each message.
        c_transport: the C object below ``transport``.
        c_collector: the C object of the collector.
        scratch: memory that messages and output are copied through; :meth:`grow_scratch` makes it larger.
        scratch_bytes: its size.
        unwritten_bytes: what proton keeps, about, for the answers to messages that it has not written yet.
        opened: whether our open was said.
        tail_closed: whether no more input is taken.
        output_closed: whether everything was sent that ever will be.
        released: whether all memory was freed.
        kept_annotations: of dispositions whose deliveries were not told of yet, by number.
        tick_ms: how often time has to pass at least for the peer's idle-time-out; 0: it has none.
        failure: what the peer did wrong, which ends the connection.
        stuck: why proton writes nothing more, in its own words.
    """

    def __init__(self, limits: PeerLimits, *, server: bool) -> None:
        """A connection that has neither sent nor received anything.

        Args:
            limits: what is accepted from the other side.
            server: whether this end waits for the other's header.
        """
        self.limits = limits
        self.is_server = server
        self.connection: Any = proton.Connection()
        self.transport: Any = proton.Transport(proton.Transport.SERVER if server else proton.Transport.CLIENT)
        self.transport.max_frame_size = limits.max_frame_bytes
        self.transport.channel_max = limits.max_sessions - 1
        self.transport.idle_timeout = limits.idle_timeout_ms / 1000
        self.transport.tracer = _told_by_proton(weakref.ref(self))
        self._collector: Any = proton.Collector()
        self.connection.collect(self._collector)
        self.transport.bind(self.connection)
        self.engine: Any = lib
        self.c_transport = self.transport._impl
        self.c_collector = self._collector._impl
        self.scratch = ffi.new("char[]", 64 * KIB)
        self.scratch_bytes = 64 * KIB
        self.unwritten_bytes = 0
        self.opened = False
        self.tail_closed = False
        self.output_closed = False
        self.released = False
        self.kept_annotations: dict[int, dict[Any, Any]] = {}
        self._first_kept = 1 + secrets.randbits(60)  #: a peer may send a number in this place, and cannot guess it
        self.tick_ms = 0
        self.failure: AmqpError | None = None
        self.stuck = ""

    @property
    def frame_bytes(self) -> int:
        """The largest performative that can be sent, and repeated in an answer."""
        frame = min(self.limits.max_frame_bytes, self.transport.remote_max_frame_size or GIB)
        return min(frames.MAX_PERFORMATIVE_BYTES, frame)

    def grow_scratch(self, size: int) -> None:
        """Have room for so many bytes in ``scratch``."""
        self.scratch_bytes = max(size, 2 * self.scratch_bytes)
        self.scratch = ffi.new("char[]", self.scratch_bytes)

    def push(self, data: bytes, start: int, end: int) -> None:
        """Give proton a part of the input."""
        push = self.engine.pn_transport_push
        transport = self.c_transport
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

    def close_tail(self) -> None:
        """Take no more input."""
        self.tail_closed = True
        try:
            self.transport.close_tail()
        except proton.ProtonException:
            # The transport is closed already; its condition says why.
            return

    def fail(self, error: AmqpError) -> None:
        """Close the connection with an error because of what the peer did."""
        if self.failure is not None or self.released:
            return
        self.failure = error
        condition = lib.pn_transport_condition(self.transport._impl)
        if not lib.pn_condition_is_set(condition):
            write_condition(condition, error)
        self.close_tail()

    def note_failure(self) -> None:
        """proton has failed the connection by itself."""
        if self.failure is None:
            condition = read_condition(lib.pn_transport_condition(self.transport._impl))
            self.failure = condition or AmqpError("amqp:connection:framing-error", "the connection failed")

    def read_state(self, delivery: Any, code: int) -> State:
        """The state that the peer gave a delivery.

        Raises:
            UndecodableError: it cannot be decoded, which fails the connection.
        """
        try:
            state = read_disposition(lib.pn_delivery_remote(delivery), code, self.scratch, self.scratch_bytes)
            return self._with_kept(state) if self.kept_annotations else state
        except ValueError as error:
            self.fail(AmqpError("amqp:decode-error", str(error)))
            raise UndecodableError(str(error)) from error

    def keep_annotations(self, annotations: dict[Any, Any]) -> int:
        """Keep the annotations of a disposition, of which proton gets the number that this returns."""
        number = self._first_kept + len(self.kept_annotations)
        self.kept_annotations[number] = annotations
        return number

    def _with_kept(self, state: State) -> State:
        """A state with its annotations, or the description of its error, that are kept here."""
        if state.outcome is not None:
            return state._replace(outcome=self._with_kept(state.outcome))
        if state.error is not None:
            kept = self._kept_by(state.error)
            return state if kept is None else state._replace(error=state.error._replace(description=kept[KEPT]))
        number = (state.annotations or {}).get(KEPT)
        if number is None:
            return state
        return state._replace(annotations=self.kept_annotations.get(number) if type(number) is ULong else None)

    def _kept_by(self, error: AmqpError) -> dict[Any, Any] | None:
        """What is kept under the number that the error of a bare state names."""
        named = error.description or ""
        if error.condition != KEPT_CONDITION or not named.isdecimal():
            return None
        return self.kept_annotations.get(int(named))

    def open(
        self,
        container_id: str,
        hostname: str | None,
        offered_capabilities: Iterable[str],
        desired_capabilities: Iterable[str],
        properties: dict[str, Any] | None,
    ) -> None:
        """Say our open."""
        connection = self.connection._impl
        try:
            lib.pn_connection_set_container(connection, c_text(container_id))
            if hostname is not None:
                lib.pn_connection_set_hostname(connection, c_text(hostname))
        except ValueError as error:
            raise MessageFormatException(f"the connection cannot be opened: {error}") from error
        self.connection.open()
        write_names(lib.pn_connection_offered_capabilities(connection), offered_capabilities)
        write_names(lib.pn_connection_desired_capabilities(connection), desired_capabilities)
        write_mapping(lib.pn_connection_properties(connection), properties)
        self.opened = True

    def read_open(self) -> RemoteOpen:
        """Return what the peer said as it opened the connection."""
        connection = self.connection._impl
        idle_timeout_ms = lib.pn_transport_get_remote_idle_timeout(self.c_transport)
        # proton sends an empty frame once nothing was sent for half of it; it looks when time passes.
        self.tick_ms = idle_timeout_ms // 4
        refusal = None
        if 0 < idle_timeout_ms < LEAST_IDLE_TIMEOUT_MS:  # AMQP 1.0 section 2.4.5: none has to support any value
            reason = (
                f"an idle-time-out of {idle_timeout_ms} ms is not kept; ask for {LEAST_IDLE_TIMEOUT_MS} ms at least"
                " (option idle_timeout_seconds, of which half is announced:"
                f" {2 * LEAST_IDLE_TIMEOUT_MS / 1000:g} at least)"
            )
            refusal = AmqpError("amqp:not-implemented", reason)
        return RemoteOpen(
            text_at(lib.pn_connection_remote_container(connection)) or "",
            text_at(lib.pn_connection_remote_hostname(connection)),
            frozenset(read_names(lib.pn_connection_remote_offered_capabilities(connection))),
            frozenset(read_names(lib.pn_connection_remote_desired_capabilities(connection))),
            read_mapping(lib.pn_connection_remote_properties(connection)),
            self.transport.remote_idle_timeout,
            refusal,
        )

    def read_close(self) -> AmqpError | None:
        """The error with which the peer closed the connection."""
        return read_condition(lib.pn_connection_remote_condition(self.connection._impl))

    def close(self, error: AmqpError | None = None) -> None:
        """Close the connection, or answer the peer's close.  Legal twice."""
        if self.released:
            return
        if error is not None:
            write_condition(lib.pn_connection_condition(self.connection._impl), error)
        lib.pn_connection_close(self.connection._impl)

    def release(self) -> None:
        """Free proton's objects.  What the parts of the peer know of them is removed before."""
        self.scratch = b""
        self.transport.unbind()
        self._collector.release()
        # They free what they hold as they go.
        self.transport = self.connection = self._collector = self.engine = None
        self.c_transport = self.c_collector = None


def _told_by_proton(found: weakref.ref[ProtonConnection]) -> Callable[[Any, str], None]:
    """Return what proton is to call with what it would otherwise write to the standard error stream.

    It has no reference to the connection: proton keeps it where the garbage collector does not see it.
    """

    def told(_transport: Any, message: str) -> None:
        _log.debug("proton says: %s", message)
        connection = found()
        # It is in the middle of writing, so this is not the place to do more.
        if connection is not None and ("unable to find" in message or "process error" in message):
            connection.stuck = connection.stuck or message.partition(": ")[2] or message

    return told
