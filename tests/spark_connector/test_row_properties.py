"""Any message becomes a row, any row becomes a message or an error that names it; no Spark runs."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

import msgpack
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from broker_adapter import BodyKind, Destination, Envelope, decode_payload, pack, unpack
from broker_adapter.amqp.messages.values import Described, Symbol, Timestamp, ULong, encode
from broker_adapter.errors import MessageFormatException
from sdk.range_reader import RangeMessage
from spark_connector.rows import (
    COLUMNS,
    FIRST_INSTANT_MS,
    LAST_INSTANT_MS,
    SCHEMA,
    RowError,
    batch_of,
    decoded,
    envelopes_of,
)

NAMES = [name for name, _, _, _ in COLUMNS]
ARROW = to_arrow_schema(SCHEMA, timezone="UTC")
OUT = Destination("out")
MANY = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)

# What may come.

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
SYMBOLS = st.text(st.characters(codec="ascii"), max_size=8).map(Symbol)
INSTANTS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [0, 1, -1, FIRST_INSTANT_MS, FIRST_INSTANT_MS - 1, LAST_INSTANT_MS, LAST_INSTANT_MS + 1]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | TEXT
    | SYMBOLS
    | INSTANTS.map(Timestamp)
    | st.integers(0, 2**64 - 1).map(ULong)
    | st.binary(max_size=8)
    | st.uuids()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXT | st.binary(max_size=3) | st.integers(0, 9) | st.none(), inner, max_size=3)
        | st.builds(Described, st.integers(0, 200).map(ULong), inner)
    ),
    max_leaves=8,
)
#: Values that are right where they stand more often than not, so that messages come as far as their columns.
HEADERS = st.lists(st.none() | st.booleans() | st.integers(0, 20) | SCALARS, max_size=5)
PROPERTIES = st.tuples(
    st.none() | SCALARS,  # message-id
    st.none() | st.binary(max_size=4),  # user-id
    st.none() | TEXT,  # to
    st.none() | TEXT,  # subject
    st.none() | TEXT,  # reply-to
    st.none() | SCALARS,  # correlation-id
    st.none(),
    st.none(),
    st.none() | INSTANTS.map(Timestamp),  # absolute-expiry-time
    st.none() | INSTANTS.map(Timestamp),  # creation-time
    st.none() | TEXT,  # group-id
    st.none() | st.integers(0, 2**32 - 1),
    st.none() | TEXT,
).map(list)


def section(code: int, value: Any) -> bytes:
    return b"\x00\x53" + bytes((code,)) + encode(value)


@st.composite
def amqp_messages(draw: st.DrawFn) -> bytes:
    """Standard messages as any client may send them, and somewhat beyond."""
    parts = []
    if draw(st.booleans()):
        parts.append(section(0x70, draw(HEADERS)))
    if draw(st.booleans()):
        kinds = st.sampled_from(["x-opt-jms-msg-type", "x-opt-jms-dest", "x-opt-delivery-time"]).map(Symbol)
        parts.append(section(0x72, draw(st.dictionaries(kinds | SYMBOLS, st.integers(0, 6) | SCALARS, max_size=3))))
    if draw(st.booleans()):
        parts.append(section(0x73, draw(PROPERTIES)))
    if draw(st.booleans()):
        parts.append(
            section(
                0x74, draw(st.dictionaries(TEXT, SCALARS, max_size=3) | st.dictionaries(SCALARS, VALUES, max_size=2))
            )
        )
    for code, values in (
        draw(st.sampled_from([(0x75, st.binary(max_size=9)), (0x76, st.lists(VALUES, max_size=3)), (0x77, VALUES)])),
    ):
        parts += [section(code, draw(values)) for _ in range(draw(st.integers(0, 2 if code != 0x77 else 1)))]
    return b"".join(parts)


NUMBERS = st.integers(-(2**63), 2**64 - 1)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | TEXT | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.binary(max_size=3) | NUMBERS, inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def packed_envelopes(draw: st.DrawFn) -> bytes:
    """Our own form, with anything in any field."""
    right = [
        ["q", 0],
        draw(st.integers(0, 5)),
        draw(PLAIN),
        draw(st.none() | st.dictionaries(TEXT, PLAIN, max_size=3)),
        draw(st.none() | TEXT),
        draw(st.none() | TEXT | st.binary(max_size=4)),
        None,
        draw(st.none() | TEXT),
        draw(st.none() | INSTANTS),
        draw(st.none() | INSTANTS),
        None,
        draw(st.integers(0, 9)),
        True,
        draw(st.none() | TEXT),
        None,
        None,
        None,
    ]
    for _ in range(draw(st.integers(0, 2))):
        right[draw(st.integers(2, 16))] = draw(PLAIN)
    packed: bytes = msgpack.packb(right)
    return packed


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    payload = bytearray(draw(amqp_messages() | packed_envelopes()))
    for _ in range(draw(st.integers(1, 3))):
        if payload:
            payload[draw(st.integers(0, len(payload) - 1))] = draw(st.integers(0, 255))
    return bytes(payload[: draw(st.integers(0, len(payload)))])


PAYLOADS = amqp_messages() | packed_envelopes() | damaged() | st.binary(max_size=40)
ANNOTATIONS = st.none() | st.dictionaries(TEXT, TEXT | st.integers(), min_size=1, max_size=2)


# Messages become rows.


def missing(envelope: Envelope) -> set[str]:
    """The columns that have nothing to show of a message."""
    kind, body = envelope.body_kind, envelope.body
    names = {
        "messageId": envelope.message_id is None,
        "timestamp": envelope.sent_at_ms is None,
        "key": envelope.group_id is None,
        "correlationId": envelope.correlation_id is None,
        "type": envelope.type is None,
        "priority": envelope.priority is None,
        "expiration": envelope.expires_at_ms is None,
        "text": body is None or kind in (BodyKind.NONE, BodyKind.BYTES),
        "body": body is None or kind is not BodyKind.BYTES,
    }
    return {name for name, is_missing in names.items() if is_missing}


@MANY
@given(st.lists(st.tuples(PAYLOADS, ANNOTATIONS), min_size=1, max_size=3))
def test_any_message_becomes_a_row_and_nothing_is_null_without_a_reason(
    stored: list[tuple[bytes, dict[str, Any] | None]],
) -> None:
    messages = [RangeMessage(number, 0, payload, notes) for number, (payload, notes) in enumerate(stored, 1)]
    batch = batch_of(decoded(messages), "q", NAMES)
    batch.validate(full=True)
    assert batch.schema == ARROW
    for message, row in zip(messages, batch.to_pylist(), strict=True):
        assert (row["queue"], row["position"]) == ("q", message.position)
        assert row["_corrupt_record"] == (None if row["problem"] is None else message.payload)
        null = {name for name in NAMES[:-2] if row[name] is None}
        if row["bodyType"] == "undecodable":
            assert row["problem"].startswith("cannot be decoded")
            assert null == set(NAMES[:-2]) - {"queue", "position", "bodyType"}
            continue
        envelope = message.envelope()
        told = set(re.findall(r"(?:^|; )(\w+): ", row["problem"] or ""))
        assert null <= missing(envelope) | told
        if row["timestamp"] is not None:
            epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
            assert (row["timestamp"] - epoch) / datetime.timedelta(milliseconds=1) == envelope.sent_at_ms
        if row["properties"]:
            assert len(row["properties"]) == len(dict(row["properties"])) == len(envelope.properties or ())
        if row["text"] is not None and envelope.body_kind is not BodyKind.TEXT:
            json.loads(row["text"])


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(PAYLOADS, st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
def test_each_choice_of_columns_shows_what_all_of_them_show(payload: bytes, names: list[str]) -> None:
    messages = decoded([RangeMessage(1, 0, payload, None)])
    (whole,) = batch_of(messages, "q", NAMES).to_pylist()
    (part,) = batch_of(messages, "q", names).to_pylist()
    for name in names:
        if name not in ("problem", "_corrupt_record"):
            assert repr(part[name]) == repr(whole[name])


@MANY
@given(PAYLOADS)
def test_what_was_read_can_be_written_and_no_payload_is_lost(payload: bytes) -> None:
    batch = batch_of(decoded([RangeMessage(1, 0, payload, None)]), "q", NAMES)
    (row,) = batch.to_pylist()
    (envelope,) = envelopes_of(batch, OUT, 4, None)
    assert unpack(pack(envelope)) == envelope
    if row["bodyType"] == "undecodable":
        assert (envelope.body_kind, envelope.body) == (BodyKind.BYTES, payload)
    else:
        assert envelope.body == (row["body"] if row["text"] is None else row["text"])
    try:
        original = decode_payload(payload)
    except MessageFormatException:
        return
    if original.body_kind is BodyKind.BYTES and isinstance(original.body, bytes):
        assert envelope.body == original.body


# Rows become messages.

ZONES = st.sampled_from(["UTC", "GMT+8", "+08:00", "Etc/GMT-8", "America/Los_Angeles", "UTC+3", "no zone"])
BYTES_AS_TEXT = st.binary(max_size=5)  # Spark's cast(binary as string) checks nothing


@st.composite
def string_columns(draw: st.DrawFn, count: int) -> pa.Array:
    valid = st.text(st.characters(codec="utf-8"), max_size=6).map(str.encode)
    cells = draw(
        st.lists(
            st.none() | valid | (BYTES_AS_TEXT if draw(st.integers(0, 9)) == 0 else valid),
            min_size=count,
            max_size=count,
        )
    )
    return pa.array(cells, pa.binary()).view(pa.string())


@st.composite
def property_columns(draw: st.DrawFn, count: int) -> pa.Array:
    kind, values = draw(
        st.sampled_from(
            [
                (pa.string(), st.text(st.characters(codec="utf-8"), max_size=5)),
                (pa.bool_(), st.booleans()),
                (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
                (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
                (pa.float64(), st.floats()),
            ]
        )
    )
    maps = st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), st.none() | values, max_size=3)
    cells = draw(st.lists(st.none() | maps.map(lambda found: list(found.items())), min_size=count, max_size=count))
    return pa.array(cells, pa.map_(pa.string(), kind))


@st.composite
def sink_batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Rows of any schema that the sink takes, with any values."""
    count = draw(st.integers(1, 4))

    def column(kind: pa.DataType, values: st.SearchStrategy[Any]) -> pa.Array:
        return pa.array(draw(st.lists(st.none() | values, min_size=count, max_size=count)), kind)

    columns: dict[str, pa.Array] = {}
    binary = st.binary(max_size=6)
    if draw(st.booleans()):
        columns["value"] = draw(string_columns(count)) if draw(st.booleans()) else column(pa.binary(), binary)
    else:
        columns["text"] = draw(string_columns(count))
        bodies = column(pa.binary(), binary)
        if draw(st.integers(0, 9)):  # a row has one of them
            has_text = columns["text"].is_valid().to_pylist()
            bodies = pa.array([None if has_text[row] else bodies[row].as_py() for row in range(count)], pa.binary())
        columns["body"] = bodies
    for name in ("key", "correlationId", "type", "bodyType"):
        if draw(st.booleans()):
            columns[name] = draw(string_columns(count))
    if draw(st.booleans()):
        columns["priority"] = column(pa.int32(), st.integers(0, 9) | st.integers(-(2**31), 2**31 - 1))
    if draw(st.booleans()):
        last = LAST_INSTANT_MS * 1000
        micros = st.integers(1, 2**60) | st.integers(last - 2000, last + 2000) | st.integers(-(2**63), 2**63 - 1)
        columns["expiration"] = column(pa.timestamp("us", tz=draw(ZONES)), micros)
    if draw(st.booleans()):
        columns["properties"] = draw(property_columns(count))
    names = draw(st.permutations(list(columns)))
    return pa.RecordBatch.from_arrays([columns[name] for name in names], names)


def milliseconds(micros: int) -> int:
    """Rounded up; down in the last millisecond that can be shown."""
    return LAST_INSTANT_MS if micros // 1000 == LAST_INSTANT_MS else -(-micros // 1000)


def cell(batch: pa.RecordBatch, name: str, row: int) -> Any:
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    return column.cast(pa.int64())[row].as_py() if name == "expiration" else column[row].as_py()


def outcome(batch: pa.RecordBatch, first_row: int) -> tuple[list[Envelope], str | None]:
    """The messages of the rows, up to the one that is an error; and the error."""
    envelopes: list[Envelope] = []
    try:
        for envelope in envelopes_of(batch, OUT, 4, None, first_row):
            envelopes.append(envelope)  # noqa: PERF402 - those ahead of an error count as well
    except RowError as error:
        return envelopes, str(error)
    return envelopes, None


def invalid_text(batch: pa.RecordBatch) -> set[tuple[int, str]]:
    """(row, column) of what is text by its type only."""
    found = set()
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_string(column.type):
            for row, data in enumerate(column.view(pa.binary()).to_pylist()):
                if data is not None and data.decode(errors="replace").encode() != data:
                    found.add((row, name))
    return found


@MANY
@given(sink_batches(), st.integers(0, 1000))
def test_any_row_becomes_a_message_or_an_error_that_names_row_column_and_value(
    batch: pa.RecordBatch, first_row: int
) -> None:
    envelopes, error = outcome(batch, first_row)
    invalid = invalid_text(batch)
    if error is not None:
        found = re.match(r"row (\d+): column '(\w+)' has the value (.+?): ", error, re.DOTALL)
        assert found, error
        row, column = int(found[1]) - 1 - first_row, found[2]
        if invalid:
            assert (row, column) in invalid
            data = batch.column(column).view(pa.binary())[row].as_py()
            assert found[3] == f"{data.hex()} (hexadecimal)"
            return
        assert row == len(envelopes)
        value = cell(batch, column, row)
        if column == "body":
            assert batch.column("text")[row].is_valid
            assert found[3] == f"{value.hex()} (hexadecimal)"
        elif column == "priority":
            assert not 0 <= value <= 9
            assert found[3] == str(value)
        else:
            assert column == "expiration"
            assert value <= 0
        return
    assert not invalid
    assert len(envelopes) == batch.num_rows
    for row, envelope in enumerate(envelopes):
        assert repr(unpack(pack(envelope))) == repr(envelope)
        body = cell(batch, "value", row) if "value" in batch.schema.names else cell(batch, "text", row)
        body = cell(batch, "body", row) if body is None else body
        assert envelope.body == body
        assert envelope.body_kind == {str: BodyKind.TEXT, bytes: BodyKind.BYTES}.get(type(body), BodyKind.NONE)
        assert (envelope.group_id, envelope.correlation_id, envelope.type) == (
            cell(batch, "key", row),
            cell(batch, "correlationId", row),
            cell(batch, "type", row),
        )
        assert envelope.priority == (4 if cell(batch, "priority", row) is None else cell(batch, "priority", row))
        micros = cell(batch, "expiration", row)
        assert envelope.expires_at_ms == (None if micros is None else milliseconds(micros))
        assert repr(dict(cell(batch, "properties", row) or ())) == repr(envelope.properties or {})
