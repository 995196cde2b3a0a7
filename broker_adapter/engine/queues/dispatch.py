"""How a queue hands out its messages to the consumers that have credit.

A lone consumer takes all that it may at once; several take turns, one message each.  What is kept for a consumer,
in its message groups or because it has failed on it, goes first.  An exclusive consumer that came first is served
alone.
"""

from __future__ import annotations

from heapq import heappop

from broker_adapter.engine.commands.effects import Effects, Outgoing, Scan
from broker_adapter.engine.queues.entries import Entry
from broker_adapter.engine.queues.queue import Consumer, QueueState, is_for_other
from broker_adapter.engine.queues.search import Search
from broker_adapter.engine.records.layout import FLAG_HANDED, FLAG_PERSISTENT

#: What a named tuple does, without the call of a function of Python.
_new = tuple.__new__


def dispatch(queue: QueueState, now_ms: int, effects: Effects) -> list[Entry]:
    """Hand out what the consumers have credit for.  Returns what has expired.

    A lone consumer takes all that it may at once; several take turns, one message each.  Beyond
    ``memory.cycle_handouts`` messages of all queues in one cycle, the rest is for the next one.
    """
    for holder in queue.backoff.take_released():
        queue.end_wait(holder)
    if queue.returning:
        return []
    turn = _Turn(queue, now_ms, effects)
    if queue.backoff.shelf:
        _hand_out_shelf(queue, turn)
    if queue.undeliverable.refusers:
        _hand_out_refused(queue, turn)
    if queue.exclusive:
        _serve(queue, queue.exclusive[0], turn)
    else:
        takers, finders = queue.takers, queue.finders
        while turn.left > 0:
            while queue.owed and turn.left > 0:
                _hand_out_reserved(queue, queue.owed.popitem()[0], turn)
            progress = bool(takers) and _next_taker(queue, turn)
            # A candidate may be ahead of what the finders have found.
            if finders and turn.left > 0 and not queue.pending_candidates:
                progress |= _next_finder(queue, turn)
            if progress or queue.owed:
                continue
            shares = queue.kept_for and takers and not queue.is_loading and _share_out(queue, turn)
            if not shares and (not queue.backoff.shelf or queue.has_ready or not _hand_out_shelf(queue, turn)):
                break
            if queue.undeliverable.refusers:
                _hand_out_refused(queue, turn)
    for consumer, messages in turn.out.items():
        effects.deliveries.append((consumer, messages))
        effects.handouts += len(messages)
        if not consumer.presettled:
            queue.memory.in_hand += len(messages)
    return turn.expired


def _serve(queue: QueueState, consumer: Consumer, turn: _Turn) -> None:
    """Hand out all that one consumer may have, as if it were alone."""
    _hand_out_reserved(queue, consumer, turn)
    room = turn.room_of(consumer)
    if room <= 0 or turn.left <= 0:
        return
    if consumer.search is not None:
        if not queue.pending_candidates:
            _hand_out_found(queue, consumer, consumer.search, room, turn)
    else:
        _hand_out_next(queue, consumer, room, turn)


def _share_out(queue: QueueState, turn: _Turn) -> bool:
    """Give something that is kept to a consumer that has less to do; returns False where there is nothing for it.

    It gets a group; or, if it has nothing to do and the other one no room, also the last group of that, or what that
    has failed on.
    """
    other = turn.least_busy()
    if other is None:
        return False
    owner = max(queue.consumers, key=_groups_at_work)
    owed = queue.first_owed(owner) if is_for_other(owner, other) else None
    if owed is not None:
        queue.move(owed, other)
        return True
    if other.busy or queue.first_owed(other) is not None:
        return False
    waiting = queue.backoff.holders
    for each in queue.consumers:
        if each in waiting or turn.room_of(each) > 0 or (each.failed_on and not each.unsettled):
            continue  # what a listener failed on comes to it again, at once
        for group in queue.groups_owed(each):
            if not group.in_hand:
                queue.move(group, other)
                return True
        if each.reserved and not queue.keeps_order(each):
            queue.give_to_others(each, turn.effects)
            return True
    return False


def _next_taker(queue: QueueState, turn: _Turn) -> bool:
    """Hand out one message to the next consumer without a selector, or all it may have to a lone one.

    Returns False where there is none for any of them.
    """
    takers = queue.takers
    while takers:
        consumer = takers[0]
        room = turn.room_of(consumer)
        if room > 0:
            break
        takers.popleft()
        consumer.queued = False
    else:
        return False
    if len(takers) == 1 and not queue.finders:
        _hand_out_next(queue, consumer, room, turn)
        return False
    while True:
        entry = _take_next(queue, turn)
        if entry is None:
            return False
        if entry.group:
            owner = queue.owner_of(entry, consumer, turn.least_busy)
            if owner is None or turn.room_of(owner) <= 0:
                if not queue.keep_in_group(entry):
                    return False
                continue
            turn.give_in_group(owner, entry)
            if owner is not consumer:
                continue
        else:
            turn.give(consumer, entry)
        takers.rotate(-1)
        return True


def _take_next(queue: QueueState, turn: _Turn) -> Entry | None:
    """Take out the entry that comes next for a consumer without a selector; None where none is in memory."""
    ready, kept_for, refusers = queue.ready, queue.kept_for, queue.undeliverable.refusers
    for lane in queue.lanes:
        heap = lane.heap
        while True:
            if not lane.at_end and (not heap or heap[0] > lane.loaded_through):
                queue.ask_for_more(lane, turn.effects)
                return None  # nothing may overtake what is on its way into memory
            if not heap:
                break
            position = heappop(heap)
            if (kept_for and position in kept_for) or (refusers and position in refusers):
                continue  # it is in the heap again if its consumer, or those that refused it, leave
            entry = ready.pop(position, None)
            if entry is None:
                continue
            if entry.expires_at_ms and entry.expires_at_ms <= turn.now_ms:
                turn.expired.append(entry)
                continue
            return entry
    return None


def _hand_out_reserved(queue: QueueState, consumer: Consumer, turn: _Turn) -> None:
    """Hand out what is kept for a consumer, in order."""
    reserved, kept_for = consumer.reserved, queue.kept_for
    while turn.room_of(consumer) > 0:
        group = queue.first_owed(consumer)
        if group is not None and not (reserved and reserved[0] < group.kept[0]):
            position = queue.drop_first_owed(consumer, group)[1]
        elif reserved:
            group, position = None, heappop(reserved)[1]
            if kept_for.get(position) is not consumer:
                continue  # it has ended
        else:
            break
        del kept_for[position]
        turn.give_unless_expired(consumer, queue.ready.pop(position), in_group=group is not None)


def _hand_out_shelf(queue: QueueState, turn: _Turn) -> bool:
    """Hand out what has waited alone: see :mod:`broker_adapter.engine.queues.backoff`.

    Returns whether something of it was handed out, or has its place in the queue again.
    """
    backoff = queue.backoff
    before = len(backoff.shelf)
    # To an exclusive consumer each comes at its place, and what was refused to those that have not refused it.
    for position in list(backoff.shelf if queue.exclusive else queue.undeliverable.refusers):
        entry = backoff.take(position) if position in backoff.shelf else None
        if entry is not None:
            queue.give_back(entry, turn.effects)
    passed = 0
    while backoff.shelf and turn.left > 0 and passed < len(queue.takers):
        consumer = queue.takers[0]
        queue.takers.rotate(-1)
        has_other = consumer.failed_on and (queue.has_ready or consumer.reserved or queue.first_owed(consumer))
        if has_other or turn.room_of(consumer) <= 0:
            passed += 1
            continue
        passed = 0
        position = next(iter(backoff.shelf))
        entry = backoff.take_for_trial(position)
        if entry is not None and not entry.group:
            turn.give_unless_expired(consumer, entry)
        elif entry is not None:  # a selector had found it: now it comes with its group
            backoff.on_trial.discard(position)
            queue.give_back(entry, turn.effects)
    return len(backoff.shelf) < before


def _hand_out_refused(queue: QueueState, turn: _Turn) -> None:
    """Hand out what other consumers have refused; those with selectors find it as what came in."""
    ready, kept_for, refusers = queue.ready, queue.kept_for, queue.undeliverable.refusers
    waiting = [ready[position] for position in refusers if position in ready and position not in kept_for]
    for entry in sorted(waiting, key=lambda each: (each.lane.number, each.position)):
        for consumer in queue.takers:
            if consumer in refusers[entry.position] or not queue.is_served(consumer):
                continue
            if turn.left > 0 and turn.room_of(consumer) > 0:
                turn.give_unless_expired(consumer, ready.pop(entry.position))
                queue.takers.rotate(-1)
                break


def _hand_out_next(queue: QueueState, consumer: Consumer, room: int, turn: _Turn) -> None:
    """Hand out what comes next to a lone consumer.  Here most messages go: it calls little."""
    now_ms, effects = turn.now_ms, turn.effects
    ready, kept_for, refusers = queue.ready, queue.kept_for, queue.undeliverable.refusers
    unsettled = consumer.unsettled
    messages: list[Outgoing] = []
    room_bytes = consumer.room_bytes
    first = number = consumer.next_number
    last = first + min(room, turn.left)
    for lane in queue.lanes:
        heap = lane.heap
        while number < last:
            if not lane.at_end and (not heap or heap[0] > lane.loaded_through):
                queue.ask_for_more(lane, effects)
                last = number  # nothing may overtake what is on its way into memory
                break
            if not heap:
                break
            position = heappop(heap)
            if (kept_for and position in kept_for) or (refusers and position in refusers):
                continue  # as above
            entry = ready.pop(position, None)
            if entry is None:
                continue
            if entry.expires_at_ms and entry.expires_at_ms <= now_ms:
                turn.expired.append(entry)
                continue
            if entry.group:
                if queue.owner_of(entry, consumer, turn.least_busy) is not consumer:
                    if not queue.keep_in_group(entry):
                        last = number
                    continue
                if not consumer.presettled:
                    queue.take_in_group(entry)
            fields = (number, position, entry.delivery_count, entry.number, entry.flags, entry.key)
            messages.append(_new(Outgoing, fields))
            if consumer.presettled:
                if entry.delivery_count:
                    queue.note_ended(entry, effects)
                queue.remove(entry, effects)
            else:
                unsettled[number] = entry
                if position > lane.cursor and entry.flags & FLAG_PERSISTENT:
                    lane.cursor = position
                    queue.counters_due = True
            number += 1
            room_bytes -= entry.size
            if room_bytes <= 0:
                last = number
    consumer.room_bytes = room_bytes
    consumer.next_number = number
    consumer.credit -= number - first
    turn.left -= number - first
    if messages:
        turn.messages_of(consumer).extend(messages)


def _next_finder(queue: QueueState, turn: _Turn) -> bool:
    """Hand out what the next consumer with a selector has found; a lone one gets all it may have."""
    finders = queue.finders
    while finders:
        consumer = finders[0]
        room = turn.room_of(consumer)
        search = consumer.search
        if room > 0 and search is not None:
            alone = len(finders) == 1 and not queue.takers
            if _hand_out_found(queue, consumer, search, room if alone else 1, turn):
                finders.rotate(-1)
                return True
        # What it finds later offers it again.
        finders.popleft()
        consumer.queued = False
    return False


def _hand_out_found(queue: QueueState, consumer: Consumer, search: Search, room: int, turn: _Turn) -> int:
    """Hand out up to ``room`` messages that a selector has found, and search on where nothing is left.

    Returns how many were handed out.
    """
    effects, refusers = turn.effects, queue.undeliverable.refusers
    first = consumer.next_number
    last = first + min(room, turn.left)
    if search.shelved and not consumer.failed_on:
        _hand_out_shelved(queue, consumer, search, last, turn)
    for lane in queue.lanes:
        looking = search.lane(lane.number)
        while consumer.next_number < last and consumer.room_bytes > 0:
            if not looking.found:
                break
            entry = queue.ready.get(heappop(looking.found))
            if entry is None or (entry.group and not queue.may_find(consumer, search, entry)):
                continue
            keeper = queue.kept_for.get(entry.position)
            if isinstance(keeper, Consumer) and keeper is not consumer:
                continue  # it is shown again if that consumer leaves
            if refusers and consumer in refusers.get(entry.position, ()):
                continue
            del queue.ready[entry.position]
            queue.kept_for.pop(entry.position, None)
            queue.tidy(lane)
            if entry.flags & FLAG_PERSISTENT and not entry.flags & FLAG_HANDED:
                entry.flags |= FLAG_HANDED
                effects.durable.entries[entry.key] = entry
            turn.give_unless_expired(consumer, entry)
        else:
            break
        if not looking.complete:
            if not looking.scanning:
                looking.scanning = True
                effects.scans.append(Scan(consumer.id, queue.id, lane.number, looking.through, queue.memory.window))
            break
    else:
        if search.shelved:
            _hand_out_shelved(queue, consumer, search, last, turn)
    return consumer.next_number - first


def _hand_out_shelved(queue: QueueState, consumer: Consumer, search: Search, last: int, turn: _Turn) -> None:
    """Hand out what a selector has found on the shelf, before the delivery of this number."""
    while search.shelved and consumer.next_number < last and consumer.room_bytes > 0:
        position = search.shelved.popitem(last=False)[0]
        entry = queue.backoff.get(position)
        if entry is None or (entry.group and not queue.may_find(consumer, search, entry)):
            continue
        if queue.backoff.take_for_trial(position) is not None:
            turn.give_unless_expired(consumer, entry)


def _groups_at_work(consumer: Consumer) -> tuple[int, int]:
    return consumer.busy, len(consumer.groups)


class _Turn:
    """One dispatch: what it hands out, and to whom."""

    __slots__ = ("_least_busy", "_most", "_queue", "_waiting", "effects", "expired", "left", "now_ms", "out")

    def __init__(self, queue: QueueState, now_ms: int, effects: Effects) -> None:
        self._queue = queue
        self._most = queue.memory.most_unsettled(queue.max_unsettled)
        self._waiting = queue.backoff.holders  #: consumers that wait with a delayed message
        self._least_busy: Consumer | None = None
        self.now_ms = now_ms
        self.effects = effects
        self.left = queue.memory.cycle_handouts - effects.handouts  #: messages that may still be handed out
        self.expired: list[Entry] = []
        self.out: dict[Consumer, list[Outgoing]] = {}

    def room_of(self, consumer: Consumer) -> int:
        """Return how many messages a consumer may still get."""
        if consumer.credit <= 0 or consumer.room_bytes <= 0 or consumer in self._waiting:
            return 0
        if consumer.credit + len(consumer.unsettled) <= self._most:
            return consumer.credit
        queue = self._queue
        if self._most < queue.max_unsettled:
            queue.memory.limited[consumer] = queue
        return self._most - len(consumer.unsettled)

    def least_busy(self) -> Consumer | None:
        """Return the consumer with room that has the fewest groups at work, as of some messages ago; None: none."""
        found = self._least_busy
        if found is None or found.busy or self.room_of(found) <= 0:  # one that is idle stays the first choice
            having_room = [each for each in self._queue.takers if self.room_of(each) > 0]
            found = min(having_room, key=_groups_at_work, default=None)
            self._least_busy = found
        return found

    def messages_of(self, consumer: Consumer) -> list[Outgoing]:
        """Return what a consumer gets."""
        messages = self.out.get(consumer)
        if messages is None:
            messages = self.out[consumer] = []
        return messages

    def give_unless_expired(self, consumer: Consumer, entry: Entry, *, in_group: bool = False) -> None:
        """Hand out one message that no consumer holds, if it has not expired."""
        if entry.expires_at_ms and entry.expires_at_ms <= self.now_ms:
            self.expired.append(entry)
        elif in_group:
            self.give_in_group(consumer, entry)
        else:
            self.give(consumer, entry)

    def give_in_group(self, consumer: Consumer, entry: Entry) -> None:
        """Hand out a message to the consumer that has its group."""
        if not consumer.presettled:
            self._queue.take_in_group(entry)
        self.give(consumer, entry)

    def give(self, consumer: Consumer, entry: Entry) -> None:
        """Hand out one message that has not expired."""
        number = consumer.next_number
        consumer.next_number = number + 1
        consumer.credit -= 1
        self.left -= 1
        consumer.room_bytes -= entry.size
        self.messages_of(consumer).append(
            Outgoing(number, entry.position, entry.delivery_count, entry.number, entry.flags, entry.key)
        )
        if consumer.presettled:
            if entry.delivery_count:
                self._queue.note_ended(entry, self.effects)
            self._queue.remove(entry, self.effects)
            return
        consumer.unsettled[number] = entry
        lane = entry.lane
        if consumer.search is None and entry.position > lane.cursor and entry.flags & FLAG_PERSISTENT:
            lane.cursor = entry.position
            self._queue.counters_due = True
