"""The simplified API (Jakarta Messaging 3.1 section 2.8): a connection and a session in one object.

::

    with factory.create_context() as context:
        queue = context.create_queue("orders")
        context.create_producer().set_property("colour", "red").set_priority(7).send(queue, "hello")
        with context.create_consumer(queue) as consumer:
            print(consumer.receive_body(str, timeout=5))

Where the specification has a second tree of exceptions for this API, Python has no need of it: the errors are those of
the classic one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from ack_modes import AcknowledgeMode
from broker_adapter import Destination, IllegalStateException, JMSException, MessageFormatException
from sdk.connection import Connection, ConnectionMetaData, EventListener, ExceptionListener
from sdk.finalizers import dropped
from sdk.messages.envelopes import wrapped
from sdk.messages.factory import MessageFactory
from sdk.messages.message import DeliveryMode, Message, check_body_type, checked_mode
from sdk.messages.values import (
    PropertyValue,
    check_correlation_id,
    check_reply_to,
    check_text_header,
    checked_ms,
    checked_priority,
)
from sdk.producer import MessageProducer, check_several
from sdk.receiving.browser import QueueBrowser
from sdk.receiving.consumer import Listener, MessageConsumer
from sdk.regions.region import Region
from sdk.send_answers import none_sent
from sdk.session import Session
from sdk.session_state import OnCompletion

_T = TypeVar("_T")


class _SharedConnection:
    """A connection that closes with the last of its contexts.

    Theory of operation
        A context that is dropped without being closed leaves when its session is gone, so that the connection goes on
        for what works without the context: its consumers and messages keep the session.  What waits for that does not
        keep this object, so that a connection whose contexts are all dropped is dropped as well, and says so.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._lock = threading.RLock()
        self._contexts: set[int] = set()  #: the numbers of their sessions

    def enter(self, session: int) -> None:
        with self._lock:
            self._contexts.add(session)

    def leave(self, session: int, *, keep_alive: bool = True, is_asked: bool = False) -> None:
        """Legal twice: what the handler of a signal has interrupted, the next call does."""
        with self._lock:
            self._contexts.discard(session)
            is_last = not self._contexts
        if is_last:
            self.connection._close_once(keep_alive=keep_alive, is_asked=is_asked)

    def leave_behind(self, session: Session) -> weakref.finalize[[weakref.ref[_SharedConnection], int], Session]:
        """Leave when a session is gone; returns what calls that off."""
        leaving = weakref.finalize(session, _session_is_gone, weakref.ref(self), session._state.number)
        leaving.atexit = False  # the interpreter ends, and with it the connection
        return leaving


def _session_is_gone(reference: weakref.ref[_SharedConnection], number: int) -> None:
    """The finalizer of a session whose context was not closed."""
    shared = reference()
    if shared is not None:
        # The session has warned.
        dropped(shared, partial(shared.leave, number), shared.connection._transport, warns=False)


class JMSContext(MessageFactory):
    """A session and the connection it belongs to.  Made by ``ConnectionFactory.create_context``.

    For one thread at a time, as a session; ``create_context`` makes others on the same connection.

    Attributes:
        auto_start: whether the connection is started when the first consumer is made.
    """

    # A misspelt attribute is an error.
    __slots__ = (
        "__weakref__",
        "_closed",
        "_leaving",
        "_producer",
        "_session",
        "_shared",
        "auto_start",
    )

    def __init__(self, shared: _SharedConnection, mode: AcknowledgeMode) -> None:
        """Made by the factory, or by another context."""
        self._shared = shared
        self._session = shared.connection.create_session(mode)
        shared.enter(self._session._state.number)
        self._leaving = shared.leave_behind(self._session)
        self._producer: MessageProducer | None = None
        self._closed = False
        self.auto_start = True

    def __repr__(self) -> str:
        return f"<JMSContext {self._session!r} of {self._shared.connection!r}>"

    def __enter__(self) -> JMSContext:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(keep_alive=kind is not None, is_asked=False)  # as a connection is

    def create_context(self, mode: AcknowledgeMode) -> JMSContext:
        """Another context on the same connection, which closes with the last of them.

        Args:
            mode: how its deliveries end.

        Raises:
            IllegalStateException: this context is closed.
        """
        self._require_open()
        return JMSContext(self._shared, mode)

    # The connection.

    @property
    def client_id(self) -> str:
        """The client id in use."""
        return self._shared.connection.client_id

    @property
    def meta_data(self) -> ConnectionMetaData:
        """What is known of the two ends."""
        return self._shared.connection.meta_data

    @property
    def exception_listener(self) -> ExceptionListener | None:
        """The connection's; see ``Connection.exception_listener``."""
        return self._shared.connection.exception_listener

    @exception_listener.setter
    def exception_listener(self, listener: ExceptionListener | None) -> None:
        self._shared.connection.exception_listener = listener

    @property
    def event_listener(self) -> EventListener | None:
        """The connection's; see ``Connection.event_listener``."""
        return self._shared.connection.event_listener

    @event_listener.setter
    def event_listener(self, listener: EventListener | None) -> None:
        self._shared.connection.event_listener = listener

    def start(self) -> None:
        """Let messages through to the consumers of all contexts of the connection; legal twice."""
        self._require_open()
        self._shared.connection.start()

    def stop(self) -> None:
        """Hold messages back from them; see ``Connection.stop``."""
        self._require_open()
        self._shared.connection.stop()

    def close(self, *, keep_alive: bool = False) -> None:
        """Close the session; the last context closes the connection, and drops the queue of a durable client.

        Legal twice.  Waits as ``Session.close`` and ``Connection.close`` do.

        Args:
            keep_alive: of the last one: the queue is kept; see ``Connection.close``.

        Raises:
            IllegalStateException: called from a listener or completion callback of this context.
        """
        self._close(keep_alive=keep_alive, is_asked=keep_alive)

    def _close(self, *, keep_alive: bool, is_asked: bool) -> None:
        """Close; ``is_asked``: whether the application has asked to keep what there is."""
        if self._closed:
            return
        self._session.close()
        self._shared.leave(self._session._state.number, keep_alive=keep_alive, is_asked=is_asked)
        self._leaving.detach()
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise IllegalStateException("the context is closed")

    # The session.

    @property
    def session_mode(self) -> AcknowledgeMode:
        """How deliveries end."""
        return self._session.acknowledge_mode

    @property
    def transacted(self) -> bool:
        """Whether it has ``commit`` and ``rollback``."""
        return self._session.transacted

    def acknowledge(self) -> None:
        """See ``Session.acknowledge``."""
        self._session.acknowledge()

    def commit(self) -> None:
        """See ``Session.commit``."""
        self._session.commit()

    def rollback(self) -> None:
        """See ``Session.rollback``."""
        self._session.rollback()

    def recover(self) -> None:
        """See ``Session.recover``."""
        self._session.recover()

    def create_region(self, name: str, *, conflates: bool | None = None) -> Region:
        """See ``Session.create_region``."""
        return self._session.create_region(name, conflates=conflates)

    def ready_for_events(self) -> None:
        """See ``Connection.ready_for_events``."""
        self._require_open()
        self._shared.connection.ready_for_events()

    def pending_event_count(self) -> int:
        """See ``Connection.pending_event_count``."""
        self._require_open()
        return self._shared.connection.pending_event_count()

    def create_queue(self, name: str) -> Destination:
        """See ``Session.create_queue``."""
        return self._session.create_queue(name)

    def create_topic(self, name: str) -> Destination:
        """See ``Session.create_topic``."""
        return self._session.create_topic(name)

    def create_temporary_queue(self) -> Destination:
        """See ``Session.create_temporary_queue``."""
        return self._session.create_temporary_queue()

    def create_temporary_topic(self) -> Destination:
        """See ``Session.create_temporary_topic``."""
        return self._session.create_temporary_topic()

    def delete_temporary(self, destination: Destination) -> None:
        """See ``Session.delete_temporary``."""
        self._session.delete_temporary(destination)

    # Producers, consumers, browsers.

    def create_producer(self) -> JMSProducer:
        """A producer for any destination; light, so that one may be made for each message."""
        self._require_open()
        return JMSProducer(self._anonymous_producer)

    def _anonymous_producer(self) -> MessageProducer:
        self._require_open()
        if self._producer is None:
            self._producer = self._session.create_producer()
        return self._producer

    def create_consumer(
        self, destination: Destination, selector: str | None = None, no_local: bool = False
    ) -> JMSConsumer:
        """See ``Session.create_consumer``."""
        return self._started(self._session.create_consumer(destination, selector, no_local))

    def create_durable_consumer(
        self, destination: Destination, name: str, selector: str | None = None, no_local: bool = False
    ) -> JMSConsumer:
        """See ``Session.create_durable_consumer``."""
        return self._started(self._session.create_durable_consumer(destination, name, selector, no_local))

    def create_shared_consumer(self, destination: Destination, name: str, selector: str | None = None) -> JMSConsumer:
        """See ``Session.create_shared_consumer``."""
        return self._started(self._session.create_shared_consumer(destination, name, selector))

    def create_shared_durable_consumer(
        self, destination: Destination, name: str, selector: str | None = None
    ) -> JMSConsumer:
        """See ``Session.create_shared_durable_consumer``."""
        return self._started(self._session.create_shared_durable_consumer(destination, name, selector))

    def unsubscribe(self, name: str) -> None:
        """See ``Session.unsubscribe``."""
        self._session.unsubscribe(name)

    def create_browser(self, destination: Destination, selector: str | None = None) -> QueueBrowser:
        """See ``Session.create_browser``."""
        return self._session.create_browser(destination, selector)

    def _started(self, consumer: MessageConsumer) -> JMSConsumer:
        if self.auto_start:
            self._shared.connection.start()
        return JMSConsumer(consumer)


class JMSProducer:
    """Sends messages to any destination, with what was set before.  Made by ``JMSContext.create_producer``.

    Every ``set_...`` returns the producer, so that they can be chained; what it sets is an attribute as well.

    Attributes:
        delivery_mode, priority, time_to_live, delivery_delay: see ``MessageProducer.send``; None: its defaults.
        correlation_id, type, reply_to: headers of the messages; None: as the message has them.
        disable_message_id, disable_timestamp: whether messages go without.
        on_completion: called when a message has been sent; None: ``send`` waits.
        properties: set on each message, over its own.
    """

    # A misspelt attribute is an error.
    __slots__ = (
        "__weakref__",
        "_producer",
        "_template",
        "correlation_id",
        "delivery_delay",
        "delivery_mode",
        "disable_message_id",
        "disable_timestamp",
        "on_completion",
        "priority",
        "properties",
        "reply_to",
        "time_to_live",
        "type",
    )

    def __init__(self, producer: Callable[[], MessageProducer]) -> None:
        """Made by the context.

        Args:
            producer: gives the context's anonymous producer.
        """
        self._producer = producer
        self.delivery_mode: DeliveryMode | None = None
        self.priority: int | None = None
        self.time_to_live: float | timedelta | None = None
        self.delivery_delay: float | timedelta | None = None
        self.correlation_id: str | bytes | None = None
        self.type: str | None = None
        self.reply_to: Destination | None = None
        self.disable_message_id = False
        self.disable_timestamp = False
        self.on_completion: OnCompletion | None = None
        # An unsent message checks names and values as they are set.
        self._template = Message()
        self.properties = self._template.properties

    def __setattr__(self, name: str, value: object) -> None:
        check = _CHECKS.get(name)
        if check is not None and value is not None:
            check(value)
        super().__setattr__(name, value)

    def send(
        self, destination: Destination, message: Message | str | bytes | dict[str, Any] | list[Any]
    ) -> JMSProducer:
        """Send a message, or a str, bytes, dict or list as the fitting message.

        Raises:
            JMSException: see ``MessageProducer.send``.
        """
        sent = self._prepared(message)
        producer = self._producer()
        producer.disable_message_id = self.disable_message_id
        producer.disable_timestamp = self.disable_timestamp
        producer.send(
            sent,
            destination,
            delivery_mode=self.delivery_mode,
            priority=self.priority,
            time_to_live=self.time_to_live,
            delivery_delay=self.delivery_delay,
            on_completion=self.on_completion,
        )
        return self

    def send_all(
        self, destination: Destination, messages: Iterable[Message | str | bytes | dict[str, Any] | list[Any]]
    ) -> JMSProducer:
        """Send messages in their order, and wait for all answers, whatever ``set_async`` says.

        Raises:
            JMSException: see ``MessageProducer.send_all``, as for all else.
        """
        check_several(messages)
        several = list(messages)
        try:
            producer = self._producer()
        except JMSException as error:
            none_sent(error, len(several))
            raise
        producer.disable_message_id = self.disable_message_id
        producer.disable_timestamp = self.disable_timestamp
        producer._send_all(
            self._prepared,
            several,
            destination,
            self.delivery_mode,
            self.priority,
            self.time_to_live,
            self.delivery_delay,
        )
        return self

    def _prepared(self, message: Message | str | bytes | dict[str, Any] | list[Any]) -> Message:
        """The message with what was set before."""
        sent = wrapped(message)
        sent.properties.update(self.properties)
        for name in ("correlation_id", "type", "reply_to"):
            value = getattr(self, name)
            if value is not None:
                setattr(sent, name, value)
        return sent

    def set_property(self, name: str, value: PropertyValue) -> JMSProducer:
        """Set a property of the messages."""
        self.properties[name] = value
        return self

    def clear_properties(self) -> JMSProducer:
        """Set no properties any more."""
        self._template.clear_properties()
        return self

    def set_delivery_mode(self, value: DeliveryMode | None) -> JMSProducer:
        """PERSISTENT or NON_PERSISTENT."""
        self.delivery_mode = value
        return self

    def set_priority(self, value: int | None) -> JMSProducer:
        """0 to 9."""
        self.priority = value
        return self

    def set_time_to_live(self, value: float | timedelta | None) -> JMSProducer:
        """Seconds, or a timedelta, after which the messages expire."""
        self.time_to_live = value
        return self

    def set_delivery_delay(self, value: float | timedelta | None) -> JMSProducer:
        """Seconds, or a timedelta, before which the messages are not delivered."""
        self.delivery_delay = value
        return self

    def set_correlation_id(self, value: str | bytes | None) -> JMSProducer:
        """Of the application."""
        self.correlation_id = value
        return self

    def set_type(self, value: str | None) -> JMSProducer:
        """Of the application."""
        self.type = value
        return self

    def set_reply_to(self, value: Destination | None) -> JMSProducer:
        """Set where the answer goes."""
        self.reply_to = value
        return self

    def set_disable_message_id(self, value: bool) -> JMSProducer:
        """Set whether messages go without an id."""
        self.disable_message_id = value
        return self

    def set_disable_timestamp(self, value: bool) -> JMSProducer:
        """Set whether messages go without the time of their sending."""
        self.disable_timestamp = value
        return self

    def set_async(self, on_completion: OnCompletion | None) -> JMSProducer:
        """Do not wait in ``send``; tell this callback instead.  None: wait again."""
        self.on_completion = on_completion
        return self


class JMSConsumer:
    """Receives messages, or their bodies.  Made by ``JMSContext.create_consumer`` and its like."""

    # A misspelt attribute is an error.
    __slots__ = (
        "__weakref__",
        "_consumer",
    )

    def __init__(self, consumer: MessageConsumer) -> None:
        """Made by the context."""
        self._consumer = consumer

    def __repr__(self) -> str:
        return f"<JMSConsumer {self._consumer!r}>"

    def __enter__(self) -> JMSConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def selector(self) -> str | None:
        """Which messages it takes; None: all."""
        return self._consumer.selector

    @property
    def listener(self) -> Listener | None:
        """See ``MessageConsumer.listener``."""
        return self._consumer.listener

    @listener.setter
    def listener(self, listener: Listener | None) -> None:
        self._consumer.listener = listener

    def receive(self, timeout: float | None = None) -> Message | None:
        """See ``MessageConsumer.receive``."""
        return self._consumer.receive(timeout)

    def receive_nowait(self) -> Message | None:
        """See ``MessageConsumer.receive_nowait``."""
        return self._consumer.receive_nowait()

    def receive_many(self, limit: int, timeout: float | None = None) -> list[Message]:
        """See ``MessageConsumer.receive_many``."""
        return self._consumer.receive_many(limit, timeout)

    def receive_body(self, kind: type[_T], timeout: float | None = None) -> _T | None:
        """The body of the next message, where it has this type.

        Args:
            kind: str, bytes, dict or list, or whatever an object message carries.
            timeout: how long to wait, in seconds; None: until one comes or the consumer is closed.

        Returns:
            The body; None when the time is over or the consumer is closed.

        Raises:
            MessageFormatException: the body has another type, or there is none.  The message was not received: it is
                the next one again.
            JMSException: see ``MessageConsumer.receive``.
        """

        def check(message: Message) -> None:
            if message._body is None or not message.is_body_assignable_to(kind):
                raise MessageFormatException(
                    f"the body of {message.message_id!r} is a {type(message.body).__name__}, not a {kind.__name__};"
                    " receive() takes it as it is"
                )

        check_body_type(kind)
        message = self._consumer._receive(timeout, check)
        return None if message is None else message.get_body(kind)

    def receive_body_nowait(self, kind: type[_T]) -> _T | None:
        """``receive_body`` of what waits already; see ``MessageConsumer.receive_nowait``."""
        return self.receive_body(kind, 0)

    def close(self) -> None:
        """See ``MessageConsumer.close``."""
        self._consumer.close()


def open_context(connection: Connection, mode: AcknowledgeMode) -> JMSContext:
    """The first context of a new connection; for the factory."""
    try:
        return JMSContext(_SharedConnection(connection), mode)
    except BaseException:
        connection.close()
        raise


def _check_on_completion(value: object) -> None:
    if not callable(value):
        raise TypeError(f"on_completion={value!r} cannot be called")


#: What an attribute of a ``JMSProducer`` may be, where it is not None.
_CHECKS: Final[dict[str, Callable[[Any], object]]] = {
    "delivery_mode": checked_mode,
    "priority": checked_priority,
    "time_to_live": lambda value: checked_ms("time_to_live", value, 1),
    "delivery_delay": lambda value: checked_ms("delivery_delay", value, 0),
    "correlation_id": check_correlation_id,
    "type": lambda value: check_text_header("type", value),
    "reply_to": check_reply_to,
    "on_completion": _check_on_completion,
}
