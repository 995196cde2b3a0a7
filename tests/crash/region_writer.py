"""A program that changes keys of a region and lets a durable client process the events, until it is killed.

It prints a line for each answer: ``put KEY VALUE VERSION``, ``destroy KEY VERSION``, ``acknowledged VERSION``, and
``commit NUMBER`` for a transaction that puts it into two regions and sends it.
"""

from __future__ import annotations

import os
import random
import sys
import threading

from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.regions.interests import Interest, InterestKind
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.desks import Desk, make
from tests.broker_adapter.engine.driving import WAIT, connect, message

KEYS = "abcde"


def say(text: str) -> None:
    """Print lines at once, whatever other threads print."""
    os.write(1, f"{text}\n".encode())


def main(directory: str, seed: int) -> None:
    chance = random.Random(seed)
    broker = Broker(EngineSettings(), directory)
    make(broker, "quotes", "orders")
    client = connect(broker)
    desk = Desk(broker, window=20)
    desk.want("quotes")
    desk.ready()
    slow = Desk(broker, "slow", conflation="true")
    slow.want("quotes")
    slow.want("quotes", Interest(InterestKind.QUERY, "key = 'a'", "a"))

    def process() -> None:
        told = 0
        while True:
            got = [each.position for each in list(desk.got) if isinstance(each, e.EventHandout)]
            if got and got[-1] > told:
                through = got[chance.randrange(len(got))] if chance.random() < 0.5 else got[-1]
                if through > told:
                    desk.acknowledge(through)
                    told = through
                    say(f"acknowledged {told}")

    threading.Thread(target=process, daemon=True).start()
    number = seed * 1_000_000
    while True:
        changes = []
        for _ in range(chance.choice([1, 1, 5])):
            number += 1
            wanted = Wanted.DESTROY if chance.random() < 0.2 else Wanted.PUT
            changes.append(e.KeyChange(chance.choice(KEYS), wanted, message(number)))
        answers = broker.call(e.ChangeKeys("quotes", changes), WAIT)
        lines = []
        for change, (operation, version) in zip(changes, answers, strict=True):
            if operation is None:
                continue
            if change.wanted is Wanted.PUT:
                lines.append(f"put {change.key} {change.message.payload.decode()} {version}")
            else:
                lines.append(f"destroy {change.key} {version}")
        say("\n".join([*lines, "done"]))
        if chance.random() < 0.3:
            number += 1
            changes = [e.KeyChange("transaction", Wanted.PUT, message(number))]
            sends = [(queue("sent"), message(number, persistent=True))]
            parts = [e.ChangeKeys(region, changes) for region in ("quotes", "orders")]
            broker.call(c.Commit(client, c.CommitId("session", number), sends, [], changes=parts), WAIT)
            say(f"commit {number}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
