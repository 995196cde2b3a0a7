"""The entries that one cycle has changed and not committed yet, for reads of the stores in that cycle."""

from __future__ import annotations

from collections.abc import Iterable

from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.queues.entries import Entry
from broker_adapter.engine.records.layout import RawEntry, entry_key
from broker_adapter.engine.store.port import by_position


class Pending:
    """What the batches of a cycle change, applied to what is read from the stores.

    Args:
        effects: of the cycle.
    """

    def __init__(self, effects: Effects) -> None:
        self._batches = effects.durable.entries, effects.volatile.entries
        self._indexed = -1
        self._new: dict[bytes, list[RawEntry]] = {}

    def as_changed(self, entries: Iterable[RawEntry]) -> list[RawEntry]:
        """These entries of a store as they will be, without those that have ended or moved."""
        found = []
        for entry in entries:
            key = entry_key(entry.queue, entry.lane, entry.position)
            for batch in self._batches:
                if key in batch:
                    changed = batch[key]
                    if changed is not None:
                        found.append(raw_entry(entry.queue, changed) if isinstance(changed, Entry) else entry)
                    break
            else:
                found.append(entry)
        return found

    def with_new(self, queue: int, lane: int, after: int, entries: list[RawEntry]) -> list[RawEntry]:
        """The entries that a store has to the end of a lane, and those that came in behind them."""
        size = sum([len(changed) for changed in self._batches])
        if size != self._indexed:
            self._index(size)
        new = self._new.get(entry_key(queue, lane, 0)[:5])
        if new is None:
            return entries
        known = {entry.position for entry in entries}
        # Positions only grow: what is new stands behind everything that is in a store, or is in memory already.
        added = self.as_changed(each for each in new if each.position > after and each.position not in known)
        return entries + sorted(added, key=by_position)

    def _index(self, size: int) -> None:
        """Arrange what came in by lane."""
        self._indexed = size
        self._new = {}
        for changed in self._batches:
            for key, entry in changed.items():
                if isinstance(entry, Entry):
                    queue = int.from_bytes(key[:4])
                    self._new.setdefault(key[:5], []).append(raw_entry(queue, entry))
                elif isinstance(entry, RawEntry):
                    self._new.setdefault(key[:5], []).append(entry)


def raw_entry(queue: int, entry: Entry) -> RawEntry:
    """An entry in memory in the form in which stores return it."""
    return RawEntry(
        queue,
        entry.lane.number,
        entry.position,
        entry.number,
        entry.delivery_count,
        entry.flags,
        entry.expires_at_ms,
        entry.size,
        entry.group,
    )
