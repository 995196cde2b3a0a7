"""Copies of a store for tests, which confirm its commits when the test says so, or later, by themselves."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.settings import EngineSettings

#: Longest delay of a release that comes by itself, in seconds.
_DELAY = 0.002


class Copies:
    """A :class:`~broker_adapter.engine.store.replication.Replication` whose commits are released by the test.

    Commits of an engine in memory are numbered as well.

    Attributes:
        are_late: whether the test releases commits; else each is released at once.
    """

    def __init__(self) -> None:
        self.are_late = True
        self.lsn = 0
        self.released = 0
        self.serves = True
        self.listeners: list[Callable[[], None]] = []
        self.made = threading.Condition()  #: a commit was

    def on_release(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)

        def remove() -> None:
            with suppress(ValueError):
                self.listeners.remove(listener)

        return remove

    def number_commits_of(self, broker: Broker) -> None:
        persist = broker._persist

        def persist_numbered(effects: Effects) -> bool:
            writes = bool(effects.durable or effects.volatile)
            has_committed = persist(effects)
            if writes:
                with self.made:
                    self.lsn += 1
                    if not self.are_late:
                        self.released = self.lsn
                    self.made.notify_all()
            return has_committed

        broker._persist = persist_numbered  # type: ignore[method-assign]

    def release(self, lsn: int | None = None) -> None:
        """Release all commits, or those up to one, in this thread."""
        self.released = max(self.released, self.lsn if lsn is None else lsn)
        for listener in [*self.listeners]:
            listener()


class LateCopies(Copies):
    """Copies that release one commit after the other by themselves, in a thread of their own, each a bit later."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._delays = random.Random(seed)
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with self.made:
            self._is_over = True
            self.made.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self.made:
                self.made.wait_for(lambda: self.lsn > self.released or self._is_over)
                if self.lsn == self.released:
                    return
                self.made.wait_for(
                    lambda: self._is_over, self._delays.choice((0.0, 0.0, _DELAY * self._delays.random()))
                )
            self.release(self._delays.randint(self.released + 1, self.lsn))


@contextmanager
def released_late() -> Iterator[list[LateCopies]]:
    """Have every engine that is made meanwhile wait for copies of its own; returns what fills with them."""
    every: list[LateCopies] = []
    make = Broker.__init__

    def make_replicated(broker: Broker, settings: EngineSettings, *arguments: Any, **options: Any) -> None:
        copies = LateCopies(len(every))
        every.append(copies)
        make(broker, settings, *arguments, **options, replication=copies)
        copies.number_commits_of(broker)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Broker, "__init__", make_replicated)
        try:
            yield every
        finally:
            for copies in every:
                copies.stop()
