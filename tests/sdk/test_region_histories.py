"""Random histories of a region and a durable client, against a plain list of what has happened."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from sdk import AcknowledgeMode, Connection, ConnectionFactory, Region, ResultPolicy, Session
from tests.sdk.region_connections import WAIT, Told, cached, region

KEYS = [f"k{number}" for number in range(6)]


class History:
    """One engine that is closed and opened, a feed, and a durable client that comes and goes."""

    def __init__(self, path: Path, seed: int, options: str) -> None:
        self.chance = random.Random(seed)
        self._factory = ConnectionFactory(f"embedded:{path}?event_acknowledge_seconds=0.005{options}")
        self.conflates = "event_conflation=true" in options
        self.has_cache = seed % 2 == 0
        self.feed, self.bank, self.quotes, self.held = self.open()
        self.log: list[tuple[int, str, str]] = []  #: version, key and word of each event
        self.model: dict[str, str | None] = {}
        self.desk: Connection | None = None
        self.made: Region
        self.told: Told
        self.is_ready = False
        self.since: int | None = None  #: the last version before the durable interest; None: there is none
        self.seen: list[int] = []  #: versions that were told on any connection

    def open(self) -> tuple[Connection, Session, Region, Region]:
        """A feed, its session for transactions, and the region: for changes at once, and for those of transactions."""
        feed = self._factory.create_connection()
        bank = feed.create_session(AcknowledgeMode.TRANSACTED)
        quotes, held = feed.create_session().create_region("quotes"), bank.create_region("quotes")
        if self.has_cache:
            feed.start()
            held.register_interest(all_keys=True)
        return feed, bank, quotes, held

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

    def transact(self) -> None:
        """Change several keys in a transaction, which reads them; commit it, or not."""
        then, words = dict(self.model), list[tuple[str, str]]()
        for _ in range(self.chance.randint(1, 5)):
            key, how = self.chance.choice(KEYS), self.chance.random()
            before = then.get(key, "none")
            if how < 0.6:
                then[key] = value = str(self.chance.random())
                assert self.held.put(key, value) == 0
                words.append((key, "create" if before == "none" else "update"))
            elif how < 0.8:
                assert self.held.destroy(key) == (before != "none")
                if then.pop(key, "none") != "none":
                    words.append((key, "destroy"))
            elif self.held.invalidate(key):
                then[key] = None
                words.append((key, "invalidate"))
            self.check(self.held, then)
            self.check(self.quotes, self.model)
        if self.chance.random() < 0.3:
            self.bank.rollback()
        else:
            self.bank.commit()
            self.model = then
            version = self.log[-1][0] if self.log else 0
            self.log += [(version + number, *each) for number, each in enumerate(words, 1)]
        for each in (self.held, self.quotes):
            self.check(each, self.model)
        assert not self.has_cache or cached(self.held) == self.model

    @staticmethod
    def check(made: Region, wanted: dict[str, str | None]) -> None:
        assert {key: made.get(key) for key in made} == wanted
        assert made.get_all() == {key: value for key, value in wanted.items() if value is not None}

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
        self.feed, self.bank, self.quotes, self.held = self.open()

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
    steps = (
        [history.change] * 9
        + [history.transact] * 3
        + [history.come, history.come, history.be_ready, history.go, history.restart]
    )
    for _ in range(120):
        history.chance.choice(steps)()
    history.end()
