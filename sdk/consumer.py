"""Consumers: what receives messages (Jakarta Messaging 3.1 section 8).

Theory of operation
    The transport pushes deliveries into ``_buffer`` as far as it has credit.  With a prefetch of n, credit and buffer
    together are n; when half of it is used up, that half is granted again.  With a prefetch of 0, one credit is granted
    when somebody asks, and not before.

    That the buffer is empty does not say that the queue is: the last word has a *drain*, which comes back when the
    broker has sent what it can.  It costs a round trip, so it is made where the answer would otherwise be "nothing":
    by ``receive_nowait`` at once, by ``receive(timeout)`` shortly before its time is over.

    Where something is given back, and the broker does not answer the drain in time, messages may be on their way that
    belong behind it.  Until there is an answer, nothing is given out and no credit is granted; then what has come by
    then is given back as well.

    When the connection or the link is lost, what is in the buffer is stale, and the credit is gone.  Both are put right
    by the thread that receives, once the link is there again: nobody else counts credit.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ack_modes import DeliveryTag, Outcome, Settlement
from broker_adapter import (
    ConnectionLostException,
    Delivery,
    Destination,
    Envelope,
    IllegalStateException,
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
)
from sdk.acknowledgements import AckRecord, Source, ack_record_for
from sdk.checks import check_timeout
from sdk.closing import Closing
from sdk.dropped import drain_end, dropped, taken_out
from sdk.envelopes import message_of
from sdk.lifecycle import Event, Lifecycle, State
from sdk.message import Message
from sdk.session_state import SessionState, log

Listener = Callable[[Message], object]
#: Gives back what the listener of a consumer raised on.
Redeliver = Callable[["MessageConsumer", Sequence[Settlement]], None]

#: The part of a timed receive that is kept for the drain, in seconds: a round trip that takes longer is a network
#: that is away.
_DRAIN_SECONDS = 0.1
#: How long a listener waits for the answer to a drain before others of its session have their turn, in seconds.
_LISTENER_DRAIN_SECONDS = 0.5
#: The usual types of time-outs.
_SECONDS = frozenset((int, float))
#: Messages redelivered too often, of which one is in the log.
_REJECTIONS_PER_LINE = 100
#: How long a listener rests that raised on a redelivered message, in seconds: each time twice as long, up to a limit.
_FIRST_REST = 0.1
_LONGEST_REST = 30.0


class MessageConsumer:
    """Receives the messages of a destination or subscription.  Made by ``session.create_consumer`` and its like."""

    # A misspelt attribute is an error.
    __slots__ = (
        "__weakref__",
        "_acknowledge",
        "_arrived",
        "_away",
        "_buffer",
        "_check",
        "_closing",
        "_destination",
        "_ended_here",
        "_epoch",
        "_gives_back",
        "_gives_back_until",
        "_granted",
        "_half",
        "_in_doubt",
        "_interrupted",
        "_is_stopped",
        "_lifecycle",
        "_link",
        "_listener",
        "_no_local",
        "_on_close",
        "_prefetch",
        "_rejected",
        "_relinked",
        "_resumes_at",
        "_selector",
        "_source",
        "_stale_link",
        "_state",
        "_taken",
        "_turns",
        "_undrained",
        "_unsettled",
        "_used",
    )

    def __init__(
        self,
        state: SessionState,
        number: int,
        destination: Destination,
        selector: str | None,
        no_local: bool,
        prefetch: int,
        on_close: Callable[[MessageConsumer], None],
        acknowledge: Callable[[DeliveryTag], None],
        source: Source | None = None,
    ) -> None:
        """Made by the session.

        Args:
            state: the session's.
            number: of the consumer in its session.
            destination: where its messages come from.
            selector: which of them, in the selector language; None: all.
            no_local: whether those that its own connection sent are left out.
            prefetch: messages that it may hold which the application has not received; 0: it asks for each.
            on_close: called once, when the link is detached.
            acknowledge: what ``message.acknowledge()`` calls.
            source: the queue or subscription whose messages come again after a loss; None: none do.
        """
        self._source = source
        self._destination = destination
        self._selector = selector
        self._no_local = no_local
        self._state = state
        self._on_close = on_close
        self._acknowledge = acknowledge
        self._lifecycle = Lifecycle(f"consumer {number} of {state.name}")
        self._listener: Listener | None = None
        self._buffer: deque[Delivery] = deque()
        self._closing = False
        self._turns = Closing()
        self._check: Callable[[Message], None] | None = None  #: looks at a message before it counts as received
        # Credit: counted up by the thread that grants, and by the transport's thread in its sink.
        self._prefetch = prefetch
        self._half = max(1, self._prefetch // 2)
        self._granted = 0
        self._arrived = 0
        self._used = 0  #: messages taken from the buffer whose credit was not granted again
        self._ended_here = 0  #: messages that were not given out, and do not come again
        self._rejected = 0  #: messages that were redelivered too often
        self._taken: Delivery | None = None  #: what the call of ``receive`` under way has taken
        self._unsettled: Sequence[Settlement] = ()  #: what that hands over now
        self._interrupted = False  #: a call of ``receive`` was, by the handler of a signal, so credit may be miscounted
        self._undrained = False  #: a drain had no answer in time, so the credit may be gone or not
        self._is_stopped = False  #: something is being given back: no credit is granted
        self._gives_back = False  #: what comes before the answer to that drain is given back
        self._gives_back_until = 0.0  #: when to go on without that answer (monotonic seconds)
        self._in_doubt = False  #: credit was granted while the link was lost: it may count for the one after it
        # After a loss.
        self._epoch = state.epoch  #: of the connection that its credit was granted on
        self._stale_link = -1  #: the last link, in the tags of deliveries, that the broker closed; numbers count up
        self._away = False  #: its link is being attached again, while the connection lives
        self._relinked = False  #: its link was attached again
        self._resumes_at: float | None = None  #: its listener raised, and rests until then (monotonic seconds)
        self._link = -1  # at the end: what a handler of a signal interrupts here is not closed

    def __repr__(self) -> str:
        return (
            f"<MessageConsumer {self._lifecycle.name} of {str(self._destination)!r}, {self._lifecycle.state.name}, "
            f"{len(self._buffer)} prefetched>"
        )

    def __del__(self) -> None:
        if getattr(self, "_link", -1) >= 0 and self._lifecycle.is_to_close and self._state.lifecycle.usable:
            dropped(self, self.close, self._state.transport)

    def __enter__(self) -> MessageConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def destination(self) -> Destination:
        """Where its messages come from."""
        return self._destination

    @property
    def selector(self) -> str | None:
        """Which messages it takes; None: all."""
        return self._selector

    @property
    def no_local(self) -> bool:
        """Whether it leaves out what its own connection sent."""
        return self._no_local

    # Receiving.

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message.

        Args:
            timeout: how long to wait, in seconds; None: until one comes or the consumer is closed.

        While the connection is being restored this waits on, until the time is over.

        Returns:
            The message, or None when the time is over or the consumer is closed, by whichever thread.

        Raises:
            IllegalStateException: closed, in use by another thread, or the session has listeners.
            ConnectionLostException: the connection is gone for good; or (AUTO) it was lost before the message could
                be acknowledged, which will come again.
        """
        return self._receive(timeout, None)

    def _receive(self, timeout: float | None, check: Callable[[Message], None] | None) -> Message | None:
        """``receive``, with a look at the message before it counts as received.

        Args:
            timeout: as for ``receive``.
            check: raises what is to be raised; the message is then the next one again, as if nothing had been.
        """
        state = self._state
        if state.calling:
            state.refuse_nested()
        entered = nested = False
        taken: Delivery | None = None
        try:
            try:
                if not state.own(False):
                    state.own_or_refuse()
                self._taken = None
                nested = state.calling
                entered = state.calling = True
                self._check = check
                if (
                    state.running
                    and self._buffer
                    and (timeout is None or (type(timeout) in _SECONDS and timeout >= 0))
                    and not (state.listening or self._closing or self._gives_back)
                ):
                    message = self._take()
                    if message is not None or self._ended():
                        return message
                return self._receive_slowly(timeout)
            except BaseException as error:  # perhaps of the handler of a signal
                if entered:
                    self._put_back(self._taken)
                    self._taken = None
                    self._interrupted = self._interrupted or not isinstance(error, JMSException)
                raise
            finally:
                if entered:
                    taken, self._taken = self._taken, None
                    state.gives_out, state.calling = False, nested
                try:
                    state.disown()
                except RuntimeError:
                    if entered:  # else it was refused
                        raise
                if not state.running:
                    state.wake()  # whoever stops the session waits for this
        except BaseException:  # of the handler of a signal, on the last steps
            self._put_back(taken)
            raise

    def receive_nowait(self) -> Message | None:
        """The next message if one waits in the buffer or at the broker, else None.

        Asking the broker takes one round trip, and at most ``poll_timeout_seconds``.

        Raises:
            IllegalStateException: closed, in use by another thread, or the session has listeners.
            ConnectionLostException: the network failed.
        """
        return self.receive(0)

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the consumer is closed."""
        while (message := self.receive()) is not None:
            yield message

    def _receive_slowly(self, timeout: float | None) -> Message | None:
        """``receive`` where the buffer was empty, or something else is to be said."""
        self._require_usable()
        if self._state.listening:
            raise IllegalStateException(f"cannot receive: {self._state.name} has listeners, which take its messages")
        check_timeout(timeout)
        deadline = time.monotonic() + (timeout or 0)
        if self._interrupted:
            self._mend_credit(timeout)
        if timeout is None:
            return self._receive_before(None)
        if timeout > 0:
            message = self._receive_before(deadline - min(timeout / 2, _DRAIN_SECONDS))
            if message is not None or self._ended():
                return message
            if self._state.running:
                # What waits at the broker comes with certainty, and not only if it happens to come in time.
                self._drain_if_there(max(0.0, deadline - time.monotonic()))
                message = self._take_any()
                if message is not None or self._ended():
                    return message
            if not self._prefetch and not self._is_away:
                # No credit is left, and none is given: what came after the return would be held and not looked at.
                self._state.wait_until(self._something, deadline)
                return self._take_any()
            return self._receive_before(deadline)
        if self._state.running:
            return self._receive_drained(deadline + self._state.settings.poll_timeout_seconds)
        return self._take_any()

    def _receive_drained(self, deadline: float) -> Message | None:
        """What waits at the broker by now."""
        while True:
            while not self._drain_if_there(max(0.0, deadline - time.monotonic())):
                if not self._state.wait_until(lambda: self._needs_reset or self._is_over, deadline):
                    return None
                if self._ended():
                    return None
            # This may be more than one message, or some that cannot be given out, with others behind them.
            ended = self._ended_here
            message = self._take_any()
            if message is not None or self._ended_here == ended or time.monotonic() >= deadline:
                return message

    def _receive_before(self, deadline: float | None) -> Message | None:
        """Wait for the buffer to fill."""
        state = self._state
        while True:
            self._reset()
            if self._undrained and (deadline is None or self._gives_back):
                limit = state.settings.request_timeout_seconds
                self._drain_if_there(limit if deadline is None else max(0.0, min(limit, deadline - time.monotonic())))
            self._pull()
            if not state.wait_until(self._something, deadline):
                return None
            if self._ended():
                return None
            self._reset()
            message = self._take_any()
            if message is not None:
                return message
            if deadline is not None and time.monotonic() >= deadline:
                return None  # a broker whose clock is behind sends again and again what has expired here

    def _something(self) -> bool:
        return (
            (bool(self._buffer) and self._state.running and not self._gives_back)
            or self._is_over
            or self._needs_reset
            or (self._gives_back and not self._is_away)  # so the broker is asked again
        )

    @property
    def _is_over(self) -> bool:
        return self._closing or not self._state.lifecycle.usable

    def _ended(self) -> bool:
        """Whether there is nothing more to receive, because somebody closed; raises where something failed."""
        state = self._state
        for lifecycle in (self._lifecycle, state.lifecycle):
            if lifecycle.error is not None:
                lifecycle.require_usable()
        return self._closing or not state.lifecycle.usable

    def _take_any(self) -> Message | None:
        # What cannot be given out may come again at once: not more than what is there now.
        for _ in range(len(self._buffer)):
            if not self._state.running or not self._buffer or self._gives_back:
                break
            message = self._take()
            if message is not None:
                return message
        return None

    def _take(self) -> Message | None:
        """The first of the buffer, delivered and consumed; None where it cannot be given out."""
        # It stays in the buffer until it is noted as delivered: a handler of a signal may raise anywhere on the way.
        buffer = self._buffer
        try:
            delivery = buffer[0]
        except IndexError:  # another thread closes it, and has taken what was there
            return None
        state, tag = self._state, delivery.tag
        if tag.epoch != state.epoch or tag.link <= self._stale_link:  # as _is_stale, without a call for each message
            self._drop(delivery)
            return None  # lost with its connection: it comes again
        envelope = self._opened(delivery)
        if envelope is None:
            self._drop(delivery)
            return None
        if self._check is not None:
            self._check(message_of(envelope, delivery.delivery_count))
        policy = state.policy
        with state.settling:
            if tag.epoch != state.epoch or tag.link <= self._stale_link:
                self._drop(delivery)
                return None
            if not state.running or self._closing:  # by another thread, between the look at the buffer and here
                return None
            state.gives_out = True
            self._taken = delivery
            policy.delivered(tag)
            try:
                buffer.popleft()
            except IndexError:  # the handler of a signal has closed it, and what was there is given back
                policy.withdrawn(tag)
                return None
            # Ahead of settling: a handler of a signal that raises behind that loses what is not returned yet.
            message = message_of(envelope, delivery.delivery_count, self._acknowledge, tag)
            acknowledgements = state.acknowledgements
            record = None if acknowledgements is None else ack_record_for(self._source, envelope, delivery)
            self._unsettled = settlements = policy.consumed(tag, time.monotonic())
            at_once = len(settlements) == 1
            if acknowledgements is not None and not at_once:
                acknowledgements.delivered(tag, record)
            if settlements:
                try:
                    if at_once and acknowledgements is not None:
                        state.settle_at_once(settlements, record)
                    else:
                        state.settle(settlements)
                    self._unsettled = ()
                except ConnectionLostException as error:
                    self._unsettled = ()
                    if policy.tells_lost_acknowledgements:
                        raise ConnectionLostException(
                            f"message {envelope.message_id!r} could not be acknowledged, and will come again: {error}"
                        ) from error
        if policy.due_at is not None:
            state.keep_time(policy.due_at)
        self._count_used()
        if state.confirms and settlements:
            state.confirm_or_report()
        return message

    def _put_back(self, delivery: Delivery | None) -> None:
        """The application did not get what the interrupted ``receive`` took, if anything: it is the next one again."""
        if delivery is None:
            return
        state = self._state
        with state.settling:
            unsettled, self._unsettled = self._unsettled, ()
            if unsettled:  # some of them may be with the broker
                with contextlib.suppress(ConnectionLostException):
                    state.settle(unsettled)
                return
            if not state.policy.withdrawn(delivery.tag):
                return
            if self._closing:
                state.pass_over((delivery.tag,), Outcome.RELEASED)
            elif not (self._buffer and self._buffer[0] is delivery):
                self._buffer.appendleft(delivery)

    def _opened(self, delivery: Delivery) -> Envelope | None:
        """The envelope; None where it cannot be read or has expired: it is then settled here."""
        try:
            envelope = delivery.envelope
        except MessageFormatException as error:
            # Nobody can read it: it goes to the dead letters, and the application is told.
            self._state.pass_over((delivery.tag,), Outcome.REJECTED)
            self._ended_here += 1
            self._count_used()
            self._state.report(error)
            return None
        acknowledgements = self._state.acknowledgements
        if (
            acknowledgements is not None
            and acknowledgements.lost.knows_any
            and self._was_acknowledged(delivery, envelope)
        ):
            return None
        settings = self._state.settings
        if settings.max_redeliveries is not None and delivery.delivery_count > settings.max_redeliveries:
            if self._rejected % _REJECTIONS_PER_LINE == 0:
                log.warning(
                    "! %s rejects %r after %d redeliveries (option max_redeliveries); it rejected %d others before",
                    *(self._lifecycle.name, envelope.message_id, settings.max_redeliveries, self._rejected),
                )
            self._rejected += 1
            self._ended_here += 1
            self._state.pass_over((delivery.tag,), Outcome.REJECTED)
            self._count_used()
            return None
        expires_at_ms = envelope.expires_at_ms if settings.local_message_expiry else None
        if expires_at_ms is not None and time.time_ns() // 1_000_000 >= expires_at_ms:
            # The broker has the last word on that: clocks differ, and a message given back as failed so often that
            # it becomes a dead letter is not lost.
            self._state.pass_over((delivery.tag,), Outcome.MODIFIED)
            self._count_used()
            return None
        # The broker counts a delivery first that may have ended the process.
        if delivery.take_in_hand is not None and not delivery.take_in_hand():
            self._count_used()
            return None
        return envelope

    def _drop(self, delivery: Delivery) -> None:
        """Take the first of the buffer out, which is not given out."""
        with self._state.settling:  # another thread may close it, and take what is there
            if self._buffer and self._buffer[0] is delivery:
                self._buffer.popleft()

    def _was_acknowledged(self, delivery: Delivery, envelope: Envelope) -> bool:
        """Whether a message comes again only because its acknowledgement was lost; it is then given again."""
        state = self._state
        acknowledgements = state.acknowledgements
        record = ack_record_for(self._source, envelope, delivery)
        if acknowledgements is None or record is None:
            return False
        if not acknowledgements.lost.take(record):
            if acknowledgements.lost.was_seen(record):
                delivery.delivery_count = max(1, delivery.delivery_count)
            return False
        tag = delivery.tag
        with state.settling:
            try:
                if not self._is_stale(tag):
                    acknowledgements.delivered(tag, record)  # this one may be lost as well
                    state.settle(state.policy.passed_over((tag,), Outcome.ACCEPTED))
                else:
                    acknowledgements.lost.add((record,), acknowledgements.too_late)
            except ConnectionLostException:
                acknowledgements.lost.add((record,), acknowledgements.too_late)
        self._ended_here += 1
        self._count_used()
        return True

    # Listening.

    @property
    def listener(self) -> Listener | None:
        """Called with each message, on the session's thread; None: ``receive`` is used.

        A listener that raises has failed to process its message, which is logged; what becomes of the message is for
        the acknowledge mode to say.  Setting None waits for a listener that runs in another thread, at most
        ``close_timeout_seconds``.
        """
        return self._listener

    @listener.setter
    def listener(self, listener: Listener | None) -> None:
        if listener is not None and not callable(listener):
            raise TypeError(f"listener={listener!r} cannot be called")
        self._require_usable()
        state = self._state
        owned = False
        try:
            owned = state.own(False) or state.own_unless_served()
            with state.lock:
                self._listener = listener
                if listener is not None:
                    state.listening[self._link] = self
                else:
                    state.listening.pop(self._link, None)
                state.wake()
        finally:
            try:
                state.disown()
            except RuntimeError:
                if owned:  # else it is served, or was refused
                    raise
        if listener is None:
            self._wait_for_listener(time.monotonic() + state.settings.close_timeout_seconds, "is taken away")
        else:
            try:
                state.ensure_thread()
            except BaseException:  # nobody would call it
                with state.lock:
                    self._listener = None
                    state.listening.pop(self._link, None)
                raise

    @property
    def _has_work(self) -> bool:
        """Whether the session's thread has something to do for this consumer."""
        if self._resumes_at is not None:
            if time.monotonic() < self._resumes_at:
                return False
            self._resumes_at = None
        there_is = bool(self._buffer) or self._needs_reset or (self._undrained and not self._is_away)
        return there_is and self._listener is not None and not self._closing

    def _ask_for_work(self) -> None:
        """Grant the one credit of a consumer without prefetch; for the session's thread."""
        if self._listener is not None and not self._closing:
            self._reset()
            self._pull()

    def _dispatch(self, redeliver: Redeliver) -> None:
        """Give one message to the listener; for the session's thread, which owns the session.

        Args:
            redeliver: gives back what the listener raised on, such that it comes again next.
        """
        self._reset()
        if self._gives_back or (self._undrained and not self._buffer):
            self._stop_flow(time.monotonic() + _LISTENER_DRAIN_SECONDS)
            if self._undrained:
                self._resumes_at = time.monotonic() + _FIRST_REST
            else:
                self._open_credit()
            return
        listener = self._listener
        if listener is None or self._closing or not self._buffer:
            return
        try:
            delivery = self._buffer[0]
        except IndexError:  # another thread closes it, and has taken what was there
            return
        state, tag = self._state, delivery.tag
        envelope = None if self._is_stale(tag) else self._opened(delivery)
        if envelope is None:
            self._drop(delivery)  # where it was lost with its connection, it comes again
            return
        policy = state.policy
        with state.settling:
            if self._is_stale(tag):
                self._drop(delivery)
                return
            if self._closing:
                return
            policy.delivered(tag)
            self._buffer.popleft()
            if state.acknowledgements is not None:
                state.acknowledgements.delivered(tag, ack_record_for(self._source, envelope, delivery))
        raised = False
        try:
            listener(message_of(envelope, delivery.delivery_count, self._acknowledge, tag))
        except BaseException:  # whatever it is, it is the application's; the session's thread must go on
            raised = True
            log.exception("! the listener of %s raised on %r", self._lifecycle.name, envelope.message_id)
        try:
            with state.settling:
                now = time.monotonic()
                is_stale = self._is_stale(tag)
                failed = policy.listener_raised(tag, now) if raised else ()
                settlements = () if raised else policy.consumed(tag, now)
                state.settle(settlements)
            if policy.due_at is not None:
                state.keep_time(policy.due_at)
            self._count_used()
            if failed:
                redeliver(self, failed)
            if failed and not state.is_holdfast:
                # Our own engine holds back what fails again and again; for others it is done here.
                failures = delivery.delivery_count + 1
                if failures > 1:
                    self._resumes_at = time.monotonic() + min(_FIRST_REST * 2 ** min(failures - 2, 20), _LONGEST_REST)
            if state.confirms and settlements:
                state.confirm()
            if is_stale and not raised and policy.tells_lost_acknowledgements:
                raise ConnectionLostException("the connection was lost while its listener ran")
        except ConnectionLostException as error:
            if policy.tells_lost_acknowledgements and not raised:
                # Nobody waits for this thread, so the exception listener is told.
                state.report(
                    ConnectionLostException(
                        f"message {envelope.message_id!r} could not be acknowledged, and comes again: {error.reason}"
                    )
                )
        except JMSException as error:
            state.report(error)

    # Credit.

    def _accept(self, deliveries: Sequence[Delivery]) -> None:
        """The transport's sink."""
        self._buffer.extend(deliveries)
        # After the buffer, so that credit is never thought to be smaller than it is.
        self._arrived += len(deliveries)
        self._state.wake()

    def _open_credit(self) -> None:
        """Let the broker send as far as the prefetch goes; for the session, when nothing else grants.

        Not on a stopped connection, where messages would only be kept from others; its start calls this again.
        """
        if not self._state.running:
            return
        self._reset(grants=False)
        if self._is_away or self._gives_back:
            return
        with self._state.settling:  # who starts the connection may be another thread
            self._used = 0
            missing = self._prefetch - (self._granted - self._arrived) - len(self._buffer)
            if missing > 0:
                self._grant(missing)

    def _grant(self, messages: int) -> None:
        """Let the broker send so many more, unless the consumer is being closed, or something is given back."""
        with self._state.settling:  # so none is granted behind the drain of another thread that closes it
            if self._closing or self._is_stopped:
                return
            self._granted += messages
            self._state.transport.credit(self._link, messages)
        if self._relinked or self._is_away:
            # The link was lost, and may have been there again when the credit was granted.
            self._in_doubt = True

    def _count_used(self) -> None:
        self._used = used = self._used + 1
        if used >= self._half and self._prefetch and not self._is_away:
            self._used = 0
            with contextlib.suppress(ConnectionLostException):  # this message was received all the same
                self._grant(used)

    def _pull(self) -> None:
        """Ask for one message, without prefetch and where none is asked for yet."""
        if self._is_away or self._needs_reset or self._gives_back:
            return
        if not self._prefetch and self._state.running and not self._buffer and self._granted <= self._arrived:
            self._granted = self._arrived
            self._grant(1)

    @property
    def _is_away(self) -> bool:
        """Whether there is no link that credit could be granted on."""
        state = self._state
        return state.interrupted or self._away or self._epoch != state.epoch

    @property
    def _needs_reset(self) -> bool:
        """Whether the link is there again after a loss, without credit."""
        state = self._state
        return not state.interrupted and not self._away and (self._relinked or self._epoch != state.epoch)

    def _reset(self, *, grants: bool = True) -> None:
        """Begin anew on a link that is there again."""
        state = self._state
        epoch = state.epoch
        # Looked at in this order, a loss that comes meanwhile is seen here or the next time.
        if state.interrupted or self._away or not (self._relinked or self._epoch != epoch):
            return
        self._relinked, self._epoch = False, epoch
        # What came before the loss comes again.  There was no credit since, but for what was granted as it was lost.
        with state.settling:  # another thread may close it, and take what is there
            while self._buffer and self._is_stale(self._buffer[0].tag):
                self._buffer.popleft()
        self._granted = self._arrived
        self._undrained, self._in_doubt = self._in_doubt or bool(self._buffer), False
        self._gives_back = False
        if grants and self._prefetch:
            self._open_credit()

    def _is_stale(self, tag: DeliveryTag) -> bool:
        """Whether a delivery was lost with its connection or its link."""
        return tag.epoch != self._state.epoch or tag.link <= self._stale_link

    def _drain_if_there(self, seconds: float) -> bool:
        """Drain, unless there is nothing to drain because the network is away; returns whether that was done."""
        self._reset()
        if self._is_away:
            return False
        try:
            self._drain(seconds)
        except ConnectionLostException:
            return False
        except IllegalStateException:
            if not self._closing:
                raise
            return False
        return True

    def _drain(self, seconds: float) -> None:
        """Have the broker send what it can, then open the credit again."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(OperationTimedOutException):
            if self._gives_back:
                self._end_flow(seconds)
            if self._prefetch:
                if self._granted <= self._arrived and not self._buffer:
                    self._open_credit()
            else:
                self._pull()
            if self._end_flow(max(0.0, deadline - time.monotonic())):
                self._open_credit()

    def _mend_credit(self, timeout: float | None) -> None:
        """An interrupted ``receive`` may have counted credit that it did not grant: all of it is counted anew."""
        settings = self._state.settings
        self._reset()
        self._undrained = True
        try:
            if not self._is_away:
                longest = settings.request_timeout_seconds if timeout is None else settings.poll_timeout_seconds
                self._end_flow(min(timeout or longest, longest))
        except JMSException:  # the next call asks again, if there is still something to ask
            return
        self._interrupted = False
        self._granted = self._arrived
        self._open_credit()

    def _end_flow(self, seconds: float) -> bool:
        """Drain.

        Returns:
            Whether no credit is left and nothing is on its way; False: the broker cannot say.

        Raises:
            ConnectionLostException: the link is away.
            OperationTimedOutException: the broker has not answered.
        """
        if self._granted <= self._arrived and not self._undrained:
            return True
        self._undrained = True
        try:
            answers = self._state.transport.drain(self._link, seconds)
        except OperationTimedOutException as error:
            if self._gives_back and time.monotonic() >= self._gives_back_until:
                log.warning("! %s goes on, though what was given back may come late: %s", self._lifecycle.name, error)
                self._gives_back = False
            raise
        self._undrained = False
        if not answers:
            self._gives_back = False  # it never says, so that nothing is waited for
            return False
        self._granted = self._arrived
        if self._gives_back:
            self._release_prefetched()
            self._gives_back = False
        return True

    # Giving back.

    def _stop_flow(self, deadline: float) -> None:
        """Have nothing on its way, if the broker answers in time."""
        self._reset(grants=False)
        if self._is_away:
            return
        try:
            self._end_flow(max(0.0, deadline - time.monotonic()))
        except OperationTimedOutException as error:
            log.debug("! %s may have something on its way: %s", self._lifecycle.name, error)
        except ConnectionLostException as error:
            log.debug("! %s has lost what was on its way: %s", self._lifecycle.name, error)
        except IllegalStateException:  # the link has ended, and with it what was on its way
            if not self._closing:
                raise

    def _hold_flow(self, deadline: float) -> None:
        """Have nothing on its way, and nothing asked for, until ``_let_flow``; for the session's recover."""
        with self._state.settling:
            self._is_stopped = True
        self._stop_flow(deadline)
        if self._undrained and not self._gives_back:
            self._gives_back = True
            self._gives_back_until = time.monotonic() + self._state.settings.request_timeout_seconds

    def _let_flow(self) -> None:
        """What was given back is on its way ahead of the credit; for the session."""
        with self._state.settling:
            self._is_stopped = False

    def _take_prefetched(self) -> list[Delivery]:
        """What the application has not seen, which is not ours any more; for the session."""
        with self._state.settling:
            return [delivery for delivery in taken_out(self._buffer) if not self._is_stale(delivery.tag)]

    def _release_prefetched(self) -> None:
        with self._state.settling:
            found = list(self._buffer)
            self._state.pass_over([each.tag for each in found if not self._is_stale(each.tag)], Outcome.RELEASED)
            # Behind that: where a handler of a signal raises, the next call gives them back.
            with contextlib.suppress(IndexError):
                for _ in found:
                    self._buffer.popleft()

    def _never_delivered(self) -> list[tuple[AckRecord, int]]:
        """What was prefetched on a connection that is lost, where it can be named, and how often it had failed before.

        For the session, from any thread.
        """
        found = []
        epoch = self._state.epoch
        for delivery in self._buffer.copy():
            if delivery.tag.epoch != epoch and self._source is not None:
                with contextlib.suppress(MessageFormatException):
                    record = ack_record_for(self._source, delivery.envelope, delivery)
                    if record is not None:
                        found.append((record, delivery.delivery_count))
        return found

    def _link_interrupted(self, tag_link: int) -> None:
        """The broker closed the link, which is being attached again; for the session."""
        self._stale_link = max(self._stale_link, tag_link)
        self._away = True

    def _restored(self) -> None:
        """The connection works again, and with it the link; for the session, before its state says so."""
        self._stale_link = -1  # numbers of links begin anew with a connection
        self._away = False

    def _link_restored(self) -> None:
        """The link is there again, without credit; for the session."""
        self._relinked = True  # ahead of the next, so that credit granted meanwhile is in doubt
        self._away = False
        self._state.wake()

    # The end.

    def _lost(self, error: JMSException) -> None:
        """The broker closed the link for good: every later receive raises this; for the session."""
        self._lifecycle.fail(error)
        self._closing = True
        self._state.wake()

    def close(self) -> None:
        """Close; legal twice, and from any thread.  A receive that waits returns None.

        Waits for its listener, if that is running in another thread, and for the broker, together at most
        ``close_timeout_seconds``; where another thread is closing it already, for that thread.  Messages that it
        prefetched go back to the queue.  Those that it received can still be acknowledged, committed or recovered in
        the session; what is recovered then may come behind later messages, which the next consumer of a group or
        exclusive queue gets meanwhile.
        """
        self._shut(time.monotonic() + self._state.settings.close_timeout_seconds)

    def _shut(self, deadline: float) -> None:
        """Close before this instant (monotonic seconds)."""
        state = self._state

        def wait() -> None:
            if not state.in_own_thread():  # else it may be its listener that the other thread waits for
                state.wait_until(self._is_closed, deadline)

        self._turns.take_turn(partial(self._close, deadline), self._is_closed, wait)

    def _is_closed(self) -> bool:
        return self._lifecycle.state is State.CLOSED

    def _close(self, deadline: float) -> None:
        self._begin_close(deadline)
        state = self._state
        try:
            # Once the link is gone, another consumer of its group or exclusive queue gets what comes next.
            if not state.policy.presettled:
                self._stop_flow(drain_end(deadline, selects=self._selector is not None))
            self._release_prefetched()
        except JMSException as error:
            log.debug("! %s closes without the broker: %s", self._lifecycle.name, error)
        try:
            state.transport.detach(self._link, max(0.001, deadline - time.monotonic()))
            self._release_prefetched()
        except JMSException as error:
            # The network is away: the broker takes back what this consumer held by itself.
            log.debug("! %s closes without the broker: %s", self._lifecycle.name, error)
        self._end_close()

    def _begin_close(self, deadline: float) -> None:
        """Give nothing out any more, and wait for its listener."""
        state = self._state
        with state.settling:
            self._closing = True
            self._lifecycle.process(Event.BEGIN_CLOSE)
        with state.lock:
            self._listener = None
            state.listening.pop(self._link, None)
            state.wake()
        self._wait_for_listener(deadline, "is closed")

    def _wait_for_listener(self, deadline: float, what: str) -> None:
        state = self._state
        if not state.in_own_thread() and not state.wait_until(lambda: state.dispatching is not self, deadline):
            log.warning("! the listener of %s %s while it runs", self._lifecycle.name, what)

    def _end_close(self) -> None:
        if self._lifecycle.state is not State.CLOSED:
            self._on_close(self)
            self._lifecycle.process(Event.END_CLOSE)
            self._state.wake()

    def _require_usable(self) -> None:
        self._state.lifecycle.require_usable()
        self._lifecycle.require_usable()
