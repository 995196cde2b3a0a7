"""What a selector can name in a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from ack_modes import Outcome
from broker_adapter.destination import Destination, queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.selection import Formats, RegionFields, Selectable, selects
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack
from broker_adapter.errors import MessageFormatException
from broker_adapter.selectors.language import parse_selector
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


def test_a_selector_over_a_region_names_the_key_and_the_fields_of_a_map() -> None:
    body = {"price": 7, "name": "IBM", "both": 1, "list": [1], "none": None, "flag": True, "JMSPriority": 9}
    envelope = Envelope(topic("quotes"), BodyKind.MAP, body, {"both": 2, "key": "property"})
    fields = RegionFields(Formats(), ENVELOPE_FORMAT, pack(envelope), "K")
    found = [fields(each) for each in ("key", "price", "name", "both", "list", "none", "flag", "JMSPriority", "other")]
    assert found == ["K", 7, "IBM", 2, None, None, True, 4, None]


def test_the_body_is_decoded_only_when_one_of_its_names_is_asked_for() -> None:
    whole = 0
    envelope = Envelope(topic("quotes"), BodyKind.TEXT, "text", {"price": 7})

    def read_whole(_payload: bytes) -> Envelope:
        nonlocal whole
        whole += 1
        return envelope

    formats = Formats()
    formats.learn(7, lambda _: envelope, read_whole)
    fields = RegionFields(formats, 7, b"x", "K")
    assert (fields("key"), fields("price"), fields("JMSPriority"), fields("JMSType"), whole) == ("K", 7, 4, None, 0)
    assert (fields("size"), fields("colour"), whole) == (None, None, 1)


def test_a_body_that_cannot_be_decoded_is_tried_once() -> None:
    tried = 0

    def read_whole(_payload: bytes) -> Envelope:
        nonlocal tried
        tried += 1
        raise MessageFormatException("it is none")

    formats = Formats()
    formats.learn(7, lambda _: Envelope(topic("quotes")), read_whole)
    fields = RegionFields(formats, 7, b"x", "K")
    for name in ("a", "b"):
        with pytest.raises(MessageFormatException, match="it is none"):
            fields(name)
    assert tried == 1
    assert not selects(parse_selector("a > 1 OR key = 'K'"), fields)


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
