"""The values that properties and bodies of messages can have, and their checks."""

from __future__ import annotations

from typing import Any, Final

from broker_adapter import MAX_BODY_DEPTH, MessageFormatException

PropertyValue = bool | int | float | str | None

_SCALARS: Final = frozenset({bool, int, float, str, type(None)})
_BODY_SCALARS: Final = _SCALARS | {bytes}
_LEAST, _MOST = -(2**63), 2**63 - 1


def checked_property(name: str, value: object) -> PropertyValue:
    """The value of a property, without its subclass.

    Args:
        name: of the property, for the error.
        value: what the application gives.

    Raises:
        MessageFormatException: a property cannot have the value.
    """
    if type(value) not in _SCALARS:
        value = _plain_scalar(value)
        if type(value) not in _SCALARS:
            raise MessageFormatException(
                f"property {name!r} cannot have the value {value!r} of type {type(value).__name__}; "
                "bool, int, float, str and None can be properties"
            )
    if type(value) is int and not _LEAST <= value <= _MOST:
        raise MessageFormatException(f"property {name!r} cannot have the value {value!r}: it does not fit in 64 bits")
    return value  # type: ignore[return-value]


def _plain_scalar(value: object) -> object:
    """The same value without its subclass, such as the int of an IntEnum; others as they are."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return value


def copied_body(value: Any, depth: int) -> Any:
    """The value of a body, checked; a copy of whatever in it can change.

    Args:
        value: what the application gives.
        depth: how many lists and dicts are around it.

    Raises:
        MessageFormatException: a body cannot carry the value, or it nests too deep.
    """
    kind = type(value)
    if kind in _BODY_SCALARS:
        if kind is int and not _LEAST <= value <= _MOST:
            raise MessageFormatException(f"a message cannot carry {value!r}: it does not fit in 64 bits")
        return value
    if depth >= MAX_BODY_DEPTH:
        raise MessageFormatException(f"the body nests deeper than the limit of {MAX_BODY_DEPTH} levels")
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise MessageFormatException(f"a name in a message's map is a str, not {name!r}")
        return {name: copied_body(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [copied_body(item, depth + 1) for item in value]
    if isinstance(value, bytearray | memoryview | bytes):
        return bytes(value)
    plain = _plain_scalar(value)
    if type(plain) in _SCALARS:
        return copied_body(plain, depth)
    raise MessageFormatException(
        f"a message cannot carry {shortened(value)!r} of type {kind.__name__}; "
        "bool, int, float, str, bytes, None, list and dict can be carried"
    )


def duplicated(value: Any) -> Any:
    """A copy of whatever can change in the value of a body that was received; unlike ``copied_body``, unchecked."""
    if isinstance(value, dict):
        return {name: duplicated(item) for name, item in value.items()}
    if isinstance(value, list):
        return [duplicated(item) for item in value]
    return value


def shortened(value: Any) -> Any:
    """A long str or bytes cut to its beginning, as texts of errors show it; other values as they are."""
    if isinstance(value, str | bytes) and len(value) > 60:
        return value[:60] + (b"..." if isinstance(value, bytes) else "...")  # type: ignore[operator]
    return value
