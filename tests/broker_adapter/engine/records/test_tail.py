"""The last commits of a store: who wrote them, and which of them two stores have in common."""

from __future__ import annotations

import pytest

from broker_adapter.engine.records.tail import Commit, Span, common_lsn, decode_commit, encode_commit, spans
from broker_adapter.errors import StoreCorruptException

A, B, C = b"writer A", b"writer B", b"writer C"


def tail(*written: tuple[bytes, int, int]) -> list[tuple[bytes, bytes]]:
    return [
        encode_commit(lsn, writer, {"messages": [b"key"]})
        for writer, first, last in written
        for lsn in range(first, last + 1)
    ]


def test_a_commit_names_its_writer_and_the_keys_that_it_changed() -> None:
    keys = {"messages": [b"1", b"2"], "meta": [b"next_message"]}
    assert decode_commit(*encode_commit(7, A, keys)) == Commit(7, A, keys)


@pytest.mark.parametrize("at", range(0, 30, 3))
def test_a_record_with_a_changed_byte_is_no_commit(at: int) -> None:
    key, value = encode_commit(7, A, {"messages": [b"12345678"]})
    damaged = bytearray(key + value)
    damaged[at] ^= 1
    with pytest.raises(StoreCorruptException):
        decode_commit(bytes(damaged[:8]), bytes(damaged[8:]))


def test_a_record_under_another_key_or_too_short_is_no_commit() -> None:
    key, value = encode_commit(7, A, {})
    for wrong in ((b"\0" * 8, value), (key + b"\0", value), (key, value[:12]), (key, b"")):
        with pytest.raises(StoreCorruptException):
            decode_commit(*wrong)


def test_spans_say_who_wrote_which_commits() -> None:
    assert spans(tail((A, 3, 5), (B, 6, 6))) == [Span(A, 3, 5), Span(B, 6, 6)]


def test_nothing_ahead_of_a_missing_or_damaged_commit_is_in_the_spans() -> None:
    records = tail((A, 1, 9))
    assert spans([*records[:4], *records[5:]]) == [Span(A, 6, 9)]
    records[6] = records[6][0], b"damaged and long enough for one"
    assert spans(records) == [Span(A, 8, 9)]


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [
        ([(A, 1, 9)], [(A, 1, 9)], 9),
        ([(A, 1, 9)], [(A, 5, 7)], 7),
        ([(A, 1, 9), (B, 10, 12)], [(A, 1, 15)], 9),
        ([(A, 1, 9), (B, 10, 12)], [(A, 4, 7), (C, 8, 30)], 7),
        ([(A, 1, 9), (B, 10, 12), (C, 13, 13)], [(A, 1, 9), (B, 10, 11)], 11),
        ([(A, 1, 4)], [(A, 5, 9)], None),
        ([(A, 1, 4)], [(B, 1, 4)], None),
        ([(A, 1, 4)], [], None),
        ([], [], None),
    ],
    ids=[
        *("equal", "behind", "its own commits", "restored", "a third writer", "too far behind", "another store"),
        *("new", "both are new"),
    ],
)
def test_the_last_common_commit_is_of_one_writer_and_both_remember_it(
    ours: list[tuple[bytes, int, int]], theirs: list[tuple[bytes, int, int]], common: int | None
) -> None:
    first, second = [Span(*each) for each in ours], [Span(*each) for each in theirs]
    assert common_lsn(first, second) == common_lsn(second, first) == common
