"""Sessions: one thread's context for sending and receiving (Jakarta Messaging 3.1 section 6.2).

Theory of operation
    How threads share a session is told in :mod:`sdk.session_state`, and how deliveries end in :mod:`sdk.endings`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from ack_modes import AcknowledgeMode, BatchLimits, DeliveryTag, Failure, Settlement, contradiction
from broker_adapter import (
    ClientSettings,
    Destination,
    DestinationKind,
    Identity,
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    ReceiverSpec,
    SenderSpec,
    Subscription,
    TransactionRolledBackException,
    Transport,
    checked_destination,
    checked_name,
    not_browsable,
    parse_selector,
    queue,
    topic,
    uninterrupted,
)
from sdk.acknowledgements import LostAcknowledgements, Source
from sdk.address import AddressedDestination, addressed, split_address
from sdk.checks import check_subscription_name
from sdk.closing import Closing
from sdk.endings import Endings
from sdk.finalizers import Sink, dropped
from sdk.lifecycle import Event, State
from sdk.messages.factory import MessageFactory
from sdk.messages.message import Message
from sdk.producer import MessageProducer
from sdk.receiving.browser import QueueBrowser
from sdk.receiving.consumer import MessageConsumer
from sdk.redundancy import Redundancy
from sdk.regions.region import Region
from sdk.session_links import SessionLinks
from sdk.session_state import SessionState, log, too_late
from sdk.session_thread import SessionThread

_T = TypeVar("_T")
#: Most messages that a consumer can prefetch.
MAX_PREFETCH = 32767


class Session(MessageFactory):
    """Makes producers, consumers, browsers and messages, and ends deliveries.  Made by ``connection.create_session``.

    For one thread at a time.  Where it has listeners, they are called on a thread of its own, and while the connection
    is started the session belongs to that.
    """

    # A misspelt attribute is an error.
    __slots__ = (
        "__weakref__",
        "_acknowledge_now",
        "_client_id",
        "_closing",
        "_endings",
        "_identify",
        "_links",
        "_mode",
        "_on_close",
        "_region",
        "_settings",
        "_state",
        "_thread",
        "_transport",
    )

    def __init__(
        self,
        transport: Transport,
        settings: ClientSettings,
        number: int,
        mode: AcknowledgeMode,
        identify: Callable[[], Identity],
        client_id: str | None,
        report: Callable[[JMSException], None],
        on_close: Callable[[Session], None],
        *,
        region: Callable[[str, bool | None, Session], Region],
        is_holdfast: bool = True,
        user_id: str | None = None,
        lost: LostAcknowledgements | None = None,
        epoch: int = 0,
        interrupted: bool = False,
        redundancy: Redundancy | None = None,
    ) -> None:
        """Made by the connection.

        Args:
            transport: the connection's.
            settings: the connection's.
            number: of the session in its connection.
            mode: how its deliveries end.
            identify: makes the identity of a new producer.
            client_id: what the application named the connection, as durable subscriptions need.
            report: tells the connection's exception listener.
            on_close: called once.
            region: makes a region of the connection.
            is_holdfast: whether the broker is ours.
            user_id: that its messages name as their sender; None: none.
            lost: acknowledgements of the connection that were lost; None where it cannot be lost.
            epoch: what deliveries carry now.
            interrupted: whether the connection is being restored.
            redundancy: refuses sends; None: nothing does.
        """
        self._mode = mode
        self._transport = transport
        self._settings = settings
        self._region = region
        self._identify = identify
        self._client_id = client_id
        self._on_close = on_close
        policy = mode.new_policy(BatchLimits(settings.dups_ok_batch_messages, settings.dups_ok_delay_seconds))
        state = SessionState(
            *(number, transport, settings, policy, report, self._start_thread, self._end_elsewhere),
            is_holdfast=is_holdfast,
            user_id=user_id,
            lost=lost,
            redundancy=redundancy,
        )
        state.epoch, state.interrupted = epoch, interrupted
        self._thread: SessionThread | None = None
        self._links = SessionLinks(state)
        self._closing = Closing()
        self._endings = Endings(state, mode, self._links.consumers)
        self._acknowledge_now = self._endings.acknowledge  # called for each message, without a look-up on the way
        self._state = state  # at the end: what a handler of a signal interrupts here is not closed

    def __repr__(self) -> str:
        return f"<Session {self._state.number} {self._mode.name}, {self._state.lifecycle.state.name}>"

    def __del__(self) -> None:
        state = getattr(self, "_state", None)
        if state is not None and state.lifecycle.is_to_close:
            dropped(self, self.close, self._transport)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def acknowledge_mode(self) -> AcknowledgeMode:
        """How its deliveries end."""
        return self._mode

    @property
    def transacted(self) -> bool:
        """Whether it has ``commit`` and ``rollback``."""
        return self._state.policy.transacted

    # Destinations.

    def create_queue(self, name: str) -> Destination:
        """The queue of this name; it comes into being when it is first used.

        Args:
            name: may ask for a link reliability, as ``orders; {link: {reliability: at-least-once}}``: a session whose
                mode contradicts that makes no producer or consumer for it.

        Raises:
            InvalidDestinationException: a queue cannot have this name, or its options are not understood.
            IllegalStateException: the session is closed.
        """
        self._state.lifecycle.require_usable()
        name, reliability = split_address(name)
        return addressed(queue(name), reliability)

    def create_topic(self, name: str) -> Destination:
        """The topic of this name; it comes into being when it is first used.

        Args:
            name: may ask for a link reliability, as for ``create_queue``.

        Raises:
            InvalidDestinationException: a topic cannot have this name, or its options are not understood.
            IllegalStateException: the session is closed.
        """
        self._state.lifecycle.require_usable()
        name, reliability = split_address(name)
        return addressed(topic(name), reliability)

    def create_region(self, name: str, *, conflates: bool | None = None) -> Region:
        """The region of this name, which the engine makes where there is none.

        In a transacted session, what the region changes is held until ``commit()``, and part of it: all or nothing,
        with the sends, the acknowledgements and the changes of other regions.  The region reads it before, over what
        the engine has; queries, interest and other sessions see only what is committed.  ``put`` and ``put_all`` give 0
        in place of versions there.  The region is then for the thread of the session, and works until that is closed.

        Args:
            name: of the region, and of the topic on which others get its events.
            conflates: whether of the updates of a key that wait for a client only the last one is kept, for clients
                that leave that to the region; None: as it is, and False for a new region.

        Raises:
            UnsupportedOperationException: the broker has no regions: connect to a Holdfast server, or ``embedded:``.
            InvalidDestinationException: a region cannot have this name.
            ResourceAllocationException: a limit of the engine.
            IllegalStateException: the session is closed.
        """
        self._state.lifecycle.require_usable()
        return self._region(checked_name(name, "region"), conflates, self)

    def create_temporary_queue(self) -> Destination:
        """A new queue that lives as long as the connection, and that only this connection consumes from."""
        return self._declare(DestinationKind.TEMPORARY_QUEUE)

    def create_temporary_topic(self) -> Destination:
        """A new topic that lives as long as the connection, and that only this connection consumes from."""
        return self._declare(DestinationKind.TEMPORARY_TOPIC)

    def delete_temporary(self, destination: Destination) -> None:
        """Delete a temporary destination of this connection before its time.

        Raises:
            IllegalStateException: a consumer uses it.
            InvalidDestinationException: it is not a temporary one of this connection.
        """
        self._state.lifecycle.require_usable()
        if not checked_destination(destination).is_temporary:
            raise InvalidDestinationException(f"{str(destination)!r} is not a temporary destination")
        limit = self._settings.request_timeout_seconds
        self._state.from_any_thread(self._transport.delete_temporary, destination, limit)

    def _declare(self, kind: DestinationKind) -> Destination:
        return self._set_up(
            lambda: self._transport.declare_temporary(kind, self._settings.request_timeout_seconds, self._state.number)
        )

    # Producers, consumers, browsers.

    def create_producer(self, destination: Destination | None = None) -> MessageProducer:
        """A producer for a destination.

        Args:
            destination: None: each send names its own.

        Raises:
            InvalidDestinationException: the broker refuses it.
        """
        if destination is not None:
            _check_reliability(checked_destination(destination), self._mode)

        def make() -> MessageProducer:
            link = self._state.attach(SenderSpec(self._state.number, destination), None)
            producer = MessageProducer(
                self._state, link, self._links.next_number(), destination, self._identify(), self._remove_producer
            )
            self._links.producers[link] = producer
            return producer

        return self._set_up(lambda: self._links.attach(make))

    def create_consumer(
        self,
        destination: Destination,
        selector: str | None = None,
        no_local: bool = False,
        *,
        exclusive: bool = False,
        keep_order: bool = False,
        prefetch: int | None = None,
    ) -> MessageConsumer:
        """A consumer of a queue, or a plain subscriber of a topic.

        Args:
            destination: where its messages come from.
            selector: which of them, in the selector language; None: all.
            no_local: whether to leave out what this connection sends (topics).
            exclusive: of all exclusive consumers of a queue the first one gets everything, until it goes; consumers
                that are not exclusive get nothing meanwhile.  Only our own broker has this.
            keep_order: whether later messages wait, in every mode, while one that has failed waits to be delivered
                again, as they do for an exclusive consumer; else they pass it in AUTO, DUPS_OK and INDIVIDUAL.
                Consumers of brokers other than our own always keep it.
            prefetch: messages that it may hold which the application has not received; 0: one is asked for at a time;
                None: as the options of the URL say.

        Raises:
            InvalidDestinationException: the broker refuses it.
            InvalidSelectorException: the selector is invalid, or the broker does not apply it.
            ValueError: ``exclusive`` with a topic, ``no_local`` with a queue, or a ``prefetch`` that can be none.
        """
        is_topic = checked_destination(destination).is_topic
        if exclusive and is_topic:
            raise ValueError(f"exclusive=True is for queues, and {str(destination)!r} is a topic")
        if no_local and not is_topic:
            raise ValueError(f"no_local=True is for topics, and {str(destination)!r} is a queue")
        return self._consume(destination, selector, no_local, None, exclusive, keep_order, prefetch)

    def create_durable_consumer(
        self, destination: Destination, name: str, selector: str | None = None, no_local: bool = False
    ) -> MessageConsumer:
        """A consumer of a durable subscription, which keeps messages while it has no consumer.

        Args:
            destination: the topic.
            name: of the subscription, among those of the connection's client id.
            selector: which messages; None: all.
            no_local: whether to leave out what connections of this client id send.

        Raises:
            IllegalStateException: the connection was made without a client id, or the subscription has a
                consumer now.
            ValueError: no subscription can have this name.
        """
        return self._subscribe(destination, name, selector, no_local, durable=True, shared=False)

    def create_shared_consumer(
        self, destination: Destination, name: str, selector: str | None = None
    ) -> MessageConsumer:
        """One of several consumers that share the messages of a subscription, which ends with the last of them.

        Args:
            destination: the topic.
            name: of the subscription.
            selector: which messages; None: all.

        Raises:
            ValueError: no subscription can have this name.
        """
        return self._subscribe(destination, name, selector, False, durable=False, shared=True)

    def create_shared_durable_consumer(
        self, destination: Destination, name: str, selector: str | None = None
    ) -> MessageConsumer:
        """One of several consumers that share the messages of a durable subscription.

        Args:
            destination: the topic.
            name: of the subscription.
            selector: which messages; None: all.

        Raises:
            ValueError: no subscription can have this name.
        """
        return self._subscribe(destination, name, selector, False, durable=True, shared=True)

    def unsubscribe(self, name: str) -> None:
        """Delete a durable subscription.

        Raises:
            InvalidDestinationException: there is none of this name.
            IllegalStateException: a consumer uses it.
            ValueError: no subscription can have this name.
        """
        check_subscription_name(name)
        self._set_up(
            lambda: self._transport.unsubscribe(name, self._settings.request_timeout_seconds, self._state.number)
        )

    def create_browser(self, destination: Destination, selector: str | None = None) -> QueueBrowser:
        """A browser of a queue: iterate over it to see what waits, taking nothing.

        Args:
            destination: the queue.
            selector: which messages to show; None: all.

        Raises:
            InvalidDestinationException: it is a topic.
        """
        if checked_destination(destination).is_topic:
            raise not_browsable(destination)
        wanted = _checked_selector(selector)

        def make() -> QueueBrowser:
            number = self._links.next_number()
            browser = QueueBrowser(
                *(self._state, number, destination, wanted, lambda: self._links.browsers.pop(number)),
                self._links.attach,
            )
            self._links.browsers[number] = browser
            return browser

        return self._set_up(make)

    def _subscribe(
        self,
        destination: Destination,
        name: str,
        selector: str | None,
        no_local: bool,
        *,
        durable: bool,
        shared: bool,
    ) -> MessageConsumer:
        if not checked_destination(destination).is_topic:
            raise InvalidDestinationException(f"cannot subscribe to {str(destination)!r}: it is a queue, not a topic")
        check_subscription_name(name)
        if durable and not shared and self._client_id is None:
            raise IllegalStateException(
                f"the durable subscription {name!r} needs a client id; give one to create_connection(client_id=...)"
            )
        return self._consume(destination, selector, no_local, Subscription(name, durable, shared))

    def _consume(
        self,
        destination: Destination,
        selector: str | None,
        no_local: bool,
        subscription: Subscription | None,
        exclusive: bool = False,
        keep_order: bool = False,
        prefetch: int | None = None,
    ) -> MessageConsumer:
        _check_reliability(checked_destination(destination), self._mode)
        if prefetch is None:
            prefetch = _prefetch_for(destination, subscription, self._settings)
        elif type(prefetch) is not int or not 0 <= prefetch <= MAX_PREFETCH:
            raise ValueError(f"prefetch={prefetch!r} is not a number of messages from 0 to {MAX_PREFETCH}")
        wanted = _checked_selector(selector)
        state = self._state

        def make() -> MessageConsumer:
            state.take_lost_links()  # so that they do not pile up where nothing is ever acknowledged or committed
            number = self._links.next_number()
            # What is settled as it is sent is not redelivered.
            source = None if state.policy.presettled else _source_of(destination, subscription, self._client_id)
            consumer = MessageConsumer(
                *(state, number, destination, wanted, no_local, prefetch, self._remove_consumer, self._acknowledge),
                source,
            )
            spec = ReceiverSpec(
                session=state.number,
                destination=destination,
                selector=wanted,
                no_local=no_local,
                subscription=subscription,
                presettled=state.policy.presettled,
                exclusive=exclusive,
                keep_order=keep_order,
            )
            sink = Sink(
                *(consumer._prefetch.accept, consumer._prefetch.buffer),
                presettled=state.policy.presettled,
                selects=wanted is not None,
            )
            link = consumer._prefetch.link = state.attach(spec, sink)
            if state.acknowledgements is not None:
                state.acknowledgements.widen(consumer._prefetch.most)
            sink.link = link
            self._links.sinks[link] = sink
            self._links.consumers[link] = consumer
            return consumer

        def make_and_open() -> MessageConsumer:
            consumer = self._links.attach(make)
            if state.running:
                consumer._prefetch.open_credit()
            return consumer

        return self._set_up(make_and_open)

    def _set_up(self, make: Callable[[], _T]) -> _T:
        """Make something in this session; also while its listeners are served, in whichever thread."""

        def make_here() -> _T:
            self._state.lifecycle.require_usable()
            return make()

        return self._state.beside_listeners(make_here)

    # Producers and consumers keep their session: what they call when they close is a method of it.

    def _remove_producer(self, producer: MessageProducer, deadline: float) -> None:
        self._links.producers.pop(producer._link)
        if any(link == producer._link for link, _ in self._state.sends):
            self._endings.detach_later(producer._link)
        else:
            self._state.detach(producer._link, deadline)

    def _remove_consumer(self, consumer: MessageConsumer, confirmed: bool) -> None:
        self._links.remove_consumer(consumer, confirmed)

    # The ends of deliveries.

    def commit(self) -> None:
        """Accept what was received, send what was sent and change what was changed since the last commit or rollback.

        All or nothing.  Waits for the broker, ``request_timeout_seconds`` at most; then for completion callbacks that
        run; and, where an interest covers keys that were changed, as long again for what the cache is to have of them.

        Raises:
            TransactionRolledBackException: nothing was done: no room (commits do not wait for it), a refused message or
                change, or the connection was lost meanwhile.  What was received is redelivered.
            TransactionInDoubtException: it is not known whether it was done.
            ResourceAllocationException: it sends or changes something, which ``require_redundancy`` refuses now; the
                transaction stays as it is, and may be committed later or rolled back.
            IllegalStateException: the session is not transacted, or closed.
        """
        self._state.in_one_call(self._endings.commit)

    def rollback(self) -> None:
        """Drop what was sent and changed, and have what was received redelivered, since the last commit or rollback.

        Waits for a broker that does not answer, ``poll_timeout_seconds`` at most, and succeeds; then for completion
        callbacks that run.

        Raises:
            IllegalStateException: the session is not transacted, or closed.
        """
        self._state.in_one_call(self._endings.rollback)

    def acknowledge(self) -> None:
        """Acknowledge everything that this session has received, where its mode is CLIENT; other modes ignore it.

        Raises:
            IllegalStateException: the session is closed.
            StaleAcknowledgementException: as ``message.acknowledge()``.
        """
        self._acknowledge(_NO_DELIVERY)

    def recover(self) -> None:
        """Have what was received and not acknowledged delivered again, in order, marked as redelivered.

        Waits for a broker that does not answer, ``poll_timeout_seconds`` at most, and succeeds.

        Raises:
            IllegalStateException: the session is transacted (use ``rollback``), or closed.
        """
        self._state.in_one_call(self._endings.recover)

    def _acknowledge(self, tag: DeliveryTag, failure: Failure | None = None) -> None:
        """What ``message.acknowledge()`` does; and with ``failure`` ``reject()`` and ``retry()``."""
        self._state.in_one_call(self._acknowledge_now, tag, failure)

    def _accept(self, message: Message) -> None:
        """End one message that the SDK has received for itself, whatever the mode."""
        if message._tag is not None:
            self._state.in_one_call(self._endings.accept, message._tag)

    def _redeliver(self, consumer: MessageConsumer, settlements: Sequence[Settlement]) -> None:
        """Give back what the listener of a consumer raised on: it is redelivered next."""
        self._endings.give_back(settlements, (consumer,))

    # What the connection does with its sessions.

    def _start(self) -> None:
        """Let messages through, unless it is being closed; for the connection."""
        # What the handler of a signal interrupts here is not started again: its credit is not known.
        self._state.from_any_thread(self._start_now)

    def _start_now(self) -> None:
        if self._state.start_or_stop(Event.START):
            self._links.open_credit()

    # The end.

    def close(self) -> None:
        """Close; legal twice, and from any thread but those of its own listeners and completion callbacks.

        Receives that wait return None.  Waits for a listener that runs, which can use the session until it returns
        (Jakarta Messaging 3.1 section 6.1.8), for asynchronous sends and for the broker, together at most
        ``close_timeout_seconds``.  The callbacks of sends that the broker has not answered by then are
        called with :class:`ConnectionLostException`.  What was received and not acknowledged or committed is
        redelivered; what was only prefetched goes back without a mark.

        Raises:
            IllegalStateException: called from a listener or completion callback of this session.
        """
        if self._state.in_own_thread():
            raise IllegalStateException(f"cannot close: {self._state.name} is in one of its own listeners or callbacks")
        self._state.from_any_thread(self._shut, time.monotonic() + self._settings.close_timeout_seconds)

    def _end_elsewhere(self) -> None:
        """Close in another thread, which no handler of a signal interrupts."""
        dropped(self, self._close_interrupted, self._transport, warns=False)

    def _close_interrupted(self) -> None:
        self._shut(time.monotonic() + self._settings.close_timeout_seconds)

    def _shut(self, deadline: float) -> None:
        """Close before this instant (monotonic seconds); for the connection."""
        state = self._state
        longer = deadline + self._settings.close_timeout_seconds  # than the first one takes

        def is_over() -> bool:
            return state.lifecycle.state is State.CLOSED

        self._closing.take_turn(partial(self._close, deadline), is_over, longer)

    def _close(self, deadline: float) -> None:
        state = self._state
        answered_by = deadline - TO_TELL * self._settings.close_timeout_seconds
        # First: a listener that runs may acknowledge, commit and send until it returns (Jakarta Messaging 3.1, 6.1.8).
        state.stop_listeners(closes=True)
        state.wait_for_listener(answered_by)
        state.process(Event.BEGIN_CLOSE)
        if not state.policy.transacted and state.lifecycle.error is None:
            for producer in self._links.producers.values():
                if not producer._wait_for_answers(answered_by):
                    log.warning("! %s closes with %d sends unanswered", state.name, producer._unanswered)
        state.end_completions()
        owned = False
        try:
            if state.interrupted:  # first: a call of another thread that waits for the network ends now
                with self._links.perhaps_without_the_broker():
                    self._transport.end_session(state.number, 0)
            owned = state.owner.acquire(timeout=max(0.001, answered_by - time.monotonic()))
            if not owned:
                log.warning("! %s closes while a listener or another call of it still runs", state.name)
            self._links.end_all(deadline)
            state.end_completions()  # of a send that another thread had begun
            late = state.take_too_late()
            if late:
                state.report(too_late(state.name, late))  # no later call acknowledges
            if not state.committing:  # else commit(), in another thread or below this handler, knows what became of it
                state.end_sends(state.doubt or TransactionRolledBackException(f"{state.name} is closed"))
            if self._thread is not None:
                self._thread.stop()
                if self._thread.thread.is_alive():  # else it has not started yet, and ends by itself
                    self._thread.thread.join(max(0.001, deadline - time.monotonic()))
            self._on_close(self)
            state.process(Event.END_CLOSE)
        finally:
            try:
                state.disown()
            except RuntimeError:
                if owned:  # else another thread has it
                    raise

    def _start_thread(self) -> None:
        uninterrupted(self._make_thread)

    def _make_thread(self) -> None:
        with self._state.making_thread:
            if self._state.thread is not None:  # another one has started it
                return
            self._thread = SessionThread(self._state, self._redeliver)
            thread = self._state.thread = self._thread.thread
            try:
                thread.start()
            except RuntimeError:  # the process has as many threads as it may
                self._state.thread = self._thread = None
                raise


#: The part of the time for closing that is kept for what comes behind the answers to asynchronous sends and the end of
#: a call of another thread: such as the answer to a commit, which the end of the session rolls back.
TO_TELL = 0.1
#: Names no delivery: what a mode acknowledges together it acknowledges whichever is named.
_NO_DELIVERY = DeliveryTag(-1, -1, -1)


def _source_of(destination: Destination, subscription: Subscription | None, client_id: str | None) -> Source | None:
    """The source of messages that are redelivered after a loss; None: those of this destination are not."""
    if subscription is not None:
        return Source(destination.name, "topic", subscription.name, client_id, subscription.durable)
    return Source(destination.name) if destination.kind is DestinationKind.QUEUE else None


def _checked_selector(selector: object) -> str | None:
    if selector is None or selector == "":
        return None
    if not isinstance(selector, str):
        raise InvalidSelectorException(f"selector {selector!r} is not a str")
    # A broker that is not ours may not say what is wrong, and where.
    for name in parse_selector(selector).compared_quoted:
        log.warning(
            "! selector %s compares with the property \"%s\": if the text is meant, it is in single quotes: '%s'",
            *(selector, name, name),
        )
    return selector


def _check_reliability(destination: Destination, mode: AcknowledgeMode) -> None:
    """Raise where the destination asks for a link reliability that contradicts the mode."""
    if isinstance(destination, AddressedDestination):
        reason = contradiction(destination.reliability, mode)
        if reason is not None:
            raise InvalidDestinationException(f"{str(destination)!r} cannot be used here: {reason}")


def _prefetch_for(destination: Destination, subscription: Subscription | None, settings: ClientSettings) -> int | None:
    """Return how many messages a consumer may hold in advance."""
    is_durable = not destination.is_topic or (subscription is not None and subscription.durable)
    prefetch = None if is_durable else settings.topic_prefetch_messages
    return settings.prefetch_messages if prefetch is None else prefetch
