"""Requests to an engine, and damages, for tests of operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.records.layout import position_of
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.envelope import ENVELOPE_FORMAT, Envelope, Identity, pack
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT


def ask(broker: Broker, operation: str, **arguments: Any) -> Any:
    return broker.request(operation, arguments, WAIT)


def envelope(body: str, **fields: Any) -> bytes:
    return pack(Envelope(queue("target"), body=body, **fields))


def bodies(answer: dict[str, Any]) -> list[bytes]:
    return [payload for _, _, _, payload, _ in answer["messages"]]


def named(number: int, priority: int = 4) -> c.NewMessage:
    name = Identity("producer", 1, number)
    return c.NewMessage(ENVELOPE_FORMAT, envelope(str(number), identity=name), priority, identity=name)


def given(*pairs: tuple[int, int]) -> list[tuple[int, list[Any]]]:
    """(position, number of the message) each."""
    return [(position, ["producer", 1, number]) for position, number in pairs]


def damage_body(broker: Broker, body: bytes) -> None:
    """Change one message on the disk behind the engine's back."""
    store = broker.store
    with store.snapshot() as tables:
        key, value = next((key, value) for key, value in tables.items("messages") if value.endswith(body))
    store.apply([("messages", key, value[:-1] + b"!")])
    broker._stores._cache.clear()
    broker._stores._cache_bytes = 0


def damage_all_bodies(broker: Broker) -> None:
    """Change all messages on the disk behind the engine's back."""
    store = broker.store
    with store.snapshot() as tables:
        found = list(tables.items("messages"))
    store.apply([("messages", key, value[:-1] + bytes([value[-1] ^ 1])) for key, value in found])
    broker._stores._cache.clear()
    broker._stores._cache_bytes = 0


def damage_entries(path: Path, *positions: int) -> None:
    """Change entries on the disk, by position, while no engine has them in memory."""
    store = LmdbStore(path, EngineSettings())
    with store.snapshot() as tables:
        entries = {position_of(key): (key, value) for key, value in tables.items("entries")}
    for key, value in map(entries.__getitem__, positions):
        store.apply([("entries", key, value[:3] + bytes([value[3] ^ 1]) + value[4:])])
    store.close()


def wrong(broker: Broker) -> list[str]:
    """What a check finds, but for bodies: nothing tells whose these are, once an entry is damaged."""
    return [each.text for each in broker.check() if each.problem != "message without an entry"]


def sparse(count: int) -> list[list[Any]]:
    """Positions so far apart that each takes a step of its own."""
    return [[number * 1_000_000, "ID:none"] for number in range(1, count + 1)]
