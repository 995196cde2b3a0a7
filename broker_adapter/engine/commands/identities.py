"""Was this number of this name taken?  What the engine remembers, so that nothing is done twice or wrongly refused.

Theory of operation
    A message carries an identity: a producer, a thread of it, and a sequence number that the producer counts up.  A
    message that is sent again, after a failover say, has the identity that it had.  Messages may arrive out of their
    producer's order (delayed, re-routed, bridged, put back from a dead-letter queue) and with gaps (a producer that
    sends to several destinations).  So :class:`Sequences` remembers which numbers were seen, not only the highest one.
    It never takes a number for seen that was not.  It may forget one that is far behind the highest.

    The commits of a session and the published batches of a group are done in order, so the last number of each name is
    enough (:class:`LastNumbers`).  Names are forgotten by age: other names, however many, do not displace one.  Age is
    counted while the engine runs (:class:`~broker_adapter.engine.commands.decision_time.DecisionTime`), not by the time
    of the day: that may be set, and what was done a moment ago must not be forgotten for it.  The store of a durable
    engine has all names, and only those used lately are in memory: the driver looks up the others (``needs``,
    ``learn``) in the cycle that asks for them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.commands.intervals import Intervals
from broker_adapter.engine.records.layout import LastRecord, SequencesRecord, encode_last, last_key
from broker_adapter.errors import MessageFormatException

#: Numbers below the highest one that are known one by one where there are gaps.
WINDOW: Final = 8192
_FULL: Final = (1 << WINDOW) - 1
#: Highest number of a commit or of a published batch.
MAX_NUMBER: Final = (1 << 63) - 1
#: Names of a table that are kept in memory where the store has the others.
CACHED_NAMES: Final = 10_000
#: Names of a table that an engine without a disk remembers at most.
MOST_NAMES: Final = 1_000_000


class Sequences:
    """The sequence numbers of one stream that were seen.

    Attributes:
        last: the highest one.
        solid: everything from here up to ``last`` was seen; with a ``mask``, up to below the window.
        mask: where there are gaps: bit ``n`` says whether ``last - n`` was seen, for ``WINDOW`` numbers; None: no gaps.
    """

    __slots__ = ("last", "mask", "solid")

    def __init__(self, last: int, solid: int, mask: int | None = None) -> None:
        self.last = last
        self.solid = solid
        self.mask = mask

    @classmethod
    def begin(cls, sequence: int) -> Sequences:
        """A stream of which one number was seen."""
        return cls(sequence, sequence)

    @classmethod
    def of(cls, record: SequencesRecord) -> Sequences:
        """As the store has them."""
        return cls(record.last, record.solid, int.from_bytes(record.mask) if record.mask else None)

    def record(self, used_ms: int) -> SequencesRecord:
        """For the store."""
        mask = b"" if self.mask is None else self.mask.to_bytes(WINDOW // 8)
        return SequencesRecord(self.last, self.solid, used_ms, mask)

    def __contains__(self, sequence: int) -> bool:
        """Return whether this number was seen, as far as it is remembered."""
        below = self.last - sequence
        if self.mask is None or below >= WINDOW:
            return self.solid <= sequence <= self.last
        return below >= 0 and bool(self.mask >> below & 1)

    def add(self, sequence: int) -> bool:
        """Note a number; returns False where it was seen before."""
        above = sequence - self.last
        if self.mask is None:
            if above == 1:
                self.last = sequence
                return True
            if above <= 0 and sequence >= self.solid:
                return False
            # There is a gap from now on.
            seen = min(self.last - self.solid + 1, WINDOW)
            self.mask = (1 << seen) - 1
            self.solid = min(self.solid, self.last - WINDOW + 1)
            if seen < WINDOW:
                self.solid = self.last - WINDOW + 1
        if above > 0:
            self._raise(sequence, above)
        elif -above >= WINDOW:
            return sequence < self.solid  # too far behind to be remembered
        else:
            bit = 1 << -above
            if self.mask & bit:
                return False
            self.mask |= bit
        if self.mask == _FULL:
            self.mask = None
        return True

    def add_run(self, first: int, last: int) -> bool:
        """Note numbers that follow each other; returns False, and notes none, unless the first is the next one."""
        if self.mask is not None or first != self.last + 1:
            return False
        self.last = last
        return True

    def _raise(self, sequence: int, above: int) -> None:
        """A new highest number: the window moves up, and what leaves it is remembered as far as it has no gap."""
        mask = self.mask or 0
        bottom = sequence - WINDOW  # the highest number below the new window
        if above > WINDOW:
            self.solid = bottom + 1
            self.mask = 1
        else:
            leaving = mask >> (WINDOW - above)
            missing = ~leaving & ((1 << above) - 1)
            if missing:
                self.solid = bottom - ((missing & -missing).bit_length() - 1) + 1
            self.mask = (mask << above | 1) & _FULL
        self.last = sequence


def checked_number(number: int) -> int:
    """The number of a commit or of a published batch, if the store has room for it.

    Raises:
        MessageFormatException: it is below zero, or does not fit into 63 bits.
    """
    if not 0 <= number <= MAX_NUMBER:
        raise MessageFormatException(f"number {number} is not from 0 to 2^63 - 1")
    return number


class LastNumbers:
    """The last number of each name in one table, such as the last commit of each session.

    Args:
        table: of the store.
        memory_ms: how long a name is remembered after its last number.
        time: has the age of the store.
        durable: whether a store has what is not in memory.

    Attributes:
        is_changed: whether a number was noted since the age of the store was noted.
    """

    def __init__(self, table: str, memory_ms: int, time: DecisionTime, *, durable: bool) -> None:
        self.table = table
        self.is_changed = False
        self._memory_ms = memory_ms
        self._time = time
        self._durable = durable
        self._removed_ms = -math.inf  #: the youngest name that was forgotten without a store was used at this age
        self._names: OrderedDict[str, LastRecord | None] = OrderedDict()  #: the least recently used first

    def __len__(self) -> int:
        return len(self._names)

    def needs(self, name: str) -> bool:
        """Return whether the driver has to look this name up in the store, before it is asked for in the same cycle."""
        if name in self._names:
            self._names.move_to_end(name)
            return False
        return self._durable

    def learn(self, name: str, record: LastRecord | None) -> None:
        """What the store has of a name."""
        self._names[name] = record
        self._names.move_to_end(name)

    def trim(self) -> None:
        """A cycle is over: names that the store has need not be in memory.  Within one, what was looked up stays."""
        while self._durable and len(self._names) > CACHED_NAMES:
            self._names.popitem(last=False)

    def last(self, name: str) -> int | None:
        """The last number of a name; None where there is none, or it is too long ago."""
        record = self._names.get(name)
        return None if record is None else record.number

    def intervals(self, name: str) -> Intervals:
        """The numbers of an origin that have come."""
        record = self._names.get(name)
        return Intervals() if record is None else Intervals(record.intervals)

    def note_intervals(self, name: str, intervals: Intervals, batch: StoreBatch) -> None:
        """These numbers of an origin have come."""
        self.note(name, intervals.last, batch, intervals.encoded())

    def note(self, name: str, number: int, batch: StoreBatch, intervals: bytes = b"") -> None:
        """This number of the name is done; ``intervals``: of an origin, all that are."""
        age_ms = self._time.age_ms
        record = LastRecord(number, age_ms, intervals)
        self.is_changed = True
        self._names[name] = record
        self._names.move_to_end(name)
        if self._durable:
            key = last_key(name)
            batch.put(self.table, key, encode_last(key, record))
            return
        oldest_ms = age_ms - self._memory_ms
        while self._names:
            first = next(iter(self._names.values()))
            if len(self._names) <= MOST_NAMES and first is not None and first.used_ms >= oldest_ms:
                break
            self._names.popitem(last=False)
            if first is not None:
                self._removed_ms = max(self._removed_ms, first.used_ms)

    def remove(self, name: str, batch: StoreBatch) -> None:
        """This name will not be asked for any more."""
        self._names.pop(name, None)
        if self._durable:
            batch.put(self.table, last_key(name), None)

    def is_over(self, used_ms: int, age_ms: int) -> bool:
        """Return whether a name that was last used at one age of the store is to be forgotten at another."""
        return used_ms < age_ms - self._memory_ms

    def may_be_removed(self, ago_ms: int) -> bool:
        """Return whether a name whose last number was done so long ago may not be remembered any more."""
        return ago_ms >= self._memory_ms or self._time.age_ms - ago_ms <= self._removed_ms
