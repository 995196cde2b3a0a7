"""Between an event loop and threads: what the loop is told, calls that may wait, and waits that are the loop's.

Theory of operation
    Whatever other threads have for the loop is put into an :class:`Inbox`, a deque, and one ``call_soon_threadsafe``
    wakes the loop for all that comes in a burst.

    A call that may wait is a job of a :class:`Worker`: one thread, which carries out jobs in their order.  A task that
    is cancelled while its job waits in the queue withdraws it.  A job that has begun goes on to its end; what it has
    made for the task is then undone.

    :class:`LoopWaiters` stand in for the :class:`~broker_adapter.Waiters` of a session: whatever wakes threads that
    wait for something of the session also has its tasks check again.
"""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import MethodType, TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar

from broker_adapter import IllegalStateException, ResourceAllocationException, Waiters
from sdk.session_state import log

_T = TypeVar("_T")
_P = ParamSpec("_P")

#: Most calls of an inbox in one turn of the loop.
_TURN_CALLS: Final = 64
#: How long a worker's thread waits for another job before it ends, in seconds.
_LINGER_SECONDS: Final = 1.0
#: How often a thread that waits for the loop looks whether the loop is closed, in seconds.
_CLOSED_LOOP_SECONDS: Final = 1.0


class Inbox:
    """What other threads have for an event loop.  One for each connection, so that it has one wake-up a burst.

    Attributes:
        loop: the event loop.
        thread: the number of its thread.
    """

    def __init__(self) -> None:
        """An inbox of the loop that runs."""
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_signalled = False

    def put(self, call: Callable[..., object], *arguments: Any) -> None:
        """Have the loop call this, after all that was put before; from any thread, and without waiting."""
        self._calls.append((call, arguments))
        if not self._is_signalled:  # two threads may both see this, and wake the loop twice
            self._is_signalled = True
            try:
                self.loop.call_soon_threadsafe(self._take)
            except RuntimeError:  # the loop is closed: nobody waits for it any more
                log.debug("= an event loop was closed ahead of its connection")

    def _take(self) -> None:
        self._is_signalled = False  # ahead of the calls: what is put from here on wakes the loop again
        calls = self._calls
        for _ in range(min(len(calls), _TURN_CALLS)):
            call, arguments = calls.popleft()
            call(*arguments)
        if calls and not self._is_signalled:
            self._is_signalled = True
            self.loop.call_soon(self._take)

    def put_and_wait(self, call: Callable[..., object], *arguments: Any) -> None:
        """``put``, and wait until the loop has called it, or is closed: for threads that nobody waits for."""
        is_done = threading.Event()
        self.put(call, *arguments)
        self.put(is_done.set)
        while not is_done.wait(_CLOSED_LOOP_SECONDS) and not self.loop.is_closed():
            pass

    def future(self) -> asyncio.Future[Any]:
        """A future of the loop.

        Raises:
            IllegalStateException: another loop runs.
        """
        if asyncio.get_running_loop() is not self.loop:
            raise IllegalStateException("it belongs to another event loop; make a connection in each loop")
        return self.loop.create_future()


class _Job(Generic[_T]):
    """A call in a worker's thread, and the future of its result."""

    __slots__ = ("act", "future", "undo")

    def __init__(self, act: Callable[[], _T], undo: Callable[[_T], object] | None, future: asyncio.Future[_T]) -> None:
        self.act = act
        self.undo = undo
        self.future = future


class Worker:
    """Carries out what may wait, one job after the other, in a thread of its own, which ends where it has none.

    Attributes:
        pending: jobs whose end the loop has not seen; for the loop's thread, as all but the jobs themselves.
        on_idle: called in the loop when there are none any more.
    """

    def __init__(self, name: str, inbox: Inbox) -> None:
        """A worker without a thread yet; ``name`` is that of the thread."""
        self.pending = 0
        self.on_idle: Callable[[], object] = int
        self._name = name
        self._inbox = inbox
        self._jobs: queue.SimpleQueue[_Job[Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._has_thread = False  #: under the lock

    def submit(self, act: Callable[[], _T], undo: Callable[[_T], object] | None = None) -> asyncio.Future[_T]:
        """Have something done after all that was submitted before.

        Args:
            act: may wait.
            undo: likewise; called with the result where the future was cancelled meanwhile.

        Returns:
            The result to come.  Where the future is cancelled before ``act`` begins, it is not called.

        Raises:
            IllegalStateException: another loop runs.
            ResourceAllocationException: the process has as many threads as it may.
        """
        job = _Job(act, undo, self._inbox.future())
        with self._lock:
            if not self._has_thread:
                try:
                    threading.Thread(target=self._run, name=self._name, daemon=True).start()
                except RuntimeError as error:
                    raise ResourceAllocationException(f"{self._name} needs a thread: {error}") from error
                self._has_thread = True
            self._jobs.put(job)
        self.pending += 1
        return job.future

    async def run(self, act: Callable[[], _T], undo: Callable[[_T], object] | None = None) -> _T:
        """``submit``, and wait for the result."""
        future = self.submit(act, undo)
        try:
            return await future
        except asyncio.CancelledError:
            if not unwanted(future) and future.exception() is None:  # it came in the same turn
                self._undo(undo, future.result())
            raise

    def spare(self, act: Callable[[], object]) -> None:
        """``submit`` what no task waits for; its error is logged."""
        self.submit(act).add_done_callback(_log_error)

    def _undo(self, undo: Callable[[_T], object] | None, made: _T | None) -> None:
        if undo is not None and made is not None:
            self.spare(functools.partial(undo, made))

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_LINGER_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._has_thread = False
                        return
                continue
            result: Any = None
            error: BaseException | None = None
            if not job.future.cancelled():
                try:
                    result = job.act()
                except BaseException as raised:
                    error = raised
            self._inbox.put(self._finished, job, result, error)
            del job, result, error  # a thread without work keeps nothing

    def _finished(self, job: _Job[Any], result: Any, error: BaseException | None) -> None:
        self.pending -= 1
        future = job.future
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        elif error is not None:
            log.warning("! a call that was cancelled has failed: %s: %s", type(error).__name__, error)
        else:
            self._undo(job.undo, result)
        if not self.pending:
            self.on_idle()


def unwanted(future: asyncio.Future[Any]) -> bool:
    """Wait no more for a future, whose error is then of no interest; returns whether it is cancelled by now."""
    if future.cancel() or future.cancelled():
        return True
    future.exception()  # else asyncio logs that nobody has seen it
    return False


def _log_error(future: asyncio.Future[Any]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None:
        log.warning("! what no task waits for has failed: %s: %s", type(error).__name__, error)


async def apart(name: str, inbox: Inbox, act: Callable[[], _T]) -> _T:
    """Do what may wait in a thread of its own, and beside all workers; it is carried out whoever is cancelled."""
    return await asyncio.shield(Worker(name, inbox).submit(act))


class LoopWaiters(Waiters):
    """Threads and tasks that wait for something of a session.

    Attributes:
        is_armed: whether a task waits, so that the next ``wake`` is for the loop as well.
    """

    def __init__(self, inbox: Inbox, changed: Callable[[], object]) -> None:
        """Nobody waits.

        Args:
            inbox: of the loop of the tasks.
            changed: has them check; called in the loop.
        """
        super().__init__()
        self.is_armed = False
        self._inbox = inbox
        self._changed = changed

    def __bool__(self) -> bool:
        return self.is_armed or super().__bool__()

    def wake(self) -> None:
        """See :meth:`broker_adapter.Waiters.wake`."""
        if self.is_armed:
            self.is_armed = False
            self._inbox.put(self._changed)
        super().wake()

    def wake_threads(self) -> None:
        """Have the threads check, and no task."""
        if self._locks:
            super().wake()


def unowned(method: Callable[[], object]) -> Callable[[], None]:
    """What calls a method of an object that it does not keep, and does nothing once the object is gone."""
    assert isinstance(method, MethodType)
    reference = weakref.WeakMethod(method)

    def call() -> None:
        found = reference()
        if found is not None:
            found()

    return call


# How the classes of this package are made of those of the SDK.


class HasWorker(Protocol):
    """An object of this package: an object of the SDK, and the worker that makes its calls."""

    _sync: Any
    _worker: Worker


def in_worker(
    method: Callable[Concatenate[Any, _P], _T], undo: Callable[[Any, _T], object] | None = None
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]:
    """A method of the SDK as one to be awaited: with its parameters and its documentation, called by the worker.

    ``undo`` takes the object of the SDK, and what was made for a task that is cancelled meanwhile.
    """

    @functools.wraps(method)
    async def call(self: HasWorker, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        act = functools.partial(method, self._sync, *arguments, **options)
        return await self._worker.run(act, undo and functools.partial(undo, self._sync))

    return call


def at_once(method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """A method of the SDK that waits for nothing, as it is."""

    @functools.wraps(method)
    def call(self: HasWorker, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        return method(self._sync, *arguments, **options)

    return call


class Attribute(Generic[_T]):
    """An attribute or property of an object of the SDK, as it is."""

    def __init__(self, kind: type, text: str) -> None:
        """Set by ``__set_name__``; ``kind`` is the class that has it, ``text`` what it says where that says nothing."""
        self._kind = kind
        self.__doc__ = text

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        found = getattr(self._kind, name, None)
        if isinstance(found, property):
            self.__doc__ = found.__doc__

    def __get__(self, instance: HasWorker | None, owner: type | None = None) -> _T:
        if instance is None:
            return self  # type: ignore[return-value]  # for what documents the class
        found: _T = getattr(instance._sync, self._name)
        return found

    def __set__(self, instance: HasWorker, value: _T) -> None:
        setattr(instance._sync, self._name, value)


class _Closes(Protocol):
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


_C = TypeVar("_C", bound=_Closes)


class Opening(Generic[_C]):
    """What is made when it is awaited, or at the begin of an ``async with`` block, whose end closes it."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Coroutine[Any, Any, _C]]) -> None:
        """Not made yet; ``make`` makes it."""
        self._make = make
        self._made: _C | None = None

    def __await__(self) -> Generator[Any, Any, _C]:
        return self._make().__await__()

    async def __aenter__(self) -> _C:
        self._made = await self._make()
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._made is not None:
            await self._made.__aexit__(kind, error, trace)


class Closing:
    """The ``async with`` block of an object that has ``close``."""

    __slots__ = ()

    async def close(self) -> None:
        """Close; legal twice."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Done:
    """What is awaited where nothing is left to be waited for."""

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield


#: The one that there is.
DONE: Final[Awaitable[None]] = _Done()
