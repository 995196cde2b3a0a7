"""What consumers add to the messages that they give back, and when these come again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ack_modes import Failure, Outcome
from broker_adapter.annotations import EXCEPTION_ANNOTATION, LEFT_OUT_ANNOTATION, MAX_ANNOTATION_BYTES
from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import DEAD_LETTER_EXCEPTION, BodyKind, Envelope, pack, unpack
from tests.broker_adapter.engine.decisions import Q, Rules, positions
from tests.broker_adapter.engine.driving import (
    WAIT,
    Engines,
    attach,
    come_to_rest,
    connect,
    day_ms,
    depth,
    drained,
    settle,
)

WHY, TRY = "JMS_AMQP_MA_x-opt-why", "JMS_AMQP_MA_x-opt-try"


def modified(annotations: dict[str, Any] | None = None, **fields: Any) -> c.Modified:
    return c.Modified(Outcome.MODIFIED, annotations=annotations, **fields)


def held(rules: Rules, body: bytes = b"x", **fields: Any) -> int:
    """A consumer that holds a message."""
    client = rules.connect()
    consumer = rules.attach(client, Q, 10)
    rules.send(client, Q, body, **fields)
    return consumer


@pytest.mark.parametrize("persistent", [True, False])
def test_annotations_are_combined_and_new_values_win(persistent: bool) -> None:
    rules = Rules()
    consumer = held(rules, persistent=persistent)
    rules.do(c.Settle(consumer, [1], modified({WHY: "busy", TRY: 1})))
    rules.do(c.Settle(consumer, [2], c.Modified(Outcome.RELEASED, annotations={TRY: [2, b"\x52\x02"]})))

    assert rules.added("q") == [{WHY: "busy", TRY: [2, b"\x52\x02"]}]
    assert rules.delivered[consumer] == [(1, 0), (2, 1), (3, 1)]
    rules.do(c.Settle(consumer, [3], Outcome.ACCEPTED))
    assert rules.added("q") == []


def test_beyond_the_limit_nothing_is_added_but_how_much_it_was() -> None:
    rules = Rules()
    consumer = held(rules)
    rules.do(c.Settle(consumer, [1], modified({WHY: "busy"})))
    for number in range(2, 6):
        rules.do(c.Settle(consumer, [number], modified({TRY: "x" * MAX_ANNOTATION_BYTES})))

    (added,) = rules.added("q")
    assert added.keys() == {WHY, LEFT_OUT_ANNOTATION}
    assert added[LEFT_OUT_ANNOTATION].startswith("annotations of ")
    assert added[LEFT_OUT_ANNOTATION].endswith(" bytes, with those that the message had; the limit is 4096")


def test_a_dead_letter_keeps_them_beside_its_reason_and_tells_what_was_raised_last() -> None:
    rules = Rules(max_deliveries=3)
    consumer = held(rules)
    rules.do(c.Settle(consumer, [1], modified({WHY: "busy"})))
    for number, text in ((2, "ValueError: first"), (3, "ValueError: second")):
        rules.do(c.Settle(consumer, [number], Failure(text)))
        rules.pass_time(1_000)

    (added,) = rules.added("DLQ")
    assert (added[WHY], added[DEAD_LETTER_EXCEPTION]) == ("busy", "ValueError: second")
    assert added["JMS_HOLDFAST_DEAD_LETTER_COUNT"] == 3
    assert rules.added("q") == []


@pytest.mark.parametrize("end", ["undeliverable", "expired"])
def test_what_was_raised_before_is_not_told_where_a_message_ends_for_another_reason(end: str) -> None:
    rules = Rules(expiry_queue="DLQ")
    consumer = held(rules, expires_at_ms=2_000_000)
    rules.do(c.Settle(consumer, [1], Failure("ValueError: first")))
    rules.do(c.Settle(consumer, [2], modified(undeliverable=True)))
    rules.pass_time(2_000_000 if end == "expired" else 30_000)
    if end == "expired":
        rules.attach(rules.connect(), Q, 1)
    (added,) = rules.added("DLQ")
    assert DEAD_LETTER_EXCEPTION not in added
    assert EXCEPTION_ANNOTATION not in added


def test_what_was_raised_is_cut() -> None:
    rules = Rules()
    rules.do(c.Settle(held(rules), [1], Failure("x" * 10_000)))
    assert [len(each[EXCEPTION_ANNOTATION]) for each in rules.added("q")] == [1000]


def test_what_has_annotations_still_expires() -> None:
    rules = Rules(expiry_queue="over")
    consumer = held(rules, expires_at_ms=1_000_100)
    rules.do(c.Settle(consumer, [1], modified({WHY: "busy"})))
    rules.now_ms += 100
    rules.do(c.Settle(consumer, [2], modified({TRY: 1})))
    (added,) = rules.added("over")
    assert (added[WHY], added[TRY], added["JMS_HOLDFAST_DEAD_LETTER_REASON"]) == ("busy", 1, "expired")


@pytest.mark.parametrize(
    ("fields", "due_ms"),
    [
        ({"delay_ms": 500}, 500),
        ({"deliver_at_ms": 1_000_700}, 700),
        ({"deliver_at_ms": 1_000_700, "delay_ms": 100}, 700),
        ({"deliver_at_ms": 1_000_000}, 0),
        ({"deliver_at_ms": 5}, 0),
    ],
)
def test_a_delay_is_obeyed_and_the_message_is_behind_the_others_then(fields: dict[str, int], due_ms: int) -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 1)
    rules.send(client, Q, b"a", b"b", priority=7)
    rules.do(c.Settle(consumer, [1], modified({WHY: "later"}, **fields)), c.Credit(consumer, 9))

    if not due_ms:
        assert positions(rules, consumer) == [1, 1, 2]
        return
    assert positions(rules, consumer) == [1, 2]
    queue_state = rules.state.directory.by_destination[Q]
    assert (queue_state.depth, queue_state.delayed.behind) == (2, 1)
    (line,) = [key for key, value in rules.effects.durable.tables["schedule"].items() if value is not None] or [b""]
    assert int.from_bytes(line[:8]) == 1_000_000 + due_ms
    assert [each[WHY] for each in rules.added("q")] == ["later"]


def test_a_delay_is_no_way_past_the_limit_of_deliveries() -> None:
    rules = Rules(max_deliveries=1)
    rules.do(c.Settle(held(rules), [1], modified(delay_ms=1000)))
    assert rules.depth("DLQ") == 1


# With stores.


def packed(body: str, **fields: Any) -> c.NewMessage:
    return c.from_envelope(pack(envelope := Envelope(queue("q"), BodyKind.TEXT, body, **fields)), envelope)


def test_annotations_and_delays_survive_a_restart(tmp_path: Path) -> None:
    engines = Engines(tmp_path)
    broker = engines.start()
    client = connect(broker)
    broker.call(c.Enqueue(client, queue("q"), [packed("now"), packed("later")]), WAIT)
    consumer, inbox = attach(broker, client, "q", 2)
    now, later = inbox.wait_for(2)
    broker.call(c.Settle(consumer, [now.number], modified({WHY: "busy"})), WAIT)
    broker.call(c.Settle(consumer, [later.number], modified({TRY: 1}, deliver_at_ms=day_ms() + 3_600_000)), WAIT)
    assert inbox.wait_for(2)[2:] == []

    broker = engines.start()
    (again,) = drained(broker, connect(broker), "q")
    assert (again.annotations, again.delivery_count) == ({WHY: "busy"}, 1)
    assert depth(broker, "q") == 2
    engines.start().close()


@pytest.mark.parametrize("persistent", [True, False])
def test_a_delayed_message_comes_with_its_annotations_and_count(tmp_path: Path, persistent: bool) -> None:
    broker = Engines(tmp_path).start()
    client = connect(broker)
    broker.call(c.Enqueue(client, queue("q"), [packed("x", persistent=persistent)]), WAIT)
    consumer, inbox = attach(broker, client, "q", 5)
    (first,) = inbox.wait_for(1)
    broker.call(c.Settle(consumer, [first.number], modified({WHY: "later"}, delay_ms=20)), WAIT)
    second = inbox.wait_for(2)[1]
    assert (second.payload, second.annotations, second.delivery_count) == (first.payload, {WHY: "later"}, 1)
    settle(broker, consumer, [second])
    broker.close()


def test_a_message_that_has_come_back_from_the_dead_letter_queue_keeps_them(tmp_path: Path) -> None:
    broker = Engines(tmp_path).start(max_deliveries=1)
    client = connect(broker)
    broker.call(c.Enqueue(client, queue("q"), [packed("x")]), WAIT)
    consumer, inbox = attach(broker, client, "q", 1)
    broker.call(c.Settle(consumer, [inbox.wait_for(1)[0].number], modified({WHY: "busy"})), WAIT)
    broker.request("redrive", {"destination": "DLQ"}, WAIT)
    broker.call(c.Credit(consumer, 1), WAIT)
    again = inbox.wait_for(2)[1]
    assert again.annotations == {WHY: "busy", "JMS_HOLDFAST_REDRIVEN_FROM": "DLQ"}
    broker.close()


def test_the_check_knows_where_a_refused_message_waits(tmp_path: Path) -> None:
    broker = Engines(tmp_path).start()
    client = connect(broker)
    broker.call(c.Enqueue(client, queue("q"), [packed("x")]), WAIT)
    consumer, inbox = attach(broker, client, "q", 5)
    broker.call(c.Settle(consumer, [inbox.wait_for(1)[0].number], modified(undeliverable=True)), WAIT)
    assert broker.check() == []
    broker.close()


@pytest.mark.parametrize("path", ["disk", "memory"])
def test_random_histories_lose_nothing_and_bring_nothing_back_to_who_refused_it(tmp_path: Path, path: str) -> None:
    chance = random.Random(random.getrandbits(64))
    engines = Engines(tmp_path if path == "disk" else None)
    broker = engines.start(max_deliveries=50, max_redelivery_delay_seconds=0.02, redelivery_delay_seconds=0.001)
    client = connect(broker)
    bodies = [str(number) for number in range(60)]
    messages = [
        packed(
            body,
            properties={"odd": int(body) % 2 == 1},
            priority=chance.choice((4, 4, 9)),
            persistent=int(body) % 3 > 0,
        )
        for body in bodies
    ]
    broker.learn_format(messages[0].format, unpack)
    broker.call(c.Enqueue(client, queue("q"), messages), WAIT)
    consumers: dict[int, Any] = {}
    taken: dict[int, int] = {}
    refused: dict[int, set[bytes]] = {}
    accepted: list[bytes] = []
    for _ in range(150):
        if len(consumers) < 2 or (len(consumers) < 4 and chance.random() < 0.2):
            selector = chance.choice((None, None, "odd = TRUE"))
            number, inbox = attach(broker, client, "q", chance.randrange(1, 6), selector=selector)
            consumers[number], taken[number], refused[number] = inbox, 0, set()
        number = chance.choice(list(consumers))
        come_to_rest(broker)
        for each in consumers[number].handouts[taken[number] :]:
            taken[number] += 1
            assert each.payload not in refused[number]
            ending = chance.choice(
                (
                    *(Outcome.ACCEPTED, Outcome.RELEASED, Outcome.MODIFIED, Failure("E: x")),
                    modified({TRY: taken[number]}, undeliverable=True),
                    modified({WHY: "x"}, undeliverable=True),
                    modified({WHY: "y"}, delay_ms=chance.choice((0, 5))),
                )
            )
            broker.call(c.Settle(number, [each.number], ending), WAIT)
            if ending is Outcome.ACCEPTED:
                accepted.append(each.payload)
            elif isinstance(ending, c.Modified) and ending.undeliverable:
                refused[number].add(each.payload)
        if chance.random() < 0.1:
            assert broker.check() == []
            broker.call(c.Detach(number, give_back=True), WAIT)
            del consumers[number]
        else:
            broker.call(c.Credit(number, 3), WAIT)
    for number in consumers:
        broker.call(c.Detach(number, give_back=True), WAIT)
    left: list[bytes] = []
    while len(accepted) + len(left) + depth(broker, "DLQ") < len(bodies):  # the delayed ones come later
        fresh, inbox = attach(broker, client, "q", 100)
        broker.call(c.Drain(fresh), WAIT)
        settle(broker, fresh, inbox.handouts)
        left += [each.payload for each in inbox.handouts]
        broker.call(c.Detach(fresh), WAIT)
    dead = [each.payload for each in drained(broker, client, "DLQ")]
    assert sorted([*accepted, *left, *dead]) == sorted(each.payload for each in messages)
    assert broker.check() == []
    broker.close()
