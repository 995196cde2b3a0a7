"""What a selector can name in a message."""

from __future__ import annotations

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine.selection import Formats, Selectable
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack
from broker_adapter.errors import MessageFormatException


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
