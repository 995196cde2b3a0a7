"""A check of regions and durable clients finds what does not fit, and a repair puts it right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.clients.client_records import CursorRecord, decode_client, encode_cursor
from broker_adapter.engine.records.layout import LAST_STAMP, NEXT_STREAM, decode_meta, encode_meta
from broker_adapter.engine.regions.event_records import FEW, encode_posting, encode_run, run_key
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest, InterestKind
from broker_adapter.engine.regions.key_records import Wanted, decode_key_record
from broker_adapter.engine.regions.region_records import RegionRecord, decode_region, encode_region
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.maintenance import check_store
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.desks import Desk, change, make, put
from tests.broker_adapter.engine.regions.values import values_of

pytestmark = pytest.mark.damages

SETTINGS = EngineSettings()
#: What is found as well where a message loses a place, or a key or an event is lost.
CONSEQUENCES = (
    *("message without an entry", "place lost", "wrong counters", "wrong count of references"),
    "wrong counts of a region",
)
Items = list[tuple[bytes, bytes]]
#: Makes changes of what a table has.
Damage = Callable[[Items], list[tuple[str, bytes, bytes | None]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two regions, some desks that are away, and events for few and for many of them."""
    broker = Broker(SETTINGS, str(tmp_path))
    make(broker, "quotes", "orders")
    desks = [Desk(broker, f"desk {number}") for number in range(FEW + 2)]
    for number, desk in enumerate(desks):
        desk.want("quotes", Interest(InterestKind.KEY, "IBM"), Interest(InterestKind.KEY, f"k{number}"))
    desks[0].want("orders", ALL_KEYS)
    for name in ("IBM", "k0", "k1", "IBM"):
        put(broker, "quotes", name, name)
        put(broker, "orders", name, name)
    change(broker, "orders", "k1", Wanted.DESTROY)
    change(broker, "orders", "k0", Wanted.INVALIDATE)
    broker.close()
    assert check_store(tmp_path, SETTINGS).is_sound
    return tmp_path


def table(path: Path, name: str) -> Items:
    store = LmdbStore(path, SETTINGS)
    with store.snapshot() as tables:
        found = list(tables.items(name))
    store.close()
    return found


def damage(path: Path, name: str, make: Damage) -> None:
    changes = make(table(path, name))
    store = LmdbStore(path, SETTINGS)
    store.apply(changes)
    store.close()


def problems(path: Path) -> list[str]:
    """What a check finds, which a repair puts right; the engine works on what is left."""
    found = check_store(path, SETTINGS)
    repaired = check_store(path, SETTINGS, repair=True)
    assert {each.problem for each in repaired.findings} == {each.problem for each in found.findings}
    assert check_store(path, SETTINGS).is_sound
    broker = Broker(SETTINGS, str(path))
    put(broker, "quotes", "IBM", "after it")
    broker.close()
    assert check_store(path, SETTINGS).is_sound
    return sorted({each.problem for each in found.findings})


def without(name: str, index: int) -> tuple[str, Damage]:
    return name, lambda items: [(name, items[index][0], None)]


def garbled(name: str, index: int) -> tuple[str, Damage]:
    return name, lambda items: [(name, items[index][0], items[index][1][:-1] + b"\xff")]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (garbled("events", 0), ["damaged event", "message of no event or key"]),
        (without("events", 1), ["message of no event or key"]),
        (garbled("postings", 0), ["damaged posting", "postings missing"]),
        (without("postings", 0), ["postings missing"]),
        (without("postings", -1), ["postings missing"]),
        (garbled("audiences", 0), ["audience missing", "damaged audience"]),
        (without("audiences", 3), ["audience missing"]),
        (garbled("clients", 0), ["damaged durable client", "damaged interest"]),
        (garbled("interests", 0), ["damaged interest"]),
        (garbled("regions", 0), ["damaged region"]),
        (garbled("keys", 0), ["damaged key", "message of no event or key"]),
        (without("keys", 1), ["message of no event or key"]),
        (garbled("tombstones", 0), ["damaged tombstone", "tombstone missing"]),
        (without("tombstones", 0), ["tombstone missing"]),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else ",".join(each),
)
def test_it_is_found_and_repaired(path: Path, where: tuple[str, Damage], expected: list[str]) -> None:
    damage(path, *where)
    assert [each for each in problems(path) if each not in CONSEQUENCES] == expected


def test_what_is_counted_of_a_region_is_counted_again(path: Path) -> None:
    before = table(path, "regions")
    assert [decode_region(*each)[1:] for each in before] == [(3, 4), (2, 6)]
    damage(path, "regions", lambda items: [("regions", items[0][0], None)])
    assert problems(path) == ["wrong counts of a region"]
    key, _ = table(path, "regions")[1]
    damage(path, "regions", lambda _: [("regions", key, encode_region(key, RegionRecord(True, 9, 9)))])
    assert problems(path) == ["wrong counts of a region"]
    assert decode_region(*table(path, "regions")[1]) == RegionRecord(True, 2, 6)


def test_each_update_of_a_run_is_found_by_it(path: Path) -> None:
    broker = Broker(SETTINGS, str(path))
    conflating = Desk(broker, "conflating", conflation="true")
    conflating.want("quotes")
    for number in range(3):
        put(broker, "quotes", "IBM", number)
    broker.close()
    assert check_store(path, SETTINGS).is_sound
    assert len(table(path, "runs")) == 3
    damage(path, *without("runs", 1))
    assert problems(path) == ["run missing"]
    damage(path, *garbled("runs", 0))
    assert problems(path) == ["damaged run", "run missing"]
    of_none = run_key(1, 2)
    damage(path, "runs", lambda _: [("runs", of_none, encode_run(of_none))])
    assert problems(path) == ["damaged run"]


def test_a_damaged_message_takes_its_event_and_the_value_of_its_key_away(path: Path) -> None:
    damage(path, "messages", lambda items: [("messages", items[-1][0], items[-1][1][:-1])])
    assert "damaged message" in problems(path)
    states = [decode_key_record(key, value).state for key, value in table(path, "keys")]
    assert len(states) == 6


def test_a_cursor_that_is_damaged_or_of_no_client_goes_into_quarantine(path: Path) -> None:
    (key, _), *_ = table(path, "clients")
    damage(path, "cursors", lambda _: [("cursors", key, b"damaged")])
    assert problems(path) == ["damaged cursor"]
    damage(
        path, "cursors", lambda _: [("cursors", b"=nobody", encode_cursor(b"=nobody", CursorRecord(1, 0, (0,) * 8)))]
    )
    assert problems(path) == ["damaged cursor"]


def test_a_cursor_that_has_moved_counts_for_what_is_queued(path: Path) -> None:
    before = queued(path)
    (key, _), *_ = table(path, "clients")
    damage(path, "cursors", lambda _: [("cursors", key, encode_cursor(key, CursorRecord(1 << 40, 0, (1, 2, 3, 4))))])
    damage(path, "postings", lambda items: [("postings", each, None) for each, _ in items])
    check_store(path, SETTINGS, repair=True)
    found = queued(path)
    assert [name for name in before if found[name] != before[name]] == [key[1:].decode()]
    assert found[key[1:].decode()] == ["marker"]


def test_postings_in_a_wrong_order_are_numbered_again(path: Path) -> None:
    damage(path, "postings", lambda items: [("postings", key, encode_posting(key, 5)) for key, _ in items])
    assert problems(path) == ["postings missing"]


def test_the_number_of_the_next_audience_is_above_all_that_there_are(path: Path) -> None:
    damage(path, "meta", lambda _: [("meta", NEXT_STREAM, encode_meta(NEXT_STREAM, 1))])
    assert problems(path) == ["wrong number of the next audience"]
    damage(path, "meta", lambda _: [("meta", NEXT_STREAM, None)])
    assert problems(path) == ["wrong number of the next audience"]


def test_the_last_stamp_is_not_older_than_that_of_a_key(path: Path) -> None:
    def older(items: Items) -> bytes:
        return encode_meta(LAST_STAMP, decode_meta(LAST_STAMP, dict(items)[LAST_STAMP]) - 1)

    for wrong in (older, lambda _: None, lambda _: b"damaged"):
        last = decode_meta(LAST_STAMP, dict(table(path, "meta"))[LAST_STAMP])
        damage(path, "meta", lambda items: [("meta", LAST_STAMP, wrong(items))])  # noqa: B023
        assert problems(path) == ["wrong last stamp"]
        assert decode_meta(LAST_STAMP, dict(table(path, "meta"))[LAST_STAMP]) > last


def queued(path: Path) -> dict[str, list[Any]]:
    """What each client gets."""
    broker = Broker(SETTINGS, str(path))
    found = {}
    for key, value in table_of(broker, "clients"):
        client_id = decode_client(key, value).client_id
        desk = Desk(broker, client_id)
        desk.ready()
        found[client_id] = desk.events()
    broker.close()
    return found


def table_of(broker: Broker, name: str) -> Items:
    with broker.store.snapshot() as tables:
        return list(tables.items(name))


@pytest.mark.parametrize("name", ["postings", "audiences"])
def test_what_can_be_made_again_costs_no_client_an_event(path: Path, name: str) -> None:
    broker = Broker(SETTINGS, str(path))
    values = values_of(broker)
    broker.close()
    before = queued(path)
    damage(path, name, lambda items: [(name, key, None) for key, _ in items])
    check_store(path, SETTINGS, repair=True)
    assert queued(path) == before
    broker = Broker(SETTINGS, str(path))
    assert values_of(broker) == values
    broker.close()


def test_an_engine_starts_with_audiences_that_are_gone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = queued(path)
    damage(path, "audiences", lambda items: [("audiences", key, None) for key, _ in items])
    assert queued(path) == before
    assert "holdfast check" in caplog.text


def test_a_store_without_regions_costs_no_look_at_its_entries() -> None:
    """The tables of regions are empty, and nothing else is read."""
    from broker_adapter.engine.check.events import EventCheck

    class Tables:
        persistent = True

        def count(self, table: str) -> int:
            return 0

        def items(self, table: str) -> Any:
            raise AssertionError(table)

        get = items

    assert list(EventCheck(Tables(), {}, None).findings()) == []
