"""Stores that earlier versions have written are read as they are; a small one of each is kept beside this file, of the
version of today as well, which will be an earlier one."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import lmdb
import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.records.layout import FIRST_STAGED_QUEUE, VERSION, VERSION_CHECK
from broker_adapter.engine.regions.event_records import Operation
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.engine.store.maintenance import check_store
from broker_adapter.envelope import ENVELOPE_FORMAT, Envelope, Identity, pack, unpack
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.desks import Desk, change, put
from tests.broker_adapter.engine.driving import WAIT, attach, connect, depth, drained, send, settle
from tests.broker_adapter.engine.old_store import MAX_STORE_BYTES
from tests.broker_adapter.engine.regions.values import values_of

#: What was staged then is not too old now.
SETTINGS = EngineSettings(max_store_bytes=MAX_STORE_BYTES, staged_timeout_seconds=1e9)
STORES = Path(__file__).parent / "stores"


def opened(directory: Path, version: int) -> Broker:
    directory.mkdir(exist_ok=True)
    data = gzip.decompress((STORES / f"version_{version}.mdb.gz").read_bytes())
    (directory / "data.mdb").write_bytes(data)
    return Broker(SETTINGS, str(directory))


def again(sequence: int, name: str) -> c.NewMessage:
    """A message of the old store, sent again."""
    identity = Identity("producer", 1, sequence)
    return c.NewMessage(ENVELOPE_FORMAT, pack(Envelope(queue(name), identity=identity)), identity=identity)


def bodies(handouts: list[c.Handout]) -> list[str]:
    return [unpack(each.payload).body for each in handouts]


PAGE = 4096
VERSIONS = pytest.mark.parametrize("version", [2, 3, 4, 5, 6, 7])


@VERSIONS
@pytest.mark.parametrize("starts", [1, 2])
def test_everything_of_an_old_store_is_there(tmp_path: Path, version: int, starts: int) -> None:
    broker = opened(tmp_path, version)
    for _ in range(starts - 1):
        broker.close()
        broker = Broker(SETTINGS, str(tmp_path))
    client = connect(broker, "me")
    # The first of 20 orders (the odd ones are more urgent) were rejected, acknowledged and committed.
    orders = [f"orders {number}" for number in (*range(7, 20, 2), *range(2, 21, 2), 21)]
    assert sorted(bodies(drained(broker, client, "orders"))) == sorted(orders)
    assert bodies(drained(broker, client, "DLQ")) == ["orders 1"]
    for name in ("one", "two"):
        subscription = Subscription(name, durable=True, shared=False)
        consumer, inbox = attach(broker, client, topic("news"), credit=10, subscription=subscription)
        got = inbox.wait_for(5)
        assert bodies(got) == [f"news {number}" for number in range(1, 6)]
        settle(broker, consumer, got)
    assert bodies(drained(broker, client, "target")) == ["staged 1"]
    assert [depth(broker, name) for name in ("later", "old", "t2")] == [1, 1, 1]
    broker.close()


@pytest.mark.parametrize("version", [6, 7])
def test_an_old_store_has_its_regions_and_what_is_queued_for_durable_clients(tmp_path: Path, version: int) -> None:
    broker = opened(tmp_path, version)
    values = {name: value for name, value in values_of(broker).items() if name[0] == "quotes"}
    assert values == {("quotes", "IBM"): b"IBM 3", ("quotes", "HP"): b"HP 2"}
    desk = Desk(broker)
    assert desk.pending == 4
    desk.ready()
    assert desk.events() == ["IBM=IBM 1", "IBM=IBM 3", "INTEL=INTEL 4", "INTEL=", "marker"]
    broker.close()


def test_a_store_of_version_7_has_interests_that_changed_in_place(tmp_path: Path) -> None:
    broker = opened(tmp_path, 7)
    identity = Identity("trader", 1, 1)
    operation, version = change(broker, "trades", "d", Wanted.PUT, "d 1", identity=identity)
    assert operation is Operation.CREATE, "it was answered so when it was put"
    assert change(broker, "trades", "d", Wanted.PUT, "d 2")[1] > version
    desk = Desk(broker, "many")
    desk.ready()
    assert desk.events() == ["d=d 1", "e=e 1", "d=d 2", "marker"]
    for key in "abf":
        put(broker, "trades", key, "new")
    assert desk.events()[4:] == ["b=new", "f=new"]
    broker.close()


@VERSIONS
def test_what_an_old_store_had_done_is_not_done_again(tmp_path: Path, version: int) -> None:
    broker = opened(tmp_path, version)
    client = connect(broker, "me")
    before = depth(broker, "orders")
    assert broker.call(c.Enqueue(client, queue("orders"), [again(20, "orders"), again(21, "orders")]), WAIT) is None
    assert depth(broker, "orders") == before
    assert broker.call(c.Enqueue(client, queue("orders"), [again(22, "orders")]), WAIT) is None
    assert depth(broker, "orders") == before + 1
    for number, done in ((7, True), (8, False)):
        assert broker.request("resolve_commit", {"session": "session", "number": number}, WAIT) is done
    assert broker.request("publish", {"group": "group", "number": 3, "transactions": []}, WAIT) is False
    assert broker.request("publish", {"group": "group", "number": 4, "transactions": ["t2"]}, WAIT) is True
    assert bodies(drained(broker, client, "target")) == ["staged 1", "staged 2"]
    broker.close()


@VERSIONS
def test_numbers_of_queues_of_an_old_store_are_not_reused(tmp_path: Path, version: int) -> None:
    broker = opened(tmp_path, version)
    highest = max(number for number in broker._state.directory.queues if number < FIRST_STAGED_QUEUE)
    assert broker.call(c.Declare(queue("new")), WAIT) is None
    assert broker._state.directory.by_destination[queue("new")].id == highest + 1
    broker.close()
    assert check_store(tmp_path, SETTINGS).is_sound


@VERSIONS
def test_messages_of_an_old_store_are_settled_like_new_ones(tmp_path: Path, version: int) -> None:
    broker = opened(tmp_path, version)
    client = connect(broker, "me")
    consumer, inbox = attach(broker, client, "orders", credit=100)
    settle(broker, consumer, inbox.wait_for(depth(broker, "orders")), Outcome.ACCEPTED)
    assert depth(broker, "orders") == 0
    broker.close()


@VERSIONS
def test_a_check_of_an_old_store_changes_nothing(tmp_path: Path, version: int) -> None:
    opened(tmp_path, version).close()
    data = gzip.decompress((STORES / f"version_{version}.mdb.gz").read_bytes())
    (tmp_path / "data.mdb").write_bytes(data)
    assert check_store(tmp_path, SETTINGS).is_sound
    assert (tmp_path / "data.mdb").read_bytes() == data


def test_dead_letters_of_an_old_store_go_back_where_they_were(tmp_path: Path) -> None:
    """What the engine notes with them has another checksum now."""
    broker = opened(tmp_path, 3)
    assert broker.request("redrive", {}, WAIT) == {"moved": 1, "left": 0}
    assert "orders 1" in bodies(drained(broker, connect(broker), "orders"))
    broker.close()


@VERSIONS
@pytest.mark.parametrize("is_upgraded", [False, True])
@pytest.mark.parametrize("damage", ["page", "key"])
def test_an_old_store_that_lost_its_version_loses_nothing_else(
    tmp_path: Path, version: int, is_upgraded: bool, damage: str
) -> None:
    opened(tmp_path, version).close()
    file = tmp_path / "data.mdb"
    if not is_upgraded:
        file.write_bytes(gzip.decompress((STORES / f"version_{version}.mdb.gz").read_bytes()))
    data = bytearray(file.read_bytes())
    for start in range(2 * PAGE, len(data), PAGE):
        if b"version" in data[start : start + PAGE]:
            if damage == "page":
                data[start : start + PAGE] = bytes(PAGE)
            else:
                data[start : start + PAGE] = data[start : start + PAGE].replace(b"version", b"versiom")
    file.write_bytes(data)
    report = check_store(tmp_path, SETTINGS, repair=True)
    assert not {"damaged message", "damaged catalogue record", "damaged entry"} & set(report.summary.problems)
    assert check_store(tmp_path, SETTINGS).is_sound
    broker = Broker(SETTINGS, str(tmp_path))
    client = connect(broker, "me")
    names = ("orders", "DLQ", "later", "old", "t2")
    assert [depth(broker, name) for name in names] == [18, 1, 1, 1, 1]
    assert len(drained(broker, client, "orders")) == 18
    subscription = Subscription("one", durable=True, shared=False)
    assert len(drained(broker, client, topic("news"), subscription=subscription)) == 5
    broker.close()


@pytest.mark.parametrize("queues", [31, 78])
def test_a_store_of_today_that_lost_its_version_keeps_its_numbers(tmp_path: Path, queues: int) -> None:
    """The checksum of these numbers begins with a byte that is a number by itself."""
    broker = Broker(SETTINGS, str(tmp_path))
    client = connect(broker)
    for number in itertools.count():
        if broker._state.directory.numbers.next == queues:
            break
        send(broker, client, f"queue {number}", "x")
    broker.close()
    with lmdb.open(str(tmp_path), max_dbs=32) as env, env.begin(write=True) as txn:
        for key in (VERSION, VERSION_CHECK):
            assert txn.delete(key, db=env.open_db(b"meta", txn=txn))
    broker = Broker(SETTINGS, str(tmp_path))
    assert broker._state.directory.numbers.next == queues
    assert send(broker, connect(broker), "another one", "x") is None
    broker.close()
