"""Blocks of stored messages as Arrow batches, column by column.  Pure.

Theory of operation
    A message is *plain* where its packed envelope is of the current version, its body is text, bytes or absent, and the
    engine has added nothing to it.  Nearly all are.  The heads of all messages of a block are read at once, as an array
    of numpy; texts and bodies are slices of the block that Arrow copies in one call; and only headers that stand in a
    map, and properties, are decoded message by message, where the schema asks for them.  Any other message goes through
    :mod:`rows`, which takes whatever there is, and its row is put in its place.

    What the schema does not ask for is not decoded.  So a message whose properties are damaged has its text in a schema
    of texts, and is undecodable in one that has ``properties``, or one of the columns that tell of the whole message:
    ``bodyType``, ``problem`` and ``_corrupt_record``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker_adapter import (
    ENVELOPE_OCTET,
    ENVELOPE_VERSION,
    HEAD_FIELDS,
    BodyForm,
    BodyKind,
    DestinationKind,
    HeadFlag,
    MessageFormatException,
    RangeBlock,
    unpack_further,
    unpack_properties,
)
from sdk.range_reader import RangeMessage, messages_of
from spark_connector.arrow_arrays import MOST_BYTES, of_flags, of_numbers, of_one_text, of_texts
from spark_connector.rows import ARROW_TYPES, BODY_TYPES, INSTANT, LIMITS, batch_of, decoded, shown_properties

_Numbers = npt.NDArray[Any]
_Value = TypeVar("_Value")

_HEAD: Final = np.dtype([(name, {"B": "u1", "x": "u1", "I": ">u4", "q": ">i8"}[code]) for name, code in HEAD_FIELDS])
#: The parts behind the head, in their order, by the fields that have their sizes.
_PARTS: Final = tuple(name for name, _ in HEAD_FIELDS if name.endswith("_bytes"))
#: The columns that tell of the whole message.
_OF_ALL: Final = frozenset(("bodyType", "problem", "_corrupt_record"))
#: The columns that need a part of the message decoded.
_OF_BODY: Final = _OF_ALL | {"text"}
_OF_FURTHER: Final = _OF_ALL | {"correlationId", "type"}
_OF_PROPERTIES: Final = _OF_ALL | {"properties"}
#: Whether a plain message can have a body of this kind (row) and form (column).
_IS_PLAIN: Final = np.zeros((256, 256), bool)
_IS_PLAIN[list(BodyKind), BodyForm.NONE] = True
_IS_PLAIN[BodyKind.TEXT, BodyForm.TEXT] = _IS_PLAIN[BodyKind.BYTES, BodyForm.BYTES] = True
_LAST_POSITION: Final = (1 << 63) - 1


def batch_of_block(block: RangeBlock, queue: str, columns: Sequence[str]) -> pa.RecordBatch:
    """The messages of a block as one Arrow batch.

    Args:
        block: as the broker answered.
        queue: the name of their queue or topic.
        columns: names of the batch's, of :data:`spark_connector.rows.COLUMNS`.
    """
    found = _PlainMessages(block, frozenset(columns)) if len(block.payloads) <= MOST_BYTES else None
    if found is None or not len(found.rows):
        return _one_by_one(messages_of(block), queue, columns)
    batch = found.batch(queue, columns)
    plain = found.rows
    if found.failed:
        keep = np.ones(len(plain), bool)
        keep[list(found.failed)] = False
        batch, plain = batch.filter(of_flags(keep)), plain[keep]
    if len(plain) == block.length:
        return batch
    others = np.setdiff1d(np.arange(block.length), plain)
    rows = block.rows()
    rest = _one_by_one([RangeMessage(*rows[index]) for index in others], queue, columns)
    # The others stand behind the plain ones: where is each row?
    places = of_numbers(np.argsort(np.concatenate((plain, others))), pa.int64())
    arrays = [pa.concat_arrays(pair).take(places) for pair in zip(batch.columns, rest.columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _one_by_one(messages: Sequence[RangeMessage], queue: str, columns: Sequence[str]) -> pa.RecordBatch:
    return batch_of(decoded(messages), queue, columns)


class _PlainMessages:
    """The messages of a block whose heads are plain, and their columns.

    Args:
        block: the messages.
        columns: that are wanted.

    Attributes:
        rows: which messages of the block these are.
        failed: which of them, by their place in ``rows``, are not plain after all: a part cannot be decoded.  They may
            have anything in their columns.  Complete when the batch is made.
    """

    def __init__(self, block: RangeBlock, columns: frozenset[str]) -> None:
        self._payloads = block.payloads
        self._data = pa.py_buffer(block.payloads)
        self._columns = columns
        self.failed: set[int] = set()
        positions = np.frombuffer(block.positions, "<u8")
        sizes = np.frombuffer(block.sizes, "<u4").astype(np.int64)
        ends = np.cumsum(sizes)
        candidates = np.flatnonzero(sizes >= _HEAD.itemsize)
        heads = _heads(block.payloads, (ends - sizes)[candidates])
        bounds = _bounds(heads, (ends - sizes)[candidates])
        is_plain = (bounds[:, -1] == ends[candidates]) & self._are_plain(heads)
        if "position" in columns:
            is_plain &= positions[candidates] <= _LAST_POSITION
        if block.annotations:
            is_plain &= ~np.isin(candidates, list(block.annotations))
        self.rows: _Numbers = candidates[is_plain]
        self._positions = positions[self.rows]
        self._heads, self._bounds = heads[is_plain], bounds[is_plain]

    def _are_plain(self, heads: _Numbers) -> _Numbers:
        flags = heads["flags"]
        plain: _Numbers = (heads["octet"] == ENVELOPE_OCTET) & (heads["version"] == ENVELOPE_VERSION)
        plain &= _IS_PLAIN[heads["body_kind"], heads["form"]]
        plain &= heads["destination_kind"] <= max(DestinationKind)
        plain &= (flags & HeadFlag.IDENTIFIED == 0) | ((heads["thread_id"] >= 0) & (heads["sequence"] >= 0))
        for name, (flag, field) in _INSTANTS.items():
            if name in self._columns:
                least, most = LIMITS[name]
                plain &= (flags & flag == 0) | ((heads[field] >= least) & (heads[field] <= most))
        return plain

    def batch(self, queue: str, columns: Sequence[str]) -> pa.RecordBatch:
        """The messages as a batch."""
        made = dict(self._decoded_columns())
        made["queue"] = of_one_text(queue, len(self.rows))
        arrays = [made[name] if name in made else self._column(name) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([(name, ARROW_TYPES[name]) for name in columns]))

    # Columns.

    def _column(self, name: str) -> pa.Array:
        """A column that nothing is decoded for."""
        heads = self._heads
        match name:
            case "position":
                return of_numbers(self._positions, pa.int64())
            case "timestamp" | "expiration":
                flag, field = _INSTANTS[name]
                return of_numbers(heads[field].astype(np.int64) * 1000, pa.int64(), ~self._has(flag)).cast(INSTANT)
            case "priority":
                return of_numbers(np.minimum(heads["priority"], 9), pa.int32())
            case "bodyType":
                return _BODY_TYPE_NAMES.take(of_numbers(heads["body_kind"], pa.uint8()))
            case "body":
                return self._part("body_bytes", heads["form"] == BodyForm.BYTES)
        return pa.nulls(len(heads), ARROW_TYPES[name])  # problem and _corrupt_record: nothing is wrong

    def _decoded_columns(self) -> Iterator[tuple[str, pa.Array]]:
        """The columns that something is decoded for; what cannot be is noted in ``failed``."""
        columns = self._columns
        all_ascii = self._names_are_ascii()
        for name, part, flag in _NAMES:
            # A message of which any name is no text cannot be decoded.
            if name in columns or not all_ascii:
                yield name, self._texts(self._part(part, None if flag is None else self._has(flag)))
        if columns & _OF_BODY:
            yield "text", self._texts(self._part("body_bytes", self._heads["form"] == BodyForm.TEXT))
        if columns & _OF_FURTHER:
            found = self._decoded("further_bytes", _NO_FURTHER, _shown_further)
            yield "correlationId", of_texts([each for each, _ in found])
            yield "type", of_texts([each for _, each in found])
        if columns & _OF_PROPERTIES:
            yield "properties", _maps(self._decoded("property_bytes", [], _shown_properties))

    def _names_are_ascii(self) -> bool:
        names = self._slices(self._bounds[:, [_PARTS.index("name_bytes"), _PARTS.index("further_bytes")]])
        octets = names.buffers()[2]
        return octets is None or bool(np.frombuffer(octets, np.uint8).max(initial=0) < 128)

    def _texts(self, part: pa.Array) -> pa.Array:
        """A part as text; null, and failed, where it is none."""
        try:
            return part.cast(pa.string())
        except pa.ArrowInvalid:
            values = part.to_pylist()
            failed = [row for row, value in enumerate(values) if value is not None and not _is_text(value)]
            self.failed.update(failed)
            for row in failed:
                values[row] = None
            return pa.array(values, pa.binary()).cast(pa.string())

    def _decoded(self, part: str, absent: _Value, decode: Callable[[bytes], _Value]) -> list[_Value]:
        """A part of each message, decoded where it has one; what is the same in several is decoded once."""
        values = [absent] * len(self._heads)
        rows = np.flatnonzero(self._heads[part])
        index = _PARTS.index(part)
        known: dict[bytes, _Value] = {}
        for row, (start, end) in zip(rows.tolist(), self._bounds[rows, index : index + 2].tolist(), strict=True):
            data = self._payloads[start:end]
            try:
                values[row] = known[data]
            except KeyError:
                try:
                    values[row] = known[data] = decode(data)
                except (MessageFormatException, ValueError):
                    self.failed.add(row)
        return values

    # Parts.

    def _has(self, flag: HeadFlag) -> _Numbers:
        found: _Numbers = self._heads["flags"] & flag != 0
        return found

    def _part(self, name: str, wanted: _Numbers | None) -> pa.Array:
        """A part of each message, as bytes; null where it is not wanted (None: it is in all of them)."""
        index = _PARTS.index(name)
        return self._slices(self._bounds[:, index : index + 2], wanted)

    def _slices(self, bounds: _Numbers, wanted: _Numbers | None = None) -> pa.Array:
        """Return what stands between these bounds of the block, which increase; null where it is not wanted."""
        count = len(bounds)
        if not count:
            return pa.nulls(0, pa.binary())
        # As one array these are the slices, and what is between them.
        offsets = pa.py_buffer(np.ascontiguousarray(bounds, np.int32))
        pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, offsets, self._data])
        return pieces.take(of_numbers(np.arange(0, 2 * count, 2), pa.int32(), None if wanted is None else ~wanted))


def _heads(payloads: bytes, starts: _Numbers) -> _Numbers:
    """The heads that begin at these places."""
    data = np.frombuffer(payloads, np.uint8)
    if not len(starts):
        return np.empty(0, _HEAD)
    return np.lib.stride_tricks.sliding_window_view(data, _HEAD.itemsize)[starts].reshape(-1).view(_HEAD)


def _bounds(heads: _Numbers, starts: _Numbers) -> _Numbers:
    """Return where the parts of each message begin, a column each, and where the last one ends."""
    bounds = np.empty((len(heads), len(_PARTS) + 1), np.int64)
    bounds[:, 0] = starts + _HEAD.itemsize
    for index, name in enumerate(_PARTS):
        np.add(bounds[:, index], heads[name], out=bounds[:, index + 1])
    return bounds


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


#: Correlation id and type of a message that has neither.
_NO_FURTHER: Final[tuple[str | None, str | None]] = (None, None)


def _shown_further(data: bytes) -> tuple[str | None, str | None]:
    correlation_id, kind = unpack_further(data)
    return correlation_id.hex() if isinstance(correlation_id, bytes) else correlation_id, kind


def _shown_properties(data: bytes) -> list[tuple[str, str | None]]:
    return shown_properties(unpack_properties(data))


def _maps(properties: Sequence[list[tuple[str, str | None]]]) -> pa.Array:
    offsets = np.zeros(len(properties) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, properties), np.int32, len(properties)), out=offsets[1:])
    members = list(chain.from_iterable(properties))
    names, values = of_texts([name for name, _ in members]), of_texts([value for _, value in members])
    return pa.MapArray.from_arrays(of_numbers(offsets, pa.int32()), names, values)


#: Columns of instants: the flag of messages that have one, and its field of the head.
_INSTANTS: Final = {
    "timestamp": (HeadFlag.SENT, "sent_at_ms"),
    "expiration": (HeadFlag.EXPIRES, "expires_at_ms"),
}
#: The names in a message: their column (empty: none), their part, and the flag of messages that have one.
_NAMES: Final = (
    ("", "name_bytes", None),
    ("key", "group_bytes", HeadFlag.GROUPED),
    ("", "producer_bytes", HeadFlag.IDENTIFIED),
    ("messageId", "id_bytes", HeadFlag.NAMED),
)
_BODY_TYPE_NAMES: Final = of_texts([BODY_TYPES[kind] for kind in sorted(BodyKind)])
