"""One queue's rules: order, credit, groups, redelivery.  No I/O, clock, thread or lock.

Theory of operation
    A queue hands out its entries (:mod:`broker_adapter.engine.queues.entries`) in the order of (lane, position).  An
    entry that comes back (released, failed) is pushed onto the heap of its lane again, and so returns to its original
    position.

    A consumer without a selector that may get a message is in ``takers``; these take turns.  A consumer with a selector
    (:mod:`broker_adapter.engine.queues.search`) takes entries out of order.  It is in ``finders`` while it has found
    something or has to search on.  So a dispatch costs what it hands out, however many consumers there are.

    The messages of a *group* go to one consumer, while it holds any of them.  A message whose consumer cannot take it
    now, or that waits behind one of its group that has failed, is kept in the group.  Where another consumer has room,
    and less groups at work, the group becomes its own, but gets nothing before all that is in hand is back.  Consumers
    with different selectors have groups of their own, which move only when a consumer goes.

    The first delivery after a crash of one of the ``suspects`` to an application in the process of the engine is
    counted when it begins (``take_in_hand``), and not when it fails.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import groupby
from math import inf
from shlex import quote
from typing import Any

from broker_adapter.destination import Destination
from broker_adapter.engine.commands.effects import Candidate, Effects, StoreBatch
from broker_adapter.engine.commands.message_runs import MessageRun
from broker_adapter.engine.commands.messaging import NeverDelivered, NewMessage
from broker_adapter.engine.commands.selection import selectors_at_once
from broker_adapter.engine.queues.entries import Entry, Lane, QueueEntries, Suspect, entry_of
from broker_adapter.engine.queues.memory import QueueMemory
from broker_adapter.engine.queues.policies import QueueSettings
from broker_adapter.engine.queues.search import Search
from broker_adapter.engine.records.layout import (
    FLAG_ANNOTATED,
    FLAG_HANDED,
    FLAG_PERSISTENT,
    FLAG_SHARED,
    KIND_DELIVER,
    LATEST_EXPIRY_MS,
    CatalogRecord,
    Counters,
    RawEntry,
    delayed_flags,
    encode_annotations,
    entry_key,
    lane_of_delayed,
    schedule_line,
)
from broker_adapter.selectors.language import Selector

#: Positions that a restart skips where messages that did not survive it had used them.
POSITION_RESERVE = 65_536


class Consumer:
    """A consumer of a queue: what it may still get, and what it holds."""

    __slots__ = (
        "attached",
        "began_at",
        "busy",
        "client",
        "credit",
        "ended",
        "exclusive",
        "failed_on",
        "groups",
        "id",
        "keeps_order",
        "marks",
        "moving",
        "never_delivered",
        "next_number",
        "owing",
        "presettled",
        "queue",
        "queued",
        "reserved",
        "room_bytes",
        "search",
        "sink",
        "slice_bytes",
        "unsettled",
    )

    def __init__(
        self,
        number: int,
        client: int,
        queue: QueueState,
        sink: Any,
        presettled: bool = False,
        slice_bytes: int | None = None,
        selector: Selector | None = None,
        exclusive: bool = False,
        ended: Callable[[Any], None] | None = None,
        keep_order: bool = False,
    ) -> None:
        self.id = number
        self.client = client
        self.queue = queue
        self.sink = sink
        self.ended = ended
        self.presettled = presettled
        self.credit = 0
        self.slice_bytes = inf if slice_bytes is None else slice_bytes
        self.room_bytes = self.slice_bytes  #: what is left of the slice; below 0 by a part of the last message
        self.next_number = 1
        self.began_at = queue.next_position  #: the position of the first message that came when it was there
        self.unsettled: dict[int, Entry] = {}  #: by number, in the order in which they were handed out
        self.marks: deque[tuple[int, int]] = deque()  #: time → ``next_number`` then; see ``holds_too_long``
        self.attached = True
        self.exclusive = exclusive
        self.keeps_order = keep_order or exclusive  #: whether it waits for what it has failed on
        self.failed_on: tuple[int, ...] = ()  #: positions: the first few different ones since it processed a message
        self.search = None if selector is None else Search(selector)
        self.queued = False  #: whether it is among the queue's ``takers`` or ``finders``
        self.reserved: list[tuple[int, int]] = []  #: a heap of (lane, position): what it has failed on
        self.groups: set[int] = set()  #: with a selector, those among the consumers with the same one
        self.busy = 0  #: how many of its groups have messages in hand
        #: A heap of (place of the first message that is kept, group); those that are not so any more are skipped.
        self.owing: list[tuple[tuple[int, int], int]] = []
        self.moving: dict[Group, None] = {}  #: those of which it holds the last messages, and that are others' by now
        self.never_delivered: NeverDelivered = ()  #: of one that goes: numbers of deliveries

    def holds_too_long(self, now_ms: int, limit_ms: int) -> bool:
        """Return whether it has held a delivery for so long; to be asked now and then, by the clock that is never set.

        It is late by an eighth of the limit, and by the time between two questions.
        """
        marks = self.marks
        if not self.unsettled:
            marks.clear()
            return False
        if not marks or now_ms - marks[-1][0] >= limit_ms // 8:
            marks.append((now_ms, self.next_number))
        while len(marks) > 1 and now_ms - marks[1][0] >= limit_ms:
            marks.popleft()
        marked_ms, next_number = marks[0]
        return now_ms - marked_ms >= limit_ms and next(iter(self.unsettled)) < next_number

    def has_not_seen(self, number: int) -> bool:
        """Return whether a delivery did not reach the application before the consumer went."""
        return any(number in part for part in self.never_delivered)

    @property
    def is_waiting(self) -> bool:
        """Whether messages for it may be on their way into memory."""
        queue, search = self.queue, self.search
        is_shown = search is not None and (search.is_scanning or queue.pending_candidates > 0)
        return queue.is_loading or is_shown or bool(queue.returning)

    def __repr__(self) -> str:
        state = "" if self.attached else ", DETACHED"
        return (
            f"<Consumer {self.id} of {self.queue.label}, credit {self.credit}, unsettled {len(self.unsettled)}{state}>"
        )


class Group:
    """A message group of a queue: whose it is, and what is kept of it."""

    __slots__ = ("holder", "in_hand", "kept", "number", "owner")

    def __init__(self, number: int, owner: Consumer) -> None:
        self.number = number
        self.owner = owner
        self.holder: Consumer | None = None  #: who had it before, and is still to settle what is in hand
        self.in_hand: set[int] = set()  #: positions
        self.kept: list[tuple[int, int]] = []  #: a heap of (lane, position)


def in_group(entry: Entry, consumer: Consumer | None) -> bool:
    """Return whether a message that a consumer has had is of a message group of the queue; a selector has its own."""
    return entry.group > 0 and consumer is not None and consumer.search is None


def is_for_other(owner: Consumer, other: Consumer) -> bool:
    """Return whether a group of one consumer is to become another one's, which has room.

    That has less groups at work by at least two; or, where there is hardly anything to do, less groups at all.
    """
    if owner.busy > 1:
        return other.busy + 1 < owner.busy
    return not other.busy and len(other.groups) + 1 < len(owner.groups)


class Browser:
    """A browser: it reads a snapshot of a queue, in the order of delivery, and takes nothing."""

    __slots__ = (
        "client",
        "credit",
        "drains",
        "id",
        "next_number",
        "place",
        "queue",
        "room_bytes",
        "selector",
        "sink",
        "slice_bytes",
        "through",
    )

    def __init__(
        self,
        number: int,
        client: int,
        queue: QueueState,
        sink: Any,
        slice_bytes: int | None,
        selector: Selector | None = None,
    ) -> None:
        self.id = number
        self.client = client
        self.queue = queue
        self.sink = sink
        self.selector = selector
        self.credit = 0
        self.slice_bytes = inf if slice_bytes is None else slice_bytes
        self.room_bytes = self.slice_bytes  #: as a consumer's
        self.next_number = 1
        self.place = (0, 0)  #: lane and position of the last message seen
        self.through = queue.next_position - 1  #: the last position of the snapshot
        self.drains: list[Any] = []  #: replies that wait for the end


class QueueState(QueueEntries):
    """A queue, or the queue behind a subscription: its consumers, and what they get."""

    __slots__ = (
        "claim_used_ms",
        "consumers",
        "destination",
        "dropped",
        "exclusive",
        "finders",
        "found_groups",
        "groups",
        "label",
        "leaving",
        "left_ms",
        "max_unsettled",
        "owed",
        "owner",
        "pending_candidates",
        "record",
        "returning",
        "searching",
        "selector",
        "settings",
        "takers",
        "used_ms",
        "wait_queue",
    )

    def __init__(
        self,
        number: int,
        destination: Destination,
        record: CatalogRecord,
        *,
        durable: bool,
        memory: Memory,
        settings: QueueSettings,
        max_unsettled: int,
        counters: Counters | None = None,
        lanes: Iterable[int] = (),
        owner: int | None = None,
    ) -> None:
        """A queue, new or as the store has it.

        Args:
            number: names it in the stores.
            destination: whose messages it holds.
            record: what it is.
            durable: whether its persistent messages survive a restart.
            memory: shared with the engine's other queues.
            settings: its own, which policies give.
            max_unsettled: deliveries that a consumer may hold.
            counters: what the store says of its entries.
            lanes: those that the store has entries of, whatever the counters say.
            owner: the client of a temporary queue.
        """
        super().__init__(number, durable=durable, memory=memory, counters=counters, lanes=lanes)
        self.destination = destination
        self.label = record.name
        self.record = record
        self.settings = settings
        self.max_unsettled = max_unsettled
        self.owner = owner
        self.consumers: dict[Consumer, None] = {}  #: those attached, in the order in which they came
        self.leaving: dict[Consumer, None] = {}  #: those detached that hold deliveries
        self.takers: deque[Consumer] = deque()
        self.finders: deque[Consumer] = deque()
        self.owed: dict[Consumer, None] = {}  #: those that may get what is kept for them
        self.exclusive: list[Consumer] = []  #: in the order in which they came; the first one gets everything
        self.searching: dict[Consumer, None] = {}  #: those with a selector
        self.selector: Selector | None = None  #: of a subscription: what it wants of its topic
        self.groups: dict[int, Group] = {}  #: those of the consumers without a selector
        self.found_groups: dict[tuple[str, int], Consumer] = {}  #: (selector, group) → whose messages these are
        self.returning: set[int] = set()  #: clients that are leaving, of which not all that they hold is back
        self.pending_candidates = 0  #: messages that searching consumers are still to be asked about
        self.wait_queue: deque[Any] = deque()
        self.dropped = 0  #: messages that were dropped since the start, when it was full and not read
        self.used_ms = 0  #: when something happened to it last, by the clock that is never set
        self.left_ms = 0  #: when it had a consumer, or a reader of ranges, last; by the same clock
        self.claim_used_ms: int | None = None  #: when a request had its claim last, in this run; by the same clock

    def __repr__(self) -> str:
        return f"<QueueState {self.label!r}, {self.depth} messages, {len(self.consumers)} consumers>"

    def called(self) -> tuple[str, str]:
        """Return what it is called in errors, and the command that purges it."""
        record = self.record
        if record.kind != "subscription" or not record.name:
            return f"queue {self.label!r}", f"holdfast purge {quote(self.label)}"
        client_id = record.client_id
        whose, option = (
            ("", "") if client_id is None else (f" of client id {client_id!r}", f" --client-id {quote(client_id)}")
        )
        return (
            f"subscription {record.name!r}{whose} on topic {self.destination.name!r}",
            f"holdfast purge --topic {quote(self.destination.name)} --subscription {quote(record.name)}{option}",
        )

    def note_use(self, elapsed_ms: int) -> None:
        """The queue or subscription is in use now, also without a consumer: it is not idle."""
        self.used_ms = self.left_ms = elapsed_ms

    def left_since(self, elapsed_ms: int) -> int:
        """Return since when it has had no consumer or reader of ranges, by the clock that is never set.

        The time before a restart does not count: clients that used it need time to come back.
        """
        self.left_ms = self.left_ms or elapsed_ms
        return self.left_ms

    # Messages come in.

    def append(
        self,
        number: int,
        message: NewMessage,
        shared: bool,
        now_ms: int,
        effects: Effects,
        annotations: dict[str, Any] | None = None,
        flags: int = 0,
    ) -> Entry:
        """Take a new message at the end of its lane, or among those that are not due yet; return its entry.

        Args:
            number: of the message.
            message: the message.
            shared: whether other queues of the same store have it as well.
            now_ms: the time of the day.
            effects: of the decision.
            annotations: properties that the engine adds; None: none.
            flags: of the entry, beside those that follow from the message.
        """
        position = self.next_position
        self.next_position = position + 1
        size = len(message.payload)
        if shared:
            flags |= FLAG_SHARED
        if self.durable and message.persistent:
            flags |= FLAG_PERSISTENT
            batch = effects.durable
        else:
            batch = effects.volatile
            if self.durable and position >= self.reserved:
                self.reserved = position + POSITION_RESERVE
                self.counters_due = True
        lane_number = 9 - message.priority
        lane = self._by_number.get(lane_number) or self._add_lane(Lane(lane_number))
        due_ms = message.deliver_at_ms
        if due_ms is not None and due_ms > now_ms:
            flags = delayed_flags(flags, lane_number)
            lane = self.delayed
        key = entry_key(self.id, lane.number, position)
        if annotations is not None:
            flags |= FLAG_ANNOTATED
            batch.put("annotations", key, encode_annotations(key, annotations))
        expires_at_ms = message.expires_at_ms
        expires_at_ms = 0 if expires_at_ms is None else min(expires_at_ms, LATEST_EXPIRY_MS)
        if self.settings.time_to_live is not None:
            expires_at_ms = self.expiry(expires_at_ms, max(now_ms, due_ms or 0))
        entry = Entry(key, lane, position, number, 0, flags, expires_at_ms, size, message.group)
        self._add(entry, batch)
        if lane is self.delayed:
            batch.put("schedule", *schedule_line(due_ms or 0, KIND_DELIVER, key))
        elif self.searching:
            self._arrived(entry, effects)
        return entry

    def takes_runs(self, *, persistent: bool) -> bool:
        """Return whether several new messages can be taken in one step."""
        return (
            not self.searching and (persistent or not self.durable) and self.settings.time_to_live is None
        )  # else each has a line of the schedule

    def expiry(self, expires_at_ms: int, from_ms: int) -> int:
        """Return when a message expires here that is available from then on.

        Args:
            expires_at_ms: as the message says; 0: never.
            from_ms: when that is.
        """
        seconds = self.settings.time_to_live
        if seconds is None:
            return expires_at_ms
        latest_ms = min(from_ms + round(seconds * 1000), LATEST_EXPIRY_MS)
        return min(expires_at_ms or latest_ms, latest_ms)

    def append_run(self, number: int, run: MessageRun, shared: bool, batch: StoreBatch) -> None:
        """Take new messages at the end of their lane; see ``takes_runs``.

        Args:
            number: of the first one; those of the others follow it.
            run: the messages.
            shared: whether other queues of the same store have them as well.
            batch: of the decision, for the store of theirs.
        """
        lane_number = 9 - run.priority
        lane = self._lane_for(lane_number)
        position = self.next_position
        self.next_position = position + len(run.messages)
        flags = FLAG_PERSISTENT if run.persistent and self.durable else 0
        if shared:
            flags |= FLAG_SHARED
        queue = self.id
        self._add_all(
            lane,
            [
                Entry(
                    entry_key(queue, lane_number, place), lane, place, message_number, 0, flags, 0, size, message.group
                )
                for place, message_number, size, message in zip(
                    range(position, self.next_position),
                    range(number, number + len(run.messages)),
                    run.sizes,
                    run.messages,
                    strict=True,
                )
            ],
            batch,
        )

    def adopt(
        self, entry: Entry, lane: Lane, flags: int, expires_at_ms: int, delivery_count: int, effects: Effects
    ) -> Entry:
        """Take over a message that another place gave up (``remove`` with ``keep_message``), at a new position."""
        position = self.next_position
        self.next_position = position + 1
        lane = self._lane_for(lane.number)
        key = entry_key(self.id, lane.number, position)
        flags &= ~FLAG_HANDED
        moved = Entry(key, lane, position, entry.number, delivery_count, flags, expires_at_ms, entry.size, entry.group)
        self._add(moved, effects.durable if flags & FLAG_PERSISTENT else effects.volatile)
        if self.searching:
            self._arrived(moved, effects)
        return moved

    def adopt_run(self, run: Iterable[RawEntry], effects: Effects) -> None:
        """Take over messages that another queue gave up (``remove_run`` with ``keep_messages``), in their order."""
        for is_ready, part in groupby(run, key=self._is_for_memory):
            if not is_ready:
                self.add_behind(part, effects)
                continue
            for raw in part:
                lane = self._lane_for(raw.lane)
                entry = entry_of(raw, lane, raw.delivery_count)
                self.adopt(entry, lane, raw.flags, raw.expires_at_ms, raw.delivery_count, effects)

    def _is_for_memory(self, raw: RawEntry) -> bool:
        """Return whether a new message is of use in memory, or has to be offered to consumers one by one."""
        if self.searching or not self.durable:
            return True
        return len(self.ready) < self.memory.window and self._lane_for(raw.lane).at_end

    def _arrived(self, entry: Entry, effects: Effects) -> None:
        """A message came in or came back: it is a candidate for the consumers that search."""
        if entry.position in self.ready:
            self.pending_candidates += 1
            effects.candidates.append(Candidate(self, entry))
            return
        for consumer in self.searching:
            if consumer.search is not None:
                consumer.search.lane(entry.lane.number).put_off()
                self.offer(consumer)

    # Consumers come and go.

    def add_consumer(self, consumer: Consumer) -> None:
        """Let a consumer take part."""
        self.consumers[consumer] = None
        self.undeliverable.since_ms.clear()
        if consumer.exclusive:
            self.exclusive.append(consumer)
        if consumer.search is not None:
            self.searching[consumer] = None

    def is_served(self, consumer: Consumer) -> bool:
        """Return whether a consumer may get something: an exclusive one that came first shuts out all others."""
        return not self.exclusive or self.exclusive[0] is consumer

    def may_have(self, consumer: Consumer, entry: Entry) -> bool:
        """Return whether a message that is ready may come to a consumer, which may be busy; a selector is not asked."""
        if consumer.search is None or not self.is_served(consumer):
            return self.is_served(consumer)
        looking = consumer.search.lane(entry.lane.number)
        is_asked = looking.has_passed(entry.position) and not self.pending_candidates
        return not is_asked or entry.position in looking.found

    def offer(self, consumer: Consumer) -> None:
        """Let a consumer have its turn, if it has credit: it may get something now."""
        if consumer.reserved or consumer.owing:
            self.owed[consumer] = None
        if not consumer.queued and consumer.credit > 0:
            consumer.queued = True
            (self.takers if consumer.search is None else self.finders).append(consumer)

    def remove_consumer(self, consumer: Consumer, effects: Effects) -> None:
        """Remove a consumer; what was kept for it is for others."""
        del self.consumers[consumer]
        self.memory.limited.pop(consumer, None)
        if consumer.exclusive:
            self.exclusive.remove(consumer)
        selector = consumer.search.selector.text if consumer.search is not None else None
        if consumer.search is not None:
            consumer.search = None
            del self.searching[consumer]
        self._let_go_of_kept(consumer, selector, effects)
        for position in self.undeliverable.consumer_gone(consumer):
            if position in self.ready:
                heappush(self.ready[position].lane.heap, position)
        if selector is not None and not self.searching:
            self._drop_early(effects)
        if not self.consumers:
            self.takers.clear()
            self.finders.clear()
            self.owed.clear()
        if consumer.unsettled:
            self.leaving[consumer] = None

    def serve_only(self, exclusive: Consumer, effects: Effects) -> None:
        """A first exclusive consumer has come: what was kept for the others is for it, and so are their groups."""
        for consumer in self.consumers:
            if consumer is not exclusive:
                self._let_go_of_kept(consumer, consumer.search.selector.text if consumer.search else None, effects)
                for entry in self.backoff.take_of(consumer):
                    self.give_back(entry, effects)

    def _let_go_of_kept(self, consumer: Consumer, selector: str | None, effects: Effects) -> None:
        """Give what was kept for a consumer, and its groups, to the others."""
        reserved, consumer.reserved = consumer.reserved, []
        groups, consumer.groups = consumer.groups, set()
        consumer.owing.clear()
        self._give_turns(consumer, reserved, effects)
        for group in list(consumer.moving):
            group.in_hand.clear()
            self._nothing_in_hand(group)
        for number in groups:
            if selector is not None:
                del self.found_groups[selector, number]
                continue
            group = self.groups[number]
            holder = group.holder
            if holder is None:
                del self.groups[number]
                self._give_turns(group, group.kept, effects)
                continue
            # It stays with the one that has messages of it in hand.
            del holder.moving[group]
            group.owner, group.holder = holder, None
            holder.groups.add(number)
            holder.busy += 1
            self._owe(group)
        consumer.busy = 0
        if groups and selector is not None:
            for other in self.searching:
                if other.search is not None and other.search.selector.text == selector:
                    other.search.restart()  # it passed over what was in these groups
                    self.offer(other)

    def keeps_order(self, consumer: Consumer) -> bool:
        """Return whether a consumer, if it has failed on a message, waits for it."""
        return consumer.keeps_order or self.settings.keep_order

    def give_to_others(self, consumer: Consumer, effects: Effects) -> None:
        """Give what a consumer has failed on, which was kept for it, to any that has room."""
        reserved, consumer.reserved = consumer.reserved, []
        self._give_turns(consumer, reserved, effects)

    def _give_turns(self, keeper: Consumer | Group, places: Sequence[tuple[int, int]], effects: Effects) -> None:
        """Have what is kept for a consumer or group, at these (lane, position), be for any consumer."""
        for lane_number, position in places:
            if self.kept_for.get(position) is keeper:
                del self.kept_for[position]
                self._give_turn(lane_number, position)
                if self.searching:  # it was a candidate for no other consumer
                    self._arrived(self.ready[position], effects)

    def drop_window(self) -> None:
        """Keep nothing in memory that is ready: there is no consumer.  A later load brings it again."""
        for entry in self.ready.values():
            self._put_behind(entry)
        self.ready.clear()
        for lane in self.lanes:
            lane.heap.clear()
            if not lane.at_end:
                lane.loaded_through = 0
                lane.early.clear()
        stay = [*self._in_hands(), *self.backoff.entries()]
        for entry in stay:
            if not entry.lane.at_end:
                entry.lane.early.add(entry.position)
        if self.suspects:
            positions = {entry.position for entry in stay}
            self.suspects = {each: suspect for each, suspect in self.suspects.items() if each in positions}

    def _in_hands(self) -> Iterator[Entry]:
        for consumer in (*self.consumers, *self.leaving):
            yield from consumer.unsettled.values()

    # Message groups.

    def may_find(self, consumer: Consumer, search: Search, entry: Entry) -> bool:
        """Return whether the group of a message is this consumer's, which has a selector; a new one becomes its own."""
        owner = self.found_groups.setdefault((search.selector.text, entry.group), consumer)
        if owner is consumer:
            consumer.groups.add(entry.group)
        return owner is consumer

    def owner_of(self, entry: Entry, consumer: Consumer, least_busy: Callable[[], Consumer | None]) -> Consumer | None:
        """Return whose the group of a message is, where that may have it now; a new one becomes this consumer's.

        Args:
            entry: of the message.
            consumer: whose turn it is.
            least_busy: returns who has room and the fewest groups at work; None: nobody has room.
        """
        number = entry.group
        group = self.groups.get(number)
        if group is None:
            group = self.groups[number] = Group(number, consumer)
            consumer.groups.add(number)
        elif group.holder is not None or number in self.backoff.holders:
            return None
        elif len(group.owner.groups) > 1 and not self.exclusive and is_for_other(group.owner, consumer):
            other = least_busy()  # it asks all of them: only where one whose turn it is has less to do
            if other is not None and is_for_other(group.owner, other):
                self.move(group, other)
        return None if group.kept or group.holder is not None or number in self.backoff.holders else group.owner

    def move(self, group: Group, other: Consumer) -> None:
        """Give a group to another consumer, which waits for what the first one has in hand."""
        owner = group.owner
        owner.groups.discard(group.number)
        other.groups.add(group.number)
        group.owner = other
        if group.in_hand:
            owner.busy -= 1
            other.busy += 1
            group.holder = owner
            owner.moving[group] = None
        else:
            self._owe(group)

    def take_in_group(self, entry: Entry) -> None:
        """A message of a group is handed out to its consumer."""
        group = self.groups[entry.group]
        if not group.in_hand:
            group.owner.busy += 1
        group.in_hand.add(entry.position)

    def leave_hand(self, entry: Entry) -> None:
        """A message of a group is in no consumer's hand any more."""
        group = self.groups.get(entry.group)
        if group is not None and entry.position in group.in_hand:
            group.in_hand.remove(entry.position)
            if not group.in_hand:
                self._nothing_in_hand(group)

    def _nothing_in_hand(self, group: Group) -> None:
        group.owner.busy -= 1
        if group.holder is not None:
            group.holder.moving.pop(group, None)
            group.holder = None
            self._owe(group)

    def keep_in_group(self, entry: Entry) -> bool:
        """Keep a message until its group may have it; returns False where as many are kept as may be."""
        self.ready[entry.position] = entry
        if len(self.kept_for) >= self.memory.window:
            heappush(entry.lane.heap, entry.position)
            return False
        self._keep_in(self.groups[entry.group], entry)
        return True

    def _keep_in(self, group: Group, entry: Entry) -> None:
        self.kept_for[entry.position] = group
        place = entry.lane.number, entry.position
        heappush(group.kept, place)
        if len(group.kept) > 2 * len(self.kept_for) + 64:  # most have ended meanwhile
            group.kept = sorted(each for each in group.kept if self.kept_for.get(each[1]) is group)
            self._owe(group)
        elif group.kept[0] == place:
            self._owe(group)

    def _owe(self, group: Group) -> None:
        """A consumer may get what a group keeps for it: the first message is another one, or need not wait any more."""
        if group.kept:
            heappush(group.owner.owing, (group.kept[0], group.number))
            self.offer(group.owner)

    def groups_owed(self, consumer: Consumer) -> Iterator[Group]:
        """Yield the groups of a consumer that keep messages which it may have now; some of these may have ended."""
        for place, number in consumer.owing:
            group = self.groups.get(number)
            if group is not None and self._is_owed(consumer, group, place):
                yield group

    def _is_owed(self, consumer: Consumer, group: Group, place: tuple[int, int]) -> bool:
        may_go_on = group.owner is consumer and group.holder is None and group.number not in self.backoff.holders
        return may_go_on and group.kept[:1] == [place]

    def first_owed(self, consumer: Consumer) -> Group | None:
        """Return which of a consumer's groups keeps the first of the messages that it may have now."""
        while consumer.owing:
            place, number = consumer.owing[0]
            group = self.groups.get(number)
            if group is None or not self._is_owed(consumer, group, place):
                heappop(consumer.owing)
            elif self.kept_for.get(place[1]) is group:
                return group
            else:
                self.drop_first_owed(consumer, group)  # it has ended
        return None

    @staticmethod
    def drop_first_owed(consumer: Consumer, group: Group) -> tuple[int, int]:
        """Take the place of the first message out of the group that ``first_owed`` returns."""
        place = heappop(group.kept)
        if group.kept:
            heapreplace(consumer.owing, (group.kept[0], group.number))
        else:
            heappop(consumer.owing)
        return place

    def end_wait(self, holder: Consumer | int) -> None:
        """A consumer or group need not wait any more."""
        if isinstance(holder, int):
            group = self.groups.get(holder)
            if group is not None:
                self._owe(group)
        elif holder.attached:
            self.offer(holder)

    @property
    def has_ready(self) -> bool:
        """Whether there is a message that is neither in hand nor kept for somebody, and that nobody has refused."""
        ready, kept_for = self.ready, self.kept_for
        refused = sum(each in ready and each not in kept_for for each in self.undeliverable.refusers)
        return len(ready) > len(kept_for) + refused

    # Selectors.

    def match_candidate(
        self, candidate: Candidate, wants: Callable[[Selector], bool], is_late: Callable[[], bool]
    ) -> bool:
        """Match a message that came in or came back with the searching consumers, if it is still there.

        Args:
            candidate: the message, and the last consumer that was asked.
            wants: asks a selector.
            is_late: asked now and then; once it returns True, the others are left for another call.

        Returns:
            Whether all were asked.
        """
        entry = candidate.entry
        if entry.position not in self.ready and entry.position not in self.backoff.shelf:
            return True
        window = self.memory.window
        lane = entry.lane.number
        answers: dict[str, bool] = {}  # many consumers may have the same selector
        at_once = selectors_at_once(entry.size)
        consumers: Iterable[Consumer] = self.searching
        if candidate.through:
            consumers = [each for each in consumers if each.id > candidate.through]
        for consumer in consumers:
            search = consumer.search
            if search is None:
                continue
            if not search.lane(lane).look(entry.position, window):
                self.offer(consumer)  # a scan will come to it
                continue
            text = search.selector.text
            wanted = answers.get(text)
            if wanted is None:
                if len(answers) % at_once == 0 and is_late():
                    return False
                wanted = answers[text] = wants(search.selector)
            if wanted:
                self._found(search, lane, entry.position)
                self.offer(consumer)
            candidate.through = consumer.id
        return True

    def scanned(
        self, consumer: Consumer, lane_number: int, through: int, found: Iterable[RawEntry], complete: bool
    ) -> None:
        """What a scan has found.

        Args:
            consumer: whose, attached.
            lane_number: of the scan.
            through: the last position that was examined.
            found: what the selector wants of it.
            complete: whether there is nothing behind it.
        """
        search = consumer.search
        assert search is not None
        looking = search.lane(lane_number)
        looking.scanned(through, complete)
        lane = self._lane(lane_number)
        for raw in found:
            if raw.position > lane.loaded_through and raw.position not in lane.early:
                self._bring_in(raw, lane)
                lane.early.add(raw.position)
            self._found(search, lane_number, raw.position)
        self.offer(consumer)

    def _found(self, search: Search, lane: int, position: int) -> None:
        """Note what a selector has found, if it is there for a consumer."""
        if position in self.ready:
            search.add(lane, position)
        elif position in self.backoff.shelf:
            if len(search.shelved) > 2 * len(self.backoff.shelf) + 64:  # most are gone
                search.shelved = OrderedDict((each, None) for each in search.shelved if each in self.backoff.shelf)
            search.shelved[position] = None

    def show_on_shelf(self, entry: Entry, effects: Effects) -> None:
        """What waited alone is on the shelf now: it is a candidate for the consumers that search."""
        if self.searching:
            self.pending_candidates += 1
            effects.candidates.append(Candidate(self, entry))

    def in_memory(self, lane: int, position: int) -> Entry | None:
        """The entry at a position, where it waits in memory or a consumer holds it."""
        entry = self.ready.get(position) or self.backoff.get(position)
        if entry is None:
            entry = next((each for each in self._in_hands() if each.position == position), None)
        return entry if entry is not None and entry.lane.number == lane else None

    # Messages come back, or end.

    def give_back(self, entry: Entry, effects: Effects) -> None:
        """Make a message available again, at its original position."""
        if entry.position in self.backoff.on_trial:
            self.backoff.put_back(entry)
            self.show_on_shelf(entry, effects)
            return
        self.ready[entry.position] = entry
        group = self.groups.get(entry.group) if entry.group else None
        if group is not None and group.kept and entry.position not in self.undeliverable.refusers:
            self._keep_in(group, entry)  # ahead of what is kept already
        else:
            self._give_turn(entry.lane.number, entry.position)
        if self.searching:
            self._arrived(entry, effects)

    def _give_turn(self, lane_number: int, position: int) -> None:
        """Let a message that is ready have its turn in its lane; one that was refused has none."""
        if position not in self.undeliverable.refusers:
            heappush(self._by_number[lane_number].heap, position)

    def release(self, entry: Entry, effects: Effects) -> None:
        """Make a message available again that no application has seen."""
        if entry.flags & FLAG_HANDED and not entry.delivery_count:
            entry.flags &= ~FLAG_HANDED
            effects.durable.entries[entry.key] = entry
        self.give_back(entry, effects)

    def give_back_to(self, entry: Entry, consumer: Consumer | None, effects: Effects) -> None:
        """Keep a message for the consumer that failed to process it: it comes next.

        It is for all consumers where that one has gone (None), where an exclusive one gets everything, in order, or
        where as many are kept as may be; and what is of a group is for its group.
        """
        is_full = len(self.kept_for) >= self.memory.window
        if consumer is None or in_group(entry, consumer) or is_full or self.exclusive:
            self.give_back(entry, effects)
            return
        self.ready[entry.position] = entry
        self.kept_for[entry.position] = consumer
        heappush(consumer.reserved, (entry.lane.number, entry.position))
        self.offer(consumer)

    def take_in_hand(self, entry: Entry, effects: Effects) -> bool:
        """Count the delivery of what may have ended the process, before the application sees it.

        Returns:
            False where as many have failed as may: it is to be set aside instead.
        """
        suspect = self.suspects.get(entry.position)
        most = self.settings.max_deliveries
        if suspect is Suspect.COUNTED:
            if most is not None and entry.delivery_count >= most:
                return False
            self.suspects[entry.position] = Suspect.IN_HAND
        elif suspect is Suspect.UNCOUNTED:
            self.suspects[entry.position] = Suspect.FIRST_IN_HAND
        else:
            return True
        self.count(entry, 1, effects)
        return True

    def out_of_hand(self, entry: Entry, *, seen: bool) -> bool:
        """A delivery has ended, and not in an acceptance; returns whether it was counted when it began."""
        suspect = self.suspects.get(entry.position)
        if suspect is None or suspect is Suspect.UNCOUNTED or suspect is Suspect.COUNTED:
            return False
        first = suspect is Suspect.FIRST_IN_HAND and not seen
        self.suspects[entry.position] = Suspect.UNCOUNTED if first else Suspect.COUNTED
        return True

    def all_in_memory(self, positions: Iterable[int]) -> dict[int, Entry]:
        """The entries at these positions that are in memory, by position: they wait, or a consumer holds them."""
        found: dict[int, Entry] = {}
        others: set[int] = set()
        for position in positions:
            entry = self.ready.get(position) or self.backoff.get(position)
            if entry is None:
                others.add(position)
            else:
                found[position] = entry
        if others:
            found |= {entry.position: entry for entry in self._in_hands() if entry.position in others}
        return found

    def now_due(self, entry: Entry, effects: Effects) -> Entry:
        """Give a delayed message its place at the end of its lane."""
        self.remove(entry, effects, keep_message=True)
        lane = Lane(lane_of_delayed(entry.flags))
        return self.adopt(entry, lane, entry.flags & 0xFF, entry.expires_at_ms, entry.delivery_count, effects)

    def held(self) -> dict[int, Entry]:
        """Return what consumers hold, by position."""
        return {entry.position: entry for entry in self._in_hands()}

    # What is kept beside the entries.

    @property
    def in_hand(self) -> int:
        """Messages that consumers hold."""
        return sum([len(consumer.unsettled) for consumer in (*self.consumers, *self.leaving)])


#: What the queues of one engine may keep in memory.
Memory = QueueMemory[Consumer, QueueState]
