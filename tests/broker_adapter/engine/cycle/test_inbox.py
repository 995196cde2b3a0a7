"""What one cycle takes of the commands that wait."""

from __future__ import annotations

from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.cycle import inbox as inbox_module
from broker_adapter.engine.cycle.inbox import CYCLE_MESSAGES
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import (
    WAIT,
    Engines,
    attach,
    connect,
    depth,
    message,
    send,
)


def test_a_commit_takes_no_more_than_its_limit(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker)
    replies: list[Any] = []
    with broker._runner:
        before = broker._state.totals.commits
        for _ in range(3):
            body = [message()] * CYCLE_MESSAGES
            broker.submit(c.Enqueue(client, queue("q"), body, replies.append))
    assert depth(broker, "q") == 3 * CYCLE_MESSAGES
    assert broker.call(c.Statistics(), WAIT).commits - before == 3


def test_consumers_that_give_much_back_do_so_in_several_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_adapter.engine.broker.CYCLE_MESSAGES", 20)
    broker = Broker(EngineSettings())
    client = connect(broker)
    send(broker, client, "q", *[b"x"] * 100)
    attached = [attach(broker, client, "q", credit=10) for _ in range(10)]
    for _, inbox in attached:
        inbox.wait_for(10)
    together: list[int] = []
    decide = broker._state.decide

    def counted(commands: Any, *times: int) -> Any:
        together.append(sum(isinstance(each, c.Detach) for each in commands))
        return decide(commands, *times)

    monkeypatch.setattr(broker._state, "decide", counted)
    broker.submit_all([c.Detach(consumer, give_back=True) for consumer, _ in attached])
    _, inbox = attach(broker, client, "q", credit=100)
    assert len(inbox.wait_for(100)) == 100
    assert (sum(together), max(together)) == (10, 2)
    broker.close()


class Rules:
    """A directory whose topics have as many subscriptions, and whose consumers hold as many messages, as is said."""

    def __init__(self, fan_out: int = 1, in_hand: int = 0) -> None:
        self.staged: dict[str, Any] = {}
        self._fan_out = fan_out
        self._in_hand = in_hand

    def fan_out(self, destination: object) -> int:
        return self._fan_out

    def in_hand_of(self, client: int) -> int:
        return self._in_hand

    def in_hand_of_consumer(self, consumer: int) -> int:
        return self._in_hand


def inbox_of(*commands: c.Command | c.DeferredCommands, fan_out: int = 1, in_hand: int = 0) -> inbox_module.Inbox:
    found = inbox_module.Inbox(Rules(fan_out, in_hand))  # type: ignore[arg-type]
    found.commands.extend(commands)
    return found


def taken(waiting: inbox_module.Inbox, most: int = 10) -> tuple[list[c.Command], int]:
    commands: list[c.Command] = []
    size = waiting.take(commands, most)
    return commands, size


def test_what_comes_in_is_counted_with_its_bytes() -> None:
    messages = [message("12345"), message("67")]
    commands: list[c.Command] = [
        c.Enqueue(1, queue("q"), messages),
        c.PutBack(queue("q"), [(b"key", each) for each in messages]),
        c.Stage("t", queue("q"), 0, messages),
        c.Commit(1, None, [(queue("q"), each) for each in messages], []),
    ]
    waiting = inbox_of(*commands)
    assert taken(waiting) == (commands, 28)
    assert not waiting.commands


def test_what_settles_and_what_is_given_back_counts_too() -> None:
    settles = [c.Settle(1, [1, 2, 3], Outcome.ACCEPTED)] * 3
    waiting = inbox_of(*settles)
    assert taken(waiting, 6) == (settles[:2], 0)
    assert list(waiting.commands) == settles[2:]
    waiting = inbox_of(c.Detach(1, give_back=True), c.Disconnect(1), c.Statistics(), in_hand=4)
    assert taken(waiting, 8) == ([c.Detach(1, give_back=True), c.Disconnect(1)], 0)


def test_transactions_and_positions_that_a_command_names_count_each() -> None:
    commands: list[c.Command] = [
        c.Discard(["a", "b", "c"]),
        c.Publish("g", 1, ["a", "b", "c"]),
        c.Seen("token", 1, [1, 2, 3]),
        c.Uncount(1, [(1, None), (2, None), (3, None)]),
    ]
    for command in commands:
        waiting = inbox_of(*[command] * 4)
        assert taken(waiting, 6) == ([command] * 2, 0), command
    nothing: list[c.Command] = [c.Publish("g", 1, [])] * 10
    assert taken(inbox_of(*nothing), 6) == (nothing[:6], 0)


def test_deferred_commands_come_in_their_place() -> None:
    waiting = inbox_of(c.Drop(1), c.DeferredCommands(lambda: [c.Drop(2), c.Drop(3)]), c.Drop(4))
    assert taken(waiting) == ([c.Drop(1), c.Drop(2), c.Drop(3), c.Drop(4)], 0)


def test_a_send_that_takes_too_many_places_is_carried_out_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "CYCLE_ENTRIES", 10)
    messages = [message(str(number)) for number in range(5)]
    waiting = inbox_of(c.Enqueue(1, queue("q"), messages), fan_out=4)
    parts: list[int] = []
    while waiting.commands:
        (part,), _ = taken(waiting, 8)
        assert isinstance(part, c.Enqueue)
        parts.append(len(part.messages))
    assert parts == [2, 2, 1]


def test_what_a_lost_client_holds_is_given_back_in_several_cycles() -> None:
    waiting = inbox_of(c.Disconnect(1), c.Drop(2), in_hand=20)
    (part,), _ = taken(waiting, 8)
    assert part == c.GiveBack(1, 8, part.failed, part.never_delivered, stops=part.stops)  # type: ignore[union-attr]
    assert list(waiting.commands) == [c.Disconnect(1), c.Drop(2)]


def test_a_settlement_of_many_deliveries_takes_several_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_adapter.engine.broker.CYCLE_MESSAGES", 20)
    broker = Broker(EngineSettings())
    client = connect(broker)
    send(broker, client, "q", *[b"x"] * 50)
    consumer, inbox = attach(broker, client, "q", credit=50)
    numbers = [each.number for each in inbox.wait_for(50)]
    together: list[int] = []
    decide = broker._state.decide

    def counted(commands: Any, *times: int) -> Any:
        together.extend(len(each.numbers) for each in commands if isinstance(each, c.Settle))
        return decide(commands, *times)

    monkeypatch.setattr(broker._state, "decide", counted)
    assert broker.call(c.Settle(consumer, numbers, Outcome.ACCEPTED), WAIT) is None
    assert depth(broker, "q") == 0
    assert together == [20, 20, 10]
    broker.close()


def test_what_may_be_refused_is_taken_and_the_rest_keeps_its_order() -> None:
    broker = Broker(EngineSettings())
    inbox = inbox_module.Inbox(broker._directory)
    sends = [c.Enqueue(1, queue("q"), [message()], reply) for reply in (print, None, print)]
    settlements = [c.Settle(1, [number], Outcome.ACCEPTED) for number in range(3)]
    connects = [c.Connect("id", reply=print), c.Connect("id")]
    deferred = c.DeferredCommands(lambda: [sends[2], settlements[1]])
    inbox.commands.extend([settlements[0], sends[0], connects[0], sends[1], deferred, connects[1], settlements[2]])
    assert inbox.take_refusable() == [sends[0], connects[0], sends[2]]
    assert list(inbox.commands) == [settlements[0], sends[1], settlements[1], connects[1], settlements[2]]
    broker.close()


def test_publications_that_move_much_take_several_cycles(disk: Engines) -> None:
    broker = disk.start()
    replies: list[Any] = []
    for number in range(12):
        broker.call(c.Stage(f"g{number}/1/a", queue("q"), 0, [message()] * 1000), WAIT)
    with broker._runner:
        before = broker._state.totals.commits
        for number in range(12):
            broker.submit(c.Publish(f"g{number}", 1, [f"g{number}/1/a"], reply=replies.append))
    assert depth(broker, "q") == 12_000
    assert replies == [True] * 12
    assert broker.call(c.Statistics(), WAIT).commits - before == 2
