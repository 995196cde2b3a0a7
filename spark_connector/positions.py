"""Where reading begins and ends: earliest, latest, a number, or an instant; for each queue its own.  Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_FORMS: Final = (
    "earliest, latest, a position (a whole number from 0 on), an instant with its zone (2026-11-26T08:00:00Z), or JSON"
    ' with one of these for each queue ({"orders": 17, "returns": "latest"})'
)

#: Numbers from 2001 to 2286 have ten digits as seconds since 1970, and thirteen as milliseconds.
_EARLY: Final = 10**9
_LATE: Final = 10**10


class Instant(NamedTuple):
    """A moment; the first message that was sent at it or later is meant."""

    ms: int  #: since the epoch


Position = str | int | Instant


def position_of(option: str, text: str | None, queue: str, default: str) -> Position:
    """The position that an option has for a queue.

    Args:
        option: its name, for errors.
        text: its value; None: it is not given.
        queue: the queue.
        default: where there is none, or none for this queue.

    Raises:
        ValueError: it is none.
    """
    if text is None:
        return default
    if not text.lstrip().startswith("{"):
        return _position(option, text)
    return _of_queues(option, text).get(queue, default)


def positions_in(option: str, text: str) -> list[Position]:
    """All positions that an option has; of several queues in any order.

    Args:
        option: its name, for errors.
        text: its value, which ``check_position`` has taken.
    """
    if not text.lstrip().startswith("{"):
        return [_position(option, text)]
    return list(_of_queues(option, text).values())


def check_position(option: str, text: str | None, queues: tuple[str, ...] | None) -> None:
    """Whether an option can be positions.

    Args:
        option: its name, for errors.
        text: its value; None: it is not given.
        queues: that are read; None: not known yet.

    Raises:
        ValueError: it cannot; or it names a queue that is not read.
    """
    if text is None:
        return
    position_of(option, text, "", EARLIEST)
    if text.lstrip().startswith("{"):
        for queue in _of_queues(option, text):
            if queues is not None and queue not in queues:
                raise ValueError(f"{option} has a position for {queue!r}, which is not read")


def _of_queues(option: str, text: str) -> dict[str, Position]:
    """The position of each queue that JSON names."""
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except ValueError as error:
        raise ValueError(f"{option}={text!r} is no JSON: {error}; it is {_FORMS}") from None
    found: dict[str, Position] = {}
    for queue, value in pairs:
        if queue in found:
            raise ValueError(f"{option} has two positions for {queue!r}")
        named = value if isinstance(value, str) else json.dumps(value)
        found[queue] = _position(f"{option} of {queue!r}", named)
    return found


def _position(option: str, text: str) -> Position:
    text = text.strip()
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    if text.isascii() and text.isdigit() and len(text) <= 19:
        return int(text)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{option}={text!r} is none of these: {_FORMS}") from None
    if instant.tzinfo is None:
        moment = instant.isoformat()
        raise ValueError(f"{option}={text!r} has no zone: write {moment}Z for UTC, or {moment}+02:00")
    return Instant(round(instant.timestamp() * 1000))


def is_behind(begin: Position, end: Position) -> bool:
    """Return whether a range has nothing because it begins behind its end, as far as the two say it without a queue."""
    if isinstance(begin, Instant) and isinstance(end, Instant):
        return begin.ms > end.ms
    return isinstance(begin, int) and isinstance(end, int) and begin > end


def hint_of_instant(position: int) -> str:
    """Return what to write in place of a position that no queue has, if it can be meant as a time of this century."""
    for name, scale in (("seconds", 1), ("milliseconds", 1000)):
        seconds = position / scale
        if _EARLY <= seconds < _LATE:
            instant = datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
            return f"; if {name} since 1970 are meant, write the instant: {instant}"
    return ""


#: Finds the first message from a position on, up to another one: its position, and when it was sent; None: none.
Look = Callable[[int, int], tuple[int, int] | None]


def first_since(instant: Instant, first: int, end: int, look: Look) -> int:
    """The position from which on messages were sent at an instant or later.

    It bisects, so it takes for granted that who was sent later came later.  At most 63 looks.

    Args:
        instant: the moment.
        first: the lowest position.
        end: the position behind the highest one; the answer where all were sent before.
        look: finds messages that say when they were sent.
    """
    while first < end:
        middle = (first + end) // 2
        found = look(middle, end - 1)
        if found is None or found[1] >= instant.ms:
            end = middle
        else:
            first = found[0] + 1
    return first
