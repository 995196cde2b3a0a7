"""The link for events of regions, between our own server and our own client: the attach, and what comes on it.  Pure.

The client attaches a receiver whose source has :data:`EVENTS_CAPABILITY`; our server has it in the source of its answer
as well.  The transfers on it are settled.  The properties of the client's attach:

====================  ===============================================================================================
``timeout-ms``        how long the client may be away and keeps its queue; missing: for ever
``window``            most events that were handed over and not acknowledged, 1 to 10,000
``conflation``        ``true``, ``false``, or ``server``: as the region
====================  ===============================================================================================

Each transfer has one msgpack array:

======== =============================================================================================================
``0x98`` an event: position, name of the region, operation, key, matching interests as [kind, text], queries as
         [name, operation], whether it is history, and its message in one of the forms of
         :mod:`broker_adapter.amqp.messages.payloads`
``0x91`` the marker, with its position: what came before it is history
======== =============================================================================================================

Whatever comes in is untrusted: every failure is a MessageFormatException.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from broker_adapter.amqp.messages.payloads import decode_payload
from broker_adapter.errors import MessageFormatException
from broker_adapter.packing import unpacked
from broker_adapter.transport import EventDelivery

#: Capability of a source by which our own client asks our own server for the link for events.
EVENTS_CAPABILITY: Final = "HOLDFAST-EVENTS"
#: The address of such a source, which means nothing: proton takes a source without one for none.
EVENTS_ADDRESS: Final = "$holdfast.events"
#: Most events that a client may want to have handed over and not acknowledged.
MAX_WINDOW: Final = 10_000
#: What ``conflation`` may be.
CONFLATIONS: Final = ("server", "true", "false")
#: Greatest number of milliseconds, and greatest position.
_MAX_LONG: Final = 2**63 - 1
_MAX_POSITION: Final = 2**64 - 1
#: What the numbers of operations are below: create, update, invalidate, destroy.
_OPERATIONS: Final = 4
_EVENT_FIELDS: Final = 8

_TIMEOUT: Final = "timeout-ms"
_WINDOW: Final = "window"
_CONFLATION: Final = "conflation"


class EventsRequest(NamedTuple):
    """What a client asks of its link for events; see :class:`broker_adapter.transport.EventsSpec`."""

    timeout_ms: int | None
    window: int
    conflation: str = "server"


def as_properties(request: EventsRequest) -> dict[str, Any]:
    """The properties of the attach by which a client asks for its events."""
    properties: dict[str, Any] = {_WINDOW: request.window, _CONFLATION: request.conflation}
    if request.timeout_ms is not None:
        properties[_TIMEOUT] = request.timeout_ms
    return properties


def request_of(properties: Mapping[Any, Any]) -> EventsRequest:
    """Return what the client asks for that has attached a link for events with these properties.

    Raises:
        MessageFormatException: a property is missing, or is not what it must be.
    """
    timeout_ms = properties.get(_TIMEOUT)
    request = EventsRequest(timeout_ms, properties.get(_WINDOW, 0), properties.get(_CONFLATION, ""))
    check(request)
    return request._replace(
        timeout_ms=None if timeout_ms is None else int(timeout_ms),
        window=int(request.window),
        conflation=str(request.conflation),
    )


def check(request: EventsRequest) -> None:
    """Raise MessageFormatException where a client cannot ask for this."""
    timeout_ms = request.timeout_ms
    if timeout_ms is not None and not _is_number(timeout_ms, 0, _MAX_LONG):
        raise MessageFormatException(
            f"the time-out of a durable client is a number of milliseconds from 0 on, or None, not {timeout_ms!r:.100}"
        )
    if not _is_number(request.window, 1, MAX_WINDOW):
        raise MessageFormatException(
            f"the window of a link for events is a number from 1 to {MAX_WINDOW}, not {request.window!r:.100}"
        )
    if not isinstance(request.conflation, str) or request.conflation not in CONFLATIONS:
        raise MessageFormatException(
            f"the conflation of a durable client is one of {', '.join(CONFLATIONS)}, not {request.conflation!r:.100}"
        )


def encode_event(
    position: int,
    region: str,
    operation: int,
    key: str,
    interests: Sequence[tuple[int, str]],
    queries: Sequence[tuple[str, int]],
    is_history: bool,
    message: bytes,
) -> bytes:
    """An event as the payload of a transfer; the arguments are what the array has."""
    payload: bytes = msgpack.packb((position, region, operation, key, interests, queries, is_history, message))
    return payload


def encode_marker(position: int) -> bytes:
    """The marker as the payload of a transfer."""
    payload: bytes = msgpack.packb((position,))
    return payload


def decode(payload: bytes) -> EventDelivery:
    """The event, or the marker, in the payload of a transfer; its message is decoded when it is first read.

    Raises:
        MessageFormatException: there is none.
    """
    try:
        fields = unpacked(payload)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MessageFormatException(f"not an event of a region: {error}") from error
    if type(fields) is not list or not fields or not _is_number(fields[0], 0, _MAX_POSITION):
        raise MessageFormatException("not an event of a region: it is no array that begins with a position")
    if len(fields) == 1:
        return EventDelivery(fields[0])
    if len(fields) != _EVENT_FIELDS:
        raise MessageFormatException(f"not an event of a region: it has {len(fields)} fields")
    position, region, operation, key, interests, queries, is_history, message = fields
    if type(region) is not str or not region or type(key) is not str or not key:
        raise MessageFormatException("not an event of a region: it has no names of a region and a key")
    if not _is_number(operation, 0, _OPERATIONS - 1) or type(is_history) is not bool or type(message) is not bytes:
        raise MessageFormatException("not an event of a region: its operation, mark or message is of another type")
    return EventDelivery(
        position,
        region,
        operation,
        key,
        _pairs(interests, int, str),
        _checked_queries(_pairs(queries, str, int)),
        is_history,
        message,
        decode_payload,
    )


def _pairs(values: Any, first: type, second: type) -> list[tuple[Any, Any]]:
    """Pairs of these types."""
    if type(values) is not list:
        raise MessageFormatException("not an event of a region: its interests or queries are no list")
    for each in values:
        if type(each) is not list or [type(part) for part in each] != [first, second]:
            raise MessageFormatException("not an event of a region: one of its interests or queries is of another type")
    return [(each[0], each[1]) for each in values]


def _checked_queries(queries: list[tuple[str, int]]) -> list[tuple[str, int]]:
    if not all(_is_number(operation, 0, _OPERATIONS - 1) for _, operation in queries):
        raise MessageFormatException("not an event of a region: what it is to a query is no operation")
    return queries


def _is_number(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
