"""Blocks of messages become the rows that their messages become one by one; no Spark runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from broker_adapter import (
    BodyKind,
    Destination,
    DestinationKind,
    Envelope,
    Identity,
    MessageFormatException,
    block_of,
    pack,
    unpack,
)
from sdk.range_reader import RangeMessage
from spark_connector import block_rows
from spark_connector.block_rows import batch_of_block
from spark_connector.rows import SCHEMA, batch_of, decoded
from tests.spark_connector.test_row_properties import INSTANTS, NAMES, PAYLOADS, PLAIN, TEXT

MANY = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
#: Columns of which each needs another part of the message, and that are looked at without those that tell of all.
NARROW = [name for name in NAMES if name not in ("bodyType", "problem", "_corrupt_record")]

INT64 = st.integers(-(2**63), 2**63 - 1)
BODIES = {
    BodyKind.NONE: st.none() | TEXT | st.binary(max_size=9),
    BodyKind.OBJECT: PLAIN,
    BodyKind.MAP: st.none() | st.dictionaries(TEXT, PLAIN, max_size=3),
    BodyKind.BYTES: st.none() | st.binary(max_size=9),
    BodyKind.STREAM: st.none() | st.lists(PLAIN, max_size=3),
    BodyKind.TEXT: st.none() | TEXT,
}


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    """Messages as any client of ours can send them; most of them texts and bytes."""
    kind = draw(st.sampled_from([BodyKind.TEXT, BodyKind.TEXT, BodyKind.BYTES, *BodyKind]))
    return Envelope(
        Destination(draw(st.sampled_from(["q", "größer"])), draw(st.sampled_from(DestinationKind))),
        kind,
        draw(BODIES[kind]),
        draw(st.none() | st.dictionaries(TEXT, PLAIN, max_size=3)),
        draw(st.none() | TEXT),
        draw(st.none() | TEXT | st.binary(max_size=4)),
        draw(st.none() | st.just(Destination("back"))),
        draw(st.none() | TEXT),
        draw(st.none() | INSTANTS),
        draw(st.none() | INSTANTS),
        draw(st.none() | st.integers(0, 2**40)),
        draw(st.integers(0, 9)),
        draw(st.booleans()),
        draw(st.none() | TEXT),
        draw(st.none() | st.integers(0, 9)),
        draw(st.none() | TEXT),
        draw(st.none() | st.builds(Identity, TEXT, st.integers(0, 9), st.integers(0, 2**62))),
    )


@st.composite
def current_messages(draw: st.DrawFn) -> bytes:
    """The current form, some of it damaged."""
    try:
        payload = bytearray(pack(draw(envelopes())))
    except MessageFormatException:  # a number that does not fit, or a key that no map can have
        payload = bytearray(pack(Envelope(Destination("q"), BodyKind.TEXT, "x")))
    if draw(st.integers(0, 3)) == 0:
        for _ in range(draw(st.integers(1, 2))):
            payload[draw(st.integers(0, len(payload) - 1))] = draw(st.integers(0, 255))
        payload = payload[: draw(st.integers(len(payload) - 2, len(payload)))]
    return bytes(payload)


MESSAGES = st.tuples(
    current_messages() | current_messages() | current_messages() | PAYLOADS,
    st.integers(0, 40),
    st.none() | st.none() | st.none() | st.dictionaries(TEXT, TEXT | st.integers(), min_size=1, max_size=2),
)


def both(stored: Sequence[tuple[bytes, int, Any]], columns: Sequence[str]) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The rows of messages at increasing positions: as a block, and one by one."""
    positions = [10 + number for number in range(len(stored))]
    payloads = [payload for payload, _, _ in stored]
    counts = [count for _, count, _ in stored]
    notes = {index: found for index, (_, _, found) in enumerate(stored) if found is not None}
    block = block_of(positions, counts, payloads, notes)
    rows = zip(positions, counts, payloads, (found for _, _, found in stored), strict=True)
    fast = batch_of_block(block, "q", columns)
    fast.validate(full=True)
    return fast, batch_of(decoded([RangeMessage(*row) for row in rows]), "q", columns)


@MANY
@given(st.lists(MESSAGES, max_size=6))
def test_a_block_has_the_rows_that_its_messages_have_one_by_one(stored: list[tuple[bytes, int, Any]]) -> None:
    fast, slow = both(stored, NAMES)
    assert fast.schema == to_arrow_schema(SCHEMA, timezone="UTC")
    for name in NAMES:
        assert repr(fast.column(name).to_pylist()) == repr(slow.column(name).to_pylist()), name


@MANY
@given(st.lists(MESSAGES, max_size=4), st.lists(st.sampled_from(NARROW), unique=True, min_size=1))
def test_fewer_columns_show_what_all_of_them_show_of_messages_that_can_be_decoded(
    stored: list[tuple[bytes, int, Any]], columns: list[str]
) -> None:
    fast, _ = both(stored, columns)
    _, whole = both(stored, NAMES)
    assert fast.schema.names == columns
    kinds = whole.column("bodyType").to_pylist()
    for name in columns:
        pairs = zip(fast.column(name).to_pylist(), whole.column(name).to_pylist(), kinds, strict=True)
        for shown, expected, kind in pairs:
            # What is not asked for is not decoded, so that more may be shown of what is damaged.
            assert repr(shown) == repr(expected) or (kind == "undecodable" and expected is None)


def packed(**fields: Any) -> bytes:
    return pack(Envelope(Destination("q"), **{"body_kind": BodyKind.TEXT, "body": "text", **fields}))


def with_bad_text(payload: bytes) -> bytes:
    return payload[:-1] + b"\xff"


def with_bad_properties(payload: bytes) -> bytes:
    damaged = payload.replace(b"\x81\xa4name", b"\x82\xa4name")
    assert damaged != payload
    return damaged


def test_a_text_that_is_no_utf_8_is_a_row_of_its_own_kind_among_others() -> None:
    stored = [(packed(body=f"text {number}"), 0, None) for number in range(5)]
    stored[2] = (with_bad_text(stored[2][0]), 0, None)
    fast, _ = both(stored, NAMES)
    assert fast.column("text").to_pylist() == ["text 0", "text 1", None, "text 3", "text 4"]
    assert fast.column("bodyType").to_pylist()[2] == "undecodable"
    assert fast.column("_corrupt_record").to_pylist()[2] == stored[2][0]
    assert fast.column("position").to_pylist() == [10, 11, 12, 13, 14]


def test_a_text_is_shown_whatever_its_properties_are_where_only_texts_are_asked_for() -> None:
    damaged = with_bad_properties(packed(properties={"name": 1}))
    with pytest.raises(MessageFormatException):
        unpack(damaged)
    only_text, _ = both([(damaged, 0, None)], ["text"])
    with_properties, _ = both([(damaged, 0, None)], ["text", "properties"])
    assert only_text.to_pylist() == [{"text": "text"}]
    assert with_properties.num_rows == 1
    whole, slow = both([(damaged, 0, None)], NAMES)
    assert whole.to_pylist() == slow.to_pylist()
    assert whole.column("bodyType").to_pylist() == ["undecodable"]


def test_only_what_is_asked_for_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decodes: list[str] = []
    monkeypatch.setattr(block_rows, "unpack_properties", lambda data: decodes.append("properties") or {})
    monkeypatch.setattr(block_rows, "unpack_further", lambda data: decodes.append("further") or (None, None))
    monkeypatch.setattr(block_rows, "decoded", lambda messages: pytest.fail("a message was decoded by itself"))
    stored = [(packed(properties={"number": number}, type="t"), 0, None) for number in range(100)]
    batch, decodes = (
        batch_of_block(
            block_of(range(100), [0] * 100, [each for each, _, _ in stored], {}),
            "q",
            ["text", "position", "timestamp", "messageId", "key"],
        ),
        list(decodes),
    )
    assert (batch.num_rows, decodes) == (100, [])


def test_the_properties_of_messages_that_have_the_same_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decodes: list[bytes] = []
    unpack_properties = block_rows.unpack_properties
    monkeypatch.setattr(block_rows, "unpack_properties", lambda data: decodes.append(data) or unpack_properties(data))
    payloads = [packed(properties={"kind": number % 2}) for number in range(100)]
    batch = batch_of_block(block_of(range(100), [0] * 100, payloads, {}), "q", ["properties"])
    assert batch.column(0).to_pylist() == [[("kind", str(number % 2))] for number in range(100)]
    assert len(decodes) == 2


def test_what_the_engine_has_added_to_a_message_is_among_its_properties() -> None:
    stored = [(packed(properties={"a": 1}), 0, None), (packed(properties={"a": 2}), 3, {"JMS_REASON": "late"})]
    fast, slow = both(stored, NAMES)
    assert fast.to_pylist() == slow.to_pylist()
    assert fast.column("properties").to_pylist() == [[("a", "1")], [("a", "2"), ("JMS_REASON", "late")]]


@pytest.mark.parametrize("position", [1, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_position_that_spark_cannot_show_is_null_with_a_reason(position: int) -> None:
    fast = batch_of_block(block_of([position], [0], [packed()], {}), "q", NAMES)
    slow = batch_of(decoded([RangeMessage(position, 0, packed(), None)]), "q", NAMES)
    assert fast.to_pylist() == slow.to_pylist()
    assert (fast.column("position").to_pylist() == [position]) == (position < 2**63)


def test_bodies_of_16_mb_are_rows() -> None:
    stored = [
        (packed(body="x" * (16 << 20)), 0, None),
        (packed(body_kind=BodyKind.BYTES, body=bytes(16 << 20)), 0, None),
    ]
    fast, _ = both(stored, ["text", "body"])
    assert [len(each) for each in (fast.column("text")[0].as_py(), fast.column("body")[1].as_py())] == [16 << 20] * 2
    assert (fast.column("text")[1].as_py(), fast.column("body")[0].as_py()) == (None, None)


def test_a_block_without_messages_is_a_batch_without_rows() -> None:
    fast, slow = both([], NAMES)
    assert fast.schema == slow.schema
    assert fast.num_rows == 0
