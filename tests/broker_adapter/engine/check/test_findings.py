"""What a check finds, and the changes that repair it."""

from __future__ import annotations

from broker_adapter.engine.check.findings import Summary, can_decode, damaged_key, to_quarantine
from broker_adapter.engine.records.layout import NEXT_QUEUE, decode_meta, encode_meta, quarantine_key


def test_a_record_is_moved_as_it_is() -> None:
    assert to_quarantine("meta", b"key", b"value") == (
        ("meta", b"key", None),
        ("quarantine", quarantine_key("meta", b"key"), b"value"),
    )


def test_a_key_of_a_wrong_length_says_so() -> None:
    found = damaged_key("queues", b"abc", b"value")
    assert found.text == "the key 616263 has 3 bytes; its record goes into quarantine"
    assert found.changes == to_quarantine("queues", b"abc", b"value")


def test_what_cannot_be_decoded_is_known() -> None:
    assert can_decode(decode_meta, NEXT_QUEUE, encode_meta(NEXT_QUEUE, 5))
    assert not can_decode(decode_meta, NEXT_QUEUE, b"damaged")


def test_a_store_is_sound_where_all_that_is_wrong_is_harmless() -> None:
    summary = Summary()
    summary.harmless["annotations left over"] += 1
    assert summary.is_sound
    summary.problems["wrong counters"] += 1
    assert not summary.is_sound
