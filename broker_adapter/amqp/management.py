"""Requests to our own server and their answers, as bytes.  Pure.

Whatever comes in is untrusted: every failure is a MessageFormatException.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgpack

from broker_adapter.errors import JMSException, MessageFormatException
from broker_adapter.packing import unpacked

#: Largest request or answer, in bytes.
MAX_MANAGEMENT_BYTES: Final = 32 * 1024 * 1024


class Request(NamedTuple):
    """Something that our own server is asked beyond messaging."""

    number: int
    operation: str
    arguments: dict[str, Any]


class Answer(NamedTuple):
    """The answer to the request of this number: an error, or a result."""

    number: int
    error: tuple[str, str, str | None] | None  #: the exception's class, its reason and its code
    result: Any


def pack_request(request: Request) -> bytes:
    """A request as bytes; raises MessageFormatException for what cannot be packed or is too large."""
    return _packed(request)


def pack_answer(answer: Answer) -> bytes:
    """An answer as bytes; raises MessageFormatException for what cannot be packed or is too large."""
    return _packed(answer)


def unpack_request(payload: bytes) -> Request:
    """The request in these bytes; raises MessageFormatException where there is none."""
    number, operation, arguments = _unpacked(payload, strict_map_key=True)
    if not isinstance(operation, str) or not isinstance(arguments, dict):
        raise MessageFormatException("a request is a number, an operation and a map of arguments")
    return Request(number, operation, arguments)


def unpack_answer(payload: bytes) -> Answer:
    """The answer in these bytes; raises MessageFormatException where there is none."""
    number, error, result = _unpacked(payload, strict_map_key=False)
    if error is not None:
        if not isinstance(error, list) or len(error) != 3 or not all(isinstance(part, str | None) for part in error):
            raise MessageFormatException("the error of an answer is a class, a reason and a code")
        error = (str(error[0]), str(error[1]), error[2])
    return Answer(number, error, result)


def error_fields(error: JMSException) -> tuple[str, str, str | None]:
    """An exception as an answer carries it."""
    return type(error).__name__, error.reason, error.error_code


def error_from_fields(fields: tuple[str, str, str | None]) -> JMSException:
    """The exception that an answer carries; of an unknown class: a JMSException that names it."""
    name, reason, code = fields
    cls = _exception_classes().get(name)
    return JMSException(f"{name}: {reason}", error_code=code) if cls is None else cls(reason, error_code=code)


def _exception_classes() -> dict[str, type[JMSException]]:
    classes: dict[str, type[JMSException]] = {"JMSException": JMSException}
    waiting = [JMSException]
    while waiting:
        for cls in waiting.pop().__subclasses__():
            classes[cls.__name__] = cls
            waiting.append(cls)
    return classes


def _packed(fields: Request | Answer) -> bytes:
    try:
        payload: bytes = msgpack.packb(fields)
    except (TypeError, ValueError, OverflowError) as error:
        raise MessageFormatException(f"the request or answer cannot be packed: {error}") from error
    if len(payload) > MAX_MANAGEMENT_BYTES:
        raise MessageFormatException(
            f"request or answer of {len(payload)} bytes is larger than the limit of {MAX_MANAGEMENT_BYTES} bytes"
        )
    return payload


def _unpacked(payload: bytes, *, strict_map_key: bool) -> tuple[int, Any, Any]:
    if len(payload) > MAX_MANAGEMENT_BYTES:
        raise MessageFormatException(
            f"request or answer of {len(payload)} bytes is larger than the limit of {MAX_MANAGEMENT_BYTES} bytes"
        )
    try:
        fields = unpacked(payload, strict_map_key=strict_map_key)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MessageFormatException(f"not a request or answer: {error}") from error
    if not isinstance(fields, list) or len(fields) != 3 or type(fields[0]) is not int:
        raise MessageFormatException("not a request or answer: it is no array of a number and two values")
    return fields[0], fields[1], fields[2]
