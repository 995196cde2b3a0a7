"""The requests of copies: what two stores have in common, waiting for a commit, and how far each copy is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.operations import copies
from broker_adapter.engine.operations.copies import MOST_SPANS, unpack_records
from broker_adapter.engine.operations.copy_states import Copies
from broker_adapter.engine.records.layout import STORE_VERSION
from broker_adapter.engine.store.deltas import IMAGE_TABLES
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    MessageFormatException,
    StoreException,
)
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.asking import ask
from tests.broker_adapter.engine.driving import connect, send
from tests.broker_adapter.engine.storing import damage

WRITER = b"writer w"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(EngineSettings(max_message_bytes=64 * 1024 * 1024), str(tmp_path))
    yield broker
    broker.close()


def follow(broker: Broker, *spans: tuple[bytes, int, int]) -> dict[str, Any]:
    found: dict[str, Any] = ask(broker, "follow", node="copy", spans=[list(each) for each in spans])
    return found


def last(broker: Broker) -> tuple[int, bytes]:
    """The last commit: its number, and who wrote it."""
    key, value = follow(broker)["commit"]
    return int.from_bytes(key), value[4:12]


def behind(broker: Broker, after: int, writer: bytes, **more: Any) -> Any:
    return ask(broker, "read_commits", node="copy", after=after, writer=writer, **more)


def test_the_first_copy_that_asks_has_commits_noted(broker: Broker) -> None:
    assert ask(broker, "copies") == {"lsn": 0, "tail": 0, "copies": [], "group": None}
    assert behind(broker, 1, WRITER) is None
    found = follow(broker)
    assert (found["common"], found["lsn"], found["version"]) == (None, 1, STORE_VERSION)
    assert found["unique"] == broker.unique
    assert found["bytes"] > 0
    assert follow(broker)["lsn"] == 1
    send(broker, connect(broker), "q", "a")
    assert ask(broker, "copies")["lsn"] > 1


def test_an_engine_without_a_disk_has_no_copies() -> None:
    broker = Broker(EngineSettings())
    for operation, arguments in (
        ("copies", {}),
        ("follow", {"node": "copy", "spans": []}),
        ("read_commits", {"node": "copy", "after": 1, "writer": WRITER}),
        ("read_records", {"table": "meta", "keys": []}),
        ("read_image", {"table": "meta"}),
        ("read_piece", {"table": "meta", "key": b"k"}),
    ):
        with pytest.raises((IllegalStateException, StoreException)):
            ask(broker, operation, **arguments)
    assert broker.failed is None
    broker.close()


def test_what_is_in_common_is_found_by_the_writers(broker: Broker) -> None:
    lsn, writer = last(broker)
    client = connect(broker)
    for _ in range(3):
        send(broker, client, "q", "a")
    now = follow(broker)["lsn"]
    assert now >= lsn + 3
    assert follow(broker, (writer, 1, 2))["common"] == 2
    assert follow(broker, (writer, 1, 2), (WRITER, 3, 9))["common"] == 2
    assert follow(broker, (writer, 1, 99))["common"] == now
    assert follow(broker, (WRITER, 1, 2))["common"] is None


def test_what_a_copy_asks_is_checked(broker: Broker) -> None:
    for spans in ([[b"short", 1, 2]], [[WRITER, 1]], [WRITER], [[WRITER, 1.0, 2]], [[WRITER, 1, 2]] * (MOST_SPANS + 1)):
        with pytest.raises(MessageFormatException):
            ask(broker, "follow", node="copy", spans=spans)
    for node in ("", "x" * 201):
        with pytest.raises(MessageFormatException, match="'node' is a name of 1 to 64"):
            ask(broker, "follow", node=node, spans=[])
    lsn, writer = last(broker)
    for who in (
        *({"node": "a b"}, {"node": "x" * 65}, {"term": 1}, {"term": 1, "node": "n"}),
        *(
            {"term": 1, "node": "n", "address": each}
            for each in ("", "host", "host:", ":1", "a b:1", "u@h:1", "h:0", "h:65536", "x" * 256)
        ),
    ):
        with pytest.raises(MessageFormatException, match=r"the argument '(node|term)'"):
            ask(broker, "read_commits", after=lsn, writer=writer, **who)
    for table in ("tail", "", "other"):
        for operation, more in (("read_image", {}), ("read_records", {"keys": []}), ("read_piece", {"key": b"k"})):
            with pytest.raises(MessageFormatException, match="there is no table"):
                ask(broker, operation, table=table, **more)


def test_the_answer_comes_at_once_where_there_is_something(broker: Broker) -> None:
    lsn, writer = last(broker)
    send(broker, connect(broker), "q", "body")
    answer = behind(broker, lsn, writer, wait_ms=30_000)
    (puts, _), rest = unpack_records(answer["records"])
    assert answer["last"] == answer["lsn"] > lsn
    assert puts["messages"][0][1].endswith(b"body")
    assert rest == ()


def test_a_question_waits_for_a_commit(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    lsn, writer = last(broker)
    client = connect(broker)
    lsn, writer = last(broker)
    waits = threading.Event()
    assert broker.store.tail is not None
    wait = broker.store.tail.wait_behind

    def waiting(lsn: int, seconds: float) -> None:
        waits.set()
        wait(lsn, 60)

    monkeypatch.setattr(broker.store.tail, "wait_behind", waiting)
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(behind(broker, lsn, writer, wait_ms=30_000)))
    asking.start()
    assert waits.wait(60)
    send(broker, client, "q", "a")
    asking.join(60)
    assert answers[0]["last"] == lsn + 1


def test_a_wait_without_a_commit_ends(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    lsn, writer = last(broker)
    monkeypatch.setattr(copies, "_LOOK_SECONDS", 0.001)
    answer = behind(broker, lsn, writer, wait_ms=10)
    assert answer["last"] == answer["lsn"] == lsn


def test_a_wait_ends_with_the_connection_and_with_the_engine(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    lsn, writer = last(broker)
    monkeypatch.setattr(copies, "_LOOK_SECONDS", 0.001)
    arguments = {"node": "copy", "after": lsn, "writer": writer, "wait_ms": 30_000}
    asked = iter([False, False, True])
    with pytest.raises(ConnectionLostException):
        broker.request("read_commits", arguments, 60, lambda: next(asked))

    def close() -> bool:
        broker.close()
        return False

    with pytest.raises(IllegalStateException):
        broker.request("read_commits", arguments, 60, close)


def test_a_commit_of_another_writer_or_one_that_is_dropped_is_not_known(broker: Broker) -> None:
    lsn, writer = last(broker)
    assert behind(broker, lsn, WRITER) is None
    assert behind(broker, lsn + 1, writer) is None
    assert behind(broker, 0, writer) is None


@pytest.mark.damages
def test_a_damaged_commit_means_an_image(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    lsn, writer = last(broker)
    client = connect(broker)
    send(broker, client, "q", "a")
    send(broker, client, "q", "b")
    broker.close()
    damage(tmp_path, "tail", (lsn + 1).to_bytes(8))
    broker = Broker(EngineSettings(), str(tmp_path))
    assert behind(broker, lsn, writer) is None
    assert "the copy 'copy' has to begin again with an image" in caplog.text
    assert follow(broker, (writer, 1, lsn))["common"] is None
    broker.close()


def test_a_large_record_is_read_in_pieces(broker: Broker) -> None:
    lsn, writer = last(broker)
    body = b"x" * (9 * 1024 * 1024)
    send(broker, connect(broker), "q", body)
    ((table, key, size, _),) = unpack_records(behind(broker, lsn, writer)["records"])[1]
    assert (table, size) == ("messages", len(body) + 8)
    pieces = [ask(broker, "read_piece", table=table, key=key, offset=at)["piece"] for at in (0, 8 * 1024 * 1024, size)]
    assert [len(each) for each in pieces] == [8 * 1024 * 1024, size - 8 * 1024 * 1024, 0]
    assert b"".join(pieces).endswith(body)
    assert ask(broker, "read_piece", table=table, key=b"none")["piece"] is None


def test_an_image_is_all_tables_but_the_tail(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(broker)
    send(broker, connect(broker), "q", *range(20))
    monkeypatch.setattr(copies, "ANSWER_BYTES", 100)
    found: dict[str, dict[bytes, bytes]] = {}
    for table in IMAGE_TABLES:
        after, until = b"", None
        while after is not None:
            answer = ask(broker, "read_image", table=table, after=after, until=until)
            (puts, deletes), _ = unpack_records(answer["records"])
            assert not deletes
            found.setdefault(table, {}).update(puts.get(table, ()))
            after, until = answer["next"], answer["until"]
    with broker.store.snapshot() as records:
        assert found == {table: dict(records.items(table)) for table in IMAGE_TABLES}


# How far copies are.


def test_a_copy_that_asks_for_more_than_there_is_has_everything() -> None:
    known = Copies()
    known.asks("copy", 7, None, 7, 100.0)
    assert known.described(7, 101.5) == [
        {"node": "copy", "lsn": 7, "behind": 0, "behind_ms": 0, "seen_ms": 1500, "image": None}
    ]
    (found,) = known.described(9, 102.0)
    assert (found["behind"], found["behind_ms"]) == (2, 2000)


def test_how_long_ago_a_copy_had_everything_is_known_where_it_never_has_everything_as_it_asks() -> None:
    known = Copies()

    def behind_ms(now: float) -> Any:
        return known.described(1000, now)[0]["behind_ms"]

    known.asks("copy", 10, None, 20, 100.0)
    assert behind_ms(100.0) is None
    known.asks("copy", 15, None, 30, 101.0)
    assert behind_ms(101.0) is None
    known.asks("copy", 20, None, 40, 102.0)
    assert behind_ms(102.0) == 2000, "it has what was there at 100"
    known.asks("copy", 39, None, 50, 103.0)
    assert behind_ms(103.0) == 3000
    known.asks("copy", 40, None, 60, 104.0)
    assert behind_ms(104.0) == 2000


def test_the_hundred_copies_that_asked_last_are_remembered() -> None:
    known = Copies()
    for number in range(100):
        known.asks(f"copy {number:02}", 1, 500, 1, float(number))
    known.asks("copy 00", 2, None, 1, 100.0)
    known.asks("one more", 1, None, 1, 101.0)
    names = [each["node"] for each in known.described(1, 102.0)]
    assert len(names) == 100
    assert {"copy 00", "one more"} <= set(names)
    assert "copy 01" not in names


def test_an_image_is_told_in_thousandths(broker: Broker) -> None:
    lsn, writer = last(broker)
    behind(broker, lsn, writer, image=250)
    (found,) = ask(broker, "copies")["copies"]
    assert (found["node"], found["lsn"], found["image"]) == ("copy", lsn, 250)
    for wrong in (1001, -1):
        with pytest.raises(MessageFormatException):
            behind(broker, lsn, writer, image=wrong)


def test_a_store_that_was_followed_is_noted_on_by_the_next_engine(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    lsn, writer = last(broker)
    broker.close()
    store = LmdbStore(tmp_path, EngineSettings())
    assert store.tail is not None
    store.close()
    broker = Broker(EngineSettings(), str(tmp_path))
    send(broker, connect(broker), "q", "a")
    assert follow(broker, (writer, 1, lsn))["common"] == lsn
    assert behind(broker, lsn, writer)["last"] > lsn
    broker.close()
