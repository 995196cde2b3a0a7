"""Regions when the network or the server fails: the cache, what waits, what is told, once and in order."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sdk import (
    Connection,
    ConnectionFactory,
    ConnectionLostException,
    Failed,
    InvalidClientIDException,
    QueryListener,
    Region,
    RegionEvent,
    ResourceAllocationException,
    Restored,
    UnconnectedException,
)
from tests.faults.conftest import Connect
from tests.faults.losses import cut, lose
from tests.faults.proxy import Proxy
from tests.faults.scenarios import wait_for
from tests.sdk.region_connections import Told, cached, region, wait_until_cached
from tests.server_process import ServerProcess

pytestmark = pytest.mark.crash


def feed(direct: Connection, name: str) -> Region:
    return direct.create_session().create_region(name)


def test_reads_are_answered_from_the_cache_while_the_network_is_away(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    quotes = feed(direct, name)
    quotes.put_all({"a": "1", "b": "2"})
    quotes.invalidate("b")
    client = connect()
    made, _ = region(client.connection, name, all_keys=True)
    lose(client, proxy)
    start = time.monotonic()
    assert made.get("a") == "1"
    assert made.get("b", "none") == "none"
    assert made.keys() == ["a", "b"]
    assert made.get_all() == {"a": "1"}
    assert made.get_all(["a"]) == {"a": "1"}
    assert "a" in made
    for change in (lambda: made.put("a", "2"), lambda: made.destroy("a"), lambda: made.invalidate("a")):
        with pytest.raises(UnconnectedException):
            change()
    with pytest.raises(UnconnectedException):
        made.register_interest("b")
    assert made.get("none", "missing") == "missing"  # as keys() says
    assert made.get_all(["a", "none"]) == {"a": "1"}
    assert "none" not in made
    assert time.monotonic() - start < 30
    quotes.put("a", "3")
    proxy.refuse(False)
    client.wait_for_restore()
    made.put("c", "1")
    wait_until_cached(made, {"a": "3", "b": None, "c": "1"})


def test_a_cache_that_does_not_have_all_keys_does_not_answer_for_all(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    feed(direct, name).put_all({"a": "1", "b": "2"})
    client = connect()
    made, _ = region(client.connection, name, keys="a")
    lose(client, proxy)
    assert made.get_all(["a"]) == {"a": "1"}
    alone = (lambda: made.get("none"), lambda: made.get_all(["a", "none"]), lambda: "none" in made)
    for read in (made.keys, made.get_all, lambda: list(made), *alone):
        with pytest.raises(UnconnectedException):
            read()


@pytest.mark.parametrize(("client_id", "durable"), [(None, False), ("durable", True), ("durable", False)])
def test_the_cache_is_that_of_the_engine_after_each_loss(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, client_id: str | None, durable: bool
) -> None:
    quotes = feed(direct, name)
    client = connect(client_id=client_id and f"{client_id} {name}")
    made, told = region(client.connection, name, all_keys=True, durable=durable)
    if client_id:
        client.connection.ready_for_events()
    told.wait_for(1)
    chance = random.Random(7)
    for turn in range(5):
        lose(client, proxy)
        for _ in range(20):
            key = f"k{chance.randrange(10)}"
            (quotes.put if chance.random() < 0.7 else lambda key, _: quotes.destroy(key))(key, str(chance.random()))
        proxy.refuse(False)
        client.wait_for_restore(turn + 1)
        quotes.put("last", str(turn))
        wait_until_cached(made, quotes.get_all())
    assert told.words.count(f"live {name}") == 1
    if durable:  # what happened meanwhile was queued: each event is told once, in order
        versions = [event.version for event in told.events]
        assert versions == sorted(set(versions))
        told.wait_until(lambda: told.words[-1].endswith("last=4"))


@pytest.mark.parametrize("interest", [{"regex": "a.*"}, {"keys": "ab"}], ids=["beside another", "made durable"])
def test_durable_interest_that_is_registered_ahead_of_the_others_keeps_nothing_that_has_ended(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, interest: dict[str, str]
) -> None:
    quotes = feed(direct, name)
    quotes.put("ab", "1")
    client = connect(client_id=f"desk {name}")
    made, told = region(client.connection, name, **interest)
    client.connection.ready_for_events()
    told.wait_for(1)
    with made._state.registering:  # the thread for events waits for it
        lose(client, proxy)
        quotes.destroy("ab")
        proxy.refuse(False)
        client.wait_for_restore()
        made.register_interest("ab", durable=True)
    wait_until_cached(made, {})


def test_a_durable_client_gets_in_while_the_server_has_its_old_connection(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    quotes = feed(direct, name)
    client = connect(client_id=f"desk {name}")
    _, told = region(client.connection, name, all_keys=True, durable=True)
    client.connection.ready_for_events()
    told.wait_for(1)
    assert proxy.leave_half_open()
    quotes.put("a", "1")
    client.wait_for_restore()
    assert told.wait_for(2)[1].endswith("create a=1")
    with pytest.raises(InvalidClientIDException):
        ConnectionFactory(f"{proxy.url}?failover=nofailover").create_connection(client_id=f"desk {name}")


def test_a_client_whose_id_was_taken_while_it_was_away_is_told_and_passes_nothing_stale(
    connect: Connect, tmp_path: Path, name: str
) -> None:
    with ServerProcess(tmp_path / "data", "--option", "idle_timeout_seconds=4") as server, Proxy(server.port) as proxy:
        client = connect(url=proxy.url, client_id="desk")
        made, told = region(client.connection, name, all_keys=True, durable=True)
        client.connection.ready_for_events()
        made.put("a", "1")
        told.wait_for(2)
        lose(client, proxy)
        with ConnectionFactory(server.url).create_connection(client_id="desk") as other:
            others, _ = region(other, name, all_keys=True, durable=True)
            other.ready_for_events()
            others.put("a", "2")
            proxy.refuse(False)
            assert wait_for(lambda: client.count(Failed) == 1)
            assert wait_for(lambda: [type(each) for each in client.told[1:]] == [InvalidClientIDException])
            reads = (lambda: made.get("a"), lambda: "a" in made, made.keys, made.get_all, lambda: made.get_all("a"))
            for call in (*reads, lambda: made.put("a", "3"), client.connection.ready_for_events):
                with pytest.raises(InvalidClientIDException):
                    call()
            assert others.get("a") == "2"
        with ConnectionFactory(server.url).create_connection(client_id="desk"):
            assert client.count(Restored) == 0  # it does not take the id back


def test_an_acknowledgement_that_is_lost_brings_no_event_twice(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    quotes = feed(direct, name)
    client = connect("&event_acknowledge_seconds=1000&event_window_messages=1000", client_id=f"desk {name}")
    _, told = region(client.connection, name, all_keys=True, durable=True)
    client.connection.ready_for_events()
    quotes.put_all({f"k{number}": "x" for number in range(100)})
    told.wait_for(101)
    cut(client, proxy)
    quotes.put("last", "x")
    told.wait_until(lambda: told.words[-1].endswith("create last=x"))
    assert [event.key for event in told.events] == [*(f"k{number}" for number in range(100)), "last"]


def test_a_queue_that_is_dropped_meanwhile_is_told_and_the_cache_read_again(
    tmp_path: Path, name: str, connect: Connect
) -> None:
    with (
        ServerProcess(tmp_path / "data", "--option", "max_client_queue_events=64") as server,
        Proxy(server.port) as proxy,
    ):
        client = connect(url=proxy.url, client_id="desk")
        made, told = region(client.connection, name, all_keys=True, durable=True)
        client.connection.ready_for_events()
        told.wait_for(1)
        lose(client, proxy)
        with ConnectionFactory(server.url).create_connection() as direct:
            quotes = feed(direct, name)
            quotes.put_all({f"k{number}": str(number) for number in range(300)})
            proxy.refuse(False)
            client.wait_for_restore()
            wait_until_cached(made, quotes.get_all())
            quotes.put("k1", "new")
            told.wait_until(lambda: bool(told.events) and told.events[-1].value == "new")
        assert any(isinstance(each, ResourceAllocationException) for each in client.told)


def test_a_second_loss_while_a_cache_is_read_again_leaves_it_as_that_of_the_engine(
    tmp_path: Path, name: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        ServerProcess(tmp_path / "data", "--option", "max_client_queue_events=64") as server,
        Proxy(server.port) as proxy,
    ):
        client = connect(url=proxy.url, client_id="desk")
        made, told = region(client.connection, name, all_keys=True, durable=True)
        client.connection.ready_for_events()
        told.wait_for(1)
        lose(client, proxy)
        refresh, is_lost = made._state.refresh, threading.Event()

        def lost_once(_kept: object) -> None:
            monkeypatch.undo()
            proxy.cut()
            is_lost.set()
            raise ConnectionLostException("cut in the middle of a refresh")

        monkeypatch.setattr(made._state, "refresh", lost_once)
        with ConnectionFactory(server.url).create_connection() as direct:
            quotes = feed(direct, name)
            quotes.put_all({f"k{number}": str(number) for number in range(300)})
            proxy.refuse(False)
            assert is_lost.wait(60)
            assert made._state.refresh == refresh
            wait_until_cached(made, quotes.get_all())


def test_a_query_with_results_follows_another_engine_at_the_same_address(tmp_path: Path, name: str) -> None:
    told: list[tuple[str, object]] = []

    class Follower(QueryListener):
        def on_event(self, event: RegionEvent) -> None:
            told.append((event.key, event.value))

    with ServerProcess(tmp_path / "one") as server:
        options = "reconnect_delay_seconds=0.01&max_reconnect_attempts=none"
        with ConnectionFactory(f"{server.url}?{options}").create_connection() as connection:
            connection.start()
            quotes = feed(connection, name)
            for number in range(20):  # its version is greater than any of the other engine
                quotes.put("k", str(number))
            query = quotes.create_query("all", "key LIKE '%'")
            query.add_listener(Follower())
            assert query.execute_with_initial_results() == {"k": "19"}
            server.kill()
            server.data = tmp_path / "two"
            server.start()
            deadline = time.monotonic() + 30
            puts = 0  # the first ones may come before the query is there again
            while ("k", "new") not in told:
                assert time.monotonic() < deadline
                with suppress(ConnectionLostException, UnconnectedException):
                    if puts < 10:
                        quotes.put("k", "new")
                        puts += 1
                time.sleep(0.1)


class Desk:
    """A durable client in a thread of its own, which crashes and comes back until it is told to end."""

    def __init__(self, url: str, seed: int) -> None:
        self._factory = ConnectionFactory(f"{url}?reconnect_delay_seconds=0.01&event_acknowledge_seconds=0.01")
        self._chance = random.Random(seed)
        self._ends = threading.Event()
        self.versions: list[int] = []
        self.last: dict[str, str] = {}
        self.client_id = f"desk {seed}"
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                with suppress(ConnectionLostException):  # the server is down as it connects
                    self._live(self._chance.uniform(0.05, 0.4))
        except BaseException as error:
            self.failure = error

    def _live(self, seconds: float, until: str | None = None) -> dict[str, str]:
        connection = self._factory.create_connection(client_id=self.client_id, durable_timeout=None)
        with connection:  # one that fails is closed, and keeps its queue: else it is restored, and in use
            made, told = region(connection)
            made.register_interest(all_keys=True, durable=True)
            connection.ready_for_events()
            if until is None:
                self._ends.wait(seconds)
            else:
                told.wait_until(lambda: f"live {made.name}" in told.words and made.get("end") == until)
                told.wait_until(lambda: any(event.value == until for event in told.events) or self._knows(until))
            final = cached(made)
            connection.close(keep_alive=True)
        self._note(told)
        return final

    def _knows(self, until: str) -> bool:
        return self.last.get("end") == until

    def _note(self, told: Told) -> None:
        for event in told.events:
            self.versions.append(event.version)
            self.last[event.key] = event.value

    def ask_to_end(self) -> None:
        self._ends.set()

    def end(self) -> None:
        self.ask_to_end()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def catch_up(self, until: str) -> dict[str, str]:
        return self._live(0, until)


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as server:
        yield server


def test_kills_of_the_server_lose_no_event_and_keep_the_order(killed: ServerProcess) -> None:
    """Two durable clients come and go, a feed puts, and the server is killed again and again."""
    with ConnectionFactory(killed.url).create_connection() as direct:
        feed(direct, "quotes")
    desks = [Desk(killed.url, seed) for seed in (1, 2)]
    try:
        _feed_and_kill(killed, desks)
    finally:
        for desk in desks:
            desk.ask_to_end()


def _feed_and_kill(killed: ServerProcess, desks: list[Desk]) -> None:
    confirmed: list[tuple[int, str, str]] = []
    feeder = ConnectionFactory(f"{killed.url}?reconnect_delay_seconds=0.01").create_connection()
    quotes = feed(feeder, "quotes")
    chance = random.Random(3)
    stop = time.monotonic() + 8
    next_kill = time.monotonic() + 1
    number = 0
    while time.monotonic() < stop:
        key = f"k{chance.randrange(20)}"
        number += 1
        try:
            confirmed.append((quotes.put(key, str(number)), key, str(number)))
        except UnconnectedException:
            time.sleep(0.01)
        if time.monotonic() > next_kill:
            next_kill = time.monotonic() + 1.5
            killed.kill()
            killed.start()
    while True:
        try:
            quotes.put("end", "end")
            break
        except UnconnectedException:
            time.sleep(0.01)
    for desk in desks:
        desk.end()
        final = desk.catch_up("end")
        assert final == quotes.get_all()
        first = desk.versions[0]
        assert set(desk.versions) >= {version for version, _, _ in confirmed if version > first}
        again = [later for earlier, later in zip(desk.versions, desk.versions[1:], strict=False) if later <= earlier]
        assert len(again) <= 60, "only what was not acknowledged as a connection closed comes again"
    feeder.close()


def test_the_cache_is_that_of_another_server_after_a_failover_to_it(tmp_path: Path, connect: Connect) -> None:
    with ServerProcess(tmp_path / "a") as one, ServerProcess(tmp_path / "b") as other:
        for server, value in ((other, "of b"), (one, "of a")):
            with ConnectionFactory(server.url).create_connection() as direct:
                quotes = feed(direct, "quotes")
                quotes.put_all({"k": value, value: value})
            desk = ConnectionFactory(server.url).create_connection(client_id="desk")
            region(desk, all_keys=True, durable=True)
            desk.close(keep_alive=True)  # both have a queue of this client
        client = connect(url=f"failover:({one.url},{other.url})", client_id="desk")
        made, told = region(client.connection, all_keys=True, durable=True)
        client.connection.ready_for_events()
        told.wait_for(1)
        assert cached(made) == {"k": "of a", "of a": "of a"}
        one.kill()
        client.wait_for_restore()
        wait_until_cached(made, {"k": "of b", "of b": "of b"})
        with ConnectionFactory(other.url).create_connection() as direct:
            feed(direct, "quotes").put("k", "new")
        told.wait_until(lambda: "update k=new" in told.words)
        assert made.get("k") == "new"


def test_a_connection_that_only_puts_goes_on_at_another_server(tmp_path: Path, connect: Connect) -> None:
    with ServerProcess(tmp_path / "a") as one, ServerProcess(tmp_path / "b") as other:
        client = connect(url=f"failover:({one.url},{other.url})")
        quotes = feed(client.connection, "quotes")
        quotes.put("k", "of a")
        one.kill()
        client.wait_for_restore()
        quotes.put("k", "of b")
        assert quotes.get_all() == {"k": "of b"}


@pytest.mark.parametrize("client_id", ["desk", None], ids=["durable", "not durable"])
def test_the_cache_and_the_events_are_those_of_an_older_copy_that_replaces_the_store(
    tmp_path: Path, connect: Connect, client_id: str | None
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        client = connect(url=server.url, client_id=client_id)
        made, told = region(client.connection, all_keys=True, durable=client_id is not None)
        if client_id is not None:
            client.connection.ready_for_events()
        put_until_told(made, told, "a", "old")
        server.stop()
        shutil.copytree(server.data, tmp_path / "copy")
        server.start()
        client.wait_for_restore()
        put_until_told(made, told, "a", "lost")
        put_back(server, tmp_path / "copy")
        new = {f"k{number:03}": "new" for number in range(100)}  # so that all positions were given again
        with ConnectionFactory(server.url).create_connection() as direct:
            feed(direct, "quotes").put_all(new)
        client.wait_for_restore(2)
        wait_until_cached(made, {"a": "old", **new})
        put_until_told(made, told, "b", "new")
        if client_id is not None:
            assert {event.key for event in told.events} == {"a", "b", *new}


def test_what_was_only_read_is_not_kept_where_an_older_copy_replaces_the_store(
    tmp_path: Path, connect: Connect
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        client = connect(url=server.url, client_id="desk")
        made, told = region(client.connection, keys="a", durable=True)
        client.connection.ready_for_events()
        told.wait_for(1)
        server.stop()
        shutil.copytree(server.data, tmp_path / "copy")
        server.start()
        client.wait_for_restore()
        with ConnectionFactory(server.url).create_connection() as direct:
            feed(direct, "quotes").put("b", "lost")
        made.register_interest("b", durable=True)
        assert cached(made) == {"b": "lost"}
        put_back(server, tmp_path / "copy")
        client.wait_for_restore(2)
        wait_until_cached(made, {})


def test_interest_that_is_registered_ahead_of_the_others_at_a_later_run_starts_nothing_over(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        client = connect(url=server.url, client_id="desk")
        made, told = region(client.connection, keys="a", durable=True)
        client.connection.ready_for_events()
        told.wait_for(1)
        events, is_registered = client.connection._events, threading.Event()
        check = events._check_positions

        def check_behind() -> bool:
            assert is_registered.wait(60)
            return check()

        monkeypatch.setattr(events, "_check_positions", check_behind)
        server.kill()
        server.start()
        client.wait_for_restore()
        with ConnectionFactory(server.url).create_connection() as direct:
            feed(direct, "quotes").put("b", "1")
        made.register_interest("b", durable=True)
        is_registered.set()
        put_until_told(made, told, "a", "last")
        assert not any(isinstance(each, ResourceAllocationException) for each in client.told)


def put_back(server: ServerProcess, copy: Path) -> None:
    """Replace the store of a server by a copy."""
    server.stop()
    shutil.rmtree(server.data)
    shutil.copytree(copy, server.data)
    server.start()


def put_until_told(made: Region, told: Told, key: str, value: str) -> None:
    """Put until a listener is told: what happens before interest is registered again is read, and not told."""
    deadline = time.monotonic() + 60
    while not told.words[-1:] or not told.words[-1].endswith(f" {key}={value}"):
        assert time.monotonic() < deadline, told.words
        made.put(key, value)
        time.sleep(0.01)
