"""Sessions for an event loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import sdk
from sdk.aio.consumer import MessageConsumer, QueueBrowser
from sdk.aio.loop_bridge import (
    Attribute,
    Closing,
    Opening,
    apart,
    at_once,
    in_worker,
)
from sdk.aio.producer import MessageProducer
from sdk.aio.region import Region
from sdk.aio.turns import Turns
from sdk.messages.factory import MessageFactory
from sdk.session import _NO_DELIVERY

_P = ParamSpec("_P")
_C = TypeVar("_C", MessageConsumer, MessageProducer, QueueBrowser, covariant=True)


class _Closable(Protocol):
    def close(self) -> None: ...


_Made = TypeVar("_Made", bound=_Closable)


def _opens(
    method: Callable[Concatenate[Any, _P], _Made], kind: Callable[[_Made, Turns], _C]
) -> Callable[Concatenate[Any, _P], Opening[_C]]:
    """A method of the SDK that makes something: awaited, or in an ``async with`` block, whose end closes it."""

    @functools.wraps(method)
    def call(self: Session, /, *arguments: _P.args, **options: _P.kwargs) -> Opening[_C]:
        async def make() -> _C:
            act = functools.partial(method, self._sync, *arguments, **options)
            return kind(await self._worker.run(act, undo=lambda made: made.close()), self._turns)

        return Opening(make)

    return call


class Session(Closing, MessageFactory):
    """Makes producers, consumers, browsers and messages, and ends deliveries.  Made by ``connection.create_session``.

    For any number of tasks of its loop.  Their calls come one after the other: what waits for the broker, such as
    ``commit``, holds up those behind it.
    """

    __slots__ = ("__weakref__", "_connection", "_sync", "_turns", "_worker")

    acknowledge_mode: Attribute[sdk.AcknowledgeMode] = Attribute(sdk.Session, "")
    transacted: Attribute[bool] = Attribute(sdk.Session, "")

    def __init__(self, turns: Turns, connection: object) -> None:
        """Made by the connection, which it keeps."""
        self._turns = turns
        self._connection = connection
        self._sync = turns.session
        self._worker = turns.worker

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    create_queue = at_once(sdk.Session.create_queue)
    create_topic = at_once(sdk.Session.create_topic)
    create_temporary_queue = in_worker(sdk.Session.create_temporary_queue, sdk.Session.delete_temporary)
    create_temporary_topic = in_worker(sdk.Session.create_temporary_topic, sdk.Session.delete_temporary)
    delete_temporary = in_worker(sdk.Session.delete_temporary)

    create_producer = _opens(sdk.Session.create_producer, MessageProducer)
    create_consumer = _opens(sdk.Session.create_consumer, MessageConsumer)
    create_durable_consumer = _opens(sdk.Session.create_durable_consumer, MessageConsumer)
    create_shared_consumer = _opens(sdk.Session.create_shared_consumer, MessageConsumer)
    create_shared_durable_consumer = _opens(sdk.Session.create_shared_durable_consumer, MessageConsumer)
    create_browser = _opens(sdk.Session.create_browser, QueueBrowser)
    unsubscribe = in_worker(sdk.Session.unsubscribe)

    async def create_region(self, name: str, *, conflates: bool | None = None) -> Region:
        """The region of this name, which the engine makes where there is none; see ``sdk.Session.create_region``."""
        made = await self._worker.run(functools.partial(self._sync.create_region, name, conflates=conflates))
        return Region(made, self._turns)

    commit = in_worker(sdk.Session.commit)
    rollback = in_worker(sdk.Session.rollback)
    recover = in_worker(sdk.Session.recover)

    async def acknowledge(self) -> None:
        """Acknowledge everything that this session has received, where its mode is CLIENT; other modes ignore it.

        Raises:
            JMSException: see ``sdk.Session.acknowledge``.
        """
        await self._turns.acknowledge(_NO_DELIVERY)

    def _accept(self, message: sdk.Message) -> Coroutine[Any, Any, None]:
        """End one message that the SDK has received for itself, whatever the mode."""
        return self._worker.run(functools.partial(self._sync._accept, message))

    async def close(self) -> None:
        """Close; legal twice.  Receives that wait return None.  See ``sdk.Session.close`` for what it waits for."""
        await apart(f"holdfast-aio-close-{self._turns.state.number}", self._turns.inbox, self._sync.close)
        self._turns.check()
