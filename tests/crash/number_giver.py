"""A program that sends messages, says which numbers they got, and kills itself.

It prints the numbers of the first and of the last one.
"""

from __future__ import annotations

import os
import signal
import sys

from broker_adapter.engine.broker import Broker
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import connect, send


def main(directory: str, *counts: str) -> None:
    """Send so many messages in turn: volatile ones, persistent ones, volatile ones, and so on."""
    broker = Broker(EngineSettings(), directory)
    client = connect(broker)
    intake = broker._state.intake
    first = intake.next_message
    for turn, count in enumerate(counts):
        if int(count):
            assert send(broker, client, "q", *range(int(count)), persistent=turn % 2 == 1) is None
    os.write(1, f"{first} {intake.next_message - 1}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
