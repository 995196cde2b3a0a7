"""The transfers that go out at a peer, at once or in parts, and their answers.

proton never frees the buffer of a delivery, nor makes it smaller, as long as the connection lives.  So a large message
is given to proton in parts, as its session's window takes them, and the messages behind it on its link wait here.
Where a link ends before all of that is written, ``withdraw`` tells what the peer has not got as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from cproton_ffi import ffi, lib

from broker_adapter.amqp.events import PLAIN_STATES, RECEIVED, Dispositions, Event, State
from broker_adapter.amqp.proton_engine.buffers import SMALL_BYTES, DeliveryBuffers
from broker_adapter.amqp.proton_engine.connection import ProtonConnection
from broker_adapter.amqp.proton_engine.endpoints import Endpoints, LaterMessage, LinkEndpoint, SessionEndpoint
from broker_adapter.amqp.proton_engine.memory import write_disposition
from broker_adapter.errors import IllegalStateException
from broker_adapter.settings import KIB

#: A message of more bytes is given to proton in parts, of so many bytes each.
_LARGE_MESSAGE_BYTES: Final = 128 * KIB
_PART_BYTES: Final = 64 * KIB
#: What a frame of a transfer has beside its payload, at most.
_TRANSFER_BYTES: Final = 128
#: A state that is decoded counts as so many plain ones, which are not.
_DECODED_WEIGHT: Final = 2
#: So many sessions are checked for output, whether they have some or not.
_FEW_SESSIONS: Final = 8


class OutgoingTransfers:
    """What goes out on the links of a peer.

    Attributes:
        with_later: sessions with messages that proton has not got as a whole, by number.
    """

    def __init__(self, connection: ProtonConnection, endpoints: Endpoints) -> None:
        """Nothing has gone out.

        Args:
            connection: proton's objects.
            endpoints: the sessions and links.
        """
        self.with_later: dict[int, SessionEndpoint] = {}
        self._connection = connection
        self._engine = connection.engine
        self._endpoints = endpoints
        self._links = endpoints.links
        self._with_output: list[SessionEndpoint] = []  # sessions that may have bytes to send
        self._buffers = DeliveryBuffers()
        self._next_delivery = 1
        self._tag_number = ffi.new("uint32_t *")
        self._tag_memory = ffi.new("pn_bytes_t *", {"size": 4, "start": ffi.cast("char *", self._tag_number)})
        self._tag = self._tag_memory[0]

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
            found.later.append(LaterMessage(number, payload, settled, state, on_given))
            session.later_bytes += size
            session.later_links[link] = found
            self.with_later[session.number] = session
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

    def give_parts(self) -> None:
        """Give proton parts of messages that it has not got, as far as its sessions take them; links take turns."""
        engine = self._engine
        given: list[Callable[[], None]] = []
        # As many whole frames as fit into a part.
        frame_bytes = self._connection.transport.remote_max_frame_size
        size = _PART_BYTES
        if 0 < frame_bytes <= _PART_BYTES:
            size = _PART_BYTES // frame_bytes * (frame_bytes - _TRANSFER_BYTES)
        for session in list(self.with_later.values()):
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
            if not later:
                del self.with_later[session.number]
        for on_given in given:
            on_given()

    def on_disposition(self, link: LinkEndpoint, delivery: Any, happened: list[Event]) -> int:
        """The peer has given a message that we sent a state.

        Args:
            link: where it was sent.
            delivery: the C delivery.
            happened: gets the event.

        Returns:
            how much work that was, in plain states.
        """
        engine = self._engine
        number = link.outgoing.get(delivery)
        if number is None:
            return 1
        code = engine.pn_delivery_remote_state(delivery)
        if not engine.pn_delivery_settled(delivery) and (code == 0 or code == RECEIVED):
            return 1
        state = PLAIN_STATES.get(code)
        work = 1
        if state is None:
            state = self._connection.read_state(delivery, code)
            work = _DECODED_WEIGHT
        del link.outgoing[delivery]
        if link.later and link.later[0].delivery == delivery:
            self._abort_unfinished(link)
        elif link.is_second and not engine.pn_delivery_settled(delivery):
            link.settling[number] = delivery
            self._endpoints.settling += 1
        else:
            engine.pn_delivery_settle(delivery)
        if link.remote_closed and link.closed and not link.outgoing:
            self._endpoints.free_link(link)
        if happened:
            last = happened[-1]
            if type(last) is Dispositions and last.link == link.number and last.state == state:
                last.numbers.append(number)
                return work
        happened.append(Dispositions(link.number, [number], state))
        return work

    def settle_second(self, link: int, numbers: Iterable[int]) -> None:
        """Settle what the receiver of a link has given an outcome, and settles once we have; others are ignored."""
        found = self._links.get(link)
        if found is not None and found.settling:
            for number in numbers:
                delivery = found.settling.pop(number, None)
                if delivery is not None:
                    self._endpoints.settling -= 1
                    self._engine.pn_delivery_settle(delivery)

    def _abort_unfinished(self, link: LinkEndpoint) -> None:
        """The receiver has settled the message of which proton has got a part: the others are not sent."""
        message = link.later.popleft()
        link.session.later_bytes -= len(message.payload) - message.given
        lib.pn_delivery_abort(message.delivery)
        if not link.later:
            link.session.later_links.pop(link.number, None)

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
        found.drop_later()
        for delivery in unsent:
            if found.outgoing.pop(delivery, None) is not None:
                # Settled alone, its bytes would count as bytes that wait for the session's window.
                lib.pn_delivery_abort(delivery)
        return numbers

    def abandon(self, link: int) -> None:
        """Stop tracking what was sent on a link and is not settled: the peer will not name it any more."""
        found = self._links.get(link)
        if found is not None:
            found.drop_later()
            for delivery in found.outgoing:
                self._engine.pn_delivery_settle(delivery)
            found.outgoing.clear()
            if found.closed and found.remote_closed:
                self._endpoints.free_link(found)

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
        return numbers

    def waiting_bytes(self) -> int:
        """Bytes of messages of all sessions that wait for the peer's window, or for the socket."""
        with_output = self._with_output
        if len(with_output) > _FEW_SESSIONS:
            for session in [each for each in with_output if not each.outgoing_bytes]:
                session.has_output = False
                with_output.remove(session)
        return sum([session.outgoing_bytes for session in with_output])

    def session_ended(self, session: SessionEndpoint) -> None:
        """A session has no output any more: it is about to be freed."""
        if session.has_output:
            self._with_output.remove(session)

    def release(self) -> None:
        """Nothing goes out any more: the connection is released."""
        self.with_later.clear()
        self._with_output.clear()
