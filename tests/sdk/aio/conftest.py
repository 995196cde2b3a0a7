"""Brokers for programs of asyncio, and what is not to happen in the thread of a loop."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.answers import Answer
from broker_adapter.engine.broker import Broker
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from broker_adapter.signals import Condition, Waiters

WAIT = 120.0
Main = Callable[[], Coroutine[Any, Any, None]]
Run = Callable[[Main], None]


@pytest.fixture(params=["embedded", "amqp"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of an engine with small queues, in this process or behind a server."""
    if request.param == "embedded":
        yield f"embedded:{tmp_path}?max_queue_messages=200&redelivery_delay_seconds=0.001"
        return
    broker = Broker(EngineSettings(max_queue_messages=200, redelivery_delay_seconds=0.001), str(tmp_path))
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    _, port = listener.start()
    yield f"amqp://127.0.0.1:{port}"
    listener.stop()
    broker.close()


@pytest.fixture
def name() -> str:
    """Of a queue that no other test uses."""
    return f"queue {uuid4()}"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of what makes a thread wait, made by the thread of this test, whose loop it is."""
    found: list[str] = []
    own = threading.get_ident()
    for cls, method in ((Waiters, "wait"), (Answer, "arrives"), (Condition, "wait"), (threading.Thread, "join")):
        called = getattr(cls, method)

        def call(self: Any, *arguments: Any, called: Any = called, **options: Any) -> Any:
            looks_only = called.__qualname__ == "Waiters.wait" and (arguments[1] or math.inf) <= time.monotonic()
            if threading.get_ident() == own and asyncio._get_running_loop() is not None and not looks_only:
                found.append(called.__qualname__)
            return called(self, *arguments, **options)

        monkeypatch.setattr(cls, method, call)
    return found


@pytest.fixture
def run(waits: list[str], caplog: pytest.LogCaptureFixture) -> Run:
    """Runs a coroutine function in a loop, whose thread never waits in the SDK, and loses no error."""

    def run(main: Main) -> None:
        async def limited() -> None:
            async with asyncio.timeout(WAIT):
                await main()

        asyncio.run(limited())
        assert waits == []
        assert "never retrieved" not in caplog.text

    return run
