"""What one cycle brings into memory: entries that the rules ask for, and messages that selectors are matched with."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from broker_adapter.engine.commands.effects import Candidate, Effects, Load, Scan
from broker_adapter.engine.commands.selection import Selectable
from broker_adapter.engine.cycle.entry_reads import EntryReads
from broker_adapter.engine.cycle.message_reads import MessageReads
from broker_adapter.engine.queues.pending import Pending, raw_entry
from broker_adapter.engine.records.layout import RawEntry
from broker_adapter.engine.rules.matching import Matching
from broker_adapter.engine.store.stores import Stores

_log = logging.getLogger(f"holdfast.{__name__}")

#: Entries that are loaded in one cycle; the loads that are left wait for the next one.
CYCLE_LOADS: Final = 20_000
#: Rounds of loading from the store before a commit; what is left waits for the next cycle.
LOAD_ROUNDS: Final = 16
#: Scans of the backlog for consumers with selectors in one cycle, and the bytes of messages that each reads.  They
#: share what one cycle may read: consumers that came at the same time are shown the backlog at the same time.
SCANS: Final = 4
SCAN_BYTES: Final = 1024 * 1024
#: Time that each of these scans takes, in seconds: a selector may take up to 20 milliseconds for each message.  Each
#: gets at least one message further.
SCAN_SECONDS: Final = 0.01
#: Time that selectors take in one cycle: those of subscriptions for what is sent, and for what waits for them, and
#: those of consumers.  What is left waits for the next cycle.  Of each of the three at least one selector is asked.
SELECT_SECONDS: Final = 0.01
#: Messages of one queue that are in memory while consumers with selectors examine them, beside SCAN_BYTES.
_CANDIDATES: Final = 500


class LoadingState(Protocol):
    """What loading asks of the rules: :class:`~broker_adapter.engine.broker_state.BrokerState` has it."""

    matching: Matching

    def loaded(self, load: Load, entries: Sequence[RawEntry], corrupt: int, complete: bool) -> str | None:
        """Give a queue the entries that it has asked for; returns what was wrong with its counters."""

    def lost(self, queue: int, lane: int, entries: int) -> None:
        """Tell a queue that entries of it are in quarantine."""

    def settle_down(self, now_ms: int, effects: Effects) -> None:
        """Hand out what was loaded."""


class Loading:
    """The loads, scans and candidates that wait for a cycle.

    Args:
        stores: of the engine.
        rules: of the engine; they get what is loaded.
        reads: of entries.
        messages: with their bodies.

    Attributes:
        has_more: whether something waits for the next cycle.
    """

    def __init__(self, stores: Stores, rules: LoadingState, reads: EntryReads, messages: MessageReads) -> None:
        self.has_more = False
        self._stores = stores
        self._rules = rules
        self._matching = rules.matching
        self._matching.new_slice = _Slice
        self._read_sound = reads.sound
        self._selectables = messages.selectables
        self._loads: list[Load] = []
        self._scans: list[Scan] = []
        #: candidates for the consumers that search, by queue, in the order of their turns
        self._candidates: dict[int, deque[Candidate]] = {}

    def load(self, effects: Effects, now_ms: int) -> None:
        """Bring entries into memory that the state has asked for.

        What the batches are about to change is not in the stores yet: entries that they delete are left out, and those
        that they add are added.
        """
        if not (effects.loads or effects.scans or effects.candidates or self.has_more):
            return
        wanted, self._loads = self._loads + effects.loads, []
        effects.loads = []
        scans = self._scans + effects.scans
        effects.scans = []
        for scan in scans[:SCANS]:
            self._scan(scan, effects)
        pending = Pending(effects)
        self._matching.begin_candidates()
        searched = bool(scans)
        is_late = False
        loaded = 0
        for _ in range(LOAD_ROUNDS):
            self._take_candidates(effects)
            if self._candidates and not is_late:
                searched = True
                is_late = not self._match_candidates(effects)
            if not searched and (not wanted or loaded >= CYCLE_LOADS):
                break
            searched = False
            later: list[Load] = []
            for load in wanted:
                if loaded >= CYCLE_LOADS:
                    later.append(load)
                    continue
                found = self._read_sound(self._stores.load, load.queue, load.lane, load.after, load.limit)
                entries = found.entries
                if effects.touches_unloaded:
                    entries = pending.as_changed(entries)
                if found.complete:
                    entries = pending.with_new(load.queue, load.lane, load.after, entries)
                wrong = self._rules.loaded(load, entries, len(found.corrupt), found.complete)
                if wrong is not None:
                    _log.error("! %s; they are corrected; run 'holdfast check' to see whether messages are lost", wrong)
                loaded += len(entries)
            self._rules.settle_down(now_ms, effects)
            wanted, effects.loads = later + effects.loads, []
        self._loads = wanted
        self._scans = scans[SCANS:] + effects.scans
        self._take_candidates(effects)
        self.has_more = bool(self._loads or self._scans or self._candidates)

    def _scan(self, scan: Scan, effects: Effects) -> None:
        """Show a consumer with a selector the next part of the backlog."""
        found = self._read_sound(self._stores.load, scan.queue, scan.lane, scan.after, -(-scan.limit // SCANS))
        if found.corrupt:
            self._rules.lost(scan.queue, scan.lane, len(found.corrupt))
        pending = Pending(effects)
        entries = pending.as_changed(found.entries)
        if found.complete:
            entries = pending.with_new(scan.queue, scan.lane, scan.after, entries)
        complete = found.complete
        through = max([scan.after, *(each.position for each in (*found.entries[-1:], *entries[-1:]))])
        size = 0
        for index, entry in enumerate(entries):
            size += entry.size
            if size > SCAN_BYTES and index:
                entries = entries[:index]
                through = entries[-1].position
                complete = False
                break
        messages = self._selectables(entries, effects)
        end = time.monotonic() + SCAN_SECONDS
        self._matching.scanned(scan, messages, through, complete, lambda: time.monotonic() > end)

    def _take_candidates(self, effects: Effects) -> None:
        for candidate in effects.candidates:
            self._candidates.setdefault(candidate.queue.id, deque()).append(candidate)
        effects.candidates = []

    def _match_candidates(self, effects: Effects) -> bool:
        """Match candidates with the consumers that search; returns False where the time was over before the end.

        Queues take turns.
        """
        while self._candidates:
            number = next(iter(self._candidates))
            candidates = self._candidates.pop(number)
            is_late = False
            for message in self._to_match(candidates, effects):
                is_late = not self._matching.match_candidate(candidates[0], message)
                if is_late:
                    break
                candidates.popleft()
            if candidates:
                self._candidates[number] = candidates  # behind the others
            if is_late or (self._candidates and self._matching.is_late()):
                return False
        return True

    def _to_match(self, candidates: Sequence[Candidate], effects: Effects) -> list[Selectable | None]:
        """The first messages of the candidates in one queue; None for one that cannot be read."""
        part: list[RawEntry] = []
        size = 0
        for candidate in itertools.islice(candidates, _CANDIDATES):
            size += candidate.entry.size
            if part and size > SCAN_BYTES:
                break
            part.append(raw_entry(candidate.queue.id, candidate.entry))
        found = {raw.position: message for raw, message in self._selectables(part, effects)}
        return [found.get(raw.position) for raw in part]


class _Slice:
    """Tells whether the time is over that selectors may take together; it begins when that is first asked."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end: float | None = None

    def __call__(self) -> bool:
        now = time.monotonic()
        if self._end is None:
            self._end = now + SELECT_SECONDS
            return False
        return now > self._end
