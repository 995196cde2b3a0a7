"""Messages as lines of JSON: what ``browse`` and ``receive`` print with ``--json``, and ``send --json-line`` reads."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.envelope import BodyKind, Envelope
from broker_adapter.selectors.language import checked_property_name
from broker_adapter.transport import Delivery

_ONLY_SHOWN: Final = frozenset(
    {"position", "message_id", "destination", "sent_at_ms", "deliver_at_ms", "delivery_count"}
)
_NONE: Final = type(None)
_INT: Final = (int, _NONE)
_TEXT: Final = (str, _NONE)
#: The fields that are sent, with the types that they may have.
_SENT: Final[dict[str, tuple[type, ...]]] = {
    "type": (str,),
    "body": (object,),
    "properties": (dict, _NONE),
    "correlation_id": (str, bytes, _NONE),
    "reply_to": _TEXT,
    "reply_to_kind": _TEXT,
    "message_type": _TEXT,
    "priority": (int,),
    "persistent": (bool,),
    "expires_at_ms": _INT,
    "group_id": _TEXT,
    "group_sequence": _INT,
}
_BODIES: Final = {
    BodyKind.NONE: _NONE,
    BodyKind.OBJECT: object,
    BodyKind.MAP: dict,
    BodyKind.BYTES: bytes,
    BodyKind.STREAM: list,
    BodyKind.TEXT: str,
}
#: Of these the values are scalars or bytes.
_FLAT: Final = (BodyKind.MAP, BodyKind.STREAM)
_BASE64: Final = "base64"
_LARGEST: Final = {"priority": 9, "group_sequence": 2**32 - 1}


def as_json(delivery: Delivery) -> str:
    """Return a message as a line of JSON."""
    envelope, reply_to = delivery.envelope, delivery.envelope.reply_to
    fields = {
        "position": delivery.position,
        "message_id": envelope.message_id,
        "destination": envelope.destination.name,
        "type": envelope.body_kind.name,
        "body": envelope.body,
        "properties": envelope.properties,
        "correlation_id": envelope.correlation_id,
        "reply_to": None if reply_to is None else reply_to.name,
        "reply_to_kind": None if reply_to is None or reply_to.kind is DestinationKind.QUEUE else reply_to.kind.name,
        "message_type": envelope.type,
        "priority": envelope.priority,
        "persistent": envelope.persistent,
        "sent_at_ms": envelope.sent_at_ms,
        "expires_at_ms": envelope.expires_at_ms,
        "deliver_at_ms": envelope.deliver_at_ms,
        "group_id": envelope.group_id,
        "group_sequence": envelope.group_sequence,
        "delivery_count": delivery.delivery_count + 1,
    }
    return json.dumps({name: _shown(value) for name, value in fields.items() if value is not None}, default=repr)


def _shown(value: Any) -> Any:
    """Bytes have no form in JSON: they are ``{"base64": ...}``, and a dict that looks so is that once more."""
    if isinstance(value, bytes):
        return {_BASE64: base64.b64encode(value).decode()}
    if isinstance(value, dict):
        shown = {name: _shown(each) for name, each in value.items()}
        return {_BASE64: shown} if value.keys() == {_BASE64} else shown
    return [_shown(each) for each in value] if isinstance(value, list) else value


def _read(value: Any) -> Any:
    """The contrary of ``_shown``."""
    if isinstance(value, dict):
        inner = value.get(_BASE64) if len(value) == 1 else None
        if isinstance(inner, str):
            return base64.b64decode(inner, validate=True)
        if isinstance(inner, dict):
            value = inner
        return {name: _read(each) for name, each in value.items()}
    return [_read(each) for each in value] if isinstance(value, list) else value


def from_json(line: str, destination: Destination) -> Envelope:
    """Return the message of a line, for this destination: without id and times, but for the one at which it expires.

    Raises:
        ValueError: it is none.
    """
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("it is no object")
        fields = {name: _read(value) for name, value in fields.items()}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{line!r:.200} is no message as JSON: {error}") from error
    for name, value in fields.items():
        kinds = _SENT.get(name)
        if kinds is None and name not in _ONLY_SHOWN:
            raise ValueError(f"a message has no field {name!r}; there are {', '.join(sorted({*_SENT, *_ONLY_SHOWN}))}")
        if kinds is None or object in kinds:
            continue
        is_bool = type(value) is bool and bool not in kinds  # which is an int otherwise
        if is_bool or not isinstance(value, kinds) or (type(value) is int and not _fits(name, value)):
            raise ValueError(f"a message cannot have {name}={value!r:.100}")
    kind = _member(BodyKind, "type", fields.get("type", "TEXT"))
    body = fields.get("body")
    is_empty = body is None and "type" in fields  # Jakarta Messaging 3.1, 3.11: a message of any type may be
    if not (is_empty or isinstance(body, _BODIES[kind])) or (kind in _FLAT and not _is_flat(body)):
        raise ValueError(f"a message of type {kind.name} cannot have the body {body!r:.100}")
    reply_to = fields.get("reply_to")
    reply_kind = _member(DestinationKind, "reply_to_kind", fields.get("reply_to_kind") or "QUEUE")
    return Envelope(
        destination,
        kind,
        body,
        _properties(fields.get("properties") or {}) or None,
        correlation_id=fields.get("correlation_id"),
        reply_to=None if reply_to is None else Destination(reply_to, reply_kind),
        type=fields.get("message_type"),
        expires_at_ms=fields.get("expires_at_ms"),
        priority=fields.get("priority", 4),
        persistent=fields.get("persistent", True),
        group_id=fields.get("group_id"),
        group_sequence=fields.get("group_sequence"),
    )


def _is_flat(body: Any) -> bool:
    values = body.values() if isinstance(body, dict) else body or ()
    return not any(isinstance(each, dict | list) for each in values)


def _fits(name: str, value: int) -> bool:
    return 0 <= value <= _LARGEST.get(name, 2**63 - 1)


def _member(kind: Any, name: str, value: str) -> Any:
    try:
        return kind[value]
    except KeyError:
        known = ", ".join(each.name for each in kind)
        raise ValueError(f"a message cannot have {name}={value!r:.100}; there are {known}") from None


def _properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in properties.items():
        checked_property_name(name)
        if not isinstance(value, bool | int | float | str | None) or (
            type(value) is int and not -(2**63) <= value < 2**63
        ):
            raise ValueError(f"property {name!r} cannot have the value {value!r:.100}")
    return dict(properties)
