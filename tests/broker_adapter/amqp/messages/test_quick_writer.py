"""What is written without a call for each value has the same bytes as what the general writer writes."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.amqp.messages import quick_writer
from broker_adapter.amqp.messages.amqp_message import encode_amqp
from broker_adapter.destination import queue, topic
from broker_adapter.envelope import BodyKind, Envelope, Identity
from broker_adapter.errors import MessageFormatException
from tests.broker_adapter.amqp.messages.test_amqp_message import INSTANTS, NAMES, envelopes

SENT = Envelope(
    queue("orders"),
    BodyKind.BYTES,
    bytes(1024),
    {"colour": "red", "count": 3, "ratio": 0.5, "flag": True, "nothing": None},
    message_id="ID:0b4f1c6e:1:1-17",
    sent_at_ms=1_780_000_000_000,
    identity=Identity("0b4f1c6e", 1, 17),
)


def in_general(envelope: Envelope, *, has_duplicate_id: bool) -> bytes:
    with patch.object(quick_writer, "encoded", return_value=None):
        return encode_amqp(envelope, has_duplicate_id=has_duplicate_id)


@given(envelopes(), INSTANTS, st.builds(Identity, NAMES, st.integers(0, 2**32), st.integers(0, 2**62)), st.booleans())
def test_both_writers_agree(envelope: Envelope, sent_at_ms: int, identity: Identity, has_duplicate_id: bool) -> None:
    sent = envelope._replace(sent_at_ms=sent_at_ms, identity=identity, group_sequence=None, deliver_at_ms=None)
    quick = quick_writer.encoded(sent, has_duplicate_id=has_duplicate_id)
    assert quick == in_general(sent, has_duplicate_id=has_duplicate_id)
    other = quick_writer.encoded(envelope, has_duplicate_id=has_duplicate_id)
    assert other in (None, in_general(envelope, has_duplicate_id=has_duplicate_id))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"body": b"x" * 255},
        {"body": b"x" * 256},
        {"body": None},
        {"body_kind": BodyKind.TEXT, "body": "é" * 200},
        {"body_kind": BodyKind.TEXT, "body": None},
        {"body_kind": BodyKind.NONE, "body": None},
        {"body_kind": BodyKind.MAP, "body": {"a": 1}},
        {"body_kind": BodyKind.STREAM, "body": [1, "x"]},
        {"properties": None},
        {"properties": {"_AMQ_DUPL_ID": "the application's"}},
        {"properties": {f"p{number}": "v" * number for number in range(300)}},
        {"destination": topic("t"), "reply_to": queue("answers"), "type": "kind", "user_id": "me"},
        {"correlation_id": b"bytes", "group_id": "g", "priority": 9, "persistent": False},
        {"expires_at_ms": 1_780_000_060_000, "priority": 0},
        {"expires_at_ms": 1},
        {"expires_at_ms": 1_780_000_000_000 + 2**32},
        *({"identity": Identity("p", 1, sequence)} for sequence in (0, 127, 128, 2**63 - 1)),
    ],
)
def test_what_applications_send_is_written_quickly(changed: dict[str, object]) -> None:
    envelope = SENT._replace(**changed)
    for has_duplicate_id in (False, True):
        quick = quick_writer.encoded(envelope, has_duplicate_id=has_duplicate_id)
        assert quick is not None
        assert quick == in_general(envelope, has_duplicate_id=has_duplicate_id)


@pytest.mark.parametrize(
    "changed",
    [
        {"identity": None},
        {"sent_at_ms": None},
        {"deliver_at_ms": 1},
        {"group_sequence": 1},
        {"message_id": "ID:AMQP_UUID:12345678-1234-5678-1234-567812345678"},
        {"correlation_id": "ID:AMQP_ULONG:7"},
        {"properties": {"raw": b"bytes"}},
        {"identity": Identity("p" * 257, 1, 1)},
        {"destination": queue("q")._replace(name="n" * 401)},
    ],
)
def test_the_rest_is_left_to_the_general_writer(changed: dict[str, object]) -> None:
    """So what is kept of producers and names has a limit, each and all together."""
    envelope = SENT._replace(**changed)
    assert quick_writer.encoded(envelope) is None
    assert encode_amqp(envelope)


@pytest.mark.parametrize(
    "changed",
    [
        {"message_id": "\ud800"},
        {"properties": {"p": "\ud800"}},
        {"properties": {"p": [1]}},
        {"properties": {f"p{number}": 1 for number in range(10_017)}},
        {"properties": {"p": 2**64}},
        {"message_id": "ID:AMQP_UUID:none"},
        {"body_kind": BodyKind.MAP, "body": {"a": object()}},
        {"body": object()},
        {"sent_at_ms": 2**63},
        {"identity": Identity("p", 1, -1)},
    ],
)
def test_what_has_no_form_is_refused_as_ever(changed: dict[str, object]) -> None:
    envelope = SENT._replace(**changed)
    assert quick_writer.encoded(envelope) is None
    if changed.get("identity") is None:
        with pytest.raises(MessageFormatException):
            encode_amqp(envelope)


def test_what_is_kept_of_producers_has_a_limit() -> None:
    for number in range(1_000):
        envelope = SENT._replace(
            destination=queue(f"q{number}"),
            expires_at_ms=1_780_000_000_000 + number,
            identity=Identity(f"p{number}", 1, 1),
        )
        assert quick_writer.encoded(envelope) == in_general(envelope, has_duplicate_id=False)
    for kept in quick_writer.KEPT:
        assert kept.cache_info().currsize <= 256
