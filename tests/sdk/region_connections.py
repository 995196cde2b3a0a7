"""Short words for driving regions in tests of the SDK."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from sdk import Connection, Region, RegionEvent, RegionListener

#: Connects to one engine.
Connect = Callable[..., Connection]
WAIT = 60.0  #: seconds; longer than anything takes


class Told(RegionListener):
    """A listener that remembers what it was told, in words, and can be waited for."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.events: list[RegionEvent] = []
        self._told = threading.Condition()

    def after_create(self, event: RegionEvent) -> None:
        self._note("create", event)

    def after_update(self, event: RegionEvent) -> None:
        self._note("update", event)

    def after_invalidate(self, event: RegionEvent) -> None:
        self._note("invalidate", event)

    def after_destroy(self, event: RegionEvent) -> None:
        self._note("destroy", event)

    def after_region_live(self, region: str) -> None:
        with self._told:
            self.words.append(f"live {region}")
            self._told.notify_all()

    def _note(self, word: str, event: RegionEvent) -> None:
        value = "" if event.message is None else f"={event.value}"
        with self._told:
            self.events.append(event)
            self.words.append(f"{'replayed ' if event.replayed else ''}{word} {event.key}{value}")
            self._told.notify_all()

    def wait_for(self, count: int) -> list[str]:
        """What was told, once it is so much."""
        with self._told:
            assert self._told.wait_for(lambda: len(self.words) >= count, WAIT), self.words
            return list(self.words)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds, which changes only with what is told."""
        with self._told:
            assert self._told.wait_for(condition, WAIT), self.words


def region(connection: Connection, name: str = "quotes", **interest: Any) -> tuple[Region, Told]:
    """A region of a started connection with a listener, and interest in all keys if no other is said."""
    made = connection.create_session().create_region(name)
    told = Told()
    made.add_listener(told)
    connection.start()
    if interest:
        made.register_interest(**interest)
    return made, told


def cached(made: Region) -> dict[str, Any]:
    """What the cache has: values by key, "-" for one that was not read, and None for one without a value."""
    state = made._state
    with state.lock:
        found = {key: state.cache.get(key) for key in state.cache}
    words = {"unread": "-", "invalid": None}
    return {
        key: words[known.state.value] if known.message is None else known.message.body
        for key, known in found.items()
        if known is not None
    }


def wait_until_cached(made: Region, wanted: dict[str, Any]) -> None:
    """Wait until the cache has what ``cached`` is to return."""
    deadline = time.monotonic() + WAIT
    while (found := cached(made)) != wanted:
        assert time.monotonic() < deadline, (found, wanted)
        time.sleep(0.01)
