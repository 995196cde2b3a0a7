"""A program that sends messages, changes a key, says which numbers and stamps they got, and kills itself.

It prints the numbers of the first and of the last message, and the stamp of the change.
"""

from __future__ import annotations

import os
import signal
import sys

from broker_adapter.engine import broker as broker_module
from broker_adapter.engine.broker import Broker
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.desks import make, put
from tests.broker_adapter.engine.driving import connect, day_ms, send


def main(directory: str, behind_ms: str, *counts: str) -> None:
    """Send so many messages in turn: volatile ones, persistent ones, volatile ones, and so on.

    The change is made while the clock is behind by so many milliseconds.
    """
    broker_module._now_ms = lambda: day_ms() - int(behind_ms)
    broker = Broker(EngineSettings(), directory)
    client = connect(broker)
    intake = broker._state.intake
    first = intake.next_message
    for turn, count in enumerate(counts):
        if int(count):
            assert send(broker, client, "q", *range(int(count)), persistent=turn % 2 == 1) is None
    last = intake.next_message - 1
    make(broker, "quotes")
    put(broker, "quotes", "IBM")
    os.write(1, f"{first} {last} {broker._state.events.last_stamp}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
