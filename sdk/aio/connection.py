"""Connections for an event loop, and what becomes of them as an asynchronous iterator."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from types import TracebackType
from typing import Final
from weakref import WeakSet

import sdk
from ack_modes import AcknowledgeMode
from broker_adapter import IllegalStateException, JMSException, Refresh
from sdk.aio.loop_bridge import Attribute, Closing, Inbox, Opening, Worker, apart, in_worker
from sdk.aio.session import Session
from sdk.aio.turns import Places, Turns
from sdk.connection_factory import DURABLE_TIMEOUT
from sdk.finalizers import weakly
from sdk.redundancy import ConnectionEvent
from sdk.session_state import log

#: Events that wait for a slow task; the oldest is dropped, and logged, beyond that.
_MAX_REPORTS: Final = 1000


def connect(
    url: str,
    username: str | None = None,
    password: str | None = None,
    client_id: str | None = None,
    *,
    refresh_credentials: Refresh | None = None,
    durable_timeout: float | None = DURABLE_TIMEOUT,
    timeout: float | None = None,
) -> Opening[Connection]:
    """Connect, and start the connection::

        async with aio.connect("embedded:./data") as connection:
            ...

    Await it, or use it in ``async with``, whose end closes the connection.  Parameters and errors are those of
    ``sdk.ConnectionFactory`` and its ``create_connection``.

    Args:
        url: the broker, or several.
        username, password: of the user.
        client_id: names this client to the broker; None: one is invented.
        refresh_credentials: gives fresh ones; called in a thread.
        durable_timeout: seconds for which the engine keeps events for a client that is away; None: for ever.
        timeout: longest wait in seconds; None: ``connect_timeout_seconds`` of the URL for each attempt.

    Raises:
        InvalidURLException: the URL has another form, an unknown option or a wrong value.
        JMSException: see ``sdk.ConnectionFactory.create_connection``.
    """
    factory = sdk.ConnectionFactory(url, username, password, refresh_credentials=refresh_credentials)

    def open_one() -> sdk.Connection:
        made = factory.create_connection(client_id=client_id, durable_timeout=durable_timeout, timeout=timeout)
        made.start()
        return made

    async def make() -> Connection:
        inbox = Inbox()
        worker = Worker("holdfast-aio-connection", inbox)
        made = await worker.run(open_one, undo=sdk.Connection.close)
        return Connection(made, inbox, worker)

    return Opening(make)


class Connection(Closing):
    """A client's connection, for the tasks of one event loop.  Made by ``connect``, which starts it."""

    __slots__ = ("__weakref__", "_inbox", "_places", "_streams", "_sync", "_worker")

    client_id: Attribute[str] = Attribute(sdk.Connection, "")
    meta_data: Attribute[sdk.ConnectionMetaData] = Attribute(sdk.Connection, "")
    is_holdfast: Attribute[bool] = Attribute(sdk.Connection, "")

    def __init__(self, connection: sdk.Connection, inbox: Inbox, worker: Worker) -> None:
        """Made by ``connect``."""
        self._sync = connection
        self._inbox = inbox
        self._worker = worker
        self._places = Places(connection._settings.send_window_messages)
        self._streams: WeakSet[Events] = WeakSet()

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    def create_session(self, mode: AcknowledgeMode = AcknowledgeMode.AUTO) -> Session:
        """A new session, which ``async with`` closes at its end.

        Args:
            mode: how its deliveries end.

        Raises:
            IllegalStateException: the connection is closed, or another event loop runs.
        """
        self._inbox.future()  # raises in another loop
        return Session(Turns(self._sync.create_session(mode), self._inbox, self._places), self)

    ready_for_events = in_worker(sdk.Connection.ready_for_events)
    pending_event_count = in_worker(sdk.Connection.pending_event_count)
    request = in_worker(sdk.Connection.request)
    statistics = in_worker(sdk.Connection.statistics)
    start = in_worker(sdk.Connection.start)
    stop = in_worker(sdk.Connection.stop)

    def events(self) -> Events:
        """What becomes of the connection, from now on: ``async for event in connection.events()``.

        It gives what the two listeners of ``sdk.Connection`` are called with: errors that no call raises, and
        ``Interrupted``, ``Restored``, ``Failed``, ``LinkInterrupted``, ``LinkRestored``, ``LinkLost``,
        ``RedundancyLost`` and ``RedundancyRestored``.  It ends with the connection.  Of 1,000 that
        were not taken the oldest is dropped.

        Raises:
            IllegalStateException: the connection is closed.
        """
        stream = Events(self._inbox)
        self._sync.exception_listener = self._sync.event_listener = weakly(self._told)  # raises where it is closed
        self._streams.add(stream)
        return stream

    def _told(self, report: JMSException | ConnectionEvent) -> None:
        """In the connection's thread for listeners, which waits: so what waits is limited."""
        self._inbox.put_and_wait(self._spread, report)

    def _spread(self, report: JMSException | ConnectionEvent) -> None:
        streams = list(self._streams)
        for each in streams:
            each._put(report)
        if not streams and isinstance(report, JMSException):
            log.warning("! %r: %s: %s", self, type(report).__name__, report)

    async def close(self, *, keep_alive: bool = False) -> None:
        """Close with all sessions, and drop the queue of a durable client unless ``keep_alive`` is given.

        Legal twice.  It is carried out to its end also where the task is cancelled.  See ``sdk.Connection.close``.

        Args:
            keep_alive: whether the engine keeps the queue of this durable client.
        """
        await self._close(functools.partial(self._sync.close, keep_alive=keep_alive))

    async def _close(self, close: functools.partial[None]) -> None:
        try:
            await apart("holdfast-aio-close", self._inbox, close)
        finally:
            for each in self._streams:
                each._end()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(functools.partial(self._sync.__exit__, kind, error, trace))


class Events:
    """What becomes of a connection, for ``async for``.  Made by ``connection.events``; for one task at a time."""

    __slots__ = ("__weakref__", "_changed", "_inbox", "_is_over", "_reports")

    def __init__(self, inbox: Inbox) -> None:
        """Made by the connection."""
        self._inbox = inbox
        self._reports: deque[JMSException | ConnectionEvent] = deque(maxlen=_MAX_REPORTS)
        self._is_over = False
        self._changed: asyncio.Future[None] | None = None

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> JMSException | ConnectionEvent:
        if self._changed is not None:
            raise IllegalStateException("the events are for one task at a time; call events() for each task")
        while not self._reports:
            if self._is_over:
                raise StopAsyncIteration
            self._changed = self._inbox.future()
            try:
                await self._changed
            finally:
                self._changed = None
        return self._reports.popleft()

    def _put(self, report: JMSException | ConnectionEvent) -> None:
        if len(self._reports) == _MAX_REPORTS:
            log.error("! more than %d events of a connection wait for their task; the oldest is dropped", _MAX_REPORTS)
        self._reports.append(report)
        self._wake()

    def _end(self) -> None:
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
