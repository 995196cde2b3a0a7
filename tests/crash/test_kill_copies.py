"""SIGKILL of a server and of its copy, at random moments of an image and of what follows, under a load.

After each kill the copy catches up: all of its records are those of the server, and both are sound.  More kills than in
CI: ``HOLDFAST_KILLS=200``; what failed once: ``HOLDFAST_SEED``.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from broker_adapter.engine.store.maintenance import check_store
from broker_adapter.settings import EngineSettings
from sdk import AcknowledgeMode, ConnectionFactory, JMSException, Session
from tests.copy_process import CopyProcess, caught_up, differences, records
from tests.server_process import ServerProcess

pytestmark = pytest.mark.crash

KILLS = int(os.environ.get("HOLDFAST_KILLS", "5"))
SEED = int(os.environ.get("HOLDFAST_SEED", random.randrange(1 << 32)))
#: What is done at a random moment.
KINDS = ("server", "copy", "both", "promote")
#: Messages that are there to begin with, of 10 KB each: so an image takes a while.
FIRST = 1000


class Load:
    """Sends, receives and changes in transactions, over a server that is killed and started again, in a thread."""

    def __init__(self, url: str, seed: int) -> None:
        self.paused = threading.Lock()
        self.commits = 0
        self._url = f"{url}?failover=nofailover&close_timeout_seconds=1"
        self._chance = random.Random(seed)
        self._stopping = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._thread.join(120)

    def _run(self) -> None:
        while not self._stopping:
            try:
                with (
                    ConnectionFactory(self._url).create_connection() as connection,
                    connection.create_session(AcknowledgeMode.TRANSACTED) as session,
                ):
                    connection.start()
                    self._work(session)
            except JMSException:
                time.sleep(0.05)

    def _work(self, session: Session) -> None:
        chance = self._chance
        producers = [session.create_producer(session.create_queue(f"q{number}")) for number in range(3)]
        consumers = [session.create_consumer(session.create_queue(f"q{number}")) for number in range(3)]
        region = session.create_region("values")
        while not self._stopping:
            with self.paused:
                for _ in range(chance.choice([1, 1, 5, 30])):
                    chance.choice(producers).send(chance.randbytes(chance.choice([10, 500, 10_000])))
                if chance.random() < 0.02:
                    producers[0].send(chance.randbytes(5_000_000))
                for each in consumers:
                    for _ in range(chance.randrange(15)):
                        each.receive_nowait()
                for _ in range(chance.randrange(3)):
                    region[f"key {chance.randrange(50)}"] = chance.randbytes(100)
                if chance.random() < 0.1:
                    session.rollback()
                else:
                    session.commit()
                    self.commits += 1


class Pair:
    """A server and its copy.

    Args:
        path: has their stores.
        chance: decides.
    """

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.server = ServerProcess(path / "one", "--option", f"tail_bytes={1 << 20}")
        self.server.start()
        self.copy = CopyProcess(path / "other", self.server.url, log=path / "log")
        self.copy.start()
        self.kinds: Counter[str] = Counter()
        self._chance = chance

    def close(self) -> None:
        self.copy.kill()
        self.server.kill()

    def kill(self, kind: str) -> None:
        """Kill one of them or both, and start them again."""
        chance = self._chance
        if kind != "copy":
            self.server.kill()
        if kind != "server":
            self.copy.kill()
            if (self.copy.data / "image").exists():
                self.kinds["image broken off"] += 1
        if kind == "promote" and (self.copy.data / "data.mdb").exists():
            self.copy.promote()
            self.kinds["promoted"] += 1
            self.server.data, self.copy.data = self.copy.data, self.server.data
        elif kind != "server" and chance.random() < 0.4:
            shutil.rmtree(self.copy.data, ignore_errors=True)
            self.copy.arguments = chance.choice([(), ("--image-rate", "10")])
            self.kinds["image"] += 1
        if kind != "copy":
            self.server.start()
        if kind != "server":
            self.copy.start()
        self.kinds[kind] += 1

    def compare(self) -> None:
        """Let the copy catch up, and compare both; nothing else writes meanwhile."""
        while True:
            caught_up(self.server.url)
            self.server.kill()
            self.copy.kill()
            ends = [max(records(each)["tail"]) for each in (self.server.data, self.copy.data)]
            if ends[0] == ends[1]:  # else the server has noted something by itself
                break
            self.start()
        assert differences(self.server.data, self.copy.data) == []
        for each in (self.server.data, self.copy.data):
            report = check_store(each, EngineSettings())
            assert report.is_sound, (each, report.damages[:5], report.findings[:5])

    def start(self) -> None:
        self.server.start()
        self.copy.start()


def test_a_copy_is_equal_whatever_was_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    pair = Pair(tmp_path, chance)
    try:
        with (
            ConnectionFactory(pair.server.url).create_connection() as connection,
            connection.create_session(AcknowledgeMode.TRANSACTED) as session,
        ):
            producer = session.create_producer(session.create_queue("first"))
            for _ in range(FIRST):
                producer.send(chance.randbytes(10_000))
            session.commit()
        with Load(pair.server.url, SEED) as load:
            for number in range(KILLS):
                kind = KINDS[number % 4] if KILLS < 20 else chance.choice(KINDS)
                time.sleep(chance.random() * 0.4)
                pair.kill(kind)
                if chance.random() < 0.3:
                    time.sleep(chance.random() * 0.3)
                    pair.kill(chance.choice(KINDS))
                with load.paused:
                    pair.compare()
                    pair.start()
        assert load.commits > KILLS
    except BaseException:
        print(f"seed {SEED}, {pair.kinds}\n{(tmp_path / 'log').read_text()[-3000:]}")  # noqa: T201
        raise
    finally:
        pair.close()
        if KILLS > 20:
            print(f"seed {SEED}, {load.commits} commits, {dict(pair.kinds)}")  # noqa: T201
