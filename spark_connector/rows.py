"""Messages as rows of Arrow batches, and rows as messages.  Pure.

Theory of operation
    Any message is a row.  What a column cannot show (an instant beyond Spark's range, a value of another type) is null
    there; ``problem`` says so, and ``_corrupt_record`` has the message as it is stored, as Spark's own sources do it in
    their mode PERMISSIVE.  A message that cannot be decoded at all has nothing else.  So no message stops a query, and
    nothing of it is lost.  Columns are made as a whole, and cell by cell only where that fails.

    Any row is a message, or the error names the row, the column and the value.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broker_adapter import BodyKind, Destination, Envelope, InvalidDestinationException, checked_name
from broker_adapter.clock import epoch_ms
from sdk.range_reader import RangeMessage

_STRINGS = MapType(StringType(), StringType())
_ARROW_STRINGS = pa.map_(pa.string(), pa.string())
INSTANT = pa.timestamp("us", tz="UTC")

#: name, Spark's type, Arrow's type, what it is.
COLUMNS: tuple[tuple[str, Any, pa.DataType, str], ...] = (
    ("queue", StringType(), pa.string(), "the queue, or the topic, that was read"),
    ("position", LongType(), pa.int64(), "place in the queue; increasing, never used again"),
    ("messageId", StringType(), pa.string(), "JMSMessageID"),
    ("timestamp", TimestampType(), INSTANT, "when it was sent"),
    ("key", StringType(), pa.string(), "JMSXGroupID"),
    ("correlationId", StringType(), pa.string(), "JMSCorrelationID; bytes as hexadecimal digits"),
    ("type", StringType(), pa.string(), "JMSType"),
    ("priority", IntegerType(), pa.int32(), "0 to 9"),
    ("expiration", TimestampType(), INSTANT, "when it expires; null: never"),
    (
        "bodyType",
        StringType(),
        pa.string(),
        "text, bytes, map, stream, object, none; undecodable: only problem and _corrupt_record tell of it",
    ),
    ("text", StringType(), pa.string(), "the body of a text message; of map, stream and object messages as JSON"),
    ("body", BinaryType(), pa.binary(), "the body of a bytes message"),
    ("properties", _STRINGS, _ARROW_STRINGS, "the application's properties, as strings"),
    ("problem", StringType(), pa.string(), "which columns are null because they cannot show the message, and why"),
    ("_corrupt_record", BinaryType(), pa.binary(), "the message as it is stored, where there is a problem"),
)

SCHEMA = StructType([StructField(name, kind, nullable=True) for name, kind, _, _ in COLUMNS])
ARROW_TYPES = {name: kind for name, _, kind, _ in COLUMNS}
_TYPES = {name: kind for name, kind, _, _ in COLUMNS}

#: The instants that Spark's timestamps have: from the year 1 to the end of the year 9999, in milliseconds.
FIRST_INSTANT_MS = -62_135_596_800_000
LAST_INSTANT_MS = 253_402_300_799_999
#: Least and greatest value of columns that show less than their type could; instants in milliseconds.
LIMITS = {
    "timestamp": (FIRST_INSTANT_MS, LAST_INSTANT_MS),
    "expiration": (1, LAST_INSTANT_MS),
    "priority": (0, 9),
}


def projection(schema: StructType) -> tuple[str, ...]:
    """The columns that a user's schema asks for, in its order.

    Raises:
        ValueError: a column is unknown, named twice, or of another type; or may not be null.
    """
    names = schema.fieldNames()
    for field in schema.fields:
        if field.name not in _TYPES:
            raise ValueError(f"unknown column {field.name!r}; the columns are {', '.join(_TYPES)}")
        if field.dataType != _TYPES[field.name]:
            raise ValueError(
                f"column {field.name!r} has the type {_described(_TYPES[field.name])}, not {_described(field.dataType)}"
            )
        if not field.nullable:
            raise ValueError(f"column {field.name!r} may be null, as any column may: leave out NOT NULL")
        if names.count(field.name) > 1:
            raise ValueError(f"column {field.name!r} is named {names.count(field.name)} times")
    return tuple(names)


def _described(kind: DataType) -> str:
    """A type as the user wrote it; of a map also whether its values may be null, which that text leaves out."""
    nulls = isinstance(kind, MapType) and not kind.valueContainsNull
    return f"{kind.simpleString()}{' without null values' if nulls else ''}"


# Messages as rows.


@attrs.frozen
class Readable:
    """Messages on their way into rows: columns alike in length."""

    positions: Sequence[int | None]
    envelopes: Sequence[Envelope]
    payloads: Sequence[bytes | None]  #: as they are stored; None where that is not known
    problems: dict[int, list[str]] = attrs.field(factory=dict)  #: what columns cannot show, by row
    marks: Sequence[Any] = ()  #: what else is known of each, for the own columns of a source

    def row(self, index: int) -> Readable:
        """One of them by itself."""
        marks = [self.marks[index]] if self.marks else ()
        return Readable([self.positions[index]], [self.envelopes[index]], [self.payloads[index]], marks=marks)


class OwnColumn(NamedTuple):
    """A column that only one kind of source has.

    Attributes:
        kind: its type.
        values: of the messages, as Arrow takes them; raises where one of them cannot be shown.
    """

    kind: pa.DataType
    values: Callable[[Readable], Sequence[Any]]


#: Stands for a key that has no value.
NO_VALUE = Envelope(Destination(""), priority=None)  # type: ignore[arg-type]
#: Stands for a message that cannot be decoded.
_UNDECODABLE = Envelope(Destination(""), priority=None)  # type: ignore[arg-type]


class Stored(Protocol):
    """A message as it is stored."""

    @property
    def payload(self) -> bytes | None:
        """Its bytes."""

    def envelope(self) -> Envelope | None:
        """The message, decoded; None: there is none."""


def decoded(messages: Sequence[RangeMessage]) -> Readable:
    """The messages of a range; what cannot be decoded is a message, too."""
    return decoded_all(messages, [message.position for message in messages])


def decoded_all(messages: Sequence[Stored], positions: Sequence[int | None]) -> Readable:
    """Messages with their positions; what cannot be decoded, or is none, is a message, too."""
    payloads = [message.payload for message in messages]
    problems: dict[int, list[str]] = {}
    try:
        envelopes = [message.envelope() or NO_VALUE for message in messages]
    except Exception:  # of some of them
        envelopes = []
        for index, message in enumerate(messages):
            try:
                envelopes.append(message.envelope() or NO_VALUE)
            except Exception as error:  # whatever was sent, one message must not stop a query for ever
                envelopes.append(_UNDECODABLE)
                problems[index] = [f"cannot be decoded: {error}"]
    return Readable(positions, envelopes, payloads, problems)


def batch_of(
    messages: Readable, queue: str, columns: Sequence[str], own: Mapping[str, OwnColumn] | None = None
) -> pa.RecordBatch:
    """Messages as one Arrow batch.

    Args:
        messages: in order.
        queue: the name of their queue or topic.
        columns: names of the batch's.
        own: by name, columns of the source that are in place of, or beside, those of :data:`COLUMNS`.
    """
    count = len(messages.envelopes)
    own = own or {}
    problems = {index: list(found) for index, found in messages.problems.items()}
    arrays = {name: _column(name, messages, queue, problems, own) for name in columns if name not in _PROBLEM_COLUMNS}
    if "problem" in columns:
        arrays["problem"] = _where(problems, count, pa.string(), lambda index: _valid("; ".join(problems[index])))
    if "_corrupt_record" in columns:
        arrays["_corrupt_record"] = _where(problems, count, pa.binary(), lambda index: messages.payloads[index])
    schema = pa.schema([pa.field(name, own[name].kind if name in own else ARROW_TYPES[name]) for name in columns])
    return pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=schema)


_PROBLEM_COLUMNS = frozenset(("problem", "_corrupt_record"))


def _where(rows: dict[int, Any], count: int, kind: pa.DataType, value: Callable[[int], Any]) -> pa.Array:
    """Values in some rows, null in the others."""
    if not rows:
        return pa.nulls(count, kind)
    return pa.array([value(index) if index in rows else None for index in range(count)], kind)


def _column(
    name: str, messages: Readable, queue: str, problems: dict[int, list[str]], own: Mapping[str, OwnColumn]
) -> pa.Array:
    """A column; what it cannot show is null, and noted among the problems of the row."""
    try:
        return _whole_column(name, messages, queue, own)
    except Exception:  # of some cells: the others have their values
        cells = []
        for index in range(len(messages.envelopes)):
            try:
                cells.append(_whole_column(name, messages.row(index), queue, own))
            except Exception as error:
                cells.append(pa.nulls(1, own[name].kind if name in own else ARROW_TYPES[name]))
                problems.setdefault(index, []).append(f"{name}: {error}")
        return pa.concat_arrays(cells)


def _whole_column(name: str, messages: Readable, queue: str, own: Mapping[str, OwnColumn]) -> pa.Array:
    column = own.get(name)
    kind = ARROW_TYPES[name] if column is None else column.kind
    values = VALUES[name](messages, queue) if column is None else column.values(messages)
    is_instant = kind is INSTANT
    array = pa.array(values, pa.int64() if is_instant else kind)
    if isinstance(array, pa.ChunkedArray):
        raise ValueError("more than 2 GiB")
    if name in LIMITS:
        least, most = LIMITS[name]
        found = pc.min_max(array)
        for value in (found["min"].as_py(), found["max"].as_py()):
            if value is not None and not least <= value <= most:
                raise ValueError(f"{value} is not from {least} to {most}")
    return pc.multiply(array, 1000).cast(INSTANT) if is_instant else array


BODY_TYPES = {kind: kind.name.lower() for kind in BodyKind}


def _text(envelope: Envelope) -> str | None:
    kind = envelope.body_kind
    if kind is BodyKind.TEXT:
        return envelope.body  # type: ignore[no-any-return]
    if kind in (BodyKind.NONE, BodyKind.BYTES) or envelope.body is None:
        return None
    try:
        return json.dumps(envelope.body, default=_hexadecimal, ensure_ascii=False)
    except TypeError:
        return json.dumps(_with_names(envelope.body), default=_hexadecimal, ensure_ascii=False)


def _with_names(value: Any) -> Any:
    """A value whose maps have keys that JSON knows."""
    if isinstance(value, dict):
        named = {_name(key): _with_names(item) for key, item in value.items()}
        if len(named) < len(value):
            raise ValueError("two keys of a map have the same text")
        return named
    return [_with_names(item) for item in value] if isinstance(value, list | tuple) else value


def _name(key: object) -> object:
    return key if isinstance(key, str | int | float | None) else _hexadecimal(key)


def _hexadecimal(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _string(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else value.hex() if isinstance(value, bytes) else str(value)


def _properties(envelope: Envelope) -> list[tuple[str, str | None]] | None:
    properties = envelope.properties
    if not properties:
        return None if envelope is _UNDECODABLE else []
    if set(map(type, properties)) != _ONLY_TEXT:
        named = {str(name): value for name, value in properties.items()}
        if len(named) < len(properties):
            raise ValueError("two properties have the same name as text")
        properties = named
    return shown_properties(properties)


def shown_properties(properties: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """The members of the map that shows properties."""
    return [(name, None if value is None else _string(value)) for name, value in properties.items()]


_ONLY_TEXT = {str}


def _valid(text: str) -> str:
    """Text that Arrow takes, whatever the message has put into it."""
    return text.encode(errors="backslashreplace").decode()


_Values = Callable[["Readable", str], Sequence[Any]]
#: The values of a column, as Arrow takes them; instants in milliseconds.
VALUES: dict[str, _Values] = {
    "queue": lambda messages, queue: [queue] * len(messages.envelopes),
    "position": lambda messages, _: messages.positions,
    "messageId": lambda messages, _: [each.message_id for each in messages.envelopes],
    "timestamp": lambda messages, _: [each.sent_at_ms for each in messages.envelopes],
    "key": lambda messages, _: [each.group_id for each in messages.envelopes],
    "correlationId": lambda messages, _: [
        each.correlation_id.hex() if isinstance(each.correlation_id, bytes) else each.correlation_id
        for each in messages.envelopes
    ],
    "type": lambda messages, _: [each.type for each in messages.envelopes],
    "priority": lambda messages, _: [each.priority for each in messages.envelopes],
    "expiration": lambda messages, _: [each.expires_at_ms for each in messages.envelopes],
    "bodyType": lambda messages, _: [
        "undecodable" if each is _UNDECODABLE else BODY_TYPES[each.body_kind] for each in messages.envelopes
    ],
    "text": lambda messages, _: [_text(each) for each in messages.envelopes],
    "body": lambda messages, _: [
        each.body if each.body_kind is BodyKind.BYTES else None for each in messages.envelopes
    ],
    "properties": lambda messages, _: [_properties(each) for each in messages.envelopes],
}


# Rows as messages.

#: Most queues to which the rows of one task go: each has a staged transaction of its own.
MAX_QUEUES = 1_000
#: Types of the values of properties: what JMS knows, and Spark has.
_PROPERTY_TYPES = (StringType, BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType)
#: Columns of a sink, with the types they may have.
_WRITABLE: dict[str, tuple[type[DataType], ...]] = {
    "value": (StringType, BinaryType),
    "text": (StringType,),
    "body": (BinaryType, StringType),
    "key": (StringType,),
    "correlationId": (StringType,),
    "type": (StringType,),
    "priority": (ByteType, ShortType, IntegerType, LongType),
    "expiration": (TimestampType,),
    "properties": (MapType,),
    "bodyType": (StringType,),
    "_corrupt_record": (BinaryType,),
    "queue": (StringType,),
}
#: Columns of a sink that are ignored, so that what was read can be written; ``queue`` as :func:`destinations_of` says.
_IGNORED = ("queue", "position", "messageId", "timestamp", "problem")


class RowError(ValueError):
    """A row that cannot be a message; the text names the row, the column and the value."""

    @classmethod
    def of(cls, row: int, column: str, value: object, reason: str) -> RowError:
        """The error for the value of a column in a row, which is counted from 0 (the text counts from 1)."""
        text = f"{value[:50].hex()} (hexadecimal)" if isinstance(value, bytes) else f"{value!r:.100}"
        return cls(f"row {row + 1}: column {column!r} has the value {text}: {reason}")


def check_sink_schema(schema: StructType) -> None:
    """Raise ValueError where rows of this schema cannot become messages; names everything that is wrong."""
    wrong = []
    for field in schema.fields:
        types = _WRITABLE.get(field.name)
        if types is None:
            if field.name not in _IGNORED:
                wrong.append(f"unknown column {field.name!r}")
        elif not isinstance(field.dataType, types) or not _can_be_properties(field.dataType):
            wrong.append(f"column {field.name!r} cannot be of type {field.dataType.simpleString()}")
    names = schema.fieldNames()
    wrong += [f"{names.count(name)} columns {name!r}" for name in _WRITABLE if names.count(name) > 1]
    if not {"value", "text", "body"} & set(names):
        wrong.append("no column 'value', 'text' or 'body'")
    if "value" in names and {"text", "body"} & set(names):
        wrong.append("'value' beside 'text' or 'body'")
    if wrong:
        raise ValueError(
            f"these rows cannot be written as messages: {'; '.join(wrong)}. The columns are value (string or binary),"
            f" or text (string) and body (binary); and queue, key, correlationId, type, priority, expiration,"
            f" properties (map of strings to strings, booleans, integers or floating-point numbers). To put several"
            f" columns into one: to_json(struct(*)) as value"
        )


def _can_be_properties(kind: DataType) -> bool:
    """Return whether values of this type can be properties; types that are no maps are none of them."""
    return not isinstance(kind, MapType) or (
        isinstance(kind.keyType, StringType) and isinstance(kind.valueType, _PROPERTY_TYPES)
    )


def names_queues(names: Sequence[str], default: Destination | None) -> bool:
    """Return whether the column ``queue`` of rows with these columns says where they go.

    Beside ``position`` it says where they were read, and a ``default`` is where they go.
    """
    return "queue" in names and (default is None or "position" not in names)


def destinations_of(
    batch: pa.RecordBatch, default: Destination | None, known: dict[str, Destination], first_row: int = 0
) -> Destination | list[Destination]:
    """Where the rows of an Arrow batch go: all to one destination, or each to its own.

    Args:
        batch: with columns that ``check_sink_schema`` allows.
        default: of rows that name no queue; None: there is none.
        known: the queues that earlier rows of the task have named; it grows.
        first_row: number of the batch's first row, for errors; from 0 on.

    Raises:
        RowError: a row names no queue and there is no default, or none that can be; or more than :data:`MAX_QUEUES`.
    """
    if default is not None and not names_queues(batch.schema.names, default):
        return default
    found: list[Destination] = []
    for row, name in enumerate(cells("queue", batch.column(batch.schema.names.index("queue")), first_row), first_row):
        if name is None:
            if default is None:
                raise RowError.of(row, "queue", name, "the row names no queue, and there is no option queue")
            found.append(default)
            continue
        destination = known.get(name)
        if destination is None:
            if len(known) >= MAX_QUEUES:
                raise RowError.of(row, "queue", name, f"the rows of one task can go to {MAX_QUEUES} queues at most")
            try:
                destination = known[name] = Destination(checked_name(name, "queue"))
            except InvalidDestinationException as error:
                raise RowError.of(row, "queue", name, str(error)) from error
        found.append(destination)
    return found


def envelopes_of(
    batch: pa.RecordBatch,
    destination: Destination | Sequence[Destination],
    priority: int,
    time_to_live: float | None,
    first_row: int = 0,
) -> Iterator[Envelope]:
    """The rows of an Arrow batch as messages.

    Args:
        batch: with columns that ``check_sink_schema`` allows.
        destination: where they will go; or where each of them will, in order.
        priority: of rows that have none.
        time_to_live: seconds, of rows that have no expiration; None: for ever.
        first_row: number of the batch's first row, for errors; from 0 on.

    Raises:
        RowError: a row cannot be a message.
    """
    now_ms = epoch_ms()
    count = batch.num_rows
    nothing: list[Any] = [None] * count
    columns = {
        name: cells(name, batch.column(index), first_row)
        for index, name in enumerate(batch.schema.names)
        if name in _WRITABLE and name != "queue"
    }
    values = columns.get("value")
    texts = columns.get("text", nothing)
    bodies = values if values is not None else columns.get("body", nothing)
    kinds = columns.get("bodyType", nothing)
    payloads = columns.get("_corrupt_record", nothing)
    expires_at_ms = None if time_to_live is None else now_ms + int(time_to_live * 1000)
    id_prefix = f"ID:{uuid4()}-"
    rows = zip(
        texts,
        bodies,
        columns.get("key", nothing),
        columns.get("correlationId", nothing),
        columns.get("type", nothing),
        columns.get("priority", nothing),
        columns.get("expiration", nothing),
        columns.get("properties", nothing),
        repeat(destination, count) if isinstance(destination, Destination) else destination,
        strict=True,
    )
    for index, (text, body, key, correlation_id, kind, own_priority, expiration, properties, target) in enumerate(rows):
        if text is not None and body is not None:
            raise RowError.of(
                first_row + index, "body", body, "the row has a text, too, and a message has only one body"
            )
        content = body if text is None else text
        if content is None and kinds[index] == "undecodable":
            content = payloads[index]  # what was read can be written, and nothing of it is lost
        if own_priority is not None and not 0 <= own_priority <= 9:
            raise RowError.of(first_row + index, "priority", own_priority, "it is not from 0 to 9")
        if expiration is not None and expiration <= 0:
            instant = _instant_text(expiration)
            raise RowError.of(
                first_row + index, "expiration", instant, "it is not after 1970-01-01; null means that it never expires"
            )
        yield Envelope(
            target,
            _KINDS.get(type(content), BodyKind.NONE),
            content,
            dict(properties) if properties else None,
            message_id=f"{id_prefix}{index}",
            correlation_id=correlation_id,
            type=kind,
            sent_at_ms=now_ms,
            expires_at_ms=expires_at_ms if expiration is None else expiration,
            priority=priority if own_priority is None else own_priority,
            group_id=key,
        )


_KINDS: dict[Any, BodyKind] = {str: BodyKind.TEXT, bytes: BodyKind.BYTES}


def cells(name: str, column: pa.Array, first_row: int) -> list[Any]:
    """The values of a column; instants in milliseconds, rounded up, but not beyond the last that can be shown.

    Args:
        name: of the column, for errors.
        column: its cells.
        first_row: number of its first row, for errors; from 0 on.

    Raises:
        RowError: text is not valid UTF-8.
    """
    if pa.types.is_timestamp(column.type):
        # As numbers: the column's time zone is that of the Spark session, and Spark knows more names than Python.
        return [None if each is None else _milliseconds(each) for each in column.cast(pa.int64()).to_pylist()]
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        for index in range(len(column)):
            try:
                column[index].as_py()
            except UnicodeDecodeError as error:
                raise RowError.of(first_row + index, name, error.object, "it is not valid UTF-8") from error
        raise


def _milliseconds(micros: int) -> int:
    return LAST_INSTANT_MS if micros // 1000 == LAST_INSTANT_MS else -(-micros // 1000)


def _instant_text(instant_ms: int) -> str:
    if instant_ms < FIRST_INSTANT_MS:
        return f"{instant_ms} ms"
    days, rest = divmod(instant_ms, 86_400_000)
    return f"{datetime.date(1970, 1, 1) + datetime.timedelta(days)} {datetime.timedelta(milliseconds=rest)} UTC"


def size_of(envelope: Envelope) -> int:
    """Bytes of the texts and bytes that a row has brought into a message: body, properties and headers."""
    size = _bytes_of(envelope.body)
    for header in (envelope.group_id, envelope.correlation_id, envelope.type):
        if header is not None:
            size += _bytes_of(header)
    if envelope.properties:
        size += sum(map(_bytes_of, chain.from_iterable(envelope.properties.items())))
    return size


def _bytes_of(value: object) -> int:
    if isinstance(value, str):
        # A text that is not ASCII is encoded to be measured; whether it is takes no time.
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    return len(value) if isinstance(value, bytes) else 0


def largest_cell(batch: pa.RecordBatch, row: int) -> tuple[str, object]:
    """(column, value) of a row: the one that takes the most room."""
    found: tuple[str, object] = (batch.schema.names[0], None)
    most = -math.inf
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in _WRITABLE and column[row].is_valid:
            size = column.slice(row, 1).nbytes
            if size > most:
                found, most = (name, column[row].as_py()), size
    return found
