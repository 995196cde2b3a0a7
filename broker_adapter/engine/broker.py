"""The engine's only driver: decide, persist, deliver.

Theory of operation
    Commands go into an inbox.  Whoever holds the *runner* lock carries out a cycle: it takes what has gathered, lets
    the state decide, commits the batches (one commit for all: group commit), and then lets the deliveries and replies
    go, in that order.  So no effect can leave before the commit it depends on, and effects leave in the order they
    were decided in.

    A caller that waits for its answer (``call``) takes the runner and carries out the cycle itself if nobody else does:
    a synchronous send costs a commit and no change of threads.  All else is done by the thread ``holdfast-engine``,
    which also wakes for what falls due; also what the main thread waits for, where handlers of signals could raise in
    the middle of a cycle, or call back into it (:mod:`signals`).

    Work that must not stop the engine (trimming a deleted queue, moving a published transaction) is a *background
    job*: a generator of commands, one of which is carried out a cycle (:mod:`background`).

    On an error of the store the engine stops rather than guesses: everything after it raises the same error.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import attrs

from broker_adapter.engine import check_state
from broker_adapter.engine import commands as c
from broker_adapter.engine.background import BackgroundJobs
from broker_adapter.engine.broker_state import BrokerState
from broker_adapter.engine.check import Change, Check, Finding, Tables
from broker_adapter.engine.effects import Candidate, Effects, Load, Outgoing, Scan
from broker_adapter.engine.failures import fault
from broker_adapter.engine.lmdb_store import LmdbStore
from broker_adapter.engine.maintenance import as_answer, check_records
from broker_adapter.engine.operations import ONCE, checked_arguments, perform
from broker_adapter.engine.pending import Pending, raw_entry
from broker_adapter.engine.queue_state import Browser, QueueState
from broker_adapter.engine.recent_requests import RecentRequests
from broker_adapter.engine.records import (
    DELAYED_LANE,
    FLAG_ANNOTATED,
    FLAG_PERSISTENT,
    LAST_POSITION,
    RawEntry,
    RunRecord,
    encode_entry,
    entry_key,
    position_of,
    unpack_entry_key,
)
from broker_adapter.engine.runs import following, new_run
from broker_adapter.engine.selection import Read, Selectable
from broker_adapter.engine.split_sends import split
from broker_adapter.engine.staging import batch_of
from broker_adapter.engine.store import DurableStore, Loaded
from broker_adapter.engine.stores import Message, Stores
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    JMSException,
    OperationTimedOutException,
    ResourceAllocationException,
    StoreException,
    copied,
)
from broker_adapter.selectors.language import Selector
from broker_adapter.settings import EngineSettings
from broker_adapter.signals import may_be_interrupted, uninterrupted

_log = logging.getLogger(f"holdfast.{__name__}")

#: Messages and settlements that one commit takes at most; more wait for the next one.
CYCLE_MESSAGES = 10_000
#: The same while the store has little room: what settles must fit into what is kept for it.
LOW_CYCLE_MESSAGES = 500
#: Places in queues that the messages of one commit take at most; a single message may take more.
CYCLE_ENTRIES = 20_000
#: Bytes of messages that one commit takes at most.
CYCLE_BYTES = 16 * 1024 * 1024
#: Entries that fall due, are trimmed or moved in one cycle.
CHUNK_ENTRIES = 5_000
#: Rounds of loading from the store before a commit; what is left waits for the next cycle.
LOAD_ROUNDS = 16
#: Scans of the backlog for consumers with selectors in one cycle, and the bytes of messages that each looks at.  They
#: share what one cycle may look at: whoever came at the same time is shown the backlog at the same time.
SCANS = 4
SCAN_BYTES = 1024 * 1024
#: Time that each of these scans takes, and that all browsers take in one cycle, in seconds: a selector may take up to
#: 20 milliseconds for each message.  Each gets at least one message further.
SCAN_SECONDS = 0.01
BROWSE_SECONDS = 0.02
#: Time that selectors take in one cycle: those of subscriptions for what is sent, and for what waits for them, and
#: those of consumers.  What is left waits for the next cycle.  Of each of the three at least one selector is asked.
SELECT_SECONDS = 0.01
#: Messages of one queue that are in memory while consumers with selectors look at them, beside SCAN_BYTES.
_CANDIDATES = 500
#: Positions at the start of a run that are kept in memory: those that streaming queries ask for again and again.
_KEPT_POSITIONS = 1_000
#: Longest sleep of the engine's thread.
_SLEEP_SECONDS = 30.0
#: How often a part of the names that were not used for long is forgotten.
_SWEEP_MS = 60_000
#: How often a part of the queues is looked at for not being used any more.
_IDLE_CHECK_MS = 1000
#: How often the log says that the disk is full.
_COMPLAIN_MS = 60_000
#: How often the room on the disk is looked at.
_ROOM_CHECK_MS = 250
#: What a named tuple does, without the call of a function of Python.
_new = tuple.__new__

_EntriesRead = Callable[..., Loaded]  #: a call of ``Stores`` that reads entries: its first argument is the queue


class Broker:
    """A durable-queue engine in this process.

    Args:
        settings: its limits.
        path: directory of the store, made where it does not exist; None: everything is in memory.
        by_itself: whether what is due happens; else only what commands ask for: nothing expires, or is forgotten.

    Attributes:
        unique: a word that no other engine has.
        run: a word that no other start of an engine has.
        settings: as given.
        is_durable: whether it has a store on disk.
        failed: why it stopped, or None.
        cycling_thread: identifies the thread that carries out a cycle now, in which callbacks must not wait.

    Raises:
        StoreLockedException, StoreVersionException, StoreCorruptException, StoreException: see ``LmdbStore``.
    """

    def __init__(self, settings: EngineSettings, path: str | None = None, *, by_itself: bool = True) -> None:
        self.settings = settings
        self._by_itself = by_itself
        self.failed: JMSException | None = None
        self.cycling_thread: int | None = None
        self._disk = disk = LmdbStore(path, settings) if path is not None else None
        self._stores = Stores(settings, disk)
        self._store_errors: tuple[type[Exception], ...] = disk.errors if disk is not None else ()
        #: errors that are not one command's
        self._fatal_errors: tuple[type[Exception], ...] = (JMSException, *self._store_errors)
        self.is_durable = disk is not None
        self._requests = RecentRequests()
        self.unique = disk.unique if disk is not None else secrets.token_hex(8)
        self.run = new_run(_now_ms(), secrets.token_hex(6))
        self._noted_run = self.run  #: empty where it could not be noted in the store
        self._earlier_runs: list[str] = []
        self._start_positions: dict[int, int] = {}
        self._state = BrokerState(settings, durable=self.is_durable, secret=secrets.token_bytes(32), unique=self.unique)
        self._directory = self._state.directory
        self._state.matching.new_slice = _Slice
        self._inbox: deque[c.Command | c.Gather] = deque()
        self._runner = threading.Lock()
        self._wake = threading.Lock()
        self._wake.acquire()
        self._closing = False
        self._is_sleeping = False
        self._alarm_ms: int | None = None
        self._loads: list[Load] = []
        self._scans: list[Scan] = []
        #: candidates for the consumers that search, by queue, in the order of their turns
        self._candidates: dict[int, deque[Candidate]] = {}
        self._lookers: list[Browser] = []
        self._jobs = BackgroundJobs()
        self._persist = self._stores.commit
        self._look_up = self._stores.look_up
        self._bodies = self._stores.bodies
        self._annotations = self._stores.annotations
        # What follows is by the clock that nobody sets.
        self._staged_pause_ms = max(1000, int(settings.staged_timeout_seconds * 1000) // 4)
        self._staged_check_ms = 0
        self._room_checked_ms = 0
        #: what was decided and could not be written yet, for want of room
        self._unwritten: tuple[Effects, Sequence[list[c.Handout] | None]] | None = None
        self._retry_ms = 0
        self._complain_ms = 0
        self._sweep_ms = 0
        self._idle_check_ms = 0
        self._deletes_idle = (
            settings.delete_idle_queues_seconds is not None or settings.delete_idle_subscriptions_seconds is not None
        )
        self._swept: dict[str, bytes] = {}  #: by table: how far the sweep has come
        self._bytes_since_check = 0
        self._restart_positions: dict[tuple[str, int], int] = {}
        self._failure_listeners: list[Callable[[JMSException], None]] = []
        if disk is not None:
            try:
                self._restore(disk)
            except BaseException as error:
                disk.close()
                if isinstance(error, disk.errors):
                    raise disk.as_opening_failure(error) from error
                raise
        self._thread = threading.Thread(target=self._run, name="holdfast-engine", daemon=True)
        self._thread.start()

    def _restore(self, disk: DurableStore) -> None:
        queues = disk.queues()
        for queue in self._state.restore(queues, disk.streams(), disk.next_message(), disk.next_queue()):
            self._jobs.trim(self._trim_and_drop(queue))
        published = sorted(
            (found.record.publishing, found.queue)
            for found in queues
            if found.record.kind == "staged" and found.record.publishing
        )
        for _, staged in published:
            self._jobs.move(self._move_and_drop(staged))
        self._start_positions = {
            queue.id: queue.next_position
            for queue in self._directory.queues.values()
            if queue.next_position > 1 and queue.record.kind in ("queue", "subscription")
        }
        if not disk.begin_run(RunRecord(self.run, self._start_positions)):
            self._noted_run = ""
        self._earlier_runs = [run for run in disk.runs() if run != self.run]
        self._stores.note_first_due()
        # Those who stage need time to come back after a restart, however long it took.
        self._staged_check_ms = _elapsed_ms() + self._staged_pause_ms

    # What others call.

    def submit(self, command: c.Command | c.Gather) -> None:
        """Hand over a command.  Does not wait; the answer comes through ``command.reply``."""
        self._inbox.append(command)
        self._signal()

    def submit_all(self, commands: Iterable[c.Command]) -> None:
        """Hand over several commands, in order, with one wake-up."""
        self._inbox.extend(commands)
        self._signal()

    def call(self, command: c.Command, timeout: float | None, ahead: c.Gather | None = None) -> Any:
        """Carry out a command and wait for its answer.

        Args:
            command: its ``reply`` is not used.
            timeout: longest wait in seconds; None: no limit.  Past it the command is still carried out.
            ahead: what has to be carried out before it.

        Returns:
            The answer.

        Raises:
            OperationTimedOutException: no answer in time.
            IllegalStateException: the caller is a callback of the engine, which would wait for itself.
            JMSException: the answer is an error.
        """
        self.check_may_wait()
        waiter = _Waiter()
        if ahead is not None:
            self._inbox.append(ahead)
        self._inbox.append(command._replace(reply=waiter.answer))
        if self.failed is not None:  # a closed engine has no thread that would answer
            uninterrupted(partial(self._run_one, _lock_seconds(timeout)))
        elif may_be_interrupted() or not self._run_one(0):
            self._signal()
        return waiter.wait(type(command).__name__, timeout)

    def _run_one(self, seconds: float) -> bool:
        """Carry out one cycle, if nobody else does one for so long; -1: no limit.  Returns whether it was."""
        if not self._runner.acquire(timeout=seconds):
            return False
        try:
            self._cycle()
        finally:
            self._runner.release()
        if self._inbox or self._has_more:
            self._signal()
        return True

    def request(
        self,
        operation: str,
        arguments: Mapping[str, Any],
        timeout: float | None,
        is_cancelled: Callable[[], bool] | None = None,
        later: Callable[[Any], None] | None = None,
    ) -> Any:
        """Carry out an operation beyond messaging; see :func:`broker_adapter.engine.operations.perform`.

        One that takes effect once is not cancelled: it is asked for again under its id, and goes on meanwhile.  Where
        such a one is under way already and ``later`` is given, this returns ``UNDER_WAY``, and ``later`` is called with
        the answer or the error.
        """
        if operation == "check":
            checked_arguments(operation, arguments)
            return self._checked(is_cancelled)
        if operation not in ONCE:
            return perform(self, operation, arguments, timeout, is_cancelled)
        what = checked_arguments(operation, arguments)
        request_id, run = what.pop("request_id"), what.pop("request_run")
        if run is not None and run != self.run:
            raise IllegalStateException(
                f"the engine was started again while the request {operation!r} was under way: look what it has done,"
                " and ask again"
            )
        if request_id is None:
            return perform(self, operation, arguments, timeout, is_cancelled)
        return self._requests.once(
            *(request_id, lambda: perform(self, operation, arguments, timeout), timeout, is_cancelled, later),
            what={"operation": operation, **what},
        )

    def _checked(self, is_cancelled: Callable[[], bool] | None) -> dict[str, Any]:
        """What the store says of itself as of one commit, read beside the engine."""

        def look(*_: object) -> None:
            if is_cancelled is not None and is_cancelled():
                raise ConnectionLostException("the check was cancelled: the connection that asked for it ended")

        return as_answer(check_records(self.store, look))

    @property
    def store(self) -> LmdbStore:
        """The store on disk; raises IllegalStateException where there is none."""
        if self._disk is None:
            raise IllegalStateException("the engine has no store on disk")
        return self._disk

    def check(self) -> list[Finding]:
        """Compare every table of the stores with every other, and with what is in memory; nothing is changed.

        Nothing else is done meanwhile: a second for about 200,000 messages.  The request ``check`` of an engine that
        has to go on looks at the disk only.

        Returns:
            What is wrong, harmless things included, without the changes that would repair it.

        Raises:
            IllegalStateException: the caller is a callback of the engine.
        """
        with self.reading():
            stores: list[Tables] = [self._stores.memory.snapshot()]
            with ExitStack() as stack:
                if self._stores.disk is not None:
                    stores.append(stack.enter_context(self._stores.disk.snapshot()))
                found = [attrs.evolve(each, changes=()) for tables in stores for each in Check(tables).findings()]
                return found + list(check_state.findings(self._directory, stores))

    def check_may_wait(self) -> None:
        """Raises IllegalStateException where the caller is a callback of the engine, which would wait for itself."""
        if self.cycling_thread == threading.get_ident():
            raise IllegalStateException("a call that waits cannot be made from a callback of the transport")

    def learn_format(self, message_format: int, read: Read) -> None:
        """Tell the engine how to read messages of a format, so that selectors can be applied to them.

        Args:
            message_format: as in :class:`broker_adapter.engine.commands.NewMessage`.
            read: decodes at least headers and properties; raises MessageFormatException; called in any thread.
        """
        self._state.matching.formats.learn(message_format, read)

    def on_failure(self, listener: Callable[[JMSException], None]) -> Callable[[], None]:
        """Call ``listener`` when the engine stops because of an error; returns what takes the listener away."""
        self._failure_listeners.append(listener)

        def remove() -> None:
            with suppress(ValueError):
                self._failure_listeners.remove(listener)

        return remove

    def disown(self, error: JMSException) -> None:
        """In a child made by fork: what the parent's threads were about is the parent's, and this engine has failed."""
        self._runner = threading.Lock()
        self._wake = threading.Lock()
        self._wake.acquire()
        self._inbox = deque()
        self._failure_listeners = []
        self.failed = error

    def close(self) -> None:
        """Carry out what was handed over, take back what clients hold, and give the store free.

        Legal twice.  Waits for a cycle under way.
        """
        uninterrupted(self._close)

    def _close(self) -> None:
        with self._runner:
            if self._closing:
                return
            self._retry_ms = 0
            if self.failed is None:
                self._inbox.extend([c.Disconnect(client, stops=True) for client in self._directory.clients])
                self._inbox.append(c.EndRun())
            while (self._inbox or self._unwritten is not None) and self.failed is None:
                self._cycle()
                if self._unwritten is not None:
                    break
            self._closing = True
            if self.failed is None:
                self.failed = IllegalStateException("the engine is closed")
            self._give_up_unwritten(self.failed)
            self._answer_inbox(self.failed)
            self._answer_waiting(self.failed)
        self._signal()
        self._thread.join()
        self._stores.close()

    # The engine's thread.

    def _signal(self) -> None:
        if self._wake.locked():
            with suppress(RuntimeError):  # another thread was faster
                self._wake.release()

    def _run(self) -> None:
        while not self._closing:
            if self._unwritten is not None or not (self._inbox or self._has_more):
                self._is_sleeping = True  # from here on an earlier alarm wakes this thread
                alarm_ms = self._alarm_ms
                sleep = _SLEEP_SECONDS if alarm_ms is None else min((alarm_ms - _elapsed_ms()) / 1000, _SLEEP_SECONDS)
                if sleep > 0:
                    self._wake.acquire(timeout=sleep)
                self._is_sleeping = False
            self._wake.acquire(blocking=False)  # whatever it was for is in this cycle
            with self._runner:
                if not self._closing:
                    self._cycle()

    @property
    def _has_more(self) -> bool:
        """Whether work is left that needs no new command."""
        return (
            self.failed is None
            and self._unwritten is None
            and bool(
                self._loads
                or self._jobs
                or self._lookers
                or self._scans
                or self._candidates
                or self._state.has_more
                or (self._state.waits_engine_wide and self._has_freed_memory)
            )
        )

    @property
    def _has_freed_memory(self) -> bool:
        """Whether there is more room for volatile messages than the last decision knew of."""
        known = self._state.admission.volatile_room
        return known is not None and known < self.settings.max_volatile_bytes - self._stores.memory.bytes

    def _set_alarm(self) -> None:
        """Note when something is due without anybody's doing."""
        alarms = [self._state.next_deadline_ms()]
        if self._state.waits_engine_wide and self._state.admission.room is not None:
            alarms.append(self._room_checked_ms + _ROOM_CHECK_MS)
        if self._by_itself:
            if self._stores.due_ms is not None:
                alarms.append(self._stores.due_ms - _now_ms() + _elapsed_ms())
            if self._deletes_idle:
                alarms.append(self._idle_check_ms)
            if self._directory.staged:
                alarms.append(self._staged_check_ms)
        before = self._alarm_ms
        self._alarm_ms = min((alarm for alarm in alarms if alarm is not None), default=None)
        if self._is_sleeping and self._alarm_ms is not None and (before is None or self._alarm_ms < before):
            self._signal()

    # One cycle.

    def _cycle(self) -> None:
        """Decide, persist, deliver.  The runner is held."""
        commands: list[c.Command] = []
        effects: Effects | None = None
        self.cycling_thread = threading.get_ident()
        try:
            if self.failed is not None:
                self._answer_inbox(self.failed)
                return
            now_ms, elapsed_ms = _now_ms(), _elapsed_ms()
            if self._unwritten is not None:
                if elapsed_ms < self._retry_ms or not self._write(*self._unwritten, now_ms):
                    return
                self._unwritten = None
            self._fall_due(now_ms, elapsed_ms, commands)
            incoming = self._gather(commands)
            self._look_for_room(elapsed_ms, incoming)
            supplied = [each for each in map(self._supplied_safely, commands) if each is not None]
            effects = self._state.decide(supplied, now_ms, elapsed_ms)
            self._state.commits.trim()
            self._state.published.trim()
            self._load(effects, now_ms)
            self._log_faults(effects)
            taken = self._read_what_is_taken(effects)
            if not self._stores.set_messages_aside(effects.distrusted):
                for number, key in effects.distrusted:
                    effects.durable.keep(number, key)
            if not self._write(effects, taken, now_ms):
                self._unwritten = effects, taken
                return
        except Exception as error:
            self._fail(error, commands, effects)
            return
        finally:
            self.cycling_thread = None
        self._set_alarm()

    def _log_faults(self, effects: Effects) -> None:
        for command, cause in effects.faults:
            _log.error("! %s failed unexpectedly", type(command).__name__, exc_info=cause)
        found, self._state.matching.selector_fault = self._state.matching.selector_fault, None
        if found is not None:
            _log.error("! the selector %.200r failed unexpectedly", found[0], exc_info=found[1])

    def _log_deleted(self, deleted: list[tuple[str, str, int]] | JMSException) -> None:
        if isinstance(deleted, JMSException):
            return
        seconds = {
            "queue": self.settings.delete_idle_queues_seconds,
            "subscription": self.settings.delete_idle_subscriptions_seconds,
        }
        for kind, name, messages in deleted:
            _log.info(
                "= %s %s was deleted, with %d %s: nobody has used it for %g s (option delete_idle_%ss_seconds)",
                *(kind, name, messages, "message" if messages == 1 else "messages", seconds[kind], kind),
            )

    def _write(self, effects: Effects, taken: Sequence[list[c.Handout] | None], now_ms: int) -> bool:
        """Write what was decided, and let its effects go.

        Returns False where the disk has no room for it: nothing is lost, and nothing else is decided until it has.
        """
        try:
            if self._persist(effects):
                self._state.totals.commits += 1
        except ResourceAllocationException as error:
            elapsed_ms = _elapsed_ms()
            if elapsed_ms >= self._complain_ms:
                self._complain_ms = elapsed_ms + _COMPLAIN_MS
                _log.critical("! %s; the engine waits for that, and goes on then", error)
            self._retry_ms = elapsed_ms + _ROOM_CHECK_MS
            self._alarm_ms = self._retry_ms
            if self._is_sleeping:
                self._signal()
            return False
        self._deliver(effects, taken, now_ms)
        return True

    def _fall_due(self, now_ms: int, elapsed_ms: int, commands: list[c.Command]) -> None:
        """What has to be done now without anybody's asking, ahead of the commands."""
        if self._by_itself:
            self._add_due(now_ms, elapsed_ms, commands)
        part = self._jobs.next()
        if part is not None:
            commands.append(part)

    def _add_due(self, now_ms: int, elapsed_ms: int, commands: list[c.Command]) -> None:
        if self._stores.due_ms is not None and self._stores.due_ms <= now_ms:
            commands.append(c.Due(self._stores.due(now_ms, CHUNK_ENTRIES)))
        if self._directory.staged and self._staged_check_ms <= elapsed_ms:
            self._staged_check_ms = elapsed_ms + self._staged_pause_ms
            old = self._state.staged_batches.overdue(now_ms)
            if old:
                _log.warning(
                    "dropping %d staged transactions that were not published, and not added to or renewed for %g s: %s",
                    len(old),
                    self.settings.staged_timeout_seconds,
                    old[:10],
                )
                commands.append(c.Discard(old))
        if self._deletes_idle and self._idle_check_ms <= elapsed_ms:
            self._idle_check_ms = elapsed_ms + _IDLE_CHECK_MS
            commands.append(c.DeleteIdle(self._log_deleted))
        if self._stores.disk is not None and self._sweep_ms <= elapsed_ms:
            self._sweep_ms = elapsed_ms + _SWEEP_MS
            commands += self._sweep(self._stores.disk, now_ms)

    def _sweep(self, disk: DurableStore, now_ms: int) -> list[c.Command]:
        """Have names forgotten that were not used for long: a part of each table at a time."""
        commands: list[c.Command] = []
        for numbers in (self._state.commits, self._state.published):
            found = disk.last_numbers(numbers.table, self._swept.get(numbers.table, b""), CHUNK_ENTRIES)
            self._swept[numbers.table] = found[-1][0] if len(found) == CHUNK_ENTRIES else b""
            disk.quarantine(numbers.table, [key for key, record in found if record is None])
            old = [key for key, record in found if record is not None and numbers.is_over(record.used_ms, now_ms)]
            if old:
                commands.append(c.ForgetNames(numbers.table, old))
        return commands

    def _gather(self, commands: list[c.Command]) -> int:
        """Take commands from the inbox, as many as one commit may hold.  Returns the bytes that come in."""
        inbox = self._inbox
        weight = size = 0
        most = CYCLE_MESSAGES if self._state.admission.room is None else LOW_CYCLE_MESSAGES
        while inbox and weight < most and size < CYCLE_BYTES:
            command = inbox.popleft()
            if isinstance(command, c.Gather):
                inbox.extendleft(reversed(command.take()))
                continue
            if isinstance(command, c.Enqueue):
                fan_out = self._directory.fan_out(command.destination)
                if fan_out * len(command.messages) > CYCLE_ENTRIES and len(command.messages) > 1:
                    command, rest = split(command, max(1, CYCLE_ENTRIES // fan_out))
                    inbox.appendleft(rest)
                weight += fan_out * len(command.messages)
                size += sum([len(message.payload) for message in command.messages])
            elif isinstance(command, c.PutBack):
                weight += max(1, len(command.messages))
                size += sum([len(message.payload) for _, message in command.messages])
            elif isinstance(command, c.Stage):
                weight += max(1, len(command.messages))
                size += sum([len(message.payload) for message in command.messages])
            elif isinstance(command, c.Settle):
                weight += len(command.numbers)
            elif isinstance(command, c.Disconnect):
                held = self._directory.in_hand_of(command.client)
                if held > most:
                    # It goes on in the next cycle, and what came behind it waits for its end.
                    commands.append(
                        c.GiveBack(command.client, most, command.failed, command.unseen, stops=command.stops)
                    )
                    inbox.appendleft(command)
                    return size
                weight += max(1, held)
            elif isinstance(command, c.Detach) and (command.give_back or command.unseen):
                weight += max(1, self._directory.in_hand_of_consumer(command.consumer))
            elif isinstance(command, c.Commit):
                # At least 1: as many names as the commands of a cycle have must fit into CACHED_NAMES.
                weight += max(1, len(command.sends) + len(command.settlements))
                size += sum([len(message.payload) for _, message in command.sends])
            else:
                weight += 1
            commands.append(command)
        return size

    def _look_for_room(self, elapsed_ms: int, incoming: int) -> None:
        """Tell the state whether producers have to be held back."""
        admission = self._state.admission
        admission.volatile_room = self.settings.max_volatile_bytes - self._stores.memory.bytes
        if self._stores.disk is None:
            return
        self._bytes_since_check += incoming
        if not incoming and admission.room is None:
            return
        if elapsed_ms - self._room_checked_ms >= _ROOM_CHECK_MS or self._bytes_since_check > CYCLE_BYTES // 16:
            self._room_checked_ms = elapsed_ms
            self._bytes_since_check = 0
            room = admission.room = self._stores.disk.room()
            admission.held_because = room.reason if room is not None and room.is_used_up else None

    def _supplied_safely(self, command: c.Command) -> c.Command | None:
        """The command with what it asks for; None where that fails for a fault of the command, which has its answer."""
        try:
            return self._supplied(command)
        except self._fatal_errors:
            raise
        except Exception as error:
            _log.error("! %s failed unexpectedly", type(command).__name__, exc_info=error)
            self._answer_all((command,), fault(command, error))
            return None

    def _supplied(self, command: c.Command) -> c.Command:
        """The command with the entries that it asks for, as the stores have them in this cycle."""
        if (type(command) is c.Trim and not command.found) or type(command) is c.SetAside:
            found, after = self._entries(command.range)
            if type(command) is c.SetAside:
                found = [each for each in found if self._stores.set_body_aside(each.number)]
            return command._replace(found=found, next=after)
        if type(command) is c.PutBack and self._stores.disk is not None:
            return command._replace(there=self._stores.disk.in_quarantine([key for key, _ in command.messages]))
        if type(command) is c.Redrive:
            found, after = self._entries(command.range)
            return command._replace(found=[(each, self._stores.annotations_of(each)) for each in found], next=after)
        if type(command) is c.Commit or type(command) is c.ResolveCommit:
            if command.commit_id is not None:
                self._look_up(self._state.commits, command.commit_id.session)
        elif type(command) is c.Publish:
            self._look_up(self._state.published, command.group)
        elif type(command) is c.Stage:
            group, number = batch_of(command.transaction)
            if number is not None:
                self._look_up(self._state.published, group)
        return command

    def _entries(self, wanted: c.Range) -> tuple[list[RawEntry], int | None]:
        """The entries of a range, and the first position that is left for another cycle."""
        queue, first, last, limit, positions, delayed = wanted
        if last < first:
            return [], None
        if delayed:
            found = self._read_sound(self._stores.load, queue, DELAYED_LANE, max(first, 1) - 1, limit)
        else:
            found = self._read_sound(self._stores.read_entries, queue, max(first, 0), last, limit)
        state = self._directory.queues.get(queue)
        if found.corrupt and state is not None and state.record.kind != "ended":
            # Nobody knows the size of what was damaged.  It takes time; but entries are damaged once in a lifetime.
            self._state.recounted(state, self.store.count(queue), len(found.corrupt))
        entries = [
            entry
            for entry in found.entries
            if entry.position <= last and (not positions or entry.position in positions)
        ]
        at_end = found.complete or (found.entries and found.entries[-1].position >= last)
        return entries, None if at_end else found.entries[-1].position + 1

    def _read_sound(self, read: _EntriesRead, queue: int, *arguments: int) -> Loaded:
        """Read both stores as one; entries that cannot be trusted are put aside, and named if they are met first."""
        found = self._read_mended(read, queue, *arguments)
        return found._replace(corrupt=self._stores.set_aside(found.corrupt)) if found.corrupt else found

    def _read_mended(self, read: _EntriesRead, queue: int, *arguments: int) -> Loaded:
        """Read both stores as one; damaged entries that are in memory are written anew."""
        found = read(queue, *arguments)
        if found.corrupt and self._write_anew(found.corrupt):
            return read(queue, *arguments)
        return found

    def _write_anew(self, corrupt: Sequence[bytes]) -> bool:
        """Write those of some damaged entries anew that are in memory; returns whether there was one."""
        changes: list[Change] = []
        for key in corrupt:
            number, lane, position = unpack_entry_key(key)
            queue = self._directory.queues.get(number)
            entry = None if queue is None else queue.in_memory(lane, position)
            if entry is not None and entry.flags & FLAG_PERSISTENT:
                fields = entry.flags, entry.expires_at_ms, entry.size, entry.group
                changes.append(("entries", key, encode_entry(key, entry.number, entry.delivery_count, *fields)))
                _log.error("! entry %s fails its checksum; it is in memory, and is written anew", key.hex())
        if changes:
            self.store.apply(changes)
        return bool(changes)

    def _load(self, effects: Effects, now_ms: int) -> None:
        """Bring entries into memory that the state has asked for.

        What the batches are about to change is not in the stores yet: entries that they delete are left out, and those
        that they add are added.
        """
        wanted, self._loads = self._loads + effects.loads, []
        effects.loads = []
        scans = self._scans + effects.scans
        effects.scans = []
        for scan in scans[:SCANS]:
            self._scan(scan, effects)
        pending = Pending(effects)
        self._state.matching.begin_candidates()
        searched = bool(scans)
        is_late = False
        loaded = 0
        for _ in range(LOAD_ROUNDS):
            self._take_candidates(effects)
            if self._candidates and not is_late:
                searched = True
                is_late = not self._match_candidates(effects)
            if not searched and (not wanted or loaded >= CYCLE_ENTRIES):
                break
            searched = False
            later: list[Load] = []
            for load in wanted:
                if loaded >= CYCLE_ENTRIES:
                    later.append(load)
                    continue
                found = self._read_sound(self._stores.load, load.queue, load.lane, load.after, load.limit)
                entries = found.entries
                if effects.touches_unloaded:
                    entries = pending.as_changed(entries)
                if found.complete:
                    entries = pending.with_new(load.queue, load.lane, load.after, entries)
                wrong = self._state.loaded(load, entries, len(found.corrupt), found.complete)
                if wrong is not None:
                    _log.error("! %s; they are corrected; run 'holdfast check' to see whether messages are lost", wrong)
                loaded += len(entries)
            self._state.settle_down(now_ms, effects)
            wanted, effects.loads = later + effects.loads, []
        self._loads = wanted
        self._scans = scans[SCANS:] + effects.scans
        self._take_candidates(effects)

    def _scan(self, scan: Scan, effects: Effects) -> None:
        """Show a consumer with a selector the next part of the backlog."""
        found = self._read_sound(self._stores.load, scan.queue, scan.lane, scan.after, -(-scan.limit // SCANS))
        if found.corrupt:
            self._state.lost(scan.queue, scan.lane, len(found.corrupt))
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
        self._state.matching.scanned(scan, messages, through, complete, lambda: time.monotonic() > end)

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
                is_late = not self._state.matching.match_candidate(candidates[0], message)
                if is_late:
                    break
                candidates.popleft()
            if candidates:
                self._candidates[number] = candidates  # behind the others
            if is_late or (self._candidates and self._state.matching.is_late()):
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

    def _selectables(self, entries: Sequence[RawEntry], pending: Effects | None) -> list[tuple[RawEntry, Selectable]]:
        """Messages with what selectors can look at; those that cannot be trusted are left out."""
        bodies = self._bodies([(entry.number, entry.flags) for entry in entries], pending)
        messages = []
        for entry, body in zip(entries, bodies, strict=True):
            if body is None:
                continue
            annotations = None
            if entry.flags & FLAG_ANNOTATED:
                key = entry_key(entry.queue, entry.lane, entry.position)
                annotations = self._annotations(key, entry.flags, pending)
            message = Selectable(self._state.matching.formats, *body, entry.delivery_count, annotations)
            messages.append((entry, message))
        return messages

    def _read_what_is_taken(self, effects: Effects) -> list[list[c.Handout] | None]:
        """The deliveries that settle themselves, each in its place: the commit takes their messages away."""
        return [
            self._handouts(messages, None, effects) if consumer.presettled else None
            for consumer, messages in effects.deliveries
        ]

    def _deliver(self, effects: Effects, taken: Sequence[list[c.Handout] | None], now_ms: int) -> None:
        for (consumer, messages), handouts in zip(effects.deliveries, taken, strict=True):
            if handouts is None:
                handouts = self._handouts(messages, consumer.id)
                if suspects := consumer.queue.suspects:
                    handouts = [each._replace(suspect=each.position in suspects) for each in handouts]
            if handouts:
                self._state.totals.delivered += len(handouts)
                _tell(consumer.sink, handouts)
        lookers, self._lookers = self._lookers + effects.browsers, []
        end = time.monotonic() + BROWSE_SECONDS
        for index, browser in enumerate(lookers):
            if index and time.monotonic() > end:
                self._lookers[:0] = lookers[index:]  # it is their turn first in the next cycle
                break
            self._browse(browser, now_ms, end)
        for reply, result in effects.replies:
            _tell(reply, result)
        for queue in effects.published:
            self._jobs.move(self._move_and_drop(queue))
        for queue in effects.ended:
            self._jobs.trim(self._trim_and_drop(queue))

    def _handouts(
        self, messages: Sequence[Outgoing], consumer: int | None, pending: Effects | None = None
    ) -> list[c.Handout]:
        """Deliveries with their payloads; those whose record cannot be trusted are left out and reported.

        Args:
            messages: what to deliver.
            consumer: who holds them, so that they can be taken back; None where nobody does.
            pending: what is not in the stores yet, where the cycle takes them away; None: a browser looks at them.
        """
        bodies = self._bodies([(each.message, each.flags) for each in messages], pending)
        handouts = []
        distrusted: list[Outgoing] = []
        for each, body in zip(messages, bodies, strict=True):
            number, position, count, _, flags, key = each
            if body is None:
                distrusted.append(each)
                continue
            annotations = self._annotations(key, flags, pending) if flags & FLAG_ANNOTATED else None
            handouts.append(_new(c.Handout, (number, position, count, body[0], body[1], annotations, False)))
        if distrusted:
            self._pass_over(distrusted, consumer, pending)
        return handouts

    def _pass_over(self, distrusted: Sequence[Outgoing], consumer: int | None, pending: Effects | None) -> None:
        """Put messages aside that cannot be delivered, in one transaction; the arguments are those of ``_handouts``."""
        if consumer is None and pending is None:
            for each in distrusted:
                queue, _, _ = unpack_entry_key(each.key)
                self.submit(c.SetAside(c.Range(queue, each.position, each.position, 1, frozenset((each.position,)))))
            return
        are_aside = self._stores.set_messages_aside([(each.message, each.key) for each in distrusted])
        for each in distrusted:
            if consumer is not None:
                self.submit(c.Quarantined(consumer, each.number, not are_aside))
            elif pending is not None and not are_aside:
                pending.durable.keep(each.message, each.key)
        if consumer is None and are_aside:
            self._state.totals.quarantined += len(distrusted)

    def _fail(self, error: Exception, commands: Sequence[c.Command], decided: Effects | None) -> None:
        """Stop, and answer all who wait; ``decided``: what the cycle would have written and told."""
        failure = self._as_failure(error)
        _log.critical("! the engine stopped: %s", error, exc_info=error)
        self.failed = failure
        self._alarm_ms = None
        self._give_up_unwritten(failure)
        asked = {command.reply for command in commands}
        for reply, _ in decided.replies if decided is not None else ():
            if reply not in asked:  # what waited, and went on in this cycle
                _tell(reply, failure)
        self._answer_all(commands, failure)
        self._answer_waiting(failure, asked)
        self._answer_inbox(failure)
        for listener in list(self._failure_listeners):
            _tell(listener, failure)

    def _as_failure(self, error: Exception) -> StoreException:
        """What callers are told from now on."""
        if isinstance(error, StoreException):
            return error
        if self._stores.disk is not None and isinstance(error, self._store_errors):
            failure = self._stores.disk.as_failure(error)
        else:
            failure = StoreException(f"the engine stopped: {error!r}")
        failure.__cause__ = error
        return failure

    def _give_up_unwritten(self, error: JMSException) -> None:
        if self._unwritten is not None:
            effects, _ = self._unwritten
            self._unwritten = None
            for reply, _ in effects.replies:
                _tell(reply, error)

    def _answer_inbox(self, error: JMSException) -> None:
        """Answer what was handed over so far: who is answered may hand over more at once.  The runner is held."""
        for _ in range(len(self._inbox)):
            command = self._inbox.popleft()
            self._answer_all(command.take() if isinstance(command, c.Gather) else (command,), error)

    @staticmethod
    def _answer_all(commands: Sequence[c.Command], error: JMSException) -> None:
        for command in commands:
            if command.reply is not None:
                _tell(command.reply, error)

    def _answer_waiting(self, error: JMSException, answered: Container[c.Reply | None] = ()) -> None:
        for reply in self._state.waiting():
            if reply not in answered:
                _tell(reply, error)

    # Browsing.

    def _browse(self, browser: Browser, now_ms: int, end: float) -> None:
        """Give a browser what it has credit for, and tell those who wait for the end; ``end``: when to pause."""
        complete = False
        if browser.credit > 0 and browser.room_bytes > 0 and browser.queue.id in self._directory.queues:
            limit = CHUNK_ENTRIES if browser.selector is not None else min(browser.credit, CHUNK_ENTRIES)
            found = self._stores.browse(browser.queue.id, *browser.place, limit)
            complete = found.complete
            held = self._held_positions(browser.queue.id)
            messages: list[Outgoing] = []
            looked_at = 0
            for entry in found.entries:
                if browser.room_bytes <= 0 or len(messages) == browser.credit or (looked_at and time.monotonic() > end):
                    complete = False
                    break
                browser.place = (entry.lane, entry.position)
                if entry.position > browser.through or entry.position in held:
                    continue
                if entry.expires_at_ms and entry.expires_at_ms <= now_ms:
                    continue
                if browser.selector is not None:
                    looked_at += 1
                    if not self._is_wanted(browser.selector, entry):
                        continue
                number = browser.next_number
                browser.next_number += 1
                browser.room_bytes -= entry.size
                key = entry_key(entry.queue, entry.lane, entry.position)
                messages.append(Outgoing(number, entry.position, entry.delivery_count, entry.number, entry.flags, key))
            handouts = self._handouts(messages, None)
            browser.credit -= len(handouts)
            if handouts:
                _tell(browser.sink, handouts)
        else:
            complete = browser.queue.id not in self._directory.queues
        if browser.credit > 0 and browser.room_bytes > 0 and not complete:
            self._lookers.append(browser)
            return
        if browser.drains:
            dropped, browser.credit = browser.credit, 0
            replies, browser.drains = browser.drains, []
            for reply in replies:
                _tell(reply, dropped)

    def _is_wanted(self, selector: Selector, entry: RawEntry) -> bool:
        return any(
            self._state.matching.is_selected(selector, message) for _, message in self._selectables((entry,), None)
        )

    def _held_positions(self, queue: int) -> set[int]:
        """Positions of a queue that are in consumers' hands."""
        return {
            entry.position
            for consumer in self._directory.consumers.values()
            if consumer.queue.id == queue
            for entry in consumer.unsettled.values()
        }

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Keep everybody else out while reading what is committed."""
        self.check_may_wait()
        with self._runner:
            if self.failed is not None:
                raise copied(self.failed)
            if self._unwritten is not None:
                raise ResourceAllocationException("the disk of the store is full; ask again when there is room")
            yield Reader(self)

    def _restart_position(self, queue: int, run: str) -> int:
        behind = following(self._earlier_runs, run)
        if self._stores.disk is None or behind is None:
            return self._start_positions.get(queue, 1)
        key = behind, queue
        if key not in self._restart_positions:
            if len(self._restart_positions) >= _KEPT_POSITIONS:
                self._restart_positions.clear()
            self._restart_positions[key] = self._stores.disk.run_positions(key[0]).get(queue, 1)
        return self._restart_positions[key]

    # Background jobs.

    def _chunks(self, queue: int) -> Iterator[tuple[c.Range, list[RawEntry]]]:
        """All entries of a queue, in chunks: read in the cycle that asks for the next one."""
        for delayed in (False, True):
            position: int | None = 0
            while position is not None:
                wanted = c.Range(queue, position, LAST_POSITION, CHUNK_ENTRIES, delayed=delayed)
                found, position = self._entries(wanted)
                if found:
                    yield wanted, found

    def _trim_and_drop(self, queue: int) -> Iterator[c.Command]:
        for wanted, entries in self._chunks(queue):
            yield c.Trim(wanted, entries, of_ended=True)
        yield c.Drop(queue)

    def _move_and_drop(self, queue: int) -> Iterator[c.Command]:
        for _, entries in self._chunks(queue):
            yield c.Move(queue, entries)
        yield c.Drop(queue)


class Reader:
    """What operations read of the engine between two cycles."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stores = broker._stores
        self.state = broker._state
        self.run = broker._noted_run

    def note_use(self, queue: QueueState) -> None:
        """Somebody reads a queue, without a consumer: it is not idle."""
        queue.note_use(_elapsed_ms())

    def entries(self, queue: int, first: int, last: int, limit: int) -> Loaded:
        """Up to ``limit`` entries with positions in [first, last], by position, without delayed ones."""
        return self._broker._read_mended(self._stores.read_entries, queue, first, last, limit)

    def delayed(self, queue: int, after: int, limit: int) -> Loaded:
        """Up to ``limit`` entries that are not due yet."""
        return self._stores.load(queue, DELAYED_LANE, after, limit)

    def first_position(self, queue: int) -> int | None:
        """The lowest position that is there, without delayed ones; also that of an entry that cannot be trusted."""
        found = [self._stores.load(queue, lane, 0, 1) for lane in range(10)]
        positions = [entry.position for part in found for entry in part.entries]
        positions += [position_of(key) for part in found for key in part.corrupt]
        return min(positions, default=None)

    def last_published(self, group: str) -> int | None:
        """The last number of a group that was published; None where none was, or it was forgotten."""
        published = self.state.published
        self._stores.look_up(published, group)
        return published.last(group)

    def restart_position(self, queue: int, run: str) -> int:
        """The position that a queue would give next when the run behind this one began."""
        return self._broker._restart_position(queue, run)

    def messages(self, entries: Sequence[RawEntry]) -> list[tuple[Message | None, dict[str, Any] | None]]:
        """(format and payload, annotations) of each entry; None where the record cannot be trusted."""
        bodies = self._stores.bodies([(entry.number, entry.flags) for entry in entries])
        return [(body, self._stores.annotations_of(entry)) for entry, body in zip(entries, bodies, strict=True)]

    @property
    def moves(self) -> tuple[int, int]:
        """How many publications there were, and how many of them are in their queues."""
        return self._broker._jobs.moves_added, self._broker._jobs.moves_done

    @property
    def in_quarantine(self) -> int:
        """How many records are in quarantine; without a store, none."""
        return self._stores.in_quarantine


def _lock_seconds(timeout: float | None) -> float:
    """A time-out in seconds (None: none) as locks take it."""
    return -1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)


class _Waiter:
    """Somebody who waits for an answer."""

    __slots__ = ("_answered", "_result")

    def __init__(self) -> None:
        self._answered = threading.Lock()
        self._answered.acquire()
        self._result: Any = None

    def answer(self, result: Any) -> None:
        self._result = result
        with suppress(RuntimeError):  # a failure is told to everybody, also to those who have their answer
            self._answered.release()

    def wait(self, what: str, timeout: float | None) -> Any:
        if not self._answered.acquire(timeout=_lock_seconds(timeout)):
            raise OperationTimedOutException(f"no answer to {what} within {timeout:g} s")
        if isinstance(self._result, JMSException):
            raise copied(self._result)
        return self._result


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


def _tell(callback: Callable[[Any], None], value: Any) -> None:
    """Call somebody's callback; what goes wrong in it is not the engine's end."""
    try:
        callback(value)
    except Exception:
        _log.exception("! a callback of the engine raised; it must not")


def _now_ms() -> int:
    """The time of the day, which may be set back or forward."""
    return max(0, time.time_ns() // 1_000_000)  # nothing stored has a place for times before 1970


def _elapsed_ms() -> int:
    """A time that only goes on: how long something waits goes by it."""
    return time.monotonic_ns() // 1_000_000
