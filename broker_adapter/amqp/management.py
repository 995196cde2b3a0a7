"""Requests to our own server and their answers, as bytes.  Pure.

Whatever comes in is untrusted: every failure is a MessageFormatException.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgpack

from broker_adapter.amqp.conditions import sent_code
from broker_adapter.errors import JMSException, MessageFormatException
from broker_adapter.packing import Outliner, unpacked

#: Largest request or answer, in bytes.
MAX_MANAGEMENT_BYTES: Final = 32 * 1024 * 1024
#: Most arguments that a request has; every operation has fewer.
MAX_ARGUMENTS: Final = 100
#: Bytes of an argument that its outline has; what is longer is passed over.
MAX_ARGUMENT_BYTES: Final = 32 * 1024
#: An argument whose texts the outline has as well, as long as all of them are no longer: names of destinations.
DESTINATIONS: Final = "destinations"


class ManagementRequest(NamedTuple):
    """Something that our own server is asked beyond messaging."""

    number: int
    operation: str
    arguments: dict[str, Any]


class Outline(NamedTuple):
    """A request without what is large in it: that is :class:`broker_adapter.packing.Unread` here."""

    number: int
    operation: str
    arguments: dict[str, Any]


class ManagementAnswer(NamedTuple):
    """The answer to the request of this number: an error, or a result."""

    number: int
    error: tuple[str, str, str | None] | None  #: the exception's class, its reason and its code
    result: Any


def pack_request(request: ManagementRequest) -> bytes:
    """A request as bytes; raises MessageFormatException for what cannot be packed or is too large."""
    return _packed(request)


def pack_answer(answer: ManagementAnswer) -> bytes:
    """An answer as bytes; raises MessageFormatException for what cannot be packed or is too large."""
    return _packed(answer)


def outline_of(payload: bytes) -> Outline:
    """The outline of the request in these bytes, for little more than the time to copy them.

    Raises:
        MessageFormatException: there is no request; it has too many arguments, or one of them twice.
    """
    _check_size(payload)
    try:
        return _outline(Outliner(payload, MAX_ARGUMENT_BYTES))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MessageFormatException(f"not a request: {error}") from error


def _outline(outliner: Outliner) -> Outline:
    if outliner.enter_list() != 3:
        raise ValueError("it is no array of a number and two values")
    number, operation = outliner.value(), outliner.value()
    if type(number) is not int or type(operation) is not str:
        raise ValueError("it begins with no number and operation")
    count = outliner.enter_map()
    if count > MAX_ARGUMENTS:
        raise ValueError(f"{count} arguments, limit {MAX_ARGUMENTS}")
    arguments: dict[str, Any] = {}
    for _ in range(count):
        name = outliner.value()
        if type(name) is not str:
            raise ValueError(f"the name of an argument is {name!r:.100} and no text")
        if name in arguments:
            raise ValueError(f"it has the argument {name!r:.100} twice")
        arguments[name] = outliner.texts() if name == DESTINATIONS else outliner.value()
    if not outliner.is_at_end:
        raise ValueError("more data stands behind it")
    return Outline(number, operation, arguments)


def unpack_request(payload: bytes, most_members: int | None = None) -> ManagementRequest:
    """The request in these bytes; raises MessageFormatException where there is none.

    Args:
        payload: the bytes.
        most_members: of all lists and maps in it together, its own ones included; None: as many as any data may have.
    """
    number, operation, arguments = _unpacked(payload, strict_map_key=True, most_members=most_members)
    if not isinstance(operation, str) or not isinstance(arguments, dict):
        raise MessageFormatException("a request is a number, an operation and a map of arguments")
    return ManagementRequest(number, operation, arguments)


def unpack_answer(payload: bytes) -> ManagementAnswer:
    """The answer in these bytes; raises MessageFormatException where there is none."""
    number, error, result = _unpacked(payload, strict_map_key=False)
    if error is not None:
        if not isinstance(error, list) or len(error) != 3 or not all(isinstance(part, str | None) for part in error):
            raise MessageFormatException("the error of an answer is a class, a reason and a code")
        error = (str(error[0]), str(error[1]), error[2])
    return ManagementAnswer(number, error, result)


def error_fields(error: JMSException) -> tuple[str, str, str | None]:
    """An exception as an answer carries it."""
    return type(error).__name__, error.reason, sent_code(error)


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


def _packed(fields: ManagementRequest | ManagementAnswer) -> bytes:
    try:
        payload: bytes = msgpack.packb(fields)
    except (TypeError, ValueError, OverflowError) as error:
        raise MessageFormatException(f"the request or answer cannot be packed: {error}") from error
    _check_size(payload)
    return payload


def _check_size(payload: bytes) -> None:
    if len(payload) > MAX_MANAGEMENT_BYTES:
        raise MessageFormatException(
            f"request or answer of {len(payload)} bytes is larger than the limit of {MAX_MANAGEMENT_BYTES} bytes"
        )


def _unpacked(payload: bytes, *, strict_map_key: bool, most_members: int | None = None) -> tuple[int, Any, Any]:
    _check_size(payload)
    try:
        fields = unpacked(payload, strict_map_key=strict_map_key, most_members=most_members)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MessageFormatException(f"not a request or answer: {error}") from error
    if not isinstance(fields, list) or len(fields) != 3 or type(fields[0]) is not int:
        raise MessageFormatException("not a request or answer: it is no array of a number and two values")
    return fields[0], fields[1], fields[2]
