"""Producers: what sends messages (Jakarta Messaging 3.1 section 7.3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import repeat
from typing import Any, Final
from uuid import uuid4

from broker_adapter import (
    ConnectionLostException,
    Destination,
    Envelope,
    Identity,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
    TransactionRolledBackException,
    checked_destination,
    in_seconds,
)
from sdk.finalizers import dropped
from sdk.lifecycle import Event, Lifecycle, State
from sdk.messages.envelopes import envelope_of, wrapped
from sdk.messages.message import DeliveryMode, Message, checked_mode
from sdk.messages.values import PropertyValue, checked_delay_ms, checked_ms, checked_priority
from sdk.send_answers import SendAnswers, failed, none_sent
from sdk.session_state import CALL_ERRORS, Completion, OnCompletion, SessionState, log, unanswered

#: The priority of a message of which nobody says another.
_NORMAL: Final = 4


class MessageProducer:
    """Sends messages to its destination, or to the one given with each.  Made by ``session.create_producer``.

    Its attributes are what a send does where it is not told otherwise.

    Attributes:
        disable_message_id: whether messages go without an id.
        disable_timestamp: whether messages go without the time of their sending.
    """

    # A misspelt attribute is an error.
    __slots__ = (
        "__weakref__",
        "_delivery_delay_ms",
        "_delivery_mode",
        "_destination",
        "_id_policy",
        "_id_prefix",
        "_lifecycle",
        "_link",
        "_on_close",
        "_on_sent",
        "_priority",
        "_producer_id",
        "_sent",
        "_sequence",
        "_settled",
        "_state",
        "_thread_id",
        "_time_limit",
        "_time_to_live_ms",
        "_told",
        "disable_message_id",
        "disable_timestamp",
    )

    def __init__(
        self,
        state: SessionState,
        link: int,
        number: int,
        destination: Destination | None,
        identity: Identity,
        on_close: Callable[[MessageProducer, float], None],
    ) -> None:
        """Made by the session.

        Args:
            state: the session's.
            link: the transport's number of the link.
            number: of the producer in its session.
            destination: None: each send names its own.
            identity: the one before the first message.
            on_close: called once, to detach the link before an instant (monotonic seconds).
        """
        self.disable_message_id = False
        self.disable_timestamp = False
        self._link = link
        self._destination = destination
        self._delivery_mode = DeliveryMode.PERSISTENT
        self._priority: int | None = None  #: None: it was not set
        self._time_to_live_ms: int | None = None
        self._delivery_delay_ms: int | None = None
        self._state = state
        self._on_close = on_close
        self._producer_id, self._thread_id, self._sequence = identity
        #: Takes the answer to the next send, which does not wait for it, and then is None; for ``sdk.aio``.
        self._on_sent: Callable[[JMSException | None], None] | None = None
        self._time_limit: float | None = None  #: seconds that a send may take; None: as the options say
        self._id_policy = state.settings.message_id_policy
        self._id_prefix = f"ID:{self._producer_id}:{state.number}:{number}-"
        # Asynchronous sends: made (counted by the application's thread), settled without a callback (by the
        # transport's), told (by the session's).  One thread for each, so that none needs a lock.
        self._sent = 0
        self._settled = 0
        self._told = 0
        # At the end: what a handler of a signal interrupts here is not closed.
        where = "any destination" if destination is None else repr(str(destination))
        self._lifecycle = Lifecycle(f"producer {number} of {state.name} to {where:.200}")

    def __repr__(self) -> str:
        return f"<MessageProducer {self._lifecycle.name}, {self._lifecycle.state.name}>"

    def __del__(self) -> None:
        lifecycle = getattr(self, "_lifecycle", None)
        if lifecycle is not None and lifecycle.is_listed and self._state.lifecycle.usable:
            dropped(self, self.close, self._state.transport, warns=False)  # it has nothing that others could miss

    def __enter__(self) -> MessageProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What a send does where it is not told otherwise.

    @property
    def destination(self) -> Destination | None:
        """Where it sends to; None: each send names its own."""
        return self._destination

    @property
    def delivery_mode(self) -> DeliveryMode:
        """PERSISTENT (survives a restart of the broker) or NON_PERSISTENT."""
        return self._delivery_mode

    @delivery_mode.setter
    def delivery_mode(self, value: DeliveryMode) -> None:
        self._delivery_mode = checked_mode(value)

    @property
    def priority(self) -> int:
        """0 to 9, by default 4; higher ones are delivered first."""
        return _NORMAL if self._priority is None else self._priority

    @priority.setter
    def priority(self, value: int) -> None:
        self._priority = checked_priority(value)

    @property
    def time_to_live(self) -> float | None:
        """Seconds after which a message expires; None: never."""
        return None if self._time_to_live_ms is None else self._time_to_live_ms / 1000

    @time_to_live.setter
    def time_to_live(self, value: float | timedelta | None) -> None:
        self._time_to_live_ms = None if value is None else checked_ms("time_to_live", value, 1)

    @property
    def delivery_delay(self) -> float | None:
        """Seconds before which a message is not delivered; None: at once."""
        return None if self._delivery_delay_ms is None else self._delivery_delay_ms / 1000

    @delivery_delay.setter
    def delivery_delay(self, value: float | timedelta | None) -> None:
        self._delivery_delay_ms = None if value is None else checked_ms("delivery_delay", value, 0)

    # Sending.

    def send(
        self,
        message: Message | str | bytes | dict[str, Any] | list[Any],
        destination: Destination | None = None,
        *,
        delivery_mode: DeliveryMode | None = None,
        priority: int | None = None,
        time_to_live: float | timedelta | None = None,
        delivery_delay: float | timedelta | datetime | None = None,
        properties: Mapping[str, PropertyValue] | None = None,
        group_id: str | None = None,
        correlation_id: str | bytes | None = None,
        on_completion: OnCompletion | None = None,
    ) -> None:
        """Send a message.

        A persistent message is on disk when this returns, unless ``on_completion`` is given.  With it, and for
        non-persistent messages, this returns when the message is handed over; it waits only while the send window of
        the connection is full.  What goes wrong with a non-persistent message afterwards is told to the connection's
        exception listener.  In a transacted session the message is kept until ``commit()``, which sends it.

        While the connection is being restored this waits.  What had no answer when it was lost is sent again: to our
        own broker that is never a second message; others may keep both, and the second one is marked with the property
        ``JMS_HOLDFAST_RESENT``.

        A message that was received is forwarded with its body, headers and properties; it also keeps its priority and
        the instant at which it expires, where neither this call nor the producer says otherwise.

        Args:
            message: a str, bytes, dict or list is wrapped in the fitting message.  A message gets its id, destination,
                times, priority and delivery mode written into it.
            destination: only where the producer has none of its own.
            delivery_mode: None: the producer's, as for those that follow.
            priority: 0 to 9.
            time_to_live: seconds, or a timedelta, after which it expires.
            delivery_delay: seconds, or a timedelta, before which it is not delivered; or the instant as a datetime.
            properties: added to the message's, as are those that follow to its headers; None: as the message has them.
            group_id: the message group; its messages go to one consumer, in order.
            correlation_id: of the application; str or bytes.
            on_completion: called with the message and None, or the error, when the broker has answered: on the
                session's thread, in the order of the sends.  It must not close the session, commit or roll back.

        Raises:
            ResourceAllocationException: a limit of the broker, or of the transaction, is reached; or
                ``require_redundancy`` refuses it now.
            MessageFormatException: the message cannot be encoded, or is larger than the limit.
            InvalidDestinationException: no destination, or one that is refused.
            OperationTimedOutException: no answer within ``send_timeout_seconds``; it may have been sent all the same.
            ConnectionLostException: the connection is gone for good; it may have been sent all the same.
            IllegalStateException: closed, or the session is in use by another thread.
        """
        state = self._state
        if state.calling:
            state.refuse_nested()
        given, message = message, wrapped(message)  # what the application's own dict raises ends no session
        if properties is not None or group_id is not None or correlation_id is not None:
            message._add_named(properties, group_id, correlation_id)
        entered = False
        try:
            try:
                if not state.own(False):
                    state.own_or_refuse()
                entered = state.calling = True
                if not self._lifecycle.usable:
                    self._lifecycle.require_usable()
                mode = self._delivery_mode if delivery_mode is None else checked_mode(delivery_mode)
                envelope = self._made(
                    message,
                    self._target(destination),
                    mode,
                    priority,
                    time_to_live,
                    delivery_delay,
                    message is not given,
                )
                if state.policy.transacted or on_completion is not None:
                    self._send_later(message, envelope, on_completion)
                elif mode is _PERSISTENT and self._on_sent is not None:
                    on_sent, self._on_sent = self._on_sent, None
                    self._hand_over(envelope, on_sent)
                elif mode is _PERSISTENT:
                    if state.redundancy is not None:
                        state.redundancy.require()
                    state.transport.send(self._link, envelope, None, self._time_limit)
                else:
                    settled = partial(self._on_settled, message.message_id, envelope.destination)
                    self._hand_over(envelope, settled)
            finally:
                if entered:
                    state.calling = False
                try:
                    state.disown()
                except RuntimeError:
                    if entered:  # else it was refused
                        raise
        except CALL_ERRORS:
            raise
        except BaseException as error:
            state.calling, state.interruption = True, error
            state.interrupt()
            raise

    def send_all(
        self,
        messages: Iterable[Message | str | bytes | dict[str, Any] | list[Any]],
        destination: Destination | None = None,
        *,
        delivery_mode: DeliveryMode | None = None,
        priority: int | Sequence[int | None] | None = None,
        time_to_live: float | timedelta | Sequence[float | timedelta | None] | None = None,
        delivery_delay: float | timedelta | datetime | None = None,
    ) -> None:
        """Send messages in their order, and wait for the broker's answers to all of them.

        They are under way together, so a thousand of them take little longer than one; they are no transaction.
        Persistent ones are on disk when this returns.  In a transacted session they are kept until ``commit()``, which
        sends them.  A value that no message can carry is found before any is sent.

        Where some cannot be encoded or are too large, or the broker refuses some, the others are sent all the same,
        those behind them included.  Where nothing more can be sent, since the connection is gone for good or the time
        is over, those behind are not sent.  The error names all that were not sent or refused, and those of which it
        is not known.  While the connection is being restored, this waits and sends again as ``send`` does.

        Args:
            messages: any number of them; all are in memory until the last one is sent.
            destination: as for ``send``, as are those that follow; they hold for each message.
            delivery_mode: with NON_PERSISTENT this waits for the answers as well, which need no disk.
            priority: 0 to 9; or a sequence of these, one for each message (None: that of the producer).
            time_to_live: seconds, or a timedelta, after which they expire; or a sequence, likewise.
            delivery_delay: seconds, or a timedelta, before which they are not delivered; or the instant as a datetime.

        Raises:
            TypeError: ``messages`` is one message, or none.
            ValueError: a sequence has not one value for each message.
            OperationTimedOutException: no answer has come for ``send_timeout_seconds``, or there was no place in the
                send window; those without an answer may have been sent all the same.
            ConnectionLostException: the connection is gone for good; those without an answer may have been sent.
            JMSException: as ``send`` raises it, for the first message that failed.  The attribute ``failures`` of
                these errors has the error of each message that was not sent or was refused, or has no answer, by its
                index.
        """
        check_several(messages)
        self._send_all(wrapped, list(messages), destination, delivery_mode, priority, time_to_live, delivery_delay)

    def _send_all(
        self,
        prepared: Callable[[Message | str | bytes | dict[str, Any] | list[Any]], Message],
        several: list[Message | str | bytes | dict[str, Any] | list[Any]],
        destination: Destination | None,
        delivery_mode: DeliveryMode | None,
        priority: int | Sequence[int | None] | None,
        time_to_live: float | timedelta | Sequence[float | timedelta | None] | None,
        delivery_delay: float | timedelta | datetime | None,
    ) -> None:
        """``send_all``, where ``prepared`` makes a message of each."""
        mode = self._delivery_mode if delivery_mode is None else checked_mode(delivery_mode)
        messages: list[Message] = []
        for each in several:  # ahead of the call: what the application's own dicts raise ends no session
            try:
                messages.append(prepared(each))
            except (JMSException, TypeError, ValueError) as error:
                named = error if len(several) == 1 else _named(error, len(messages), len(several))
                if isinstance(named, JMSException):
                    none_sent(named, len(several))
                raise named from (None if named is error else error)

        def make() -> list[Envelope]:
            if not self._lifecycle.usable:
                self._lifecycle.require_usable()
            target = self._target(destination)
            priorities = _of_each("priority", priority, len(several))
            lives = _of_each("time_to_live", time_to_live, len(several))
            made: list[Envelope] = []
            for each, message, own_priority, life in zip(several, messages, priorities, lives, strict=True):
                try:
                    is_own = message is not each
                    made.append(self._made(message, target, mode, own_priority, life, delivery_delay, is_own))
                except (JMSException, TypeError, ValueError) as error:
                    if len(several) == 1:
                        raise
                    raise _named(error, len(made), len(several)) from error
            return made

        self._in_one_send(len(several), make)

    def _in_one_send(self, count: int, make: Callable[[], list[Envelope]]) -> None:
        """Make so many envelopes, and send them together; an error before any is sent names all of them."""
        is_made = False

        def send() -> None:
            nonlocal is_made
            made = make()
            is_made = True
            self._send_together(made)

        try:
            self._state.in_one_call(send)
        except JMSException as error:
            if not is_made:
                none_sent(error, count)
            raise

    def _send_envelopes(self, envelopes: Iterable[Envelope]) -> None:
        """See :func:`sdk.range_reader.send_envelopes`."""
        several = list(envelopes)

        def make() -> list[Envelope]:
            if not self._lifecycle.usable:
                self._lifecycle.require_usable()
            now_ms = None if self.disable_timestamp else max(0, time.time_ns() // 1_000_000)
            return [self._stamped(each, now_ms) for each in several]

        self._in_one_send(len(several), make)

    def _stamped(self, envelope: Envelope, sent_at_ms: int | None) -> Envelope:
        """The envelope with what a send writes into it."""
        self._sequence = sequence = self._sequence + 1
        # fmt: off
        (
            destination, body_kind, body, properties, message_id, correlation_id, reply_to, message_type,
            _, expires_at_ms, deliver_at_ms, priority, persistent, group_id, group_sequence, _, _,
        ) = envelope
        if self._id_policy != "uuid" or message_id is None:
            message_id = self._message_id(sequence)
        identity = Identity(self._producer_id, self._thread_id, sequence)
        return _new(
            Envelope,
            (
                destination, body_kind, body, properties, message_id, correlation_id, reply_to, message_type,
                sent_at_ms, expires_at_ms, deliver_at_ms, priority, persistent, group_id, group_sequence,
                self._state.user_id, identity,
            ),
        )
        # fmt: on

    def _send_together(self, envelopes: Sequence[Envelope]) -> None:
        """Send, and wait for all answers; or keep them for the commit."""
        state = self._state
        answers = SendAnswers(self._on_answer, state.wake)
        errors: dict[int, JMSException] = {}  # of those that were not sent
        sent = len(envelopes)
        for index, envelope in enumerate(envelopes):
            try:
                self._hand_over(envelope, answers.of(index))
            except MessageFormatException as error:  # this message alone
                errors[index] = error
            except JMSException as error:  # nothing more can be sent
                sent = index
                skipped = type(error)(
                    f"it was not sent, as message {index} before it: {error.reason}", error_code=error.error_code
                )
                errors |= {index: error, **dict.fromkeys(range(index + 1, len(envelopes)), skipped)}
                break
        if not state.policy.transacted:
            errors |= self._answered(answers, sent, errors)
        if errors:
            raise failed(errors, len(envelopes))

    def _hand_over(self, envelope: Envelope, on_settled: Callable[[JMSException | None], None]) -> None:
        """Send one message and do not wait for its answer, or keep it for the commit."""
        state = self._state
        if state.policy.transacted:
            state.keep_send(self._link, envelope, None)
            return
        if state.redundancy is not None:
            state.redundancy.require()
        self._sent += 1
        try:
            state.transport.send(self._link, envelope, on_settled, self._time_limit)
        except BaseException:
            self._sent -= 1
            raise

    def _answered(self, answers: SendAnswers, sent: int, unsent: Container[int]) -> dict[int, JMSException]:
        """Wait for the answers to messages that are sent together.

        Args:
            answers: what has come of them.
            sent: all before this index were sent,
            unsent: but these.

        Returns:
            the errors of those that failed, or have no answer, by their index.
        """
        state = self._state
        answers.all_sent(sum([index not in unsent for index in range(sent)]))
        limit = state.settings.send_timeout_seconds if self._time_limit is None else self._time_limit
        is_complete, known = False, -1
        while not is_complete and len(answers.answered) > known:  # as long as some come
            known = len(answers.answered)
            is_complete = state.wait_until(lambda: answers.is_complete, time.monotonic() + limit)
        # Of one that is answered from here on, it may be said as well that it has no answer.
        silent = () if is_complete else [each for each in answers.unanswered(sent) if each not in unsent]
        errors = answers.errors.copy()
        for index, error in errors.items():
            if isinstance(error, IllegalStateException) and not state.lifecycle.usable:
                errors[index] = ConnectionLostException(unanswered(state.name))
        no_answer = OperationTimedOutException(
            f"no answer has come for {in_seconds(limit)} (option send_timeout_seconds); it may have been sent all the"
            " same"
        )
        return dict.fromkeys(silent, no_answer) | errors

    def _on_answer(self) -> None:
        """A message of several has its answer; called by the transport."""
        self._settled += 1

    def _target(self, destination: Destination | None) -> Destination:
        """Where a send goes to that names a destination, or none."""
        own = self._destination
        if destination is None:
            if own is None:
                raise InvalidDestinationException("the producer has no destination; give one to send()")
            return own
        if own is not None:
            raise IllegalStateException(
                f"the producer sends to {str(own)!r}; only one made without a destination takes one"
            )
        checked_destination(destination)
        return destination

    def _made(
        self,
        message: Message,
        destination: Destination,
        mode: DeliveryMode,
        priority: int | None,
        time_to_live: float | timedelta | None,
        delivery_delay: float | timedelta | datetime | None,
        is_own: bool,
    ) -> Envelope:
        """What is sent of a message, into which its id, destination, times, priority and mode are written."""
        now_ms = time.time_ns() // 1_000_000
        if now_ms < 0:
            now_ms = 0  # a message has no place for times before 1970
        live_ms = self._time_to_live_ms if time_to_live is None else checked_ms("time_to_live", time_to_live, 1)
        delay_ms = self._delivery_delay_ms if delivery_delay is None else checked_delay_ms(delivery_delay, now_ms)
        if priority is not None:
            checked_priority(priority)
        else:
            priority = self._priority
        self._sequence = sequence = self._sequence + 1
        message.destination = destination
        message.message_id = self._message_id(sequence)
        message.user_id = self._state.user_id
        message.sent_at_ms = None if self.disable_timestamp else now_ms
        is_new = not message._delivery_count  # what was received keeps what nobody says otherwise
        if is_new or live_ms is not None:
            message.expires_at_ms = None if live_ms is None else now_ms + live_ms
        message.deliver_at_ms = None if not delay_ms else now_ms + delay_ms
        if is_new or priority is not None:
            message._priority = _NORMAL if priority is None else priority
        message.delivery_mode = mode
        return envelope_of(message, Identity(self._producer_id, self._thread_id, sequence), is_own=is_own)

    def _message_id(self, sequence: int) -> str | None:
        policy = self._id_policy
        if self.disable_message_id or policy == "none":
            return None
        return f"{self._id_prefix}{sequence}" if policy == "producer" else f"ID:{uuid4()}"

    def _send_later(self, message: Message, envelope: Any, on_completion: OnCompletion | None) -> None:
        """Send with a completion, or keep for the commit."""
        state = self._state
        completion = None
        if on_completion is not None:
            if not callable(on_completion):
                raise TypeError(f"on_completion={on_completion!r} cannot be called")
            completion = Completion(state, message, on_completion, self._on_told)
            self._sent += 1
        try:
            if completion is not None:
                # Ahead of the send: its answer may come before send() returns.
                state.completions.append(completion)
                state.ensure_thread()
            if state.policy.transacted:
                state.keep_send(self._link, envelope, completion)
                if state.given_back:  # by the handler of a signal, in the middle of this: it will never be committed
                    state.end_sends(TransactionRolledBackException(f"{state.name} is closed"))
            else:
                if state.redundancy is not None:
                    state.redundancy.require()
                state.transport.send(self._link, envelope, completion, self._time_limit)
        except BaseException:
            if completion is not None and state.withdraw(completion):
                self._sent -= 1
            raise

    def _on_settled(self, message_id: str | None, destination: Destination, error: JMSException | None) -> None:
        """A non-persistent send has ended; called by the transport."""
        self._settled += 1
        state = self._state
        if error is not None:
            named = f"message {message_id!r} to {destination.name!r}: "
            if isinstance(error, IllegalStateException) and not state.lifecycle.usable:
                state.report(ConnectionLostException(f"{named}{unanswered(state.name)}"))
            else:
                state.report(type(error)(f"{named}{error.reason}", error_code=error.error_code))
        self._state.wake()

    def _on_told(self) -> None:
        """A completion callback has returned; called by the session's thread."""
        self._told += 1

    # The end.

    @property
    def _unanswered(self) -> int:
        """Asynchronous sends whose end the application has not been told."""
        return self._sent - self._settled - self._told

    def _wait_for_answers(self, deadline: float) -> bool:
        """Wait until each asynchronous send has been answered and told; not while the network is away.

        For the session.
        """
        state = self._state
        return state.wait_until(lambda: self._unanswered <= 0 or state.interrupted, deadline)

    def _lost(self, error: JMSException) -> None:
        """The broker closed the link: every later send raises this; for the session."""
        self._lifecycle.fail(error)

    def _end(self) -> None:
        """Close without a word to the broker; for the session, whose links have ended."""
        self._lifecycle.process(Event.BEGIN_CLOSE)
        self._lifecycle.process(Event.END_CLOSE)

    def close(self) -> None:
        """Close; legal twice.

        Waits for the answers to asynchronous sends and for the broker, together at most ``close_timeout_seconds``.

        What it sent in a transaction stays in the transaction.
        """
        self._state.from_any_thread(self._close)

    def _close(self) -> None:
        state = self._state
        deadline = time.monotonic() + state.settings.close_timeout_seconds
        if self._lifecycle.state is State.CLOSED:
            return
        if not state.policy.transacted and not state.in_own_thread() and not self._wait_for_answers(deadline):
            log.warning("! %s closes with %d sends unanswered", self._lifecycle.name, self._unanswered)
        self._lifecycle.process(Event.BEGIN_CLOSE)
        self._on_close(self, deadline)
        self._lifecycle.process(Event.END_CLOSE)


_PERSISTENT = DeliveryMode.PERSISTENT
_new: Final = tuple.__new__  #: what a named tuple calls, without a function of Python


def _of_each(name: str, value: Any, count: int) -> Iterable[Any]:
    """The value of an argument for each of so many messages."""
    if not isinstance(value, Sequence):
        return repeat(value, count)
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} values for {count} messages")
    return value


def _named(error: Exception, index: int, count: int) -> Exception:
    """Return an error of one message of several, which names it."""
    named = f"message {index} of {count} cannot be sent, and none of them was: {error}"
    return type(error)(named, error_code=error.error_code) if isinstance(error, JMSException) else type(error)(named)


def check_several(messages: object) -> None:
    """Whether ``send_all`` is given several messages; raises TypeError where it is one, or none."""
    if isinstance(messages, _ONE_MESSAGE) or not isinstance(messages, Iterable):
        raise TypeError(
            f"send_all() takes several messages, such as a list; for one {type(messages).__name__} use send()"
        )


#: What ``send_all`` takes for one message.
_ONE_MESSAGE = (Message, str, bytes, bytearray, Mapping)
