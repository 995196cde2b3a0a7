"""Consumers: what receives messages (Jakarta Messaging 3.1 section 8).

Theory of operation
    What has come for a consumer is in its :class:`~sdk.receiving.prefetch.Prefetch`, which counts the credit as well.
    A consumer takes deliveries from there one at a time: ``receive`` in the application's thread, a listener in the
    session's.

    That nothing is there does not say that nothing is at the broker.  A drain says so, for a round trip: it is made
    where the answer would otherwise be "nothing", by ``receive_nowait`` at once, by ``receive(timeout)`` shortly before
    its time is over.

Long because a delivery goes through the same steps to ``receive``, to ``receive_many`` and to a listener.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic

from ack_modes import Failure, Settlement
from broker_adapter import (
    ConnectionLostException,
    Delivery,
    Destination,
    Envelope,
    IllegalStateException,
    JMSException,
)
from sdk.acknowledgements import Source, ack_record_for
from sdk.checks import check_timeout
from sdk.closing import Closing
from sdk.finalizers import drain_end, dropped
from sdk.lifecycle import Event, Lifecycle, State
from sdk.messages.envelopes import message_of
from sdk.messages.message import Acknowledge, Message
from sdk.receiving.delivery_filter import DeliveryFilter
from sdk.receiving.prefetch import Prefetch
from sdk.session_state import CALL_ERRORS, UNSTARTED_SECONDS, SessionState, by_epoch, log

Listener = Callable[[Message], object]
#: Gives back what the listener of a consumer raised on.
Redeliver = Callable[["MessageConsumer", Sequence[Settlement]], None]

#: The part of a timed receive that is kept for the drain, in seconds: a round trip that takes longer is a network
#: that is away.
_DRAIN_SECONDS = 0.1
#: What is left, at least, of the time-out of a call that has asked the broker for more.
_LEAST_SECONDS = 0.001
#: How long a listener waits for the answer to a drain before others of its session have their turn, in seconds.
_LISTENER_DRAIN_SECONDS = 0.5
#: The usual types of time-outs.
_SECONDS = frozenset((int, float))
#: How long a listener that raised on a redelivered message is paused, in seconds: each time twice as long, up to a
#: limit.
_FIRST_REST = 0.1
_LONGEST_REST = 30.0


class MessageConsumer:
    """Receives the messages of a destination or subscription.  Made by ``session.create_consumer`` and its like."""

    # A misspelt attribute is an error.
    __slots__ = (
        "__weakref__",
        "_acknowledge",
        "_check",
        "_confirms",
        "_destination",
        "_filter",
        "_lifecycle",
        "_limit",
        "_listener",
        "_no_local",
        "_on_close",
        "_opened",
        "_prefetch",
        "_resumes_at",
        "_selector",
        "_several",
        "_source",
        "_state",
        "_turns",
    )

    def __init__(
        self,
        state: SessionState,
        number: int,
        destination: Destination,
        selector: str | None,
        no_local: bool,
        prefetch: int | None,
        on_close: Callable[[MessageConsumer, bool], None],
        acknowledge: Acknowledge,
        source: Source | None = None,
    ) -> None:
        """Made by the session.

        Args:
            state: the session's.
            number: of the consumer in its session.
            destination: where its messages come from.
            selector: which of them, in the selector language; None: all.
            no_local: whether those that its own connection sent are left out.
            prefetch: messages that it may hold which the application has not received; 0: it asks for each; None: as
                many as fit the pace of the application.
            on_close: called once, when the link is detached, with whether the broker has said so.
            acknowledge: what ``message.acknowledge()``, ``reject()`` and ``retry()`` call.
            source: the queue or subscription whose messages are redelivered after a loss; None: none are.
        """
        self._source = source
        self._destination = destination
        self._selector = selector
        self._no_local = no_local
        self._state = state
        self._on_close = on_close
        self._acknowledge = acknowledge
        self._lifecycle = Lifecycle(f"consumer {number} of {state.name} on {str(destination)!r:.200}")
        self._listener: Listener | None = None
        self._turns = Closing()
        self._check: Callable[[Message], None] | None = None  #: checks a message before it counts as received
        self._several: list[Message] | None = None  #: what the call of ``receive_many`` under way returns
        self._limit = 1  #: the most of that
        self._confirms = False  #: whether a call of ``receive`` waits for the broker's confirmation now
        self._resumes_at: float | None = None  #: its listener raised, and is paused until then (monotonic seconds)
        self._prefetch = Prefetch(state, self._lifecycle.name, prefetch)
        self._filter = DeliveryFilter(state, self._prefetch, source)
        self._opened = self._filter.opened  # called for each message, without a look-up on the way

    def __repr__(self) -> str:
        return (
            f"<MessageConsumer {self._lifecycle.name}, {self._lifecycle.state.name}, "
            f"{len(self._prefetch.buffer)} prefetched>"
        )

    def __del__(self) -> None:
        prefetch = getattr(self, "_prefetch", None)
        is_attached = prefetch is not None and prefetch.link >= 0  # else it is not made yet
        if is_attached and self._lifecycle.is_listed and self._state.lifecycle.usable:
            # One whose link the broker has closed holds nothing that others could miss.
            dropped(self, self.close, self._state.transport, warns=self._lifecycle.is_to_close)

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
                be acknowledged, which will be redelivered.
        """
        return self._receive(timeout, None)

    def _receive(
        self,
        timeout: float | None,
        check: Callable[[Message], None] | None,
        several: list[Message] | None = None,
        limit: int = 1,
    ) -> Message | None:
        """``receive``, with a check of the message before it counts as received, or of several messages.

        Args:
            timeout: as for ``receive``.
            check: raises what is to be raised; the message is then the next one again, as if nothing had been.
            several: gets what ``receive_many`` is to return.
            limit: the most of them.
        """
        state, prefetch = self._state, self._prefetch
        if state.calling:
            state.refuse_nested()
        entered = False
        try:
            try:
                if not state.own(False):
                    state.own_or_refuse()
                entered = state.calling = True
                self._check, self._several, self._limit = check, several, limit
                if (
                    state.running
                    and prefetch.buffer
                    and (timeout is None or (type(timeout) in _SECONDS and timeout >= 0))
                    and not (state.listening or state.dispatching or prefetch.closing or prefetch.gives_back)
                ):
                    message = self._take()
                    if message is not None or self._ended():
                        return message
                return self._receive_slowly(timeout)
            finally:
                if entered:
                    self._several = self._check = None
                    state.gives_out = state.calling = False
                try:
                    state.disown()
                except RuntimeError:
                    if entered:  # else it was refused
                        raise
                if not state.running:
                    state.wake()  # a thread that stops the session waits for this
        except CALL_ERRORS:
            raise
        except BaseException as error:
            state.calling, state.interruption = True, error
            state.interrupt()
            raise

    def receive_nowait(self) -> Message | None:
        """The next message if one waits in the buffer or at the broker, else None.

        Asking the broker takes one round trip, and at most ``poll_timeout_seconds``.

        Raises:
            IllegalStateException: closed, in use by another thread, or the session has listeners.
            ConnectionLostException: the network failed.
        """
        return self.receive(0)

    def receive_many(self, limit: int, timeout: float | None = None) -> list[Message]:
        """The next messages: as many as are there, up to a limit, once there is one.

        In AUTO they are acknowledged together as the list is returned.  In the other modes it is as if each had been
        received alone.  The list has what is there, at most ``prefetch_messages`` (500 where that is not given):
        nothing waits for it to fill.

        Args:
            limit: most messages, at least 1.
            timeout: how long to wait for the first one, as for ``receive``; 0: as ``receive_nowait``.

        Returns:
            The messages, in order; none where ``receive`` would return None.

        Raises:
            ValueError: the limit or the time-out cannot be.
            IllegalStateException: as for ``receive``.
            ConnectionLostException: as for ``receive``; in AUTO none of the messages could be acknowledged.
        """
        if type(limit) is not int or limit < 1:
            raise ValueError(f"limit={limit!r}: a whole number from 1 on, the most messages that are returned")
        if self._prefetch.falls_short(limit):
            check_timeout(timeout)
            timeout = self._state.in_one_call(self._ask_for, limit, timeout)
        several: list[Message] = []
        self._receive(timeout, None, several, limit)
        return several

    def _ask_for(self, messages: int, timeout: float | None) -> float | None:
        """Have what a call takes that takes more than the window, as far as the broker has it; for :mod:`sdk.aio` too.

        Returns:
            What is left of the call's time-out.
        """
        if self._state.listening or self._state.dispatching or self._ended():
            return timeout  # the call itself says so
        began, longest = monotonic(), self._state.settings.poll_timeout_seconds
        self._prefetch.begin_wait()
        self._prefetch.ask_for(messages, min(timeout, longest) if timeout else longest)
        return max(_LEAST_SECONDS, timeout - (monotonic() - began)) if timeout else timeout

    def _receive_ready(self, limit: int | None, *, pulls: bool) -> list[Message]:
        """What has come, in one call that waits for nothing; for :mod:`sdk.aio`.

        Args:
            limit: as for ``receive_many``; None: one, as ``receive`` takes it.
            pulls: whether a consumer without prefetch asks for a message where none is there.
        """
        return self._state.in_one_call(self._take_ready, limit, pulls)

    def _take_ready(self, limit: int | None, pulls: bool) -> list[Message]:
        several: list[Message] = []
        self._check, self._several, self._limit = None, None if limit is None else several, limit or 1
        prefetch = self._prefetch
        try:
            if prefetch.needs_reset:
                prefetch.reset()
            message = self._take_any()
            if message is None and pulls and not prefetch.closing:
                prefetch.pull()
        finally:
            self._several = None
            self._state.gives_out = False
        return [message] if limit is None and message is not None else several

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the consumer is closed."""
        while (message := self.receive()) is not None:
            yield message
            if self._lifecycle.state is State.CLOSED:  # in the loop
                return

    def _receive_slowly(self, timeout: float | None) -> Message | None:
        """``receive`` where the buffer was empty, or something else is to be said."""
        self._require_usable()
        prefetch = self._prefetch
        if self._state.listening or self._state.dispatching:
            raise IllegalStateException(f"cannot receive: {self._state.name} has listeners, which take its messages")
        check_timeout(timeout)
        prefetch.begin_wait()
        deadline = monotonic() + (timeout or 0)
        if self._state.is_unstarted:
            patience = UNSTARTED_SECONDS if timeout is None else min(timeout, UNSTARTED_SECONDS)
            message = self._receive_before(monotonic() + patience)
            if message is not None or self._ended():
                return message
            self._state.warn_unstarted(self._lifecycle.name)
        if timeout is None:
            return self._receive_before(None)
        if timeout > 0:
            message = self._receive_before(deadline - min(timeout / 2, _DRAIN_SECONDS))
            if message is not None or self._ended():
                return message
            if self._state.running:
                # What waits at the broker comes with certainty, and not only if it happens to come in time.
                prefetch.drain_if_there(max(0.0, deadline - monotonic()))
                message = self._take_any()
                if message is not None or self._ended():
                    return message
            if not prefetch.size and not prefetch.is_away:
                # No credit is left, and none is given: what came after the return would be held and not read.
                self._state.wait_until(self._something, deadline)
                return self._take_any()
            return self._receive_before(deadline)
        if self._state.running:
            return self._receive_drained(deadline + self._state.settings.poll_timeout_seconds)
        return self._take_any()

    def _receive_drained(self, deadline: float) -> Message | None:
        """What waits at the broker by now."""
        prefetch = self._prefetch
        while True:
            while not prefetch.drain_if_there(max(0.0, deadline - monotonic())):
                if not self._state.wait_until(lambda: prefetch.needs_reset or self._is_over, deadline):
                    return None
                if self._ended():
                    return None
            # This may be more than one message, or some that cannot be given out, with others behind them.
            ended = self._filter.ended
            message = self._take_any()
            if message is not None or self._filter.ended == ended or monotonic() >= deadline:
                return message

    def _receive_before(self, deadline: float | None) -> Message | None:
        """Wait for the buffer to fill."""
        state, prefetch = self._state, self._prefetch
        while True:
            prefetch.reset()
            if prefetch.undrained:  # so the credit may be gone
                limit = state.settings.request_timeout_seconds
                prefetch.drain_if_there(limit if deadline is None else max(0.0, min(limit, deadline - monotonic())))
            prefetch.pull()
            if not state.wait_until(self._something, deadline):
                return None
            if self._ended():
                return None
            prefetch.reset()
            message = self._take_any()
            if message is not None:
                return message
            if deadline is not None and monotonic() >= deadline:
                return None  # a broker whose clock is behind sends again and again what has expired here

    def _something(self) -> bool:
        prefetch = self._prefetch
        return (
            (bool(prefetch.buffer) and self._state.running and not prefetch.gives_back)
            or self._is_over
            or prefetch.needs_reset
            or (prefetch.gives_back and not prefetch.is_away)  # so the broker is asked again
        )

    @property
    def _is_over(self) -> bool:
        return self._prefetch.closing or not self._state.lifecycle.usable

    def _ended(self) -> bool:
        """Whether there is nothing more to receive, because it was closed; raises where something failed."""
        state = self._state
        for lifecycle in (self._lifecycle, state.lifecycle):
            if lifecycle.error is not None:
                lifecycle.require_usable()
        return self._prefetch.closing or not state.lifecycle.usable

    def _take_any(self) -> Message | None:
        prefetch = self._prefetch
        # What cannot be given out may be redelivered at once: not more than what is there now.
        for _ in range(len(prefetch.buffer)):
            if not self._state.running or not prefetch.buffer or prefetch.gives_back:
                break
            message = self._take()
            if message is not None:
                return message
        return None

    def _take(self) -> Message | None:
        """The first of the buffer, delivered and consumed; None where it cannot be given out."""
        if self._several is not None:
            return self._take_several(self._several)
        opened = self._open()
        if opened is None:
            return None
        delivery, envelope = opened
        if self._check is not None:
            self._check(message_of(envelope, delivery.delivery_count))
        state = self._state
        with state.settling:
            if not state.running:  # stopped by another thread
                return None
            message = self._begin(delivery, envelope)
            if message is None:
                return None
            state.gives_out = True
            acknowledgements = state.acknowledgements
            record = None if acknowledgements is None else ack_record_for(self._source, envelope, delivery)
            tag = delivery.tag
            settlements = state.policy.consumed(tag, monotonic())
            # Else the application has it, whatever becomes of the acknowledgement.
            is_one_step = settlements and state.policy.tells_lost_acknowledgements
            if acknowledgements is not None and not is_one_step:
                acknowledgements.delivered(tag, record)
            if settlements:  # of this one, and of others before it that were consumed and are acknowledged with it
                try:
                    state.hand_over(settlements)
                    if acknowledgements is not None:
                        if is_one_step:
                            acknowledgements.accepted(tag, record)
                        else:
                            acknowledgements.settled(settlements)
                except ConnectionLostException as error:
                    self._refuse_lost(f"message {envelope.message_id!r}", error)
                self._confirms = state.confirms
        self._end_take(settlements, 1)
        return message

    def _take_several(self, several: list[Message]) -> Message | None:
        """Take what ``receive_many`` is to return; returns the first of it."""
        state, prefetch = self._state, self._prefetch
        opened: list[tuple[Delivery, Envelope]] = []
        # What cannot be given out may be redelivered at once: not more than what is there now.
        for _ in range(len(prefetch.buffer)):
            if len(opened) == self._limit or not state.running or prefetch.closing or prefetch.gives_back:
                break
            found = self._open(len(opened))
            if found is not None:
                opened.append(found)
        settlements: list[Settlement] = []
        with state.settling:
            if not state.running:
                return None
            now = monotonic()
            for delivery, envelope in opened:
                message = self._begin(delivery, envelope)
                if message is None:
                    continue
                several.append(message)
                if state.acknowledgements is not None:
                    state.acknowledgements.delivered(delivery.tag, ack_record_for(self._source, envelope, delivery))
                settlements += state.policy.consumed(delivery.tag, now)
            if not several:
                return None
            state.gives_out = True
            if settlements:
                try:
                    state.settle(settlements)
                except ConnectionLostException as error:
                    self._refuse_lost(f"{len(several)} messages", error)
                self._confirms = state.confirms
        self._end_take(settlements, len(several))
        return several[0]

    def _refuse_lost(self, what: str, error: ConnectionLostException) -> None:
        """Raise where the application is to be told that what it receives could not be acknowledged."""
        if self._state.policy.tells_lost_acknowledgements:
            raise ConnectionLostException(
                f"{what} could not be acknowledged, and {'is' if self._several is None else 'are'} redelivered: {error}"
            ) from error

    def _open(self, index: int = 0) -> tuple[Delivery, Envelope] | None:
        """A delivery in the buffer, with its envelope; None where it cannot be given out.  It stays in the buffer."""
        prefetch = self._prefetch
        try:
            delivery = prefetch.buffer[index]
        except IndexError:  # another thread closes it, and has taken what was there
            return None
        envelope = self._opened(delivery, delivery.tag)
        if envelope is None:
            prefetch.drop(delivery, index)
            return None
        return delivery, envelope

    def _begin(self, delivery: Delivery, envelope: Envelope) -> Message | None:
        """Take the first of the buffer out, as delivered; under ``settling``.

        Returns:
            The message; None where it was lost, or the consumer closed, since it was opened.
        """
        state, prefetch, tag = self._state, self._prefetch, delivery.tag
        if tag.epoch != state.epoch or tag.link <= prefetch.stale_link:
            prefetch.drop(delivery)
            return None
        buffer = prefetch.buffer
        if prefetch.closing or not buffer or buffer[0] is not delivery:
            return None
        message = message_of(envelope, delivery.delivery_count, self._acknowledge, tag)
        state.policy.delivered(tag)
        try:
            buffer.popleft()
        except IndexError:  # the handler of a signal has closed it, and what was there is given back
            state.policy.withdrawn(tag)
            return None
        return message

    def _end_take(self, settlements: Sequence[Settlement], messages: int) -> None:
        """So many messages are about to be returned: grant credit, and wait for what is to be confirmed."""
        state, prefetch = self._state, self._prefetch
        if state.policy.due_at is not None:
            state.keep_time(state.policy.due_at)
        prefetch.count_used(messages)
        if self._confirms:
            confirm = partial(self._confirm, by_epoch(settlements))
            if state.in_background is None:
                confirm()
            else:
                state.in_background(confirm)

    def _confirm(self, settled: Mapping[int, int]) -> None:
        """Wait until the broker has confirmed what was settled, so much by connection."""
        try:
            self._state.confirm_or_report(settled, self._prefetch.link, outlasts_loss=False)
        finally:
            self._confirms = False
            self._state.wake()  # a thread that closes it waits for this

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
        self._state.beside_listeners(self._set_listener, listener)
        self._state.from_any_thread(self._await_listener, listener)

    def _set_listener(self, listener: Listener | None) -> None:
        self._require_usable()
        state = self._state
        with state.lock:
            self._listener = listener
            if listener is not None:
                state.listening[self._prefetch.link] = self
            else:
                state.listening.pop(self._prefetch.link, None)
            state.wake()
        if not self._lifecycle.usable:  # by now: whichever comes last takes it out
            state.listening.pop(self._prefetch.link, None)
            self._require_usable()

    def _await_listener(self, listener: Listener | None) -> None:
        """Have a thread that calls the listener; None: wait for the one that runs."""
        state = self._state
        if listener is None:
            self._wait_for_listener(monotonic() + state.settings.close_timeout_seconds, "is taken away")
        else:
            try:
                state.ensure_thread()
            except JMSException:  # no thread would call it
                with state.lock:
                    self._listener = None
                    state.listening.pop(self._prefetch.link, None)
                raise

    @property
    def _has_work(self) -> bool:
        """Whether the session's thread has something to do for this consumer."""
        if self._resumes_at is not None:
            if monotonic() < self._resumes_at:
                return False
            self._resumes_at = None
        prefetch = self._prefetch
        is_unknown = prefetch.undrained and not prefetch.is_away
        there_is = bool(prefetch.buffer) or prefetch.needs_reset or is_unknown
        return there_is and self._listener is not None and not prefetch.closing

    def _ask_for_work(self) -> None:
        """Grant the one credit of a consumer without prefetch; for the session's thread."""
        if self._listener is not None and not self._prefetch.closing:
            self._prefetch.reset()
            self._prefetch.pull()

    def _dispatch(self, redeliver: Redeliver) -> None:
        """Give one message to the listener; for the session's thread, which owns the session.

        Args:
            redeliver: gives back what the listener raised on, such that it is redelivered next.
        """
        prefetch = self._prefetch
        prefetch.reset()
        if prefetch.gives_back or (prefetch.undrained and not prefetch.buffer):
            prefetch.stop_flow(monotonic() + _LISTENER_DRAIN_SECONDS)
            if prefetch.undrained:
                self._resumes_at = monotonic() + _FIRST_REST
            else:
                prefetch.open_credit()
            return
        listener = self._listener
        if listener is None or prefetch.closing or not prefetch.buffer:
            return
        opened = self._open()
        if opened is None:
            return
        delivery, envelope = opened
        state, tag = self._state, delivery.tag
        policy = state.policy
        with state.settling:
            message = self._begin(delivery, envelope)
            if message is None:
                return
            if state.acknowledgements is not None:
                state.acknowledgements.delivered(tag, ack_record_for(self._source, envelope, delivery))
        raised: Failure | None = None
        try:
            listener(message)
        except BaseException as error:  # whatever it is, it is the application's; the session's thread must go on
            raised = Failure.of(error)
            log.exception("! the listener of %s raised on %r", self._lifecycle.name, envelope.message_id)
        try:
            with state.settling:
                now = monotonic()
                is_stale = prefetch.is_stale(tag)
                failed: Sequence[Settlement] = ()
                settlements: Sequence[Settlement] = ()
                if raised is None:
                    settlements = policy.consumed(tag, now)
                else:
                    failed = [Settlement(each, raised) for each, _ in policy.listener_raised(tag, now)]
                state.settle(settlements)
            if policy.due_at is not None:
                state.keep_time(policy.due_at)
            prefetch.count_used()
            if not prefetch.buffer:
                prefetch.begin_wait()
            if failed:
                redeliver(self, failed)
            if failed and not state.is_holdfast:
                # Our own engine holds back what fails again and again; for others it is done here.
                failures = delivery.delivery_count + 1
                if failures > 1:
                    self._resumes_at = monotonic() + min(_FIRST_REST * 2 ** min(failures - 2, 20), _LONGEST_REST)
            if state.confirms and settlements:
                state.confirm_or_report(by_epoch(settlements), prefetch.link, outlasts_loss=True)
            if is_stale and not raised and policy.tells_lost_acknowledgements:
                raise ConnectionLostException("the connection was lost while its listener ran")
        except ConnectionLostException as error:
            if policy.tells_lost_acknowledgements and not raised:
                # This thread has no caller that could be told, so the exception listener is.
                state.report(
                    ConnectionLostException(
                        f"message {envelope.message_id!r} could not be acknowledged, and is redelivered: {error.reason}"
                    )
                )
        except JMSException as error:
            state.report(error)

    # The end.

    def _lost(self, error: JMSException) -> None:
        """The broker closed the link for good: every later receive raises this; for the session."""
        self._lifecycle.fail(error)
        self._prefetch.closing = True
        self._state.listening.pop(self._prefetch.link, None)  # in one step: this thread must wait for no lock
        self._state.wake()

    def close(self) -> None:
        """Close; legal twice, and from any thread.  A receive that waits returns None.

        Waits for its listener, if that is running in another thread, for the confirmation of what a receive or listener
        has acknowledged synchronously, and for the broker, together at most ``close_timeout_seconds``; where another
        thread is closing it already, for that thread.  If there is no confirmation by then, the exception listener is
        told.  A call of ``acknowledge()`` under way is the session's, and goes on.  Messages that it
        prefetched go back to the queue.  Those that it received can still be acknowledged, committed or recovered in
        the session; what is recovered then may come behind later messages, which the next consumer of a group or
        exclusive queue gets meanwhile.
        """
        self._state.from_any_thread(self._shut, monotonic() + self._state.settings.close_timeout_seconds)

    def _shut(self, deadline: float) -> None:
        """Close before this instant (monotonic seconds)."""
        # The other thread may wait for the listener that calls this.
        waits_until = None if self._state.in_own_thread() else deadline
        self._turns.take_turn(partial(self._close, deadline), self._is_closed, waits_until)

    def _is_closed(self) -> bool:
        return self._lifecycle.state is State.CLOSED

    def _close(self, deadline: float) -> None:
        self._begin_close(deadline)
        state = self._state
        try:
            # Once the link is gone, another consumer of its group or exclusive queue gets what comes next.
            if not state.policy.presettled:
                self._prefetch.stop_flow(drain_end(deadline, selects=self._selector is not None))
            self._prefetch.release_all()
        except JMSException as error:
            log.debug("! %s closes without the broker: %s", self._lifecycle.name, error)
        confirmed = False
        is_there = self._lifecycle.error is None and not self._prefetch.is_away  # else the broker is not asked
        try:
            confirmed = state.transport.detach(self._prefetch.link, max(0.001, deadline - monotonic())) and is_there
            self._prefetch.release_all()
        except JMSException as error:
            # The network is away: the broker takes back what this consumer held by itself.
            log.debug("! %s closes without the broker: %s", self._lifecycle.name, error)
        self._end_close(confirmed=confirmed)

    def _begin_close(self, deadline: float) -> None:
        """Give nothing out any more, and wait for its listener, or for the confirmation of what was received."""
        state = self._state
        with state.settling:
            self._prefetch.closing = True
            self._lifecycle.process(Event.BEGIN_CLOSE)
        with state.lock:
            self._listener = None
            state.listening.pop(self._prefetch.link, None)
            state.wake()
        self._wait_for_listener(deadline, "is closed")
        if not state.owner._is_owned():  # type: ignore[attr-defined]  # else a handler has interrupted that
            state.wait_until(lambda: not self._confirms or state.lifecycle.error is not None, deadline)

    def _wait_for_listener(self, deadline: float, what: str) -> None:
        state = self._state
        if not state.in_own_thread() and not state.wait_until(lambda: state.dispatching is not self, deadline):
            log.warning("! the listener of %s %s while it runs", self._lifecycle.name, what)

    def _end_close(self, *, confirmed: bool) -> None:
        """It has ended; ``confirmed``: and the broker has said so."""
        if self._lifecycle.state is not State.CLOSED:
            self._on_close(self, confirmed)
            self._lifecycle.process(Event.END_CLOSE)
            self._state.wake()

    def _require_usable(self) -> None:
        self._state.lifecycle.require_usable()
        self._lifecycle.require_usable()
