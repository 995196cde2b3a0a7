"""What a spool stores of a message, and by what it recognises one that comes twice."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Message, symbol

from broker_adapter.amqp.messages.payloads import decode_payload, with_place
from broker_adapter.destination import Destination
from broker_adapter.envelope import AMQP_FORMAT, ENVELOPE_FORMAT, BodyKind, Envelope, Identity, pack, unpack
from broker_adapter.errors import MessageFormatException
from spark_connector.spool.messages import expiry_of, message_of, message_of_envelope, message_of_undecodable

NOW_MS = 1_700_000_000_000


def amqp(**fields: Any) -> bytes:
    return bytes(Message(**{"id": "1", "body": "x", **fields}).encode())


def test_a_message_is_stored_as_it_came() -> None:
    payload = amqp(annotations={symbol("x-opt-mine"): "kept"}, properties={"n": 1})
    message = message_of(payload, NOW_MS)
    assert (message.format, message.payload) == (AMQP_FORMAT, payload)
    assert decode_payload(message.payload).properties == {"n": 1}


def test_it_is_persistent_whatever_it_says_since_its_broker_forgets_it() -> None:
    assert message_of(amqp(durable=False), NOW_MS).persistent
    assert message_of_envelope(Envelope(Destination("q"), persistent=False), NOW_MS).persistent


def test_its_priority_and_its_expiry_count_and_its_delay_is_over() -> None:
    delayed = {symbol("x-opt-delivery-time"): NOW_MS + 60_000}
    message = message_of(amqp(priority=7, ttl=5, annotations=delayed), NOW_MS)
    assert (message.priority, message.expires_at_ms, message.deliver_at_ms) == (7, NOW_MS + 5000, None)
    own = message_of_envelope(Envelope(Destination("q"), priority=2, expires_at_ms=9, deliver_at_ms=8), 1)
    assert (own.priority, own.expires_at_ms, own.deliver_at_ms) == (2, 9, None)


@pytest.mark.parametrize("ahead_seconds", [0, 59, 60, 120, 10**6])
def test_a_clock_that_is_ahead_of_the_brokers_takes_no_message_for_expired(ahead_seconds: int) -> None:
    sent = NOW_MS // 1000 - ahead_seconds
    both = message_of(amqp(ttl=60, expiry_time=sent + 60), NOW_MS)
    assert both.expires_at_ms == NOW_MS + 60_000
    stated = message_of(amqp(expiry_time=sent + 60), NOW_MS)
    own = message_of_envelope(Envelope(Destination("q"), expires_at_ms=(sent + 60) * 1000), NOW_MS)
    is_over = ahead_seconds >= 60
    assert stated.expires_at_ms == own.expires_at_ms == (None if is_over else (sent + 60) * 1000)


def test_of_an_instant_and_a_time_to_live_the_later_one_counts() -> None:
    assert message_of(amqp(ttl=60, expiry_time=NOW_MS // 1000 + 90), NOW_MS).expires_at_ms == NOW_MS + 90_000
    assert message_of(amqp(ttl=60, expiry_time=NOW_MS // 1000 + 30), NOW_MS).expires_at_ms == NOW_MS + 60_000
    assert message_of(amqp(), NOW_MS).expires_at_ms is None


@pytest.mark.parametrize(
    ("stated_ms", "time_to_live_ms", "expires_at_ms"),
    [(None, None, None), (100, None, None), (101, None, 101), (99, 5, 105), (200, 5, 200), (105, 5, 105)],
)
def test_what_came_now_has_not_expired(
    stated_ms: int | None, time_to_live_ms: int | None, expires_at_ms: int | None
) -> None:
    assert expiry_of(stated_ms, time_to_live_ms, 100) == expires_at_ms


@pytest.mark.parametrize(
    "changes",
    [
        {"delivery_count": 3},
        {"first_acquirer": True},
        {"ttl": 7},
        {"annotations": {symbol("x-opt-redelivered-by"): "a broker"}},
        {"instructions": {symbol("x"): 1}},
    ],
)
def test_a_message_is_recognised_whatever_its_broker_adds_when_it_sends_it_again(changes: dict[str, Any]) -> None:
    first = message_of(amqp(), NOW_MS).identity
    assert first is not None
    assert message_of(amqp(**changes), NOW_MS + 1).identity == first


@pytest.mark.parametrize("changes", [{"id": "2"}, {"body": "y"}, {"properties": {"n": 1}}, {"correlation_id": "c"}])
def test_two_messages_that_differ_are_two_though_they_may_have_one_id(changes: dict[str, Any]) -> None:
    assert message_of(amqp(**changes), NOW_MS).identity != message_of(amqp(), NOW_MS).identity


def test_a_message_without_an_id_is_never_taken_for_another_one() -> None:
    assert message_of(amqp(id=None), NOW_MS).identity is None
    assert message_of(b"", NOW_MS).identity is None
    assert message_of_envelope(Envelope(Destination("q")), NOW_MS).identity is None


def test_the_id_may_be_of_each_type_that_amqp_knows() -> None:
    identities = {message_of(amqp(id=each), NOW_MS).identity for each in ("7", 7, b"7")}
    assert len(identities) == 3
    assert None not in identities


@pytest.mark.parametrize("payload", [b"\x00", b"\x00\x53\x73\x40", b"\x00\x53\x70\xc0\xff", b"\x00\x53\x73\xa1\x01x"])
def test_what_cannot_be_decoded_is_stored_as_it_came(payload: bytes) -> None:
    message = message_of(payload, NOW_MS)
    assert (message.payload, message.identity, message.priority) == (payload, None, 4)
    with pytest.raises(MessageFormatException):
        decode_payload(message.payload + b"\x01")


def test_a_message_of_ours_keeps_all_that_it_has() -> None:
    envelope = Envelope(Destination("q"), BodyKind.MAP, {"a": 1}, {"p": 2}, "ID:1", type="t")
    message = message_of_envelope(envelope, NOW_MS)
    assert message.format == ENVELOPE_FORMAT
    assert unpack(message.payload) == envelope
    assert message.identity == message_of_envelope(envelope, NOW_MS).identity
    assert message.identity != message_of_envelope(envelope._replace(body={"a": 2}), NOW_MS).identity


@pytest.mark.parametrize(
    ("stored", "kind"), [(b"\x00Sw\xa1\x05x", AMQP_FORMAT), (b"H\x02cut", ENVELOPE_FORMAT), (b"?", AMQP_FORMAT)]
)
def test_what_cannot_be_decoded_is_stored_as_our_server_had_it(stored: bytes, kind: int) -> None:
    for payload in (stored, with_place(7, 1, None, stored)):
        message = message_of_undecodable(payload, NOW_MS)
        assert (message.payload, message.format, message.identity, message.priority) == (stored, kind, None, 4)


@pytest.mark.parametrize("own", [True, False])
def test_what_cannot_be_decoded_is_recognised_if_our_server_sends_it_again(own: bool) -> None:
    def cut(number: int) -> bytes:
        if not own:
            return amqp(id=f"m{number}", body=None) + b"\x00\x53\x77\xa1\x05x"
        whole = pack(Envelope(Destination("q"), BodyKind.MAP, {"a": 1}, identity=Identity("p", 1, number)))
        return whole[:-1] + b"\xc1"

    first, again, other = (
        message_of_undecodable(with_place(7, count, None, cut(number)), NOW_MS)
        for number, count in ((1, 0), (1, 1), (2, 0))
    )
    for message in (first, again, other):
        with pytest.raises(MessageFormatException):
            decode_payload(message.payload)
    assert first.identity is not None
    assert first.identity == again.identity != other.identity
