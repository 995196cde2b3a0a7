"""Random histories of regions and durable clients, against a plain model.

In the model each client has a list that gets each event as it comes.
"""

from __future__ import annotations

import random
import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker_adapter.engine import commands as c
from broker_adapter.engine import event_commands as e
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.records import queue_key
from broker_adapter.engine.regions.event_records import FEW, Operation
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest, InterestKind
from broker_adapter.engine.regions.key_records import KeyState, Wanted, decode_key_record
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.regions.values import values_of

REGIONS = ("quotes", "orders")
KEYS = ("a", "b", "ab", "c")
INTERESTS = (
    ALL_KEYS,
    *(Interest(InterestKind.KEY, key) for key in KEYS),
    Interest(InterestKind.EXPRESSION, "a.*"),
    Interest(InterestKind.EXPRESSION, "[bc]"),
)
#: So many that want all keys, each with another set of interests: what they want is broad.
CROWD = FEW + 3
WINDOW = 3


@attrs.define
class ModelClient:
    """A durable client as the model has it."""

    queue: list[tuple[int, str, Operation, str]] = attrs.field(factory=list)  #: not acknowledged
    sent: int = 0  #: of these, dispatched on this connection
    interests: dict[str, dict[Interest, bool]] = attrs.field(factory=dict)
    connection: int | None = None
    ready: bool = False
    marker: int | None = None  #: it is due
    received: list[Any] = attrs.field(factory=list)
    expected: list[Any] = attrs.field(factory=list)

    def wants(self, region: str, key: str) -> bool:
        return any(
            each == ALL_KEYS
            or (each.kind is InterestKind.KEY and each.text == key)
            or (each.kind is InterestKind.EXPRESSION and re.fullmatch(each.text, key) is not None)
            for each in self.interests.get(region, {})
        )

    def dispatch(self) -> None:
        """What the client must have got by now."""
        while self.ready and self.sent < min(len(self.queue), WINDOW):
            position, region, operation, key = self.queue[self.sent]
            if self.marker is not None and position > self.marker:
                self.expected.append(("marker", self.marker))
                self.marker = None
            self.expected.append((position, region, operation, key, self.marker is not None))
            self.sent += 1
        if self.ready and self.marker is not None and all(each[0] > self.marker for each in self.queue[self.sent :]):
            self.expected.append(("marker", self.marker))
            self.marker = None


class World:
    """An engine, and a model of it."""

    def __init__(self, path: Path | None, seed: int) -> None:
        self.random = random.Random(seed)
        self.path = path
        self.broker = self.open()
        self.clients: dict[str, ModelClient] = {}
        self.keys: dict[tuple[str, str], tuple[KeyState, bytes]] = {}
        self.count = 0
        for region in REGIONS:
            self.call(e.MakeRegion(region))
        for number in range(CROWD):
            self.clients[f"crowd {number}"] = ModelClient()
            self.connect(f"crowd {number}")
            self.register(f"crowd {number}", "quotes", [ALL_KEYS, Interest(InterestKind.KEY, f"x{number}")], True)
            if self.random.random() < 0.7:
                self.lose(f"crowd {number}")

    def open(self) -> Broker:
        return Broker(EngineSettings(), None if self.path is None else str(self.path))

    def call(self, command: Any) -> Any:
        return self.broker.call(command, 300)

    # Steps.

    def change(self) -> None:
        region, key = self.random.choice(REGIONS), self.random.choice(KEYS)
        wanted = self.random.choice([Wanted.PUT, Wanted.PUT, Wanted.PUT, Wanted.INVALIDATE, Wanted.DESTROY])
        changes = []
        for _ in range(self.random.choice([1, 1, 1, 4])):
            self.count += 1
            changes.append(e.KeyChange(key, wanted, c.NewMessage(0, b"%d" % self.count)))
            key = self.random.choice(KEYS)
        answers = self.call(e.ChangeKeys(region, changes))
        for change, (operation, position) in zip(changes, answers, strict=True):
            before = self.keys.get((region, change.key))
            assert operation is self.expected_operation(change.wanted, before)
            if operation is None:
                continue
            self.keys[region, change.key] = {
                Operation.CREATE: (KeyState.VALID, change.message.payload),
                Operation.UPDATE: (KeyState.VALID, change.message.payload),
                Operation.INVALIDATE: (KeyState.INVALID, b""),
                Operation.DESTROY: (KeyState.TOMBSTONE, b""),
            }[operation]
            for client in self.clients.values():
                if client.wants(region, change.key):
                    client.queue.append((position, region, operation, change.key))

    @staticmethod
    def expected_operation(wanted: Wanted, before: tuple[KeyState, bytes] | None) -> Operation | None:
        exists = before is not None and before[0] is not KeyState.TOMBSTONE
        if wanted is Wanted.PUT:
            return Operation.UPDATE if exists else Operation.CREATE
        if not exists or (wanted is Wanted.INVALIDATE and before is not None and before[0] is KeyState.INVALID):
            return None
        return Operation.DESTROY if wanted is Wanted.DESTROY else Operation.INVALIDATE

    def connect(self, name: str) -> None:
        client = self.clients[name]
        client.connection = self.call(c.Connect(name))
        client.received, client.expected, client.sent = [], [], 0
        client.ready, client.marker = False, None
        known = name in self.broker._state.events.clients.clients
        pending = self.call(e.ConnectDurable(client.connection, name, None, WINDOW, client.received.extend))
        assert pending == (len(client.queue) if known else -2)

    def register(self, name: str, region: str, interests: list[Interest], durable: bool) -> None:
        client = self.clients[name]
        assert client.connection is not None
        self.call(e.RegisterInterest(client.connection, region, interests, durable))
        had = client.interests.setdefault(region, {})
        for each in interests:
            had[each] = durable or had.get(each, False)

    def unregister(self, name: str, region: str, interests: list[Interest]) -> None:
        client = self.clients[name]
        assert client.connection is not None
        self.call(e.UnregisterInterest(client.connection, region, interests))
        for each in interests:
            client.interests.get(region, {}).pop(each, None)

    def ready(self, name: str) -> None:
        client = self.clients[name]
        assert client.connection is not None
        self.call(e.ReadyForEvents(client.connection))
        if not client.ready:
            client.ready, client.marker = True, self.broker._state.events.head

    def acknowledge(self, name: str) -> None:
        client = self.clients[name]
        assert client.connection is not None
        count = self.random.randint(0, client.sent)
        through = client.queue[count - 1][0] if count else 0
        assert self.call(e.AcknowledgeEvents(client.connection, through)) == count
        del client.queue[:count]
        client.sent -= count

    def away(self, client: ModelClient) -> None:
        client.connection, client.ready, client.sent, client.marker = None, False, 0, None
        for had in client.interests.values():
            for each in [each for each, durable in had.items() if not durable]:
                del had[each]

    def lose(self, name: str) -> None:
        self.call(c.Disconnect(self.clients[name].connection or 0))
        self.away(self.clients[name])

    def leave(self, name: str, keep: bool) -> None:
        client = self.clients[name]
        keeps = keep and any(any(had.values()) for had in client.interests.values())
        self.call(e.LeaveDurable(client.connection or 0, keep))
        self.call(c.Disconnect(client.connection or 0))
        if keeps:
            self.away(client)
        else:
            self.clients[name] = ModelClient()

    def restart(self) -> None:
        if self.path is None:
            return
        self.broker.close()
        self.broker = self.open()
        for client in self.clients.values():
            self.away(client)

    # Checks.

    def step(self) -> None:
        name = self.random.choice([*("one", "two", "three") * 3, "crowd 0", "crowd 1"])
        client = self.clients.setdefault(name, ModelClient())
        what = self.random.random()
        if what < 0.4:
            self.change()
        elif what < 0.42:
            self.restart()
        elif client.connection is None:
            self.connect(name)
        elif what < 0.6:
            interests = self.random.sample(INTERESTS, self.random.randint(1, 2))
            self.register(name, self.random.choice(REGIONS), interests, self.random.random() < 0.6)
        elif what < 0.66:
            self.unregister(name, self.random.choice(REGIONS), self.random.sample(INTERESTS, 2))
        elif what < 0.76:
            self.ready(name)
        elif what < 0.92:
            self.acknowledge(name)
        elif what < 0.95:
            self.lose(name)
        else:
            self.leave(name, self.random.random() < 0.7)

    def settle(self) -> None:
        while self.broker._has_more:
            self.call(c.Statistics())
        self.call(c.Statistics())

    def check(self) -> None:
        self.settle()
        for name, client in self.clients.items():
            client.dispatch()
            found = [
                ("marker", each.position)
                if isinstance(each, e.MarkerHandout)
                else (each.position, each.region, each.operation, each.key, each.is_history)
                for each in client.received
            ]
            if client.connection is not None:
                assert found == client.expected, name

    def finish(self) -> None:
        """Everybody processes everything and goes: nothing is left but the values."""
        for name, client in self.clients.items():
            if client.connection is None:
                self.connect(name)
            self.ready(name)
            while True:
                self.check()
                if not client.queue:
                    break
                through = client.queue[client.sent - 1][0]
                self.call(e.AcknowledgeEvents(client.connection or 0, through))
                del client.queue[: client.sent]
                client.sent = 0
            self.check()
            self.call(e.LeaveDurable(client.connection or 0, False))
        state = self.broker._state.events
        end = time.monotonic() + 300
        while (state.clients.audiences or state.clients.worn or state.clients.worn_regions) and time.monotonic() < end:
            time.sleep(0.01)
            self.call(c.Statistics())
        self.settle()
        with self.broker._stores.records() as records:
            assert list(records.items_from("events", b"\0")) == []
            assert list(records.items_from("postings", b"\0")) == []
            assert list(records.items_from("clients", b"\0")) == []
            broad = [queue_key(region.broad.id) for region in state.by_number.values()]
            assert [key for key, _ in records.items_from("audiences", b"\0")] == sorted(broad)
            known = {
                (region.name, key[4:].decode()): decode_key_record(key, value).state
                for region in state.by_number.values()
                for key, value in records.items_from("keys", queue_key(region.id))
                if key[:4] == queue_key(region.id)
            }
        assert known == {name: state for name, (state, _) in self.keys.items()}
        assert state.events is not None
        assert state.events.depth == 0
        valid = {name: value for name, (state, value) in self.keys.items() if state is KeyState.VALID}
        assert values_of(self.broker) == valid
        assert sum(self.broker._directory.queues[number].depth for number in state.by_number) == len(valid)


@pytest.fixture(params=["memory", "disk"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "data" if request.param == "disk" else None


@pytest.mark.parametrize("number", range(4))
def test_each_client_gets_what_it_wanted_in_order_until_it_has_processed_it(path: Path | None, number: int) -> None:
    seed = random.randrange(2**32)
    world = World(path, seed)
    try:
        for step in range(250):
            world.step()
            try:
                world.check()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {step}") from error
        world.finish()
    finally:
        with closing(world.broker):
            pass
