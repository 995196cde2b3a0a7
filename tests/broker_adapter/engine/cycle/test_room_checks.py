"""The room that is measured before a decision."""

from __future__ import annotations

import threading

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.store.port import MESSAGE_BYTES, PLACE_BYTES
from tests.broker_adapter.engine.driving import (
    WAIT,
    Engines,
    attach,
    connect,
    eventually,
    send,
    settle,
)


def test_a_send_that_waits_for_memory_goes_on_as_the_last_acknowledgement_frees_it(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_adapter.engine.broker._SLEEP_SECONDS", 10 * WAIT)  # so that nothing else happens then
    one = 900 + MESSAGE_BYTES + PLACE_BYTES
    broker = engines.start(max_volatile_bytes=2 * one + 100, blocked_send_timeout_seconds=10 * WAIT)
    client = connect(broker)
    assert send(broker, client, "q", b"x" * 900, b"x" * 900, persistent=False) is None
    consumer, inbox = attach(broker, client, "q", credit=1)
    messages = inbox.wait_for(1)
    answered = threading.Event()
    message = c.NewMessage(0, b"y" * 900, persistent=False)
    broker.submit(c.Enqueue(client, queue("other"), [message], lambda _: answered.set()))
    broker.call(c.Due(()), WAIT)
    assert not answered.is_set()
    broker.submit(c.Settle(consumer, [each.number for each in messages], Outcome.ACCEPTED))
    assert answered.wait(WAIT)


def test_a_full_store_holds_producers_back_and_lets_consumers_go_on(disk: Engines) -> None:
    broker = disk.start(max_store_bytes=16 * 1024 * 1024, blocked_send_timeout_seconds=0.1, min_free_disk_bytes=0)
    client = connect(broker)
    body = b"x" * 100_000
    sent = 0
    while True:
        reply = send(broker, client, "q", body)
        if reply is not None:
            break
        sent += 1
        assert sent < 200
    assert "max_store_bytes" in str(reply[0])
    assert sent > 50
    consumer, inbox = attach(broker, client, "q", credit=sent)
    settle(broker, consumer, inbox.wait_for(sent))
    eventually(lambda: send(broker, client, "q", body) is None)
