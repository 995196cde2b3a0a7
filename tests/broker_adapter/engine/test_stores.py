"""Two stores that are read as one: what is merged, what is cached, and what is said of a store that is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.engine.effects import Effects
from broker_adapter.engine.lmdb_store import LmdbStore
from broker_adapter.engine.records import LAST_POSITION, RawEntry
from broker_adapter.engine.store import Loaded
from broker_adapter.engine.stores import Stores
from broker_adapter.errors import StoreException
from broker_adapter.settings import EngineSettings


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(EngineSettings(), LmdbStore(tmp_path, EngineSettings()))
    yield found
    found.close()


def entry(position: int, lane: int = 5) -> RawEntry:
    return RawEntry(1, lane, position, position, 0, 0, 0, 1, None)


def answer(monkeypatch: pytest.MonkeyPatch, stores: Stores, name: str, disk: Loaded, memory: Loaded) -> None:
    monkeypatch.setattr(stores.disk, name, lambda *_: disk)
    monkeypatch.setattr(stores.memory, name, lambda *_: memory)


@pytest.mark.parametrize("name", ["load", "browse"])
def test_entries_of_both_stores_come_in_the_order_of_delivery(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    on_disk = Loaded([entry(3, lane=1), entry(2)], [b"key"], True)
    answer(monkeypatch, stores, name, on_disk, Loaded([entry(9, lane=1), entry(1)], [], True))
    found = getattr(stores, name)(1, 0, 0, 10)
    assert found == Loaded([entry(3, lane=1), entry(9, lane=1), entry(1), entry(2)], [b"key"], True)


def test_a_range_of_both_stores_comes_by_position_and_up_to_its_limit(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk = Loaded([entry(1), entry(4, lane=1)], [], True)
    answer(monkeypatch, stores, "read_entries", on_disk, Loaded([entry(2)], [], True))
    assert stores.read_entries(1, 0, LAST_POSITION, 2) == Loaded([entry(1), entry(2)], [], False)
    assert stores.read_entries(1, 0, LAST_POSITION, 3) == Loaded([entry(1), entry(2), entry(4, lane=1)], [], True)


def test_nothing_is_returned_behind_the_end_of_a_store_that_has_more(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, stores, "load", Loaded([entry(1), entry(2)], [], False), Loaded([entry(5)], [], True))
    assert stores.load(1, 5, 0, 2) == Loaded([entry(1), entry(2)], [], False)


def test_without_a_disk_all_is_in_memory_and_nothing_durable_is_accepted() -> None:
    stores = Stores(EngineSettings(), None)
    assert stores.disk is None
    for found in (stores.load(1, 5, 0, 10), stores.browse(1, 0, 0, 10), stores.read_entries(1, 0, 10, 10)):
        assert found == Loaded([], [], True)
    assert stores.due(1 << 60, 10) == []
    assert stores.in_quarantine == 0
    assert stores.set_aside([b"key"]) == []
    assert stores.set_body_aside(1)
    assert stores.set_messages_aside([(1, b"key")])
    effects = Effects()
    effects.durable.tables["meta"] = {b"key": b"value"}
    with pytest.raises(StoreException, match="the rules put something durable into an engine without a disk"):
        stores.commit(effects)


def test_a_commit_says_whether_the_disk_had_a_part_in_it(stores: Stores) -> None:
    effects = Effects()
    assert not stores.commit(effects)
    effects.durable.gone.append(1)
    assert stores.commit(effects)


@pytest.mark.parametrize(
    ("disk", "memory", "first"), [(None, None, None), (7, None, 7), (None, 8, 8), (7, 8, 7), (9, 8, 8)]
)
def test_the_first_item_of_both_schedules_counts(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, disk: Any, memory: Any, first: Any
) -> None:
    monkeypatch.setattr(stores.disk, "first_due_ms", lambda: disk)
    monkeypatch.setattr(stores.memory, "first_due_ms", lambda: memory)
    stores.note_first_due()
    assert stores.due_ms == first
