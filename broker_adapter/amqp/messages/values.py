"""AMQP 1.0 values as bytes and back (AMQP 1.0 part 1).

Both directions are pure Python, so that no untrusted bytes reach a recursive decoder in C.  Decoding keeps
four limits: nesting, the number of values in one piece of data, arrays of values without bytes (which
would let four bytes stand for four thousand million values), and keys of a map whose hashes a sender can choose (see
:mod:`broker_adapter.packing`).  Every failure is a ValueError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from uuid import UUID

from broker_adapter.packing import MAX_NUMBER_KEYS

#: Deepest nesting of lists, maps, arrays and descriptions that is decoded or encoded.
MAX_DEPTH: Final = 34
#: Most values in one piece of data, nested ones counted.
MAX_VALUES: Final = 200_000
#: Most keys of one map that are neither text nor bytes nor numbers: UUIDs, described values.
MAX_OTHER_KEYS: Final = 32


class Symbol(str):
    """An AMQP symbol: a name out of an agreed set."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Symbol({str(self)!r})"


class Described(NamedTuple):
    """A value and what it is."""

    descriptor: Any
    value: Any


class UByte(int):
    """An integer encoded as ``ubyte``."""


class UShort(int):
    """An integer encoded as ``ushort``."""


class UInt(int):
    """An integer encoded as ``uint``."""


class ULong(int):
    """An integer encoded as ``ulong``."""


class Byte(int):
    """An integer encoded as ``byte``."""


class Short(int):
    """An integer encoded as ``short``."""


class Int(int):
    """An integer encoded as ``int``."""


class Float(float):
    """A number encoded as ``float``."""


class Timestamp(int):
    """Milliseconds since the epoch, encoded as ``timestamp``."""


class Symbols(tuple[str, ...]):
    """Names encoded as an array of symbols."""

    __slots__ = ()


# Decoding.

_u16: Final = struct.Struct(">H").unpack_from
_u32: Final = struct.Struct(">I").unpack_from
_u64: Final = struct.Struct(">Q").unpack_from
_i8: Final = struct.Struct(">b").unpack_from
_i16: Final = struct.Struct(">h").unpack_from
_i32: Final = struct.Struct(">i").unpack_from
_i64: Final = struct.Struct(">q").unpack_from
_f32: Final = struct.Struct(">f").unpack_from
_f64: Final = struct.Struct(">d").unpack_from


#: The first digit of a type code → the bytes of its values (AMQP 1.0 part 1, 1.2).
_SIZES: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}


class Reader:
    """Reads values one after the other from untrusted bytes.

    Attributes:
        data: the bytes.
        position: where the next value starts.
    """

    __slots__ = ("_budget", "_most", "data", "end", "position")

    def __init__(self, data: bytes, position: int = 0, end: int | None = None, most_values: int = MAX_VALUES) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end
        self._budget = self._most = most_values

    def value(self, depth: int = MAX_DEPTH) -> Any:
        """The next value.

        Raises:
            ValueError: the bytes are not an AMQP value, or beyond a limit.
        """
        position = self.position
        if position >= self.end:
            raise ValueError("the data ends where a value should begin")
        code = self.data[position]
        self.position = position + 1
        return self._body(code, depth)

    def skip(self, depth: int = MAX_DEPTH) -> None:
        """Step over the next value, by its size: what is in it is not decoded.

        Raises:
            ValueError: the bytes are not an AMQP value.
        """
        code = self.data[self._take(1)]
        if code == 0x00:
            if depth <= 0:
                raise ValueError(f"nested deeper than the limit of {MAX_DEPTH}")
            self.skip(depth - 1)
            self.skip(depth - 1)
            return
        kind = code >> 4
        if kind in (0xA, 0xC, 0xE):
            size = self.data[self._take(1)]
        elif kind in (0xB, 0xD, 0xF):
            size = _u32(self.data, self._take(4))[0]
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise ValueError(f"unknown type code 0x{code:02x}")
        self._take(size)

    def _take(self, size: int) -> int:
        """Step over ``size`` bytes; returns where they start."""
        start = self.position
        position = start + size
        if position > self.end:
            raise ValueError(f"the data ends {position - self.end} bytes early")
        self.position = position
        return start

    def _body(self, code: int, depth: int) -> Any:
        self._budget -= 1
        if self._budget < 0:
            raise ValueError(f"more values than the limit of {self._most}")
        fixed = FIXED.get(code)
        if fixed is not None:
            size, read = fixed
            return read(self.data, self._take(size))
        constant = CONSTANTS.get(code, _MISSING)
        if constant is not _MISSING:
            return constant
        kind = code >> 4
        if kind in (0xA, 0xB):
            size = self.data[self._take(1)] if kind == 0xA else _u32(self.data, self._take(4))[0]
            start = self._take(size)
            raw = self.data[start : start + size]
            kind = code & 0xF
            if kind == 0:
                return bytes(raw)
            if kind == 1:
                return str(raw, "utf-8")
            if kind == 3:
                return Symbol(str(raw, "ascii"))
        if depth <= 0:
            raise ValueError(f"nested deeper than the limit of {MAX_DEPTH}")
        if code == 0x00:
            descriptor = self.value(depth - 1)
            return Described(descriptor, self.value(depth - 1))
        if code == 0x45:
            return []
        if code in _COMPOUND:
            return self._compound(code, depth - 1)
        raise ValueError(f"unknown type code 0x{code:02x}")

    def _compound(self, code: int, depth: int) -> Any:
        if code & 0x10:
            size = _u32(self.data, self._take(4))[0]
            count_size = 4
        else:
            size = self.data[self._take(1)]
            count_size = 1
        if size < count_size:
            raise ValueError("a compound value has no room for its count")
        outer = self.end
        end = self.position + size
        if end > outer:
            raise ValueError(f"the data ends {end - outer} bytes early")
        self.end = end
        count = _u32(self.data, self._take(4))[0] if count_size == 4 else self.data[self._take(1)]
        result: Any
        if code in (0xC0, 0xD0):
            self._countable(count)
            result = [self.value(depth) for _ in range(count)]
        elif code in (0xC1, 0xD1):
            self._countable(count)
            if count % 2:
                raise ValueError(f"a map of {count} keys and values is not made of pairs")
            result = {}
            numbers = others = 0
            for _ in range(count // 2):
                key = self.value(depth)
                kind = type(key)
                if kind not in _SALTED_KEYS:
                    if kind in _NUMBER_KEYS:
                        numbers += 1
                    else:
                        others += 1
                    if numbers > MAX_NUMBER_KEYS or others > MAX_OTHER_KEYS:
                        raise ValueError(
                            f"a map with more keys of type {kind.__name__} than the limit of"
                            f" {MAX_OTHER_KEYS if others > MAX_OTHER_KEYS else MAX_NUMBER_KEYS}"
                        )
                try:
                    result[key] = self.value(depth)
                except TypeError as error:
                    raise ValueError(f"a map key of type {kind.__name__} is not supported") from error
        else:
            result = self._array(count, depth)
        if self.position != end:
            raise ValueError(f"{end - self.position} bytes are left over in a compound value")
        self.end = outer
        return result

    def _countable(self, count: int) -> None:
        # Each value in a list or map has at least its type code.
        if count > self.end - self.position:
            raise ValueError(f"{count} values do not fit into {self.end - self.position} bytes")

    def _array(self, count: int, depth: int) -> list[Any]:
        descriptors = []
        code = self.data[self._take(1)]
        while code == 0x00:
            descriptors.append(self.value(depth))
            if len(descriptors) > depth:
                raise ValueError(f"nested deeper than the limit of {MAX_DEPTH}")
            code = self.data[self._take(1)]
        if code in CONSTANTS or code == 0x45:
            if count:
                raise ValueError(f"an array of {count} values without bytes")
        elif count > self.end - self.position:
            raise ValueError(f"{count} values do not fit into {self.end - self.position} bytes")
        values = [self._body(code, depth) for _ in range(count)]
        for descriptor in reversed(descriptors):
            values = [Described(descriptor, value) for value in values]
        return values


class TypedReader(Reader):
    """Reads numbers as the classes of this module, so that they are encoded again as they were."""

    __slots__ = ()

    def _body(self, code: int, depth: int) -> Any:
        value = super()._body(code, depth)
        kind = _NUMBERS.get(code)
        return value if kind is None else kind(value)


def decode(data: bytes, reader_of: type[Reader] = Reader) -> Any:
    """The one value that these bytes are.

    Args:
        data: the bytes.
        reader_of: reads them.

    Raises:
        ValueError: they are not one AMQP value, or beyond a limit.
    """
    reader = reader_of(data)
    value = reader.value()
    if reader.position != len(data):
        raise ValueError(f"{len(data) - reader.position} bytes are left over after a value")
    return value


def _boolean(data: bytes, start: int) -> bool:
    octet = data[start]
    if octet > 1:
        raise ValueError(f"boolean octet 0x{octet:02x} is neither 0 nor 1")
    return octet == 1


def _char(data: bytes, start: int) -> str:
    number = _u32(data, start)[0]
    if number >= 0x110000 or 0xD800 <= number < 0xE000:  # half of a surrogate pair has no UTF-8
        raise ValueError(f"0x{number:x} is no Unicode character")
    return chr(number)


#: Keys of maps whose hashes are salted, and numbers: whoever chooses numbers can choose their hashes as well.
_SALTED_KEYS: Final = frozenset((str, Symbol, bytes))
_MISSING: Final = object()
#: Values without bytes, by their type codes.
CONSTANTS: Final[dict[int, Any]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
#: Values of a fixed size: their bytes, and what reads them, by their type codes.
FIXED: Final[dict[int, tuple[int, Callable[[bytes, int], Any]]]] = {
    0x50: (1, lambda data, start: data[start]),
    0x51: (1, lambda data, start: _i8(data, start)[0]),
    0x52: (1, lambda data, start: data[start]),
    0x53: (1, lambda data, start: data[start]),
    0x54: (1, lambda data, start: _i8(data, start)[0]),
    0x55: (1, lambda data, start: _i8(data, start)[0]),
    0x56: (1, _boolean),
    0x60: (2, lambda data, start: _u16(data, start)[0]),
    0x61: (2, lambda data, start: _i16(data, start)[0]),
    0x70: (4, lambda data, start: _u32(data, start)[0]),
    0x71: (4, lambda data, start: _i32(data, start)[0]),
    0x72: (4, lambda data, start: _f32(data, start)[0]),
    0x73: (4, _char),
    0x74: (4, lambda data, start: bytes(data[start : start + 4])),  # decimal32: carried, not interpreted
    0x80: (8, lambda data, start: _u64(data, start)[0]),
    0x81: (8, lambda data, start: _i64(data, start)[0]),
    0x82: (8, lambda data, start: _f64(data, start)[0]),
    0x83: (8, lambda data, start: Timestamp(_i64(data, start)[0])),
    0x84: (8, lambda data, start: bytes(data[start : start + 8])),
    0x94: (16, lambda data, start: bytes(data[start : start + 16])),
    0x98: (16, lambda data, start: UUID(bytes=bytes(data[start : start + 16]))),
}
#: The classes of numbers by their type codes, but for those that Python's numbers are encoded as.
_NUMBERS: Final[dict[int, type[int] | type[float]]] = {
    **{0x43: UInt, 0x44: ULong, 0x50: UByte, 0x51: Byte, 0x52: UInt, 0x53: ULong, 0x54: Int, 0x60: UShort},
    **{0x61: Short, 0x70: UInt, 0x71: Int, 0x72: Float, 0x80: ULong},
}
_NUMBER_KEYS: Final = frozenset((int, float, bool, type(None), Timestamp, *_NUMBERS.values()))
_COMPOUND: Final = frozenset((0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0))


# Encoding.


def encode(value: Any, depth: int = MAX_DEPTH) -> bytes:
    """A value as bytes.

    Args:
        value: None, bool, int (as ``long``, or ``ulong`` above it), float (as ``double``), str, bytes, UUID,
            list or tuple (as ``list``), dict (as ``map``), or one of this module's classes.
        depth: how many levels of nesting are allowed.

    Raises:
        ValueError: the value has no AMQP form, or nests deeper than the limit.
    """
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        encoder = next((_ENCODERS[cls] for cls in type(value).__mro__ if cls in _ENCODERS), None)
        if encoder is None:
            raise ValueError(f"a value of type {type(value).__name__} has no AMQP form")
    if depth < 0:
        raise ValueError(f"nested deeper than the limit of {MAX_DEPTH}")
    try:
        return encoder(value, depth)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{value!r:.200} does not fit into its AMQP type: {error}") from error


def _variable(code: int, data: bytes) -> bytes:
    size = len(data)
    return bytes((code, size)) + data if size < 256 else struct.pack(">BI", code + 0x10, size) + data


def _encode_int(value: int, _depth: int) -> bytes:
    if -128 <= value < 128:
        return struct.pack(">Bb", 0x55, value)
    if value >= 1 << 63:
        return struct.pack(">BQ", 0x80, value)
    return struct.pack(">Bq", 0x81, value)


def _encode_uint(value: int, _depth: int) -> bytes:
    if value == 0:
        return b"\x43"
    return struct.pack(">BB", 0x52, value) if 0 < value < 256 else struct.pack(">BI", 0x70, value)


def _encode_ulong(value: int, _depth: int) -> bytes:
    if value == 0:
        return b"\x44"
    return struct.pack(">BB", 0x53, value) if 0 < value < 256 else struct.pack(">BQ", 0x80, value)


def compound(code: int, count: int, body: bytes) -> bytes:
    """A list (``code`` 0xC0) or map (0xC1) of already encoded members, in its shortest form."""
    if len(body) < 255 and count < 256:
        return bytes((code, len(body) + 1, count)) + body
    return struct.pack(">BII", code + 0x10, len(body) + 4, count) + body


def _encode_list(value: list[Any] | tuple[Any, ...], depth: int) -> bytes:
    if not value:
        return b"\x45"
    return compound(0xC0, len(value), b"".join([encode(item, depth - 1) for item in value]))


def _encode_map(value: dict[Any, Any], depth: int) -> bytes:
    parts = []
    for key, item in value.items():
        parts.append(encode(key, depth - 1))
        parts.append(encode(item, depth - 1))
    return compound(0xC1, len(parts), b"".join(parts))


def _encode_described(value: Described, depth: int) -> bytes:
    return b"\x00" + encode(value.descriptor, depth - 1) + encode(value.value, depth - 1)


def _encode_symbols(value: Symbols, _depth: int) -> bytes:
    names = [name.encode("ascii") for name in value]
    body = b"\xb3" + b"".join([struct.pack(">I", len(name)) + name for name in names])
    return struct.pack(">BII", 0xF0, len(body) + 4, len(names)) + body


_ENCODERS: Final[dict[type, Callable[[Any, int], bytes]]] = {
    type(None): lambda _value, _depth: b"\x40",
    bool: lambda value, _depth: b"\x41" if value else b"\x42",
    int: _encode_int,
    float: lambda value, _depth: struct.pack(">Bd", 0x82, value),
    str: lambda value, _depth: _variable(0xA1, value.encode()),
    Symbol: lambda value, _depth: _variable(0xA3, value.encode("ascii")),
    bytes: lambda value, _depth: _variable(0xA0, value),
    bytearray: lambda value, _depth: _variable(0xA0, bytes(value)),
    memoryview: lambda value, _depth: _variable(0xA0, bytes(value)),
    UUID: lambda value, _depth: b"\x98" + value.bytes,
    list: _encode_list,
    tuple: _encode_list,
    dict: _encode_map,
    Described: _encode_described,
    Symbols: _encode_symbols,
    UByte: lambda value, _depth: struct.pack(">BB", 0x50, value),
    UShort: lambda value, _depth: struct.pack(">BH", 0x60, value),
    UInt: _encode_uint,
    ULong: _encode_ulong,
    Byte: lambda value, _depth: struct.pack(">Bb", 0x51, value),
    Short: lambda value, _depth: struct.pack(">Bh", 0x61, value),
    Int: lambda value, _depth: struct.pack(">Bi", 0x71, value),
    Float: lambda value, _depth: struct.pack(">Bf", 0x72, value),
    Timestamp: lambda value, _depth: struct.pack(">Bq", 0x83, value),
}
