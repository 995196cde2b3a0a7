"""The transfers that come in at a peer: whole messages, parts of messages, and what is dropped.

Incoming deliveries are taken out of proton's buffers at once, so a consumer that settles late does not close the
session's window for the others.  A delivery of several frames is handed out when it is complete.

A message that breaks a limit of its link (size, credit) is not handed out, and closes the link.  Neither is what
follows it on that link, since its sender could not know yet.  ``Dropped`` tells of them, with the transactions that
they name; each is settled with a state: rejected, but what a client has only behind such a message is released, so that
its broker delivers it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from cproton_ffi import ffi, lib

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    PLAIN_STATES,
    REJECTED,
    RELEASED_STATE,
    TRANSACTIONAL,
    Dropped,
    Event,
    Incoming,
    State,
    Transfers,
)
from broker_adapter.amqp.proton_engine.connection import ProtonConnection, UndecodableError
from broker_adapter.amqp.proton_engine.endpoints import Endpoints, LinkEndpoint, UnfinishedMessages
from broker_adapter.amqp.proton_engine.memory import MAX_DESCRIPTION, fields_of, write_disposition, write_fields
from broker_adapter.settings import KIB

#: What proton keeps of a message that was settled until it has written that, in bytes.
_ANSWER_BYTES: Final = 1024
#: Parts of fewer bytes that come in are put together as they come: each costs more than its bytes.
_SMALL_PART_BYTES: Final = 4 * KIB
#: Such parts are put together up to so many bytes.
_JOINED_BYTES: Final = 64 * KIB
_NO_CREDIT: Final = AmqpError("amqp:link:transfer-limit-exceeded", "more messages than credit")
_CUT_SHORT: Final = AmqpError("amqp:illegal-state", "the link ended when only a part of a message had come")
#: What a named tuple does, without the call of a function of Python.
_new: Final = tuple.__new__


class IncomingTransfers:
    """What comes in on the links of a peer.

    Attributes:
        payload: of the frame under way, which proton has got without it.
    """

    def __init__(self, connection: ProtonConnection, endpoints: Endpoints, unfinished: UnfinishedMessages) -> None:
        """Nothing has come in.

        Args:
            connection: proton's objects.
            endpoints: the sessions and links.
            unfinished: the messages of which only a part has come.
        """
        self.payload = b""
        self._connection = connection
        self._engine = connection.engine
        self._read_state = connection.read_state
        self._max_message_bytes = connection.limits.max_message_bytes
        self._max_unfinished_bytes = connection.limits.max_unfinished_bytes
        self._endpoints = endpoints
        self._links = endpoints.links
        self._unfinished = unfinished
        self._next_delivery = 1

    def on_transfer(self, link: LinkEndpoint, delivery: Any, happened: list[Event]) -> None:
        """There is something of a message.

        Args:
            link: where it comes in.
            delivery: the C delivery.
            happened: gets the event of a message that is complete, or dropped.
        """
        engine, connection = self._engine, self._connection
        pointer = link.pointer
        size = engine.pn_delivery_pending(delivery)
        if size > connection.scratch_bytes:
            connection.grow_scratch(size)
        partial = engine.pn_delivery_partial(delivery)
        payload: bytes | None
        if (
            partial
            or link.partial is not None
            or self.payload
            or size > self._max_message_bytes
            or link.violation is not None
        ):
            payload = self._on_part(link, delivery, size, partial, happened)
            if payload is None:
                return
        else:
            scratch = connection.scratch
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

    def _on_part(
        self, link: LinkEndpoint, delivery: Any, size: int, partial: bool, happened: list[Event]
    ) -> bytes | None:
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
        engine, unfinished = self._engine, self._unfinished
        payload, self.payload = self.payload, b""
        if link.violation is not None or engine.pn_delivery_aborted(delivery):
            self._drop(link, delivery, happened)
            return None
        more = size + len(payload)
        error: AmqpError | None = None
        if link.partial_bytes + more > self._max_message_bytes:
            reason = f"message of more than {self._max_message_bytes} bytes is larger than the limit"
            error = AmqpError("amqp:link:message-size-exceeded", reason)
        elif partial and unfinished.bytes + more > self._max_unfinished_bytes:
            reason = f"unfinished messages of more than {self._max_unfinished_bytes} bytes are beyond the limit"
            error = AmqpError("amqp:resource-limit-exceeded", reason)
        elif link.partial is None and engine.pn_link_credit(link.pointer) < engine.pn_link_queued(link.pointer):
            error = _NO_CREDIT
        if error is not None:
            self._violate(link, error)
            self._drop(link, delivery, happened, State(REJECTED, error=error))
            return None
        scratch = self._connection.scratch
        taken = engine.pn_link_recv(link.pointer, scratch, size) if size else 0
        ahead = ffi.unpack(scratch, taken) if taken > 0 else b""
        parts = link.partial
        if parts is None and not partial:
            return ahead + payload if ahead else payload
        if parts is None:
            parts = unfinished.begin(link, delivery)
        for part in (ahead, payload):
            if part:
                _append_part(parts, part)
        link.partial_bytes += more
        unfinished.bytes += more
        if partial:
            return None
        whole = b"".join(parts)
        unfinished.remove(link)
        return whole

    def has_unfinished(self, txn_id: bytes) -> bool:
        """Return whether only a part has come of a message that belongs to this transaction, or may belong to it."""
        try:
            return any(self._transaction_of(link.unfinished) == txn_id for link in self._unfinished.links)
        except UndecodableError:
            return True

    def _transaction_of(self, delivery: Any) -> bytes | None:
        """The transaction that a message which came in belongs to, so far as that is known.

        Raises:
            UndecodableError: it cannot be decoded, which fails the connection.
        """
        code = self._engine.pn_delivery_remote_state(delivery)
        if not code:
            return None
        state = self._read_state(delivery, code)
        return state.txn_id if state.code == TRANSACTIONAL else None

    def cut_short(self, link: LinkEndpoint, happened: list[Event]) -> None:
        """A link ends: the rest of a message that has come in part will not come, and its transaction misses it."""
        if link.unfinished is not None:
            txn_id = self._transaction_of(link.unfinished)
            self._unfinished.remove(link)
            if txn_id is not None:
                happened.append(Dropped(link.number, 1, {txn_id}, _CUT_SHORT))

    def refuse_largest_unfinished(self, error: AmqpError, happened: list[Event]) -> None:
        """Reject the largest message of which only a part has come, if any, and close its link with this error."""
        if self._unfinished.links:
            link = max(self._unfinished.links, key=lambda each: each.partial_bytes)
            self._violate(link, error)
            with suppress(UndecodableError):  # the connection has failed
                self._drop(link, link.unfinished, happened, State(REJECTED, error=error))

    def _violate(self, link: LinkEndpoint, error: AmqpError) -> None:
        """The peer broke a limit on a link: close it, and take nothing more that comes on it."""
        if link.violation is None:
            link.violation = error
            self._endpoints.close_link(link.number, error)

    def _drop(self, link: LinkEndpoint, delivery: Any, happened: list[Event], state: State | None = None) -> None:
        """Settle a message that is not handed out; ``state`` None: it only came behind another one, or was aborted."""
        engine, connection = self._engine, self._connection
        self._unfinished.remove(link)
        error = link.violation
        txn_id = self._transaction_of(delivery)
        aborted = engine.pn_delivery_aborted(delivery)
        if not aborted and error is not None and not engine.pn_delivery_settled(delivery):
            if state is None:
                reason = f"the link was closed because of a message before it: {error.description}"
                rejected = State(REJECTED, error=error._replace(description=reason))
                state = rejected if connection.is_server else RELEASED_STATE
            write_disposition(lib.pn_delivery_local(delivery), state)
            engine.pn_delivery_update(delivery, state.code)
            connection.unwritten_bytes += _ANSWER_BYTES if state.error is None else _answer_bytes(state.error)
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

    def settle(self, link: int, numbers: Iterable[int], state: State) -> None:
        """Settle incoming deliveries of a link, in order, all alike; unknown numbers are ignored.

        Neighbours that were accepted or released go into one frame.
        """
        found = self._links.get(link)
        if found is None:
            return
        engine, take = self._engine, found.incoming.pop
        update, settle = engine.pn_delivery_update, engine.pn_delivery_settle
        code, is_second = state.code, found.is_second
        plain = PLAIN_STATES.get(code) == state
        fields = fields_of(state) if code == TRANSACTIONAL else b""
        answer_bytes = _ANSWER_BYTES if plain or state.error is None else _answer_bytes(state.error)
        unwritten_bytes = 0
        for number in numbers:
            delivery = take(number, None)
            if delivery is None:
                continue
            unwritten_bytes += answer_bytes
            if fields:
                write_fields(lib.pn_delivery_local(delivery), fields)
            elif not plain:
                write_disposition(lib.pn_delivery_local(delivery), state)
            update(delivery, code)
            if is_second:
                found.settling[delivery] = None
                self._endpoints.settling += 1
            else:
                settle(delivery)
        self._connection.unwritten_bytes += unwritten_bytes
        if self._endpoints.settling > self._connection.limits.max_settling and found.settling:
            reason = (
                f"more than {self._connection.limits.max_settling} messages have an outcome that their sender has not"
                " settled (rcv-settle-mode second); settle each when its disposition comes"
            )
            self._violate(found, AmqpError("amqp:resource-limit-exceeded", reason))
        if found.closed and found.remote_closed:
            self._endpoints.free_link(found)

    def on_settled(self, link: LinkEndpoint, delivery: Any) -> None:
        """The sender has settled a message that it settles ahead of us: it is over."""
        if delivery in link.settling and self._engine.pn_delivery_settled(delivery):
            del link.settling[delivery]
            self._endpoints.settling -= 1
            self._engine.pn_delivery_settle(delivery)


def _append_part(parts: list[bytes | bytearray], part: bytes) -> None:
    last = parts[-1] if parts else None
    if len(part) >= _SMALL_PART_BYTES:
        parts.append(part)
    elif isinstance(last, bytearray) and len(last) < _JOINED_BYTES:
        last += part
    else:
        parts.append(bytearray(part))


def _answer_bytes(error: AmqpError) -> int:
    return _ANSWER_BYTES + len((error.description or "")[:MAX_DESCRIPTION])
