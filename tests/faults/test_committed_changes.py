"""Changes of regions in transactions over a network and a server that fail: all of a commit, or nothing, and once."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    JMSException,
    Region,
    TransactionRolledBackException,
    UnconnectedException,
)
from tests.faults.conftest import Connect
from tests.faults.losses import PATIENT, cut, in_background, lose, stored_in
from tests.faults.proxy import Cut, Direction, Proxy
from tests.faults.scenarios import Seen, wait_for
from tests.faults.scenarios import connect as connected
from tests.server_process import ServerProcess

pytestmark = pytest.mark.crash

KEYS = ("a", "b", "c")


def other(name: str) -> str:
    """The second region of a scenario."""
    return f"{name} too"


def work(url: str, name: str, turns: int, when_held: Callable[[], object] = int) -> list[JMSException]:
    """Transactions that put their number under each key of two regions, and send it.

    Args:
        url: of the server.
        name: of the first region, and of the queue.
        turns: transactions.
        when_held: called ahead of each commit.

    Returns:
        What the commits have raised; each is repeated until it raises nothing.
    """
    raised: list[JMSException] = []
    with connected(url, Seen()) as connection, connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        regions = [session.create_region(each) for each in (name, other(name))]
        producer = session.create_producer(session.create_queue(name))
        for turn in map(str, range(1, turns + 1)):
            while True:
                for each in regions:
                    each.put_all(dict.fromkeys(KEYS, "not yet"))
                    each.put_all(dict.fromkeys(KEYS, turn))
                    assert each.get_all(KEYS) == dict.fromkeys(KEYS, turn)
                producer.send(turn)
                when_held()
                try:
                    session.commit()
                    break
                except TransactionRolledBackException as error:
                    raised.append(error)
    return raised


class Reader:
    """Reads one region again and again, in a thread of its own: it never sees a part of a commit."""

    def __init__(self, made: Region) -> None:
        self._region = made
        self._ends = threading.Event()
        self.seen: set[str] = set()
        self.wrong: list[object] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(0.001):
            try:
                found = self._region.get_all()
            except JMSException:  # the server is away
                continue
            if found and (set(found) != set(KEYS) or len(set(found.values())) > 1 or "not yet" in found.values()):
                self.wrong.append(found)
            self.seen |= set(found.values())

    def end(self) -> None:
        self._ends.set()
        self._thread.join(60)
        assert self.wrong == []


def check(direct: Connection, name: str, turns: int) -> None:
    """Both regions and the queue have the same transactions, each once."""
    with direct.create_session() as session:
        found = [session.create_region(each).get_all() for each in (name, other(name))]
    assert found == [dict.fromkeys(KEYS, str(turns))] * 2
    assert stored_in(direct, name) == turns


@pytest.mark.parametrize("fault", ["cut", "half open"])
@pytest.mark.parametrize("direction", Direction, ids=lambda each: each.name)
def test_there_is_never_a_part_of_a_commit_wherever_the_connection_is_cut(
    direction: Direction, fault: str, proxy: Proxy, direct: Connection, name: str
) -> None:
    held: list[int] = []
    work(proxy.url, f"{name} before", 1, when_held=lambda: held.append(proxy.frames[direction]))
    frames, cuts_before = proxy.frames[direction], proxy.cuts
    for after in range(held[0] - 1, frames):
        for into_next in (0, 5) if fault == "cut" else (0,):
            this = f"{name} {after} {into_next}"
            cuts = proxy.cuts
            proxy.plan(Cut(direction, frames=after, into_next=into_next, half_open=fault == "half open"))
            raised = work(proxy.url, this, 1)
            proxy.plan(None)
            try:
                check(direct, this, 1)
                assert len(raised) <= proxy.cuts - cuts
            except AssertionError as error:
                raise AssertionError(f"cut after {after} frames and {into_next} bytes {direction.value}") from error
    assert proxy.cuts - cuts_before >= (frames - held[0]) * 3 // 4, "the cuts came too late"


def test_a_transaction_that_has_changed_something_is_stale_after_a_loss_and_a_new_one_is_not(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    client = connect()
    with client.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        mine = session.create_region(name)
        seen = direct.create_session().create_region(name)
        mine.put("a", "lost")
        cut(client, proxy)
        assert mine.get("a") == "lost"  # until it is rolled back
        with pytest.raises(TransactionRolledBackException, match=r"lost during it, with .* and 1 change of regions"):
            session.commit()
        assert mine.get("a") is seen.get("a") is None
        mine.put("a", "lost")
        cut(client, proxy)
        session.rollback()
        mine.put("a", "1")
        session.commit()
        assert mine.get("a") == seen.get("a") == "1"


def test_changes_are_held_while_the_network_is_away_and_the_commit_waits_for_it(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    client = connect(PATIENT)
    with client.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        mine = session.create_region(name)
        lose(client, proxy)
        mine.put("a", "1")
        assert mine.get("a") == "1"
        assert mine.destroy("a")  # as it reads it itself
        mine.put("a", "2")
        with pytest.raises(UnconnectedException):
            mine.destroy("b")  # nobody knows whether it is there
        committing, done = in_background(session.commit)
        proxy.refuse(False)
        committing.join(120)
        assert done == [None]
        assert direct.create_session().create_region(name).get_all() == {"a": "2"}


def test_a_region_is_made_again_at_another_server(tmp_path: Path, name: str) -> None:
    with ServerProcess(tmp_path / "one") as server:
        options = "reconnect_delay_seconds=0.01&stable_seconds=0"
        with ConnectionFactory(f"{server.url}?{options}").create_connection() as connection:
            session = connection.create_session(AcknowledgeMode.TRANSACTED)
            mine = session.create_region(name)
            mine.put("a", "1")
            session.commit()
            server.kill()
            server.data = tmp_path / "two"
            server.start()
            for _ in range(2):  # the first transaction may have begun before the loss was noticed
                mine.put("a", "2")
                try:
                    session.commit()
                    break
                except TransactionRolledBackException:
                    assert wait_for(lambda: not session._state.interrupted)
            assert mine.get_all() == {"a": "2"}


def test_the_cache_has_what_a_commit_has_done_that_was_resolved_after_a_loss(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    client = connect()
    with client.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        mine = session.create_region(name)
        mine.register_interest(all_keys=True)
        seen = direct.create_session().create_region(name)
        done = 0
        for turn in map(str, range(1, 21)):
            mine.put("a", turn)
            proxy.plan(Cut(Direction.TO_CLIENT, frames=proxy.frames[Direction.TO_CLIENT]))
            try:
                session.commit()
                done += 1
            except TransactionRolledBackException:
                pass
            finally:
                proxy.plan(None)
            assert read_when_connected(mine, "a") == seen.get("a")
        assert done


def read_when_connected(made: Region, key: str) -> object:
    """The value of a key, which no cache may have while the connection is being restored."""
    found: list[object] = []

    def read() -> bool:
        with contextlib.suppress(UnconnectedException):
            found.append(made.get(key))
        return bool(found)

    assert wait_for(read)
    return found[0]


def test_nothing_is_done_in_part_or_lost_over_kills_of_the_server(tmp_path: Path) -> None:
    turns, kills = 300, 0
    done = threading.Event()
    chance = random.Random(7)
    with ServerProcess(tmp_path / "data") as server:
        with ConnectionFactory(f"{server.url}?max_reconnect_delay_seconds=0.1").create_connection() as watcher:
            readers = [Reader(watcher.create_session().create_region(each)) for each in ("q", other("q"))]

            def kill() -> None:
                nonlocal kills
                while kills < 4 and not done.wait(0.05 + chance.random() * 0.25):
                    server.kill()
                    kills += 1
                    server.start()

            killer = threading.Thread(target=kill)
            killer.start()
            try:
                raised = work(f"{server.url}?max_reconnect_delay_seconds=0.1", "q", turns)
            finally:
                done.set()
                killer.join(120)
            for each in readers:
                each.end()
        assert kills >= 2
        assert len(raised) <= kills
        assert len(readers[0].seen) > 5
        with ConnectionFactory(server.url).create_connection() as direct:
            check(direct, "q", turns)
