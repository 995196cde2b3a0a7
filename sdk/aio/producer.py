"""Producers for an event loop.

Theory of operation
    ``send`` hands the message to the transport in the loop's thread, if that need not wait: no other call of the
    session is under way, the network is there, and the send window has a place.  Else the session's worker does it,
    behind the calls ahead of it.  The answer comes from the transport's thread by the inbox, so any number of tasks
    have their sends under way together, up to ``send_window_messages`` of the connection; one more waits in the loop.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec

import sdk
from broker_adapter import (
    ConnectionLostException,
    Destination,
    IllegalStateException,
    JMSException,
    OperationTimedOutException,
    copied,
)
from sdk.aio.loop_bridge import Attribute, Closing, in_worker, unwanted
from sdk.aio.turns import Places, Turns
from sdk.session_state import unanswered

_P = ParamSpec("_P")


def _sends(
    method: Callable[Concatenate[Any, _P], None],
) -> Callable[[Any], Callable[Concatenate[Any, _P], Coroutine[Any, Any, None]]]:
    """Gives a coroutine function the parameters of ``send``, without those that ``await`` is there for."""

    def decorate(function: Any) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, None]]:
        text = function.__doc__
        functools.update_wrapper(function, method).__doc__ = text
        signature = inspect.signature(method)
        kept = [each for name, each in signature.parameters.items() if name != "on_completion"]
        function.__signature__ = signature.replace(parameters=kept)
        return function  # type: ignore[no-any-return]

    return decorate


class MessageProducer(Closing):
    """Sends messages to its destination, or to the one given with each.  Made by ``session.create_producer``.

    For any number of tasks of its loop.
    """

    __slots__ = ("_sync", "_turns", "_worker")

    destination: Attribute[Destination | None] = Attribute(sdk.MessageProducer, "")
    delivery_mode: Attribute[sdk.DeliveryMode] = Attribute(sdk.MessageProducer, "")
    priority: Attribute[int] = Attribute(sdk.MessageProducer, "")
    time_to_live: Attribute[float | None] = Attribute(sdk.MessageProducer, "")
    delivery_delay: Attribute[float | None] = Attribute(sdk.MessageProducer, "")
    disable_message_id: Attribute[bool] = Attribute(sdk.MessageProducer, "Whether messages go without an id.")
    disable_timestamp: Attribute[bool] = Attribute(
        sdk.MessageProducer, "Whether messages go without the time of their sending."
    )

    def __init__(self, producer: sdk.MessageProducer, turns: Turns) -> None:
        """Made by the session."""
        self._sync = producer
        self._turns = turns
        self._worker = turns.worker

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    @_sends(sdk.MessageProducer.send)
    async def send(self, *arguments: Any, **options: Any) -> None:
        """Send a message; as ``sdk.MessageProducer.send``, whose parameters it has but ``on_completion``.

        A persistent message is on disk when this returns.  Sends of several tasks are under way together.  A message
        whose task is cancelled may have been sent.

        Raises:
            JMSException: see ``sdk.MessageProducer.send``.
        """
        if options.get("on_completion") is not None:
            raise TypeError("on_completion is for sdk.MessageProducer.send(); here send() is awaited, in a task")
        turns = self._turns
        places, worker = turns.places, self._worker
        future = turns.inbox.future()
        if places.free:
            places.free -= 1
        else:
            await places.take()
        is_held = True  # the place, by this call and not by an answer to come
        has_answer: bool | None = None
        try:
            if not worker.pending:
                on_sent = functools.partial(self._on_sent, future, places)
                try:
                    has_answer = self._hand_over(on_sent, 0, arguments, options)
                    is_held = not has_answer
                except OperationTimedOutException:
                    pass  # it would have to wait
        finally:
            if is_held:
                places.give_back()
        try:
            if has_answer is None:
                on_sent = functools.partial(self._on_sent, future, None)
                has_answer = await worker.run(functools.partial(self._hand_over, on_sent, None, arguments, options))
            if has_answer:
                turns.answers.expect(future)
                await future
        except asyncio.CancelledError:
            unwanted(future)
            raise

    def _hand_over(
        self,
        on_sent: Callable[[JMSException | None], None],
        limit: float | None,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> bool:
        """Send, and do not wait for the answer; returns whether there will be one.

        Args:
            on_sent: takes the answer.
            limit: longest wait in seconds, 0 in the loop's thread; None: as the options say.
            arguments, options: of ``send``.
        """
        producer = self._sync
        producer._on_sent, producer._time_limit = on_sent, limit
        try:
            producer.send(*arguments, **options)
            return producer._on_sent is None
        finally:
            producer._on_sent = producer._time_limit = None

    def _on_sent(self, future: asyncio.Future[None], places: Places | None, error: JMSException | None) -> None:
        """The broker has answered; called by the transport."""
        self._sync._on_answer()
        turns = self._turns
        turns.waiters.wake_threads()  # one may close the producer
        if isinstance(error, IllegalStateException) and not turns.state.lifecycle.usable:
            error = ConnectionLostException(unanswered(turns.state.name))
        turns.inbox.put(_answered, future, places, error)

    send_all = in_worker(sdk.MessageProducer.send_all)

    async def close(self) -> None:
        """Close; legal twice.  Waits for the answers to its sends; see ``sdk.MessageProducer.close``."""
        await asyncio.shield(self._worker.submit(self._sync.close))


def _answered(future: asyncio.Future[None], places: Places | None, error: JMSException | None) -> None:
    if places is not None:
        places.give_back()
    if not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(copied(error))
