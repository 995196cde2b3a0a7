"""Operations on ranges of positions: what a queue has, reading it, and settling what was read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.selection import Selectable, selects
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.steps import (
    MAX_RANGE_BYTES,
    QUEUES_AT_ONCE,
    RANGE_ENTRIES,
    Arguments,
    Steps,
    queue_named,
    settle,
)
from broker_adapter.engine.queues.directory import attached
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.records.layout import RawEntry, position_of
from broker_adapter.engine.store.port import StoredColumns
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    MessageFormatException,
    StoreCorruptException,
)
from broker_adapter.range_block import RangeBlock, block_of, joined_block, packed_block
from broker_adapter.selectors.language import Selector, parse_selector
from broker_adapter.wording import counted

#: Messages that a selector is asked about without the engine doing anything else.
_SELECTED_AT_ONCE: Final = 200


def bounds(arguments: Arguments) -> Steps:
    """Which positions a queue has."""
    if arguments["make"]:
        yield c.Declare(Destination(arguments["destination"]))

    return (yield lambda reader: _bounds(reader, arguments.queue(reader.state), arguments["run"], arguments["claim"]))


def bounds_of_queues(arguments: Arguments) -> Steps:
    """Which positions several queues have, a few queues at a time."""
    names, runs = arguments["destinations"], arguments["runs"]
    if len(runs) != len(names):
        raise MessageFormatException(
            f"operation 'bounds_of_queues' has {counted(len(names), 'queue')} and {counted(len(runs), 'run')}"
        )
    found: list[dict[str, Any] | None] = []
    for start in range(0, len(names), QUEUES_AT_ONCE):
        part = names[start : start + QUEUES_AT_ONCE]
        pairs = list(zip(part, runs[start : start + QUEUES_AT_ONCE], strict=True))
        if arguments["make"]:
            missing: list[str] = yield partial(_missing, part)
            for name in missing:
                yield c.Declare(Destination(name))
        found += yield partial(_bounds_of_some, pairs, arguments["claim"])
    return found


def _missing(names: Sequence[str], reader: Reader) -> list[str]:
    return [name for name in names if queue_named(reader.state, name) is None]


def _bounds_of_some(pairs: Sequence[tuple[str, str]], claim: str | None, reader: Reader) -> list[dict[str, Any] | None]:
    """The bounds of queues, each with the run that is asked about; None of one that there is not."""
    queues = [(queue_named(reader.state, name), run) for name, run in pairs]
    return [None if queue is None else _bounds(reader, queue, run, claim) for queue, run in queues]


def _bounds(reader: Reader, queue: QueueState, run: str | None, claim: str | None) -> dict[str, Any]:
    reader.check_claim(queue, claim)
    reader.note_use(queue)
    first = reader.first_position(queue.id)
    return {
        "incarnation": reader.state.directory.incarnation(queue),
        "first": queue.next_position if first is None else first,
        "next": queue.next_position,
        "run": reader.run(queue),
        "kept": reader.kept(queue, run),
        "aging": reader.is_aging(run),
        "events": reader.state.events.head,
        "settled": reader.last_published(reader.state.directory.settled_group(queue)) or 0,
        "messages": queue.depth,
        "bytes": queue.bytes,
    }


def read_range(arguments: Arguments) -> Steps:
    """Read messages by their positions."""
    last, skip_damaged = arguments["last"], arguments["skip_damaged"]
    selector = parse_selector(arguments["selector"]) if arguments["selector"] else None
    as_stored = arguments["columns"] and selector is None

    def read(reader: Reader) -> StoredColumns | _Found:
        queue, *limits = _range_of(arguments, reader)
        found = reader.columns(queue.id, *limits) if as_stored else None
        return _one_by_one(reader, queue, *limits) if found is None else found

    found = yield read
    if isinstance(found, StoredColumns):
        through = last if found.is_complete else found.positions[-1]
        block = joined_block(found.positions, found.delivery_counts, found.sizes, found.payloads, {})
        return {"next": through + 1, "damaged": [], "block": packed_block(block)}
    messages = found.messages
    if selector is not None:
        messages = yield from _selected(selector, messages)
    through = last if found.is_complete else found.last
    damaged = sorted(position for position in found.damaged if position <= through)
    if damaged:
        if not skip_damaged:
            raise StoreCorruptException(
                f"the message at position {damaged[0]} of queue {found.label!r} cannot be trusted: a checksum is wrong;"
                " leave it out (skip_damaged; failOnDataLoss=false in Spark), or stop the server and run: holdfast"
                " check DIR --repair; in both cases it is kept in quarantine"
            )
        # Those that are still there: another reader may have been faster.
        yield c.SetAside(c.Range(found.queue, damaged[0], damaged[-1], RANGE_ENTRIES, frozenset(damaged)))
    answer = {"next": through + 1, "damaged": damaged}
    if arguments["columns"]:
        return {**answer, "block": packed_block(_block(messages))}
    return {**answer, "messages": messages}


class _Found(NamedTuple):
    """What was read of a range, message by message."""

    queue: int
    label: str
    messages: list[Any]  #: (position, failed deliveries, format, payload, annotations) of each that can be trusted
    damaged: list[int]  #: positions, also behind the last message
    last: int  #: position of the last message, whether it can be trusted or not
    is_complete: bool  #: whether nothing of the range stands behind it


def _range_of(arguments: Arguments, reader: Reader) -> tuple[QueueState, int, int, int, int]:
    """(queue, first, last, most messages, most bytes of them) that one answer brings."""
    queue = arguments.this_queue(reader)
    reader.note_use(queue)
    first, last, run = arguments["first"], arguments["last"], arguments["run"]
    kept = reader.kept(queue, run)
    if run and last >= kept:
        raise InvalidDestinationException(
            f"cannot read queue {queue.label!r} through position {last}: {_rolled_back(kept)}"
        )
    return (
        queue,
        first,
        min(last, queue.next_position - 1),
        RANGE_ENTRIES,
        min(arguments["max_bytes"], MAX_RANGE_BYTES),
    )


def _one_by_one(reader: Reader, queue: QueueState, first: int, last: int, limit: int, most_bytes: int) -> _Found:
    """The messages of a range with all that belongs to each."""
    found = reader.entries(queue.id, first, last, limit, most_bytes)
    entries: list[RawEntry] = []
    size = 0
    for entry in found.entries:
        size += entry.size
        if entries and size > most_bytes:
            break
        entries.append(entry)
    bodies = reader.messages(entries)
    messages = [
        (entry.position, entry.delivery_count, *body, annotations)
        for entry, (body, annotations) in zip(entries, bodies, strict=True)
        if body is not None
    ]
    damaged = [entry.position for entry, (body, _) in zip(entries, bodies, strict=True) if body is None]
    damaged += map(position_of, found.corrupt)
    is_complete = found.complete and len(entries) == len(found.entries)
    return _Found(queue.id, queue.label, messages, damaged, entries[-1].position if entries else 0, is_complete)


def _block(messages: Sequence[tuple[int, int, int, bytes, dict[str, Any] | None]]) -> RangeBlock:
    """Messages (position, failed deliveries, format, payload, annotations) as a block."""
    positions, counts, _, payloads, found = zip(*messages, strict=True) if messages else ((),) * 5
    annotations = {index: each for index, each in enumerate(found) if each is not None} if any(found) else {}
    return block_of(positions, counts, payloads, annotations)


def _selected(selector: Selector, messages: list[Any]) -> Steps:
    """Those of the messages that a selector chooses: a few at a time, since a selector may take a while."""
    chosen: list[Any] = []
    for start in range(0, len(messages), _SELECTED_AT_ONCE):

        def choose(reader: Reader, part: list[Any] = messages[start : start + _SELECTED_AT_ONCE]) -> list[Any]:
            formats = reader.state.matching.formats
            return [
                each
                for each in part
                if selects(selector, Selectable(formats, each[2], each[3], failures=each[1], annotations=each[4]))
            ]

        chosen += yield choose
    return chosen


def settle_through(arguments: Arguments) -> Steps:
    """Drop what was read, up to a position."""

    def through(reader: Reader) -> tuple[int, int, int, str]:
        queue = arguments.this_queue(reader)
        reader.check_claim(queue, arguments["claim"])
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
        kept = reader.kept(queue, arguments["run"])
        if last >= kept:
            raise InvalidDestinationException(
                f"cannot settle queue {queue.label!r} through position {last}: {_rolled_back(kept)}"
            )
        return queue.id, first, last, reader.state.directory.settled_group(queue)

    number, first, last, group = yield through
    dropped = yield from settle(number, last, first=first, processed=True)

    def still(reader: Reader) -> None:
        try:
            through(reader)
        except IllegalStateException as error:
            settled = counted(dropped, "message", ("was", "were"))
            raise type(error)(f"{error.reason}; {settled} settled before") from None

    yield still  # a consumer that came meanwhile may hold some, which would come back below the mark
    if last > 0:
        yield c.Publish(group, last, ())
    return dropped


def claim(arguments: Arguments) -> Steps:
    """Claim a queue."""
    number: int = yield lambda reader: arguments.queue(reader.state).id
    yield c.Claim(number, arguments["claim"], arguments["holder"], arguments["take_over"])
    return True


def end_claim(arguments: Arguments) -> Steps:
    """End a claim."""
    number: int = yield lambda reader: arguments.queue(reader.state).id
    yield c.EndClaim(number, arguments["claim"])
    return True


def _rolled_back(kept: int) -> str:
    return (
        f"of the positions that were seen then, only those below {kept} are known to be still the same messages. The"
        " store was restored from an older copy, or has started too often since to know; what has these positions now"
        " may not have been read"
    )
