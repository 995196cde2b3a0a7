"""What our own engine can be asked beyond messaging: ``Transport.request``, in process and over AMQP.

Arguments and results are plain data (what msgpack carries): names, ``run`` and ``incarnation`` are strings, positions
and numbers integers, and a packed envelope is what ``broker_adapter.pack`` makes.  A queue is named by
``destination``, ``kind`` ("queue", the default, or "topic") and for a topic ``subscription`` and ``client_id``; a
queue has neither of the last two.  An argument that an operation does not have is refused, as is a value of another
type.  Positions and other numbers are from 0 to 2^64 - 1; True is not a number.

``statistics`` of nothing
    ``BrokerStatistics`` as a map.  Counted since the engine was opened: ``enqueued``, ``delivered``, ``settled``,
    ``redelivered``, ``expired`` and ``dead_lettered`` messages, ``duplicates_rejected``, ``refused`` (sends, at a
    limit), ``quarantined`` (records that could not be trusted), ``miscounted`` (messages by which the counters of
    queues differed from the store, and were corrected; more than 0 is a reason to run ``holdfast check``) and
    ``commits`` of the store.  As it is now: ``clients``, ``volatile_bytes`` (of non-persistent messages and places),
    ``held_because`` (why all producers are held back; or None), ``in_quarantine`` (records) and ``queues``.  Of each
    of these: ``name``, ``kind`` ("queue", "topic", "subscription" or "staged"), ``messages`` (those in hand and
    delayed included), ``bytes``, ``in_hand`` (of consumers), ``delayed``, ``consumers``, ``held_producers`` (sends
    that wait for room), ``next_position`` and ``client_id`` (or None).
``check`` of nothing
    What ``holdfast check --json`` prints, of the records on disk as of the last commit.
``purge`` of a queue
    The number of messages dropped: those that wait, and not those in consumers' hands.
``redrive`` of a queue (default: the dead-letter queue), with ``to`` (name of a queue, or None) and ``limit`` (or None)
    ``moved`` and ``left``: how many of its messages went back to where they were set aside, or to ``to``, and how many
    stayed, because that is full, unknown, or a subscription that is gone.  A queue that is gone is made again.
``bounds`` of a queue, with ``run`` (or None) and ``make`` (default: false; true makes a queue that does not exist)
    ``incarnation``, ``first`` and ``next``: what is there has positions from ``first`` to below ``next``.  ``run``: the
    run of the engine in which they are given.  ``kept``: positions below it, seen in the run that was asked about, are
    still those of the same messages.  ``settled``: the last position that ``settle_through`` was asked to settle, or 0.
``read_range`` of a queue, with ``first``, ``last`` (inclusive), ``max_bytes``, ``incarnation`` and ``run`` (or None)
``skip_damaged`` (default: false) and ``envelope_version`` (default: 1, the highest that the caller can read)
    ``messages``: (position, delivery count, message-format, payload, annotations or None) each, by position;
    ``next``: the first position that the answer does not cover; ``damaged``: positions whose messages could not be
    trusted, and are in quarantine now.  Without ``skip_damaged`` such a message is an error, and stays.
``settle_through`` of a queue, with ``position`` (inclusive), ``first``, ``incarnation`` and ``run`` (or None)
    The number of messages dropped, of those from ``first`` on.  It is refused while consumers are attached, or sessions
    hold messages of consumers that are closed.
``stage`` with ``transaction``, ``queue`` (the target's name), ``first`` (index of the first message in the
transaction) and ``messages`` (packed envelopes)
    True, or False where the number of its group (as its name says) was published before: nothing of it is staged then.
    What was staged before is not staged again.
``renew`` with ``group`` and ``number``
    The seconds for which what is staged for this number is kept from now on, unless it is added to or renewed again.
    Whoever works for longer than that before the next message says so by this.
``publish`` with ``group``, ``number``, ``transactions`` and ``counts`` (of their messages, or None)
    True, or False where this number of the group was published before.
``published`` with ``group``
    The last number of the group that was published; None where none was, or nothing is known of it.
``discard`` with ``transactions``, and ``prefixes`` (of further ones' names) without those that begin as ``keep`` says
    The number of staged transactions dropped.
``settle_positions`` of a queue, with ``given``: (position, name, failures) each, where the name is the message's
identity (as a list) or else its message id, and the failures are the failed deliveries before the one acknowledged
    A map: ``settled``, the number of messages dropped, which wait at such a position under that name and nobody has in
    hand; ``lost``, the positions that somebody else has in hand, or has processed since (of the last 50,000 messages
    that were processed after a failed delivery, since the engine began).  At most 10,000 messages at once.
``confirm`` without arguments
    True, when what the connection has settled and sent before is done, and on disk.
``forgive`` of a queue, with ``given``: (position, name, failures) each, the last being the failed deliveries before
the one that was lost
    The number of messages whose last delivery does not count any more: it was lost with a connection, unseen.  At most
    10,000 messages at once.
``seen`` of a queue, with ``token`` (of a connection, as its client says it in the open frame) and ``positions``
    True.  The client had these when the connection was lost, and its application has seen them.  At most 10,000
    messages at once.
``forgive_rest`` with ``token``
    The number of messages whose last delivery does not count any more: all that this connection had when it was lost
    but what was ``seen``.  Of the last 200,000 deliveries that were lost, since the engine began.
``resolve_commit`` with ``session`` (the name in the commit's id), ``number`` and ``age_ms`` (how long ago the commit
was made; default 0)
    True where that commit was done, False where it was not; None where it may have been forgotten, since it was made
    longer ago than ``commit_memory_seconds``.  Nothing of a connection that is gone is done after this answer.
``delete`` of a queue, of a topic, or of a subscription, with ``force`` (default: false) and ``incarnation`` (of a queue
or subscription; or None)
    The number of messages that it had.  It is refused while it is in use, unless by force.

``purge``, ``redrive`` and ``delete`` take effect once where they are repeated under one ``request_id`` (a word of at
most 100 characters that the client makes up, for this one request) and ``request_run`` (the ``run`` that ``bounds``
returns; a restart of the engine changes it, and a request that names an earlier run is refused, because the engine does
not remember whether it was carried out).  An answer is remembered for ten minutes, unless 1,000 others came after it.
A connection that restores itself adds both where they are not given.  Other operations accept them, without effect.

A range of positions reads the same, from anywhere, until it is settled: nothing is taken by reading.  The *incarnation*
tells a queue from one of the same name that was made after it was deleted.  The *run* tells the starts of the engine
apart: where its store was replaced by an older copy, positions that were seen in an earlier run may be given once more,
to other messages.  Who says in which run a position was seen is refused instead.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.engine import commands as c
from broker_adapter.engine.arguments import QUEUE, Argument, checked
from broker_adapter.engine.broker_state import BrokerState
from broker_adapter.engine.directory import attached
from broker_adapter.engine.identities import MAX_NUMBER
from broker_adapter.engine.parts import in_parts
from broker_adapter.engine.queue_state import QueueState
from broker_adapter.engine.reader import Reader
from broker_adapter.engine.records import LAST_POSITION, RawEntry, position_of
from broker_adapter.engine.selection import Formats
from broker_adapter.engine.statistics import BrokerStatistics, QueueStatistics, as_plain
from broker_adapter.engine.store import Loaded
from broker_adapter.envelope import ENVELOPE_VERSION, in_version, read_head
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    InvalidDestinationException,
    MessageFormatException,
    OperationTimedOutException,
    StoreCorruptException,
)
from broker_adapter.wording import counted

#: Operations that are not the same when they are carried out again.
ONCE = frozenset(("purge", "redrive", "delete"))
#: Messages that one request may name: each may lie in another part of its queue, and take a step of its own.
MAX_GIVEN: Final = 10_000
#: Most bytes of messages that one answer carries, whatever is asked for.
MAX_RANGE_BYTES = 4 * 1024 * 1024
#: Entries read at once.
_RANGE_ENTRIES = 5_000
#: Entries settled in one commit.
_SETTLE_ENTRIES = 5_000
#: What came before a request is done behind this: also, what a lost connection had is given back.
_ENDED = c.ResolveCommit(c.CommitId("", 0))
#: Queues whose figures are collected in one cycle.
_STATISTICS_QUEUES = 500


class Engine(Protocol):
    """What operations need of the broker."""

    def call(self, command: c.Command, timeout: float | None) -> Any:
        """Carry out a command."""

    def reading(self) -> AbstractContextManager[Reader]:
        """Keep everybody else out."""


#: A step of an operation: a command, or something to read between two cycles.  The generator gets its result.
Step = c.Command | Callable[[Reader], Any]
Steps = Generator[Step, Any, Any]


def perform(
    engine: Engine,
    operation: str,
    arguments: Mapping[str, Any],
    timeout: float | None,
    is_cancelled: Callable[[], bool] | None = None,
) -> Any:
    """Carry out one operation of the table above.

    Args:
        engine: the broker.
        operation: its name.
        arguments: by name.
        timeout: longest wait in seconds; None: no limit.
        is_cancelled: asked before each step; once it returns True, no further step is carried out.

    Raises:
        ConnectionLostException: the operation was cancelled; what was done so far stays done.
        InvalidDestinationException: the queue, or this incarnation of it, is gone.
        MessageFormatException: an argument is missing or of the wrong type, or the operation is unknown.
        OperationTimedOutException: not done in time; what was done so far stays done, and it may be repeated.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    steps = steps_of(operation, arguments)
    result: Any = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration as end:
            return end.value
        if is_cancelled is not None and is_cancelled():
            raise ConnectionLostException("the operation was cancelled: the connection that asked for it ended")
        left = _left(deadline)
        if isinstance(step, tuple):
            result = engine.call(step, left)
        else:
            with engine.reading() as reader:
                result = step(reader)


def steps_of(operation: str, arguments: Mapping[str, Any]) -> Steps:
    """The steps of one operation; each may be carried out in another cycle of the engine, and others in between.

    Raises:
        MessageFormatException: the operation is unknown, or an argument is not what it must be.
    """
    values = checked_arguments(operation, arguments)
    return _HANDLERS[operation](_Arguments(values))


def checked_arguments(operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of an operation, those that are not given with their default.

    Raises:
        MessageFormatException: the operation is unknown, or an argument is not what it must be.
    """
    wanted = ARGUMENTS.get(operation) if isinstance(operation, str) else None
    if wanted is None:
        raise MessageFormatException(f"unknown operation {operation!r:.100}; the operations are {', '.join(ARGUMENTS)}")
    return checked(operation, wanted, arguments)


class _Arguments:
    """Arguments that were checked."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def given(self) -> list[Sequence[Any]]:
        """The argument ``given``: (position, name) or (position, name, failures) each."""
        values: list[Sequence[Any]] = self["given"]
        _check_count(values)
        for each in values:
            if (
                not isinstance(each, list | tuple)
                or len(each) not in (2, 3)
                or type(each[0]) is not int
                or not 0 <= each[0] <= LAST_POSITION
                or (len(each) == 3 and type(each[2]) is not int)
            ):
                raise MessageFormatException(f"{each!r:.100} is not a position, a name, and a number of failures")
        return values

    def queue(self, state: BrokerState) -> QueueState:
        """The queue that they name."""
        name = self["destination"]
        if name is None:
            name = state.settings.dead_letter_queue
        if self["kind"] == "topic":
            subscription = self["subscription"]
            if subscription is None:
                raise InvalidDestinationException(f"topic {name!r} keeps no messages of its own; name a subscription")
            return state.directory.subscription(
                Destination(name, DestinationKind.TOPIC), subscription, self["client_id"]
            )
        found = state.directory.by_destination.get(Destination(name))
        found = found or state.directory.by_destination.get(Destination(name, DestinationKind.TEMPORARY_QUEUE))
        if found is None:
            raise InvalidDestinationException(f"there is no queue {name!r}")
        return found

    def this_queue(self, reader: Reader) -> QueueState:
        """The queue that they name, of the incarnation that they name."""
        queue = self.queue(reader.state)
        wanted = self["incarnation"]
        incarnation = reader.state.directory.incarnation(queue)
        if wanted is not None and wanted != incarnation:
            raise InvalidDestinationException(
                f"queue {queue.label!r} was deleted and made again (it is {incarnation!r} now, and was {wanted!r}):"
                " positions of the old one mean nothing; start anew"
            )
        return queue


def _kept(reader: Reader, queue: QueueState, run: str | None) -> int:
    """Positions below this one are those of the same messages as in that run."""
    if not run or run == reader.run:
        return queue.next_position
    return min(reader.restart_position(queue.id, run), queue.next_position)


def _left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise OperationTimedOutException("the time is over; what was done stays done, and the call may be repeated")
    return left


def _statistics(arguments: _Arguments) -> Steps:
    # In parts: the statistics of many queues at once would hold everybody up.
    numbers: list[int] = yield lambda reader: list(reader.state.directory.queues)
    queues: list[QueueStatistics] = yield lambda reader: reader.state.directory.topic_statistics()
    for first in range(0, len(numbers), _STATISTICS_QUEUES):
        part: BrokerStatistics = yield c.Statistics(numbers[first : first + _STATISTICS_QUEUES])
        queues += part.queues
    in_quarantine: int = yield lambda reader: reader.in_quarantine
    return as_plain((yield c.Statistics(())), queues, in_quarantine)


def _purge(arguments: _Arguments) -> Steps:
    def through(reader: Reader) -> tuple[int, int]:
        queue = arguments.queue(reader.state)
        return queue.id, queue.next_position - 1

    number, last = yield through
    # The delayed ones first: one that falls due gets a position behind all that there were.
    dropped = yield from _settle(number, last, delayed=True)
    return dropped + (yield from _settle(number, last))


def _settle(queue: int, last: int, *, first: int = 0, delayed: bool = False) -> Steps:
    """Drop what has positions from ``first`` to ``last``, except what consumers hold."""
    dropped = 0
    position: int | None = first
    while position is not None:
        some, position = yield c.Trim(c.Range(queue, position, last, _SETTLE_ENTRIES, delayed=delayed))
        dropped += some
    return dropped


def _redrive(arguments: _Arguments) -> Steps:
    to, limit = arguments["to"], arguments["limit"]

    def through(reader: Reader) -> tuple[int, int]:
        queue = arguments.queue(reader.state)
        return queue.id, queue.next_position - 1

    number, last = yield through
    moved = seen = 0
    position: int | None = 0
    while position is not None and (limit is None or moved < limit):
        most = _RANGE_ENTRIES if limit is None else min(_RANGE_ENTRIES, limit - moved)
        some, looked_at, position = yield c.Redrive(c.Range(number, position, last, most), to)
        moved += some
        seen += looked_at
    return {"moved": moved, "left": seen - moved}


def _delete(arguments: _Arguments) -> Steps:
    kind = DestinationKind.TOPIC if arguments["kind"] == "topic" else DestinationKind.QUEUE
    number: int | None = None
    if arguments["incarnation"] is not None:
        number = (yield arguments.this_queue).id
    return (
        yield c.Delete(
            Destination(arguments["destination"], kind),
            arguments["subscription"],
            arguments["client_id"],
            arguments["force"],
            number,
        )
    )


def _bounds(arguments: _Arguments) -> Steps:
    if arguments["make"]:
        yield c.Declare(Destination(arguments["destination"]))

    def bounds(reader: Reader) -> dict[str, Any]:
        queue = arguments.queue(reader.state)
        reader.note_use(queue)
        first = reader.first_position(queue.id)
        return {
            "incarnation": reader.state.directory.incarnation(queue),
            "first": queue.next_position if first is None else first,
            "next": queue.next_position,
            "run": reader.run,
            "kept": _kept(reader, queue, arguments["run"]),
            "settled": reader.last_published(reader.state.directory.settled_group(queue)) or 0,
        }

    return (yield bounds)


def _read_range(arguments: _Arguments) -> Steps:
    first, last = arguments["first"], arguments["last"]
    max_bytes = min(arguments["max_bytes"], MAX_RANGE_BYTES)
    skip_damaged = arguments["skip_damaged"]

    def read(reader: Reader) -> tuple[int, str, Loaded, list[RawEntry], list[Any]]:
        queue = arguments.this_queue(reader)
        reader.note_use(queue)
        run = arguments["run"]
        kept = _kept(reader, queue, run)
        if run and last >= kept:
            raise InvalidDestinationException(
                f"cannot read queue {queue.label!r} through position {last}: {_rolled_back(kept)}"
            )
        found = reader.entries(queue.id, first, min(last, queue.next_position - 1), _RANGE_ENTRIES)
        entries: list[RawEntry] = []
        size = 0
        for entry in found.entries:
            size += entry.size
            if entries and size > max_bytes:
                break
            entries.append(entry)
        return queue.id, queue.label, found, entries, reader.messages(entries)

    number, name, found, entries, bodies = yield read
    messages = [
        (entry.position, entry.delivery_count, *body, annotations)
        for entry, (body, annotations) in zip(entries, bodies, strict=True)
        if body is not None
    ]
    version = arguments["envelope_version"]
    if version < ENVELOPE_VERSION:
        messages = [
            (position, count, *_in_version(version, form, payload), annotations)
            for position, count, form, payload, annotations in messages
        ]
    done = found.complete and len(entries) == len(found.entries)
    through = last if done else entries[-1].position
    damaged = [entry.position for entry, (body, _) in zip(entries, bodies, strict=True) if body is None]
    damaged += [position for position in map(position_of, found.corrupt) if position <= through]
    damaged.sort()
    if damaged:
        if not skip_damaged:
            raise StoreCorruptException(
                f"the message at position {damaged[0]} of queue {name!r} cannot be trusted: a checksum is wrong;"
                " leave it out (skip_damaged; failOnDataLoss=false in Spark), or stop the server and run: holdfast"
                " check DIR --repair; in both cases it is kept in quarantine"
            )
        # Those that are still there: another reader may have been faster.
        yield c.SetAside(c.Range(number, damaged[0], damaged[-1], _RANGE_ENTRIES, frozenset(damaged)))
    return {"messages": messages, "next": through + 1, "damaged": damaged}


def _settle_through(arguments: _Arguments) -> Steps:
    def through(reader: Reader) -> tuple[int, int, int, str]:
        queue = arguments.this_queue(reader)
        reader.note_use(queue)
        if queue.consumers:
            raise IllegalStateException(
                f"cannot settle a range of {queue.label!r}: {attached(queue)}; close them, or"
                " give each reader a subscription of its own"
            )
        if queue.leaving:
            raise IllegalStateException(
                f"cannot settle a range of {queue.label!r}: sessions hold {counted(queue.in_hand, 'message')} of it, of"
                " consumers that are closed; acknowledge or commit them, or close the sessions"
            )
        first, last = arguments["first"], arguments["position"]
        kept = _kept(reader, queue, arguments["run"])
        if last >= kept:
            raise InvalidDestinationException(
                f"cannot settle queue {queue.label!r} through position {last}: {_rolled_back(kept)}"
            )
        return queue.id, first, last, reader.state.directory.settled_group(queue)

    number, first, last, group = yield through
    dropped = yield from _settle(number, last, first=first)

    def still(reader: Reader) -> None:
        try:
            through(reader)
        except IllegalStateException as error:
            settled = counted(dropped, "message", ("was", "were"))
            raise IllegalStateException(f"{error.reason}; {settled} settled before") from None

    yield still  # a consumer that came meanwhile may hold some, which would come back below the mark
    if last > 0:
        yield c.Publish(group, last, ())
    return dropped


def _rolled_back(kept: int) -> str:
    return (
        f"of the positions that were seen then, only those below {kept} are still the same messages. The store was"
        " restored from an older copy, and what has these positions now was not read"
    )


def _check_count(messages: Sequence[Any]) -> None:
    if len(messages) > MAX_GIVEN:
        raise MessageFormatException(f"{len(messages)} messages at once, limit {MAX_GIVEN}; ask in several requests")


def _settle_positions(arguments: _Arguments) -> Steps:
    failures = {each[0]: each[2] for each in arguments.given() if len(each) == 3}
    lost: list[int] = []

    def trim(queue: int, positions: list[int]) -> Steps:
        wanted = c.Range(queue, positions[0], positions[-1], _SETTLE_ENTRIES, frozenset(positions))
        dropped, _ = yield c.Trim(wanted)
        if dropped < len(positions):

            def left(reader: Reader) -> list[int]:
                found = reader.entries(queue, positions[0], positions[-1], _SETTLE_ENTRIES).entries
                return sorted({each.position for each in found}.intersection(positions))

            lost.extend((yield left))
        return dropped

    settled = yield from _with_given(arguments, trim)

    def processed(reader: Reader) -> list[int]:
        try:
            queue = arguments.queue(reader.state).id
        except InvalidDestinationException:
            return []  # it was deleted meanwhile
        was = reader.state.deliveries.redelivered.was_accepted_later
        return [position for position, count in failures.items() if was(queue, position, count)]

    lost += yield processed
    return {"settled": settled, "lost": lost}


def _confirm(arguments: _Arguments) -> Steps:
    yield _ENDED
    return True


def _forgive(arguments: _Arguments) -> Steps:
    failures = {each[0]: each[2] for each in arguments.given() if len(each) == 3}

    def forgive(queue: int, positions: list[int]) -> Steps:
        return (yield c.Forgive(queue, [(position, failures.get(position)) for position in positions]))

    return (yield from _with_given(arguments, forgive))


def _seen(arguments: _Arguments) -> Steps:
    positions = arguments["positions"]
    _check_count(positions)

    def queue(reader: Reader) -> int:
        return arguments.queue(reader.state).id

    yield _ENDED
    number = yield queue
    yield c.Seen(arguments["token"], number, positions)
    return True


def _forgive_rest(arguments: _Arguments) -> Steps:
    yield _ENDED
    forgiven, has_more = 0, True
    while has_more:
        part, has_more = yield c.ForgiveRest(arguments["token"], MAX_GIVEN)
        forgiven += part
    return forgiven


def _with_given(arguments: _Arguments, act: Callable[[int, list[int]], Steps]) -> Steps:
    """Do something with those of the positions given at which the message of that name is; returns the sum.

    A position is never used again, so what is known of its message stays true; whether it is still there is for the
    command to see.
    """
    given = {each[0]: tuple(each[1]) if isinstance(each[1], list | tuple) else each[1] for each in arguments.given()}
    yield _ENDED
    total = 0
    for run in _runs(sorted(given)):

        def there(reader: Reader, run: Sequence[int] = run) -> tuple[int, list[RawEntry]]:
            queue = arguments.queue(reader.state)
            found = reader.entries(queue.id, run[0], run[-1], _SETTLE_ENTRIES).entries
            return queue.id, [each for each in found if each.position in given]

        number, entries = yield there
        found: list[int] = []
        for part in in_parts(entries, lambda entry: entry.size, _SETTLE_ENTRIES, MAX_RANGE_BYTES):

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


def _in_version(version: int, message_format: int, payload: bytes) -> tuple[int, bytes]:
    try:
        return in_version(version, message_format, payload)
    except MessageFormatException:  # nobody can decode it
        return message_format, payload


def _runs(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    """Sorted positions, in parts that one look at the queue can cover."""
    start = 0
    while start < len(positions):
        end = bisect_left(positions, positions[start] + _SETTLE_ENTRIES, start)
        yield positions[start:end]
        start = end


def _name(formats: Formats, form: int, payload: bytes) -> Any:
    """What a message is known again by."""
    try:
        envelope = formats.read(form, payload)
    except MessageFormatException:
        return None
    return envelope.message_id if envelope.identity is None else tuple(envelope.identity)


def _stage(arguments: _Arguments) -> Steps:
    messages = []
    for payload in arguments["messages"]:
        message = c.from_head(payload, read_head(payload))
        messages.append(message._replace(persistent=True, identity=None))
    return (
        yield c.Stage(
            arguments["transaction"],
            Destination(arguments["queue"]),
            arguments["first"],
            messages,
        )
    )


def _renew(arguments: _Arguments) -> Steps:
    return (yield c.Renew(arguments["group"], arguments["number"]))


def _publish(arguments: _Arguments) -> Steps:
    """Returns when the messages are in their queue."""
    transactions, counts = arguments["transactions"], arguments["counts"]
    if counts is not None and len(counts) != len(transactions):
        raise MessageFormatException("operation 'publish': argument 'counts' is not a number for each transaction")
    published: bool = yield c.Publish(arguments["group"], arguments["number"], transactions, counts)
    # One that was published before may still be under way.  Those behind it are not waited for.
    through, done = yield lambda reader: reader.moves
    while done < through:
        yield c.Due(())  # each cycle of the engine moves some
        _, done = yield lambda reader: reader.moves
    return published


def _published(arguments: _Arguments) -> Steps:
    group = arguments["group"]
    return (yield lambda reader: reader.last_published(group))


def _discard(arguments: _Arguments) -> Steps:
    transactions = list(arguments["transactions"])
    prefixes, keep = tuple(arguments["prefixes"]), tuple(arguments["keep"])
    if prefixes:
        found = yield lambda reader: [name for name in reader.state.directory.staged if name.startswith(prefixes)]
        transactions += [name for name in found if not name.startswith(keep)]
    return (yield c.Discard(transactions))


def _resolve_commit(arguments: _Arguments) -> Steps:
    commit_id = c.CommitId(arguments["session"], arguments["number"])
    return (yield c.ResolveCommit(commit_id, arguments["age_ms"]))


_HANDLERS: dict[str, Callable[[_Arguments], Steps]] = {
    "statistics": _statistics,
    "purge": _purge,
    "redrive": _redrive,
    "delete": _delete,
    "bounds": _bounds,
    "read_range": _read_range,
    "settle_through": _settle_through,
    "settle_positions": _settle_positions,
    "confirm": _confirm,
    "forgive": _forgive,
    "seen": _seen,
    "forgive_rest": _forgive_rest,
    "stage": _stage,
    "renew": _renew,
    "publish": _publish,
    "published": _published,
    "discard": _discard,
    "resolve_commit": _resolve_commit,
}

_RUN = Argument(str, None)
_NUMBER = Argument(int, most=MAX_NUMBER)
_NAMES = Argument(list, (), of=str)
#: The arguments of each operation; ``check`` is carried out beside the engine.
ARGUMENTS: dict[str, dict[str, Argument]] = {
    "statistics": {},
    "check": {},
    "purge": QUEUE,
    "redrive": {
        **QUEUE,
        "destination": Argument(str, None),
        "to": Argument(str, None),
        "limit": Argument(int, None),
    },
    "delete": {**QUEUE, "force": Argument(bool, False), "incarnation": Argument(str, None)},
    "bounds": {**QUEUE, "run": _RUN, "make": Argument(bool, False)},
    "read_range": {
        **QUEUE,
        "first": Argument(int),
        "last": Argument(int),
        "max_bytes": Argument(int, MAX_RANGE_BYTES, least=1),
        "incarnation": Argument(str, None),
        "run": _RUN,
        "skip_damaged": Argument(bool, False),
        "envelope_version": Argument(int, 1, least=1),
    },
    "settle_through": {
        **QUEUE,
        "position": Argument(int),
        "first": Argument(int, 0),
        "incarnation": Argument(str, None),
        "run": _RUN,
    },
    "settle_positions": {**QUEUE, "given": Argument(list)},
    "forgive": {**QUEUE, "given": Argument(list)},
    "seen": {**QUEUE, "token": Argument(str), "positions": Argument(list, of=int)},
    "forgive_rest": {"token": Argument(str)},
    "confirm": {},
    "stage": {
        "transaction": Argument(str),
        "queue": Argument(str),
        "first": Argument(int),
        "messages": Argument(list, of=bytes),
    },
    "renew": {"group": Argument(str), "number": _NUMBER},
    "publish": {
        "group": Argument(str),
        "number": _NUMBER,
        "transactions": Argument(list, of=str),
        "counts": Argument(list, None, of=int),
    },
    "published": {"group": Argument(str)},
    "discard": {"transactions": _NAMES, "prefixes": _NAMES, "keep": _NAMES},
    "resolve_commit": {"session": Argument(str), "number": _NUMBER, "age_ms": Argument(int, 0)},
}
