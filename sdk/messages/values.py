"""The values that properties and bodies of messages can have, and their checks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from broker_adapter import MAX_BODY_DEPTH, InvalidDestinationException, MessageFormatException, is_destination

PropertyValue = bool | int | float | str | None

_SCALARS: Final = frozenset({bool, int, float, str, type(None)})
_BODY_SCALARS: Final = _SCALARS | {bytes}
_LEAST, _MOST = -(2**63), 2**63 - 1
#: Longest time to live and delivery delay: a hundred years, so that instants stay in their 64 bits.
_MOST_SECONDS: Final = 100 * 365.25 * 86400


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


def checked_priority(value: object) -> int:
    """A priority; ValueError where it can be none."""
    if type(value) is not int or not 0 <= value <= 9:
        raise ValueError(f"priority={value!r} is not an int from 0 to 9")
    return value


def checked_ms(name: str, given: object, least_ms: int) -> int:
    """A time to live or a delay in milliseconds.

    Args:
        name: of the argument, for the error.
        given: what the application gives: seconds, or a timedelta.
        least_ms: the shortest one.

    Raises:
        ValueError: it can be none.
    """
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    # Rounding comes last, because neither infinity nor NaN can be rounded.
    if not is_number or not 0 <= seconds <= _MOST_SECONDS or round(seconds * 1000) < least_ms:  # type: ignore[operator]
        raise ValueError(
            f"{name}={given!r} is not a number of seconds, or a timedelta, from {least_ms / 1000:g} to"
            f" {_MOST_SECONDS:.0f} seconds; None means no {'limit' if least_ms else 'delay'}"
        )
    return round(seconds * 1000)  # type: ignore[operator]


def checked_delay_ms(given: object, now_ms: int) -> int:
    """A delivery delay in milliseconds; an instant that is over means none, and one without a zone is local time.

    Args:
        given: what the application gives: seconds, a timedelta, or a datetime.
        now_ms: the time, in milliseconds since the epoch.

    Raises:
        ValueError: it can be none.
    """
    if isinstance(given, datetime):
        given = max(0.0, given.timestamp() - now_ms / 1000)
    return checked_ms("delivery_delay", given, 0)


def check_correlation_id(value: object) -> None:
    """Make sure that a message can have this one; MessageFormatException where it cannot."""
    if value is not None and not isinstance(value, str | bytes):
        raise MessageFormatException(f"correlation_id={value!r} is neither str nor bytes")


def check_reply_to(value: object) -> None:
    """Make sure that a message can have this one; InvalidDestinationException where it cannot."""
    if value is not None and not is_destination(value):
        raise InvalidDestinationException(f"reply_to={value!r} is not a destination; session.create_queue() makes one")


def check_text_header(name: str, value: object) -> None:
    """Make sure that a header whose values are texts can have this one; MessageFormatException where it cannot."""
    if value is not None and not isinstance(value, str):
        raise MessageFormatException(f"{name}={value!r} is not a str")


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
