"""Statistics as plain data, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker_adapter.amqp.messages.amqp_message import decode_ahead, encode_amqp
from broker_adapter.clock import epoch_ms
from broker_adapter.destination import queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.operations import reader
from broker_adapter.engine.queues.statistics import BrokerStatistics, statistics_from
from broker_adapter.engine.store.maintenance import drop_quarantined, quarantined
from broker_adapter.envelope import AMQP_FORMAT, ENVELOPE_FORMAT, BodyKind, Envelope, pack
from broker_adapter.errors import MessageFormatException
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.driving import WAIT, Engines, attach, connect, send, settle
from tests.broker_adapter.engine.operations.test_requests import ask, damage_body


def test_a_subscription_says_whose_it_is(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    for name in ("ann", None):
        attach(broker, connect(broker, name), topic("news"), subscription=Subscription("s", True, shared=name is None))
    found = statistics_from(ask(broker, "statistics"))
    assert [(each.name, each.client_id) for each in found.queues if each.kind == "subscription"] == [
        ("news:s", "ann"),
        ("news:s", None),
    ]
    broker.close()


@pytest.mark.damages
def test_what_is_in_quarantine_is_counted_also_after_a_restart(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    send(broker, connect(broker), "q", "first", "second")
    damage_body(broker, b"second")
    ask(broker, "read_range", destination="q", first=1, last=2, skip_damaged=True)
    found = statistics_from(ask(broker, "statistics"))
    assert (found.quarantined, found.in_quarantine) == (1, 2), "a message; its body and its entry"
    broker.close()
    broker = Broker(EngineSettings(), str(tmp_path))
    found = statistics_from(ask(broker, "statistics"))
    assert (found.quarantined, found.in_quarantine) == (0, 2)
    drop_quarantined(broker.store, quarantined(broker.store))
    assert statistics_from(ask(broker, "statistics")).in_quarantine == 0
    broker.close()


def test_statistics_of_a_newer_and_of_an_older_broker_are_read() -> None:
    broker = Broker(EngineSettings())
    send(broker, connect(broker), "q", "first")
    fields: dict[str, Any] = ask(broker, "statistics")
    (queue,) = [each for each in fields["queues"] if each["name"] == "q"]
    newer = {**fields, "more": 1, "queues": [{**queue, "more": 1}]}
    older = {name: value for name, value in newer.items() if name != "in_quarantine"}
    older["queues"] = [{name: value for name, value in queue.items() if name != "client_id"}]
    of_now: BrokerStatistics = broker.call(c.Statistics(), WAIT)
    for each in (newer, older):
        assert statistics_from(each).queues == tuple(queue for queue in of_now.queues if queue.name == "q")
    broker.close()


@pytest.mark.parametrize("wrong", [{}, {"queues": 7}, {"queues": [7]}, {"queues": [{}]}, {"queues": []}, 7, None])
def test_an_answer_that_is_no_statistics_is_a_clear_error(wrong: Any) -> None:
    """A byte of it was changed on its way, say."""
    with pytest.raises(MessageFormatException, match="not what they should be"):
        statistics_from(wrong)


MINUTE_MS = 60_000


def sent_before(minutes: float | None, body: str = "x", **fields: Any) -> c.NewMessage:
    """A message that says that it was sent so many minutes ago; None: that does not say when."""
    sent_at_ms = None if minutes is None else epoch_ms() - int(minutes * MINUTE_MS)
    envelope = Envelope(queue("q"), BodyKind.TEXT, body, sent_at_ms=sent_at_ms)
    return c.NewMessage(ENVELOPE_FORMAT, pack(envelope), **fields)


def oldest_minutes(broker: Broker, name: str = "q") -> int | None:
    """The age of the oldest message, rounded down, as the statistics say it."""
    (found,) = [each for each in statistics_from(ask(broker, "statistics")).queues if each.name == name]
    return None if found.oldest_age_ms is None else found.oldest_age_ms // MINUTE_MS


def test_a_queue_tells_the_age_of_its_oldest_message_also_after_a_restart(engines: Engines) -> None:
    broker = engines.start(window_messages=10)
    client = connect(broker)
    broker.call(c.Enqueue(client, queue("q"), [sent_before(30 - number) for number in range(20)]), WAIT)
    broker.call(c.Enqueue(client, queue("q"), [sent_before(1, priority=9)]), WAIT)
    assert oldest_minutes(broker) == 30, "that of the first position, in whatever order they are delivered"
    consumer, inbox = attach(broker, client, "q", credit=3)
    handouts = inbox.wait_for(3)
    assert oldest_minutes(broker) == 30, "a message in hand is still there"
    settle(broker, consumer, handouts)
    broker.call(c.Detach(consumer), WAIT)
    assert oldest_minutes(broker) == 28
    if engines.path is not None:
        broker = engines.start()
        assert oldest_minutes(broker) == 28


def test_a_subscription_and_a_queue_in_memory_tell_it_as_well(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker, "me")
    attach(broker, client, topic("news"), subscription=Subscription("s", durable=True, shared=False))
    broker.call(c.Enqueue(client, topic("news"), [sent_before(5)]), WAIT)
    broker.call(c.Enqueue(client, queue("q"), [sent_before(7, persistent=False)]), WAIT)
    assert (oldest_minutes(broker, "news:s"), oldest_minutes(broker)) == (5, 7)


def test_messages_of_amqp_clients_tell_it_as_well(engines: Engines) -> None:
    broker = engines.start()
    broker.learn_format(AMQP_FORMAT, decode_ahead)
    payload = encode_amqp(Envelope(queue("q"), BodyKind.TEXT, "x", sent_at_ms=epoch_ms() - 9 * MINUTE_MS))
    broker.call(c.Enqueue(connect(broker), queue("q"), [c.NewMessage(AMQP_FORMAT, payload)]), WAIT)
    assert oldest_minutes(broker) == 9


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [sent_before(None)],
        [c.NewMessage(AMQP_FORMAT, b"not known here")],
        [c.NewMessage(ENVELOPE_FORMAT, b"broken")],
        [sent_before(5, deliver_at_ms=1 << 47)],
    ],
    ids=["empty", "no time", "unknown format", "broken", "delayed"],
)
def test_the_age_is_none_where_it_is_not_known(engines: Engines, messages: list[c.NewMessage]) -> None:
    broker = engines.start()
    client = connect(broker)
    broker.call(c.Declare(queue("q")), WAIT)
    broker.call(c.Enqueue(client, queue("q"), messages), WAIT)
    assert oldest_minutes(broker) is None


def test_a_message_of_the_future_is_not_younger_than_now(engines: Engines) -> None:
    broker = engines.start()
    broker.call(c.Enqueue(connect(broker), queue("q"), [sent_before(-5)]), WAIT)
    assert oldest_minutes(broker) == 0


def test_large_messages_are_read_a_few_at_a_time(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "AGE_BYTES", 3_000)
    broker = engines.start()
    client = connect(broker)
    for number in range(10):
        broker.call(c.Enqueue(client, queue(f"q{number}"), [sent_before(number, "x" * 1_000)]), WAIT)
    assert [oldest_minutes(broker, f"q{number}") for number in range(10)] == list(range(10))
