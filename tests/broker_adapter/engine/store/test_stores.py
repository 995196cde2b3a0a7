"""Two stores that are read as one: what is merged, what is cached, and what is said of a store that is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.identities import LastNumbers
from broker_adapter.engine.commands.messaging import NewMessage
from broker_adapter.engine.records.layout import (
    FLAG_ANNOTATED,
    FLAG_PERSISTENT,
    KIND_DELIVER,
    LAST_POSITION,
    RawEntry,
    encode_annotations,
    entry_key,
    message_key,
    quarantine_key,
    schedule_key,
    schedule_line,
)
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.port import Loaded
from broker_adapter.engine.store.stores import Stores
from broker_adapter.errors import StoreException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import full_up


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(EngineSettings(), LmdbStore(tmp_path, EngineSettings()))
    yield found
    found.close()


def entry(position: int, lane: int = 5) -> RawEntry:
    return RawEntry(1, lane, position, position, 0, 0, 0, 1)


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


def sent(*numbers: int, persistent: bool = True, size: int = 1) -> Effects:
    effects = Effects()
    batch = effects.durable if persistent else effects.volatile
    for number in numbers:
        batch.messages[number] = NewMessage(7, b"%d " % number + bytes(size))
    return effects


def gone(*numbers: int) -> Effects:
    effects = Effects()
    effects.durable.gone.extend(numbers)
    return effects


def bodies(stores: Stores, *wanted: tuple[int, int], pending: Effects | None = None) -> list[bytes | None]:
    return [None if found is None else found[1].split()[0] for found in stores.bodies(wanted, pending)]


def test_a_body_is_found_in_what_is_pending_in_the_cache_on_the_disk_and_in_memory(stores: Stores) -> None:
    stores.commit(sent(1, 2))
    stores._cache.clear()
    stores.commit(sent(3))
    stores.commit(sent(4, persistent=False))
    pending = sent(5)
    pending.volatile.messages.update(sent(6, persistent=False).volatile.messages)
    wanted = [(number, 0 if number in (4, 6) else FLAG_PERSISTENT) for number in (6, 5, 4, 3, 2, 1, 99)]
    assert bodies(stores, *wanted, pending=pending) == [b"6", b"5", b"4", b"3", b"2", b"1", None]
    assert bodies(stores, *wanted) == [None, None, b"4", b"3", b"2", b"1", None]


def test_what_comes_from_the_cache_is_not_read_from_the_disk(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    stores.commit(sent(1, 2))
    assert isinstance(stores.disk, LmdbStore)
    monkeypatch.setattr(stores.disk, "read_messages", lambda numbers: pytest.fail(f"read {numbers}"))
    assert bodies(stores, (2, FLAG_PERSISTENT), (1, FLAG_PERSISTENT)) == [b"2", b"1"]


def test_what_nobody_consumes_yet_is_not_kept_in_the_cache(stores: Stores) -> None:
    effects = sent(*range(1, 8))
    effects.durable.behind += [range(2, 4), range(6, 8)]
    stores.commit(effects)
    assert list(stores._cache) == [1, 4, 5]
    assert bodies(stores, *((number, FLAG_PERSISTENT) for number in range(1, 8))) == [b"%d" % n for n in range(1, 8)]


def test_the_cache_keeps_the_newest_messages_up_to_its_limit(tmp_path: Path) -> None:
    settings = EngineSettings(message_cache_bytes=10_000)
    stores = Stores(settings, LmdbStore(tmp_path, settings))
    for number in range(1, 21):
        stores.commit(sent(number, size=2_000))
    assert list(stores._cache) == [17, 18, 19, 20]
    assert 8_000 < stores._cache_bytes <= 10_000
    stores.commit(gone(18, 20))
    assert list(stores._cache) == [17, 19]
    assert 4_000 < stores._cache_bytes <= 5_000
    assert bodies(stores, *[(number, FLAG_PERSISTENT) for number in (1, 17, 20)]) == [b"1", b"17", None]
    stores.close()


def test_the_order_of_the_cache_does_not_grow_with_messages_that_are_gone(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_adapter.engine.store.stores._MOST_GONE", 10)
    stores.commit(sent(1))
    for number in range(2, 100):
        stores.commit(sent(number))
        stores.commit(gone(number))
        assert len(stores._cached) <= 12
    assert list(stores._cache) == [1]
    assert bodies(stores, (1, FLAG_PERSISTENT)) == [b"1"]


@pytest.mark.parametrize("persistent", [True, False])
def test_annotations_are_found_where_the_message_is_and_in_what_is_pending(stores: Stores, persistent: bool) -> None:
    flags = FLAG_ANNOTATED | (FLAG_PERSISTENT if persistent else 0)
    keys = [entry_key(1, 5, position) for position in (1, 2, 3)]

    def annotated(key: bytes, text: str) -> Effects:
        effects = Effects()
        batch = effects.durable if persistent else effects.volatile
        batch.put("annotations", key, encode_annotations(key, {"text": text}))
        return effects

    stores.commit(annotated(keys[0], "stored"))
    pending = annotated(keys[1], "pending")
    pending.taken_annotations[keys[2]] = encode_annotations(keys[2], {"text": "taken"})
    found = [stores.annotations(key, flags, pending) for key in keys]
    assert found == [{"text": "stored"}, {"text": "pending"}, {"text": "taken"}]
    assert [stores.annotations(key, flags) for key in keys] == [{"text": "stored"}, None, None]
    assert stores.annotations_of(entry(1)._replace(flags=flags)) == {"text": "stored"}
    assert stores.annotations_of(entry(1)._replace(flags=flags & ~FLAG_ANNOTATED)) is None


def test_the_last_number_of_a_name_is_looked_up_once(stores: Stores) -> None:
    effects = Effects()
    LastNumbers("commits", 1000, DecisionTime(), durable=True).note("session", 7, effects.durable)
    stores.commit(effects)
    numbers = LastNumbers("commits", 1000, DecisionTime(), durable=True)
    stores.look_up(numbers, "session")
    stores.look_up(numbers, "other")
    assert (numbers.last("session"), numbers.last("other")) == (7, None)
    effects = Effects()
    LastNumbers("commits", 1000, DecisionTime(), durable=True).note("session", 8, effects.durable)
    stores.commit(effects)
    stores.look_up(numbers, "session")
    assert numbers.last("session") == 7, "what is known is not read again"


@pytest.mark.parametrize("persistent", [True, False])
def test_a_commit_to_a_schedule_notes_what_is_due_first(stores: Stores, persistent: bool) -> None:
    for due_ms, first in ((300, 300), (200, 200), (400, 200)):
        effects = Effects()
        batch = effects.durable if persistent else effects.volatile
        batch.put("schedule", *schedule_line(due_ms, KIND_DELIVER, entry_key(1, 5, due_ms)))
        stores.commit(effects)
        assert stores.due_ms == first
    assert [each[2] for each in stores.due(300, 10)] == [
        schedule_key(due_ms, KIND_DELIVER, entry_key(1, 5, due_ms)) for due_ms in (200, 300)
    ]


def stored(*entries: RawEntry) -> Effects:
    effects = sent(*[each.number for each in entries], size=20_000)
    for each in entries:
        effects.durable.entries[entry_key(each.queue, each.lane, each.position)] = each
    return effects


def test_damaged_entries_are_new_once_and_go_into_quarantine_when_there_is_room(stores: Stores) -> None:
    keys = [entry_key(1, 5, position) for position in (1, 2)]
    stores.commit(stored(entry(1), entry(2)))
    disk = stores.disk
    assert isinstance(disk, LmdbStore)
    size = disk._env.info()["map_size"]
    disk._env.set_mapsize((disk._env.info()["last_pgno"] + 100) * disk._env.stat()["psize"])
    full_up(disk)
    assert stores.set_aside(keys[:1]) == keys[:1]
    assert stores.set_aside(keys) == keys[1:], "the first was met before"
    assert stores.in_quarantine == 0
    disk._env.set_mapsize(size)
    assert stores.set_aside(keys) == []
    assert stores.in_quarantine == 2
    assert not stores._not_set_aside


def test_a_body_that_is_put_aside_leaves_its_entry(stores: Stores) -> None:
    stores.commit(stored(entry(1)))
    assert stores.set_body_aside(1)
    assert isinstance(stores.disk, LmdbStore)
    assert stores.disk.in_quarantine([quarantine_key("messages", message_key(1))])
    assert stores.load(1, 5, 0, 10).entries == [entry(1)]


def test_messages_that_are_put_aside_go_with_their_entries_and_the_log_names_the_first(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [entry(position) for position in range(1, 13)]
    stores.commit(stored(*entries))
    assert stores.set_messages_aside([])
    assert not caplog.text
    assert stores.set_messages_aside([(each.number, entry_key(1, 5, each.position)) for each in entries])
    assert stores.in_quarantine == 24
    assert stores.load(1, 5, 0, 100).entries == []
    assert [each.getMessage() for each in caplog.records] == [
        "! message 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more cannot be trusted; in quarantine, and not delivered"
    ]


def test_messages_that_find_no_room_aside_stay_with_their_entries(stores: Stores) -> None:
    stores.commit(stored(entry(1)))
    disk = stores.disk
    assert isinstance(disk, LmdbStore)
    disk._env.set_mapsize((disk._env.info()["last_pgno"] + 100) * disk._env.stat()["psize"])
    full_up(disk)
    assert not stores.set_messages_aside([(1, entry_key(1, 5, 1))])
    assert stores.in_quarantine == 0
    assert stores.load(1, 5, 0, 10).entries == [entry(1)]
