"""Operations on messages that a client names, and on what a lost connection had."""

from __future__ import annotations

import reprlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.identities import MAX_NUMBER
from broker_adapter.engine.commands.selection import Formats
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.request import Request, Steps, Threads, argument, fields_of, request
from broker_adapter.engine.operations.steps import (
    ENDED,
    LOST_ENTRIES,
    MAX_GIVEN,
    MAX_RANGE_BYTES,
    SETTLE_ENTRIES,
    OfQueue,
)
from broker_adapter.engine.records.layout import LAST_POSITION, RawEntry
from broker_adapter.engine.records.sequences import in_parts
from broker_adapter.errors import (
    InvalidDestinationException,
    MessageFormatException,
)


@fields_of
class OfSource(OfQueue):
    """A request of what a client names the source of its deliveries by: a subscription that is not durable as well."""

    durable: bool | None = argument(None)


@fields_of
class OfGiven(OfSource):
    """A request of messages that a client names."""

    given: Sequence[Any] = argument(most_values=MAX_GIVEN, note="(position, name, failures) each")
    token: str | None = argument(None, note="of a connection that was lost, as its client says it in the open frame")

    def checked(self) -> Sequence[Sequence[Any]]:
        """Return the messages: (position, name) or (position, name, failures) each."""
        for each in self.given:
            if not (
                isinstance(each, list | tuple)
                and len(each) in (2, 3)
                and type(each[0]) is int
                and 0 <= each[0] <= LAST_POSITION
                and _is_name(each[1])
                and (len(each) == 2 or (type(each[2]) is int and 0 <= each[2] <= LAST_POSITION))
            ):
                raise MessageFormatException(
                    f"{reprlib.repr(each)} is not a position, a name, and a number of failures"
                )
        return self.given


def _is_name(value: object) -> bool:
    """Return whether this can be a message id, an identity (a producer, a thread and a sequence), or None: it has
    neither.
    """
    if value is None:
        return True
    if isinstance(value, list | tuple):
        if [type(each) for each in value] != [str, int, int]:
            return False
        value = value[0]
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


@request(Threads.RESTORING)
class SettlePositionsRequest(OfGiven):
    """A map: ``settled``, and ``lost``.

    The name of a message is its identity (as a list), else its message id, else None, and the failures are the failed
    deliveries before the one acknowledged.  ``settled``: the number of messages dropped, which wait at such a position
    under that name and no consumer holds; ``lost``, the positions of those that another consumer holds or has processed
    since, or that are dead letters or in the expiry queue by now (of the last 50,000 messages that ended so after a
    failed delivery, since the engine began).
    """

    def steps(self, client: int) -> Steps:
        failures = {each[0]: each[2] if len(each) == 3 else None for each in self.checked()}
        token = self.token
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

        settled = yield from _with_given(self, trim)

        def processed(reader: Reader) -> list[int]:
            try:
                queue = self.queue_in(reader.state).id
            except InvalidDestinationException:
                return []  # it was deleted meanwhile
            return reader.state.deliveries.ended_elsewhere(token, queue, failures)

        lost += yield processed
        return {"settled": settled, "lost": lost}


@request(Threads.CONFIRMING)
class ConfirmRequest(Request):
    """True, when what the connection has settled and sent before is done, and on disk."""

    def steps(self, client: int) -> Steps:
        yield ENDED
        return True


@request(Threads.RESTORING)
class UncountRequest(OfGiven):
    """The number of messages of which a delivery does not count any more.

    It was lost with that connection, and no application has seen it; whether they wait, or others have them in hand.
    The failures are the failed deliveries before the one that was lost.  Where the engine does not know what that
    connection had, the last delivery does not count, if as many as given had failed before.
    """

    def steps(self, client: int) -> Steps:
        failures = {each[0]: each[2] for each in self.checked() if len(each) == 3}

        def uncount(queue: int, positions: list[int]) -> Steps:
            uncounted = 0
            for first in range(0, len(positions), LOST_ENTRIES):
                wanted = [(position, failures.get(position)) for position in positions[first : first + LOST_ENTRIES]]
                uncounted += yield c.Uncount(queue, wanted, self.token)
            return uncounted

        return (yield from _with_given(self, uncount))


@request(Threads.RESTORING)
class SeenRequest(OfSource):
    """True.

    The client had these when the connection was lost, and its application has seen them.
    """

    token: str = argument(note="of the connection, as its client says it in the open frame")
    positions: Sequence[int] = argument(most_values=MAX_GIVEN)

    def steps(self, client: int) -> Steps:
        positions = self.positions

        def queue(reader: Reader) -> int:
            return self.queue_in(reader.state).id

        yield ENDED
        number = yield queue
        yield c.Seen(self.token, number, positions)
        return True


@request(Threads.RESTORING)
class SeenRestRequest(Request):
    """True.

    The application has seen all else that this connection had when it was lost, or may have: for a client that does not
    remember it.  All of it counts.
    """

    token: str = argument()

    def steps(self, client: int) -> Steps:
        yield ENDED
        yield c.SeenRest(self.token)
        return True


@request(Threads.RESTORING)
class UncountRestRequest(Request):
    """The number of messages of which a delivery does not count any more.

    These are all that this connection had when it was lost but what was ``seen``.  Of the last 200,000 deliveries that
    were lost, since the engine began.
    """

    token: str = argument()

    def steps(self, client: int) -> Steps:
        yield ENDED
        uncounted, has_more = 0, True
        while has_more:
            part, has_more = yield c.UncountRest(self.token, LOST_ENTRIES)
            uncounted += part
        return uncounted


@request(Threads.RESTORING)
class ResolveCommitRequest(Request):
    """True where that commit was done, False where it was not; None where it may have been forgotten.

    That is where it was made longer ago than ``commit_memory_seconds``.  Nothing of a connection that is gone is done
    after this answer.
    """

    session: str = argument(note="the name in the commit's id")
    number: int = argument(most=MAX_NUMBER)
    age_ms: int = argument(0, note="how long ago the commit was made")

    def steps(self, client: int) -> Steps:
        commit_id = c.CommitId(self.session, self.number)
        return (yield c.ResolveCommit(commit_id, self.age_ms))


def _with_given(request: OfGiven, act: Callable[[int, list[int]], Steps]) -> Steps:
    """Do something with those of the positions given at which the message of that name is; returns the sum.

    A position is never used again, so what is known of its message stays true; whether it is still there is for the
    command to see.
    """
    given = {each[0]: tuple(each[1]) if isinstance(each[1], list | tuple) else each[1] for each in request.checked()}
    yield ENDED
    total = 0
    for run in _runs(sorted(given)):

        def there(reader: Reader, run: Sequence[int] = run) -> tuple[int, list[RawEntry]]:
            queue = request.queue_in(reader.state)
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
    """Return what a message is recognised by."""
    try:
        envelope = formats.read(form, payload)
    except MessageFormatException:
        return None
    return envelope.message_id if envelope.identity is None else tuple(envelope.identity)
