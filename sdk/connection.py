"""Connections: a client's link to its broker (Jakarta Messaging 3.1 section 6.1)."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4
from weakref import ReferenceType, WeakSet, ref

import attrs

from ack_modes import AcknowledgeMode, Outcome, Settlement
from broker_adapter import (
    PRODUCT,
    BrokerAnnounced,
    BrokerStatistics,
    ClientSettings,
    ConnectionLostException,
    Credentials,
    Destination,
    Failed,
    Identity,
    IllegalStateException,
    Interrupted,
    InvalidClientIDException,
    JMSException,
    LinkInterrupted,
    LinkLost,
    LinkRestored,
    OperationTimedOutException,
    Restored,
    Restoring,
    Transport,
    TransportEvent,
    checked_destination,
    hand_over_log,
    never_wait,
    own_version,
    statistics_from,
    uninterrupted,
)
from sdk.acknowledgements import LostAcknowledgements, uncount_deliveries
from sdk.checks import check_request, check_timeout
from sdk.closing import Closing
from sdk.finalizers import Sink, WeakTable, close_what_is_dropped, dropped, stop_flows, taken_from, weakly
from sdk.lifecycle import Event, Lifecycle, State
from sdk.redundancy import ConnectionEvent, Redundancy, RedundancyLost
from sdk.regions.events import EVENTS_SESSION, GIVE_CLIENT_ID, ClientEvents
from sdk.regions.region import Region
from sdk.regions.transacted_region import TransactedRegion
from sdk.sender import Sender, SharedSessions
from sdk.session import TO_TELL, Session
from sdk.session_state import SessionState, log

ExceptionListener = Callable[[JMSException], object]
EventListener = Callable[[ConnectionEvent], object]

_numbers = itertools.count(1)
#: Those of this process, for a child that it makes by fork.
_connections: WeakSet[Connection] = WeakSet()
#: Errors that wait for a slow exception listener; the oldest is dropped, and logged, beyond that.
_MAX_REPORTS = 1000
#: Longest wait for what is on its way to consumers, where the handler of a signal has interrupted a close.
_SHORT_SECONDS = 1.0
#: Requests that are sends.
_SENDS = ("stage", "change_keys")


@attrs.frozen
class ConnectionMetaData:
    """What is known of the two ends."""

    jms_version: str  #: the JMS version that the API follows
    provider_name: str  #: of the SDK
    provider_version: str  #: of the SDK
    broker_name: str  #: what the broker calls itself
    broker_version: str  #: what it says its version is


class Connection:
    """A client's connection.  Made by ``ConnectionFactory.create_connection``; stopped until ``start()``.

    For any number of threads; each uses sessions of its own, or a sender that they share.
    """

    # A misspelt attribute is an error.
    __slots__ = (
        "__weakref__",
        "_closed",
        "_closing",
        "_event_listener",
        "_events",
        "_exception_listener",
        "_has_client_id",
        "_is_local",
        "_lifecycle",
        "_lock",
        "_lost_acknowledgements",
        "_peer",
        "_producer_id",
        "_producer_numbers",
        "_redundancy",
        "_reports",
        "_session_numbers",
        "_sessions",
        "_settings",
        "_shared_sessions",
        "_sinks",
        "_standing",
        "_starting",
        "_starts",
        "_telling",
        "_transport",
        "_user_id",
    )

    def __init__(
        self,
        transport: Transport,
        settings: ClientSettings,
        credentials: Credentials,
        timeout: float | None,
        *,
        user_id: str | None = None,
        is_local: bool = False,
        durable_timeout: float | None = 0,
    ) -> None:
        """Connect; made by the factory.

        Args:
            transport: is opened, and closed where that fails.
            settings: the options of the client.
            credentials: of the user; with a client id where the application named the client, as durable
                subscriptions need.
            timeout: longest wait in seconds; see ``ConnectionFactory.create_connection``.
            user_id: that messages name as their sender, where the options ask for it.
            is_local: whether the broker is in this process, so that there is no network to lose.
            durable_timeout: seconds for which the engine keeps the events of regions while this client is away; None:
                for ever; 0: it keeps none.

        Raises:
            JMSException: see ``ConnectionFactory.create_connection``.
        """
        close_what_is_dropped()
        hand_over_log()
        _connections.add(self)
        self._user_id = user_id
        self._is_local = is_local
        self._lifecycle = Lifecycle(f"connection {next(_numbers)}")
        self._lock = threading.RLock()
        self._starting = threading.RLock()  #: held while the sessions are started or stopped, and by no other call
        self._starts = 0  #: how often it was started; under ``_starting``
        self._closed = threading.Event()
        self._closing = Closing()
        self._sessions: WeakTable[Session] = WeakTable()
        self._sinks: dict[int, dict[int, Sink]] = {}  #: of the sessions, and of those that are not there any more
        self._session_numbers = itertools.count(1)
        self._producer_id = str(uuid4())
        self._producer_numbers = itertools.count(1)
        self._standing = (0, False)  #: the epoch of deliveries, and whether the connection is being restored
        self._lost_acknowledgements = LostAcknowledgements()  #: until it is open
        self._has_client_id = credentials.client_id is not None
        self._exception_listener: ExceptionListener | None = None
        self._event_listener: EventListener | None = None
        self._telling = threading.Lock()  #: held by the thread that tells the listeners
        self._reports: deque[JMSException | ConnectionEvent] = deque(maxlen=_MAX_REPORTS)
        self._redundancy = Redundancy(settings.redundancy, is_required=settings.require_redundancy)
        self._transport = transport
        self._settings = settings
        self._shared_sessions: ReferenceType[SharedSessions] | None = None  #: of the senders, which keep them
        self._events = ClientEvents(
            self._lifecycle.name,
            transport,
            settings,
            EVENTS_SESSION,
            None if durable_timeout is None else round(durable_timeout * 1000),
            weakly(self._report),
            self._redundancy,
        )
        try:
            self._peer = transport.open(credentials, weakly(self._on_event), timeout)
            self._lost_acknowledgements.store = self._peer.store
            self._events.connected(self._peer.store)
            if is_local:
                self._announced(0)
        except BaseException:  # a handler of a signal may have raised: what is open by now would stay so
            transport.close(0)
            raise

    def __repr__(self) -> str:
        return f"<Connection {self._peer.client_id!r} to {self._peer.product}, {self._lifecycle.state.name}>"

    def __del__(self) -> None:
        # One that has failed as well: it holds the store or the socket until it is closed.
        if getattr(self, "_peer", None) is not None and self._lifecycle.state is not State.CLOSED:
            dropped(self, partial(self._close_once, keep_alive=True, is_asked=False), self._transport)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Where the program fails, its durable client is kept, as if it had crashed.
        self._close_once(keep_alive=kind is not None, is_asked=False)

    @property
    def client_id(self) -> str:
        """The client id in use: the one given, or one that was invented."""
        return self._peer.client_id

    @property
    def meta_data(self) -> ConnectionMetaData:
        """What is known of the two ends."""
        return ConnectionMetaData("3.1", PRODUCT, own_version(), self._peer.product, self._peer.version)

    @property
    def exception_listener(self) -> ExceptionListener | None:
        """Called, on a thread of its own, with errors that no call raises.

        That is: the network was lost (a ConnectionLostException, each time, whether the connection will be restored or
        not); the connection is gone for good (an InvalidClientIDException where another program has taken its client
        id meanwhile); the broker closed a producer or consumer; an asynchronous send of a
        non-persistent message failed; the acknowledgement after a listener failed; a message could not be read.
        Without a listener these are logged.  It may close the connection, and what it raises is logged.  A call in it
        that would wait for a network that is away raises IllegalStateException at once.
        """
        return self._exception_listener

    @exception_listener.setter
    def exception_listener(self, listener: ExceptionListener | None) -> None:
        if listener is not None and not callable(listener):
            raise TypeError(f"exception_listener={listener!r} cannot be called")
        self._lifecycle.require_usable()
        self._exception_listener = listener

    @property
    def event_listener(self) -> EventListener | None:
        """Called, on the same thread as the exception listener, with what becomes of the connection, in order.

        That is: ``Interrupted`` (the network was lost, and is being restored), ``Restored`` (with the address, the
        attempts and the seconds that it took), ``Failed`` (for good); ``LinkInterrupted``, ``LinkRestored`` and
        ``LinkLost`` where the broker closes a producer or consumer of a connection that lives; ``RedundancyLost`` where
        fewer further nodes of a group have what is confirmed than the option ``redundancy`` says, and
        ``RedundancyRestored``, of which a listener that comes later is told the last one.
        """
        return self._event_listener

    @event_listener.setter
    def event_listener(self, listener: EventListener | None) -> None:
        if listener is not None and not callable(listener):
            raise TypeError(f"event_listener={listener!r} cannot be called")
        self._lifecycle.require_usable()
        self._event_listener = listener
        self._tell_redundancy()

    def create_session(self, mode: AcknowledgeMode = AcknowledgeMode.AUTO) -> Session:
        """A new session.

        Args:
            mode: how its deliveries end.

        Raises:
            IllegalStateException: the connection is closed.
        """
        if not isinstance(mode, AcknowledgeMode):
            raise TypeError(f"mode={mode!r} is not an AcknowledgeMode, such as AcknowledgeMode.AUTO")
        with self._lock:
            self._lifecycle.require_usable()
            standing = self._standing
            session = Session(
                self._transport,
                self._settings,
                next(self._session_numbers),
                mode,
                lambda: Identity(self._producer_id, next(self._producer_numbers), 0),
                self._peer.client_id if self._has_client_id else None,
                self._report,
                self._remove_session,
                region=self._region,
                is_holdfast=self._peer.is_holdfast,
                user_id=self._user_id if self._settings.populate_user_id else None,
                lost=None if self._is_local else self._lost_acknowledgements,
                epoch=standing[0],
                interrupted=standing[1],
                redundancy=self._redundancy if self._settings.require_redundancy else None,
            )
            self._sessions[id(session)] = session
            self._sinks[id(session)] = session._links.sinks
            if self._standing != standing:  # an event came while it was made
                session._links.interrupted(self._standing[0])
                if not self._standing[1]:
                    session._links.restored(self._standing[0])
            if self._lifecycle.state is State.STARTED:
                session._start()
            if self._lifecycle.error is not None:  # likewise
                session._state.fail(self._lifecycle.error)
            return session

    def create_sender(self, destination: Destination | None = None) -> Sender:
        """A sender, which any number of threads may use at the same time, as the threads of a web server do.

        Args:
            destination: None: each send names its own.

        Raises:
            InvalidDestinationException: it is no destination.
            IllegalStateException: the connection is closed.
        """
        if destination is not None:
            checked_destination(destination)
        with self._lock:
            self._lifecycle.require_usable()
            shared = None if self._shared_sessions is None else self._shared_sessions()
            if shared is None:
                shared = SharedSessions(
                    *(self.create_session, self._lifecycle, lambda: self._standing[1]),
                    self._settings.send_timeout_seconds,
                )
                self._shared_sessions = ref(shared)
            sender = Sender(shared, destination, self._close_sender)
            shared.join(sender)
            return sender

    def _close_sender(self, sender: Sender) -> None:
        deadline = time.monotonic() + self._settings.close_timeout_seconds
        with self._lock:
            members = sender._shared.leave(sender)
        for session, _ in members:
            session._state.from_any_thread(session._shut, deadline)

    def _region(self, name: str, conflates: bool | None, session: Session) -> Region:
        """A region, which keeps the session that it is made by, and so this connection."""
        epoch = session._state.epoch
        state = self._events.region(name, conflates)
        identity = Identity(self._producer_id, next(self._producer_numbers), 0)
        if session.transacted:
            return TransactedRegion(session, self._events, state, identity, session._state, epoch)
        return Region(session, self._events, state, identity)

    def ready_for_events(self) -> None:
        """This durable client is ready for the events of its regions: those that wait are told to the listeners now.

        Before, its regions are created, their listeners added and interest registered, durable interest of an earlier
        connection as well.  What was queued by then is told first, as ``replayed``, and changes no cache; then
        ``after_region_live`` is called, and what follows is told as it happens.  The connection has to be started.
        Legal twice.

        Raises:
            IllegalStateException: the client is not durable: it gets its events as soon as it registers interest; or
                the connection is closed.
            UnsupportedOperationException: the broker has no regions.
            InvalidClientIDException: another connection is this durable client.
            JMSException: as ``request``.
        """
        self._lifecycle.require_usable()
        if not self._events.is_durable:
            raise IllegalStateException(
                f"only a durable client says that it is ready for events: {GIVE_CLIENT_ID}; any other one gets its"
                " events as soon as it registers interest"
            )
        self._events.ready()

    def pending_event_count(self) -> int:
        """How many events waited for this durable client as it connected to the engine's events.

        Returns:
            Their number; -1: there was a queue, which was dropped, because the client was away for longer than its
            ``durable_timeout`` or the queue was too long; -2: there was none.

        Raises:
            IllegalStateException: the client is not durable, has said that it is ready for events, or is closed.
            UnsupportedOperationException: the broker has no regions.
            InvalidClientIDException: another connection is this durable client.
            JMSException: as ``request``.
        """
        self._lifecycle.require_usable()
        if not self._events.is_durable:
            raise IllegalStateException(f"only a durable client has events that wait for it: {GIVE_CLIENT_ID}")
        if self._events.is_ready:
            raise IllegalStateException("call pending_event_count() before ready_for_events()")
        return self._events.attach()

    def request(self, operation: str, arguments: Mapping[str, Any], timeout: float | None = None) -> Any:
        """Ask a Holdfast broker something beyond messaging; connectors build on it.

        Args:
            operation: one of those on the page ``docs/requests.md``.
            arguments: by name.
            timeout: longest wait in seconds; None: ``request_timeout_seconds`` of the URL.

        Raises:
            IllegalStateException: the connection is closed.
            MessageFormatException: the operation is unknown, or an argument is not what it must be.
            ResourceAllocationException: the operation is a send, and ``require_redundancy`` of the URL refuses it.
            ValueError: the time-out is no number of seconds.
            JMSException: the broker is not a Holdfast engine, or what the operation raises.
        """
        self._lifecycle.require_usable()
        check_request(operation, arguments)
        check_timeout(timeout, "None stands for request_timeout_seconds of the URL")
        if operation in _SENDS:
            self._redundancy.require()
        limit = self._settings.request_timeout_seconds if timeout is None else timeout
        return self._transport.request(operation, arguments, limit)

    def statistics(self) -> BrokerStatistics:
        """Figures of a Holdfast broker and its queues.

        Raises:
            JMSException: as ``request``.
        """
        return statistics_from(self.request("statistics", {}))

    @property
    def is_holdfast(self) -> bool:
        """Whether the broker is ours, so that ``request`` works."""
        return self._peer.is_holdfast

    def start(self) -> None:
        """Let messages through to receivers and listeners; legal twice.

        Raises:
            IllegalStateException: the connection is closed.
        """
        with self._starting:
            self._starts += 1
            with self._lock:
                self._lifecycle.process(Event.START)
                sessions = self._sessions.values()
            # All of them each time: the handler of a signal may have interrupted the first call.
            for session in sessions:
                session._start()
            self._events.start()

    def stop(self) -> None:
        """Hold messages back: no receiver returns one, and no listener is called, after this returns; legal twice.

        Waits for listeners that run, at most ``close_timeout_seconds``, or until another thread starts the connection.

        Raises:
            IllegalStateException: the connection is closed, or a listener of one of its sessions calls this.
            OperationTimedOutException: a listener has not returned in time; the connection is stopped all the same, and
                calling this again waits again.
        """
        self._refuse_own_threads("stop")
        deadline = time.monotonic() + self._settings.close_timeout_seconds
        with self._starting:
            starts = self._starts
            states = self._stop_listeners(closes=False)
        self._wait_for_listeners(states, deadline)
        with self._starting:
            if self._starts != starts:  # another thread has started it meanwhile
                return
            with self._lock:
                self._lifecycle.process(Event.STOP)
                sessions = self._sessions.values()
            for session in sessions:
                session._state.start_or_stop(Event.STOP)
        is_told = self._events.stop(deadline)
        late = [session._state.name for session in sessions if not session._state.wait_until_stopped(deadline)]
        late += [] if is_told else ["the regions"]
        if late:
            raise OperationTimedOutException(
                f"a listener of {' and of '.join(late)} has not returned in time; no other message is given out"
            )

    def _stop_listeners(self, *, closes: bool) -> list[SessionState]:
        """Call no listener of a session any more; returns the sessions."""
        with self._lock:
            states = [session._state for session in self._sessions.values()]
        for state in states:
            state.stop_listeners(closes=closes)
        return states

    def _wait_for_listeners(self, states: Sequence[SessionState], deadline: float) -> None:
        """Wait for listeners that run, and call none of a region: everything works for them until they return."""
        self._events.stop(deadline)
        for state in states:
            state.wait_for_listener(deadline)

    def close(self, *, keep_alive: bool = False) -> None:
        """Close with all sessions, and drop the queue of a durable client unless ``keep_alive`` is given.

        Legal twice, and from any thread but those of its sessions' and regions' listeners.  The end of a ``with`` block
        is a ``close()``, unless an exception leaves it.  Temporary destinations end.  What was received and not
        acknowledged or committed is redelivered.  Waits as ``Session.close`` does, for all sessions together at most
        ``close_timeout_seconds``, and never fails for a network that is away.  Where another thread is closing it
        already, this waits until that has ended.

        Args:
            keep_alive: whether the engine keeps the queue of this durable client and its durable interest, until the
                client comes back or its ``durable_timeout`` is over.  Where the connection is lost they are always
                kept, and where an exception leaves its ``with`` block.  A warning in the log says where nothing is kept
                because the client has no client id, or no durable interest.

        Raises:
            IllegalStateException: called from a listener or completion callback of one of its sessions or regions.
        """
        self._close_once(keep_alive=keep_alive, is_asked=keep_alive)

    def _close_once(self, *, keep_alive: bool, is_asked: bool) -> None:
        """Close; ``is_asked``: whether the application has asked to keep what there is."""
        self._refuse_own_threads("close")
        deadline = time.monotonic() + self._settings.close_timeout_seconds
        longer = deadline + self._settings.close_timeout_seconds  # than the first one takes
        close = partial(self._close, deadline, keep_alive=keep_alive, is_asked=is_asked)
        self._closing.take_turn(close, self._closed.is_set, longer)

    def _close(self, deadline: float, *, keep_alive: bool, is_asked: bool) -> None:
        if not self._standing[1]:  # else they wait for a network that is away, and what they have comes again
            answered_by = deadline - TO_TELL * self._settings.close_timeout_seconds
            self._wait_for_listeners(self._stop_listeners(closes=True), answered_by)
        with self._lock:
            self._lifecycle.process(Event.BEGIN_CLOSE)
        is_whole = False  # where the handler of a signal raises, there is no long wait any more
        try:
            with self._lock:
                sessions = self._sessions.values()
            if self._standing[1]:
                self._transport.close(0)  # first: calls that wait for the network end now, and block nothing
            self._events.close(deadline, keep=keep_alive, is_asked=is_asked)
            for session in sessions:
                session._shut(deadline)
            is_whole = True
        finally:
            # What is given back is redelivered at once where the drain before it has no answer, and counts as failed.
            self._give_back_never_delivered(deadline if is_whole else min(deadline, time.monotonic() + _SHORT_SECONDS))
            self._transport.close(max(0.001, deadline - time.monotonic()))
        # Not where the handler of a signal has raised: the next call closes the sessions that are left.
        with self._lock:
            self._lifecycle.process(Event.END_CLOSE)
        self._closed.set()

    def _give_back_never_delivered(self, deadline: float) -> None:
        """Give back what came for consumers whose sessions are not there any more, or were not closed."""
        sinks = [sink for sinks in list(self._sinks.values()) for sink in list(sinks.values())]
        if sinks:
            stop_flows(self._transport, sinks, deadline)
            try:
                never_delivered = taken_from(sinks, self._standing[0])
                self._transport.settle([Settlement(tag, Outcome.RELEASED) for tag in never_delivered])
            except JMSException as error:
                log.debug("! %s closes without the broker: %s", self._lifecycle.name, error)

    def _refuse_own_threads(self, what: str) -> None:
        with self._lock:
            sessions = self._sessions.values()
        if self._events.in_own_thread() or any(session._state.in_own_thread() for session in sessions):
            raise IllegalStateException(
                f"cannot {what}: a listener or callback of one of its sessions or regions calls it; call it on another"
                " thread"
            )

    def _remove_session(self, session: Session) -> None:
        with self._lock:
            self._sessions.pop(id(session))
            self._sinks.pop(id(session), None)

    # Events of the transport, in the transport's thread.

    def _on_event(self, event: TransportEvent) -> None:
        sessions = self._sessions.values()
        if isinstance(event, Interrupted):
            epoch = self._standing[0] + 1
            self._standing = (epoch, True)
            for session in self._sessions.values():
                session._links.interrupted(epoch)
            self._events.interrupted()
            self._report(event.error)
        elif isinstance(event, Restoring):
            # In the order of what happens: what was lost is given again before the broker hands anything out.
            lost, store = self._lost_acknowledgements, event.peer.store
            is_same = store is not None and store == lost.store
            if not is_same:
                lost.move(store, self._standing[0])
            if store is not None:
                lost.give_again(event.request, event.token, self._standing[0])
            if is_same:
                uncount_deliveries(
                    event.request,
                    [each for session in sessions for each in session._links.never_delivered()],
                    event.token,
                )
                lost.uncount_rest(event.request, event.token)
            return
        elif isinstance(event, Restored):
            if event.peer is not None:
                self._peer = event.peer
            self._standing = (event.epoch, False)
            for session in self._sessions.values():
                session._links.restored(event.epoch)
            self._events.restored(self._peer.store)
        elif isinstance(event, BrokerAnnounced):
            self._announced(event.redundancy)
            return
        elif isinstance(event, LinkInterrupted | LinkRestored | LinkLost):
            if not self._events.came(event):
                any(session._links.came(event, self._standing[0]) for session in sessions)
            if not isinstance(event, LinkRestored):
                self._report(event.error)
        else:
            assert isinstance(event, Failed)
            self._fail(event.error)
            self._report(_as_lost(event.error))
        if self._event_listener is not None:
            self._report(event)

    def _announced(self, redundancy: int) -> None:
        """So many further nodes have what is confirmed."""
        event = self._redundancy.announced(redundancy)
        if event is None:
            return
        if isinstance(event, RedundancyLost):
            log.warning("! %s: %s", self._lifecycle.name, self._redundancy)
        else:
            log.info("= %s: %s", self._lifecycle.name, self._redundancy)
        self._tell_redundancy()

    def _tell_redundancy(self) -> None:
        if self._event_listener is not None:
            with suppress(IndexError):  # it was told
                self._report(self._redundancy.untold.pop())

    def _fail(self, error: JMSException) -> None:
        """Have all calls raise this."""
        self._lifecycle.fail(error)
        for session in self._sessions.values():
            session._state.fail(error)
        self._events.failure = error

    def _report(self, report: JMSException | ConnectionEvent) -> None:
        """Tell the exception listener of an error, or the event listener of an event, on a thread of their own."""
        # Without a lock: the handler of a signal may have interrupted a thread here, and wait for the one that calls.
        if len(self._reports) == _MAX_REPORTS:
            log.error("! more than %d errors wait for the exception listener; the oldest is dropped", _MAX_REPORTS)
        self._reports.append(report)
        if not self._telling.locked():
            name = f"holdfast-exceptions-of-{self._lifecycle.name.replace(' ', '-')}"
            try:
                uninterrupted(threading.Thread(target=self._tell, name=name, daemon=True).start)
            except RuntimeError as failure:  # the process has as many threads as it may
                text = "! %s has no thread to call its listeners; the next report tries again: %s (%s)"
                log.error(text, name, report, failure)

    def _tell(self) -> None:
        never_wait()
        # What is reported while the lock is released is seen by this thread, or by one that its reporter has started.
        while self._reports and self._telling.acquire(blocking=False):
            try:
                self._tell_all()
            finally:
                self._telling.release()

    def _tell_all(self) -> None:
        while self._reports:
            report = self._reports.popleft()
            try:
                if not isinstance(report, JMSException):
                    if self._event_listener is not None:
                        self._event_listener(report)
                elif self._exception_listener is not None:
                    self._exception_listener(report)
                else:
                    log.warning("! %s: %s: %s", self._lifecycle.name, type(report).__name__, report)
            except BaseException:  # whatever it is, it is the application's; the next error must be told
                log.exception("! a listener of %s raised", self._lifecycle.name)


def _after_fork() -> None:
    """In a child made by fork: what was made before is the parent's, and so are the threads that it needs."""
    error = IllegalStateException("it was made by the parent of this process; make a connection after the fork")
    for connection in list(_connections):
        connection._fail(error)


os.register_at_fork(after_in_child=_after_fork)


def _as_lost(error: JMSException) -> JMSException:
    if isinstance(error, ConnectionLostException | InvalidClientIDException):
        return error
    lost = ConnectionLostException(f"the connection is lost: {error.reason}", error_code=error.error_code)
    lost.__cause__ = error
    return lost
