"""A message of a foreign broker as a spool stores it: as it came, and recognised if it comes twice.  Pure.

Theory of operation
    A broker that has lost the acknowledgement of a message sends it again.  The spool's engine rejects what has an
    identity that it knows, so a message gets one from its message id.  An id is to be unique; but where programs give
    two messages the same id, both are wanted.  So the identity is a digest of the id *and* of all else that no broker
    changes on the way: properties and body.  Only what is the same in all of it counts as the same message.

    A message without an id gets no identity: two that are alike may be two.

    The broker has just delivered what comes, so nothing of it has expired, whatever this machine's clock says.  A
    time-to-live counts from the arrival, and an instant by this machine's clock; of both the later one counts.  What
    is over by both when it comes is kept without an end: a clock that is ahead loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from broker_adapter.amqp.messages.payloads import format_of, read_head, stored_part
from broker_adapter.amqp.messages.sections import HEADER, bare_part, sections
from broker_adapter.engine.commands.messaging import NewMessage, incoming
from broker_adapter.envelope import AMQP_FORMAT, Envelope, Identity, pack
from broker_adapter.errors import MessageFormatException


def message_of(payload: bytes, now_ms: int) -> NewMessage:
    """A message for the spool, from an AMQP message as it came.

    It is persistent, whatever it says, since its broker forgets it; and due at once.  Where nothing of it can be
    decoded it is stored all the same.

    Args:
        payload: the message.
        now_ms: the time it came, milliseconds since the epoch; a time-to-live counts from it.
    """
    try:
        message_id, bare = bare_part(payload)
        head = read_head(payload, now_ms)
        time_to_live_ms = None if head.expires_at_ms is None else _time_to_live(payload)
    except MessageFormatException:
        return incoming(AMQP_FORMAT, payload, 4, True, None, None, None, None)
    identity = None if message_id is None else _identity(bare)
    expires_at_ms = expiry_of(head.expires_at_ms, time_to_live_ms, now_ms)
    return incoming(AMQP_FORMAT, payload, head.priority, True, expires_at_ms, None, identity, None)


def message_of_undecodable(payload: bytes, now_ms: int) -> NewMessage:
    """The same of a message that cannot be decoded, from a server of ours: the bytes as that has stored them.

    It is recognised if it comes twice as long as its head can be read, which in our own form names its sender.

    Args:
        payload: the message as it came.
        now_ms: the time it came, milliseconds since the epoch.
    """
    stored = stored_part(payload)
    try:
        kind = format_of(stored)
    except MessageFormatException:
        kind = AMQP_FORMAT
    if kind == AMQP_FORMAT:
        return message_of(stored, now_ms)
    try:
        identity = None if read_head(stored, now_ms).identity is None else _identity(stored)
    except MessageFormatException:
        identity = None
    return incoming(kind, stored, 4, True, None, None, identity, None)


def message_of_envelope(envelope: Envelope, now_ms: int) -> NewMessage:
    """The same of a message that came in our own form, from a server of ours.

    Args:
        envelope: the message.
        now_ms: the time it came, milliseconds since the epoch.

    Raises:
        MessageFormatException: it cannot be encoded.
    """
    kept = envelope._replace(persistent=True, deliver_at_ms=None)
    payload = pack(kept)
    identity = None if kept.message_id is None else _identity(payload)
    expires_at_ms = expiry_of(kept.expires_at_ms, None, now_ms)
    return incoming(format_of(payload), payload, kept.priority, True, expires_at_ms, None, identity, None)


def expiry_of(stated_ms: int | None, time_to_live_ms: int | None, now_ms: int) -> int | None:
    """Return when a message that came now expires in the spool; None: never.

    Args:
        stated_ms: when it expires by what it says, in milliseconds since the epoch.
        time_to_live_ms: how long it has, in milliseconds; None: it does not say.
        now_ms: the time it came.
    """
    if stated_ms is None:
        return None
    ends_ms = stated_ms if time_to_live_ms is None else max(stated_ms, now_ms + time_to_live_ms)
    return ends_ms if ends_ms > now_ms else None


def _time_to_live(payload: bytes) -> int | None:
    """Return what the header of an AMQP message says; it is an unsigned integer of 32 bits."""
    header: Sequence[Any] = next(sections(payload, (HEADER,)), ())
    found = header[2] if len(header) > 2 else None
    return int(found) if isinstance(found, int) and 0 < found < 2**32 else None


def _identity(content: bytes) -> Identity:
    return Identity(blake2b(content, digest_size=16).hexdigest(), 0, 1)
