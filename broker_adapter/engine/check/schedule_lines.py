"""What a line of the schedule must say: an entry has the time at which it expires, a message that of its delivery."""

from __future__ import annotations

from datetime import UTC, datetime

from broker_adapter.engine.commands.messaging import LATEST_MS
from broker_adapter.engine.commands.selection import Formats
from broker_adapter.engine.records.layout import (
    DELAYED_LANE,
    KIND_DELIVER,
    KIND_EXPIRE,
    RawEntry,
    entry_key,
    schedule_line,
)
from broker_adapter.errors import MessageFormatException


def fits(kind: int, due_ms: int, entry: RawEntry) -> bool:
    """Return whether the schedule may have a line for an entry, as far as the entry tells.

    Args:
        kind: of the line.
        due_ms: of the line.
        entry: that the line names.  One that expired in a consumer's hands is due again later than it says.
    """
    if kind == KIND_DELIVER:
        return entry.lane == DELAYED_LANE
    return kind == KIND_EXPIRE and entry.lane != DELAYED_LANE and 0 < entry.expires_at_ms <= due_ms


def delivery_ms(formats: Formats, message: tuple[int, bytes] | None) -> int | None:
    """Return when a delayed message is to be delivered, as it says itself.

    Args:
        formats: reads the message.
        message: format and payload; None where they cannot be read.

    Returns:
        The time; None where that is unknown.
    """
    if message is None:
        return None
    try:
        deliver_at_ms = formats.read(*message).deliver_at_ms
    except MessageFormatException:
        return None
    return None if deliver_at_ms is None else min(max(deliver_at_ms, 0), LATEST_MS)


def right_line(entry: RawEntry, deliver_at_ms: int | None) -> tuple[bytes, bytes] | None:
    """The line that the schedule must have for an entry.

    Args:
        entry: of a message.
        deliver_at_ms: when that is to be delivered, where it is delayed; None: not known, and it is due at once.

    Returns:
        Key and value of the line; None where the entry needs none.
    """
    key = entry_key(entry.queue, entry.lane, entry.position)
    if entry.lane == DELAYED_LANE:
        return schedule_line(deliver_at_ms or 0, KIND_DELIVER, key)
    return schedule_line(entry.expires_at_ms, KIND_EXPIRE, key) if entry.expires_at_ms else None


def in_words(due_ms: int) -> str:
    """Return when something is due, as far as Python has words for it."""
    if not due_ms:
        return "now"
    try:
        return f"at {datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(' ', 'milliseconds')}"
    except (OverflowError, ValueError, OSError):
        return f"at {due_ms} ms after 1970"
