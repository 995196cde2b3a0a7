"""Checks of what callers give, before anything is sent."""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Mapping

from broker_adapter import InvalidDestinationException, MessageFormatException, checked_name

#: Numbers that a request can carry.
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1


def check_timeout(timeout: object, none: str = "None waits without limit", *, name: str = "timeout") -> None:
    """Make sure that this is a number of seconds, or None.

    Args:
        timeout: what the caller has given.
        none: what None means.
        name: of the argument.

    Raises:
        ValueError: it is neither.
    """
    if timeout is None:
        return
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or not timeout >= 0  # NaN is not, either
        or sys.float_info.max < timeout < math.inf  # an integer that is no float
    ):
        raise ValueError(f"{name}={reprlib.repr(timeout)} is not a number of seconds; {none}")


def check_subscription_name(name: object) -> None:
    """Make sure that a subscription can have this name, over whatever transport.

    Args:
        name: what the caller has given.

    Raises:
        ValueError: none can.
    """
    try:
        checked_name(name, "subscription")
    except InvalidDestinationException as error:
        raise ValueError(error.reason) from None
    if "|" in str(name):
        # The JMS mapping of AMQP tells the links of a shared subscription apart by what stands behind it.
        raise ValueError(f"subscription name {name!r} has a '|', which the names of AMQP links use for something else")


def check_request(operation: object, arguments: object) -> None:
    """Make sure that this can be asked of a broker, which checks the rest of it.

    Raises:
        MessageFormatException: the operation is no string, the arguments are no map by name, or one has no form.
    """
    if not isinstance(operation, str):
        raise MessageFormatException(f"the operation of a request is a string, not {operation!r:.100}")
    _check_text(operation, "the operation of a request")
    if not isinstance(arguments, Mapping):
        raise MessageFormatException(
            f"the arguments of request {operation!r} are a dictionary by name, not {arguments!r:.100}"
        )
    for name, value in arguments.items():
        if not isinstance(name, str):
            raise MessageFormatException(f"the name {name!r:.100} of an argument of request {operation!r} is no string")
        _check_text(name, f"the name of an argument of request {operation!r}")
        for text in value if isinstance(value, list | tuple) else (value,):
            if isinstance(text, str):
                _check_text(text, f"the argument {name!r} of request {operation!r}")
        if isinstance(value, int) and not _LEAST <= value <= _MOST:
            raise MessageFormatException(
                f"the argument {name!r} of request {operation!r} is a number of {value.bit_length()} bits;"
                " the limit is 64"
            )


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MessageFormatException(f"{what} is not valid Unicode: {text!r:.100}") from None
