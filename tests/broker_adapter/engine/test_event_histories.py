"""Random histories of regions and durable clients, against a plain model.

In the model each client has a list that gets each event as it comes, with what the event matched then.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker_adapter.destination import queue, topic
from broker_adapter.engine import broker as broker_module
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.clients import client_interests
from broker_adapter.engine.clients.durable_client import CONFLATIONS
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.records.layout import queue_key
from broker_adapter.engine.regions import audience
from broker_adapter.engine.regions.event_records import FEW, Operation
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest, InterestKind
from broker_adapter.engine.regions.key_records import KeyState, Wanted, decode_key_record
from broker_adapter.engine.regions.region_records import decode_region
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack
from broker_adapter.errors import TransactionRolledBackException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import day_ms
from tests.broker_adapter.engine.regions.values import values_of

REGIONS = ("quotes", "orders")
KEYS = ("a", "b", "ab", "c")
#: Queries by name, and selectors, with what they ask in the model.
QUERIES = {
    "dear": ("price > 5", lambda key, price: price > 5),
    "same": ("price > 5", lambda key, price: price > 5),
    "cheap": ("price <= 5", lambda key, price: price <= 5),
    "b": ("key LIKE '%b' AND price > 2", lambda key, price: key.endswith("b") and price > 2),
}
SELECTORS = {"price > 7": lambda key, price: price > 7, "price < 4": lambda key, price: price < 4}
INTERESTS = (
    ALL_KEYS,
    *(Interest(InterestKind.KEY, key) for key in KEYS),
    Interest(InterestKind.EXPRESSION, "a.*"),
    Interest(InterestKind.EXPRESSION, "[bc]"),
    *(Interest(InterestKind.SELECTOR, text) for text in SELECTORS),
    *(Interest(InterestKind.QUERY, text, name) for name, (text, _) in QUERIES.items()),
)
#: So many that want all keys, each with another set of interests: what they want is broad.
CROWD = FEW + 3
WINDOW = 3
HOUR_MS = 3_600_000
WRONG = e.KeyChange("x" * 401, Wanted.PUT, c.NewMessage(ENVELOPE_FORMAT, b""))


@attrs.define
class ModelEvent:
    """An event in the queue of a client."""

    position: int
    region: str
    operation: Operation
    key: str
    run: int  #: which updates of the key it belongs to
    interests: list[Interest]
    queries: list[tuple[str, Operation]]
    closed: set[str] = attrs.field(factory=set)  #: queries that were closed as it was queued
    conflated: bool = False  #: as it was read

    @property
    def drained(self) -> bool:
        return not self.interests and all(name in self.closed for name, _ in self.queries)

    @property
    def left_out(self) -> bool:
        return self.drained or self.conflated


@attrs.define
class ModelClient:
    """A durable client as the model has it."""

    queue: list[ModelEvent] = attrs.field(factory=list)  #: not acknowledged
    read: int = 0  #: of these, dispatched on this connection, or left out
    interests: dict[str, dict[Interest, bool]] = attrs.field(factory=dict)
    connection: int | None = None
    ready: bool = False
    live: bool = False  #: it has got everything, and gets the next event at once
    marker: int | None = None  #: it is due
    conflation: str = "server"
    conflating: dict[str, bool] = attrs.field(factory=dict)  #: of the world, by region
    received: list[Any] = attrs.field(factory=list)
    expected: list[Any] = attrs.field(factory=list)
    came: int = 0
    removed: int = 0
    drained: int = 0
    while_away: int = 0
    reconnections: int = 0

    @property
    def in_hand(self) -> list[ModelEvent]:
        return [each for each in self.queue[: self.read] if not each.left_out]

    def conflates(self, region: str) -> bool:
        return {"true": True, "false": False, "server": self.conflating[region]}[self.conflation]

    def is_conflated(self, index: int) -> bool:
        """Whether an event would be left out if it were read now, since a newer update supersedes it."""
        mine = self.queue[index]
        if (
            not self.conflates(mine.region)
            or not mine.run
            or any(operation is not Operation.UPDATE for _, operation in mine.queries)
        ):
            return False
        for newer in self.queue[index + 1 :]:
            if (newer.region, newer.key, newer.run) == (mine.region, mine.key, mine.run) and not newer.drained:
                return (not mine.interests or bool(newer.interests)) and all(
                    (name, Operation.UPDATE) in newer.queries for name, _ in mine.queries
                )
        return False

    def size(self) -> int:
        return len(self.in_hand) + sum(
            not self.queue[index].drained and not self.is_conflated(index)
            for index in range(self.read, len(self.queue))
        )

    def matched(self, region: str, key: str, old: int | None, new: int | None, price: int) -> tuple[Any, Any]:
        """Interests and queries that an event matches: ``old`` and ``new`` are prices, ``price`` is its message's."""
        interests, queries = [], []
        for each in self.interests.get(region, {}):
            if each.kind is InterestKind.QUERY:
                ask = QUERIES[each.name][1]
                was, now = old is not None and ask(key, old), new is not None and ask(key, new)
                if was or now:
                    operation = Operation.UPDATE if was and now else Operation.CREATE if now else Operation.DESTROY
                    queries.append((each.name, operation))
            elif (
                each == ALL_KEYS
                or (each.kind is InterestKind.KEY and each.text == key)
                or (each.kind is InterestKind.EXPRESSION and re.fullmatch(each.text, key) is not None)
                or (each.kind is InterestKind.SELECTOR and SELECTORS[each.text](key, price))
            ):
                interests.append(each)
        return sorted(interests), sorted(queries)

    def add(self, event: ModelEvent) -> None:
        """An event comes."""
        self.queue.append(event)
        self.came += 1
        self.while_away += self.connection is None
        if self.live and len(self.in_hand) < WINDOW:
            self.dispatch_next()
        else:
            self.live = False

    def dispatch_next(self) -> None:
        event = self.queue[self.read]
        if self.marker is not None and event.position > self.marker:
            self.expected.append(("marker", self.marker))
            self.marker = None
        told = event.position, event.region, event.operation, event.key, self.marker is not None
        self.expected.append((*told, event.interests, event.queries))
        self.read += 1

    def dispatch(self) -> None:
        """What the client must have got by now."""
        if not self.ready or self.live or (len(self.in_hand) >= WINDOW and self.marker is None):
            return
        had_room = len(self.in_hand) < WINDOW
        while had_room and self.read < len(self.queue):
            event = self.queue[self.read]
            event.conflated = self.is_conflated(self.read)
            if event.left_out:
                self.read += 1
            elif len(self.in_hand) < WINDOW:
                self.dispatch_next()
            else:
                break
        self.live = had_room and self.read == len(self.queue)
        if self.marker is not None and all(each.position > self.marker for each in self.queue[self.read :]):
            self.expected.append(("marker", self.marker))
            self.marker = None
        if not self.in_hand:
            self.pop(self.read)

    def pop(self, count: int) -> None:
        """The cursor has passed some events."""
        del self.queue[:count]
        self.read -= count

    def acknowledge(self, count: int) -> None:
        """So many of those that are in hand were processed."""
        self.removed += count
        hand = self.in_hand
        if count == len(hand):
            self.pop(self.read)
        elif count:
            self.pop(self.queue.index(hand[count - 1]) + 1)

    def rewind(self) -> None:
        self.connection, self.ready, self.live, self.read, self.marker = None, False, False, 0, None
        for event in self.queue:
            event.conflated = False

    def close_queries(self, region: str, names: set[str]) -> int:
        """Queries are closed: what is queued for them only, and is not under way, is taken out."""
        count = 0
        for event in self.queue[self.read :]:
            if event.region == region and not event.drained:
                event.closed |= names
                count += event.drained
        self.drained += count
        return count


class World:
    """An engine, and a model of it."""

    def __init__(self, path: Path | None, seed: int, *, conflates: bool) -> None:
        self.random = random.Random(seed)
        self.path = path
        self.conflates = conflates
        self.starts = 0
        self.broker = self.open()
        self.clients: dict[str, ModelClient] = {}
        self.keys: dict[tuple[str, str], tuple[KeyState, bytes, int | None]] = {}
        self.runs: dict[tuple[str, str], int] = {}
        self.conflating = dict.fromkeys(REGIONS, False)
        self.count = self.commits = self.committed = 0
        self.ahead_ms = 0  #: of the clock, which is set now and then
        for region in REGIONS:
            self.call(e.MakeRegion(region))
        if conflates:  # as long as one client has updates conflated, it is known which ones supersede others
            self.connect("keeper", "true")
            for region in REGIONS:
                self.register("keeper", region, [ALL_KEYS], True)
            self.lose("keeper")
        for number in range(CROWD):
            self.connect(f"crowd {number}")
            self.register(f"crowd {number}", "quotes", [ALL_KEYS, Interest(InterestKind.KEY, f"x{number}")], True)
            if self.random.random() < 0.7:
                self.lose(f"crowd {number}")

    def open(self) -> Broker:
        return Broker(EngineSettings(), None if self.path is None else str(self.path))

    def call(self, command: Any) -> Any:
        return self.broker.call(command, 300)

    # Steps.

    def changes(self, region: str) -> tuple[list[e.KeyChange], list[int]]:
        """Some changes of a region, and the price in the message of each."""
        key = self.random.choice(KEYS)
        wanted = self.random.choice([Wanted.PUT, Wanted.PUT, Wanted.PUT, Wanted.INVALIDATE, Wanted.DESTROY])
        changes, prices = [], []
        for _ in range(self.random.choice([1, 1, 1, 4])):
            self.count += 1
            prices.append(self.random.randint(0, 10))
            payload = pack(Envelope(topic(region), BodyKind.MAP, {"price": prices[-1], "n": self.count}))
            changes.append(e.KeyChange(key, wanted, c.NewMessage(ENVELOPE_FORMAT, payload)))
            key = self.random.choice([key, *KEYS])
        return changes, prices

    def change(self) -> None:
        region = self.random.choice(REGIONS)
        changes, prices = self.changes(region)
        before = self.broker._state.events.last_stamp
        answers = self.call(e.ChangeKeys(region, changes))
        is_stamped = any(each not in (None, Operation.INVALIDATE) for each, _ in answers)
        assert (self.broker._state.events.last_stamp > before) is is_stamped
        self.changed(region, changes, prices, answers)

    def commit(self) -> None:
        """Changes of several regions in one commit, which is repeated, or cannot be done."""
        regions = [self.random.choice(REGIONS) for _ in range(self.random.choice([1, 2, 2, 3]))]
        parts = [(region, *self.changes(region)) for region in regions]
        self.commits += 1
        sends = [(queue("q"), c.NewMessage(ENVELOPE_FORMAT, b"%d" % self.commits, persistent=self.path is not None))]
        changes = [e.ChangeKeys(region, made) for region, made, _ in parts]
        command = c.Commit(self.call(c.Connect(None)), c.CommitId("s", self.commits), sends, [], changes=changes)
        if self.random.random() < 0.2:
            wrong = self.random.choice([e.ChangeKeys("none", changes[0].changes), e.ChangeKeys("quotes", [WRONG])])
            with pytest.raises(TransactionRolledBackException):
                self.call(command._replace(changes=[*changes, wrong]))
            return
        position = self.broker._state.events.head
        self.call(command)
        if self.random.random() < 0.2:
            self.call(command)
        self.committed += 1
        for region, made, prices in parts:
            for change, price in zip(made, prices, strict=True):
                operation = self.expected_operation(change.wanted, self.keys.get((region, change.key)))
                position += operation is not None
                self.changed(region, [change], [price], [(operation, position)])
        self.call(c.Disconnect(command.client))

    def changed(self, region: str, changes: list[e.KeyChange], prices: list[int], answers: Any) -> None:
        """The model changes as the engine has said it."""
        for change, price, (operation, position) in zip(changes, prices, answers, strict=True):
            name = region, change.key
            before = self.keys.get(name)
            assert operation is self.expected_operation(change.wanted, before)
            if operation is None:
                continue
            state, value, new = {
                Operation.CREATE: (KeyState.VALID, change.message.payload, price),
                Operation.UPDATE: (KeyState.VALID, change.message.payload, price),
                Operation.INVALIDATE: (KeyState.INVALID, b"", None),
                Operation.DESTROY: (KeyState.TOMBSTONE, b"", None),
            }[operation]
            self.keys[name] = state, value, new
            is_update = operation is Operation.UPDATE
            self.runs[name] = (self.runs.get(name) or position) if is_update else 0
            old = None if before is None else before[2]
            for client in self.clients.values():
                interests, queries = client.matched(region, change.key, old, new, price)
                if interests or queries:
                    run = self.runs[name]
                    client.add(ModelEvent(position, region, operation, change.key, run, interests, queries))

    @staticmethod
    def expected_operation(wanted: Wanted, before: tuple[KeyState, bytes, int | None] | None) -> Operation | None:
        exists = before is not None and before[0] is not KeyState.TOMBSTONE
        if wanted is Wanted.PUT:
            return Operation.UPDATE if exists else Operation.CREATE
        if not exists or (wanted is Wanted.INVALIDATE and before is not None and before[0] is KeyState.INVALID):
            return None
        return Operation.DESTROY if wanted is Wanted.DESTROY else Operation.INVALIDATE

    def connect(self, name: str, conflation: str | None = None) -> None:
        if conflation is None:
            conflation = self.random.choice(list(CONFLATIONS)) if self.conflates else "false"
        client = self.clients.setdefault(name, ModelClient(conflating=self.conflating))
        client.connection = self.call(c.Connect(name))
        client.received, client.expected, client.conflation = [], [], conflation
        known = name in self.broker._state.events.clients.clients
        client.reconnections += known
        command = e.ConnectDurable(client.connection, name, None, WINDOW, client.received.extend, conflation=conflation)
        assert self.call(command) == (client.size() if known else -2)

    def register(self, name: str, region: str, interests: list[Interest], durable: bool) -> None:
        client = self.clients[name]
        assert client.connection is not None
        elsewhere = {each for other, had in client.interests.items() if other != region for each in had if each.name}
        interests = [each for each in interests if each not in elsewhere]  # the name of a query is given once
        self.call(e.RegisterInterest(client.connection, region, interests, durable))
        had = client.interests.setdefault(region, {})
        for each in interests:
            had[each] = durable or had.get(each, False)

    def unregister(self, name: str, region: str, interests: list[Interest], drop: bool) -> None:
        client = self.clients[name]
        assert client.connection is not None
        had = client.interests.get(region, {})
        ended = [each for each in interests if had.pop(each, None) is not None]
        command = e.UnregisterInterest(client.connection, region, interests, drop_queued=drop)
        names = {each.name for each in ended if each.name} if drop else set()
        assert self.call(command) == (client.close_queries(region, names) if names else 0)

    def close_query(self, client_id: str) -> None:
        """An administrator closes a query of a client that is away."""
        client = self.clients[client_id]
        queries = [(region, each) for region, had in client.interests.items() for each in had if each.name]
        if queries:
            region, query = self.random.choice(queries)
            del client.interests[region][query]
            count = client.close_queries(region, {query.name})
            assert self.call(e.CloseQuery(client_id, query.name)) == count

    def conflate(self) -> None:
        region, conflates = self.random.choice(REGIONS), self.random.random() < 0.5
        self.call(e.MakeRegion(region, conflates))
        self.conflating[region] = conflates
        self.settle()

    def ready(self, name: str) -> None:
        client = self.clients[name]
        assert client.connection is not None
        self.call(e.ReadyForEvents(client.connection))
        if not client.ready:
            client.ready, client.marker = True, self.broker._state.events.head

    def acknowledge(self, name: str) -> None:
        client = self.clients[name]
        assert client.connection is not None
        hand = client.in_hand
        count = self.random.randint(0, len(hand))
        through = hand[count - 1].position if count else 0
        assert self.call(e.AcknowledgeEvents(client.connection, through)) == count
        client.acknowledge(count)

    def away(self, client: ModelClient) -> None:
        client.rewind()
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
            del self.clients[name]

    def restart(self, *, crashes: bool) -> None:
        """The engine is stopped, or killed: then another one finds the store as it is now."""
        if self.path is None:
            return
        before = self.broker
        if crashes:
            self.settle()
            self.starts += 1
            path = self.path.with_name(f"data {self.starts}")
            shutil.copytree(self.path, path)
            self.path = path
        before.close()
        self.broker = self.open()
        for client in self.clients.values():
            self.away(client)

    # Checks.

    def step(self) -> None:
        name = self.random.choice([*("one", "two", "three") * 3, "crowd 0", "crowd 1"])
        client = self.clients.get(name)
        what = self.random.random()
        if what < 0.3:
            self.change()
        elif what < 0.4:
            self.commit()
        elif what < 0.42:
            self.ahead_ms = self.random.choice([-HOUR_MS, 0, HOUR_MS])
            self.restart(crashes=self.random.random() < 0.5)
        elif what < 0.43 and self.conflates:
            self.conflate()
        elif client is None or client.connection is None:
            if client is not None and self.random.random() < 0.3:
                self.close_query(name)
            else:
                self.connect(name)
        elif what < 0.6:
            interests = self.random.sample(INTERESTS, self.random.randint(1, 3))
            self.register(name, self.random.choice(REGIONS), interests, self.random.random() < 0.6)
        elif what < 0.66:
            drop = self.random.random() < 0.5
            self.unregister(name, self.random.choice(REGIONS), self.random.sample(INTERESTS, 3), drop)
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
                else (
                    *(each.position, each.region, each.operation, each.key, each.is_history),
                    *(each.interests, each.queries),
                )
                for each in client.received
            ]
            if client.connection is not None:
                assert found == client.expected, name
        queues = self.call(c.Statistics()).queues
        assert sum(each.messages for each in queues if each.name == "q") == self.committed
        described = {each.client_id: each for each in self.call(e.DescribeClients(limit=100))}
        assert sorted(described) == sorted(self.clients)
        for name, client in self.clients.items():
            self.check_counters(client, described[name])

    @staticmethod
    def check_counters(client: ModelClient, found: e.ClientDescription) -> None:
        counters = found.counters
        gone = counters.removed + counters.conflated + counters.drained + counters.dropped
        assert found.queued == gone + found.size
        assert (counters.removed, counters.drained, counters.dropped) == (client.removed, client.drained, 0)
        assert (counters.reconnections, found.in_hand) == (client.reconnections, len(client.in_hand))
        if found.is_exact:
            assert (found.size, found.queued) == (client.size(), client.came)
            assert counters.while_away == client.while_away
        else:
            assert found.size >= client.size()

    def finish(self) -> None:
        """Everybody processes everything and goes: nothing is left but the values."""
        for name, client in self.clients.items():
            if client.connection is None:
                self.connect(name)
            self.ready(name)
            while True:
                self.check()
                hand = client.in_hand
                if not hand:
                    assert not client.queue
                    break
                self.call(e.AcknowledgeEvents(client.connection or 0, hand[-1].position))
                client.acknowledge(len(hand))
            self.check()
        for client in self.clients.values():
            self.call(e.LeaveDurable(client.connection or 0, False))
        state = self.broker._state.events
        end = time.monotonic() + 300
        while (
            state.clients.audiences or state.clients.to_trim or state.clients.regions_to_trim
        ) and time.monotonic() < end:
            time.sleep(0.01)
            self.call(c.Statistics())
        self.settle()
        with self.broker._stores.records() as records:
            for table in ("events", "postings", "clients", "interests", "runs"):
                assert list(records.items_from(table, b"\0")) == [], table
            broad = [queue_key(region.broad.id) for region in state.by_number.values()]
            assert [key for key, _ in records.items_from("audiences", b"\0")] == sorted(broad)
            found = sorted(decode_key_record(*item) for item in records.items_from("keys", b"\0"))
            stamps = [each.stamp for each in found if each.state is not KeyState.INVALID]
            assert stamps == sorted(set(stamps)), "the later change has the greater stamp"
            known = {
                (region.name, key[4:].decode()): decode_key_record(key, value).state
                for region in state.by_number.values()
                for key, value in records.items_from("keys", queue_key(region.id))
                if key[:4] == queue_key(region.id)
            }
            regions = {
                state.by_number[int.from_bytes(key)].name: decode_region(key, value)
                for key, value in records.items_from("regions", b"\0")
            }
        assert known == {name: state for name, (state, *_) in self.keys.items()}
        for name, region in regions.items():
            there = [each for (of, _), (each, *_) in self.keys.items() if of == name and each is not KeyState.TOMBSTONE]
            assert region == (self.conflating[name], len(there), 0)
        assert state.events is not None
        assert state.events.depth == 0
        valid = {name: value for name, (state, value, _) in self.keys.items() if state is KeyState.VALID}
        assert values_of(self.broker) == valid
        assert sum(self.broker._directory.queues[number].depth for number in state.by_number) == len(valid)


@pytest.mark.parametrize(
    ("stored", "conflates", "most_shared"),
    [  # each pair of two of these
        (False, False, 1000),
        (True, True, 1000),
        (False, True, 1),
        (True, False, 1),
        (False, False, 3),
        (True, True, 3),
    ],
)
def test_each_client_gets_what_it_wanted_in_order_until_it_has_processed_it(
    tmp_path: Path, stored: bool, most_shared: int, conflates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (audience, client_interests):  # with more interests, a client has an audience of its own
        monkeypatch.setattr(module, "MOST_SHARED", most_shared)
    seed = random.randrange(2**32)
    world = World(tmp_path / "data" if stored else None, seed, conflates=conflates)
    monkeypatch.setattr(broker_module, "_now_ms", lambda: day_ms() + world.ahead_ms)
    try:
        for step in range(150):
            world.step()
            try:
                world.check()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {step}") from error
        world.finish()
    finally:
        with closing(world.broker):
            pass
