"""msgpack from strangers, within limits.  Pure.

A list in msgpack takes one byte, and in Python 56: sixteen million of them cost a gigabyte and half a minute.  msgpack
can limit each list by itself, but not how many there are.  So what is large is looked through before it is decoded: its
lists and maps one by one, and what stands between them by a regular expression, which does not cost more than decoding.

The keys of a map are another way to take time.  Python's hashes of text and bytes are salted, so that nobody can choose
keys whose hashes are alike; those of numbers are not, and a map of 10,000 chosen keys takes seconds.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgpack

#: Most lists and maps in one piece of data; as many values as AMQP data may have.
MAX_CONTAINERS: Final = 200_000
#: Most members of all lists and maps together; a map has two for each of its keys.
MAX_MEMBERS: Final = 2_000_000
#: Most keys of one map that are numbers, and neither text nor bytes.
MAX_NUMBER_KEYS: Final = 1_000
#: Data of so many bytes cannot exceed either limit, and need not be looked through.
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
#: Bytes that the regular expression looks at in one go, and those of the longest value that it knows.
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


def check(data: bytes | memoryview) -> None:
    """Raise ValueError for data that has more lists and maps, or more members of them, than the limits.

    Other faults of the data are left for msgpack to find.
    """
    end = len(data)
    if end <= UNCHECKED_BYTES:
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
        if members > MAX_MEMBERS:
            raise ValueError(f"more members of lists and maps than the limit of {MAX_MEMBERS}")


def check_depth(value: Any, most: int) -> None:
    """Raise ValueError for a value in which lists and maps nest deeper than this."""
    members = value.values() if type(value) is dict else value if type(value) is list else ()
    for member in members:
        if type(member) is dict or type(member) is list:
            if most <= 1:
                raise ValueError("nested deeper than the limit")
            check_depth(member, most - 1)


def map_members(data: bytes | memoryview) -> int:
    """How many keys the map has that this data begins with; 0 where it begins with none, or is cut short."""
    code = data[0] if data else 0
    if 0x80 <= code < 0x90:
        return code & 0x0F
    size = {0xDE: 2, 0xDF: 4}.get(code, 0)
    return int.from_bytes(data[1 : 1 + size])


def unpacked(data: bytes | memoryview, *, strict_map_key: bool = True) -> Any:
    """The value in these bytes.

    Args:
        data: what came from a stranger.
        strict_map_key: whether the keys of maps must be text or bytes; otherwise they may be numbers, True, False and
            None as well, at most :data:`MAX_NUMBER_KEYS` of them in one map.

    Raises:
        ValueError: they are no msgpack, or beyond a limit; or a map has a key of another type.
        TypeError: the key of a map can be none.
        msgpack.UnpackException: they are cut short.
    """
    check(data)
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
