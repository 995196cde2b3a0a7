"""Messages that cannot be what they say, and consumers of other libraries: no connection is lost over them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broker_adapter.amqp.messages.payloads import format_of
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import (
    ENVELOPE_FORMAT,
    BodyKind,
    Envelope,
    pack,
)
from broker_adapter.errors import MessageFormatException
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from tests.broker_adapter.amqp import frames
from tests.broker_adapter.engine.driving import connect, depth
from tests.broker_adapter.engine.strange_values import PAYLOADS
from tests.broker_adapter.server.raw_client import RawClient
from tests.contracts.transports import eventually

WAIT = 60.0


QUEUES = ("q", "DLQ")


class Served:
    """A server, and clients that know nothing but standard AMQP."""

    def __init__(self) -> None:
        self.broker = Broker(EngineSettings(redelivery_delay_seconds=30, max_redelivery_delay_seconds=600))
        self.listener = Listener(self.broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
        _, self.port = self.listener.start()
        self.client = connect(self.broker)

    def put(self, name: str, payload: bytes, form: int) -> None:
        self.broker.call(c.Enqueue(self.client, queue(name), [c.NewMessage(form, payload)]), WAIT)

    def is_read_through(self) -> None:
        """A consumer of the queue and one of the dead letters get a message of ours behind all that is there."""
        for name in QUEUES:
            self.put(name, pack(Envelope(queue(name), BodyKind.TEXT, "the last one")), ENVELOPE_FORMAT)
        with RawClient(self.port, envelopes=False) as client:
            client.send(frames.begin(0))
            for handle, name in enumerate(QUEUES):
                client.send(frames.attach(0, handle, name, name, receives=True), frames.flow(0, handle, 100))
            client.until(lambda: sum(b"the last one" in each for each in client.payloads) == 2)
            client.send(frames.disposition(0, True, 0, len(client.payloads) - 1), frames.close())
            client.until_closed()
        for name in QUEUES:
            self.broker.request("purge", {"destination": name}, WAIT)

    def close(self) -> None:
        self.listener.stop()
        self.broker.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


FEW = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
_GOOD = Envelope(queue("q"), BodyKind.TEXT, "x")


@FEW
@given(payload=PAYLOADS | st.binary(max_size=40), form=st.sampled_from([0, ENVELOPE_FORMAT]))
@example(pack(_GOOD)[:76] + b"\xc1" * (len(pack(_GOOD)) - 76), ENVELOPE_FORMAT)
@example(pack(_GOOD._replace(properties=[1, 2])), ENVELOPE_FORMAT)  # type: ignore[arg-type]
@example(pack(_GOOD._replace(properties={"a": [1, {"b": 2}]})), ENVELOPE_FORMAT)
@example(pack(_GOOD._replace(expires_at_ms=-5, sent_at_ms=(1 << 63) - 1)), ENVELOPE_FORMAT)
@example(pack(_GOOD._replace(user_id=5)), ENVELOPE_FORMAT)  # type: ignore[arg-type]
def test_no_stored_message_ends_the_connection_of_a_foreign_consumer(served: Served, payload: bytes, form: int) -> None:
    served.put("q", payload, form)
    served.put("DLQ", payload, form)
    served.is_read_through()


@FEW
@given(payload=PAYLOADS)
def test_no_message_that_comes_in_ends_the_connection_of_a_foreign_consumer(served: Served, payload: bytes) -> None:
    try:
        format_of(payload)
    except MessageFormatException:
        return  # of no form of ours: another test has these
    with RawClient(served.port) as client:
        client.send(frames.begin(0), frames.attach(0, 0, "sender"))
        client.until(lambda: client.count(frames.FLOW) == 1)  # ahead of it there is no window
        client.send(*client.deliver(0, 0, payload))
        client.until(lambda: client.count(frames.DISPOSITION) == 1)
    served.is_read_through()


def test_a_message_that_cannot_be_converted_is_a_dead_letter_and_not_lost(served: Served) -> None:
    for name in QUEUES:
        served.broker.call(c.Declare(queue(name)), WAIT)
        served.broker.request("purge", {"destination": name}, WAIT)
    payload = pack(_GOOD._replace(properties={"a": [1, {"b": 2}]}))
    served.put("q", payload, ENVELOPE_FORMAT)
    served.put("q", pack(_GOOD), ENVELOPE_FORMAT)
    with RawClient(served.port, envelopes=False) as client:
        client.send(frames.begin(0), frames.attach(0, 0, "q", "q", receives=True), frames.flow(0, 0, 100))
        client.until(lambda: len(client.payloads) == 1)
    eventually(lambda: depth(served.broker, "DLQ") == 1)  # what was rejected is with the engine a little later
    read_range = {"destination": "DLQ", "first": 0, "last": 1 << 40}
    found = served.broker.request("read_range", read_range, WAIT)
    ((_, _, form, stored, annotations),) = found["messages"]
    assert (form, stored) == (ENVELOPE_FORMAT, payload)
    assert annotations["JMS_HOLDFAST_DEAD_LETTER_REASON"] == "rejected by a consumer"
    served.broker.request("purge", {"destination": "DLQ"}, WAIT)
    served.broker.request("purge", {"destination": "q"}, WAIT)
