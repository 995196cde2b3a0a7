"""Operations on ranges of positions: what a queue has, reading it, and settling what was read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.selection import Selectable, selects
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.request import Names, Request, Steps, Threads, argument, request
from broker_adapter.engine.operations.steps import (
    MAX_QUEUES,
    MAX_RANGE_BYTES,
    QUEUES_AT_ONCE,
    RANGE_ENTRIES,
    OfQueue,
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


@request(Threads.SHORT)
class BoundsRequest(OfQueue):
    """``incarnation``, ``first`` and ``next``: what is there has positions from ``first`` to below ``next``.

    ``run``: the run of the engine in which this queue gives them, for this queue alone.  ``kept``: positions below it,
    seen in the run that was asked about, are known to be still those of the same messages; 1 where the store knows
    nothing of that run.  ``aging``: whether that run is one of those that the store forgets next; a client that keeps
    positions below ``kept`` keeps the new ``run`` with them then.  ``settled``: the last position that
    ``settle_through`` was asked to settle, or 0.  ``events``: the position of the last event of all regions at this
    moment.
    """

    run: str | None = argument(None)
    make: bool = argument(False, note="true makes a queue that does not exist")
    claim: str | None = argument(None)

    def steps(self, client: int) -> Steps:
        if self.make:
            yield c.Declare(Destination(self.destination))

        return (yield lambda reader: _bounds(reader, self.queue_in(reader.state), self.run, self.claim))


@request(Threads.SHORT)
class BoundsOfQueuesRequest(Request):
    """What ``bounds`` answers of each queue, in order; None of one that does not exist."""

    destinations: Sequence[str] = argument(
        most_values=MAX_QUEUES,
        names=Names.QUEUES,
        rights=("bounds",),
        note="names of queues, of at most 32 KiB together",
    )
    runs: Sequence[str] = argument(most_values=MAX_QUEUES, note='one for each of them; "" for none')
    make: bool = argument(False)
    claim: str | None = argument(None)

    def steps(self, client: int) -> Steps:
        names, runs = self.destinations, self.runs
        if len(runs) != len(names):
            raise MessageFormatException(
                f"operation 'bounds_of_queues' has {counted(len(names), 'queue')} and {counted(len(runs), 'run')}"
            )
        found: list[dict[str, Any] | None] = []
        for start in range(0, len(names), QUEUES_AT_ONCE):
            part = names[start : start + QUEUES_AT_ONCE]
            pairs = list(zip(part, runs[start : start + QUEUES_AT_ONCE], strict=True))
            if self.make:
                missing: list[str] = yield partial(_missing, part)
                for name in missing:
                    yield c.Declare(Destination(name))
            found += yield partial(_bounds_of_some, pairs, self.claim)
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


@request(Threads.SHORT)
class ReadRangeRequest(OfQueue):
    """``messages``: (position, delivery count, message-format, payload, annotations or None) each, by position.

    ``next``: the first position that the answer does not cover; ``damaged``: positions whose messages could not be
    trusted, and are in quarantine now.  Without ``skip_damaged`` such a message is an error, and stays.  With
    ``columns`` there is no ``messages``, but ``block``: a map of ``positions`` (u64 each), ``counts`` (u32 each: of
    deliveries), ``sizes`` (u32 each) and ``payloads`` (one behind the other), all as bytes, with little-endian
    integers, and ``annotations``: (index of a message, what was added to its properties) each.
    """

    first: int = argument()
    last: int = argument(note="inclusive")
    max_bytes: int = argument(MAX_RANGE_BYTES, least=1)
    incarnation: str | None = argument(None)
    run: str | None = argument(None)
    skip_damaged: bool = argument(False)
    columns: bool = argument(False)
    selector: str | None = argument(None, note="without one, all messages")

    def steps(self, client: int) -> Steps:
        last, skip_damaged = self.last, self.skip_damaged
        selector = parse_selector(self.selector) if self.selector else None
        as_stored = self.columns and selector is None

        def read(reader: Reader) -> StoredColumns | _Found:
            queue, *limits = _range_of(self, reader)
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
                    f"the message at position {damaged[0]} of queue {found.label!r} cannot be trusted: a checksum is"
                    " wrong; leave it out (skip_damaged; failOnDataLoss=false in Spark), or stop the server and run:"
                    " holdfast check DIR --repair; in both cases it is kept in quarantine"
                )
            # Those that are still there: another reader may have been faster.
            yield c.SetAside(c.Range(found.queue, damaged[0], damaged[-1], RANGE_ENTRIES, frozenset(damaged)))
        answer = {"next": through + 1, "damaged": damaged}
        if self.columns:
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


def _range_of(wanted: ReadRangeRequest, reader: Reader) -> tuple[QueueState, int, int, int, int]:
    """(queue, first, last, most messages, most bytes of them) that one answer brings."""
    queue = wanted.this_queue(reader)
    reader.note_use(queue)
    first, last, run = wanted.first, wanted.last, wanted.run
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
        min(wanted.max_bytes, MAX_RANGE_BYTES),
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


@request(Threads.STREAMING)
class SettleThroughRequest(OfQueue):
    """The number of messages dropped, of those from ``first`` on.

    It is refused while consumers are attached, or sessions hold messages of consumers that are closed.
    """

    position: int = argument(note="inclusive")
    first: int = argument(0)
    incarnation: str | None = argument(None)
    run: str | None = argument(None)
    claim: str | None = argument(None)

    def steps(self, client: int) -> Steps:

        def through(reader: Reader) -> tuple[int, int, int, str]:
            queue = self.this_queue(reader)
            reader.check_claim(queue, self.claim)
            reader.note_use(queue)
            if queue.consumers:
                raise IllegalStateException(
                    f"cannot settle a range of {queue.label!r}: {attached(queue)}; close them, or"
                    " give each reader a subscription of its own"
                )
            if queue.leaving:
                raise IllegalStateException(
                    f"cannot settle a range of {queue.label!r}: sessions hold {counted(queue.in_hand, 'message')} of"
                    " it, of consumers that are closed; acknowledge or commit them, or close the sessions"
                )
            first, last = self.first, self.position
            kept = reader.kept(queue, self.run)
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


@request(Threads.STREAMING)
class ClaimRequest(OfQueue):
    """True.

    From now on ``bounds`` and ``settle_through`` are refused that name another claim, also after a restart, until
    ``end_claim``; those that name none are not.  Refused where the queue has another claim, unless ``take_over`` is
    true: that one is replaced then.
    """

    claim: str = argument(note="an id that no other query has")
    holder: str = argument(note="who that is, for people")
    take_over: bool = argument(False)

    def steps(self, client: int) -> Steps:
        number: int = yield lambda reader: self.queue_in(reader.state).id
        yield c.Claim(number, self.claim, self.holder, self.take_over)
        return True


@request(Threads.STREAMING)
class EndClaimRequest(OfQueue):
    """True, also where the queue has no such claim."""

    claim: str = argument()

    def steps(self, client: int) -> Steps:
        number: int = yield lambda reader: self.queue_in(reader.state).id
        yield c.EndClaim(number, self.claim)
        return True


def _rolled_back(kept: int) -> str:
    return (
        f"of the positions that were seen then, only those below {kept} are known to be still the same messages. The"
        " store was restored from an older copy, or has started too often since to know; what has these positions now"
        " may not have been read"
    )
