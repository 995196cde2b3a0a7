"""Damaged stores: what a check finds, and what a repair leaves.  Nothing that can be read is lost."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import lmdb
import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue, topic
from broker_adapter.engine import commands as c
from broker_adapter.engine import maintenance
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.lmdb_store import LmdbStore
from broker_adapter.engine.maintenance import (
    Quarantined,
    Report,
    check_store,
    compact_store,
    drop_quarantined,
    quarantined,
    sound_store,
    tables_of,
)
from broker_adapter.engine.pages import FREE_PAGES, File, metas
from broker_adapter.engine.records import (
    FIRST_VOLATILE_QUEUE,
    FLAG_SHARED,
    NEXT_MESSAGE,
    NEXT_QUEUE,
    NEXT_RUN,
    RUN_PREFIX,
    TABLES,
    UNIQUE,
    VERSION,
    VERSION_CHECK,
    RunRecord,
    decode_catalog,
    decode_entry,
    decode_meta,
    encode_entry,
    encode_meta,
    encode_reference,
    entry_key,
    message_key,
    split_quarantine_key,
)
from broker_adapter.engine.run_numbers import number_of
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, Identity, pack
from broker_adapter.errors import StoreCorruptException, StoreException, StoreLockedException
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.driving import (
    WAIT,
    attach,
    come_to_rest,
    connect,
    depth,
    drained,
    message,
    payloads,
    send,
    settle,
    subscribe,
)
from tests.broker_adapter.engine.storing import note

SETTINGS = EngineSettings(max_store_bytes=256 * 1024 * 1024, min_free_disk_bytes=0)
FAR_MS = 4_102_444_800_000


def filled(path: Path, messages: int = 300) -> None:
    """A store with something in every table."""
    broker = Broker(SETTINGS, str(path))
    client = connect(broker, "me")
    subscribe(broker, client, "news", "one", "two")
    send(broker, client, topic("news"), *(f"news {number}" for number in range(20)))
    bodies = [message(f"order {number}" + "x" * 200, identity=Identity("p", 1, number)) for number in range(messages)]
    broker.call(c.Enqueue(client, queue("orders"), bodies), WAIT)
    send(broker, client, "large", *("y" * 20_000 for _ in range(5)))
    send(broker, client, "later", "later", deliver_at_ms=FAR_MS)
    send(broker, client, "mortal", "mortal", expires_at_ms=FAR_MS)
    consumer, inbox = attach(broker, client, "orders", credit=2)
    settle(broker, consumer, inbox.wait_for(2), Outcome.REJECTED)
    broker.call(c.Commit(client, c.CommitId("s", 7), [], []), WAIT)
    broker.call(c.Publish("g", 3, []), WAIT)
    assert [each.text for each in broker.check() if not each.harmless] == []
    broker.close()


def everything(path: Path) -> dict[str, int]:
    broker = Broker(SETTINGS, str(path))
    client = connect(broker, "me")
    found = {}
    for name in ("orders", "large", "mortal", "DLQ"):
        found[name] = len(drained(broker, client, name))
    for name in ("one", "two"):
        subscription = Subscription(name, durable=True, shared=False)
        found[name] = len(drained(broker, client, topic("news"), subscription=subscription))
    found["later"] = depth(broker, "later")
    assert [each.text for each in broker.check() if not each.harmless] == []
    broker.close()
    return found


ALL = {"orders": 298, "large": 5, "mortal": 1, "DLQ": 2, "one": 20, "two": 20, "later": 1}

Txn = Any
Tables = dict[str, Any]


def damage(path: Path, act: Callable[[Txn, Tables], None]) -> None:
    """Change records behind the engine's back."""
    env = lmdb.open(str(path), max_dbs=len(TABLES), map_size=SETTINGS.max_store_bytes)
    tables = {table: env.open_db(table.encode()) for table in TABLES}
    with env.begin(write=True) as txn:
        act(txn, tables)
    env.close()


def first(txn: Txn, tables: Tables, table: str) -> tuple[bytes, bytes]:
    with txn.cursor(db=tables[table]) as cursor:
        assert cursor.first()
        return cursor.item()


def flipped(value: bytes, index: int = -1) -> bytes:
    changed = bytearray(value)
    changed[index] ^= 0x40
    return bytes(changed)


def check(path: Path, *, repair: bool = False) -> Report:
    return check_store(path, SETTINGS, repair=repair)


def test_a_sound_store_is_sound(tmp_path: Path) -> None:
    filled(tmp_path)
    report = check(tmp_path)
    assert report.is_sound
    assert not report.damages
    assert (report.summary.queues, report.summary.shared, report.summary.delayed) == (7, 20, 1)
    assert report.summary.entries == sum(ALL.values())
    assert everything(tmp_path) == ALL


def test_a_store_that_an_engine_has_open_is_not_touched(tmp_path: Path) -> None:
    broker = Broker(SETTINGS, str(tmp_path))
    with pytest.raises(StoreLockedException, match="in use by process"):
        check(tmp_path)
    broker.close()


def test_what_is_no_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreException, match="there is no store"):
        check(tmp_path)
    (tmp_path / "data.mdb").write_bytes(b"x" * 20_000)
    with pytest.raises(StoreCorruptException, match="restore it from a copy"):
        check(tmp_path)


# Records.


def _a_message_gone(txn: Txn, tables: Tables) -> None:
    entry = decode_entry(*first(txn, tables, "entries"))
    assert txn.delete(message_key(entry.number), db=tables["messages"])


def _an_entry_gone(txn: Txn, tables: Tables) -> None:
    assert txn.delete(first(txn, tables, "entries")[0], db=tables["entries"])


def _damaged(table: str) -> Callable[[Txn, Tables], None]:
    def act(txn: Txn, tables: Tables) -> None:
        key, value = first(txn, tables, table)
        txn.put(key, flipped(value), db=tables[table])

    return act


def _misplaced_message(txn: Txn, tables: Tables) -> None:
    with txn.cursor(db=tables["messages"]) as cursor:
        (key, value), (_, other) = list(cursor)[:2]
    assert value != other
    txn.put(key, other, db=tables["messages"])


def _misplaced_entry(txn: Txn, tables: Tables) -> None:
    with txn.cursor(db=tables["entries"]) as cursor:
        (key, _), (_, other) = list(cursor)[:2]
    txn.put(key, other, db=tables["entries"])


def _no_counters(txn: Txn, tables: Tables) -> None:
    txn.drop(tables["queues"], delete=False)


def _no_schedule(txn: Txn, tables: Tables) -> None:
    txn.drop(tables["schedule"], delete=False)


def _no_annotations(txn: Txn, tables: Tables) -> None:
    txn.drop(tables["annotations"], delete=False)


def _no_references(txn: Txn, tables: Tables) -> None:
    txn.drop(tables["references"], delete=False)


def _too_few_references(txn: Txn, tables: Tables) -> None:
    with txn.cursor(db=tables["references"]) as cursor:
        keys = [key for key, _ in cursor]
    for key in keys:
        txn.put(key, encode_reference(key, 1), db=tables["references"])


def _not_marked_as_shared(txn: Txn, tables: Tables) -> None:
    with txn.cursor(db=tables["entries"]) as cursor:
        entries = [(key, decode_entry(key, value)) for key, value in cursor]
    for key, entry in entries:
        fields = entry.flags & ~FLAG_SHARED, entry.expires_at_ms, entry.size, entry.group
        txn.put(key, encode_entry(key, entry.number, entry.delivery_count, *fields), db=tables["entries"])
    txn.drop(tables["references"], delete=False)


def _no_catalogue(txn: Txn, tables: Tables) -> None:
    txn.drop(tables["catalog"], delete=False)


def _entries_of_a_temporary_queue(txn: Txn, tables: Tables) -> None:
    with txn.cursor(db=tables["entries"]) as cursor:
        entries = [(key, decode_entry(key, value)) for key, value in cursor]
    for key, entry in entries:
        if entry.queue == 4:  # orders
            new = entry_key(FIRST_VOLATILE_QUEUE + 5, entry.lane, entry.position)
            fields = entry.flags, entry.expires_at_ms, entry.size, entry.group
            txn.put(new, encode_entry(new, entry.number, entry.delivery_count, *fields), db=tables["entries"])
            txn.delete(key, db=tables["entries"])


def _a_low_next_message(txn: Txn, tables: Tables) -> None:
    txn.put(b"next_message", b"\x05", db=tables["meta"])


def _a_next_message_that_is_no_number(txn: Txn, tables: Tables) -> None:
    txn.put(b"next_message", encode_meta(b"next_message", "five"), db=tables["meta"])


def _a_low_next_queue(txn: Txn, tables: Tables) -> None:
    txn.put(NEXT_QUEUE, encode_meta(NEXT_QUEUE, 5), db=tables["meta"])


def _no_next_queue(txn: Txn, tables: Tables) -> None:
    assert txn.delete(NEXT_QUEUE, db=tables["meta"])


def _a_damaged_start(txn: Txn, tables: Tables) -> None:
    with txn.cursor(db=tables["meta"]) as cursor:
        assert cursor.set_range(b"run/")
        key, value = cursor.item()
    txn.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=tables["meta"])


DAMAGES: dict[str, tuple[Callable[[Txn, Tables], None], str, dict[str, int]]] = {
    "message gone": (_a_message_gone, "entry without a message", {"DLQ": 1}),
    "entry gone": (_an_entry_gone, "wrong counters", {"DLQ": 1}),
    "message damaged": (_damaged("messages"), "damaged message", {"one": 19, "two": 19}),
    "message misplaced": (_misplaced_message, "damaged message", {"one": 19, "two": 19}),
    "entry damaged": (_damaged("entries"), "damaged entry", {"DLQ": 1}),
    "entry misplaced": (_misplaced_entry, "damaged entry", {"DLQ": 1}),
    "counters damaged": (_damaged("queues"), "wrong counters", {}),
    "counters gone": (_no_counters, "wrong counters", {}),
    "schedule gone": (_no_schedule, "delivery not scheduled", {}),
    "annotations gone": (_no_annotations, "annotations missing", {}),
    "annotations damaged": (_damaged("annotations"), "annotations missing", {}),
    "references gone": (_no_references, "wrong count of references", {}),
    "references too low": (_too_few_references, "wrong count of references", {}),
    "references damaged": (_damaged("references"), "wrong count of references", {}),
    "shared not marked": (_not_marked_as_shared, "entry not marked as shared", {}),
    "start damaged": (_a_damaged_start, "damaged record of a start", {}),
    "producers damaged": (_damaged("producers"), "damaged record of numbers done", {}),
    "commits damaged": (_damaged("commits"), "damaged record of numbers done", {}),
    "published damaged": (_damaged("published"), "damaged record of numbers done", {}),
    "number of the next message": (_a_low_next_message, "wrong number of the next message", {}),
    "no number of the next message": (_a_next_message_that_is_no_number, "wrong number of the next message", {}),
    "number of the next queue": (_a_low_next_queue, "wrong number of the next queue", {}),
    "number of the next queue gone": (_no_next_queue, "wrong number of the next queue", {}),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_record_is_found_and_repaired(tmp_path: Path, name: str) -> None:
    act, problem, changed = DAMAGES[name]
    filled(tmp_path)
    damage(tmp_path, act)
    report = check(tmp_path)
    assert problem in report.summary.problems, report.summary.problems
    assert not report.is_sound
    assert check(tmp_path).summary.problems == report.summary.problems, "a check changes nothing"
    repaired = check(tmp_path, repair=True)
    assert repaired.repaired
    again = check(tmp_path)
    assert again.is_sound, again.findings
    found = everything(tmp_path)
    if name == "schedule gone":
        assert found.pop("later") == 1
    assert found == {**{key: ALL[key] for key in found}, **changed}


def test_a_finding_names_the_queue_or_subscription(tmp_path: Path) -> None:
    filled(tmp_path)

    def act(txn: Txn, tables: Tables) -> None:
        for key, _ in list(txn.cursor(db=tables["messages"])):
            txn.delete(key, db=tables["messages"])

    damage(tmp_path, act)
    texts = " ".join(each.text for each in check(tmp_path).findings)
    assert "of queue 'orders' is gone or damaged" in texts
    assert "of subscription 'one' of topic 'news' is gone or damaged" in texts


@pytest.mark.damages
def test_an_engine_starts_with_damaged_counters_and_counts_the_entries(tmp_path: Path) -> None:
    filled(tmp_path)

    def act(txn: Txn, tables: Tables) -> None:
        with txn.cursor(db=tables["queues"]) as cursor:
            records = list(cursor)
        for key, value in records:
            txn.put(key, flipped(value), db=tables["queues"])

    damage(tmp_path, act)
    broker = Broker(SETTINGS, str(tmp_path))
    counted = {name: depth(broker, name) for name in ("orders", "large", "mortal", "DLQ", "later")}
    assert counted == {name: ALL[name] for name in counted}
    broker.close()
    check(tmp_path, repair=True)
    assert everything(tmp_path) == ALL


def test_entries_without_a_catalogue_get_queues_that_are_named_after_them(tmp_path: Path) -> None:
    filled(tmp_path)
    damage(tmp_path, _no_catalogue)
    assert "entries of an unknown queue" in check(tmp_path).summary.problems
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    broker = Broker(SETTINGS, str(tmp_path))
    client = connect(broker)
    names = [each.name for each in broker.call(c.Statistics(), WAIT).queues]
    counts = sorted(len(drained(broker, client, name)) for name in names if name.startswith("recovered-"))
    assert sum(counts) >= sum(ALL.values()) - 1  # the delayed one is due later
    broker.close()


def test_entries_under_the_number_of_a_temporary_queue_get_a_queue_of_their_own(tmp_path: Path) -> None:
    filled(tmp_path)
    damage(tmp_path, _entries_of_a_temporary_queue)
    assert "entries of an unknown queue" in check(tmp_path).summary.problems
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    broker = Broker(SETTINGS, str(tmp_path))
    assert depth(broker, f"recovered-{FIRST_VOLATILE_QUEUE + 5}") == ALL["orders"]
    assert depth(broker, "orders") == 0
    broker.close()


def test_a_damaged_catalogue_record_is_no_end_of_the_others(tmp_path: Path) -> None:
    filled(tmp_path)
    damage(tmp_path, _damaged("catalog"))
    with pytest.raises(StoreCorruptException, match="holdfast check"):
        Broker(SETTINGS, str(tmp_path))
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    broker = Broker(SETTINGS, str(tmp_path))
    assert depth(broker, "orders") == ALL["orders"]
    assert depth(broker, "recovered-1") == ALL["DLQ"]
    broker.close()


@pytest.mark.parametrize("seed", range(30))
def test_any_byte_of_any_record_may_change(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    filled(tmp_path, 40)

    def act(txn: Txn, tables: Tables) -> None:
        for _ in range(20):
            table = chance.choice([name for name in TABLES if name not in ("meta", "schedule")])
            with txn.cursor(db=tables[table]) as cursor:
                records = list(cursor)
            if records:
                key, value = chance.choice(records)
                txn.put(key, flipped(value, chance.randrange(len(value))), db=tables[table])

    damage(tmp_path, act)
    report = check(tmp_path, repair=True)
    assert not report.is_sound
    again = check(tmp_path)
    assert again.is_sound, again.findings
    broker = Broker(SETTINGS, str(tmp_path))
    assert [each.text for each in broker.check() if not each.harmless] == []
    broker.close()


# Pages.


def page_of(path: Path, table: str, kind: int) -> list[int]:
    """Numbers of the pages of a kind that a table has: 1 branch, 2 leaf, 4 overflow."""
    data = (path / "data.mdb").read_bytes()
    meta = metas(lambda offset, size: data[offset : offset + size])[0]
    tree = File(lambda offset, size: data[offset : offset + size], meta, len(data)).tables()[table]
    size = meta.free.page_bytes
    found, stack = [], [tree.root]
    while stack:
        page = stack.pop()
        block = data[page * size : (page + 1) * size]
        flags, lower = int.from_bytes(block[10:12], sys.byteorder), int.from_bytes(block[12:14], sys.byteorder)
        if flags & kind:
            found.append(page)
        for index in range((lower - 16) // 2):
            pointer = int.from_bytes(block[16 + 2 * index : 18 + 2 * index], sys.byteorder)
            if flags & 1:
                stack.append(int.from_bytes(block[pointer : pointer + 6], sys.byteorder))
            elif kind == 4 and int.from_bytes(block[pointer + 4 : pointer + 6], sys.byteorder) & 1:
                key_size = int.from_bytes(block[pointer + 6 : pointer + 8], sys.byteorder)
                start = pointer + 8 + key_size
                found.append(int.from_bytes(block[start : start + 8], sys.byteorder))
    return found


def overwrite(path: Path, page: int, content: bytes = bytes(4096)) -> None:
    with open(path / "data.mdb", "r+b") as file:
        file.seek(page * 4096)
        file.write(content)


def test_a_zeroed_branch_page_costs_nothing(tmp_path: Path) -> None:
    filled(tmp_path, 2000)
    for table in ("messages", "entries"):
        overwrite(tmp_path, page_of(tmp_path, table, 1)[0])
    report = check(tmp_path)
    assert {each.table for each in report.damages} == {"messages", "entries"}
    assert "zeroed" in report.damages[0].text
    repaired = check(tmp_path, repair=True)
    assert repaired.salvaged > 2000
    assert repaired.damaged_file is not None
    assert os.path.exists(repaired.damaged_file)
    assert check(tmp_path).is_sound
    assert everything(tmp_path) == {**ALL, "orders": 1998}


def test_every_record_is_recognised_when_no_branch_leads_to_it(tmp_path: Path) -> None:
    filled(tmp_path)
    with lmdb.open(str(tmp_path), max_dbs=len(TABLES), readonly=True) as env, env.begin() as txn:
        for table in TABLES:
            for key, value in txn.cursor(db=env.open_db(table.encode(), txn=txn, create=False)):
                assert table in tables_of(bytes(key), bytes(value)), (table, key, value)


@pytest.mark.parametrize("table", ["messages", "entries", "catalog", "queues", "references", "producers"])
def test_a_zeroed_leaf_page_costs_what_it_had(tmp_path: Path, table: str) -> None:
    filled(tmp_path, 2000)
    page = page_of(tmp_path, table, 2)[0]
    overwrite(tmp_path, page)
    report = check(tmp_path)
    assert [(each.page, each.table) for each in report.damages] == [(page, table)]
    assert report.missing[table] > 0
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    broker = Broker(SETTINGS, str(tmp_path))
    assert [each.text for each in broker.check() if not each.harmless] == []
    if table in ("references", "producers", "queues"):
        assert depth(broker, "orders") == 1998
    broker.close()


def test_a_zeroed_leaf_page_with_starts_leaves_a_gap_and_their_numbers_are_not_reused(tmp_path: Path) -> None:
    filled(tmp_path / "sound")
    with closing(LmdbStore(tmp_path / "sound", SETTINGS)) as store:
        for number in range(200):
            note(store, RunRecord(str(number), {}))
        known = store.runs()
    last = len(known)
    pages = page_of(tmp_path / "sound", "meta", 2)
    assert len(pages) > 2
    for page in pages:
        path = tmp_path / str(page)
        shutil.copytree(tmp_path / "sound", path)
        overwrite(path, page)
        check(path, repair=True)
        assert check(path).is_sound
        with closing(LmdbStore(path, SETTINGS)) as store:
            found = store.runs()
            assert "" in found
            assert set(found) - {""} <= set(known)
            note(store, RunRecord("next", {}))
            assert store.runs() == [*found, "next"]
        assert max(number_of(key) for key in records(path)["meta"] if key.startswith(RUN_PREFIX)) > last


def test_a_page_that_was_written_to_another_place_is_found(tmp_path: Path) -> None:
    filled(tmp_path, 2000)
    first_page, second = page_of(tmp_path, "messages", 2)[:2]
    data = (tmp_path / "data.mdb").read_bytes()
    overwrite(tmp_path, second, data[first_page * 4096 : (first_page + 1) * 4096])
    report = check(tmp_path)
    assert [each.page for each in report.damages] == [second]
    assert f"it says that it is page {first_page}" in report.damages[0].text
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound


def test_a_damaged_overflow_page_costs_its_message(tmp_path: Path) -> None:
    filled(tmp_path)
    overwrite(tmp_path, page_of(tmp_path, "messages", 4)[0])
    assert [each.table for each in check(tmp_path).damages] == ["messages"]
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    assert everything(tmp_path) == {**ALL, "large": 4}


def test_the_page_with_the_roots_of_all_tables_costs_nothing(tmp_path: Path) -> None:
    filled(tmp_path, 2000)
    data = (tmp_path / "data.mdb").read_bytes()
    overwrite(tmp_path, metas(lambda offset, size: data[offset : offset + size])[0].main.root)
    assert check(tmp_path).damages
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    assert everything(tmp_path) == {**ALL, "orders": 1998}
    broker = Broker(SETTINGS, str(tmp_path))
    assert broker.request("resolve_commit", {"session": "s", "number": 7}, WAIT) is True
    assert broker.request("publish", {"group": "g", "number": 3, "transactions": []}, WAIT) is False
    broker.close()


@pytest.mark.parametrize("page", [0, 1])
def test_one_of_the_two_roots_is_enough(tmp_path: Path, page: int) -> None:
    filled(tmp_path)
    overwrite(tmp_path, page)
    assert "one of the two roots" in check(tmp_path).damages[0].text
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    found = everything(tmp_path)
    assert found["orders"] == ALL["orders"]


@pytest.mark.parametrize("wrong", [1 << bit for bit in (0, 2, 5, 7, 8, 12, 15, 30, 50, 62)])
def test_a_root_that_counts_other_pages_than_there_are_costs_nothing(tmp_path: Path, wrong: int) -> None:
    filled(tmp_path, 2000)
    data = bytearray((tmp_path / "data.mdb").read_bytes())
    newest = metas(lambda offset, size: bytes(data[offset : offset + size]))[0]
    place = newest.page * 4096 + 16 + 24 + 2 * 48  # behind the page's head, the file's, and the two trees
    assert int.from_bytes(data[place : place + 8], sys.byteorder) == newest.last_page
    data[place : place + 8] = (newest.last_page ^ wrong).to_bytes(8, sys.byteorder)
    (tmp_path / "data.mdb").write_bytes(data)
    if newest.last_page ^ wrong > newest.last_page:
        with pytest.raises(StoreCorruptException, match="holdfast check"):
            Broker(SETTINGS, str(tmp_path))
    report = check(tmp_path)
    assert [each.page for each in report.damages if "root" in each.text] == [newest.page]
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    assert everything(tmp_path) == {**ALL, "orders": 1998}


def test_a_root_that_counts_far_too_few_pages_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    filled(tmp_path, 2000)
    data = bytearray((tmp_path / "data.mdb").read_bytes())
    newest = metas(lambda offset, size: bytes(data[offset : offset + size]))[0]
    place = newest.page * 4096 + 16 + 24 + 2 * 48
    data[place : place + 8] = (12).to_bytes(8, sys.byteorder)
    (tmp_path / "data.mdb").write_bytes(data)
    with pytest.raises(StoreException, match="holdfast check"):
        Broker(SETTINGS, str(tmp_path))
    check(tmp_path, repair=True)
    assert everything(tmp_path) == {**ALL, "orders": 1998}


@pytest.mark.parametrize("seed", range(40))
def test_any_pages_may_be_zeroed_or_hold_anything(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    filled(tmp_path, 1000)
    pages = (tmp_path / "data.mdb").stat().st_size // 4096
    before = (tmp_path / "data.mdb").read_bytes()
    for _ in range(chance.randrange(1, 6)):
        page = chance.randrange(2, pages)
        how = chance.randrange(4)
        if how == 0:
            overwrite(tmp_path, page)
        elif how == 1:
            overwrite(tmp_path, page, chance.randbytes(4096))
        elif how == 2:
            other = chance.randrange(2, pages)
            overwrite(tmp_path, page, before[other * 4096 : other * 4096 + 4096])
        else:
            block = bytearray(before[page * 4096 : page * 4096 + 4096])
            for _ in range(chance.randrange(1, 5)):
                block[chance.randrange(64)] = chance.randrange(256)
            overwrite(tmp_path, page, bytes(block))
    check(tmp_path, repair=True)
    again = check(tmp_path)
    assert again.is_sound, (again.damages, again.findings)
    broker = Broker(SETTINGS, str(tmp_path))
    assert [each.text for each in broker.check() if not each.harmless] == []
    broker.close()


def records(path: Path) -> dict[str, dict[bytes, bytes]]:
    """All records, table by table, as LMDB reads them."""
    found = {}
    with lmdb.open(str(path), max_dbs=len(TABLES), readonly=True) as env, env.begin() as txn:
        for table in TABLES:
            cursor = txn.cursor(db=env.open_db(table.encode(), txn=txn, create=False))
            found[table] = {bytes(key): bytes(value) for key, value in cursor}
    return found


def bodies(found: dict[str, dict[bytes, bytes]]) -> set[bytes]:
    """The messages that are there, or in quarantine."""
    aside = [split_quarantine_key(key) for key in found["quarantine"]]
    return {*found["messages"], *(key for table, key in aside if table == "messages")}


def place_in(data: bytes, chance: random.Random) -> int:
    """An offset in a file, mostly in what says where other things are."""
    page = chance.randrange(len(data) // 4096)
    lower, upper = (int.from_bytes(data[page * 4096 + at : page * 4096 + at + 2], sys.byteorder) for at in (12, 14))
    how = chance.randrange(4)
    if how == 0:
        return page * 4096 + chance.randrange(16)  # its head
    if how < 3 and 16 < lower <= upper <= 4096:
        pointer = page * 4096 + chance.randrange(16, lower, 2)
        if how == 1:
            return pointer + chance.randrange(2)
        node = int.from_bytes(data[pointer : pointer + 2], sys.byteorder)
        return page * 4096 + min(4095, node + chance.randrange(21))  # of a record: sizes, flags, key
    return page * 4096 + chance.randrange(4096)


@pytest.fixture(scope="module")
def sound_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, dict[bytes, bytes]]]:
    path = tmp_path_factory.mktemp("sound")
    filled(path, 1500)
    return (path / "data.mdb").read_bytes(), records(path)


@pytest.mark.parametrize("bits", [1, 3])
@pytest.mark.parametrize("seed", range(40))
def test_a_changed_bit_costs_the_record_that_it_is_in(
    tmp_path: Path, sound_file: tuple[bytes, dict[str, dict[bytes, bytes]]], seed: int, bits: int
) -> None:
    before, expected = sound_file
    chance = random.Random(seed)
    data = bytearray(before)
    for _ in range(bits):
        data[place_in(before, chance)] ^= 1 << chance.randrange(8)
    (tmp_path / "data.mdb").write_bytes(data)
    if check(tmp_path).is_sound:
        assert records(tmp_path) == expected, "it was in a page, or a part of one, that is not in use"
        return
    check(tmp_path, repair=True)
    again = check(tmp_path)
    assert again.is_sound, (again.damages, again.findings)
    found = records(tmp_path)
    assert len(bodies(expected) - bodies(found)) <= bits
    assert len(expected["entries"].keys() - found["entries"].keys()) <= 2 * bits, "of these, or of lost messages"
    for table in ("catalog", "references", "producers", "commits", "published", "annotations", "schedule", "meta"):
        assert len(expected[table].keys() - found[table].keys()) <= bits, table


def with_flipped_key(path: Path, table: str, index: int, *, kind: int = 2) -> None:
    """Change the last octet of one key of the first page of a kind."""
    page = page_of(path, table, kind)[0]
    data = bytearray((path / "data.mdb").read_bytes())
    lower = int.from_bytes(data[page * 4096 + 12 : page * 4096 + 14], sys.byteorder)
    pointers = [
        int.from_bytes(data[page * 4096 + at : page * 4096 + at + 2], sys.byteorder) for at in range(16, lower, 2)
    ]
    node = page * 4096 + pointers[index]
    key_bytes = int.from_bytes(data[node + 6 : node + 8], sys.byteorder)
    data[node + 8 + key_bytes - 3] ^= 0x40  # higher than any that follows
    (path / "data.mdb").write_bytes(data)


@pytest.mark.parametrize("table", ["messages", "entries"])
def test_a_key_that_is_higher_than_all_that_follow_costs_one_record(tmp_path: Path, table: str) -> None:
    filled(tmp_path, 2000)
    before = bodies(records(tmp_path))
    with_flipped_key(tmp_path, table, -1)
    assert not check(tmp_path).is_sound
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    found = records(tmp_path)
    assert bodies(found) == before or table == "messages"
    assert len(before - bodies(found)) <= 1
    assert everything(tmp_path)["orders"] >= 1997


@pytest.mark.parametrize("table", ["messages", "entries", "schedule"])
def test_a_changed_key_of_a_branch_is_found_and_costs_nothing(tmp_path: Path, table: str) -> None:
    filled(tmp_path, 2000)
    if table == "schedule":
        broker = Broker(SETTINGS, str(tmp_path))
        send(broker, connect(broker), "later", *("x" for _ in range(1000)), deliver_at_ms=FAR_MS)
        broker.close()
    expected = records(tmp_path)
    with_flipped_key(tmp_path, table, 1, kind=1)
    report = check(tmp_path)
    assert [each.table for each in report.damages] != []
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    assert records(tmp_path) == expected


@pytest.mark.parametrize("bit", range(0, 64, 3))
@pytest.mark.parametrize("which", [0, 1], ids=["newer", "older"])
def test_the_last_commit_is_not_lost_to_a_wrong_number_of_a_root(tmp_path: Path, bit: int, which: int) -> None:
    filled(tmp_path, 500)
    expected = records(tmp_path)
    data = bytearray((tmp_path / "data.mdb").read_bytes())
    root = metas(lambda offset, size: bytes(data[offset : offset + size]))[which]
    place = root.page * 4096 + 16 + 24 + 2 * 48 + 8
    data[place + bit // 8] ^= 1 << bit % 8
    (tmp_path / "data.mdb").write_bytes(data)
    with pytest.raises(StoreCorruptException, match="holdfast check"):
        Broker(SETTINGS, str(tmp_path))
    assert "do not follow each other" in check(tmp_path).damages[0].text
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    assert records(tmp_path) == expected


@pytest.mark.parametrize("pair", [("free", "main"), ("main", "entries"), ("free", "messages")])
def test_two_pages_that_were_exchanged_cost_nothing(tmp_path: Path, pair: tuple[str, str]) -> None:
    filled(tmp_path, 2000)
    expected = records(tmp_path)
    data = (tmp_path / "data.mdb").read_bytes()
    root = metas(lambda offset, size: data[offset : offset + size])[0]
    pages = {"free": root.free.root, "main": root.main.root}
    one, other = (pages[name] if name in pages else page_of(tmp_path, name, 1)[0] for name in pair)
    overwrite(tmp_path, one, data[other * 4096 : (other + 1) * 4096])
    overwrite(tmp_path, other, data[one * 4096 : (one + 1) * 4096])
    assert check(tmp_path).damages
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    assert records(tmp_path) == expected


def with_lost_commit(tmp_path: Path, how: str) -> tuple[Path, set[bytes]]:
    """A store whose newest root is zeroed, or an older copy of itself; with the bodies that it had before."""
    filled(tmp_path)
    older = (tmp_path / "data.mdb").read_bytes()[: 2 * 4096]
    broker = Broker(SETTINGS, str(tmp_path))
    for number in range(8):
        send(broker, connect(broker), "small", f"small {number}")
    send(broker, connect(broker), "last", "z" * 50_000)
    broker.call(c.Enqueue(connect(broker), queue("last"), [message(f"last {number}") for number in range(500)]), WAIT)
    data = (tmp_path / "data.mdb").read_bytes()
    newest_page = metas(lambda offset, size: data[offset : offset + size])[0].page
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "data.mdb").write_bytes(data)
    broker.close()
    expected = bodies(records(copy))
    content = older[newest_page * 4096 : (newest_page + 1) * 4096] if how == "stale" else bytes(4096)
    overwrite(copy, newest_page, content)
    return copy, expected


@pytest.mark.parametrize(
    ("how", "said"), [("zeroed", "may be one commit older"), ("stale", "a later commit is lost then")]
)
def test_the_messages_of_the_last_commit_are_kept_where_its_root_is_lost(tmp_path: Path, how: str, said: str) -> None:
    store, expected = with_lost_commit(tmp_path, how)
    report = check(store)
    assert said in report.damages[0].text
    assert report.has_lost_root
    assert report.pages == (store / "data.mdb").stat().st_size // 4096
    assert check(store, repair=True).has_lost_root
    assert check(store).is_sound
    found = records(store)
    assert bodies(found) == expected
    assert len(found["messages"]) < len(expected), "what it had put into free pages is set aside"
    Broker(SETTINGS, str(store)).close()


@pytest.mark.parametrize("age", range(3, 11))
def test_an_older_root_whose_pages_are_used_again_is_not_taken_for_the_newest(tmp_path: Path, age: int) -> None:
    broker = Broker(SETTINGS, str(tmp_path / "store"))
    client = connect(broker)
    files = []
    for number in range(24):
        send(broker, client, "q", f"{number}")
        files.append((tmp_path / "store" / "data.mdb").read_bytes())
    broker.close()
    for number in range(age, len(files)):
        data, older = files[number], files[number - age]
        page = metas(lambda offset, size, data=data: data[offset : offset + size])[0].page  # type: ignore[misc]
        copy = tmp_path / f"copy {number}"
        copy.mkdir()
        (copy / "data.mdb").write_bytes(data)
        overwrite(copy, page, older[page * 4096 : (page + 1) * 4096])
        assert check(copy, repair=True).has_lost_root
        assert check(copy).is_sound
        assert len(bodies(records(copy))) == number + 1


@pytest.mark.parametrize("how", ["new", "compacted", "copied", "copied without free pages"])
def test_the_roots_of_a_store_that_nothing_has_damaged_are_sound(tmp_path: Path, how: str) -> None:
    store = tmp_path / "store"
    if how == "new":
        Broker(SETTINGS, str(store)).close()
    else:
        filled(store)
    if how == "compacted":
        compact_store(store, SETTINGS)
    elif how.startswith("copied"):
        copy = tmp_path / "copy"
        copy.mkdir()
        with lmdb.open(str(store), max_dbs=len(TABLES), map_size=SETTINGS.max_store_bytes) as env:
            env.copy(str(copy), compact=how != "copied")
        store = copy
    report = check(store)
    assert report.is_sound
    assert not report.has_lost_root
    Broker(SETTINGS, str(store)).close()
    assert check(store).is_sound


def test_a_key_that_is_too_long_for_lmdb_does_not_stop_a_repair(tmp_path: Path) -> None:
    filled(tmp_path)
    page = page_of(tmp_path, "producers", 2)[0]
    data = bytearray((tmp_path / "data.mdb").read_bytes())
    node = page * 4096 + int.from_bytes(data[page * 4096 + 16 : page * 4096 + 18], sys.byteorder)
    data[node + 7] ^= 2  # the key's size: 512 more
    (tmp_path / "data.mdb").write_bytes(data)
    assert check(tmp_path).damages
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    assert everything(tmp_path) == ALL


def with_key(path: Path, table: str, key: bytes, new_key: bytes) -> int:
    """Change the key of one record wherever the file has it; returns in how many places that was."""
    data = bytearray((path / "data.mdb").read_bytes())
    whole = key + records(path)[table][key]
    count, at = 0, data.find(whole)
    while at >= 0:
        data[at : at + len(key)] = new_key
        count += 1
        at = data.find(whole, at + 1)
    (path / "data.mdb").write_bytes(data)
    return count


@pytest.mark.parametrize(("number", "other"), [(45, 44), (44, 45), (300, 44), (100, 228)])
def test_a_key_that_becomes_another_ones_costs_neither_message(tmp_path: Path, number: int, other: int) -> None:
    """Whichever comes first in the file, the one that is as it was written stays; the other one is set aside."""
    filled(tmp_path)
    before = records(tmp_path)
    key, other_key = message_key(number), message_key(other)
    assert with_key(tmp_path, "messages", key, other_key) >= 1
    assert not check(tmp_path).is_sound
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    after = records(tmp_path)
    assert after["messages"][other_key] == before["messages"][other_key]
    assert before["messages"][key] in after["quarantine"].values()
    assert len(before["entries"].keys() - after["entries"].keys()) == 1


@pytest.mark.parametrize("old", [False, True], ids=["another one's", "none's"])
def test_a_catalogue_record_under_another_number_gives_no_messages_away(tmp_path: Path, old: bool) -> None:
    filled(tmp_path)
    numbers = {decode_catalog(key, value).name: key for key, value in records(tmp_path)["catalog"].items()}
    target = b"\0\0\1\0" if old else numbers["mortal"]
    with_key(tmp_path, "catalog", numbers["large"], target)
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    found = everything(tmp_path)
    assert (found["large"], found["mortal"], found["orders"]) == (0, ALL["mortal"], ALL["orders"])
    broker = Broker(SETTINGS, str(tmp_path))
    assert depth(broker, f"recovered-{int.from_bytes(numbers['large'])}") == ALL["large"]
    broker.close()


def test_any_bit_of_what_a_store_is_known_by_may_change(tmp_path: Path) -> None:
    filled(tmp_path / "sound", 20)
    before = (tmp_path / "sound" / "data.mdb").read_bytes()
    expected = records(tmp_path / "sound")
    unique = decode_meta(UNIQUE, expected["meta"][UNIQUE])
    run = next(key for key in expected["meta"] if key.startswith(RUN_PREFIX))
    for name in (VERSION, VERSION_CHECK, UNIQUE, NEXT_MESSAGE, NEXT_QUEUE, NEXT_RUN, run):
        whole = name + expected["meta"][name]
        for bit in range(0, 8 * len(whole), 1 if name == VERSION else 23):
            path = tmp_path / "damaged"
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
            changed = bytearray(whole)
            changed[bit // 8] ^= 1 << bit % 8
            (path / "data.mdb").write_bytes(before.replace(whole, bytes(changed)))
            assert not check(path).is_sound, (name, bit)
            check(path, repair=True)
            assert check(path).is_sound, (name, bit)
            broker = Broker(SETTINGS, str(path))
            assert depth(broker, "orders") == 18
            assert (broker.unique == unique) is (name != UNIQUE), (name, bit)
            broker.close()


@pytest.mark.parametrize("table", ["messages", "entries"])
def test_a_record_whose_key_is_as_long_as_lmdb_takes_can_be_set_aside(tmp_path: Path, table: str) -> None:
    filled(tmp_path)
    damage(tmp_path, lambda txn, tables: txn.put(b"\xff" * 511, b"x", db=tables[table]))
    damage(tmp_path, lambda txn, tables: txn.put(b"\xff" * 510, b"y", db=tables[table]))
    assert not check(tmp_path).is_sound
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    aside = records(tmp_path)["quarantine"]
    assert sorted(aside.values()) == [b"x", b"y"]
    assert everything(tmp_path) == ALL


# What a repair leaves when it is interrupted.


def without_a_page(path: Path) -> bytes:
    filled(path)
    overwrite(path, page_of(path, "messages", 2)[1])
    return (path / "data.mdb").read_bytes()


@pytest.mark.parametrize("name", ["link", "replace", "unlink"])
def test_there_is_a_store_at_every_moment_of_a_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    class Killed(BaseException):
        """What a signal does: nothing that comes behind it is carried out."""

    damaged = without_a_page(tmp_path)
    act = getattr(os, name)

    def act_and_die(*arguments: Any, **named: Any) -> None:
        act(*arguments, **named)
        raise Killed

    monkeypatch.setattr(os, name, act_and_die)
    with pytest.raises(Killed):
        check(tmp_path, repair=True)
    monkeypatch.undo()
    assert (tmp_path / "data.mdb").exists()
    if name == "link":
        assert (tmp_path / "data.mdb").read_bytes() == damaged
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    assert any(each.read_bytes() == damaged for each in tmp_path.glob("data.mdb.damaged-*"))


def test_each_damaged_file_is_kept_however_fast_repairs_follow(tmp_path: Path) -> None:
    kept = []
    for _ in range(3):
        kept.append(without_a_page(tmp_path))
        check(tmp_path, repair=True)
    found = [each.read_bytes() for each in tmp_path.glob("data.mdb.damaged-*")]
    assert sorted(found) == sorted(kept)


def test_a_store_whose_file_is_gone_beside_a_damaged_one_is_not_created_again(tmp_path: Path) -> None:
    filled(tmp_path)
    os.rename(tmp_path / "data.mdb", tmp_path / "data.mdb.damaged-20261122-120000")
    with pytest.raises(StoreException, match=r"no file data.mdb, only data.mdb.damaged-20261122-120000"):
        Broker(SETTINGS, str(tmp_path))
    assert not (tmp_path / "data.mdb").exists()


def test_a_full_store_can_be_rebuilt(tmp_path: Path) -> None:
    small = EngineSettings(max_store_bytes=64 * 1024 * 1024, min_free_disk_bytes=0, hold_timeout_seconds=0.01)
    broker = Broker(small, str(tmp_path))
    client = connect(broker)
    while send(broker, client, "q", *["x" * 30_000] * 50) is None:
        pass
    stored = depth(broker, "q")
    broker.close()
    overwrite(tmp_path, page_of(tmp_path, "messages", 1)[0])
    report = check_store(tmp_path, attrs.evolve(small, max_store_bytes=16 * 1024 * 1024), repair=True)
    assert report.damaged_file
    broker = Broker(small, str(tmp_path))
    assert depth(broker, "q") == stored
    broker.close()


def test_messages_that_a_repair_sets_aside_are_not_called_lost(tmp_path: Path) -> None:
    filled(tmp_path, 2000)
    data = (tmp_path / "data.mdb").read_bytes()
    had = len(records(tmp_path)["messages"])
    overwrite(tmp_path, metas(lambda offset, size: data[offset : offset + size])[0].free.root)
    overwrite(tmp_path, page_of(tmp_path, "messages", 1)[0])
    report = check_store(tmp_path, SETTINGS, repair=True)
    assert (report.free_is_known, report.misplaced, report.lost) == (False, had, None)
    assert report.set_aside >= had


def test_a_repair_that_was_interrupted_reports_what_is_lost_when_it_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, 2000)
    with open(tmp_path / "data.mdb", "r+b") as file:
        file.truncate(os.path.getsize(tmp_path / "data.mdb") // 3)
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(tmp_path / "data.mdb", copy)
    at_once = check_store(copy, SETTINGS, repair=True)
    assert at_once.lost
    with monkeypatch.context() as patched:
        patched.setattr(maintenance, "_check_records", interrupted)
        with pytest.raises(KeyboardInterrupt):
            check_store(tmp_path, SETTINGS, repair=True)
    assert check_store(tmp_path, SETTINGS).lost == at_once.lost, "nothing has been changed since"
    again = check_store(tmp_path, SETTINGS, repair=True)
    assert (again.repaired, again.lost, again.salvaged) == (True, at_once.lost, at_once.salvaged)
    assert Path(str(again.damaged_file)).exists()
    last = check_store(tmp_path, SETTINGS, repair=True)
    assert (last.is_sound, last.repaired, last.lost, last.damaged_file) == (True, False, 0, None)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_start_does_not_loop_where_keys_are_not_in_order(tmp_path: Path) -> None:
    """LMDB finds a smaller key than it was asked for."""
    filled(tmp_path, 2000)
    data = (tmp_path / "data.mdb").read_bytes()
    page = page_of(tmp_path, "entries", 1)[0]
    lower = int.from_bytes(data[page * 4096 + 12 : page * 4096 + 14], sys.byteorder)
    for at in range(18, lower, 2):
        pointer = int.from_bytes(data[page * 4096 + at : page * 4096 + at + 2], sys.byteorder)
        for octet in (3, 4, 5):  # of the key: queue and lane
            changed = bytearray(data)
            changed[page * 4096 + pointer + 8 + octet] ^= 2
            (tmp_path / "data.mdb").write_bytes(changed)
            assert not check(tmp_path).is_sound
            with contextlib.suppress(StoreCorruptException):
                Broker(SETTINGS, str(tmp_path)).close()
            if at > 40:
                return


def test_lmdb_may_end_the_process_where_a_check_answers(tmp_path: Path) -> None:
    """Why pages are checked without it."""
    filled(tmp_path, 2000)
    overwrite(tmp_path, page_of(tmp_path, "entries", 1)[0])
    reading = f"import lmdb; env = lmdb.open({str(tmp_path)!r}, max_dbs=20, map_size={SETTINGS.max_store_bytes})\n"
    reading += "with env.begin() as txn: print(len(list(txn.cursor(db=env.open_db(b'entries', txn=txn)))))"
    done = subprocess.run([sys.executable, "-c", reading], capture_output=True, check=False)
    assert done.returncode != 0
    assert check(tmp_path).damages


def test_without_the_list_of_free_pages_those_that_nothing_leads_to_are_left_out(tmp_path: Path) -> None:
    filled(tmp_path, 2000)
    data = (tmp_path / "data.mdb").read_bytes()
    overwrite(tmp_path, metas(lambda offset, size: data[offset : offset + size])[0].free.root)
    overwrite(tmp_path, page_of(tmp_path, "entries", 1)[0])
    repaired = check(tmp_path, repair=True)
    assert (repaired.salvaged, repaired.free_is_known) == (0, False), "it is not known what was settled before"
    assert repaired.missing["entries"] > 1000
    assert check(tmp_path).is_sound


def test_the_list_of_free_pages_is_read_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    """Its keys are numbers in the order of the machine's octets: 256 comes behind 255."""
    filled(tmp_path, 2000)

    def freed() -> list[int]:
        data = (tmp_path / "data.mdb").read_bytes()
        root = metas(lambda offset, size: data[offset : offset + size])[0]
        file = File(lambda offset, size: data[offset : offset + size], root, len(data))
        return [int.from_bytes(key, sys.byteorder) for key, _ in file.records(FREE_PAGES, root.free)]

    with lmdb.open(str(tmp_path), max_dbs=len(TABLES), map_size=SETTINGS.max_store_bytes) as env:
        table = env.open_db(b"meta")
        while not min(freed()) < 256 <= max(freed()):
            with env.begin(write=True) as txn:
                txn.put(b"next_message", txn.get(b"next_message", db=table) or b"\1", db=table)
                assert txn.id() < 400
    expected = records(tmp_path)
    overwrite(tmp_path, page_of(tmp_path, "messages", 1)[0])
    repaired = check(tmp_path, repair=True)
    assert repaired.free_is_known
    assert repaired.salvaged > 1000
    assert check(tmp_path).is_sound
    assert bodies(records(tmp_path)) == bodies(expected)


def test_what_is_left_of_a_file_that_was_cut_off_is_taken_out(tmp_path: Path) -> None:
    filled(tmp_path, 5000)
    data = (tmp_path / "data.mdb").read_bytes()
    pages = metas(lambda offset, size: data[offset : offset + size])[0].last_page
    os.truncate(tmp_path / "data.mdb", pages * 4096 * 2 // 3)
    with pytest.raises(StoreCorruptException, match="truncated"):
        Broker(SETTINGS, str(tmp_path))
    assert "the file ends before it" in {each.text for each in check(tmp_path).damages}
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    Broker(SETTINGS, str(tmp_path)).close()


def test_a_long_value_whose_first_page_counts_others_is_found_and_kept(tmp_path: Path) -> None:
    broker = Broker(SETTINGS, str(tmp_path))
    send(broker, connect(broker), "q", b"x" * 50_000)
    broker.close()
    data = bytearray((tmp_path / "data.mdb").read_bytes())
    first = next(at for at in range(0, len(data), 4096) if data[at + 10 : at + 14] == bytes((4, 0, 13, 0)))
    data[first + 13] = 1  # LMDB would free 269 pages with this message
    (tmp_path / "data.mdb").write_bytes(data)
    assert check(tmp_path).damages
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    broker = Broker(SETTINGS, str(tmp_path))
    assert payloads(drained(broker, connect(broker), "q")) == [b"x" * 50_000]
    broker.close()


def test_a_table_whose_name_is_damaged_loses_nothing(tmp_path: Path) -> None:
    broker = Broker(SETTINGS, str(tmp_path))
    send(broker, connect(broker), "q", b"a", b"b")
    broker.close()
    data = (tmp_path / "data.mdb").read_bytes()
    (tmp_path / "data.mdb").write_bytes(data.replace(b"messages", b"messaget"))
    assert check(tmp_path).damages
    check(tmp_path, repair=True)
    assert check(tmp_path).is_sound
    broker = Broker(SETTINGS, str(tmp_path))
    assert payloads(drained(broker, connect(broker), "q")) == [b"a", b"b"]
    broker.close()


# Compacting.


def test_a_compacted_store_is_smaller_and_has_everything(tmp_path: Path) -> None:
    filled(tmp_path, 5000)
    broker = Broker(SETTINGS, str(tmp_path))
    client = connect(broker)
    for _ in range(5):
        send(broker, client, "gone", *("z" * 1000 for _ in range(1000)))
        broker.request("purge", {"destination": "gone"}, WAIT)
    broker.close()
    before, after = compact_store(tmp_path, SETTINGS)
    assert after == (tmp_path / "data.mdb").stat().st_size
    assert after < before
    assert check(tmp_path).is_sound
    assert everything(tmp_path) == {**ALL, "orders": 4998}


def test_a_store_in_use_is_not_compacted(tmp_path: Path) -> None:
    broker = Broker(SETTINGS, str(tmp_path))
    with pytest.raises(StoreLockedException, match="in use"):
        compact_store(tmp_path, SETTINGS)
    broker.close()


def test_a_store_with_damaged_pages_is_not_compacted(tmp_path: Path) -> None:
    filled(tmp_path, 2000)
    overwrite(tmp_path, page_of(tmp_path, "messages", 2)[0])
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(StoreCorruptException, match="run first: holdfast check"):
        compact_store(tmp_path, SETTINGS)
    assert (tmp_path / "data.mdb").read_bytes() == before


# Memory.


def large_store(path: Path) -> None:
    """100 messages of 1 MB."""
    broker = Broker(SETTINGS, str(path))
    client = connect(broker)
    for number in range(10):
        send(broker, client, "q", *(b"%d" % number + bytes(1_000_000) for _ in range(10)))
    broker.close()


def peak(act: Callable[[], Any]) -> int:
    """Most bytes that Python has at once meanwhile."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_repair_of_large_messages_takes_little_memory(tmp_path: Path) -> None:
    large_store(tmp_path)

    def all_bodies(txn: Txn, tables: Tables) -> None:
        for key, value in list(txn.cursor(db=tables["messages"])):
            txn.put(key, flipped(value), db=tables["messages"])

    damage(tmp_path, all_bodies)
    reports: list[Report] = []
    assert peak(lambda: reports.append(check(tmp_path))) < 30_000_000
    assert peak(lambda: reports.append(check(tmp_path, repair=True))) < 60_000_000
    for report in reports:
        assert len(report.findings) >= 100
        assert not any(finding.changes for finding in report.findings)
    assert check(tmp_path).is_sound
    assert check(tmp_path).summary.quarantined >= 100


@pytest.mark.damages
def test_the_check_of_a_running_engine_keeps_no_bodies(tmp_path: Path) -> None:
    large_store(tmp_path)

    def all_entries(txn: Txn, tables: Tables) -> None:
        for key, _ in list(txn.cursor(db=tables["entries"])):
            txn.delete(key, db=tables["entries"])

    damage(tmp_path, all_entries)
    broker = Broker(SETTINGS, str(tmp_path))
    assert peak(lambda: broker.request("check", {}, WAIT)) < 30_000_000
    assert peak(broker.check) < 30_000_000
    broker.close()


def test_a_rebuilt_file_of_large_messages_takes_little_memory(tmp_path: Path) -> None:
    large_store(tmp_path)
    overwrite(tmp_path, page_of(tmp_path, "catalog", 2)[0])
    assert peak(lambda: check(tmp_path, repair=True)) < 60_000_000
    assert check(tmp_path).is_sound


def test_a_delayed_message_keeps_its_time_where_the_schedule_is_lost(tmp_path: Path) -> None:
    broker = Broker(SETTINGS, str(tmp_path))
    client = connect(broker)
    envelopes = [
        Envelope(queue("q"), BodyKind.TEXT, str(due), deliver_at_ms=due) for due in (FAR_MS, FAR_MS + 5, 1 << 60)
    ]
    messages = [c.from_envelope(pack(each), each) for each in envelopes]
    broken = c.NewMessage(ENVELOPE_FORMAT, b"not a message", deliver_at_ms=FAR_MS)
    assert broker.call(c.Enqueue(client, queue("q"), [*messages, broken]), WAIT) is None
    assert depth(broker, "q") == 4
    broker.close()
    damage(tmp_path, _no_schedule)
    texts = [each.text for each in check(tmp_path, repair=True).findings]
    assert sum("as its message says" in text for text in texts) == 3
    assert sum("it becomes due now" in text for text in texts) == 1
    assert check(tmp_path).is_sound
    broker = Broker(SETTINGS, str(tmp_path))
    assert [each.payload for each in drained(broker, connect(broker), "q")] == [b"not a message"]
    broker.close()


def test_a_staged_message_whose_time_is_over_is_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It expires in the queue where it is published."""
    now = [500]
    monkeypatch.setattr("broker_adapter.engine.broker._now_ms", lambda: now[0])
    broker = Broker(SETTINGS, str(tmp_path))
    payloads = [pack(Envelope(queue("q"), BodyKind.TEXT, "x", expires_at_ms=1_000)) for _ in range(3)]
    assert broker.request("stage", {"transaction": "g/1/0", "queue": "q", "first": 0, "messages": payloads}, WAIT)
    assert [each.text for each in broker.check()] == []
    now[0] = 2_000
    come_to_rest(broker)
    assert [each.text for each in broker.check() if not each.harmless] == []
    broker.close()
    assert check(tmp_path).is_sound
    broker = Broker(SETTINGS, str(tmp_path))
    assert broker.request("publish", {"group": "g", "number": 1, "transactions": ["g/1/0"]}, WAIT) is True
    come_to_rest(broker)
    assert drained(broker, connect(broker), "q") == []
    broker.close()


def test_what_is_in_quarantine_can_be_listed_and_dropped_while_no_engine_has_the_store(tmp_path: Path) -> None:
    broker = Broker(SETTINGS, str(tmp_path))
    send(broker, connect(broker), "q", "one", "two")
    store = broker.store
    with store.snapshot() as tables:
        messages = dict(tables.items("messages"))
        entries = [key for key, _ in tables.items("entries")]
    sound, damaged = messages
    broker.close()
    damage(tmp_path, lambda txn, tables: txn.put(damaged, flipped(messages[damaged]), db=tables["messages"]))
    with sound_store(tmp_path, EngineSettings()) as store:
        assert quarantined(store) == []
        for table, keys in (("messages", [sound, damaged]), ("entries", entries[:1])):
            assert store.quarantine(table, keys)
    with sound_store(tmp_path, EngineSettings(), is_kept=True) as store:
        found = {each.name: each for each in quarantined(store)}
    lost, changed, entry = (
        found[f"{table}/{key.hex()}"]
        for table, key in (("messages", sound), ("messages", damaged), ("entries", entries[0]))
    )
    assert [(each.number, each.payload, each.is_sound) for each in (lost, changed)] == [
        (1, b"one", True),
        (2, flipped(b"two"), False),
    ]
    assert (entry.payload, entry.is_sound) == (None, False)
    with sound_store(tmp_path, EngineSettings()) as store:
        drop_quarantined(store, [changed, entry])
        assert quarantined(store) == [lost] == [Quarantined("messages", sound, messages[sound])]


def test_a_store_that_an_engine_has_open_cannot_be_read(tmp_path: Path) -> None:
    broker = Broker(SETTINGS, str(tmp_path))
    with pytest.raises(StoreLockedException, match="in use"), sound_store(tmp_path, EngineSettings()):
        pass
    broker.close()


def test_each_damaged_file_is_copied_where_the_file_system_has_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data.mdb").write_bytes(b"records")

    def no_links(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(maintenance.os, "link", no_links)
    assert maintenance._put_beside(tmp_path / "data.mdb").read_bytes() == b"records"
