"""Damaged roots of a store: which of the two is the newest, and what is kept without it."""

from __future__ import annotations

import sys
from pathlib import Path

import lmdb
import pytest

from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.check.pages import metas
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.records.layout import TABLES
from broker_adapter.engine.store.maintenance import compact_store
from broker_adapter.errors import StoreCorruptException, StoreException
from tests.broker_adapter.engine.damaging import ALL, SETTINGS, bodies, check, everything, filled, overwrite, records
from tests.broker_adapter.engine.driving import WAIT, connect, message, send


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
