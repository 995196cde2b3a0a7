"""Continuous queries: a selector over the keys and values of a region, whose result is followed by its events."""

from __future__ import annotations

import threading
from enum import Enum
from typing import Any

from broker_adapter import IllegalStateException
from sdk.regions.cache import RegionOperation
from sdk.regions.events import ClientEvents
from sdk.regions.listener import QueryListener, RegionEvent, ResultPolicy
from sdk.regions.state import QUERY, Interest, RegionState, Registered
from sdk.session_state import log


class QueryState(Enum):
    """Where a query is in its life."""

    STOPPED = "stopped"
    RUNNING = "running"
    CLOSED = "closed"


class ContinuousQuery:
    """A continuous query.  Made by ``Region.create_query``; stopped until ``execute()``.  For any number of threads.

    Attributes:
        name: known to the engine together with the client.
        selector: what keys and values have to match.
        durable: whether the engine queues its events while the client is away.
    """

    __slots__ = (
        "_events",
        "_listeners",
        "_lock",
        "_members",
        "_region",
        "_seen",
        "_state",
        "_stored_through",
        "durable",
        "name",
        "selector",
    )

    def __init__(self, events: ClientEvents, region: RegionState, name: str, selector: str, *, durable: bool) -> None:
        """Made by the region.

        Args:
            events: of the connection.
            region: of which it is.
            name: of the query.
            selector: what keys and values have to match.
            durable: whether the engine queues its events while the client is away.
        """
        self.name = name
        self.selector = selector
        self.durable = durable
        self._events = events
        self._region = region
        self._state = QueryState.STOPPED
        self._lock = threading.RLock()  #: held while the state changes
        self._listeners: tuple[QueryListener, ...] = ()
        self._seen: dict[str, int] = {}  #: by key, the version up to which results have told of it
        self._members: set[str] | None = None  #: keys that are in the result; None: it was not read
        self._stored_through = 0  #: what is replayed up to this position was queued for an earlier connection

    def __repr__(self) -> str:
        return f"<ContinuousQuery {self.name!r} of {self._region.name!r}, {self._state.name}: {self.selector}>"

    @property
    def state(self) -> QueryState:
        """Whether it runs, is stopped, or is closed; stopped as well where the link for events was lost."""
        if self._state is QueryState.RUNNING and self.interest not in self._region.interests:
            return QueryState.STOPPED
        return self._state

    @property
    def region(self) -> str:
        """The name of its region."""
        return self._region.name

    def add_listener(self, listener: QueryListener) -> None:
        """Have a listener called with each event of the query; legal twice."""
        if not isinstance(listener, QueryListener):
            raise TypeError(f"{listener!r} is not a QueryListener: give an instance of a class derived from it")
        with self._lock:
            if listener not in self._listeners:
                self._listeners = (*self._listeners, listener)

    def remove_listener(self, listener: QueryListener) -> None:
        """Call a listener no more; it may be in a call at this moment.  Unknown ones are ignored."""
        with self._lock:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

    def execute(self) -> None:
        """Have its listeners told from now on.

        A durable query of this name that an earlier connection of this client has left running goes on: what was queued
        for it is told as ``replayed``.

        Raises:
            IllegalStateException: it runs already, or is closed.
            InvalidClientIDException: another connection is this durable client.
            ResourceAllocationException: a limit of the engine.
            JMSException: as requests.
        """
        with self._lock:
            self._drop_results()
            self._begin()

    def execute_with_initial_results(self) -> dict[str, Any]:
        """Have its listeners told from now on, and return the values that match now.

        What happens meanwhile is told after this has returned; what the results have already is not told again.  What
        was queued for a durable query by earlier connections is told as ``replayed``, as ``execute`` says, also where
        the results are newer.

        Returns:
            The values by key, in the order of the keys' bytes in UTF-8.

        Raises:
            JMSException: as ``execute``.
        """
        with self._events.paused(), self._lock:  # in this order: a listener that runs may use the query
            self._begin()
            try:
                found = list(self._region.read(selector=self.selector))
            except BaseException:
                self._state = QueryState.STOPPED
                if self.durable:
                    self._remove_interest()  # it stays at the engine: executed again, it has all that is queued
                else:
                    self._end(drop=True)
                raise
            self._seen = {key: version for key, version, _, _ in found}
            self._members = set(self._seen)
        return {key: None if message is None else message.body for key, _, _, message in found}

    def _begin(self) -> None:
        self._require_open()
        if self.state is QueryState.RUNNING:
            raise IllegalStateException(f"query {self.name!r} runs already; call stop() first to execute it again")
        self._events.attach()
        region, interest = self._region, self.interest
        with region.registering:
            with region.lock:  # ahead: the first event may come before the answer
                region.queries[self.name] = self._process
                region.want({interest: Registered(self.durable, ResultPolicy.NONE, True)})
            try:
                self._stored_through = self._events.register(region.name, [interest], durable=self.durable)
            except BaseException:
                self._remove_interest()
                raise
        self._state = QueryState.RUNNING

    def stop(self) -> None:
        """Have nothing told any more, until it is executed again; what happens meanwhile is not told later.

        Raises:
            IllegalStateException: it does not run.
            JMSException: as requests.
        """
        with self._lock:
            self._require_open()
            if self.state is not QueryState.RUNNING:
                raise IllegalStateException(f"query {self.name!r} does not run; execute() starts it")
            self._end(drop=False)
            self._state = QueryState.STOPPED

    def close(self) -> None:
        """End it; what the engine has queued for it alone is dropped.  Legal twice.

        Raises:
            JMSException: as requests.
        """
        with self._lock:
            if self._state is QueryState.CLOSED:
                return
            if self.state is QueryState.RUNNING or self.durable:
                self._end(drop=True)
            self._state = QueryState.CLOSED
            listeners = self._listeners
            with self._region.lock:
                self._region.created.pop(self.name, None)
        for listener in listeners:
            try:
                listener.on_close(self.name)
            except Exception:
                log.exception("! a listener of query %r raised in on_close", self.name)

    def _drop_results(self) -> None:
        """What comes from now on is told, whatever the initial results had; of the region, in the thread for events."""
        self._seen = {}
        self._members = None

    def _end(self, *, drop: bool) -> None:
        with self._region.registering:
            self._events.unregister(self._region.name, [self.interest], drop_queued=drop)
            self._remove_interest()

    def _remove_interest(self) -> None:
        region = self._region
        with region.lock:
            region.queries.pop(self.name, None)
            region.end([self.interest])

    @property
    def interest(self) -> Interest:
        """By which it is registered."""
        return Interest(QUERY, self.selector, self.name)

    def _require_open(self) -> None:
        if self._state is QueryState.CLOSED:
            raise IllegalStateException(f"query {self.name!r} is closed; make another one with create_query()")

    def _process(self, event: RegionEvent) -> None:
        """An event of the query; in the thread for events."""
        seen, members = self._seen, self._members
        if event.replayed and event.version <= self._stored_through:
            seen.pop(event.key, None)  # what follows is told as well: it ends at what the results have
        elif seen and event.version <= seen.get(event.key, 0):
            return
        if members is not None:
            if event.query_operation is not RegionOperation.DESTROY:
                members.add(event.key)
            elif event.key in members:
                members.remove(event.key)
            elif not event.replayed:
                return  # it had left before the results were read
        for listener in self._listeners:
            try:
                listener.on_event(event)
            except BaseException:  # whatever it is, it is the application's; the thread for events must go on
                log.exception("! a listener of query %r raised in on_event", self.name)
