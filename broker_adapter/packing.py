"""msgpack from untrusted senders, within limits.  Pure.

A list in msgpack takes one byte, and in Python 56: sixteen million of them cost a gigabyte and half a minute.  msgpack
can limit each list by itself, but not how many there are.  So what is large is checked before it is decoded: its
lists and maps one by one, and what stands between them by a regular expression, which does not cost more than decoding.

The keys of a map are another way to take time.  Python's hashes of text and bytes are salted, so that no sender can
choose keys whose hashes are alike; those of numbers are not, and a map of 10,000 chosen keys takes seconds.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgpack

#: Most lists and maps in one piece of data; as many values as AMQP data may have.
MAX_CONTAINERS: Final = 200_000
#: Most members of all lists and maps together; a map has two for each of its keys.
MAX_MEMBERS: Final = 2_000_000
#: Most keys of one map that are numbers, and neither text nor bytes.
MAX_NUMBER_KEYS: Final = 1_000
#: Data of so many bytes cannot exceed either limit, and need not be checked.
UNCHECKED_BYTES: Final = MAX_CONTAINERS

#: Sizes below it are short.
_SHORT: Final = 32
_FIXED_STRINGS: Final = b"|".join(b"%s.{%d}" % (re.escape(bytes((0xA0 + size,))), size) for size in range(_SHORT))


def _short(head: bytes, further: int = 0) -> bytes:
    """A pattern of short values of this type code, with what the bytes of their size begin with."""
    sizes = b"|".join(b"%s.{%d}" % (re.escape(bytes((size,))), size + further) for size in range(_SHORT))
    return re.escape(head) + b"(?:" + sizes + b")"


#: Strings, binaries and extensions that are short, though their size has bytes of its own.
_SHORT_SIZED: Final = b"|".join(
    _short(bytes((code,)) + bytes(ahead), further)
    for codes, further in (((0xD9, 0xDA, 0xDB), 0), ((0xC4, 0xC5, 0xC6), 0), ((0xC7, 0xC8, 0xC9), 1))
    for code, ahead in zip(codes, (0, 1, 3), strict=True)
)
#: As many values as stand one after the other and are neither lists nor maps nor long.
_SCALARS: Final = re.compile(
    rb"(?s)(?:[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]|[\xcb\xcf\xd3].{8}|[\xcc\xd0].|[\xcd\xd1]..|[\xca\xce\xd2].{4}|"
    + _FIXED_STRINGS
    + b"|"
    + _SHORT_SIZED
    + rb"|\xd4..|\xd5.{3}|\xd6.{5}|\xd7.{9}|\xd8.{17})*+"
)
#: Bytes that the regular expression reads at once, and those of the longest value that it knows.
_SLICE_BYTES: Final = 64 * 1024
_LONGEST_SHORT: Final = 6 + _SHORT
#: Type code of a list or map → (bytes of its count, members for each that is counted).
_COUNTED: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
#: Type code of a long string, binary or extension → (bytes of its size, further bytes).
_SIZED: Final = {
    0xC4: (1, 0),
    0xC5: (2, 0),
    0xC6: (4, 0),
    0xC7: (1, 1),
    0xC8: (2, 1),
    0xC9: (4, 1),
    0xD9: (1, 0),
    0xDA: (2, 0),
    0xDB: (4, 0),
}


class Unread(NamedTuple):
    """A value that was passed over and not unpacked."""

    kind: str  #: "list", "map", "text", "bytes" or "extension"
    size: int  #: members of a list, keys of a map; bytes of the others, with those of their head

    def __str__(self) -> str:
        """Return what it is, as errors say it."""
        return (
            f"{'an' if self.kind == 'extension' else 'a'} {self.kind} of {self.size} {_UNITS.get(self.kind, 'bytes')}"
        )


_UNITS: Final = {"list": "values", "map": "keys"}


def check(data: bytes | memoryview, most_members: int | None = None) -> None:
    """Raise ValueError for data that has more lists and maps, or more members of them, than the limits.

    Other faults of the data are left for msgpack to find.
    """
    if most_members is None:
        most_members = MAX_MEMBERS
    end = len(data)
    if end <= min(UNCHECKED_BYTES, most_members):
        return
    position = containers = members = long = short_bytes = 0
    scalars = _SCALARS.match
    while position < end:
        found = scalars(data, position, min(end, position + _SLICE_BYTES))
        assert found is not None  # it matches nothing, too
        if found.end() > position:
            short_bytes += found.end() - position
            if short_bytes > _LONGEST_SHORT * (members + 1):
                return  # more values than there are places for: the rest is no part of what is decoded
            position = found.end()
            continue
        code = data[position]
        position += 1
        if 0x80 <= code < 0xA0:
            count = (code & 0x0F) * (2 if code < 0x90 else 1)
        elif code in _COUNTED:
            size, each = _COUNTED[code]
            count = each * int.from_bytes(data[position : position + size])
            position += size
        elif code in _SIZED:
            size, further = _SIZED[code]
            position += size + further + int.from_bytes(data[position : position + size])
            long += 1
            if long > members:
                return  # as above
            continue
        else:
            return  # cut short, or no type code at all
        containers += 1
        members += count
        if containers > MAX_CONTAINERS:
            raise ValueError(f"more lists and maps than the limit of {MAX_CONTAINERS}")
        if members > most_members:
            raise ValueError(f"more members of lists and maps than the limit of {most_members}")


def check_depth(value: Any, most: int) -> None:
    """Raise ValueError for a value in which lists and maps nest deeper than this."""
    members = value.values() if type(value) is dict else value if type(value) is list else ()
    for member in members:
        if type(member) is dict or type(member) is list:
            if most <= 1:
                raise ValueError("nested deeper than the limit")
            check_depth(member, most - 1)


def map_members(data: bytes | memoryview) -> int:
    """Return how many keys the map has that this data begins with; 0 where it begins with none, or is cut short."""
    code = data[0] if data else 0
    if 0x80 <= code < 0x90:
        return code & 0x0F
    size = {0xDE: 2, 0xDF: 4}.get(code, 0)
    return int.from_bytes(data[1 : 1 + size])


def unpacked(data: bytes | memoryview, *, strict_map_key: bool = True, most_members: int | None = None) -> Any:
    """The value in these bytes.

    Args:
        data: from an untrusted sender.
        strict_map_key: whether the keys of maps must be text or bytes; otherwise they may be numbers, True, False and
            None as well, at most :data:`MAX_NUMBER_KEYS` of them in one map.
        most_members: of all lists and maps together; None: :data:`MAX_MEMBERS`.

    Raises:
        ValueError: they are no msgpack, or beyond a limit; or a map has a key of another type.
        TypeError: the key of a map can be none.
        msgpack.UnpackException: they are cut short.
    """
    check(data, most_members)
    try:
        return msgpack.unpackb(data, strict_map_key=True, use_list=True)
    except ValueError:
        if strict_map_key:
            raise
    return msgpack.unpackb(data, strict_map_key=False, use_list=True, object_pairs_hook=_map_of)


_NUMBER_KEYS: Final = frozenset((int, float, bool, type(None)))


def _map_of(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """The map of these keys and values, of which no key has been hashed yet."""
    numbers = 0
    for key, _ in pairs:
        kind = type(key)
        if kind is not str and kind is not bytes:
            if kind not in _NUMBER_KEYS:
                raise ValueError(f"{kind.__name__} is not allowed for map key")
            numbers += 1
    if numbers > MAX_NUMBER_KEYS:
        raise ValueError(f"a map with {numbers} numbers as keys, more than the limit of {MAX_NUMBER_KEYS}")
    return dict(pairs)


class Outliner:
    """Goes through data value by value, and makes no list, map or long text of it.

    Every method raises ValueError or ``msgpack.UnpackException`` where the data is no msgpack, or is cut short.

    Args:
        data: from an untrusted sender.
        most_bytes: of a text or of bytes that are read; what is longer is passed over.
    """

    def __init__(self, data: bytes | memoryview, most_bytes: int) -> None:
        self._data = data
        self._most_bytes = most_bytes
        self._unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(data)), strict_map_key=True)
        self._unpacker.feed(data)

    @property
    def is_at_end(self) -> bool:
        """Whether all of the data was gone through."""
        return bool(self._unpacker.tell() == len(self._data))

    def enter_list(self) -> int:
        """Go on with the first member of a list; returns how many there are."""
        return int(self._unpacker.read_array_header())

    def enter_map(self) -> int:
        """Go on with the first key of a map; returns how many there are."""
        return int(self._unpacker.read_map_header())

    def value(self) -> Any:
        """The next value; :class:`Unread` in place of a list, a map, an extension, and what is long."""
        start, code = self._unpacker.tell(), self._code()
        if code < 0x80 or 0xA0 <= code < 0xC4 or 0xCA <= code < 0xD4 or code >= 0xE0:
            return self._unpacker.unpack()  # a number or a short text
        kind = _kind_of(code)
        self._unpacker.skip()
        data = bytes(self._data[start : min(self._unpacker.tell(), start + self._most_bytes + 1)])
        if kind in _UNITS:
            size, _ = _COUNTED.get(data[0], (0, 0))
            return Unread(kind, int.from_bytes(data[1 : 1 + size]) if size else data[0] & 0x0F)
        if kind == "extension" or len(data) > self._most_bytes:
            return Unread(kind, self._unpacker.tell() - start)
        return msgpack.unpackb(data)

    def texts(self) -> Any:
        """The next value, as ``value``; but a list of texts is read, where all of it has so many bytes at most."""
        start, code = self._unpacker.tell(), self._code()
        found = self.value()
        if _kind_of(code) != "list" or self._unpacker.tell() - start > self._most_bytes:
            return found
        read = msgpack.unpackb(self._data[start : self._unpacker.tell()])
        return read if all(type(each) is str for each in read) else found

    def _code(self) -> int:
        position = self._unpacker.tell()
        if position >= len(self._data):
            raise ValueError("it is cut short")
        return int(self._data[position])


def _kind_of(code: int) -> str:
    """Return what begins with this type code; "number" stands for True, False and None as well."""
    if 0x90 <= code < 0xA0 or code in (0xDC, 0xDD):
        return "list"
    if 0x80 <= code < 0x90 or code in (0xDE, 0xDF):
        return "map"
    if 0xA0 <= code < 0xC0 or code in (0xD9, 0xDA, 0xDB):
        return "text"
    if code in (0xC4, 0xC5, 0xC6):
        return "bytes"
    return "extension" if code in _EXTENSIONS else "number"


_EXTENSIONS: Final = frozenset((0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8))
