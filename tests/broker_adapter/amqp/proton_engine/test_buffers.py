"""What proton is given at once, by what its buffers keep: no proton here."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.amqp.proton_engine.buffers import MAX_KEPT_BYTES, SMALL_BYTES, DeliveryBuffers
from broker_adapter.settings import KIB, MIB


def test_small_messages_are_given_whole_and_are_not_counted() -> None:
    buffers = DeliveryBuffers()
    for delivery in range(100_000):
        assert buffers.is_room(SMALL_BYTES)
        buffers.note(delivery, SMALL_BYTES)
    assert buffers.kept_bytes == 0


def test_an_object_that_is_used_again_counts_once() -> None:
    buffers = DeliveryBuffers()
    for _ in range(100_000):
        assert buffers.is_room(100 * KIB)
        buffers.note("an object", 100 * KIB)
    assert buffers.kept_bytes == 128 * KIB
    buffers.note("an object", 60 * KIB)
    assert buffers.kept_bytes == 128 * KIB


def test_parts_are_small_when_there_is_no_room_except_for_objects_with_a_large_buffer() -> None:
    buffers = DeliveryBuffers()
    for delivery in range(MAX_KEPT_BYTES // (128 * KIB)):
        assert buffers.part_bytes(None, 128 * KIB) == 128 * KIB
        buffers.note(delivery, 128 * KIB)
    assert not buffers.is_room(SMALL_BYTES + 1)
    assert buffers.part_bytes("a new object", 64 * KIB) == SMALL_BYTES
    assert buffers.part_bytes(0, 64 * KIB) == 64 * KIB
    assert buffers.part_bytes(0, MIB) == 128 * KIB
    assert buffers.part_bytes("a new object", 100) == 100


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 16 * MIB)), max_size=300))
def test_whatever_is_sent_the_buffers_keep_no_more_than_their_bound(sends: list[tuple[int, int]]) -> None:
    buffers = DeliveryBuffers()
    for delivery, size in sends:
        part = buffers.part_bytes(delivery, min(size, 128 * KIB))
        buffers.note(delivery, part)
        assert 0 < part <= size
        assert buffers.kept_bytes <= MAX_KEPT_BYTES
