"""A store with something of everything, damage to it, and what a check and an engine say of it then."""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb

from ack_modes import Outcome
from broker_adapter.destination import queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.check.pages import File, metas
from broker_adapter.engine.commands import gateways as g
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.records.gateway_records import GatewayRecord
from broker_adapter.engine.records.layout import TABLES, decode_entry, message_key, split_quarantine_key
from broker_adapter.engine.store.maintenance import Report, check_store
from broker_adapter.envelope import Identity
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.driving import WAIT, attach, connect, depth, drained, message, send, settle, subscribe

SETTINGS = EngineSettings(max_store_bytes=256 * 1024 * 1024, min_free_disk_bytes=0)
FAR_MS = 4_102_444_800_000


def filled(path: Path, messages: int = 300) -> None:
    """A store with something in every table: a copy of one that was filled once."""
    path.mkdir(parents=True, exist_ok=True)
    for name, data in _filled(messages).items():
        (path / name).write_bytes(data)
        (path / name).chmod(0o600)


@functools.cache
def _filled(messages: int) -> dict[str, bytes]:
    """The files of such a store, by their names."""
    with tempfile.TemporaryDirectory() as directory:
        _fill(Path(directory), messages)
        return {file.name: file.read_bytes() for file in Path(directory).iterdir()}


def _fill(path: Path, messages: int) -> None:
    broker = Broker(SETTINGS, str(path))
    broker.call(g.CreateGateway("east", GatewayRecord("amqp://far", ["region:quotes"], state="running")), WAIT)
    client = connect(broker, "me")
    subscribe(broker, client, "news", "one", "two")
    send(broker, client, topic("news"), *(f"news {number}" for number in range(20)))
    bodies = [message(f"order {number}" + "x" * 200, identity=Identity("p", 1, number)) for number in range(messages)]
    broker.call(c.Enqueue(client, queue("orders"), bodies), WAIT)
    send(broker, client, "large", *("y" * 20_000 for _ in range(5)))
    send(broker, client, "later", "later", deliver_at_ms=FAR_MS)
    send(broker, client, "mortal", "mortal", expires_at_ms=FAR_MS)
    consumer, inbox = attach(broker, client, "orders", credit=2)
    settle(broker, consumer, inbox.wait_for(2), Outcome.REJECTED)
    broker.call(c.Commit(client, c.CommitId("s", 7), [], []), WAIT)
    broker.call(c.Publish("g", 3, []), WAIT)
    assert [each.text for each in broker.check() if not each.harmless] == []
    broker.close()


def everything(path: Path) -> dict[str, int]:
    broker = Broker(SETTINGS, str(path))
    client = connect(broker, "me")
    found = {}
    for name in ("orders", "large", "mortal", "DLQ"):
        found[name] = len(drained(broker, client, name))
    for name in ("one", "two"):
        subscription = Subscription(name, durable=True, shared=False)
        found[name] = len(drained(broker, client, topic("news"), subscription=subscription))
    found["later"] = depth(broker, "later")
    assert [each.text for each in broker.check() if not each.harmless] == []
    broker.close()
    return found


ALL = {"orders": 298, "large": 5, "mortal": 1, "DLQ": 2, "one": 20, "two": 20, "later": 1}

Txn = Any
Tables = dict[str, Any]


def damage(path: Path, act: Callable[[Txn, Tables], None]) -> None:
    """Change records behind the engine's back."""
    env = lmdb.open(str(path), max_dbs=len(TABLES), map_size=SETTINGS.max_store_bytes)
    tables = {table: env.open_db(table.encode()) for table in TABLES}
    with env.begin(write=True) as txn:
        act(txn, tables)
    env.close()


def first(txn: Txn, tables: Tables, table: str) -> tuple[bytes, bytes]:
    with txn.cursor(db=tables[table]) as cursor:
        assert cursor.first()
        return cursor.item()


def flipped(value: bytes, index: int = -1) -> bytes:
    changed = bytearray(value)
    changed[index] ^= 0x40
    return bytes(changed)


def check(path: Path, *, repair: bool = False) -> Report:
    return check_store(path, SETTINGS, repair=repair)


def a_message_gone(txn: Txn, tables: Tables) -> None:
    entry = decode_entry(*first(txn, tables, "entries"))
    assert txn.delete(message_key(entry.number), db=tables["messages"])


def an_entry_gone(txn: Txn, tables: Tables) -> None:
    assert txn.delete(first(txn, tables, "entries")[0], db=tables["entries"])


def damaged(table: str) -> Callable[[Txn, Tables], None]:
    def act(txn: Txn, tables: Tables) -> None:
        key, value = first(txn, tables, table)
        txn.put(key, flipped(value), db=tables[table])

    return act


def no_schedule(txn: Txn, tables: Tables) -> None:
    txn.drop(tables["schedule"], delete=False)


def page_of(path: Path, table: str, kind: int) -> list[int]:
    """Numbers of the pages of a kind that a table has: 1 branch, 2 leaf, 4 overflow."""
    data = (path / "data.mdb").read_bytes()
    meta = metas(lambda offset, size: data[offset : offset + size])[0]
    tree = File(lambda offset, size: data[offset : offset + size], meta, len(data)).tables()[table]
    size = meta.free.page_bytes
    found, stack = [], [tree.root]
    while stack:
        page = stack.pop()
        block = data[page * size : (page + 1) * size]
        flags, lower = int.from_bytes(block[10:12], sys.byteorder), int.from_bytes(block[12:14], sys.byteorder)
        if flags & kind:
            found.append(page)
        for index in range((lower - 16) // 2):
            pointer = int.from_bytes(block[16 + 2 * index : 18 + 2 * index], sys.byteorder)
            if flags & 1:
                stack.append(int.from_bytes(block[pointer : pointer + 6], sys.byteorder))
            elif kind == 4 and int.from_bytes(block[pointer + 4 : pointer + 6], sys.byteorder) & 1:
                key_size = int.from_bytes(block[pointer + 6 : pointer + 8], sys.byteorder)
                start = pointer + 8 + key_size
                found.append(int.from_bytes(block[start : start + 8], sys.byteorder))
    return found


def overwrite(path: Path, page: int, content: bytes = bytes(4096)) -> None:
    with open(path / "data.mdb", "r+b") as file:
        file.seek(page * 4096)
        file.write(content)


def records(path: Path) -> dict[str, dict[bytes, bytes]]:
    """All records, table by table, as LMDB reads them."""
    found = {}
    with lmdb.open(str(path), max_dbs=len(TABLES), readonly=True) as env, env.begin() as txn:
        for table in TABLES:
            cursor = txn.cursor(db=env.open_db(table.encode(), txn=txn, create=False))
            found[table] = {bytes(key): bytes(value) for key, value in cursor}
    return found


def bodies(found: dict[str, dict[bytes, bytes]]) -> set[bytes]:
    """The messages that are there, or in quarantine."""
    aside = [split_quarantine_key(key) for key in found["quarantine"]]
    return {*found["messages"], *(key for table, key in aside if table == "messages")}


def with_flipped_key(path: Path, table: str, index: int, *, kind: int = 2) -> None:
    """Change the last octet of one key of the first page of a kind."""
    page = page_of(path, table, kind)[0]
    data = bytearray((path / "data.mdb").read_bytes())
    lower = int.from_bytes(data[page * 4096 + 12 : page * 4096 + 14], sys.byteorder)
    pointers = [
        int.from_bytes(data[page * 4096 + at : page * 4096 + at + 2], sys.byteorder) for at in range(16, lower, 2)
    ]
    node = page * 4096 + pointers[index]
    key_bytes = int.from_bytes(data[node + 6 : node + 8], sys.byteorder)
    data[node + 8 + key_bytes - 3] ^= 0x40  # higher than any that follows
    (path / "data.mdb").write_bytes(data)


def with_key(path: Path, table: str, key: bytes, new_key: bytes) -> int:
    """Change the key of one record wherever the file has it; returns in how many places that was."""
    data = bytearray((path / "data.mdb").read_bytes())
    whole = key + records(path)[table][key]
    count, at = 0, data.find(whole)
    while at >= 0:
        data[at : at + len(key)] = new_key
        count += 1
        at = data.find(whole, at + 1)
    (path / "data.mdb").write_bytes(data)
    return count
