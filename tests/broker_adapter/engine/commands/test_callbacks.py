"""Callbacks that raise."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.callbacks import tell
from tests.broker_adapter.engine.driving import (
    Engines,
    connect,
    depth,
    eventually,
    message,
)


def test_a_callback_that_raises_does_not_stop_the_engine(engines: Engines, caplog: pytest.LogCaptureFixture) -> None:
    broker = engines.start()
    client = connect(broker)

    def bad(_result: Any) -> None:
        raise RuntimeError("mine")

    broker.submit(c.Enqueue(client, queue("q"), [message()], bad))
    eventually(lambda: depth(broker, "q") == 1)
    assert "callback of the engine raised" in caplog.text


def test_a_callback_gets_its_value() -> None:
    told: list[int] = []
    tell(told.append, 3)
    assert told == [3]
