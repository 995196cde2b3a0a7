"""The events of a connection's regions: their link, their thread, their acknowledgement.

Theory of operation
    A connection has one link for events, which is attached when it is first needed.  What comes on it waits in a queue
    that is as long as the link's window.  One thread takes it from there, tells the regions in order, and acknowledges
    what was processed, a moment later: an event that is sent again because an acknowledgement was lost is recognized by
    its position.  Where the link is lost for good, and another one is attached, that is the same thread: so no listener
    is called by two at once, also if it was in a call as the link was lost.

    Events flow once the client is ready: a client that is not durable is ready as soon as the link is attached, a
    durable one when it says so.  Where the connection or the link was lost, this thread registers all interests again,
    says again that the client is ready, and has the regions read again what may have been missed, ahead of the next
    event.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from broker_adapter import (
    ClientSettings,
    ConnectionLostException,
    EventDelivery,
    EventsSpec,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    LinkInterrupted,
    LinkLost,
    LinkRestored,
    OperationTimedOutException,
    ResourceAllocationException,
    Transport,
    UnconnectedException,
    copied,
    uninterrupted,
)
from sdk.redundancy import Redundancy
from sdk.regions.event_positions import EventPositions
from sdk.regions.state import MOST_UNKNOWN, Interest, RegionState
from sdk.session_state import log

#: The number of the session of which the link for events is; those of the application count from 1.
EVENTS_SESSION: Final = 0
#: Interests that are registered with one request.
INTERESTS_AT_ONCE: Final = 5000
#: What another attempt may change.
_PASSING: Final = (ConnectionLostException, OperationTimedOutException)
#: How long the thread waits to be needed, in seconds.
_IDLE_SECONDS: Final = 3600.0
#: What makes a client durable, for errors; users of JMS know a first argument that is no client id.
GIVE_CLIENT_ID: Final = "give create_connection() a client_id, by this name (the first argument is a user name)"
_NOTHING_KEPT: Final = "! %s was closed with keep_alive=True, and nothing is kept: %s"
#: How long it waits until it tries again what failed although the network is there, in seconds.
_RETRY_SECONDS: Final = 1.0


class ClientEvents:
    """The events of one connection.  See the module's theory of operation.

    Attributes:
        regions: by name; those that the application has asked for.
        is_durable: whether the client keeps its queue while it is away.
        pending: how many events waited as the client connected; None: it has not.
        failure: why the connection is gone for good; None: it is not.
        is_ready: whether the client has said that it is ready for events.
    """

    def __init__(
        self,
        name: str,
        transport: Transport,
        settings: ClientSettings,
        session: int,
        timeout_ms: int | None,
        report: Callable[[JMSException], None],
        redundancy: Redundancy,
    ) -> None:
        """No regions.

        Args:
            name: of the connection.
            transport: the connection's.
            settings: the connection's.
            session: number of the session of which the link for events is.
            timeout_ms: how long the client may be away and keeps its queue; None: for ever; 0: it keeps none.
            report: tells the connection's exception listener.
            redundancy: may refuse changes.
        """
        self.regions: dict[str, RegionState] = {}
        self.is_durable = timeout_ms != 0
        self.pending: int | None = None
        self.failure: JMSException | None = None
        self.is_ready = False
        self._name = name
        self._transport = transport
        self._settings = settings
        self._report = report
        self._redundancy = redundancy
        self._spec = EventsSpec(session, timeout_ms, settings.event_window_messages, settings.event_conflation)
        self._attaching = threading.RLock()  #: held while the link is attached
        self._attaching_link = threading.Lock()
        self._link: int | None = None
        self._is_attaching = False  #: whether the number of the link is about to be known
        self._early: list[LinkInterrupted | LinkRestored | LinkLost] = []  #: of links, meanwhile
        # Condition has an __enter__ of Python: what a handler of a signal raises in it would leave the lock held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._arrived: deque[EventDelivery] = deque()
        self._thread: threading.Thread | None = None
        self._is_started = False  #: whether the connection is
        self._is_telling = False
        self._is_ending = False
        self._pauses = 0
        self._is_interrupted = False
        self._is_lost = False  #: whether interests are to be registered again, once the connection is there
        self._has_missed = False  #: whether events were missed, so that the caches are to be read again
        self._is_live = False  #: whether the marker has come
        self._marker: EventDelivery | None = None  #: that has come and was not told to all regions
        self._positions = EventPositions()
        self._is_checked = False  #: whether these are known to be of the run of the engine that is connected
        self._unacknowledged = 0  #: events that were processed and not acknowledged
        self._due: float | None = None  #: when they are (monotonic seconds)
        self._unknown: set[str] = set()  #: regions of which events have come, and that were not created here
        self._store: str | None = None  #: to which the connection leads now

    def __repr__(self) -> str:
        return f"<ClientEvents of {self._name}: {len(self.regions)} regions, through {self._positions.through}>"

    # The application's threads.

    def region(self, name: str, conflates: bool | None = None) -> RegionState:
        """A region, which the engine has from now on.

        Args:
            name: of the region.
            conflates: see ``Session.create_region``.

        Raises:
            UnsupportedOperationException: the broker has no regions.
            JMSException: as requests.
        """
        self.ask("create_region", {"region": name, "conflates": conflates})
        with self._lock:
            found = self.regions.setdefault(name, RegionState(name, self.ask))
            found.conflates = conflates if conflates is not None else found.conflates
            return found

    def ask(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Ask the engine; raises what requests raise.

        A region that was created here is created at another engine as well where that is asked for it first.
        """
        limit = self._settings.request_timeout_seconds
        try:
            return self._transport.request(operation, arguments, limit)
        except InvalidDestinationException:
            region = self.regions.get(arguments.get("region", ""))
            if region is None or operation == "create_region":
                raise
            self.create(region)
            return self._transport.request(operation, arguments, limit)

    def create(self, region: RegionState) -> None:
        """Have the engine make a region where there is none, which may be another engine than before."""
        self.ask("create_region", {"region": region.name, "conflates": region.conflates})

    def change(self, region: str, changes: Sequence[tuple[str, int, bytes]]) -> Any:
        """Change keys, which needs the network.

        Raises:
            UnconnectedException: the connection is being restored.
            ResourceAllocationException: too few nodes have what is confirmed.
            JMSException: as requests.
        """
        self.require_connected(f"region {region!r} cannot be changed now")
        self._redundancy.require()
        return self.ask("change_keys", {"region": region, "changes": changes})

    def register(
        self, region: str, interests: Sequence[Interest], *, durable: bool, taken: list[Interest] | None = None
    ) -> int:
        """Register interest; returns behind which position events come, and raises what requests raise.

        Args:
            region: its name.
            interests: which.
            durable: whether they outlive the connection.
            taken: gets those that the engine has, or may have; it has none of a part that it refuses.
        """
        position = 0
        for part in _parts(interests):
            try:
                position = max(position, self.ask("register_interest", _asking(region, part, durable=durable)))
            except _PASSING:
                if taken is not None:
                    taken += part
                raise
            if taken is not None:
                taken += part
        with self._lock:
            if self._is_checked:  # else this is done again once it is
                self._positions.registered(position)
        return position

    def unregister(self, region: str, interests: Sequence[Interest], *, drop_queued: bool = False) -> None:
        """End interest, that of an earlier connection of a durable client as well; raises what ``attach`` raises.

        Args:
            region: its name.
            interests: which.
            drop_queued: whether events that wait for these alone are dropped.
        """
        if self.is_durable:
            self.attach()  # an earlier connection of the client may have registered them
        elif self._link is None:
            return  # nothing was registered
        for part in _parts(interests):
            self.ask("unregister_interest", _asking(region, part, drop_queued=drop_queued))

    def paused(self) -> _Pause:
        """While no event is told, because what is read now stands before those that come."""
        return _Pause(self)

    @property
    def now_ms(self) -> int:
        """Now, in milliseconds since the epoch; a message has no place for times before."""
        return max(0, time.time_ns() // 1_000_000)

    def require_usable(self) -> None:
        """Raise where the connection is closed, or gone for good: nothing makes the caches true again.

        Raises:
            IllegalStateException: it is closed.
            JMSException: why it has failed.
        """
        if self._is_ending:
            raise IllegalStateException(f"{self._name} is closed")
        if self.failure is not None:
            raise copied(self.failure)

    def require_connected(self, why: str) -> None:
        """Raise UnconnectedException while the connection is being restored, and what ``require_usable`` raises."""
        self.require_usable()
        if self._is_interrupted:
            raise UnconnectedException(
                f"{why}, and the connection is being restored; repeat the call when connection.event_listener has got"
                " Restored"
            )

    @property
    def is_interrupted(self) -> bool:
        """Whether the connection is being restored."""
        return self._is_interrupted

    def attach(self) -> int:
        """Attach the link for events, unless that is done.

        Returns:
            How many events waited as the client connected.

        Raises:
            UnconnectedException: the connection is being restored.
            InvalidClientIDException: another connection is this durable client.
            JMSException: as for other links.
        """
        with self._attaching:
            self.require_connected("this needs the engine")
            is_new = self._link is None
            if is_new:
                # In a thread of its own in any case: what a handler of a signal raises must not leave a link unknown.
                uninterrupted(self._attach_link)
            pending = self.pending
            if pending is None:
                pending = self.pending = self.ask("pending_events", {})
            if (is_new or self._positions.run is None) and self._check_positions() and not is_new:
                self._has_missed = True  # behind a new link nothing is known that could be old
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"holdfast-events-of-{self._name}", daemon=True)
                uninterrupted(thread.start)
                self._thread = thread
            if not self.is_durable and not self.is_ready:
                self._say_ready()
            return pending

    def _attach_link(self) -> None:
        with self._attaching_link:
            if self._link is None:  # else an interrupted call has done so
                self._attach_new_link()

    def _attach_new_link(self) -> None:
        with self._lock:
            self._is_attaching = True
        link = None
        try:
            link = self._transport.attach(self._spec, self._sink, self._settings.request_timeout_seconds)
        finally:
            with self._lock:
                self._is_attaching = False
                self._link = link
                early, self._early = self._early, []
                if link is not None and not self._is_lost and self._positions.move(self._store):
                    self._unacknowledged = 0
        for event in early:
            if self.came(event) and isinstance(event, LinkLost):
                raise event.error

    def ready(self) -> None:
        """The client is ready for events; legal twice."""
        self.attach()
        with self._attaching:
            self._say_ready()

    def _say_ready(self) -> None:
        self.ask("ready_for_events", {})
        self.is_ready = True

    def in_own_thread(self) -> bool:
        """Return whether a listener of a region is what calls."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Let events through to listeners."""
        with self._lock:
            self._is_started = True
            self._changed.notify_all()

    def stop(self, deadline: float) -> bool:
        """Hold events back; returns whether no listener runs any more.

        Args:
            deadline: until when to wait for one that does (monotonic seconds).
        """
        with self._lock:
            self._is_started = False
            return self._changed.wait_for(
                lambda: not self._is_telling or self._is_started, max(0.0, deadline - time.monotonic())
            )

    def close(self, deadline: float, *, keep: bool, is_asked: bool = False) -> None:
        """End: what was processed is acknowledged, and the engine is told whether it keeps the client's queue.

        Args:
            deadline: until when to wait for a listener that runs, and for the engine (monotonic seconds).
            keep: whether it does.
            is_asked: whether the application asks for that, and is told in the log where nothing is kept.
        """
        self.stop(deadline)
        with self._lock:
            self._is_ending = True
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread.is_alive() and not self.in_own_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
        if is_asked and not self.is_durable:
            log.warning(_NOTHING_KEPT, self._name, GIVE_CLIENT_ID)
        if self._link is None or self._is_interrupted:
            return
        left = max(0.001, deadline - time.monotonic())
        try:
            if self._unacknowledged and not self._positions.is_elsewhere(self._store):
                self._transport.request("acknowledge_events", {"through": self._positions.through}, left)
            is_kept = self._transport.request("leave", {"keep": keep}, left)
            if is_asked and self.is_durable and not is_kept:
                advice = "it has no durable interest; register it, or create queries, with durable=True"
                log.warning(_NOTHING_KEPT, self._name, advice)
        except JMSException as error:
            log.debug("! %s closes without a word about its events: %s", self._name, error)

    # Events of the transport, in its thread.

    def interrupted(self) -> None:
        """The connection is lost, and is being restored."""
        with self._lock:
            self._is_interrupted = True
            if self._link is not None or self._is_attaching:
                self._is_lost = True
                self._arrived.clear()  # they are sent again
                self.pending = None
                self._note_loss()
            self._changed.notify_all()

    def restored(self, store: str | None) -> None:
        """The connection works again.

        Args:
            store: names the store of the engine; None: it is not known.
        """
        with self._lock:
            self._store = store  # the thread forgets the positions of another one, when no event is told any more
            self._is_interrupted = False
            self._changed.notify_all()

    def connected(self, store: str | None) -> None:
        """The connection is there for the first time; ``store`` as in ``restored``."""
        self._store = store
        self._positions.move(store)

    def came(self, event: LinkInterrupted | LinkRestored | LinkLost) -> bool:
        """Something has become of a link; returns whether it is that for events."""
        with self._lock:
            if event.link != self._link:
                if self._is_attaching:
                    self._early.append(event)
                return False
            if not isinstance(event, LinkLost):
                self._note_loss()
            if isinstance(event, LinkRestored):
                self._is_lost = True
            else:
                self._arrived.clear()
                self.pending = None
                if isinstance(event, LinkLost):
                    self._link = self._marker = self._due = None
                    self._unacknowledged = 0
                    self.is_ready = self._is_live = self._is_lost = False
                    for region in list(self.regions.values()):
                        region.link_lost()
            self._changed.notify_all()
        return True

    def _note_loss(self) -> None:
        self._is_checked = False
        for region in list(self.regions.values()):
            region.lost()

    def _sink(self, events: Sequence[EventDelivery]) -> None:
        with self._lock:
            self._arrived.extend(events)
            self._changed.notify_all()

    # The thread for events.

    def _run(self) -> None:
        while True:
            with self._lock:
                self._changed.wait_for(self._has_work, self._wait_seconds())
                if self._is_ending:
                    return
                link, event, marker = self._link, None, None
                if not self._is_lost and self._tells:
                    marker = self._marker
                    if marker is None and self._arrived:
                        event = self._arrived.popleft()
                self._is_telling = marker is not None or event is not None
            try:
                self._work(link, event, marker)
            finally:
                with self._lock:
                    self._is_telling = False
                    self._changed.notify_all()

    def _has_work(self) -> bool:
        if self._is_ending:
            return True
        if self._is_interrupted or self._link is None:
            return False
        return self._is_lost or (self._tells and (bool(self._arrived) or self._marker is not None))

    @property
    def _tells(self) -> bool:
        """Whether events may be told now."""
        return self._link is not None and self._is_started and not self._pauses

    def _wait_seconds(self) -> float:
        if self._due is None or self._is_interrupted or self._link is None:
            return _IDLE_SECONDS
        return max(0.0, self._due - time.monotonic())

    def _work(self, link: int | None, event: EventDelivery | None, marker: EventDelivery | None) -> None:
        """Do what there is to do.

        Args:
            link: by which event and marker came.
            event: to be told; None: there is none.
            marker: that has come; None: it has not.
        """
        try:
            if self._is_lost and not self._is_interrupted and self._link is not None:
                self._restore()
            elif marker is not None:
                self._go_live(marker, link)
            elif event is not None:
                self._process(event, link)
            if self._is_lost or self._is_interrupted or self._link is None:
                return  # positions may be those of another engine
            if self._due is not None and time.monotonic() >= self._due:
                self._acknowledge()
        except ConnectionLostException as error:
            log.debug("! %s: %s; it is done again with the next connection", self._name, error)
            self._rest()
        except JMSException as error:
            if self._is_ending:
                return  # its requests end with the connection
            self._report(error)
            self._rest()
        except Exception:  # a fault must not end the events of the connection without a word
            log.exception("! %s: what it does with events failed unexpectedly", self._name)
            self._rest()

    def _rest(self) -> None:
        with self._lock:
            self._due = None if not self._unacknowledged else time.monotonic() + _RETRY_SECONDS
            self._changed.wait_for(lambda: self._is_ending, _RETRY_SECONDS)

    def _process(self, event: EventDelivery, link: int | None) -> None:
        if event.region is None:
            if not self._is_live:
                self._go_live(event, link)
            return
        if event.position > self._positions.through:
            region = self.regions.get(event.region)
            if region is not None:
                region.process(event, is_live=self._is_live)
            elif event.region not in self._unknown and len(self._unknown) < MOST_UNKNOWN:
                self._unknown.add(event.region)
                log.warning(
                    "! %s has not created region %r, whose events come: they reach no listener; create regions, and add"
                    " their listeners, before ready_for_events()",
                    *(self._name, event.region),
                )
        with self._lock:
            if self._link != link:
                return  # it is lost meanwhile; what is attached now may be one of another engine
            self._positions.told(event.position)
            self._unacknowledged += 1
            if self._due is None:
                self._due = time.monotonic() + self._settings.event_acknowledge_seconds
            if self._unacknowledged >= max(1, self._spec.window // 2):
                self._due = 0.0

    def _go_live(self, marker: EventDelivery, link: int | None) -> None:
        with self._lock:
            if self._link != link:
                return
            self._marker = marker
        regions = list(self.regions.values())
        for region in regions:
            region.catch_up()
        with self._lock:
            if self._link != link:
                return  # what is attached now has a marker of its own
            self._marker = None
        for region in regions:
            region.tell_live()
        with self._lock:
            self._is_live = self._link == link

    def _acknowledge(self) -> None:
        self._due = None
        if self._unacknowledged:
            self.ask("acknowledge_events", {"through": self._positions.through})
            self._unacknowledged = 0

    def _restore(self) -> None:
        """Register everything again with a connection that is new."""
        with self._lock:
            self._is_lost = False  # ahead: it may be lost again meanwhile
            if self._positions.move(self._store):
                self._has_missed = True  # whatever waits there for the client, the caches are those of another engine
                self._unacknowledged = 0
        try:
            self.pending = pending = self.ask("pending_events", {})
            self._has_missed = self._has_missed or pending < 0  # the queue started over; also if this is done again
            self._has_missed = self._check_positions() or self._has_missed
            for region in list(self.regions.values()):
                self._restore_region(region)
            if self._has_missed and self.is_durable:
                self._report(
                    ResourceAllocationException(
                        f"{self._name} has lost its queue of events, because it was away for longer than its"
                        " durable_timeout, or the queue was too long, or this is another engine, or an older copy of"
                        " its store: events were missed, and the caches of its regions were read again"
                    )
                )
            self._has_missed = False
            with self._lock:
                if not self._is_lost:
                    for region in list(self.regions.values()):
                        region.restored()
            if self.is_ready:
                self._say_ready()
        except BaseException:
            self._is_lost = True
            raise

    def _check_positions(self) -> bool:
        """Start over where the store was replaced by an older copy of itself; returns whether it was."""
        found = self.ask("event_positions", {"run": self._positions.run})
        with self._lock:
            is_older = self._positions.check(found["kept"], found["run"])
            if is_older:
                self._unacknowledged = 0
            self._is_checked = True
        return is_older

    def _restore_region(self, region: RegionState) -> None:
        """Register what is wanted of a region; what is refused for good is reported, and the others go on."""
        try:
            self.create(region)
            with region.registering:  # else what is ended meanwhile could be registered again behind its end
                with region.lock:
                    registered = dict(region.interests)
                for durable in (False, True):
                    interests = [each for each, how in registered.items() if how.durable is durable]
                    position = self.register(region.name, interests, durable=durable)
                    if self._has_missed or not durable:
                        region.registered(interests, position)
        except _PASSING:
            raise
        except JMSException as error:
            if self._is_ending:
                raise
            self._report(error)
            region.link_lost()
            return
        # Interest that is not durable has ended as the connection was lost, and so its events.
        kept = frozenset() if self._has_missed else region.kept()
        if not self._has_missed and kept >= registered.keys():
            return
        try:
            region.refresh(kept)
        except _PASSING:
            raise
        except JMSException as error:  # what was read until then stays; the rest is asked of the engine
            self._report(error)


def _parts(interests: Sequence[Interest]) -> Iterator[Sequence[Interest]]:
    """Interests of which one request each may tell."""
    return (interests[first : first + INTERESTS_AT_ONCE] for first in range(0, len(interests), INTERESTS_AT_ONCE))


def _asking(region: str, interests: Sequence[Interest], **further: Any) -> dict[str, Any]:
    """The arguments of a request about interests."""
    return {"region": region, "interests": [tuple(each) for each in interests], **further}


class _Pause:
    """While this is entered, no event is told."""

    def __init__(self, events: ClientEvents) -> None:
        self._events = events

    def __enter__(self) -> None:
        events = self._events
        with events._lock:
            events._pauses += 1
            if events.in_own_thread():
                return
            limit = events._settings.request_timeout_seconds
            if not events._changed.wait_for(lambda: not events._is_telling, limit):
                events._pauses -= 1
                raise OperationTimedOutException(f"a listener of a region has not returned within {limit} s")

    def __exit__(self, *_: object) -> None:
        events = self._events
        with events._lock:
            events._pauses -= 1
            events._changed.notify_all()
