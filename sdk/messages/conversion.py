"""Property and item values read as another type (Jakarta Messaging 3.1 sections 3.5.4 and 3.11.3).

The specification's table, with what Python has in place of Java's types::

                 boolean  byte short int long  float double  string  bytes
    bool            X                                           X
    int                    X    X     X   X                     X
    float                                        X     X        X
    str             X      X    X     X   X      X     X        X
    None            X                                           X      X
    bytes                                                              X

An int is read as the smaller of Java's types where it fits.  A str is parsed as Java's ``valueOf`` does: a boolean is
true where the text is ``true`` in any case, a number that cannot be parsed is an error.  None is False as a boolean and
None as a string; as a number it is an error.  Written as a string, a float has the form that Python writes.
"""

from __future__ import annotations

import re
import struct
from enum import Enum
from typing import Any, Final

from broker_adapter import MessageFormatException


class Type(Enum):
    """The types that a value can be read as, by their names in JMS."""

    BOOLEAN = "boolean"
    BYTE = "byte"
    SHORT = "short"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BYTES = "bytes"


#: How many bits the integer types have, sign included.
_BITS: Final = {Type.BYTE: 8, Type.SHORT: 16, Type.INT: 32, Type.LONG: 64}
_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_NUMBER: Final = re.compile(
    r"\s*[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)\s*", re.ASCII
)


def converted(value: Any, wanted: Type, what: str) -> Any:
    """A value as one of the types.

    Args:
        value: bool, int, float, str, bytes or None.
        wanted: the type.
        what: names the value in an error.

    Raises:
        MessageFormatException: the table has no X there, or the text or number does not fit.
    """
    if wanted is Type.BOOLEAN:
        result = _as_boolean(value)
    elif wanted in _BITS:
        result = _as_integer(value, _BITS[wanted])
    elif wanted is Type.STRING:
        result = _as_string(value)
    elif wanted is Type.BYTES:
        result = value if value is None or type(value) is bytes else _MISFIT
    else:
        result = _as_float(value, wanted)
    if result is _MISFIT:
        raise MessageFormatException(f"{what} with the value {value!r:.100} cannot be read as {wanted.value}")
    return result


def checked(value: Any, written: Type, what: str) -> Any:
    """A value that is written as one of the types; as it will be read.

    Args:
        value: what the application gave.
        written: the type.
        what: names the value in an error.

    Raises:
        MessageFormatException: it is not of this type, or out of its range.
    """
    kinds = _WRITABLE[written]
    if value is None and written in (Type.STRING, Type.BYTES):
        return None
    is_one = isinstance(value, kinds) and (written is Type.BOOLEAN or not isinstance(value, bool))
    if not is_one:
        raise MessageFormatException(f"{what} cannot be written as {written.value}: {value!r:.100}")
    if written in _BITS and not _fits(value, _BITS[written]):
        raise MessageFormatException(f"{what} with the value {value!r} does not fit in {_BITS[written]} bits")
    if written is Type.BYTES:
        return bytes(value)
    if written in (Type.FLOAT, Type.DOUBLE):
        return converted(float(value), written, what)
    return value


class _Misfit:
    """What is no value."""


_MISFIT: Final = _Misfit()
_WRITABLE: Final[dict[Type, tuple[type, ...]]] = {
    Type.BOOLEAN: (bool,),
    Type.BYTE: (int,),
    Type.SHORT: (int,),
    Type.INT: (int,),
    Type.LONG: (int,),
    Type.FLOAT: (float, int),
    Type.DOUBLE: (float, int),
    Type.STRING: (str,),
    Type.BYTES: (bytes, bytearray, memoryview),
}


def _fits(number: int, bits: int) -> bool:
    return -(1 << bits - 1) <= number < 1 << bits - 1


def _as_boolean(value: Any) -> Any:
    if value is None:
        return False
    if isinstance(value, bool):
        return value
    return value.lower() == "true" if isinstance(value, str) else _MISFIT


def _as_integer(value: Any, bits: int) -> Any:
    if isinstance(value, str) and _INTEGER.fullmatch(value) and len(value) <= 20:
        value = int(value)
    if type(value) is not int or not _fits(value, bits):
        return _MISFIT
    return value


def _as_float(value: Any, wanted: Type) -> Any:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value.strip().rstrip("fFdD"))
    if type(value) is not float:
        return _MISFIT
    if wanted is Type.DOUBLE:
        return value
    try:
        return struct.unpack(">f", struct.pack(">f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _as_string(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return value if value is None or isinstance(value, str) else _MISFIT
