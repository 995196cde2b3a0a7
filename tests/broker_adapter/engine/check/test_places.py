"""Messages that have fewer places than their counts say: nothing is lost without a report, and all can be put back."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from broker_adapter.destination import topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.check.findings import Lack
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.records.layout import decode_catalog, entry_key, quarantine_key, unpack_entry_key
from broker_adapter.engine.store import maintenance
from broker_adapter.engine.store.maintenance import check_store, quarantined, sound_store
from broker_adapter.errors import InvalidDestinationException, ResourceAllocationException
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.damaging import (
    SETTINGS,
    Tables,
    Txn,
    damage,
    filled,
    flipped,
    overwrite,
    page_of,
    records,
)
from tests.broker_adapter.engine.driving import WAIT, attach, connect, drained, payloads, send

NAMES = ("one", "two")


def shared(path: Path, messages: int = 300) -> None:
    """A store with two subscriptions that have the same messages."""
    with closing(Broker(SETTINGS, str(path))) as broker:
        client = connect(broker, "me")
        for name in NAMES:
            consumer, _ = attach(broker, client, topic("news"), subscription=Subscription(name, True, False))
            broker.call(c.Detach(consumer), WAIT)
        send(broker, client, topic("news"), *(f"news {number}" for number in range(messages)))


def received(path: Path) -> dict[str, list[bytes]]:
    """What each subscription gets."""
    with closing(Broker(SETTINGS, str(path))) as broker:
        client = connect(broker, "me")
        return {
            name: payloads(drained(broker, client, topic("news"), subscription=Subscription(name, True, False)))
            for name in NAMES
        }


def number_of(path: Path, name: str) -> int:
    """The number of a subscription."""
    found = records(path)["catalog"]
    return next(int.from_bytes(key) for key, value in found.items() if decode_catalog(key, value).name == name)


def without_entries(path: Path, name: str, count: int) -> None:
    """Take entries of a subscription away, from the tenth on."""
    number = number_of(path, name)

    def act(txn: Txn, tables: Tables) -> None:
        keys = [key for key, _ in txn.cursor(db=tables["entries"]) if unpack_entry_key(key)[0] == number]
        for key in keys[10 : 10 + count]:
            txn.delete(key, db=tables["entries"])

    damage(path, act)


def page_of_one(path: Path) -> tuple[int, int]:
    """A page that has entries of the first subscription only, and how many."""
    one, two = (number_of(path, name).to_bytes(4) + b"\x05" for name in NAMES)  # the lane of the usual priority
    data = (path / "data.mdb").read_bytes()
    for page in page_of(path, "entries", 2):
        content = data[page * 4096 : (page + 1) * 4096]
        if one in content and two not in content:
            return page, (int.from_bytes(content[12:14], sys.byteorder) - 16) // 2
    raise AssertionError("there is no such page")


def put_back(path: Path, *, name: str, keep: bool = False) -> int:
    """Put everything in quarantine into a subscription."""
    with closing(Broker(SETTINGS, str(path))) as broker:
        messages = [
            (quarantine_key(each.table, each.key), c.NewMessage(int.from_bytes(each.value[4:8]), each.payload or b""))
            for each in quarantined(broker.store)
        ]
        return int(broker.call(c.PutBack(topic("news"), messages, subscription=(name, "me"), keep=keep), WAIT))


def test_a_zeroed_page_of_one_subscriptions_entries_is_a_loss_of_places_and_the_messages_can_be_put_back(
    tmp_path: Path,
) -> None:
    shared(tmp_path)
    page, lost = page_of_one(tmp_path)
    overwrite(tmp_path, page)

    report = check_store(tmp_path, SETTINGS, repair=True)
    assert report.lost == 0
    assert report.summary.lost_places == lost > 20
    assert report.summary.lacking == [Lack("subscription", "one", "news", "me", lost)]
    assert report.summary.problems["place lost"] == lost

    again = check_store(tmp_path, SETTINGS)
    assert again.is_sound
    assert again.summary.lost_places == 0
    assert again.summary.quarantined == lost
    with sound_store(tmp_path, SETTINGS, is_kept=True) as store:
        assert all(each.is_sound for each in quarantined(store))
    assert put_back(tmp_path, name="one") == lost
    assert check_store(tmp_path, SETTINGS).is_sound
    found = received(tmp_path)
    assert len(found["two"]) == 300
    assert sorted(found["one"]) == sorted(found["two"])


def test_a_message_without_any_place_is_lost_as_often_as_its_count_says(tmp_path: Path) -> None:
    shared(tmp_path, 20)
    for name in NAMES:
        without_entries(tmp_path, name, 3)
    without_entries(tmp_path, "two", 2)
    report = check_store(tmp_path, SETTINGS, repair=True)
    assert report.summary.lost_places == 3 * 2 + 2
    assert [(each.name, each.messages) for each in report.summary.lacking] == [("one", 3), ("two", 5)]
    assert report.summary.problems["message without an entry"] == 3
    assert check_store(tmp_path, SETTINGS).is_sound

    assert put_back(tmp_path, name="two", keep=True) == 5
    assert check_store(tmp_path, SETTINGS).summary.quarantined == 5
    assert len(received(tmp_path)["two"]) == 20


def test_a_damaged_entry_of_a_shared_message_leaves_a_copy_of_the_message(tmp_path: Path) -> None:
    shared(tmp_path, 20)
    number = number_of(tmp_path, "one")

    def act(txn: Txn, tables: Tables) -> None:
        key = entry_key(number, 5, 7)
        txn.put(key, flipped(txn.get(key, db=tables["entries"])), db=tables["entries"])

    damage(tmp_path, act)
    report = check_store(tmp_path, SETTINGS, repair=True)
    assert report.summary.lost_places == 1
    with sound_store(tmp_path, SETTINGS, is_kept=True) as store:
        assert sorted(each.table for each in quarantined(store)) == ["entries", "messages"]


def test_a_copy_does_not_give_way_to_the_record_that_is_damaged_later(tmp_path: Path) -> None:
    shared(tmp_path, 20)
    without_entries(tmp_path, "one", 1)
    check_store(tmp_path, SETTINGS, repair=True)

    def act(txn: Txn, tables: Tables) -> None:
        for key, value in list(txn.cursor(db=tables["messages"])):
            txn.put(key, flipped(value), db=tables["messages"])

    damage(tmp_path, act)
    check_store(tmp_path, SETTINGS, repair=True)
    with sound_store(tmp_path, SETTINGS, is_kept=True) as store:
        messages = [each for each in quarantined(store) if each.table == "messages"]
    assert len(messages) == 21
    assert len([each for each in messages if each.is_sound]) == 1


def test_a_copy_that_is_in_quarantine_is_not_made_again(tmp_path: Path) -> None:
    shared(tmp_path, 20)
    without_entries(tmp_path, "one", 1)
    before = records(tmp_path)
    check_store(tmp_path, SETTINGS, repair=True)

    def act(txn: Txn, tables: Tables) -> None:
        for key, value in before["references"].items():  # as where the repair was interrupted before it was done
            txn.put(key, value, db=tables["references"])

    damage(tmp_path, act)
    report = check_store(tmp_path, SETTINGS, repair=True)
    assert report.summary.lost_places == 1
    assert check_store(tmp_path, SETTINGS).summary.quarantined == 1


def test_a_repair_that_is_interrupted_reports_the_lost_places_when_it_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared(tmp_path)
    without_entries(tmp_path, "one", 50)
    done = []

    def interrupted(_store: object, changes: object) -> None:
        with monkeypatch.context() as now:
            now.setattr(maintenance.LmdbStore, "apply", apply)
            for change in changes:  # type: ignore[attr-defined]
                if len(done) == 51:  # all copies, and the counters
                    raise ResourceAllocationException("no room")
                apply(_store, [change])
                done.append(change)

    apply = maintenance.LmdbStore.apply
    monkeypatch.setattr(maintenance.LmdbStore, "apply", interrupted)
    with pytest.raises(Exception, match="repair it again"):
        check_store(tmp_path, SETTINGS, repair=True)
    monkeypatch.setattr(maintenance.LmdbStore, "apply", apply)
    assert {table for table, _, _ in done} == {"quarantine", "queues"}
    assert check_store(tmp_path, SETTINGS, repair=True).summary.lost_places == 50
    assert check_store(tmp_path, SETTINGS).summary.quarantined == 50


def test_a_page_that_is_rebuilt_later_keeps_the_copies(tmp_path: Path) -> None:
    shared(tmp_path)
    without_entries(tmp_path, "one", 50)
    check_store(tmp_path, SETTINGS, repair=True)
    overwrite(tmp_path, page_of(tmp_path, "messages", 1)[0])
    report = check_store(tmp_path, SETTINGS, repair=True)
    assert report.damages
    assert report.set_aside == 0
    assert check_store(tmp_path, SETTINGS).summary.quarantined == 50


def test_what_lacks_for_another_reason_is_no_lost_place(tmp_path: Path) -> None:
    filled(tmp_path)

    def act(txn: Txn, tables: Tables) -> None:
        for key, _ in list(txn.cursor(db=tables["messages"]))[:30]:
            txn.delete(key, db=tables["messages"])

    damage(tmp_path, act)
    report = check_store(tmp_path, SETTINGS, repair=True)
    assert report.summary.problems["entry without a message"] > 30
    assert report.summary.lost_places == 0
    assert report.summary.lacking == []


def test_a_subscription_that_does_not_exist_gets_nothing_back(tmp_path: Path) -> None:
    shared(tmp_path, 20)
    without_entries(tmp_path, "one", 2)
    check_store(tmp_path, SETTINGS, repair=True)
    with pytest.raises(InvalidDestinationException, match="there is no subscription 'three'"):
        put_back(tmp_path, name="three")
    assert put_back(tmp_path, name="one") == 2
