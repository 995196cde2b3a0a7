"""Checks, repairs and compaction of a store: what is touched, and what there is at each moment."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.check.pages import metas
from broker_adapter.engine.store import maintenance
from broker_adapter.engine.store.maintenance import (
    QuarantinedRecord,
    check_store,
    compact_store,
    drop_quarantined,
    quarantined,
    sound_store,
)
from broker_adapter.errors import StoreCorruptException, StoreException, StoreLockedException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.damaging import (
    ALL,
    SETTINGS,
    check,
    damage,
    everything,
    filled,
    flipped,
    overwrite,
    page_of,
    records,
)
from tests.broker_adapter.engine.driving import WAIT, connect, depth, send


def test_a_sound_store_is_sound(tmp_path: Path) -> None:
    filled(tmp_path)
    report = check(tmp_path)
    assert report.is_sound
    assert not report.damages
    assert (report.summary.queues, report.summary.shared, report.summary.delayed) == (8, 20, 1)
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
    small = EngineSettings(max_store_bytes=64 * 1024 * 1024, min_free_disk_bytes=0, blocked_send_timeout_seconds=0.01)
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
    for page in page_of(tmp_path, "messages", 2)[:5]:
        overwrite(tmp_path, page)
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
        assert quarantined(store) == [lost] == [QuarantinedRecord("messages", sound, messages[sound])]


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
