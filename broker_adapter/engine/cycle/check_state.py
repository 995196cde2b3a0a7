"""What an engine has in memory against its stores: whether every message is where it can be handed out.

For tests, and for an engine that is asked between two cycles (:meth:`broker_adapter.engine.broker.Broker.check`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from broker_adapter.engine.check.findings import Finding, Tables
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.entries import Entry, Lane
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.records.layout import DELAYED_LANE, FLAG_PERSISTENT, RawEntry, decode_entry, queue_key
from broker_adapter.errors import StoreCorruptException


def findings(directory: Directory, stores: Iterable[Tables]) -> Iterator[Finding]:
    """Yield what does not fit, between two cycles, when nothing is on its way.

    Args:
        directory: the engine's.
        stores: its records, on disk and in memory.
    """
    entries: dict[int, list[RawEntry]] = {}
    for tables in stores:
        for key, value in tables.items("entries"):
            try:
                entry = decode_entry(key, value)
            except StoreCorruptException:
                continue  # the check of the store tells
            if bool(entry.flags & FLAG_PERSISTENT) != tables.persistent:
                yield _wrong(entry.queue, f"entry {key.hex()} is in the wrong store")
            entries.setdefault(entry.queue, []).append(entry)
    for number in entries.keys() - directory.queues.keys():
        yield _wrong(number, f"the stores have {len(entries[number])} entries of queue {number}, which does not exist")
    for queue in directory.queues.values():
        for text in _of_queue(queue, entries.get(queue.id, [])):
            yield _wrong(queue.id, f"queue {queue.label!r}: {text}")
    in_hand = sum(len(each.unsettled) for each in directory.consumers.values())
    if in_hand != directory.memory.in_hand:
        yield _wrong(0, f"consumers hold {in_hand} messages, and {directory.memory.in_hand} are counted")


def _wrong(queue: int, text: str) -> Finding:
    return Finding("memory differs from the store", "queues", queue_key(queue), text)


def _of_queue(queue: QueueState, entries: list[RawEntry]) -> Iterator[str]:
    in_hands: dict[int, Entry] = {}
    for consumer in (*queue.consumers, *queue.leaving):
        for entry in consumer.unsettled.values():
            if entry.position in in_hands:
                yield f"two consumers hold position {entry.position}"
            in_hands[entry.position] = entry
    backing_off = {entry.position: entry for entry in queue.backoff.entries()}
    for one, other, what in (
        (queue.ready, in_hands, "ready and in a consumer's hands"),
        (queue.ready, backing_off, "ready and delayed after a failure"),
        (backing_off, in_hands, "delayed after a failure and in a consumer's hands"),
    ):
        if both := one.keys() & other.keys():
            yield f"positions {sorted(both)[:5]} are {what}"
    in_memory = {**queue.ready, **backing_off, **in_hands}
    waiting = [entry for entry in entries if entry.lane != DELAYED_LANE]
    by_position = {entry.position: entry for entry in waiting}
    if gone := in_memory.keys() - by_position.keys():
        yield f"positions {sorted(gone)[:5]} are in memory, and not in the store"
    yield from _counters(queue, entries, len(waiting), in_memory)
    lanes = {lane.number: lane for lane in queue.lanes}
    stored = Counter(entry.lane for entry in waiting if entry.flags & FLAG_PERSISTENT)
    behind = Counter(entry.lane for entry in waiting if entry.position not in in_memory)
    for number in stored.keys() | behind.keys() | lanes.keys():
        lane = lanes.get(number)
        if lane is None:
            yield f"lane {number} has entries, and is not known"
            continue
        if queue.durable and lane.stored != stored[number]:
            yield f"lane {number} has {stored[number]} stored entries, and {lane.stored} are counted"
        if lane.behind != behind[number]:
            yield f"lane {number} has {behind[number]} entries behind its window, and {lane.behind} are counted"
    yield from _places(queue, waiting, in_memory, lanes)


def _counters(queue: QueueState, entries: list[RawEntry], waiting: int, in_memory: dict[int, Entry]) -> Iterator[str]:
    if queue.depth != len(entries):
        yield f"{len(entries)} messages are there, and {queue.depth} are counted"
    if queue.bytes != sum(entry.size for entry in entries):
        yield f"{sum(entry.size for entry in entries)} bytes are there, and {queue.bytes} are counted"
    if queue.durable:
        size = sum(entry.size for entry in entries if entry.flags & FLAG_PERSISTENT)
        if queue.stored_bytes != size:
            yield f"{size} bytes are stored, and {queue.stored_bytes} are counted"
    if queue.delayed.behind != len(entries) - waiting:
        yield f"{len(entries) - waiting} messages are delayed, and {queue.delayed.behind} are counted"
    for entry in in_memory.values():
        if entry.lane.number not in range(10):
            yield f"position {entry.position} is in memory as of lane {entry.lane.number}"


def _places(
    queue: QueueState, waiting: list[RawEntry], in_memory: dict[int, Entry], lanes: dict[int, Lane]
) -> Iterator[str]:
    """Yield whether each message can be handed out, or loaded."""
    kept: list[tuple[Any, tuple[int, int]]] = [
        (consumer, place) for consumer in queue.consumers for place in consumer.reserved
    ]
    kept += [(group, place) for group in queue.groups.values() for place in group.kept]
    reserved = {place for keeper, place in kept if queue.kept_for.get(place[1]) is keeper}
    if (
        queue.kept_for.keys() != {position for _, position in reserved}
        or not queue.kept_for.keys() <= queue.ready.keys()
    ):
        yield f"{len(reserved)} messages are kept in groups or for consumers that failed, not {len(queue.kept_for)}"
    for group in queue.groups.values():
        may_go_on = group.kept and group.holder is None and group.number not in queue.backoff.holders
        if may_go_on and (group.kept[0], group.number) not in group.owner.owing:
            yield f"{group.owner!r} has no turn for what group {group.number} keeps for it"
    heaps = {number: set(lane.heap) for number, lane in lanes.items()}
    for raw in waiting:
        lane = lanes.get(raw.lane)
        if lane is None:
            continue
        entry = in_memory.get(raw.position)
        if entry is None:
            if lane.at_end or raw.position <= lane.loaded_through:
                yield f"position {raw.position} is neither in memory nor behind the window: no consumer gets it"
            continue
        if entry.number != raw.number or entry.lane is not lane:
            yield f"position {raw.position} is message {entry.number} of lane {entry.lane.number} in memory"
        if raw.position > lane.loaded_through and raw.position not in lane.early:
            yield f"position {raw.position} is in memory, and would be loaded again"
        is_ready = raw.position in queue.ready and raw.position not in queue.undeliverable.refusers
        if is_ready and raw.position not in heaps[raw.lane] and (raw.lane, raw.position) not in reserved:
            yield f"position {raw.position} is ready, and has no turn"
    for consumer in queue.consumers:
        may_take = consumer.credit > 0 and consumer.room_bytes > 0 and len(consumer.unsettled) < queue.max_unsettled
        is_delayed = consumer in queue.backoff.holders
        if consumer.search is None and may_take and not is_delayed and not consumer.queued:
            yield f"{consumer!r} may take messages, and has no turn"
