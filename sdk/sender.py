"""Senders: what any number of threads send with, though a session belongs to one (Jakarta Messaging 3.1, 6.2.5).

Theory of operation
    The senders of a connection share sessions in AUTO mode, each with a producer for any destination.  A thread owns
    one of them until the broker has answered, so what it sends next comes behind, on whichever session.  Each producer
    counts its own messages, as the engine needs to find those that are sent again after a loss.

    Who has a session is what the session's own lock says, and nothing else: a handler of a signal that raises leaves
    nothing wrong.  The session that it ends is left out when a thread finds none free.  Such threads come to the
    ``gate`` one after the other; the one that has it makes a session, or waits for a free one where there are enough.
    So none of them is passed again and again by threads that have just sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from weakref import WeakSet

from broker_adapter import (
    Destination,
    IllegalStateException,
    JMSException,
    OperationTimedOutException,
    ResourceAllocationException,
    Waiters,
    in_seconds,
    may_wait,
)
from sdk.lifecycle import Event, Lifecycle
from sdk.messages.envelopes import wrapped
from sdk.messages.message import DeliveryMode, Message
from sdk.messages.values import PropertyValue
from sdk.producer import MessageProducer, check_several
from sdk.send_answers import none_sent
from sdk.session import Session

#: Sessions that the senders of a connection have at most: an eighth of what our server lets a connection begin by
#: default (option ``max_sessions``), and half of what RabbitMQ does.
MOST_SESSIONS: Final = 32
#: How often the next thread looks whether a session is free where none says so, in seconds: the handler of a signal has
#: interrupted the thread that would have.
_LOOK_SECONDS: Final = 1.0
_NON_PERSISTENT: Final = DeliveryMode.NON_PERSISTENT


class SharedSessions:
    """The sessions that the senders of a connection share.  For any number of threads.

    Attributes:
        members: each with its producer; replaced, never changed: while the gate is held, or without senders.
        freed: wakes the thread that has the gate; it is empty where none waits.
        seconds: how long a thread waits for a free one.
    """

    __slots__ = (
        "__weakref__",
        "_create_session",
        "_gate",
        "_is_away",
        "_lifecycle",
        "_senders",
        "freed",
        "members",
        "seconds",
    )

    def __init__(
        self, create_session: Callable[[], Session], lifecycle: Lifecycle, is_away: Callable[[], bool], seconds: float
    ) -> None:
        """There is none yet.

        Args:
            create_session: of the connection.
            lifecycle: the connection's.
            is_away: whether the connection is being restored.
            seconds: how long a thread waits for a free one.
        """
        self._create_session = create_session
        self._lifecycle = lifecycle
        self._is_away = is_away
        self.seconds = seconds
        self._senders: WeakSet[Sender] = WeakSet()  #: that are open; under the connection's lock
        self._gate = threading.RLock()
        self.freed = Waiters()
        self.members: tuple[tuple[Session, MessageProducer], ...] = ()

    def join(self, sender: Sender) -> None:
        """A new sender uses them; under the connection's lock."""
        self._senders.add(sender)

    def leave(self, sender: Sender) -> Sequence[tuple[Session, MessageProducer]]:
        """A sender is closed; returns what is to be closed with it: all, if it is the last.  Under the same lock."""
        self._senders.discard(sender)
        if self._senders:
            return ()
        members, self.members = self.members, ()
        return members

    def _has_free(self) -> bool:
        return False in [session._state.calling for session, _ in self.members]

    def wait(self, deadline: float) -> Sequence[tuple[Session, MessageProducer]]:
        """Wait until one of them seems free, or make one; returns the members.

        Args:
            deadline: until when (monotonic seconds).

        Raises:
            ResourceAllocationException: none was free in time.
            JMSException: the connection is closed or has failed, or no session can be made.
        """
        self._lifecycle.require_usable()  # also in a child made by fork, where the gate may stay closed
        if self._is_away() and not may_wait():
            raise IllegalStateException(
                "not sent: this thread of the SDK would wait for the network, which is away (docs/faq.md)"
            )
        try:
            if self._gate.acquire(timeout=max(0.0, deadline - time.monotonic())):
                while True:
                    for session, _ in self.members:
                        if session._state.interruption is not None:  # a second handler has raised meanwhile
                            session._state.interrupt()
                    self.members = tuple([each for each in self.members if each[0]._state.lifecycle.usable])
                    if len(self.members) < MOST_SESSIONS and not self._has_free():
                        self._add_one()
                    if self._has_free():
                        return self.members
                    now = time.monotonic()
                    if now >= deadline:
                        break
                    self.freed.wait(self._has_free, min(deadline, now + _LOOK_SECONDS))
        finally:
            try:  # at once: the handler of a signal may raise as any function begins
                self._gate.release()
            except RuntimeError:  # it was not acquired
                pass
        raise ResourceAllocationException(
            f"not sent: for {in_seconds(self.seconds)} (option send_timeout_seconds) other threads used all sessions"
            f" that the senders of {self._lifecycle.name} may have ({MOST_SESSIONS}); the broker is away, or takes no"
            " more, or too many threads send"
        )

    def _add_one(self) -> None:
        session = self._create_session()
        try:
            producer = session.create_producer()
        except JMSException:
            session.close()
            raise
        self.members = (*self.members, (session, producer))


class Sender:
    """Sends messages from any thread.  Made by ``connection.create_sender``.

    ::

        orders = connection.create_sender(session.create_queue("orders"))
        orders.send({"item": "book"})  # in any thread

    What one thread sends arrives in its order.  At most 32 threads send at a time over one connection, the others wait.
    """

    # A misspelt attribute is an error.
    __slots__ = ("__weakref__", "_destination", "_lifecycle", "_on_close", "_shared")

    def __init__(
        self, shared: SharedSessions, destination: Destination | None, on_close: Callable[[Sender], None]
    ) -> None:
        """Made by the connection.

        Args:
            shared: what it sends with.
            destination: None: each send names its own.
            on_close: called by each close.
        """
        self._shared = shared
        self._destination = destination
        self._on_close = on_close
        where = "any destination" if destination is None else repr(str(destination))
        self._lifecycle = Lifecycle(f"sender to {where:.200}")

    def __repr__(self) -> str:
        return f"<Sender {self._lifecycle.name}, {self._lifecycle.state.name}>"

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def destination(self) -> Destination | None:
        """Where it sends to; None: each send names its own."""
        return self._destination

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
    ) -> None:
        """Send a message, and wait for the broker's answer: a persistent message is on disk when this returns.

        It waits for a free session as well, ``send_timeout_seconds`` at most; else see ``MessageProducer.send``.

        Args:
            message: as for ``MessageProducer.send``.
            destination: only where the sender has none of its own.
            delivery_mode: None: PERSISTENT; with NON_PERSISTENT this waits for the answer as well, which needs no disk.
            priority: 0 to 9; None: 4.
            time_to_live: as for ``MessageProducer.send``, as are those that follow.
            delivery_delay: before which it is not delivered.
            properties: added to the message's.
            group_id: the message group.
            correlation_id: of the application.

        Raises:
            ResourceAllocationException: a limit of the broker, or no session was free in time.
            IllegalStateException: the sender or its connection is closed.
            JMSException: as ``MessageProducer.send``.
        """
        if delivery_mode is _NON_PERSISTENT:
            message = wrapped(message)
            message._add_named(properties, group_id, correlation_id)
            self.send_all(
                *((message,), destination),
                delivery_mode=delivery_mode,
                priority=priority,
                time_to_live=time_to_live,
                delivery_delay=delivery_delay,
            )
        else:
            self._call(
                MessageProducer.send,
                message,
                destination,
                delivery_mode=delivery_mode,
                priority=priority,
                time_to_live=time_to_live,
                delivery_delay=delivery_delay,
                properties=properties,
                group_id=group_id,
                correlation_id=correlation_id,
            )

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
        """Send messages in their order, and wait for the broker's answers to all; see ``MessageProducer.send_all``.

        It waits for a free session as well, as ``send`` does.
        """
        check_several(messages)
        several = list(messages)
        try:
            self._call(
                MessageProducer.send_all,
                several,
                destination,
                delivery_mode=delivery_mode,
                priority=priority,
                time_to_live=time_to_live,
                delivery_delay=delivery_delay,
            )
        except JMSException as error:
            if not error.failures:  # it has not come to one of the producers
                none_sent(error, len(several))
            raise

    def _call(self, send: Callable[..., None], messages: Any, destination: Destination | None, **options: Any) -> None:
        """Send with one of the producers, whose session this thread owns meanwhile."""
        if not self._lifecycle.usable:
            self._lifecycle.require_usable()
        own = self._destination
        if own is not None:
            if destination is not None:
                raise IllegalStateException(
                    f"{self._lifecycle.name} takes no other destination; only one made without a destination does"
                )
            destination = own
        shared = self._shared
        deadline = time.monotonic() + shared.seconds
        members: Sequence[tuple[Session, MessageProducer]] = (
            () if shared.freed else shared.members
        )  # where some wait, they were first
        while True:
            for session, producer in members:
                state = session._state
                if state.calling or not state.lifecycle.usable:
                    continue
                is_owned = False
                try:
                    is_owned = state.own(False)
                    if is_owned and not state.calling:  # else the handler of a signal has just ended it
                        return send(producer, messages, destination, **options)
                except OperationTimedOutException as error:
                    if not state.interrupted:
                        # What has no answer, as at a full queue, may hold up what this session sends elsewhere.
                        state.fail(error)
                        session._end_elsewhere()
                    raise
                finally:
                    try:
                        state.disown()
                    except RuntimeError:
                        if is_owned:  # else another thread has it
                            raise
                    if shared.freed:
                        shared.freed.wake()
            members = shared.wait(deadline)

    def close(self) -> None:
        """Close; legal twice, and from any thread.

        With the last sender of a connection their sessions are closed: that waits for sends that are under way and for
        the broker, together at most ``close_timeout_seconds``.
        """
        self._lifecycle.process(Event.BEGIN_CLOSE)
        self._on_close(self)
        self._lifecycle.process(Event.END_CLOSE)
