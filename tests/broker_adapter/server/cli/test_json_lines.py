"""Messages as lines of JSON come out as they went in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ack_modes import DeliveryTag
from broker_adapter.destination import Destination, DestinationKind, queue
from broker_adapter.envelope import BodyKind, Envelope
from broker_adapter.server.cli.json_lines import as_json, from_json
from broker_adapter.transport import Delivery
from sdk import ConnectionFactory, DeliveryMode, Message
from tests.broker_adapter.server.cli.running import done, holdfast
from tests.server_process import ServerProcess

NUMBERS = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False) | st.text(max_size=9)
NAMES = st.sampled_from(["a", "kind", "ä", "base64"])
NESTED = st.recursive(SCALARS | st.binary(), lambda each: st.lists(each) | st.dictionaries(NAMES, each), max_leaves=9)
BODIES = st.one_of(
    st.tuples(st.just(BodyKind.TEXT), st.text()),
    st.tuples(st.just(BodyKind.BYTES), st.binary()),
    st.tuples(st.just(BodyKind.MAP), st.dictionaries(NAMES, SCALARS | st.binary())),
    st.tuples(st.just(BodyKind.STREAM), st.lists(SCALARS | st.binary())),
    st.tuples(st.just(BodyKind.OBJECT), NESTED),
    st.tuples(st.sampled_from(BodyKind), st.none()),
)
TEXTS = st.none() | st.text()
ENVELOPES = st.builds(
    lambda kind_and_body, **fields: Envelope(queue("to"), *kind_and_body, **fields),
    BODIES,
    properties=st.none() | st.dictionaries(NAMES, SCALARS, min_size=1),
    correlation_id=TEXTS | st.binary(),
    reply_to=st.none() | st.builds(Destination, st.just("back"), st.sampled_from(DestinationKind)),
    type=TEXTS,
    expires_at_ms=st.none() | st.integers(0, 2**62),
    priority=st.integers(0, 9),
    persistent=st.booleans(),
    group_id=TEXTS,
    group_sequence=st.none() | st.integers(0, 2**32 - 1),
)


@given(ENVELOPES)
def test_a_line_of_json_is_the_message_that_it_was(envelope: Envelope) -> None:
    line = as_json(Delivery(DeliveryTag(0, 1, 1), envelope, lambda carried: carried, 5))
    found = from_json(line, queue("to"))
    assert found == envelope
    assert {name: type(value) for name, value in (found.properties or {}).items()} == {
        name: type(value) for name, value in (envelope.properties or {}).items()
    }


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", "is no message as JSON"),
        ("[" * 100_000, "is no message as JSON"),
        ("[1]", "it is no object"),
        ('{"base64": "AA=="}', "no field 'base64'"),
        ('{"body": {"base64": "?"}, "type": "BYTES"}', "is no message as JSON"),
        ('{"colour": 1}', "no field 'colour'; there are body, correlation_id"),
        ('{"type": "VIDEO"}', "type='VIDEO'; there are NONE, OBJECT"),
        ('{"type": "TEXT", "body": 5}', "of type TEXT cannot have the body 5"),
        ('{"type": "MAP", "body": {"a": [5]}}', "of type MAP cannot have the body"),
        ('{"type": "STREAM", "body": [{"a": 5}]}', "of type STREAM cannot have the body"),
        ('{"type": "MAP", "body": [5]}', "of type MAP cannot have the body"),
        ('{"body": "x", "priority": 10}', "priority=10"),
        ('{"body": "x", "priority": true}', "priority=True"),
        ('{"body": "x", "persistent": 1}', "persistent=1"),
        ('{"body": "x", "expires_at_ms": -1}', "expires_at_ms=-1"),
        ('{"body": "x", "group_sequence": 4294967296}', "group_sequence=4294967296"),
        ('{"body": "x", "group_id": 5}', "group_id=5"),
        ('{"body": "x", "reply_to": "q", "reply_to_kind": "STACK"}', "reply_to_kind='STACK'"),
        ('{"body": "x", "properties": [1]}', "properties="),
        ('{"body": "x", "properties": {"a": [1]}}', "property 'a' cannot have the value"),
        ('{"body": "x", "properties": {"a": 9223372036854775808}}', "property 'a' cannot have the value"),
        ('{"body": "x", "properties": {"no name": 1}}', "no name"),
    ],
)
def test_a_line_that_is_no_message_is_named(line: str, text: str) -> None:
    with pytest.raises(Exception, match=text) as raised:
        from_json(line, queue("to"))
    assert isinstance(raised.value, ValueError) or "no name" in text
    assert len(str(raised.value)) < 500


def told(message: Message) -> dict[str, Any]:
    names = (
        *("body", "correlation_id", "type", "priority", "delivery_mode", "expires_at_ms", "group_id"),
        *("group_sequence", "reply_to"),
    )
    properties = {name: (type(value), value) for name, value in message.properties.items()}
    return {"class": type(message), "properties": properties, **{name: getattr(message, name) for name in names}}


def test_what_is_browsed_is_sent_to_another_queue_as_it_was(server: ServerProcess) -> None:
    with ConnectionFactory(server.url).create_connection() as connection:
        connection.start()
        session = connection.create_session()
        producer = session.create_producer(session.create_queue("from"))
        for body in ("text\nof two lines", b"\x00\xff", {"n": 1, "f": 1.0, "b": b"x", "none": None}, [1, "a", b"b"]):
            producer.send(body, properties={"i": 1, "f": 1.0, "t": "1", "yes": True, "none": None}, priority=7)
        message = session.create_object_message({"deep": [1, {"er": 2.5}]})
        message.reply_to, message.type = session.create_topic("back"), "T"
        producer.send(
            message, group_id="g", correlation_id=b"c", time_to_live=900, delivery_mode=DeliveryMode.NON_PERSISTENT
        )
        producer.send(session.create_message())
        url = ("--url", server.url)
        lines = done("browse", "from", *url, "--json")
        assert done("send", "to", *url, "--json-line", text=lines) == "sent 6 to to\n"
        browsed = [
            [told(each) for each in session.create_browser(session.create_queue(name))] for name in ("from", "to")
        ]
        assert browsed[0] == browsed[1]
        assert len(browsed[0]) == 6
        one = json.dumps({"body": "x", "priority": 2, "properties": {"a": 1, "b": 1}})
        done("send", "one", one, *url, "--json-line", "--priority", "3", "--property", "b=2", "--ttl", "60")
        (found,) = session.create_browser(session.create_queue("one"))
        assert (found.body, found.priority, dict(found.properties)) == ("x", 3, {"a": 1, "b": "2"})
        assert found.expires_at_ms is not None
        refused = holdfast("send", "one", *url, "--json-line", text="{}\n")
        assert (refused.returncode, "of type TEXT cannot have the body None" in refused.stderr) == (1, True)
