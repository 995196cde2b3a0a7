"""Regions by ranges of keys, snapshots of them, and changes of many keys, in the process and over AMQP."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker_adapter import BodyKind, Envelope, Identity, topic
from sdk import Connection, ConnectionFactory, InvalidDestinationException, UnsupportedOperationException
from sdk.region_reader import (
    RegionKey,
    change_keys,
    close_snapshot,
    create_region,
    open_snapshot,
    read_keys,
)
from sdk.regions.state import DESTROY, INVALIDATE, PUT
from tests.broker_adapter.engine.asking import damage_body
from tests.sdk.region_connections import Connect
from tests.sdk.small_broker import SmallBroker

NAMES = [f"k{number}" for number in range(9)]


def message(text: str, sequence: int = 0) -> Envelope:
    identity = Identity("maker", 1, sequence) if sequence else None
    return Envelope(topic("r"), BodyKind.TEXT, text, identity=identity)


def put(connection: Connection, *values: tuple[str, str]) -> list[int]:
    """Give keys their values; returns their versions."""
    answers = change_keys(connection, "r", [(key, PUT, message(text)) for key, text in values])
    return [version for _, version in answers]


def read(connection: Connection, snapshot: str | None = None, **wanted: Any) -> list[RegionKey]:
    return [key for found, _ in read_keys(connection, "r", snapshot, **wanted) for key in found]


def names(found: list[RegionKey]) -> list[str]:
    return [each.key for each in found]


def bodies(found: list[RegionKey]) -> dict[str, object]:
    return {each.key: None if (envelope := each.envelope()) is None else envelope.body for each in found}


@pytest.fixture
def connection(connect: Connect) -> Connection:
    made = connect()
    create_region(made, "r")
    create_region(made, "r")
    return made


def test_what_was_put_is_read_by_ranges_of_keys(connection: Connection) -> None:
    versions = put(connection, *((name, name.upper()) for name in NAMES))
    found = read(connection)
    assert bodies(found) == {name: name.upper() for name in NAMES}
    assert [each.version for each in found] == versions
    assert names(read(connection, after="k2", through="k5")) == ["k3", "k4", "k5"]
    assert names(read(connection, expression="k[0-2]")) == NAMES[:3]
    assert names(read(connection, selector="key IN ('k1', 'k7')")) == ["k1", "k7"]
    assert {each.payload for each in read(connection, values=False)} == {None}
    assert bodies(read(connection, values=False, through="k0")) == {"k0": None}


def test_an_answer_says_behind_which_key_reading_goes_on(connection: Connection) -> None:
    put(connection, *((name, "x" * 1000) for name in NAMES))
    parts = list(read_keys(connection, "r", max_bytes=2500))
    assert len(parts) > 2
    assert [each.key for found, _ in parts for each in found] == NAMES
    assert [behind for _, behind in parts[:-1]] == [found[-1].key for found, _ in parts[:-1]]
    assert parts[-1][1] is None


def test_a_snapshot_reads_the_same_whatever_others_put(connection: Connection, connect: Connect) -> None:
    versions = put(connection, *((name, "old") for name in NAMES))
    opened = open_snapshot(connection, "r", keys_per_part=3)
    assert opened.position == max(versions)
    assert opened.splits == sorted(set(opened.splits) & set(NAMES))
    assert 0 < len(opened.splits) < len(NAMES)
    put(connection, ("k3", "new"), ("later", "new"))
    other = connect()
    assert bodies(read(other, opened.token)) == dict.fromkeys(NAMES, "old")
    assert bodies(read(other))["k3"] == "new"
    assert close_snapshot(other, "r", opened.token)
    assert not close_snapshot(connection, "r", opened.token)
    with pytest.raises(InvalidDestinationException, match="snapshot"):
        read(connection, opened.token)


def test_a_change_that_is_asked_for_again_is_done_once(connection: Connection) -> None:
    changes = [("a", PUT, message("1", 1)), ("a", INVALIDATE, message("", 2))]
    answers = [tuple(each) for each in change_keys(connection, "r", changes)]
    assert [operation for operation, _ in answers] == [0, 2], "created, and invalidated"
    assert answers[0][1] < answers[1][1]
    again = [tuple(each) for each in change_keys(connection, "r", changes)]
    assert again[1] == answers[1]
    (found,) = read(connection)
    assert (found.is_valid, found.version, found.envelope()) == (False, answers[1][1], None)
    assert change_keys(connection, "r", [("b", DESTROY, message(""))])[0][0] is None, "there is no such key"


def test_a_region_that_is_not_there_is_named(connection: Connection) -> None:
    for ask in (lambda: open_snapshot(connection, "other"), lambda: list(read_keys(connection, "other"))):
        with pytest.raises(InvalidDestinationException, match="other"):
            ask()


@pytest.mark.damages
def test_a_value_that_is_damaged_is_named_and_left_out(tmp_path: Path) -> None:
    factory = ConnectionFactory(f"embedded:{tmp_path}")
    with closing(factory.create_connection()) as connection:
        create_region(connection, "r")
        put(connection, ("a", "1"), ("b", "2"), ("c", "3"))
        value = read(connection, after="a", through="b")[0].payload
    with closing(factory.create_connection()) as connection:  # its engine has none of the values in memory
        damage_body(connection._transport._broker, value)  # type: ignore[attr-defined]
        damaged: list[str] = []
        assert names(read(connection, on_damaged=damaged.extend)) == ["a", "c"]
        assert damaged == ["b"]


def test_another_broker_has_no_regions() -> None:
    with SmallBroker().connect() as connection:
        for ask in (lambda: open_snapshot(connection, "r"), lambda: create_region(connection, "r")):
            with pytest.raises(UnsupportedOperationException, match="only a Holdfast broker has regions"):
                ask()
