"""A message of a foreign broker as a spool stores it: as it came, and recognised if it comes twice.  Pure.

Theory of operation
    A broker that has lost the acknowledgement of a message sends it again.  The spool's engine rejects what has an
    identity that it knows, so a message gets one from its message id.  An id is to be unique; but where programs give
    two messages the same id, both are wanted.  So the identity is a digest of the id *and* of all else that no broker
    changes on the way: properties and body.  Only what is the same in all of it counts as the same message.

    A message without an id gets no identity: two that are alike may be two.
"""

from __future__ import annotations

from hashlib import blake2b

from broker_adapter.amqp.payloads import format_of, read_head
from broker_adapter.amqp.sections import bare_part
from broker_adapter.engine.commands import NewMessage, incoming
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
    except MessageFormatException:
        return incoming(AMQP_FORMAT, payload, 4, True, None, None, None, None)
    identity = None if message_id is None else _identity(bare)
    return incoming(AMQP_FORMAT, payload, head.priority, True, head.expires_at_ms, None, identity, None)


def message_of_envelope(envelope: Envelope) -> NewMessage:
    """The same of a message that came in our own form, from a server of ours.

    Raises:
        MessageFormatException: it cannot be encoded.
    """
    kept = envelope._replace(persistent=True, deliver_at_ms=None)
    payload = pack(kept)
    identity = None if kept.message_id is None else _identity(payload)
    return incoming(format_of(payload), payload, kept.priority, True, kept.expires_at_ms, None, identity, None)


def _identity(content: bytes) -> Identity:
    return Identity(blake2b(content, digest_size=16).hexdigest(), 0, 1)
