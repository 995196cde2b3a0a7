"""What a selector can name in a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from ack_modes import Outcome
from broker_adapter.destination import Destination, queue
from broker_adapter.engine import commands as c
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.selection import Formats, Selectable
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack
from broker_adapter.errors import MessageFormatException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, attach, connect


def selectable(envelope: Envelope) -> Selectable:
    return Selectable(Formats(), ENVELOPE_FORMAT, pack(envelope))


def test_a_binary_correlation_id_is_turned_into_text_once() -> None:
    message = selectable(Envelope(queue("q"), BodyKind.NONE, None, correlation_id=b"\x01\xff" * 100_000))
    found = message("JMSCorrelationID")
    assert found == "ID:" + "01FF" * 100_000
    assert message("JMSCorrelationID") is found


def test_a_correlation_id_of_text_stays_as_it_is() -> None:
    message = selectable(Envelope(queue("q"), BodyKind.NONE, None, correlation_id="x"))
    assert message("JMSCorrelationID") == "x"
    assert message("JMSPriority") == 4
    assert message("nothing") is None


def test_a_message_that_cannot_be_decoded_is_tried_once() -> None:
    tried = 0

    def read(_payload: bytes) -> Envelope:
        nonlocal tried
        tried += 1
        raise MessageFormatException("it is none")

    formats = Formats()
    formats.learn(7, read)
    message = Selectable(formats, 7, b"x")
    for name in ("a", "JMSType", "a"):
        with pytest.raises(MessageFormatException, match="it is none"):
            message(name)
    assert tried == 1


def test_a_failure_counts_though_no_consumer_searches_any_more_and_another_one_loads(tmp_path: Path) -> None:
    """What was found behind the window leaves memory in the cycle in which its count is raised."""
    broker = Broker(EngineSettings(window_messages=10), tmp_path)
    try:
        lost, other = connect(broker), connect(broker)
        envelopes = [
            Envelope(Destination("q"), BodyKind.TEXT, str(number), {"colour": "red" if number == 50 else "none"})
            for number in range(51)
        ]
        messages = [c.from_envelope(pack(each), each) for each in envelopes]
        broker.call(c.Enqueue(lost, Destination("q"), messages), WAIT)
        plain, inbox = attach(broker, other, "q")
        searcher, red = attach(broker, lost, "q", 5, selector="colour = 'red'")
        attach(broker, lost, "q", selector="colour = 'blue'")
        assert [each.position for each in red.wait_for(1)] == [51]
        # The first failure would be counted also by the note that the message was handed out.
        broker.call(c.Settle(searcher, [1], Outcome.MODIFIED), WAIT)
        assert [each.delivery_count for each in red.wait_for(2)] == [0, 1]
        with broker.reading():
            broker.submit_all([c.Disconnect(lost), c.Credit(plain, 1000)])
        assert [each.delivery_count for each in inbox.wait_for(51)] == [0] * 50 + [2]
    finally:
        broker.close()
