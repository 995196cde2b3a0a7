"""What one connection exchanges with the engine: deferred commands, and callbacks with the answers.  Pure.

The connection's thread defers commands, and submits them together.  The engine and its workers add callbacks from their
own threads; the connection's thread runs them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.policies import Policies, QueueSettings
from broker_adapter.settings import EngineSettings

#: So many settlements, in one command or several, are answered, and count in ``settling`` until then.
_COUNTED_AT_ONCE: Final = 500
#: Settlements that count which the engine may have at once before the connection waits for it.
MOST_SETTLING: Final = 8_000


class ConnectionEngine(Protocol):
    """What a connection needs of the broker."""

    settings: EngineSettings
    unique: str
    run: str

    @property
    def policies(self) -> Policies:
        """The settings of queues."""

    @property
    def is_replaced(self) -> bool:
        """Whether it has failed where another one goes on, which resolves what was under way: it answers no more."""

    def submit_all(self, commands: Iterable[c.Command]) -> None:
        """Hand over commands; the answers come through their ``reply``, from another thread."""


class EngineCalls:
    """The deferred commands and the pending callbacks of one connection.

    Args:
        engine: the broker.
        wake: called, from any thread, when there are callbacks to be run again.

    Attributes:
        is_postponed: whether callbacks wait for the next turn of the connection's thread.
        turn: number of the turn, in which callbacks are called.
        client: the engine's number of the connection's client; None: the engine has not admitted it yet.
        deferred: the commands that are submitted next.
        defer: adds one.
        settling: settlements that the engine has and has not answered, but for the last few.
        go_on: is called once when these have become few enough; None: no caller waits for that.
    """

    def __init__(self, engine: ConnectionEngine, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._wake = wake
        self.deferred: list[c.Command] = []
        self._callbacks: deque[Callable[[], None]] = deque()
        self._is_woken = False  #: whether ``wake`` was called for the callbacks that are pending
        self.is_postponed = False
        self.turn = 0
        self.client: int | None = None
        self.defer: Callable[[c.Command], None] = self.deferred.append
        self._next_turn: list[Callable[[], None]] = []
        self.settling = 0
        self._uncounted = 0  #: settlements that do not count in ``settling`` yet
        self.go_on: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<EngineCalls client={self.client} deferred={len(self.deferred)} callbacks={len(self._callbacks)}>"

    @property
    def known_client(self) -> int:
        """The engine's number of a client that it has admitted."""
        assert self.client is not None
        return self.client

    def settings_of(self, destination: Destination) -> QueueSettings:
        """Return what holds now for a queue, or the subscriptions of a topic."""
        return self._engine.policies.settings_of(destination)

    def submit(self) -> None:
        """Hand the deferred commands over to the engine."""
        deferred = self.deferred
        if deferred:
            commands = deferred.copy()
            deferred.clear()
            self._engine.submit_all(commands)

    @property
    def settles_too_much(self) -> bool:
        """Whether the engine has so many settlements of this connection that others would have to wait long."""
        return self.settling >= MOST_SETTLING

    def settle(self, consumer: int, numbers: Sequence[int], outcome: c.Ending) -> None:
        """Defer the settlement of deliveries.

        Args:
            consumer: the engine's number of the consumer.
            numbers: of the deliveries.
            outcome: how they end.
        """
        size = self._uncounted = self._uncounted + len(numbers)
        if size < _COUNTED_AT_ONCE:
            self.defer(c.Settle(consumer, numbers, outcome))
            return
        self._uncounted = 0
        self.settling += size
        self.defer(c.Settle(consumer, numbers, outcome, self.reply(self._on_settled, size)))

    def _on_settled(self, size: int, _result: Any) -> None:
        self.settling -= size
        if self.go_on is not None and not self.settles_too_much:
            go_on, self.go_on = self.go_on, None
            go_on()

    def end_temporary(self, destination: Destination | None) -> None:
        """Defer the end of a temporary destination; None: there is none."""
        if destination is not None:
            self.defer(c.DeleteTemporary(self.known_client, destination))

    def add_callback(self, act: Callable[..., None], *arguments: Any) -> None:
        """Have ``act(*arguments)`` called in the connection's thread, unless the engine is replaced; called from any
        thread.
        """
        if self._engine.is_replaced:
            return
        self._callbacks.append(partial(act, *arguments))
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def postpone(self, act: Callable[..., None], *arguments: Any) -> None:
        """Have ``act(*arguments)`` called in the next turn, ahead of all that is pending, which waits as well.

        Called from a callback, which has used up the time of this turn and has more to do.
        """
        self._callbacks.appendleft(partial(act, *arguments))
        self.is_postponed = True

    @property
    def has_next_turn(self) -> bool:
        """Whether something is to be called in the next turn."""
        return bool(self._next_turn)

    def next_turn(self, act: Callable[[], None]) -> None:
        """Have ``act()`` called in the next turn.  Called in the connection's thread."""
        self._next_turn.append(act)
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def run_callbacks(self) -> None:
        """Call what is pending, in the connection's thread, and submit the commands that come of it.

        Where a callback postpones something, the rest waits until ``wake`` has led to the next call.
        """
        self._is_woken = False  # before the deque is emptied: a callback that is added later wakes again
        self.is_postponed = False
        self.turn += 1
        callbacks = self._callbacks
        if self._next_turn:
            callbacks.extendleft(reversed(self._next_turn))
            self._next_turn.clear()
        try:
            while callbacks and not self.is_postponed:
                callbacks.popleft()()
        finally:
            if (callbacks or self.is_postponed) and not self._is_woken:  # postponed, or one has raised
                self._is_woken = True
                self._wake()
            if self.deferred:
                self.submit()

    def reply(self, act: Callable[..., None], *arguments: Any) -> c.Reply:
        """A reply that has ``act(*arguments, result)`` called in the connection's thread."""

        def reply(result: Any) -> None:
            self.add_callback(act, *arguments, result)

        return reply
