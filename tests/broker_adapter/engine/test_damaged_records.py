"""Damaged records and keys: what a check finds, and what a repair leaves."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.records.layout import (
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
    decode_catalog,
    decode_entry,
    decode_meta,
    encode_entry,
    encode_meta,
    encode_reference,
    entry_key,
    message_key,
)
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack
from broker_adapter.errors import StoreCorruptException
from tests.broker_adapter.engine.damaging import (
    ALL,
    FAR_MS,
    SETTINGS,
    Tables,
    Txn,
    a_message_gone,
    an_entry_gone,
    check,
    damage,
    damaged,
    everything,
    filled,
    flipped,
    no_schedule,
    page_of,
    records,
    with_key,
)
from tests.broker_adapter.engine.driving import WAIT, come_to_rest, connect, depth, drained


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
        if entry.queue == 5:  # orders
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
    "message gone": (a_message_gone, "entry without a message", {"DLQ": 1}),
    "entry gone": (an_entry_gone, "wrong counters", {"DLQ": 1}),
    "message damaged": (damaged("messages"), "damaged message", {"one": 19, "two": 19}),
    "message misplaced": (_misplaced_message, "damaged message", {"one": 19, "two": 19}),
    "entry damaged": (damaged("entries"), "damaged entry", {"DLQ": 1}),
    "entry misplaced": (_misplaced_entry, "damaged entry", {"DLQ": 1}),
    "counters damaged": (damaged("queues"), "wrong counters", {}),
    "counters gone": (_no_counters, "wrong counters", {}),
    "schedule gone": (no_schedule, "delivery not scheduled", {}),
    "annotations gone": (_no_annotations, "annotations missing", {}),
    "annotations damaged": (damaged("annotations"), "annotations missing", {}),
    "references gone": (_no_references, "wrong count of references", {}),
    "references too low": (_too_few_references, "wrong count of references", {}),
    "references damaged": (damaged("references"), "wrong count of references", {}),
    "shared not marked": (_not_marked_as_shared, "entry not marked as shared", {}),
    "start damaged": (_a_damaged_start, "damaged record of a start", {}),
    "producers damaged": (damaged("producers"), "damaged record of numbers done", {}),
    "commits damaged": (damaged("commits"), "damaged record of numbers done", {}),
    "published damaged": (damaged("published"), "damaged record of numbers done", {}),
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
    damage(tmp_path, damaged("catalog"))
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
    damage(tmp_path, no_schedule)
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
