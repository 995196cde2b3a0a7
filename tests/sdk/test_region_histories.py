"""Random histories of a region and a durable client, against a plain list of what has happened."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from sdk import Connection, ConnectionFactory, Region, ResultPolicy
from tests.sdk.region_connections import WAIT, Told, cached, region

KEYS = [f"k{number}" for number in range(6)]


class History:
    """One engine that is closed and opened, a feed, and a durable client that comes and goes."""

    def __init__(self, path: Path, seed: int, options: str) -> None:
        self.chance = random.Random(seed)
        self._factory = ConnectionFactory(f"embedded:{path}?event_acknowledge_seconds=0.005{options}")
        self.conflates = "event_conflation=true" in options
        self.feed = self._factory.create_connection()
        self.quotes = self.feed.create_session().create_region("quotes")
        self.log: list[tuple[int, str, str]] = []  #: version, key and word of each event
        self.model: dict[str, str | None] = {}
        self.desk: Connection | None = None
        self.made: Region
        self.told: Told
        self.is_ready = False
        self.since: int | None = None  #: the last version before the durable interest; None: there is none
        self.seen: list[int] = []  #: versions that were told on any connection

    # What may happen.

    def change(self) -> None:
        key, how = self.chance.choice(KEYS), self.chance.random()
        before = self.model.get(key, "none")
        if how < 0.6:
            value = str(self.chance.random())
            version = self.quotes.put(key, value)
            self.log.append((version, key, "create" if before == "none" else "update"))
            self.model[key] = value
        elif how < 0.8:
            if self.quotes.destroy(key):
                self._note(key, "destroy")
            assert (before != "none") == (key in self.model)
            self.model.pop(key, None)
        elif self.quotes.invalidate(key):
            assert before not in ("none", None)
            self._note(key, "invalidate")
            self.model[key] = None

    def _note(self, key: str, word: str) -> None:
        self.log.append((self.log[-1][0] + 1, key, word))  # only one feed: versions follow one another

    def come(self) -> None:
        if self.desk is not None:
            return
        self.desk = self._factory.create_connection(client_id="desk", durable_timeout=None)
        self.made, self.told = region(self.desk)
        self.is_ready = False
        self.made.register_interest(all_keys=True, durable=True, result_policy=self.chance.choice(list(ResultPolicy)))
        if self.since is None:
            self.since = self.log[-1][0] if self.log else 0

    def be_ready(self) -> None:
        if self.desk is not None:
            self.desk.ready_for_events()
            self.is_ready = True

    def go(self) -> None:
        if self.desk is None:
            return
        desk, self.desk = self.desk, None
        if self.chance.random() < 0.5:
            desk._transport.close(1)  # as in a crash
        desk.close(keep_alive=True)
        self._gather()

    def restart(self) -> None:
        self.go()
        self.feed.close()
        self.feed = self._factory.create_connection()
        self.quotes = self.feed.create_session().create_region("quotes")

    def _gather(self) -> None:
        versions = [event.version for event in self.told.events]
        assert versions == sorted(set(versions)), "each once, and in order"
        for event in self.told.events:
            wanted = next(entry for entry in self.log if entry[0] == event.version)
            assert (event.key, event.operation.name.lower()) == wanted[1:]
        self.seen += versions

    def end(self) -> None:
        """The client comes, and is told the rest: nothing is missing, and its cache is that of the engine."""
        self.come()
        self.be_ready()
        self.made.register_interest(all_keys=True, durable=True)
        self.quotes.put("last", "x")
        self.log.append((self.log[-1][0] + 1 if self.log else 1, "last", "create"))
        self.told.wait_until(lambda: bool(self.told.events) and self.told.events[-1].key == "last")
        wanted: dict[str, Any] = {**self.model, "last": "x"}
        assert self.quotes.get_all() == {key: value for key, value in wanted.items() if value is not None}
        deadline = time.monotonic() + WAIT
        while cached(self.made) != wanted:
            assert time.monotonic() < deadline, (cached(self.made), wanted)
            time.sleep(0.005)
        assert self.told.words.count("live quotes") == 1
        self.go()
        assert self.since is not None
        needed = [entry for entry in self.log if entry[0] > self.since]
        if self.conflates:  # an update may be left out where a newer one of its key follows
            needed = [
                (version, key, word)
                for number, (version, key, word) in enumerate(needed)
                if word != "update"
                or next((later for _, other, later in needed[number + 1 :] if other == key), None) != "update"
            ]
        assert {version for version, _, _ in needed} <= set(self.seen)
        self.feed.close()


@pytest.mark.parametrize("options", ["", "&event_window_messages=2", "&event_conflation=true"])
@pytest.mark.parametrize("seed", range(5))
def test_a_durable_client_misses_nothing_and_its_cache_is_right(tmp_path: Path, seed: int, options: str) -> None:
    history = History(tmp_path / "data", seed, options)
    steps = [history.change] * 12 + [history.come, history.come, history.be_ready, history.go, history.restart]
    for _ in range(120):
        history.chance.choice(steps)()
    history.end()
