"""Stored AMQP messages as they are delivered again: what changes, and what keeps its bytes."""

from __future__ import annotations

import proton
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.amqp.messages.amqp_message import decode_amqp, encode_amqp
from broker_adapter.amqp.messages.payloads import decode_payload, received
from broker_adapter.amqp.messages.stored_message import with_delivery
from broker_adapter.amqp.messages.values import UInt, encode
from broker_adapter.destination import queue
from broker_adapter.envelope import Envelope
from tests.broker_adapter.amqp.messages.test_amqp_message import FULL, NAMES, foreign


@given(st.integers(0, 2**32 - 1), st.none() | st.dictionaries(NAMES, st.text(max_size=9), min_size=1, max_size=3))
def test_a_delivery_changes_only_the_count_and_the_added_properties(count: int, added: dict[str, str] | None) -> None:
    for original in (
        encode_amqp(FULL),
        encode_amqp(Envelope(queue("q"), persistent=False)),
        foreign(body={"k": [1, 2]}, properties={"old": proton.int32(5)}, durable=True, ttl=3.0),
        foreign(body=b"x", inferred=True),
    ):
        before, after = proton.Message(), proton.Message()
        before.decode(original)
        after.decode(with_delivery(original, count, added))

        assert after.delivery_count == count
        assert received(with_delivery(original, count, added)).delivery_count == count
        assert after.properties == ({**(before.properties or {}), **(added or {})} or None)
        # What the engine has added properties to is where it stays: it does not expire any more.
        assert after.ttl == (0 if added else before.ttl)
        assert after.expiry_time == (0 if added else before.expiry_time)
        for name in ("body", "id", "address", "durable", "priority", "annotations", "creation_time", "reply_to"):
            assert getattr(after, name) == getattr(before, name)
        assert decode_payload(original)._replace(properties=None, expires_at_ms=None) == decode_payload(
            with_delivery(original, count, added)
        )._replace(properties=None, expires_at_ms=None)


def test_a_first_delivery_is_the_stored_bytes_themselves() -> None:
    stored = encode_amqp(FULL)

    assert with_delivery(stored, 0) is stored


def test_properties_keep_their_types_when_one_is_added() -> None:
    stored = foreign(properties={"number": proton.int32(5), "gone": "x"}, body="b")

    changed = with_delivery(stored, 0, {"gone": "y"})

    assert b"\xa1\x06numberT\x05" in changed
    assert decode_amqp(changed).properties == {"number": 5, "gone": "y"}


def test_a_producer_cannot_preset_the_delivery_count() -> None:
    assert received(with_delivery(foreign(delivery_count=7, body="x"), 0)).delivery_count == 0


def test_annotations_of_consumers_are_added_or_replaced_with_their_types_and_the_message_still_expires() -> None:
    added = {"JMS_AMQP_MA_x-opt-why": "busy", "JMS_AMQP_MA_x-opt-try": [2, encode(UInt(2))]}
    for had in (None, {proton.symbol("x-opt-old"): 1, proton.symbol("x-opt-try"): proton.int32(1)}):
        stored = foreign(
            body="b",
            annotations=had,
            instructions={"i": 1},
            properties={"p": 1},
            ttl=5.0,
            expiry_time=77,
            id="i",
        )
        before, after = proton.Message(), proton.Message()
        before.decode(stored)
        after.decode(with_delivery(stored, 1, added))
        assert after.annotations == {**(had or {}), "x-opt-why": "busy", "x-opt-try": 2}
        assert type(after.annotations["x-opt-try"]) is proton.uint
        assert after.delivery_count == 1
        for name in ("body", "id", "ttl", "expiry_time", "properties", "instructions"):
            assert getattr(after, name) == getattr(before, name)


def test_both_kinds_are_added_to_a_message_that_has_neither() -> None:
    added = {"JMS_AMQP_MA_x-opt-why": "busy", "JMS_HOLDFAST_DEAD_LETTER_REASON": "rejected"}
    for stored in (b"", b"\x00\x53\x75\xa0\x01b", b"\x00\x53\x73\xc0\x04\x01\xa1\x01i"):
        message = proton.Message()
        message.decode(with_delivery(stored, 0, added))
        assert message.annotations == {"x-opt-why": "busy"}
        assert message.properties == {"JMS_HOLDFAST_DEAD_LETTER_REASON": "rejected"}
