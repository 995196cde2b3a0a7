"""Random histories of an engine with everything in them: two administrators at once, expiry, delay, selectors, fan-out.

The model knows of each copy of a message where it may be.  What must be true at the end: each copy is in exactly one of
these places, or nowhere where an administrator or the clock may have ended it; as many are gone as the operations and
the statistics say; no consumer ever got what had ended, or what another one held; and a check of the engine finds
nothing, at any time.

A history is made from a seed, so that it can be run again::

    python -m tests.torture --seed 4711 --histories 1
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

from ack_modes import Outcome
from broker_adapter.destination import Destination, queue, topic
from broker_adapter.engine import broker as broker_module
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.operations.requests import steps_of
from broker_adapter.engine.queues import consumers as consumers_module
from broker_adapter.envelope import (
    DEAD_LETTER_QUEUE,
    DEAD_LETTER_SUBSCRIPTION,
    ENVELOPE_FORMAT,
    BodyKind,
    Envelope,
    pack,
    unpack,
)
from broker_adapter.errors import JMSException
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.driving import Inbox, come_to_rest

WAIT = 120.0
QUEUES = ("a", "b")
SUBSCRIPTIONS = {"plain": None, "red": "colour = 'red'", "blue": "colour = 'blue'"}
COLOURS = ("red", "blue", "green")
SELECTORS = (None, None, "colour = 'red'", "colour = 'blue'", "JMSPriority > 4")
MAX_DELIVERIES = 3
DEAD = "DLQ"


class Copy(NamedTuple):
    """A message in one place: a queue, or a subscription of the topic."""

    place: str
    body: str


class Fate:
    """What may have become of a copy."""

    def __init__(self, persistent: bool, expires_at_ms: int | None) -> None:
        self.places: set[str] = set()  #: where it may be
        self.persistent = persistent
        self.expires_at_ms = expires_at_ms
        self.is_mortal = False  #: whether an administrator or the clock may have ended it
        self.failures = 0


class Taker:
    """A consumer and what it holds."""

    def __init__(self, number: int, place: str, inbox: Inbox, presettled: bool) -> None:
        self.number = number
        self.presettled = presettled
        self.place = place
        self.inbox = inbox
        self.held: list[tuple[int, Copy]] = []


class Administrator:
    """An operation under way."""

    def __init__(self, name: str, place: str, steps: Generator[Any, Any, Any]) -> None:
        self.name = name
        self.place = place
        self.steps = steps
        self.result: Any = None


class History:
    """Carries out steps on an engine and on the model."""

    def __init__(self, seed: int, path: Path | None) -> None:
        self.chance = random.Random(seed)
        self.path = path
        self.now_ms = 1_700_000_000_000
        self.generation = 0
        self.copies: dict[Copy, Fate] = {}
        self.ended: set[Copy] = set()
        self.takers: list[Taker] = []
        self.administrators: list[Administrator] = []
        self.dropped = 0  #: by administrators
        self.expired = 0  #: in earlier runs of the engine
        self.next = 0
        self.commits = 0
        self.log: list[str] = []
        self.settings = EngineSettings(
            window_messages=10,
            max_deliveries=MAX_DELIVERIES,
            redelivery_delay_seconds=self.chance.choice((0, 0, 5)),
            max_in_hand_messages=1000,
        )
        self._start()

    # The engine.

    def _start(self) -> None:
        directory = None if self.path is None else str(self.path / str(self.generation))
        self.broker = Broker(self.settings, directory)
        self.broker._state.directory.memory.cycle_handouts = self.chance.choice((1, 7, 5000))
        self.client = self._call(c.Connect("me"))
        self.subscribed = {
            name
            for name in SUBSCRIPTIONS
            if any(each.record.name == name for each in self.broker._state.directory.subscriptions.values())
        }

    def _call(self, command: Any) -> Any:
        return self.broker.call(command, WAIT)

    def _destination(self, place: str) -> tuple[Destination, Subscription | None]:
        if place in SUBSCRIPTIONS:
            return topic("t"), Subscription(place, durable=True, shared=True)
        return queue(place), None

    def _where(self, place: str) -> dict[str, Any]:
        if place in SUBSCRIPTIONS:
            return {"destination": "t", "kind": "topic", "subscription": place, "client_id": "me"}
        return {"destination": place}

    def settled_down(self) -> None:
        """Wait until nothing is under way, and collect what has come."""
        come_to_rest(self.broker)
        held: set[Copy] = {copy for taker in self.takers for _, copy in taker.held}
        for taker in self.takers:
            arrived, taker.inbox.handouts[:] = list(taker.inbox.handouts), []
            for handout in arrived:
                copy = self._copy(taker.place, handout)
                assert copy in self.copies, f"delivered what was never sent or has ended: {copy}"
                assert taker.place in self.copies[copy].places, f"{copy} cannot be in {taker.place}"
                assert copy not in held, f"delivered to two at once: {copy}"
                self._hand_out(taker, handout.number, copy)
                held |= {copy}

    def _hand_out(self, taker: Taker, number: int, copy: Copy) -> None:
        if taker.presettled:
            self._end(copy)
        else:
            taker.held.append((number, copy))
            self.copies[copy].places = {taker.place}

    def check(self) -> None:
        found = [each.text for each in self.broker.check() if not each.harmless]
        assert not found, found
        assert self.broker._state.totals.miscounted == 0

    def _copy(self, place: str, handout: c.Handout) -> Copy:
        body = unpack(handout.payload).body
        if place != DEAD:
            return Copy(place, body)
        annotations = handout.annotations or {}
        home = annotations.get(DEAD_LETTER_SUBSCRIPTION) or annotations[DEAD_LETTER_QUEUE]
        return Copy(home, body)

    # Steps.

    def send(self) -> None:
        chance = self.chance
        place = chance.choice((*QUEUES, "t", "t"))
        delay = chance.choice((None, None, None, 1000, 20_000))
        time_to_live = chance.choice((None, None, None, 5000, 60_000))
        persistent = chance.random() < 0.8
        messages = []
        for _ in range(chance.randrange(1, 25)):
            body = f"{self.next:06d}"
            self.next += 1
            colour = chance.choice(COLOURS)
            priority = chance.choice((4, 4, 4, 2, 7))
            expires_at_ms = None if time_to_live is None else self.now_ms + time_to_live
            to = topic("t") if place == "t" else queue(place)
            envelope = Envelope(to, BodyKind.TEXT, body, {"colour": colour}, priority=priority)
            due = None if delay is None else self.now_ms + delay
            messages.append(c.NewMessage(ENVELOPE_FORMAT, pack(envelope), priority, persistent, expires_at_ms, due))
            for each in self._taking(place, colour):
                fate = self.copies[Copy(each, body)] = Fate(persistent and self.path is not None, expires_at_ms)
                fate.places = {each}
        if chance.random() < 0.3:
            self.commits += 1
            sends = [(to, message) for message in messages]
            settlements = []
            for taker in self.takers:
                for number, copy in taker.held[:3]:
                    settlements.append((taker.number, number, Outcome.ACCEPTED))
                    self._end(copy)
                del taker.held[:3]
            commit = c.Commit(self.client, c.CommitId("s", self.commits), sends, settlements)
            assert self._call(commit) is None
            assert self._call(commit) is None  # once more changes nothing
        else:
            assert self._call(c.Enqueue(self.client, to, messages)) is None

    def _taking(self, place: str, colour: str) -> list[str]:
        if place != "t":
            return [place]
        return [
            name for name in self.subscribed if SUBSCRIPTIONS[name] is None or f"'{colour}'" in str(SUBSCRIPTIONS[name])
        ]

    def _end(self, copy: Copy) -> None:
        del self.copies[copy]
        self.ended.add(copy)

    def attach(self) -> None:
        place = self.chance.choice((*QUEUES, *SUBSCRIPTIONS, DEAD))
        destination, subscription = self._destination(place)
        selector = SUBSCRIPTIONS[place] if subscription is not None else self.chance.choice(SELECTORS)
        inbox = Inbox()
        presettled = self.chance.random() < 0.2
        number = self._call(
            c.Attach(
                self.client,
                destination,
                inbox,
                subscription=subscription,
                selector=selector,
                slice_bytes=500,
                presettled=presettled,
            )
        )
        if subscription is not None:
            self.subscribed.add(place)
        self.takers.append(Taker(number, place, inbox, presettled))
        self._call(c.Credit(number, self.chance.randrange(1, 20)))

    def credit(self) -> None:
        if self.takers:
            self._call(c.Credit(self.chance.choice(self.takers).number, self.chance.randrange(0, 20)))

    def settle(self) -> None:
        if not self.takers:
            return
        taker = self.chance.choice(self.takers)
        ending = taker.held[: self.chance.randrange(1, 10)]
        del taker.held[: len(ending)]
        outcome = self.chance.choice(list(Outcome))
        self._call(c.Settle(taker.number, [number for number, _ in ending], outcome))
        for _, copy in ending:
            self._outcome(taker.place, copy, outcome)

    def _outcome(self, place: str, copy: Copy, outcome: Outcome) -> None:
        fate = self.copies[copy]
        if outcome is Outcome.ACCEPTED:
            self._end(copy)
        elif place != DEAD and outcome is Outcome.REJECTED:
            fate.places = {DEAD}
            fate.failures = 0
        elif outcome in (Outcome.MODIFIED, Outcome.FAILED, Outcome.UNDELIVERABLE) and place != DEAD:
            fate.failures += 1
            # A restart may have counted one delivery more, so it may have been the last one.
            fate.places = {place, DEAD}

    def detach(self) -> None:
        if not self.takers:
            return
        taker = self.takers.pop(self.chance.randrange(len(self.takers)))
        failed = self.chance.random() < 0.5
        self._call(c.Detach(taker.number, give_back=True, failed=failed))
        for each in taker.inbox.handouts:
            self._hand_out(taker, each.number, self._copy(taker.place, each))
        for _, copy in taker.held:
            self._outcome(taker.place, copy, Outcome.MODIFIED if failed else Outcome.RELEASED)

    def unsubscribe(self) -> None:
        if not self.subscribed:
            return
        name = self.chance.choice(sorted(self.subscribed))
        if any(taker.place == name for taker in self.takers):
            return
        self._call(c.Unsubscribe(self.client, name))
        self._unsubscribed(name)

    def _unsubscribed(self, name: str) -> None:
        self.subscribed.discard(name)
        for copy, fate in list(self.copies.items()):
            if name in fate.places:
                fate.places.discard(name)
                if not fate.places:
                    self._end(copy)
                else:
                    fate.is_mortal = True
                    self.dropped += 1  # or less

    def administer(self) -> None:
        """Begin an operation; its steps are carried out in between those of others."""
        if len(self.administrators) >= 3:
            return
        name = self.chance.choice(("purge", "purge", "redrive", "redrive", "settle_through", "settle_positions"))
        place = DEAD if name == "redrive" else self.chance.choice((*QUEUES, *SUBSCRIPTIONS, DEAD))
        arguments = self._where(place)
        if name == "settle_through":
            arguments["position"] = self.chance.choice((5, 30, self._last_position(arguments)))
        elif name == "settle_positions":
            arguments["given"] = [(position, None) for position in range(1, self.chance.randrange(2, 60))]
        elif name == "redrive":
            arguments = {"limit": self.chance.choice((None, None, 3))}
        self.administrators.append(Administrator(name, place, steps_of(name, arguments)))
        if self.chance.random() < 0.6:  # the same again, at the same time
            self.administrators.append(Administrator(name, place, steps_of(name, arguments)))

    def _last_position(self, where: dict[str, Any]) -> int:
        """The last position that a place has given; 1 where there is no such place."""
        try:
            return max(1, self.broker.request("bounds", where, WAIT)["next"] - 1)
        except JMSException:
            return 1

    def go_on(self) -> None:
        """Carry out the next step of an operation."""
        if self.administrators:
            each = self.chance.choice(self.administrators)
            step = self._next_step(each)
            if step is not None:
                self._done(each, self._all([step])[0])

    def _next_step(self, administrator: Administrator) -> Any:
        """The next command of an operation, after what it reads before that; None where it has ended."""
        try:
            while True:
                step = administrator.steps.send(administrator.result)
                if isinstance(step, tuple):
                    self._foresee(administrator)
                    return step
                with self.broker.reading() as reader:
                    administrator.result = step(reader)
        except StopIteration as end:
            self.administrators.remove(administrator)
            if administrator.name != "redrive":
                self.dropped += end.value["settled"] if administrator.name == "settle_positions" else end.value
        except JMSException:
            self.administrators.remove(administrator)  # the queue or subscription is not there, or has consumers
            if administrator.name == "settle_through" and administrator.result is not None:
                self.dropped += administrator.result[0]  # a consumer came while it went on
            else:
                assert administrator.result in (None, False), "it had begun already"
        return None

    def _done(self, administrator: Administrator, result: Any) -> None:
        assert not isinstance(result, JMSException), result
        administrator.result = result

    def _all(self, commands: list[Any]) -> list[Any]:
        """Carry out commands in one cycle of the engine."""
        results: dict[int, Any] = {}
        with self.broker.reading():  # no cycle begins before all of them are there
            self.broker.submit_all(
                [
                    command._replace(reply=lambda result, index=index: results.__setitem__(index, result))
                    for index, command in enumerate(commands)
                ]
            )
        self._call(c.Due(()))
        return [results[index] for index in range(len(commands))]

    def together(self) -> None:
        """In one cycle: steps of several operations, what falls due, settlements, and the end of a subscription."""
        chance = self.chance
        if chance.random() < 0.5:
            self._let_time_pass()
        chosen = chance.sample(self.administrators, min(len(self.administrators), chance.randrange(1, 4)))
        stepping = [(each, step) for each in chosen if (step := self._next_step(each)) is not None]
        commands = [step for _, step in stepping]
        if self.takers and chance.random() < 0.5:
            taker = chance.choice(self.takers)
            ending = taker.held[:3]
            del taker.held[:3]
            outcome = chance.choice((Outcome.ACCEPTED, Outcome.RELEASED, Outcome.REJECTED))
            settle = c.Settle(taker.number, [number for number, _ in ending], outcome)
            commands.insert(chance.randrange(len(commands) + 1), settle)
            for _, copy in ending:
                self._outcome(taker.place, copy, outcome)
        for taker in self.takers:
            if chance.random() < 0.5:
                commands.insert(chance.randrange(len(commands) + 1), c.Credit(taker.number, chance.randrange(20)))
        idle = sorted(self.subscribed - {taker.place for taker in self.takers})
        if idle and chance.random() < 0.2:
            name = chance.choice(idle)
            commands.insert(chance.randrange(len(commands) + 1), c.Unsubscribe(self.client, name))
            self._unsubscribed(name)
        results = self._all(commands)
        for command, result in zip(commands, results, strict=True):
            assert not isinstance(result, JMSException), result
            for each, step in stepping:
                if step is command:
                    self._done(each, result)

    def _foresee(self, administrator: Administrator) -> None:
        """What the next step may end or move."""
        for copy, fate in self.copies.items():
            if administrator.place not in fate.places:
                continue
            if administrator.name == "redrive":
                if fate.places == {DEAD}:
                    fate.expires_at_ms = None  # what was set aside does not expire any more
                fate.places.add(copy.place)
            else:
                fate.is_mortal = True

    def pass_time(self) -> None:
        self._let_time_pass()
        self._call(c.Due(()))

    def _let_time_pass(self) -> None:
        self.now_ms += self.chance.choice((100, 1000, 6000, 30_000))
        for fate in self.copies.values():
            if fate.expires_at_ms is not None and fate.expires_at_ms <= self.now_ms:
                fate.is_mortal = True

    def restart(self) -> None:
        """A clean stop, or a crash: what is on the disk goes on under another directory."""
        if self.path is None:
            return
        while self.administrators:  # an operation ends with its engine, so what it did is counted first
            self.go_on()
        self.settled_down()
        if self.chance.random() < 0.5:
            self.broker.close()  # what is given back may have expired
            self.expired += self.broker._state.totals.expired
        else:
            self.expired += self.broker._state.totals.expired
            copied = self.path / str(self.generation + 1)
            shutil.copytree(self.path / str(self.generation), copied, ignore=shutil.ignore_patterns("lock.mdb"))
            self.broker.close()
            self.generation += 1
        for taker in self.takers:
            for _, copy in taker.held:
                self.copies[copy].places.add(DEAD)  # it may have failed for the last time
        self.takers.clear()
        for copy, fate in list(self.copies.items()):
            if not fate.persistent:
                self._end(copy)
        self._start()

    # The whole.

    STEPS = (
        *("send",) * 6,
        *("attach",) * 3,
        *("credit",) * 3,
        *("settle",) * 4,
        *("detach",) * 2,
        "unsubscribe",
        *("administer",) * 3,
        *("go_on",) * 4,
        *("together",) * 5,
        *("pass_time",) * 3,
        "restart",
    )

    def run(self, steps: int = 60) -> None:
        """Go through it; raises AssertionError where something that must be true is not."""
        clocks, windows = (broker_module._now_ms, broker_module._elapsed_ms), consumers_module.IDLE_WINDOWS
        broker_module._now_ms = broker_module._elapsed_ms = lambda: self.now_ms
        consumers_module.IDLE_WINDOWS = 1
        try:
            for _ in range(steps):
                name = self.chance.choice(self.STEPS)
                self.log.append(name)
                getattr(self, name)()
                self.settled_down()
                if self.chance.random() < 0.1:
                    self.check()
            self._finish()
        finally:
            (broker_module._now_ms, broker_module._elapsed_ms), consumers_module.IDLE_WINDOWS = clocks, windows
            self.broker.close()

    def _finish(self) -> None:
        while self.administrators:
            self.go_on()
        while self.takers:
            self.detach()
        self.settled_down()
        self.check()
        found: Counter[Copy] = Counter()
        self.now_ms += 100_000  # what is delayed comes, and what was to expire does
        self.pass_time()
        self.settled_down()
        for place in (*QUEUES, *sorted(self.subscribed), DEAD):
            for copy in self._drain(place):
                assert copy in self.copies, f"{copy} had ended"
                assert place in self.copies[copy].places, f"{copy} cannot be in {place}"
                found[copy] += 1
        doubled = [copy for copy, count in found.items() if count > 1]
        assert not doubled, f"doubled: {doubled[:5]}"
        lost = [copy for copy, fate in self.copies.items() if not fate.is_mortal and not found[copy]]
        assert not lost, f"lost: {lost[:5]}"
        gone = sum(not found[copy] for copy in self.copies)
        self.expired += self.broker._state.totals.expired
        assert gone <= self.dropped + self.expired, "more are gone than were dropped or have expired"
        self.check()

    def _drain(self, place: str) -> list[Copy]:
        destination, subscription = self._destination(place)
        inbox = Inbox()
        selector = SUBSCRIPTIONS.get(place)
        consumer = self._call(
            c.Attach(self.client, destination, inbox, subscription=subscription, selector=selector, presettled=True)
        )
        self._call(c.Credit(consumer, 1_000_000))
        self._call(c.Drain(consumer))
        self._call(c.Detach(consumer))
        return [self._copy(place, handout) for handout in inbox.handouts]
