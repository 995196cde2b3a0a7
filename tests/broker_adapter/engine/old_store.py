"""Makes the small store that lies beside the tests for each version of the stored form.

``python -m tests.broker_adapter.engine.old_store FILE`` writes it as the version that runs, to be kept from then on;
:mod:`tests.broker_adapter.engine.test_old_stores` says what has to be found in it.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path
from typing import Any

from ack_modes import Outcome
from broker_adapter import BodyKind, Destination, Envelope, Identity, pack
from broker_adapter.destination import queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.clients import client_interests
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.regions import audience
from broker_adapter.engine.regions.interests import Interest, InterestKind
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.desks import Desk, change, make, put
from tests.broker_adapter.engine.driving import WAIT, attach, connect, settle

MAX_STORE_BYTES = 16 * 1024 * 1024
YEAR_2100_MS = 4_102_444_800_000


def numbered(destination: Destination, number: int, **fields: Any) -> c.NewMessage:
    """A message of the store's one producer, with its number in the body and a property."""
    envelope = Envelope(
        destination,
        BodyKind.TEXT,
        f"{destination.name} {number}",
        {"n": number},
        identity=Identity("producer", 1, number),
        **fields,
    )
    return c.from_envelope(pack(envelope), envelope)


def fill(broker: Broker) -> None:
    """Bring an empty store into the state that the tests expect."""

    def call(command: c.Command) -> None:
        assert broker.call(command, WAIT) is None

    client = connect(broker, "me")
    news, orders = topic("news"), queue("orders")
    for name in ("one", "two"):
        attach(broker, client, news, subscription=Subscription(name, durable=True, shared=False))
    call(c.Enqueue(client, news, [numbered(news, number) for number in range(1, 6)]))
    sent = [numbered(orders, number, priority=5 if number % 2 else 4) for number in range(1, 21)]
    call(c.Enqueue(client, orders, sent))
    call(c.Enqueue(client, queue("later"), [numbered(queue("later"), 1, deliver_at_ms=YEAR_2100_MS)]))
    call(c.Enqueue(client, queue("old"), [numbered(queue("old"), 1, expires_at_ms=YEAR_2100_MS)]))
    consumer, inbox = attach(broker, client, orders, credit=3)
    rejected, acknowledged, committed = inbox.wait_for(3)
    settle(broker, consumer, [rejected], Outcome.REJECTED)
    settle(broker, consumer, [acknowledged])
    settlement = (consumer, committed.number, Outcome.ACCEPTED)
    call(c.Commit(client, c.CommitId("session", 7), [(orders, numbered(orders, 21))], [settlement]))
    broker.call(c.Detach(consumer), WAIT)
    for number in (1, 2):
        staged = pack(Envelope(queue("target"), BodyKind.TEXT, f"staged {number}"))
        arguments = {"transaction": f"t{number}", "queue": "target", "first": 0, "messages": [staged]}
        assert broker.request("stage", arguments, WAIT) is True
    assert broker.request("publish", {"group": "group", "number": 3, "transactions": ["t1"]}, WAIT) is True
    broker.call(c.Disconnect(client, failed=False), WAIT)
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", Interest(InterestKind.EXPRESSION, "I.*"))
    for number, key in enumerate(("IBM", "HP", "IBM", "INTEL"), 1):
        put(broker, "quotes", key, f"{key} {number}")
    change(broker, "quotes", "INTEL", Wanted.DESTROY)
    desk.lose()
    make(broker, "trades")
    many = Desk(broker, "many")
    keys = [Interest(InterestKind.KEY, key) for key in "abcdef"]
    many.want("trades", *keys[:3])
    many.want("trades", keys[3])
    many.want("trades", keys[4])
    many.drop("trades", keys[0])
    put(broker, "trades", "d", "d 1", identity=Identity("trader", 1, 1))
    many.want("trades", keys[5])
    put(broker, "trades", "e", "e 1")
    put(broker, "trades", "a", "a 1")
    many.lose()


def main(file: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for module in (audience, client_interests):
            module.MOST_SHARED = 2  # the client of many interests has an audience of its own
        broker = Broker(EngineSettings(max_store_bytes=MAX_STORE_BYTES), directory)
        fill(broker)
        broker.close()
        Path(file).write_bytes(gzip.compress((Path(directory) / "data.mdb").read_bytes(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1])
