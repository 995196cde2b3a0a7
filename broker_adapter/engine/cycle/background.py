"""What the engine does without a command: what falls due, checks at intervals, and background jobs.

Each cycle carries out what is due and one part of one job (:mod:`background_jobs`) ahead of the commands that were
handed over.  The checks at intervals drop staged transactions that expired, delete idle queues, and sweep
the names in the store that were not used for long.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, Protocol

from broker_adapter.engine.check.schedule_lines import delivery_ms, in_words, right_line
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.identities import LastNumbers
from broker_adapter.engine.cycle.background_jobs import BackgroundJobs
from broker_adapter.engine.cycle.entry_reads import EntryReads
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.limits import excess
from broker_adapter.engine.records.layout import KIND_DAMAGED, LAST_POSITION, RawEntry, due_of, entry_of_line
from broker_adapter.engine.rules.admission import Admission
from broker_adapter.engine.rules.event_state import EventState
from broker_adapter.engine.rules.matching import Matching
from broker_adapter.engine.rules.staged_batches import StagedBatches
from broker_adapter.engine.store.port import DurableStore
from broker_adapter.engine.store.stores import Stores
from broker_adapter.errors import JMSException, ResourceAllocationException
from broker_adapter.settings import EngineSettings
from broker_adapter.wording import in_seconds

_log = logging.getLogger(f"holdfast.{__name__}")

#: Entries that fall due, are trimmed or moved, and names that are checked, in one cycle.
CHUNK_ENTRIES: Final = 5_000
#: How often a part of the names that were not used for long is removed.
_SWEEP_MS: Final = 60_000
#: How often the age of the store is noted in it, while there are new names, whose age goes by it, or durable clients
#: that are away for a limited time: a crash forgets as much of that time.
_NOTE_AGE_MS: Final = 10_000
#: How often a part of the queues is checked for idle ones.
_IDLE_CHECK_MS: Final = 1000
#: How often consumers are asked whether they hold messages for too long.
_HOLDERS_CHECK_MS: Final = 1000
#: Durable clients that are behind for which events are read in one cycle.
READERS: Final = 8
#: How often events that no client needs any more are removed, and of how many streams in one cycle.
TRIM_PAUSE_MS: Final = 100
TRIMMED_STREAMS: Final = 20
#: Damaged lines of the schedule that are named in the log, each with a line of its own, where many are found together.
_NAMED: Final = 20


class BackgroundState(Protocol):
    """What is read of the rules: :class:`~broker_adapter.engine.broker_state.BrokerState` has it."""

    admission: Admission
    directory: Directory
    events: EventState
    matching: Matching
    staged_batches: StagedBatches
    commits: LastNumbers
    published: LastNumbers
    time: DecisionTime


class Background:
    """What is due in the stores, the checks at intervals, and the jobs.

    Args:
        settings: the limits of the engine.
        stores: of the engine.
        rules: of the engine.
        reads: of its entries.
        by_itself: whether what is due happens, and the checks; else only the jobs are carried out.

    Attributes:
        jobs: those that are not done yet.
    """

    def __init__(
        self, settings: EngineSettings, stores: Stores, rules: BackgroundState, reads: EntryReads, *, by_itself: bool
    ) -> None:
        self.jobs = BackgroundJobs()
        self._settings = settings
        self._stores = stores
        self._rules = rules
        self._directory = rules.directory
        self._events = rules.events
        self._time = rules.time
        self._trim_ms: int | None = None  #: when events that no client needs are removed
        self._dropping: set[int] = set()  #: queues that have a job for their oldest messages which has not begun
        self._reads = reads
        self._by_itself = by_itself
        # What follows is by the monotonic clock.
        self._staged_pause_ms = max(1000, int(settings.staged_timeout_seconds * 1000) // 4)
        self._staged_check_ms = 0
        self._sweep_ms = 0
        self._note_age_ms = 0
        self._idle_check_ms = 0
        self._holders_check_ms = 0
        self._swept: dict[str, bytes] = {}  #: by table: how far the sweep has come

    @property
    def _deletes_idle(self) -> bool:
        is_option = self._settings.delete_idle_subscriptions_seconds is not None
        return is_option or self._directory.policies.deletes_idle

    def keep_staged(self, elapsed_ms: int) -> None:
        """After a start: clients that stage need time to reconnect, however long the engine was down."""
        self._staged_check_ms = elapsed_ms + self._staged_pause_ms

    def trim(self, queue: int) -> None:
        """Add a job: the trimming of a queue that was deleted."""
        self.jobs.trim(self._trim_and_drop(queue))

    def drop_oldest(self, queue: int) -> None:
        """Add a job, unless one is to begin: the dropping of the oldest messages of a queue that has too many."""
        if queue not in self._dropping:
            self._dropping.add(queue)
            self.jobs.trim_first(self._drop_oldest(queue))

    def move(self, queue: int) -> None:
        """Add a job: the moving of a published transaction into its queues."""
        self.jobs.move(self._move_and_drop(queue))

    def next_check_ms(self) -> int | None:
        """Return when the stores, or a check whose result a client may wait for, are due; None: nothing is."""
        if not self._by_itself:
            return None
        due: list[int | None] = []
        if self._stores.due_ms is not None:
            due.append(self._stores.due_ms - self._time.now_ms + self._time.elapsed_ms)
        if self._directory.staged:
            due.append(self._staged_check_ms)
        if self._deletes_idle:
            due.append(self._idle_check_ms)
        if self._directory.policies.has_consumer_timeouts and self._directory.consumers:
            due.append(self._holders_check_ms)
        if self._events.events is not None or self._events.clients.clients:
            due.append(self.next_event_check_ms())
        return min((each for each in due if each is not None), default=None) if due else None

    def add_due(self, now_ms: int, elapsed_ms: int, commands: list[c.Command]) -> None:
        """Add the commands for what is due now, and for the next part of a job."""
        if self._by_itself:
            self._add_checks(now_ms, elapsed_ms, commands)
        if self.jobs.moves or self.jobs.trims:
            part = self.jobs.next()
            if part is not None:
                commands.append(part)
        if self._events.events is not None or self._events.clients.clients:
            self._add_event_work(elapsed_ms, commands)

    def _add_event_work(self, elapsed_ms: int, commands: list[c.Command]) -> None:
        """Add what durable clients need: events that are read for them, and the removal of those that none needs."""
        clients = self._events.clients
        commands += self._events.waiting
        self._events.waiting.clear()
        for client in list(itertools.islice(clients.behind, READERS)):
            clients.behind.pop(client)
            clients.behind[client] = None  # the others come next
            commands.append(e.ReadEvents(client.id))
        commands += [e.WalkEvents(client.id) for client in itertools.islice(clients.walks.walking, READERS)]
        for client_id, why in clients.alerts:
            _log.warning(
                "! durable client %r %s: its queue is dropped, and it is a new client when it comes back",
                client_id,
                why,
            )
        clients.alerts.clear()
        if not self._by_itself:
            return
        if clients.to_trim or clients.regions_to_trim:
            if self._trim_ms is None:
                self._trim_ms = elapsed_ms + TRIM_PAUSE_MS
            elif self._trim_ms <= elapsed_ms:
                self._trim_ms = None
                streams = list(itertools.islice(clients.to_trim, TRIMMED_STREAMS))
                for stream in streams:
                    del clients.to_trim[stream]
                regions = list(itertools.islice(clients.regions_to_trim, max(0, TRIMMED_STREAMS - len(streams))))
                for region in regions:
                    del clients.regions_to_trim[region]
                commands += [e.TrimEvents(stream) for stream in streams]
                commands += [e.TrimEvents(self._events.by_number[region].broad.id, region) for region in regions]
        expiry_ms = clients.next_expiry_ms()
        if expiry_ms is not None and expiry_ms <= self._time.age_at(elapsed_ms):
            commands.append(e.ExpireClients())
        tombstone_ms = self._events.next_tombstone_ms
        age_ms = self._time.age_at(elapsed_ms)
        if tombstone_ms is not None and tombstone_ms <= age_ms:
            commands.append(e.RemoveTombstones(age_ms))

    def next_event_check_ms(self) -> int | None:
        """Return when events are to be ended, or a client's time is over; None: nothing is due."""
        if not self._by_itself or (self._events.events is None and not self._events.clients.clients):
            return None
        time = self._time
        expiry_ms = self._events.clients.next_expiry_ms()
        due = [
            self._trim_ms,
            *(
                None if age_ms is None else age_ms - time.age_ms + time.elapsed_ms
                for age_ms in (expiry_ms, self._events.next_tombstone_ms)
            ),
        ]
        if self._trim_ms is None and (self._events.clients.to_trim or self._events.clients.regions_to_trim):
            due.append(time.elapsed_ms)
        if expiry_ms is not None and self._stores.disk is not None:
            due.append(self._note_age_ms)
        return min((each for each in due if each is not None), default=None)

    def _add_checks(self, now_ms: int, elapsed_ms: int, commands: list[c.Command]) -> None:
        if self._stores.due_ms is not None and self._stores.due_ms <= now_ms:
            commands.append(self._due(now_ms))
        if self._directory.staged and self._staged_check_ms <= elapsed_ms:
            self._staged_check_ms = elapsed_ms + self._staged_pause_ms
            old = self._rules.staged_batches.overdue(self._time.age_at(elapsed_ms))
            if old:
                _log.warning(
                    "dropping %d staged transactions that were not published, and not added to or renewed for %g s: %s",
                    len(old),
                    self._settings.staged_timeout_seconds,
                    old[:10],
                )
                commands.append(c.Discard(old))
        if self._deletes_idle and self._idle_check_ms <= elapsed_ms:
            self._idle_check_ms = elapsed_ms + _IDLE_CHECK_MS
            commands.append(c.DeleteIdle(self._log_deleted))
        if self._directory.policies.has_consumer_timeouts and self._holders_check_ms <= elapsed_ms:
            self._holders_check_ms = elapsed_ms + _HOLDERS_CHECK_MS
            commands += self._ends_of_holders(elapsed_ms)
        if self._stores.disk is not None and self._sweep_ms <= elapsed_ms:
            self._sweep_ms = elapsed_ms + _SWEEP_MS
            commands += self._sweep(self._stores.disk, self._time.age_at(elapsed_ms))
        if self._stores.disk is not None and self._note_age_ms <= elapsed_ms:
            self._note_age_ms = elapsed_ms + _NOTE_AGE_MS
            commands.append(c.NoteAge())

    def _due(self, now_ms: int) -> c.Due:
        """Return what is due, and what takes the place of lines of the schedule that cannot be trusted."""
        items = self._stores.due(now_ms, CHUNK_ENTRIES)
        damaged = [(entry, line) for kind, entry, line in items if kind == KIND_DAMAGED]
        disk = self._stores.disk
        if not damaged or disk is None:
            return c.Due(items)
        with disk.snapshot() as tables:
            values = {line: tables.get("schedule", line) or b"" for _, line in damaged}
        repaired = [c.DamagedLine(line, values[line], self._right_line(entry)) for entry, line in damaged]
        for each in repaired[:_NAMED]:
            _log.error(
                "! line %s of the schedule is damaged; it goes into quarantine, %s; run 'holdfast check' to see whether"
                " a message has no line now: it would not become due",
                *(each.key.hex(), _in_words(each.right)),
            )
        if len(repaired) > _NAMED:
            _log.error("! %d more lines of the schedule are damaged; they go into quarantine", len(repaired) - _NAMED)
        return c.Due([each for each in items if each[0] != KIND_DAMAGED], repaired)

    def _right_line(self, entry: RawEntry | None) -> tuple[bytes, bytes] | None:
        """The line of the schedule that an entry must have."""
        if entry is None:
            return None
        (message,) = self._stores.bodies([(entry.number, entry.flags)])
        return right_line(entry, delivery_ms(self._rules.matching.formats, message))

    def _ends_of_holders(self, elapsed_ms: int) -> Iterator[c.Command]:
        """Yield the ends of consumers that hold messages for too long: their clients are told, and may attach again."""
        for consumer in self._directory.consumers.values():
            settings = consumer.queue.settings
            limit = settings.consumer_timeout_seconds
            if limit is None or not consumer.attached or not consumer.holds_too_long(elapsed_ms, int(limit * 1000)):
                continue
            reason = (
                f"a message of {consumer.queue.called()[0]} was held for more than {in_seconds(limit)} and not settled"
                f" ({settings.named('consumer_timeout_seconds')}): all that the consumer held goes to others"
            )
            _log.warning("! %s", reason)
            yield c.Detach(consumer.id, give_back=True, reply=partial(_tell_holder, consumer.ended, reason))

    def _log_deleted(self, deleted: list[tuple[str, str, int, str]] | JMSException) -> None:
        if isinstance(deleted, JMSException):
            return
        for kind, name, messages, idle in deleted:
            with_messages = f"{messages} {'message' if messages == 1 else 'messages'}"
            _log.info("= %s %s was deleted, with %s: it was not used for %s", kind, name, with_messages, idle)

    def _sweep(self, disk: DurableStore, age_ms: int) -> list[c.Command]:
        """Have names removed that were not used for long: a part of each table at a time."""
        commands: list[c.Command] = []
        for numbers in (self._rules.commits, self._rules.published):
            found = disk.last_numbers(numbers.table, self._swept.get(numbers.table, b""), CHUNK_ENTRIES)
            self._swept[numbers.table] = found[-1][0] if len(found) == CHUNK_ENTRIES else b""
            disk.quarantine(numbers.table, [key for key, record in found if record is None])
            old = [key for key, record in found if record is not None and numbers.is_over(record.used_ms, age_ms)]
            if old:
                commands.append(c.RemoveNames(numbers.table, old))
        return commands

    # The parts of jobs.

    def _chunks(self, queue: int) -> Iterator[tuple[c.Range, list[RawEntry]]]:
        """All entries of a queue, in chunks: read in the cycle that asks for the next one."""
        for delayed in (False, True):
            position: int | None = 0
            while position is not None:
                wanted = c.Range(queue, position, LAST_POSITION, CHUNK_ENTRIES, delayed=delayed)
                found, position = self._reads.of_range(wanted)
                if found:
                    yield wanted, found

    def _trim_and_drop(self, queue: int) -> Iterator[c.Command]:
        for wanted, entries in self._chunks(queue):
            yield c.Trim(wanted, entries, of_ended=True)
        yield c.Drop(queue)

    def _drop_oldest(self, number: int) -> Iterator[c.Command]:
        """Drop messages until the queue is within its limits; delayed ones as all others.

        A subscription keeps its messages once somebody reads it.  What consumers hold of a queue does not count.
        """
        self._dropping.discard(number)  # what it takes from now on has a job of its own
        found_queue = self._directory.queues.get(number)
        position: int | None = None if found_queue is None else found_queue.first_waiting()
        while position is not None and (queue := self._directory.queues.get(number)) is not None:
            messages, size = excess(queue)
            held = queue.held() if queue.consumers or queue.leaving else {}
            messages -= len(held)
            size -= sum([entry.size for entry in held.values()])
            is_read = queue.record.kind == "subscription" and (queue.consumers or queue.leaving)
            if (messages <= 0 and size <= 0) or is_read:
                break
            limit = min(messages, CHUNK_ENTRIES) if size <= 0 else CHUNK_ENTRIES
            wanted = c.Range(number, position, LAST_POSITION, limit)
            found, position = self._of_all_lanes(wanted)
            found = [entry for entry in found if entry.position not in held]
            count = 0
            while count < len(found) and (count < messages or size > 0):
                size -= found[count].size
                count += 1
            if count:
                yield c.Trim(wanted, found[:count], of_full=True)

    def _of_all_lanes(self, wanted: c.Range) -> tuple[list[RawEntry], int | None]:
        """Read the entries of a range with the delayed ones, by position; and the first position that is left."""
        parts = [self._reads.of_range(wanted._replace(delayed=each)) for each in (False, True)]
        left = min((position for _, position in parts if position is not None), default=None)
        found = sorted((each for entries, _ in parts for each in entries), key=lambda each: each.position)
        return [each for each in found if left is None or each.position < left], left

    def _move_and_drop(self, queue: int) -> Iterator[c.Command]:
        for _, entries in self._chunks(queue):
            yield c.Move(queue, entries)
        yield c.Drop(queue)


def _in_words(right: tuple[bytes, bytes] | None) -> str:
    """Return what becomes of the message of a damaged line of the schedule."""
    if right is None:
        return "and it is not known what it was for"
    return f"and entry {entry_of_line(right[0]).hex()} that it names becomes due {in_words(due_of(right[0]))}"


def _tell_holder(ended: c.Reply | None, reason: str, result: Any) -> None:
    if ended is not None and not isinstance(result, JMSException):
        ended(ResourceAllocationException(reason))
