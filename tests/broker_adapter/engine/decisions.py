"""A broker's state whose commands and time are given by hand: for tests of the engine's rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from broker_adapter.destination import Destination, queue
from broker_adapter.engine.broker_state import BrokerState
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.selection import Selectable
from broker_adapter.engine.queues.pending import raw_entry
from broker_adapter.engine.queues.policies import Policies, Policy
from broker_adapter.engine.records.layout import decode_annotations
from broker_adapter.engine.store.room import Room
from broker_adapter.envelope import Identity
from broker_adapter.errors import (
    JMSException,
)
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription

DURABLE = Subscription("s", durable=True, shared=False)


class Rules:
    """A state whose time is set by hand.  Each call is one ``decide``."""

    def __init__(self, *, durable: bool = True, policies: Sequence[Policy] = (), **settings: Any) -> None:
        self.annotations: dict[bytes, bytes | None] = {}  #: of all entries, as the stores would have them
        engine = EngineSettings(**settings)
        self.state = BrokerState(
            engine,
            durable=durable,
            secret=b"s",
            read_annotations=self._read_annotations,
            policies=Policies(engine, policies),
        )
        self.now_ms = 1_000_000
        self.effects = Effects()
        self.delivered: dict[int, list[tuple[int, int]]] = {}  #: consumer → (number, delivery count)
        self.placed: dict[int, list[tuple[int, int]]] = {}  #: consumer → (position, number)
        self.messages: dict[int, c.NewMessage] = {}  #: all that were sent, by number

    def do(self, *commands: Any) -> Any:
        """Decide; the reply to the last command, or raise it."""
        replies: list[Any] = []
        commands = (*commands[:-1], commands[-1]._replace(reply=replies.append))
        self._decide(*commands)
        for reply, result in self.effects.replies:
            reply(result)
        if not replies:
            return "held"
        if isinstance(replies[0], JMSException):
            raise replies[0]
        return replies[0]

    def use(self, *policies: Policy) -> None:
        """Have other policies."""
        self.do(c.UsePolicies(Policies(self.state.settings, policies)))

    def pass_time(self, ms: int) -> Effects:
        self.now_ms += ms
        self._decide()
        return self.effects

    def _read_annotations(self, key: bytes, _flags: int, effects: Effects) -> dict[str, Any] | None:
        found = self.annotations.get(key)
        for batch in (effects.durable, effects.volatile):
            found = batch.tables.get("annotations", {}).get(key, found)
        return None if found is None else decode_annotations(key, found)

    def added(self, name: str) -> list[dict[str, Any]]:
        """What was added to the messages of a queue, by position."""
        number = self.state.directory.by_destination[queue(name)].id
        found = sorted((key, value) for key, value in self.annotations.items() if value is not None)
        return [decode_annotations(key, value) for key, value in found if int.from_bytes(key[:4]) == number]

    def _decide(self, *commands: Any) -> None:
        self.effects = self.state.decide(commands, self.now_ms)
        for batch in (self.effects.durable, self.effects.volatile):
            self.annotations.update(batch.tables.get("annotations", {}))
            self.messages.update(batch.messages)
        while self.effects.scans or self.effects.candidates:
            self._match()
        for consumer, messages in self.effects.deliveries:
            self.delivered.setdefault(consumer.id, []).extend((each.number, each.delivery_count) for each in messages)
            self.placed.setdefault(consumer.id, []).extend((each.position, each.number) for each in messages)

    def _match(self) -> None:
        """Ask the selectors of consumers, as the cycle does; all messages are in memory."""
        matching, queues = self.state.matching, self.state.directory.queues
        scans, self.effects.scans = self.effects.scans, []
        candidates, self.effects.candidates = self.effects.candidates, []
        for scan in scans:
            behind = range(scan.after + 1, queues[scan.queue].next_position)
            entries = [each for _, each in sorted(queues[scan.queue].all_in_memory(behind).items())]
            found = [(raw_entry(scan.queue, e), self._body(e.number)) for e in entries if e.lane.number == scan.lane]
            matching.scanned(scan, found, max(behind.stop - 1, scan.after), complete=True)
        for candidate in candidates:
            assert matching.match_candidate(candidate, self._body(candidate.entry.number))
        self.state.settle_down(self.now_ms, self.effects)

    def _body(self, number: int) -> Selectable:
        message = self.messages[number]
        return Selectable(self.state.matching.formats, message.format, message.payload)

    def connect(self, client_id: str | None = None) -> int:
        number: int = self.do(c.Connect(client_id))
        return number

    def send(self, client: int, to: Destination, *bodies: bytes, **fields: Any) -> Any:
        return self.do(c.Enqueue(client, to, [c.NewMessage(0, body, **fields) for body in bodies]))

    def attach(self, client: int, to: Destination, credit: int = 0, **fields: Any) -> int:
        number: int = self.do(c.Attach(client, to, print, **fields))
        if credit:
            self.do(c.Credit(number, credit))
        return number

    def depth(self, name: str) -> int:
        return sum(each.messages for each in self.do(c.Statistics()).queues if each.name == name)


Q = queue("q")


def positions(rules: Rules, consumer: int, since: int = 0) -> list[int]:
    """Positions of what a consumer got."""
    return [position for position, *_ in rules.placed.get(consumer, [])[since:]]


def commit(client: int, number: int, sends: list[Any], settlements: list[Any]) -> c.Commit:
    messages = [(to, c.NewMessage(0, body)) for to, body in sends]
    return c.Commit(client, c.CommitId("session", number), messages, settlements)


FULL = "the disk is full"


FULL_QUEUE = queue("full")


def sent(number: int, **fields: Any) -> c.NewMessage:
    return c.NewMessage(0, b"%d" % number, identity=Identity("p", 1, number), **fields)


class Sender:
    """Sends numbered messages of one producer to one queue, and keeps the answers."""

    def __init__(self, rules: Rules, to: Destination = Q) -> None:
        self.rules = rules
        self.client = rules.connect()
        self.to = to
        self.answers: dict[int, Any] = {}
        self._next = 1

    def send(self, **fields: Any) -> None:
        number, self._next = self._next, self._next + 1
        identity = Identity(f"producer {self.client}", 1, number)
        message = c.NewMessage(0, b"%d" % number, identity=identity, **fields)
        self._decide(c.Enqueue(self.client, self.to, [message], partial(self.answers.__setitem__, number)))

    def _decide(self, *commands: c.Command) -> None:
        for reply, result in self.rules.state.decide(commands, self.rules.now_ms).replies:
            reply(result)

    def pass_time(self, ms: int = 1) -> None:
        for reply, result in self.rules.pass_time(ms).replies:
            reply(result)

    @property
    def rejected(self) -> int:
        return self.rules.state.totals.duplicates_rejected


class Scarce:
    """A full queue, and a store with room for a hundred pages."""

    def __init__(self) -> None:
        self.rules = Rules(max_queue_messages=1)
        self.client, self.other = self.rules.connect(), self.rules.connect()
        self.rules.send(self.other, FULL_QUEUE, b"1")
        self.rules.state.admission.room = Room(100.0, 100, 4096, "the store is full")

    @property
    def pages(self) -> float:
        assert self.rules.state.admission.room is not None
        return self.rules.state.admission.room.single_pages

    def retry(self) -> None:
        """Something happens to the full queue, and it stays full."""
        state = self.rules.state
        full = state.directory.by_destination[FULL_QUEUE]
        for _ in range(10):
            state.directory.changed[full.id] = full
            self.rules.pass_time(1)


LARGE = b"x" * 100_000
