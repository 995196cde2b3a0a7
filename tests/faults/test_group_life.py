"""The life of a group of three servers: takeovers, nodes that come and go, and a coordinator that does."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

import pytest

from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    RedundancyLost,
    RedundancyRestored,
    RegionEvent,
    RegionListener,
    ResourceAllocationException,
    Restored,
)
from tests import forked_command
from tests.broker_adapter.engine.damaging import Tables, Txn, damage, flipped
from tests.faults.group_lanes import Insisting
from tests.faults.group_servers import NAMES, GroupServers
from tests.faults.group_soak import OPTIONS
from tests.faults.scenarios import WAIT, wait_for
from tests.faults.test_durable_clients import Desks, Putter, keys
from tests.sdk.region_connections import cached, region

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupServers]:
    with GroupServers(tmp_path_factory.mktemp("group"), "--option", "blocked_send_timeout_seconds=0.5") as made:
        yield made


@pytest.fixture
def group(shared: GroupServers) -> Iterator[GroupServers]:
    """All nodes are in sync, before a test and after it."""
    shared.wait_for_sync()
    yield shared
    shared.wait_for_sync()


@pytest.fixture
def name() -> str:
    """Of a queue or region that no other test uses."""
    return f"name {uuid4()}"


@pytest.fixture
def desks() -> Iterator[Desks]:
    made = Desks()
    yield made
    made.close()


def connected(group: GroupServers) -> Connection:
    connection = ConnectionFactory(group.url + OPTIONS).create_connection()
    connection.start()
    return connection


def send(group: GroupServers, name: str, *bodies: str) -> None:
    with connected(group) as connection, connection.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        for body in bodies:
            producer.send(body)


def received(group: GroupServers, name: str, count: int) -> list[str]:
    """So many messages, which stay where they are."""
    with connected(group) as connection, connection.create_session(AcknowledgeMode.CLIENT) as session:
        consumer = session.create_consumer(session.create_queue(name))
        found = [consumer.receive(WAIT) for _ in range(count)]
        assert consumer.receive(0.1) is None
    return [each.body for each in found if each is not None]


def holdfast(*arguments: str) -> Any:
    """The answer of a command, in JSON."""
    done = forked_command.run([*arguments, "--json"], None, dict(os.environ), WAIT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_durable_clients_get_each_event_once_over_takeovers_and_all_nodes_have_the_values(
    group: GroupServers, name: str, desks: Desks
) -> None:
    desk, slow = desks(group.url, name), desks(group.url, name, window=3)
    stop = threading.Event()
    with contextlib.closing(Putter(group.url, name)) as put:

        def work() -> None:
            while not stop.is_set():
                put(1)

        worker = threading.Thread(target=work)
        worker.start()
        group.start(group.kill_primary())
        group.wait_for_sync()
        before = group.record
        holdfast("group", "hand-over", group.others[0], "--url", group.url)
        group.wait_for_takeover(before)
        enough = put.put + 20
        assert wait_for(lambda: put.put > enough)
        stop.set()
        worker.join(WAIT)
        for each in (desk, slow):
            assert each.wait_for(put.put) == keys(put.put)
        desks.close()
        group.wait_for_sync()
        killed = group.kill_primary()  # of another node, by which the values are read
        with connected(group) as connection, connection.create_session() as session:
            assert sorted(session.create_region(name).get_all(keys(put.put))) == sorted(keys(put.put))
        group.start(killed)


def test_events_wait_for_a_client_that_is_away_and_one_marker_follows_them_over_takeovers(
    group: GroupServers, name: str
) -> None:
    is_told, goes_on, events = threading.Event(), threading.Event(), list[object]()

    class Slow(RegionListener):
        def after_update(self, event: RegionEvent) -> None:
            is_told.set()
            assert goes_on.wait(WAIT)

    def put(**values: str) -> None:
        with connected(group) as connection, connection.create_session() as session:
            session.create_region(name, conflates=True).put_all(values)

    factory = ConnectionFactory(group.url + OPTIONS)
    put(a="1")
    with factory.create_connection(client_id=name) as desk:
        region(desk, name, all_keys=True, durable=True)
        desk.ready_for_events()
        desk.close(keep_alive=True)
    put(a="left out for the next one")
    killed = group.kill_primary()
    put(a="2", b="1")
    group.start(killed)
    group.wait_for_sync()
    with factory.create_connection(client_id=name) as desk:
        desk.create_session().create_region(name).add_listener(Slow())
        made, told = region(desk, name, all_keys=True, durable=True)
        assert desk.pending_event_count() == 2
        desk.event_listener = events.append
        desk.ready_for_events()
        assert is_told.wait(WAIT)
        group.hand_over()
        assert wait_for(lambda: any(isinstance(each, Restored) for each in events))
        goes_on.set()
        assert told.wait_for(3) == ["replayed update a=2", "replayed create b=1", f"live {name}"]
        put(a="3")
        assert told.wait_for(4)[3:] == ["update a=3"]
        assert cached(made) == {"a": "3", "b": "1"}


def test_a_group_is_shown_and_a_node_that_has_left_it_joins_again(group: GroupServers) -> None:
    def shown() -> dict[str, Any]:
        found: dict[str, Any] = holdfast("group", "status", "--url", group.url)["group"]
        return found

    assert (shown()["primary"], shown()["in_sync"]) == (group.primary, list(NAMES))
    left = group.others[0]
    assert group.stop(left) == 0
    holdfast("group", "leave", left, "--url", group.url)
    assert wait_for(lambda: left not in shown()["nodes"])
    group.start(left)
    group.wait_for_sync()
    assert sorted(shown()["nodes"]) == list(NAMES)


def test_a_node_is_replaced_by_one_with_an_empty_directory(group: GroupServers, name: str) -> None:
    send(group, name, "one")
    replaced, stays = group.others
    group.kill(replaced)
    shutil.rmtree(group.path / replaced)
    group.start(replaced)
    assert wait_for((group.path / replaced / "data.mdb").exists)
    group.wait_for_sync()
    send(group, name, "two")
    before = group.record
    group.kill(before.primary, stays)
    group.wait_for_takeover(before)
    assert group.primary == replaced
    assert received(group, name, 2) == ["one", "two"]
    group.start(before.primary)
    group.start(stays)


def test_a_group_of_which_all_nodes_were_killed_goes_on_with_one_of_them(group: GroupServers, name: str) -> None:
    send(group, name, "one")
    last = group.others[0]
    group.kill(*NAMES)
    group.start(last)
    assert received(group, name, 1) == ["one"]
    send(group, name, "two")
    for each in NAMES:
        if each != last:
            group.start(each)
    group.wait_for_sync()
    assert received(group, name, 2) == ["one", "two"]


def test_nodes_that_were_stopped_one_after_the_other_go_on_with_the_last_one(group: GroupServers, name: str) -> None:
    send(group, name, "one")
    first = group.primary
    assert group.stop(first) == 0
    send(group, name, "two")
    second = group.primary
    assert second != first
    assert group.stop(second) == 0
    send(group, name, "three")
    last = group.primary
    assert group.stop(last) == 0
    group.start(first)
    with pytest.raises(AssertionError):  # it does not have all
        group.wait_for_takeover(group.record, 1.5)
    group.start(last)
    group.start(second)
    assert received(group, name, 3) == ["one", "two", "three"]


def test_a_primary_goes_on_without_the_coordinator_and_a_takeover_waits_for_it(group: GroupServers, name: str) -> None:
    before = group.record
    with group.without_coordinator(*NAMES):
        for number in range(3):
            send(group, name, str(number))
            threading.Event().wait(0.6)  # longer than the lease in all
        group.kill(before.primary)
        with pytest.raises(AssertionError):
            group.wait_for_takeover(before, 1.5)
    group.wait_for_takeover(before)
    assert received(group, name, 3) == ["0", "1", "2"]
    group.start(before.primary)


def test_sends_are_refused_below_min_in_sync_and_acknowledgements_are_not(tmp_path: Path) -> None:
    with GroupServers(tmp_path, "--option", "blocked_send_timeout_seconds=0.5", min_in_sync=2) as group:
        send(group, "q", "one", "two")
        others = group.others
        group.kill(*others)
        with connected(group) as connection, connection.create_session(AcknowledgeMode.CLIENT) as session:
            assert wait_for(lambda: len(group.record.in_sync) == 1)
            producer = session.create_producer(session.create_queue("q"))
            with pytest.raises(ResourceAllocationException, match="1 of 2 nodes are in sync"):
                producer.send("refused")
            message = session.create_consumer(session.create_queue("q")).receive(WAIT)
            assert message is not None
            message.acknowledge()
            group.start(others[0])
            assert wait_for(lambda: len(group.record.in_sync) == 2)
            producer.send("three")
        assert received(group, "q", 2) == ["two", "three"]


def test_a_node_whose_disk_is_full_is_left_out_until_it_has_room(group: GroupServers, name: str) -> None:
    before, full = group.record, group.others[0]
    bodies: list[str] = []
    with group.without_room(full), connected(group) as connection, connection.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        while full in group.record.in_sync:
            bodies.append(f"{len(bodies)} {'x' * 100_000}")
            producer.send(bodies[-1])
    group.wait_for_sync()
    assert received(group, name, len(bodies)) == bodies
    assert "this node is not up to date, and goes on trying" in group.log(full)
    assert (group.record.term, group.record.primary) == (before.term, before.primary)


def test_a_primary_whose_disk_is_full_stays_primary_until_it_is_stopped_and_nothing_is_lost(
    group: GroupServers, name: str
) -> None:
    before, full = group.record, group.primary
    bodies = [f"{number} {'x' * 100_000}" for number in range(20)]
    with connected(group) as connection, connection.create_session() as session:
        producer = Insisting(session.create_producer(session.create_queue(name)))
        worker = threading.Thread(target=lambda: [producer.send(each) for each in bodies])
        with group.without_room(full):
            worker.start()
            worker.join(1.5)  # longer than the lease
            assert worker.is_alive()
            assert (group.record.term, group.record.in_sync) == (before.term, before.in_sync)
            assert group.stop(full) == 0
        worker.join(WAIT)
        assert not worker.is_alive()
    group.start(full)
    assert received(group, name, len(bodies)) == bodies
    assert group.record.term == before.term + 1


def test_a_client_is_told_when_too_few_nodes_have_what_is_confirmed_and_when_they_have_it_again(
    group: GroupServers,
) -> None:
    events: SimpleQueue[object] = SimpleQueue()
    url = f"{group.url}{OPTIONS}&redundancy=2"
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        connection.event_listener = events.put
        producer = session.create_producer(session.create_queue("redundant"))
        lost = group.others[0]
        group.kill(lost)
        producer.send("waits until the node is left out")
        assert events.get(timeout=WAIT) == RedundancyLost(2, 1)
        group.start(lost)
        assert events.get(timeout=WAIT) == RedundancyRestored(2, 2)


def test_a_takeover_delivers_what_is_delayed_once_and_restores_a_temporary_queue(
    group: GroupServers, name: str
) -> None:
    with connected(group) as connection, connection.create_session() as session:
        answers = session.create_temporary_queue()
        waiting = session.create_consumer(answers)
        delayed = session.create_consumer(session.create_queue(name))
        producer = session.create_producer(session.create_queue(name))
        producer.delivery_delay = 3
        producer.send("later")
        killed = group.kill_primary()
        session.create_producer(answers).send("answer")
        for consumer, body in ((waiting, "answer"), (delayed, "later")):
            message = consumer.receive(WAIT)
            assert message is not None
            assert message.body == body
            assert consumer.receive(0.2) is None
        group.start(killed)


def test_a_primary_whose_disk_has_damaged_records_gives_way_and_no_message_is_lost(tmp_path: Path) -> None:
    bodies = [str(number) for number in range(40)]

    def flip(txn: Txn, tables: Tables) -> None:
        with txn.cursor(db=tables["messages"]) as cursor:
            found = list(cursor)
        for key, value in found[::2]:
            txn.put(key, flipped(value), db=tables["messages"])

    with GroupServers(tmp_path) as group:
        send(group, "q", *bodies)
        group.kill("n1")
        group.wait_for_sync("n2", "n3")
        damage(group.path / "n1", flip)
        group.start("n1")
        group.wait_for_sync()
        holdfast("group", "hand-over", "n1", "--url", group.url)
        with connected(group) as connection, connection.create_session() as session:  # which are told of no failure
            producer = session.create_producer(session.create_queue("other"))
            reading = threading.Thread(target=received, args=(group, "q", len(bodies)))
            reading.start()
            sent = 0
            while reading.is_alive() or sent < 10:
                producer.send(str(sent))
                sent += 1
            reading.join(WAIT)
        assert received(group, "q", len(bodies)) == bodies
        assert received(group, "other", sent) == [str(number) for number in range(sent)]
        assert wait_for(lambda: not group.servers["n1"].is_running)
        assert "another node of the group takes over" in group.log("n1")
        group.kill("n1")
        group.start("n1")
        group.wait_for_sync()
        assert group.differences() == []
