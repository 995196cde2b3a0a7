"""Reads of entries in both stores; damaged entries are repaired from memory, or go into quarantine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from broker_adapter.engine.check.findings import Change
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.records.layout import (
    DELAYED_LANE,
    FLAG_PERSISTENT,
    Counters,
    RawEntry,
    decode_entry_key,
    encode_entry,
)
from broker_adapter.engine.store.port import Loaded
from broker_adapter.engine.store.stores import Stores
from broker_adapter.errors import ResourceAllocationException, StoreCorruptException

_log = logging.getLogger(f"holdfast.{__name__}")

_EntriesRead = Callable[..., Loaded]  #: a call of ``Stores`` that reads entries: its first argument is the queue


class EntryReads:
    """What is read of entries between two commits.

    Args:
        stores: of the engine.
        queues: all, by number: what they have in memory is right.
        recounted: corrects the counters of a queue (:class:`~broker_adapter.engine.broker_state.BrokerState`).
    """

    def __init__(
        self,
        stores: Stores,
        queues: Mapping[int, QueueState],
        recounted: Callable[[QueueState, Counters, int], None],
    ) -> None:
        self._stores = stores
        self._queues = queues
        self._recounted = recounted

    def of_range(self, wanted: c.Range) -> tuple[list[RawEntry], int | None]:
        """The entries of a range, and the first position that is left for another cycle."""
        queue, first, last, limit, positions, delayed = wanted
        if last < first:
            return [], None
        if delayed:
            found = self.sound(self._stores.load, queue, DELAYED_LANE, max(first, 1) - 1, limit)
        else:
            found = self.sound(self._stores.read_entries, queue, max(first, 0), last, limit)
        state = self._queues.get(queue)
        disk = self._stores.disk
        if found.corrupt and state is not None and state.record.kind != "ended" and disk is not None:
            # The size of what was damaged is not known.  It takes time; but damaged entries are very rare.
            self._recounted(state, disk.count(queue), len(found.corrupt))
        entries = [
            entry
            for entry in found.entries
            if entry.position <= last and (not positions or entry.position in positions)
        ]
        at_end = found.complete or (found.entries and found.entries[-1].position >= last)
        return entries, None if at_end else found.entries[-1].position + 1

    def sound(self, read: _EntriesRead, queue: int, *arguments: int) -> Loaded:
        """Read both stores as one; entries that cannot be trusted are put aside, and named if they are met first."""
        found = self.repaired(read, queue, *arguments)
        return found._replace(corrupt=self._stores.set_aside(found.corrupt)) if found.corrupt else found

    def repaired(self, read: _EntriesRead, queue: int, *arguments: int) -> Loaded:
        """Read both stores as one; damaged entries that are in memory are written again."""
        found = read(queue, *arguments)
        if found.corrupt and self._write_again(found.corrupt):
            return read(queue, *arguments)
        return found

    def _write_again(self, corrupt: Sequence[bytes]) -> bool:
        """Write those of some damaged entries again that are in memory; returns whether there was one."""
        changes: list[Change] = []
        for key in corrupt:
            try:
                number, lane, position = decode_entry_key(key)
            except StoreCorruptException:
                continue  # it is not known which entry it was
            queue = self._queues.get(number)
            entry = None if queue is None else queue.in_memory(lane, position)
            if entry is not None and entry.flags & FLAG_PERSISTENT:
                fields = entry.flags, entry.expires_at_ms, entry.size, entry.group
                changes.append(("entries", key, encode_entry(key, entry.number, entry.delivery_count, *fields)))
                _log.error("! entry %s fails its checksum; it is in memory, and is written again", key.hex())
        if not changes or self._stores.disk is None:
            return False
        try:
            self._stores.disk.apply(changes)
        except ResourceAllocationException as error:
            _log.error("! they cannot be written now, and stay as they are: %s", error)
            return False
        return True
