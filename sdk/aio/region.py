"""Regions and continuous queries for an event loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import sdk
from sdk.aio.loop_bridge import Attribute, Inbox, Worker, in_worker
from sdk.aio.turns import Turns
from sdk.regions.listener import QueryListener, RegionListener

_L = TypeVar("_L", RegionListener, QueryListener)


def _read(name: str, member: Any) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    """A property of the SDK that may wait, as a method."""

    async def call(self: Any) -> Any:
        return await self._worker.run(functools.partial(getattr, self._sync, name))

    call.__name__, call.__doc__ = name, member.__doc__
    return call


class _Listeners:
    """Listeners whose methods the loop calls, while the thread that tells events waits: none is ahead of another."""

    def __init__(self, inbox: Inbox, kind: type[Any]) -> None:
        self._inbox = inbox
        self._kind = kind
        self._made: dict[int, tuple[Any, Any]] = {}  #: by the number of the application's object, that and ours

    def of(self, listener: Any) -> Any:
        """The listener that the SDK gets in place of the application's."""
        if not isinstance(listener, self._kind):
            raise TypeError(f"{listener!r} is not a {self._kind.__name__}: give an instance of a class derived from it")
        if id(listener) not in self._made:
            made = self._kind()
            for name in [each for each in vars(self._kind) if not each.startswith("_")]:
                setattr(made, name, functools.partial(self._inbox.put_and_wait, getattr(listener, name)))
            self._made[id(listener)] = (listener, made)
        return self._made[id(listener)][1]

    def pop(self, listener: Any) -> Any:
        """The same, for the last time; None: there is none."""
        return self._made.pop(id(listener), (None, None))[1]


class _Listened:
    """What a region and a query have in common: listeners that the loop calls."""

    __slots__ = ("_listeners", "_sync", "_worker")

    def __init__(self, listened: Any, worker: Worker, inbox: Inbox, kind: type[Any]) -> None:
        self._sync = listened
        self._worker = worker
        self._listeners = _Listeners(inbox, kind)

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    def _add(self, listener: Any) -> Coroutine[Any, Any, None]:
        return self._worker.run(functools.partial(self._sync.add_listener, self._listeners.of(listener)))

    def _remove(self, listener: Any) -> Coroutine[Any, Any, None]:
        return self._worker.run(functools.partial(self._sync.remove_listener, self._listeners.pop(listener)))


class Region(_Listened):
    """A region, as one connection sees it.  Made by ``session.create_region``; see ``sdk.Region``.

    Its calls are made by the worker of the session that made it.  Its listeners are called in the loop.
    """

    __slots__ = ("_turns",)

    name: Attribute[str] = Attribute(sdk.Region, "")

    def __init__(self, region: sdk.Region, turns: Turns) -> None:
        """Made by the session."""
        super().__init__(region, turns.worker, turns.inbox, RegionListener)
        self._turns = turns

    put = in_worker(sdk.Region.put)
    put_all = in_worker(sdk.Region.put_all)
    destroy = in_worker(sdk.Region.destroy)
    invalidate = in_worker(sdk.Region.invalidate)
    get = in_worker(sdk.Region.get)
    get_message = in_worker(sdk.Region.get_message)
    get_all = in_worker(sdk.Region.get_all)
    keys = in_worker(sdk.Region.keys)
    register_interest = in_worker(sdk.Region.register_interest)
    unregister_interest = in_worker(sdk.Region.unregister_interest)
    interests = _read("interests", sdk.Region.interests)

    async def create_query(self, name: str, selector: str, *, durable: bool = False) -> ContinuousQuery:
        """A continuous query, which is stopped until its ``execute()``; see ``sdk.Region.create_query``."""
        made = await self._worker.run(functools.partial(self._sync.create_query, name, selector, durable=durable))
        return ContinuousQuery(made, self._turns)

    async def queries(self) -> list[ContinuousQuery]:
        """The queries of this connection's region that are not closed, in the order in which they were created."""
        found = await self._worker.run(lambda: self._sync.queries)
        return [ContinuousQuery(each, self._turns) for each in found]

    async def add_listener(self, listener: RegionListener) -> None:
        """Have a listener called in the loop with each event of the region; the next event waits until it returns."""
        await self._add(listener)

    async def remove_listener(self, listener: RegionListener) -> None:
        """Call a listener no more.  Unknown ones are ignored."""
        await self._remove(listener)


class ContinuousQuery(_Listened):
    """A continuous query.  Made by ``Region.create_query``; see ``sdk.ContinuousQuery``."""

    __slots__ = ()

    name: Attribute[str] = Attribute(sdk.ContinuousQuery, "Known to the engine together with the client.")
    selector: Attribute[str] = Attribute(sdk.ContinuousQuery, "What keys and values have to match.")
    durable: Attribute[bool] = Attribute(
        sdk.ContinuousQuery, "Whether the engine queues its events while the client is away."
    )
    region: Attribute[str] = Attribute(sdk.ContinuousQuery, "")
    state: Attribute[sdk.QueryState] = Attribute(sdk.ContinuousQuery, "")

    def __init__(self, query: sdk.ContinuousQuery, turns: Turns) -> None:
        """Made by the region."""
        super().__init__(query, turns.worker, turns.inbox, QueryListener)

    execute = in_worker(sdk.ContinuousQuery.execute)
    execute_with_initial_results = in_worker(sdk.ContinuousQuery.execute_with_initial_results)
    stop = in_worker(sdk.ContinuousQuery.stop)
    close = in_worker(sdk.ContinuousQuery.close)

    async def add_listener(self, listener: QueryListener) -> None:
        """Have a listener called in the loop with each event of the query; the next event waits until it returns."""
        await self._add(listener)

    async def remove_listener(self, listener: QueryListener) -> None:
        """Call a listener no more.  Unknown ones are ignored."""
        await self._remove(listener)
