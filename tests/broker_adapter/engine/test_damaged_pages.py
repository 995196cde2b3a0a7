"""Damaged pages of a store: a repair loses nothing that can be read."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.check.pages import FREE_PAGES, File, metas
from broker_adapter.engine.check.record_kinds import tables_of
from broker_adapter.engine.records.layout import RUN_PREFIX, TABLES, RunRecord
from broker_adapter.engine.records.start_numbers import number_of
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.errors import StoreCorruptException
from tests.broker_adapter.engine.damaging import (
    ALL,
    FAR_MS,
    SETTINGS,
    bodies,
    check,
    everything,
    filled,
    overwrite,
    page_of,
    records,
    with_flipped_key,
)
from tests.broker_adapter.engine.driving import connect, depth, drained, payloads, send
from tests.broker_adapter.engine.storing import note


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


@pytest.mark.parametrize("seed", range(40))
def test_any_pages_may_be_zeroed_or_hold_anything(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    filled(tmp_path, 500)
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
