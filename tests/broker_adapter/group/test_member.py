"""A node at work: it leads, follows, hands over, and is deposed."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import pytest

from broker_adapter.engine.operations.copy_states import NodeThatAsks
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    OperationTimedOutException,
    Redirect,
    ResourceAllocationException,
    StoreCorruptException,
    StoreException,
)
from broker_adapter.group import member
from broker_adapter.group.rules import Action, RefuseSends
from tests.broker_adapter.engine.asking import damage_body
from tests.broker_adapter.engine.damaging import damage
from tests.broker_adapter.engine.driving import WAIT, eventually
from tests.broker_adapter.group.nodes import LEASE, Nodes, asks_to_be_admitted, nodes


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setattr(member, "_END_SECONDS", 1.0)
    with nodes(tmp_path) as made:
        yield made


def test_a_node_that_has_taken_an_image_may_become_primary_though_nothing_was_written_since(group: Nodes) -> None:
    first, _, _ = group.start_three()
    first.cut_off()
    eventually(lambda: group.record.primary in ("n2", "n3"))


def test_a_send_is_confirmed_when_the_others_have_it_and_survives_the_primary(group: Nodes) -> None:
    first, _, _ = group.start_three()
    first.send("one", "two")
    first.cut_off()
    eventually(lambda: any(group.here(each).leads for each in ("n2", "n3")))
    assert group.primary().look() == [b"one", b"two"]


def test_a_primary_that_was_deposed_starts_its_process_anew_and_confirms_nothing_before(group: Nodes) -> None:
    first, _, _ = group.start_three()
    first.cut_off()
    with pytest.raises(OperationTimedOutException):
        first.send("never confirmed", timeout=0.5)
    eventually(lambda: group.record.primary != "n1")
    assert not first.restarted.is_set()
    first.cut_off(False)
    assert first.restarted.wait(WAIT)
    with pytest.raises(OperationTimedOutException):
        first.send("nor this", timeout=0.5)
    group.stop("n1")
    group.start("n1")
    group.wait_for_sync("n1", "n2", "n3")
    assert group.primary().look() == []


def test_a_node_that_stops_hands_over_and_the_others_have_all(group: Nodes) -> None:
    first, second, third = group.start_three()
    first.send(*range(10))
    began = time.monotonic()
    group.stop("n1")
    assert group.record.leaves or group.record.primary != "n1"
    eventually(lambda: second.leads or third.leads)
    assert time.monotonic() - began < LEASE + 1, "it waited for the end of the lease"
    assert len(group.primary().look()) == 10


def test_the_last_node_in_sync_stops_at_once_and_is_primary_again_when_it_starts(group: Nodes) -> None:
    first = group.start("n1", new=True)
    eventually(lambda: first.leads)
    first.send("one")
    began = time.monotonic()
    group.stop("n1")
    assert time.monotonic() - began < 1
    first = group.start("n1")
    eventually(lambda: first.leads)
    assert first.look() == [b"one"]


def test_a_primary_hands_over_to_the_node_that_is_named_and_follows_it_after_a_start(group: Nodes) -> None:
    first, _, third = group.start_three()
    first.send("one")
    assert first.engine.broker is not None
    first.engine.broker.request("hand_over", {"node": "n3"}, WAIT)
    eventually(lambda: third.leads)
    assert third.look() == [b"one"]
    assert first.restarted.wait(WAIT)


def test_a_node_that_left_is_waited_for_no_more_and_is_not_in_the_record(group: Nodes) -> None:
    first, _, _ = group.start_three()
    group.stop("n3")
    assert first.engine.broker is not None
    first.engine.broker.request("leave_group", {"node": "n3"}, WAIT)
    eventually(lambda: set(group.record.nodes) == {"n1", "n2"})
    first.send("one")


def test_a_hand_over_waits_neither_for_who_starts_anew_nor_for_a_node_to_read_the_record(group: Nodes) -> None:
    first, second, _ = group.start_three(timeout=WAIT, lease=40.0)  # which a node reads each 10 s
    first.member.hand_over("n2")
    assert first.restarted.wait(WAIT)
    first.is_away = True
    eventually(lambda: second.leads)
    second.send("one", timeout=8.0)
    assert second.look() == [b"one"]


def test_a_node_that_asks_in_an_earlier_term_is_refused_so_that_it_reads_the_record(group: Nodes) -> None:
    first = group.start("n1", new=True)
    eventually(lambda: first.leads)
    with pytest.raises(IllegalStateException, match="the group is in term 1"):
        first.member.asks(NodeThatAsks("n2", "n2:5672", 0), 5)


def test_a_second_node_of_a_name_is_refused_while_the_first_one_follows(group: Nodes) -> None:
    first, _, _ = group.start_three()
    second = NodeThatAsks("n2", "elsewhere:5672", group.record.term)
    with pytest.raises(IllegalStateException, match="two nodes have the name 'n2'"):
        first.member.asks(second, 1)
    group.stop("n2")
    first.member.asks(second, None)
    eventually(lambda: group.record.nodes["n2"].address == "elsewhere:5672")


def test_a_node_with_an_empty_directory_takes_the_place_of_one_of_the_same_name(group: Nodes) -> None:
    first, _, _ = group.start_three()
    first.send("one")
    group.stop("n2")
    shutil.rmtree(group.path / "n2")
    second = group.start("n2")
    eventually((group.path / "n2" / "data.mdb").exists)
    group.wait_for_sync("n1", "n2", "n3")
    first.engine.broker.request("hand_over", {"node": "n2"}, WAIT)
    eventually(lambda: second.leads)
    assert second.look() == [b"one"]


def test_sends_are_refused_while_too_few_nodes_are_in_sync_and_go_on_after(group: Nodes) -> None:
    first = group.start("n1", new=True, min_in_sync=2)
    eventually(lambda: first.leads)
    with pytest.raises(ResourceAllocationException, match="1 of 2 nodes are in sync"):
        first.send("refused")
    group.start("n2")
    group.wait_for_sync("n1", "n2")
    eventually(lambda: first.engine.broker.store.refuses_sends == "")
    first.send("one")
    assert first.look() == [b"one"]


def test_clients_are_told_where_all_nodes_are(group: Nodes) -> None:
    nodes = group.start_three()
    everywhere = ["n1:5672", "n2:5672", "n3:5672"]
    for each in nodes:
        eventually(lambda each=each: each.announced == everywhere)


def test_a_client_that_a_node_holds_is_told_which_one_leads(group: Nodes) -> None:
    _, second, _ = group.start_three()
    with pytest.raises(ConnectionLostException, match="the primary of the group is n1") as caught:
        asks_to_be_admitted(second.engine).value()
    assert caught.value.redirect == Redirect("n1", 5672)


def test_a_client_that_was_held_goes_on_when_this_node_becomes_primary(group: Nodes) -> None:
    first, second, third = group.start_three()
    first.cut_off()
    eventually(lambda: second.is_alone and third.is_alone)
    admitted = [asks_to_be_admitted(each.engine) for each in (second, third)]
    eventually(lambda: second.leads or third.leads)
    leading, following = (0, 1) if second.leads else (1, 0)
    assert isinstance(admitted[leading].value(), int)
    with pytest.raises(ConnectionLostException, match=f"is {('n2', 'n3')[leading]}"):
        admitted[following].value()


def test_a_node_stays_primary_whose_engine_takes_longer_to_start_than_the_lease_lasts(group: Nodes) -> None:
    first, second, _ = group.start_three()
    second.takes_seconds = 3 * LEASE
    first.member.hand_over("n2")
    eventually(lambda: second.leads)
    assert group.record.term == 2


def test_what_the_rules_say_in_several_threads_is_carried_out_in_their_order(group: Nodes) -> None:
    class Rules:
        """Refuse sends for another reason each time."""

        record = reign = None
        reason = ""

        def committed(self, _lsn: int, _now: float) -> list[Action]:
            self.reason = str(int(self.reason or 0) + 1)
            return [RefuseSends(self.reason)]

        def tick(self, _now: float) -> list[Action]:
            return []

    first = group.start("n1", new=True)
    eventually(lambda: first.leads)
    member, store = first.member, first.engine.broker.store
    rules, member._rules = member._rules, Rules()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(100):
                list(pool.map(lambda _: member._act(member._rules.committed, 1), range(100)))
                eventually(lambda: store.refuses_sends == member._rules.reason and member._wanted.empty())
    finally:
        sys.setswitchinterval(before)
        member._rules = rules


def test_a_node_that_stops_in_good_order_is_not_waited_for(group: Nodes) -> None:
    first, _, _ = group.start_three(timeout=20.0)
    group.stop("n2")
    began = time.monotonic()
    first.send("one")
    assert time.monotonic() - began < 5
    group.wait_for_sync("n1", "n3")


def test_nodes_that_were_away_are_admitted_again_while_the_coordinator_is_away(group: Nodes) -> None:
    first, second, third = group.start_three()
    for each in (first, second, third):
        each.coordinator.is_away = True
    time.sleep(LEASE)
    first.send("one")
    second.is_away = third.is_away = True
    with pytest.raises(OperationTimedOutException):
        first.send("two", timeout=2 * LEASE)
    second.is_away = third.is_away = False
    first.send("three")
    assert first.look() == [b"one", b"two", b"three"]


def test_a_primary_with_a_damaged_message_gives_way_and_takes_an_image_when_it_is_started_again(group: Nodes) -> None:
    first, second, third = group.start_three()
    first.send("one", "two", "three")
    broker = first.engine.broker
    assert broker is not None
    tail, broker.store._writes.tail = broker.store._writes.tail, None  # the disk's own doing, which no commit names
    damage_body(broker, b"two")
    broker.store._writes.tail = tail
    with pytest.raises(StoreException, match="another node of the group takes over"):
        first.look()
    group.stop("n1")
    eventually(lambda: second.leads or third.leads)
    assert group.primary().look() == [b"one", b"two", b"three"]
    group.start("n1")
    group.wait_for_sync("n1", "n2", "n3")
    assert len(list((group.path / "n1").glob("data.mdb.damaged-*"))) == 1


def test_a_primary_gives_way_where_the_others_cannot_follow_since_its_pages_are_damaged(
    group: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise lmdb.CorruptedError("a page")

    first, second, third = group.start_three()
    first.send("one")
    with monkeypatch.context() as patch:
        patch.setattr("broker_adapter.engine.operations.copies.changes_behind", fail)
        assert first.told.get(timeout=WAIT) is None
        assert "another node of the group takes over" in str(first.failed)
        group.stop("n1")
    eventually(lambda: second.leads or third.leads)
    assert group.primary().look() == [b"one"]
    group.start("n1")
    group.wait_for_sync("n1", "n2", "n3")
    assert len(list((group.path / "n1").glob("data.mdb.damaged-*"))) == 1


def test_a_primary_that_is_stopped_keeps_its_store(group: Nodes) -> None:
    first, second, third = group.start_three()
    first.send("one")
    group.stop("n1")
    eventually(lambda: second.leads or third.leads)
    assert (group.path / "n1" / "data.mdb").exists()
    assert not list((group.path / "n1").glob("data.mdb.damaged-*"))


def test_what_is_damaged_at_all_nodes_is_passed_on_once_by_each_and_then_goes_into_quarantine(group: Nodes) -> None:
    first, _, _ = group.start_three()
    first.send("one", "two", "three")
    assert first.engine.broker is not None
    damage_body(first.engine.broker, b"two")  # with a commit that the others follow
    gave_way = []
    while True:
        primary = group.primary()
        try:
            found = primary.look()
            break
        except StoreException:
            gave_way.append(primary.name)
        group.stop(primary.name)
        eventually(lambda: group.record.primary != gave_way[-1] and group.primary().leads)
        group.start(primary.name)
        group.wait_for_sync("n1", "n2", "n3")
    assert found == [b"one", b"three"]
    assert len(gave_way) == len(set(gave_way)) >= 2


def test_a_node_whose_store_is_damaged_where_its_engine_starts_gives_way(group: Nodes) -> None:
    first, second, third = group.start_three()
    first.send("one")
    group.stop("n2")
    group.wait_for_sync("n1", "n3")
    damage(group.path / "n2", lambda txn, tables: txn.put(b"\xff" * 9, b"no message", db=tables["messages"]))
    second = group.start("n2")
    group.wait_for_sync("n1", "n2", "n3")
    assert first.engine.broker is not None
    first.engine.broker.request("hand_over", {"node": "n2"}, WAIT)
    assert second.told.get(timeout=WAIT) is None
    assert "another node of the group takes over" in str(second.failed)
    group.stop("n1")
    group.stop("n2")
    eventually(lambda: third.leads)
    assert third.look() == [b"one"]
    group.start("n2")
    group.wait_for_sync("n2", "n3")
    assert len(list((group.path / "n2").glob("data.mdb.damaged-*"))) == 1


def test_a_node_that_fails_otherwise_keeps_its_store(group: Nodes) -> None:
    first, second, third = group.start_three()
    assert first.engine.broker is not None
    first.engine.broker._fail(RuntimeError("a fault of the software"), (), None)
    group.stop("n1")
    eventually(lambda: second.leads or third.leads)
    group.start("n1")
    group.wait_for_sync("n1", "n2", "n3")
    assert not list((group.path / "n1").glob("data.mdb.damaged-*"))


@pytest.mark.parametrize("said", [lmdb.BadTxnError, lmdb.CorruptedError, lmdb.MapResizedError])
def test_a_node_with_damaged_pages_takes_an_image_when_it_is_started_again(
    group: Nodes, said: Callable[[str], lmdb.Error]
) -> None:
    _, second, _ = group.start_three()
    try:
        raise StoreException("the store failed") from said("a page")
    except StoreException as error:
        second.stopped(error)
    group.stop("n2")
    group.start("n2")
    group.wait_for_sync("n1", "n2", "n3")
    assert len(list((group.path / "n2").glob("data.mdb.damaged-*"))) == 1


def test_a_node_whose_store_cannot_be_opened_takes_an_image_once_another_one_is_primary(group: Nodes) -> None:
    group.start_three()
    for each in ("n2", "n3", "n1"):
        group.stop(each)
    shutil.copy(group.path / "n1" / "data.mdb", group.path / "sound")
    for each in ("n1", "n2"):
        (group.path / each / "data.mdb").write_bytes(b"no store" * 10_000)
    with pytest.raises(StoreCorruptException, match="is not an LMDB file"):
        group.start("n1")  # the last one in sync
    shutil.copy(group.path / "sound", group.path / "n1" / "data.mdb")
    group.start("n1")
    group.start("n2")
    group.wait_for_sync("n1", "n2")
    assert len(list((group.path / "n2").glob("data.mdb.damaged-*"))) == 1


def test_a_node_that_was_killed_while_it_put_a_damaged_store_aside_takes_an_image(group: Nodes) -> None:
    group.start_three()
    group.stop("n2")
    group.wait_for_sync("n1", "n3")
    (group.path / "n2" / "data.mdb").rename(group.path / "n2" / "data.mdb.damaged-1")
    (group.path / "n2" / "distrusted").touch()
    group.start("n2")
    group.wait_for_sync("n1", "n2", "n3")
    assert not (group.path / "n2" / "distrusted").exists()


def test_all_nodes_of_a_group_that_is_dissolved_end(group: Nodes) -> None:
    nodes_here = group.start_three()
    while group.coordinator.swap(group.coordinator.read().token, b"") is None:
        pass
    for each in nodes_here:
        assert each.told.get(timeout=WAIT) is None
        assert str(each.failed) == "the group is dissolved"
        group.stop(each.name)
