"""Operations on messages that a client names, and on what a lost connection had."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.selection import Formats
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.steps import (
    ENDED,
    LOST_ENTRIES,
    MAX_RANGE_BYTES,
    SETTLE_ENTRIES,
    Arguments,
    Steps,
)
from broker_adapter.engine.records.layout import RawEntry
from broker_adapter.engine.records.sequences import in_parts
from broker_adapter.errors import (
    InvalidDestinationException,
    MessageFormatException,
)


def settle_positions(arguments: Arguments) -> Steps:
    """Drop the messages at positions, where they have the names given."""
    failures = {each[0]: each[2] if len(each) == 3 else None for each in arguments.given()}
    token = arguments["token"]
    lost: list[int] = []

    def trim(queue: int, positions: list[int]) -> Steps:
        wanted = c.Range(queue, positions[0], positions[-1], SETTLE_ENTRIES, frozenset(positions))
        dropped, _ = yield c.Trim(wanted, processed=True, again=True, token=token)
        if dropped < len(positions):

            def left(reader: Reader) -> list[int]:
                found = reader.entries(queue, positions[0], positions[-1], SETTLE_ENTRIES).entries
                return sorted({each.position for each in found}.intersection(positions))

            lost.extend((yield left))
        return dropped

    settled = yield from _with_given(arguments, trim)

    def processed(reader: Reader) -> list[int]:
        try:
            queue = arguments.queue(reader.state).id
        except InvalidDestinationException:
            return []  # it was deleted meanwhile
        return reader.state.deliveries.ended_elsewhere(token, queue, failures)

    lost += yield processed
    return {"settled": settled, "lost": lost}


def confirm(arguments: Arguments) -> Steps:
    """Wait for what came before."""
    yield ENDED
    return True


def uncount(arguments: Arguments) -> Steps:
    """Uncount the deliveries that were lost, of the messages given."""
    failures = {each[0]: each[2] for each in arguments.given() if len(each) == 3}

    def uncount(queue: int, positions: list[int]) -> Steps:
        uncounted = 0
        for first in range(0, len(positions), LOST_ENTRIES):
            wanted = [(position, failures.get(position)) for position in positions[first : first + LOST_ENTRIES]]
            uncounted += yield c.Uncount(queue, wanted, arguments["token"])
        return uncounted

    return (yield from _with_given(arguments, uncount))


def seen(arguments: Arguments) -> Steps:
    """Note what an application has seen of what a lost connection had."""
    positions = arguments["positions"]

    def queue(reader: Reader) -> int:
        return arguments.queue(reader.state).id

    yield ENDED
    number = yield queue
    yield c.Seen(arguments["token"], number, positions)
    return True


def seen_rest(arguments: Arguments) -> Steps:
    """Note that an application has seen all else of what a lost connection had."""
    yield ENDED
    yield c.SeenRest(arguments["token"])
    return True


def uncount_rest(arguments: Arguments) -> Steps:
    """Uncount the other deliveries of a lost connection."""
    yield ENDED
    uncounted, has_more = 0, True
    while has_more:
        part, has_more = yield c.UncountRest(arguments["token"], LOST_ENTRIES)
        uncounted += part
    return uncounted


def _with_given(arguments: Arguments, act: Callable[[int, list[int]], Steps]) -> Steps:
    """Do something with those of the positions given at which the message of that name is; returns the sum.

    A position is never used again, so what is known of its message stays true; whether it is still there is for the
    command to see.
    """
    given = {each[0]: tuple(each[1]) if isinstance(each[1], list | tuple) else each[1] for each in arguments.given()}
    yield ENDED
    total = 0
    for run in _runs(sorted(given)):

        def there(reader: Reader, run: Sequence[int] = run) -> tuple[int, list[RawEntry]]:
            queue = arguments.queue(reader.state)
            found = reader.entries(queue.id, run[0], run[-1], SETTLE_ENTRIES).entries
            return queue.id, [each for each in found if each.position in given]

        number, entries = yield there
        found: list[int] = []
        for part in in_parts(entries, lambda entry: entry.size, SETTLE_ENTRIES, MAX_RANGE_BYTES):

            def matching(reader: Reader, part: Sequence[RawEntry] = part) -> list[int]:
                return [
                    entry.position
                    for entry, (message, _) in zip(part, reader.messages(part), strict=True)
                    if message is not None and _name(reader.state.matching.formats, *message) == given[entry.position]
                ]

            found += yield matching
        if found:
            total += yield from act(number, found)
    return total


def _runs(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    """Sorted positions, in parts that one read of the queue can cover."""
    start = 0
    while start < len(positions):
        end = bisect_left(positions, positions[start] + SETTLE_ENTRIES, start)
        yield positions[start:end]
        start = end


def _name(formats: Formats, form: int, payload: bytes) -> Any:
    """What a message is recognised by."""
    try:
        envelope = formats.read(form, payload)
    except MessageFormatException:
        return None
    return envelope.message_id if envelope.identity is None else tuple(envelope.identity)
