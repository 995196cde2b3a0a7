"""Offsets of a stream: pure arithmetic on positions.

Spark compares offsets as JSON text, so an offset has one form only: its keys in order.

Theory of operation
    An offset says what was read: the positions from ``base`` to below ``next``, and where they meant what: in which
    incarnation of the queue, and in which run of the broker.  The broker tells which positions of that run are still
    those of the same messages.  Where it is not all that were read, the broker's store was replaced by another copy,
    and there are messages at such positions that were never read.

    The broker remembers its last runs only.  A query that waits for messages would keep one for ever, so it gets the
    present run in its place before the broker forgets it.

    A query that is to go on all the same begins again with what is there.  That is an offset of its own, with nothing
    between ``base`` and ``next``: Spark logs it as a batch without rows, so it holds over restarts as well.  Only
    positions from ``base`` on are ever settled.

    A query may begin behind messages that stay in the queue, and settle what comes after them; a later query may begin
    with these.  So an offset says up to where others had settled when its query began: what they took of that is no
    loss.

    An offset also has the id under which its query claims the queue (:mod:`claims`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from sdk.range_reader import Bounds


class Offset(NamedTuple):
    """The positions from ``base`` to below ``next`` of this incarnation of a queue are read."""

    base: int
    incarnation: str
    next: int
    run: str  #: of the broker, in which they were seen; empty: not known
    settled: int = 0  #: the broker's settled mark when the query began: other queries had read up to it
    claim: str = ""  #: the id under which the query claims the queue; empty: it does not

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it."""
        return dict(sorted(self._asdict().items()))


def offset_from(fields: Mapping[str, Any]) -> Offset:
    """The offset that Spark kept.

    Raises:
        ValueError: it is none of ours.
    """
    values: list[Any] = [fields.get(name) for name in Offset._fields]
    if [type(value) for value in values] != [int, str, int, str, int, str] or fields["base"] > fields["next"]:
        raise ValueError(f"{dict(fields)!r} is not an offset of this source; was the checkpoint made by another one?")
    return Offset(*values)


def beginning(bounds: Bounds, claim: str) -> Offset:
    """Return where a query begins that has this claim: at the oldest message that is there."""
    return Offset(bounds.first, bounds.incarnation, bounds.first, bounds.run, bounds.settled, claim)


def latest(start: Offset, bounds: Bounds, head: int, most: int | None) -> Offset:
    """Return how far a batch goes.

    Args:
        start: where it begins.
        bounds: what the queue has.
        head: the next position that the queue will give, or an earlier one that is not to be passed.
        most: most positions of the batch; None: no limit.
    """
    begin = max(start.next, bounds.first)
    end = head if most is None else min(head, begin + most)
    return start if end <= start.next else start._replace(next=end, run=bounds.run)


def renewed(offset: Offset, bounds: Bounds) -> Offset:
    """The same offset as it is seen now, where the broker will forget the run in which it was seen.

    Spark keeps the run in its checkpoint only with a new offset.  This one is a new one, with a batch without rows.

    Args:
        offset: up to which messages were read.
        bounds: what the queue has, asked for with the offset's run.
    """
    is_same = bounds.incarnation == offset.incarnation and offset.next <= bounds.kept
    return offset._replace(run=bounds.run) if bounds.aging and is_same and bounds.run else offset


def span(start: Offset, end: Offset) -> tuple[int, int]:
    """The positions [first, stop) of the batch between two offsets; none where they meet or cross.

    A start that has read nothing may be an answer to the question where the query begins, which Spark asks again where
    its first batch was not completed.  That batch begins where it began then.
    """
    if start.incarnation != end.incarnation or start.next == start.base:
        return end.base, end.next
    return max(start.next, end.base), end.next


def has_positions(start: Offset, end: Offset) -> bool:
    """Return whether a batch between two offsets has positions, or may have lost some."""
    first, stop = span(start, end)
    return first < stop or start.base > end.base


class Loss(NamedTuple):
    """Why a queue does not have what follows an offset."""

    reason: str
    restart: bool  #: whether its positions mean nothing any more


def lost(start: Offset, offset: Offset, bounds: Bounds) -> Loss | None:
    """Return what is lost between an offset and the queue.

    Args:
        start: up to which messages were read.
        offset: up to which they are going to be read; or ``start`` again.
        bounds: what the queue has, asked for with the offset's run.
    """
    first, _ = span(start, offset)
    if bounds.incarnation != offset.incarnation:
        return Loss(
            f"the queue was deleted and made again since the checkpoint was written, or the checkpoint is of another"
            f" queue (it was {offset.incarnation!r}, and is {bounds.incarnation!r} now)",
            True,
        )
    if offset.next > bounds.kept:
        return Loss(
            f"the broker's store was replaced by an older copy, or by the one that a copy had replaced (or has started"
            f" more often than it remembers): the checkpoint has the positions below {offset.next}, of which the store"
            f" is sure of those below {bounds.kept} only, and may have given the others once more",
            True,
        )
    if bounds.settled <= offset.settled:
        return None  # no query has settled anything higher since this one began
    if start.next == start.base and offset.base < start.base and offset.base <= bounds.settled:
        # Its first batch was planned before, and Spark asks again where the query begins.
        return Loss(
            f"the checkpoint was made while its first batch ran, which began at position {offset.base}: the positions"
            f" up to {min(bounds.settled, start.base - 1)} were read and settled by a query that was ahead of it, or"
            " have expired or been consumed since",
            False,
        )
    # A query that begins has read nothing.  What it finds below the settled mark has come back from a consumer.
    if first <= bounds.settled and start.next > start.base:
        return Loss(
            f"the checkpoint is older than the queue: the positions from {first} to {bounds.settled} were read and"
            " settled by a query that was ahead of it",
            False,
        )
    return None


def is_due(waiting: int, least: int | None, waited_seconds: float, most_seconds: float) -> bool:
    """Return whether a batch begins.

    Args:
        waiting: positions that it could have.
        least: positions that are worth one; None: any.
        waited_seconds: since the last batch.
        most_seconds: after which any is worth one.
    """
    return least is None or waiting >= least or (waiting > 0 and waited_seconds >= most_seconds)


def in_turn(names: Iterable[str], last: str | None) -> list[str]:
    """The names in order, from behind the one that was served last; None: from the first one on."""
    return sorted(names, key=lambda name: (last is not None and name <= last, name))


def shares(most: int, wanted: Mapping[str, int], last: str | None = None) -> dict[str, int]:
    """Return what of a limit each gets: what it wants where that fits, else in proportion, and one at least if that
    fits.

    Args:
        most: of all together.
        wanted: by name, from 0 on.
        last: the one that got something as the last one before, behind which those begin that get one.
    """
    total = sum(wanted.values())
    if total <= most:
        return dict(wanted)
    given = dict.fromkeys(wanted, 0)
    for name in in_turn((name for name, count in wanted.items() if count), last)[:most]:
        given[name] = 1
    left, rest = most - sum(given.values()), total - sum(given.values())
    for name, count in wanted.items():
        given[name] += (count - given[name]) * left // rest
    for name in sorted(wanted):
        given[name] += min(most - sum(given.values()), wanted[name] - given[name])
    return given


class PartCounts(NamedTuple):
    """How many ranges a batch is to have."""

    least: int | None = None  #: as far as there are positions; None: one
    most: int | None = None  #: None: any number

    def of_each(self, counts: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, PartCounts]:
        """The same of each queue of a batch: one range at least where there are positions.

        Args:
            counts: positions, by the name of the queue.
            sizes: most positions of a range, likewise, but where there would be too many ranges.
        """
        parts = {name: -(-count // sizes[name]) for name, count in counts.items()}
        if self.least is not None and self.least > sum(parts.values()):
            more = shares(self.least - sum(parts.values()), {name: counts[name] - part for name, part in parts.items()})
            parts = {name: part + more[name] for name, part in parts.items()}
        elif self.most is not None:
            parts = shares(max(self.most, sum(map(bool, parts.values()))), parts)
        return {name: PartCounts(part, max(1, part)) for name, part in parts.items()}


#: One range, or as many as have too many positions for one.
ANY_PARTS: Final = PartCounts()


def positions_of_task(most: int, most_bytes: int | None, message_bytes: int | None) -> int:
    """Return how many positions a task has at most: one at least.

    Args:
        most: positions.
        most_bytes: of messages, about; None: any number.
        message_bytes: of a message on average; None: not known.
    """
    if most_bytes is None or not message_bytes:
        return most
    return max(1, min(most, most_bytes // message_bytes))


def split(first: int, end: int, most: int, wanted: PartCounts = ANY_PARTS) -> list[tuple[int, int]]:
    """[first, end) in ranges [first, last], alike in size.

    Args:
        first: the lowest position.
        end: the position behind the highest one.
        most: positions of a range, but where there would be too many ranges.
        wanted: how many ranges.
    """
    total = end - first
    if total <= 0:
        return []
    parts = max(-(-total // most), min(wanted.least or 1, total))
    if wanted.most is not None:
        parts = min(parts, wanted.most)
    edges = [first + total * part // parts for part in range(parts + 1)]
    return [(low, high - 1) for low, high in pairwise(edges)]
