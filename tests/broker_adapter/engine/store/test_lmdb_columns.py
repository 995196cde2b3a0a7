"""Messages read as columns are those that are read one by one, or none where that has to be done."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.commands.messaging import NewMessage
from broker_adapter.engine.records.layout import (
    FLAG_ANNOTATED,
    FLAG_HANDED,
    FLAG_PERSISTENT,
    FLAG_SHARED,
    LAST_POSITION,
    entry_key,
    message_key,
)
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.port import StoredColumns
from tests.broker_adapter.engine.storing import damage, entry, reopened

_PLAIN = (FLAG_PERSISTENT, FLAG_PERSISTENT | FLAG_HANDED, FLAG_PERSISTENT | FLAG_SHARED)


def stored(path: Path, *messages: tuple[int, int, bytes], lane: int = 5, **fields: Any) -> LmdbStore:
    """A store whose queue 1 has messages (position, number, body) in a lane."""
    store = reopened(path)
    batch = StoreBatch()
    for position, number, body in messages:
        batch.entries.update([entry(1, lane, position, number, **{"size": len(body), **fields})])
        batch.messages[number] = NewMessage(7, body)
    batch.messages = dict(sorted(batch.messages.items()))
    store.commit(batch)
    return store


def one_by_one(store: LmdbStore, first: int, last: int, limit: int, most_bytes: int) -> StoredColumns:
    """What is to be read, from the two calls that read one by one."""
    found = store.read_entries(1, first, last, limit, most_bytes)
    size, entries = 0, []
    for each in found.entries:
        size += each.size
        if entries and size > most_bytes:
            break
        entries.append(each)
    bodies = [body for _, body in filter(None, store.read_messages([each.number for each in entries]))]
    return StoredColumns(
        [each.position for each in entries],
        [each.delivery_count for each in entries],
        [len(body) for body in bodies],
        b"".join(bodies),
        found.complete and len(entries) == len(found.entries),
    )


def as_lists(found: StoredColumns | None) -> Any:
    return None if found is None else (*map(list, found[:3]), *found[3:])


@pytest.mark.parametrize("seed", range(8))
def test_columns_are_what_is_read_one_by_one(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    store = reopened(tmp_path)
    batch = StoreBatch()
    position, number = random.choice((0, 1, 10**6)), random.choice((1, 2**33))
    numbers = range(number, number + random.choice((3, 300, 900)))
    order = list(numbers) if seed % 2 else random.sample(numbers, len(numbers))
    for each in order:
        position += random.choice((1, 1, 1, 2, 50))
        body = random.randbytes(random.choice((0, 1, 30, 300)))
        fields = {"flags": random.choice(_PLAIN), "delivery_count": random.choice((0, 0, 3)), "size": len(body)}
        batch.entries.update([entry(1, 5, position, each, **fields)])
        batch.messages[each] = NewMessage(random.choice((0, 7, 2**32 - 1)), body)
    batch.messages = dict(sorted(batch.messages.items()))
    batch.entries.update([entry(2, 5, 1, order[0]), entry(1, 255, 3, order[0])])  # of another queue, and delayed
    store.commit(batch)
    for _ in range(60):
        first = random.randrange(position + 3)
        last = random.choice((first, first + random.randrange(200), position, position + 9, LAST_POSITION))
        limit, most_bytes = random.choice((1, 7, 256, 257, 5000)), random.choice((0, 1, 400, 20_000, 10**9))
        wanted = one_by_one(store, first, last, limit, most_bytes)
        assert as_lists(store.read_columns(1, first, last, limit, most_bytes)) == as_lists(wanted)
    store.close()


@pytest.mark.parametrize("size", [255, 256, 257, 512])
def test_a_limit_at_the_end_of_what_is_decoded_at_once_is_kept(tmp_path: Path, size: int) -> None:
    store = stored(tmp_path, *((each, each, b"xy") for each in range(1, size + 1)))
    for limit in (size - 1, size, size + 1):
        found = store.read_columns(1, 1, size, limit, 10**9)
        assert found is not None
        assert (len(found.positions), found.is_complete) == (min(size, limit), limit >= size)
        assert as_lists(found) == as_lists(one_by_one(store, 1, size, limit, 10**9))
    for most_bytes in (2 * size - 1, 2 * size, 511, 512, 513):
        assert as_lists(store.read_columns(1, 1, size, 5000, most_bytes)) == as_lists(
            one_by_one(store, 1, size, 5000, most_bytes)
        )
    store.close()


def test_a_queue_without_messages_in_the_range_has_empty_columns(tmp_path: Path) -> None:
    store = stored(tmp_path, (5, 1, b"a"))
    for first, last in ((1, 4), (6, 9)):
        assert as_lists(store.read_columns(1, first, last, 10, 10)) == ([], [], [], b"", True)
    assert as_lists(store.read_columns(2, 1, 9, 10, 10)) == ([], [], [], b"", True)
    assert as_lists(store.read_columns(1, 6, 5, 10, 10)) == ([], [], [], b"", True)
    store.close()


def test_messages_of_two_priorities_are_read_one_by_one(tmp_path: Path) -> None:
    stored(tmp_path, (1, 1, b"a"), (3, 2, b"b")).close()
    store = stored(tmp_path, (2, 3, b"c"), (9, 4, b"d"), lane=4)
    assert store.read_columns(1, 1, 9, 10, 100) is None
    assert as_lists(store.read_columns(1, 4, 9, 10, 100)) == ([9], [0], [1], b"d", True)
    store.close()


def test_a_message_with_annotations_or_without_a_place_on_disk_is_read_one_by_one(tmp_path: Path) -> None:
    for number, flags in enumerate((FLAG_PERSISTENT | FLAG_ANNOTATED, 0)):
        store = stored(tmp_path / str(number), (1, 1, b"a"), flags=flags)
        assert store.read_columns(1, 1, 1, 10, 100) is None
        store.close()


@pytest.mark.parametrize("table", ["entries", "messages"])
@pytest.mark.parametrize("numbers", [(1, 2, 3), (1, 3, 5)])
def test_a_damaged_record_has_all_read_one_by_one(tmp_path: Path, table: str, numbers: tuple[int, ...]) -> None:
    stored(tmp_path, *((each, number, b"body") for each, number in enumerate(numbers))).close()
    damage(tmp_path, table, entry_key(1, 5, 1) if table == "entries" else message_key(numbers[1]))
    store = reopened(tmp_path)
    assert store.read_columns(1, 0, 9, 10, 100) is None
    assert as_lists(store.read_columns(1, 2, 9, 10, 100)) == ([2], [0], [4], b"body", True)
    store.close()


@pytest.mark.parametrize("numbers", [(1, 2, 3), (1, 3, 5)])
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_message_has_all_read_one_by_one(tmp_path: Path, numbers: tuple[int, ...], missing: int) -> None:
    """Also where the one behind it would be found in its place."""
    store = stored(tmp_path, *((each, number, b"body") for each, number in enumerate(numbers)), (9, 9, b"body"))
    batch = StoreBatch()
    batch.gone.append(numbers[missing])
    store.commit(batch)
    assert store.read_columns(1, 0, 8, 10, 100) is None
    store.close()


@pytest.mark.parametrize("value", [b"", b"short"])
def test_a_message_whose_record_is_too_short_has_all_read_one_by_one(tmp_path: Path, value: bytes) -> None:
    store = stored(tmp_path, (1, 1, b"a"), (2, 2, b"b"))
    store.apply([("messages", message_key(2), value)])
    assert store.read_columns(1, 1, 9, 10, 100) is None
    store.close()


def test_entries_with_keys_of_a_wrong_length_have_all_read_one_by_one(tmp_path: Path) -> None:
    store = stored(tmp_path, (300, 1, b"a"), (301, 2, b"b"))
    whole = dict(store_items(store))
    key = entry_key(1, 5, 300)
    store.apply([("entries", key, None), ("entries", key[:-1], key[-1:] + whole[key])])
    assert store.read_columns(1, 0, 400, 10, 100) is None
    store.close()


def store_items(store: LmdbStore) -> list[tuple[bytes, bytes]]:
    with store._env.begin() as txn:
        return list(txn.cursor(db=store._db["entries"]))
