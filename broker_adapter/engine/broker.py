"""The engine's only driver: decide, persist, deliver.

Theory of operation
    Commands go into an inbox.  The thread that holds the *runner* lock carries out a cycle: it takes what has gathered,
    lets the state decide, commits the batches (one commit for all: group commit), and then lets the deliveries and
    replies go, in that order.  So no effect can leave before the commit it depends on, and effects leave in the order
    they were decided in.

    A caller that waits for its answer (``call``) takes the runner and carries out the cycle itself if none else does:
    a synchronous send costs a commit and no change of threads.  All else is done by the thread ``holdfast-engine``,
    which also wakes for what falls due; also what the main thread waits for, where handlers of signals could raise in
    the middle of a cycle, or call back into it (:mod:`signals`).

    Where the store has copies, what has been made after a commit leaves only when the commit is released
    (:mod:`release_queue`); the next cycle begins meanwhile.

    Each step of a cycle has a file: :mod:`inbox` takes the commands, :mod:`background` adds what is due,
    :mod:`room_checks` measures the room, :mod:`command_inputs` reads what commands ask for, :mod:`broker_state`
    decides, :mod:`loading` brings entries into memory, :mod:`stores` commits, :mod:`message_reads` joins deliveries
    with their messages, and :mod:`browsing` serves the browsers.  Operations read between two cycles (:mod:`reader`).

    Work that must not stop the engine (trimming a deleted queue, moving a published transaction) is a *background
    job*: a generator of commands, one of which is carried out a cycle (:mod:`background_jobs`).

    On an error of the store the engine stops rather than guesses: everything after it raises the same error.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import attrs

from broker_adapter.answers import Answer
from broker_adapter.clock import epoch_ms
from broker_adapter.engine.broker_state import BrokerState
from broker_adapter.engine.check.checks import Check
from broker_adapter.engine.check.findings import Finding, Tables
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.callbacks import Tell, registered, tell
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.failures import fault
from broker_adapter.engine.commands.selection import Read
from broker_adapter.engine.cycle import check_state
from broker_adapter.engine.cycle.background import Background
from broker_adapter.engine.cycle.browsing import Browsing
from broker_adapter.engine.cycle.command_inputs import NEED_NOTHING, CommandInputs
from broker_adapter.engine.cycle.entry_reads import EntryReads
from broker_adapter.engine.cycle.event_reads import EventReads
from broker_adapter.engine.cycle.inbox import CYCLE_MESSAGES, Inbox
from broker_adapter.engine.cycle.loading import Loading
from broker_adapter.engine.cycle.message_reads import MessageReads
from broker_adapter.engine.cycle.release_queue import RELEASE_SECONDS, ReleaseQueue, called_back
from broker_adapter.engine.cycle.room_checks import ROOM_CHECK_MS, RoomChecks
from broker_adapter.engine.operations.copy_states import Copies
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.requests import perform, request_of
from broker_adapter.engine.operations.whole_queues import CheckRequest
from broker_adapter.engine.queues.policies import Policies
from broker_adapter.engine.recent_requests import RecentRequests
from broker_adapter.engine.store.lmdb_store import LmdbStore, refuse_copy
from broker_adapter.engine.store.maintenance import as_answer, check_records
from broker_adapter.engine.store.port import DurableStore
from broker_adapter.engine.store.replication import Replication
from broker_adapter.engine.store.starts import Runs, new_run, run_of
from broker_adapter.engine.store.stores import Stores
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    JMSException,
    OperationTimedOutException,
    ResourceAllocationException,
    StoreCorruptException,
    StoreException,
    copied,
)
from broker_adapter.limited_log import LimitedLog
from broker_adapter.settings import EngineSettings
from broker_adapter.signals import may_be_interrupted, uninterrupted
from broker_adapter.wording import in_seconds

_log = logging.getLogger(f"holdfast.{__name__}")

#: Messages and settlements that one commit takes at most while the store has little room: what settles must fit into
#: what is kept for it.
LOW_CYCLE_MESSAGES = 500
#: Longest sleep of the engine's thread.
_SLEEP_SECONDS = 30.0
#: How often the log says that the disk is full.
_COMPLAIN_MS = 60_000
#: How long the engine waits for room, at most, before it refuses sends and new connections; in seconds.
_MOST_ROOM_WAIT_SECONDS = 5.0
#: How long a close waits, at most, for what is not released yet.
_CLOSE_SECONDS = 5.0


class Broker:
    """A durable-queue engine in this process.

    Args:
        settings: its limits.
        store: its directory, made where it does not exist, or one that is open, which is closed with the engine; None:
            everything is in memory.
        policies: the settings of queues; None: they have none of their own.
        by_itself: whether what is due happens; else only what commands ask for: nothing expires, or is forgotten.
        replication: the copies of the store, without which no effect leaves; None: there are none.

    Attributes:
        unique: a word that no other engine has.
        run: a word that no other start of an engine has.
        settings: as given.
        is_durable: whether it has a store on disk.
        failed: why it stopped, or None.
        copies: those that follow its store.
        callback_threads: identify the threads in which callbacks are called now, which must not wait for the engine.

    Raises:
        StoreLockedException, StoreVersionException, StoreCorruptException, StoreException: see ``LmdbStore``.
    """

    def __init__(
        self,
        settings: EngineSettings,
        store: str | LmdbStore | None = None,
        policies: Policies | None = None,
        *,
        by_itself: bool = True,
        replication: Replication | None = None,
    ) -> None:
        self.settings = settings
        self._by_itself = by_itself
        self.failed: JMSException | None = None
        self.callback_threads: set[int] = set()
        self._disk = disk = store if store is None or isinstance(store, LmdbStore) else LmdbStore(store, settings)
        self._stores = Stores(settings, disk)
        self._store_errors: tuple[type[Exception], ...] = disk.errors if disk is not None else ()
        #: errors that are not one command's
        self._fatal_errors: tuple[type[Exception], ...] = (JMSException, *self._store_errors)
        self.is_durable = disk is not None
        self._requests = RecentRequests()
        self.copies = Copies()
        self.unique = disk.unique if disk is not None else secrets.token_hex(8)
        self.run = new_run(_now_ms(), secrets.token_hex(6))
        self._runs = Runs(self.run, disk)
        self._state = state = BrokerState(
            settings,
            durable=self.is_durable,
            secret=secrets.token_bytes(32),
            unique=self.unique,
            read_annotations=self._stores.annotations,
            policies=policies,
        )
        self._directory = directory = state.directory
        self._blocked = state.blocked_sends
        self._inbox = Inbox(directory)
        self._commands = self._inbox.commands
        self._reads = EntryReads(self._stores, directory.queues, state.recounted)
        messages = MessageReads(self._stores, state.matching.formats, state.totals, self._inbox)
        self._loading = Loading(self._stores, state, self._reads, messages)
        #: what waits for its release, in order; None: nothing does
        self._releases: ReleaseQueue | None = None
        #: all that leaves a cycle goes by these
        self._hand_out: Tell = tell
        self._answer: Tell = tell
        if replication is not None:
            self._releases = ReleaseQueue(replication, self.callback_threads, self._signal)
            self._hand_out, self._answer = self._releases.hand_out, self._releases.answer
        self._browsing = Browsing(self._stores, directory, state.matching, messages, self._hand_out, self._answer)
        self._background = Background(settings, self._stores, state, self._reads, by_itself=by_itself)
        self._jobs = self._background.jobs
        self._room_checks = RoomChecks(settings, self._stores, state.admission)
        # What each cycle calls.
        self._add_due = self._background.add_due
        self._take = self._inbox.take
        self._measure_room = self._room_checks.measure
        self._event_reads = EventReads(self._stores, self._reads, state.events)
        self._supply = CommandInputs(
            *(self._stores, self._reads, state.commits, state.published, state.deliveries, self._event_reads),
            state.directory.staged,
        ).supplied
        self._load = self._loading.load
        self._persist = self._stores.commit
        self._handouts = messages.handouts
        self._warnings = LimitedLog(_log, records=1)
        self._runner = threading.Lock()
        self._wake = threading.Lock()
        self._wake.acquire()
        self._closing = False
        self._is_sleeping = False
        self._alarm_ms: int | None = None
        #: what was decided and could not be written yet, because there is no room
        self._unwritten: tuple[Effects, Sequence[list[c.Handout] | None]] | None = None
        self._shortage = ""  #: why not
        # What follows is by the monotonic clock.
        self._waits_since_ms = 0
        self._room_wait_ms = min(settings.blocked_send_timeout_seconds, _MOST_ROOM_WAIT_SECONDS) * 1000
        self._retry_ms = 0
        self._complain_ms = 0
        self._failure_listeners: list[Callable[[JMSException], None]] = []
        if disk is not None:
            try:
                if disk is not store:
                    refuse_copy(disk)
                self._restore(disk)
            except BaseException as error:
                disk.close()
                if isinstance(error, disk.errors):
                    raise disk.as_opening_failure(error) from error
                raise
        state.intake.begin(_now_ms())
        self._thread = threading.Thread(target=self._run, name="holdfast-engine", daemon=True)
        self._thread.start()

    def _restore(self, disk: DurableStore) -> None:
        age_ms = disk.age_ms()
        self._state.time.begin(_now_ms() if age_ms is None else age_ms, _elapsed_ms())
        queues = disk.queues()
        for queue in self._state.restore(queues, disk.streams(), disk.next_message(), disk.next_queue()):
            self._background.trim(queue)
        self._event_reads.restore(self._state.time.age_ms)
        with self._stores.records() as records:
            self._state.gateways.restore(records.items_from("gateways", b""))
        published = sorted(
            (found.record.publishing, found.queue)
            for found in queues
            if found.record.kind == "staged" and found.record.publishing
        )
        for _, staged in published:
            self._background.move(staged)
        positions = {
            queue.id: queue.next_position
            for queue in self._directory.queues.values()
            if queue.next_position > 1 and queue.record.kind in ("queue", "subscription", "events")
        }
        self._runs.begin(positions)
        self._stores.note_first_due()
        self._background.keep_staged(_elapsed_ms())

    # What others call.

    def submit(self, command: c.Command | c.DeferredCommands) -> None:
        """Hand over a command.  Does not wait; the answer comes through ``command.reply``."""
        self._commands.append(command)
        self._signal()

    def submit_all(self, commands: Iterable[c.Command]) -> None:
        """Hand over several commands, in order, with one wake-up."""
        self._commands.extend(commands)
        self._signal()

    def call(self, command: c.Command, timeout: float | None, ahead: c.DeferredCommands | None = None) -> Any:
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
        answer = Answer()
        if ahead is not None:
            self._commands.append(ahead)
        self._commands.append(command._replace(reply=answer.reply))
        if self.failed is not None:  # a closed engine has no thread that would answer
            uninterrupted(partial(self._run_one, _lock_seconds(timeout)))
        elif may_be_interrupted() or not self._run_one(0):
            self._signal()
        if not answer.arrives(timeout):
            raise OperationTimedOutException(
                f"no answer to {type(command).__name__} within {in_seconds(timeout or 0.0)}{self._delay()}"
            )
        if answer.error is not None:
            raise copied(answer.error)
        return answer.result

    def _delay(self) -> str:
        """Why no answer came in time, as the end of a sentence."""
        if self._unwritten is not None:
            return f": {self._shortage}, and the engine waits for that"
        if self._releases is not None and self._releases.waits:
            return ": the other nodes of the group have not confirmed the last commits"
        return ""

    def _run_one(self, seconds: float) -> bool:
        """Carry out one cycle, if no other thread does one for so long; -1: no limit.  Returns whether it was."""
        if not self._runner.acquire(timeout=seconds):
            return False
        try:
            self._cycle()
        finally:
            self._runner.release()
        if self._commands or self._has_more:
            self._signal()
        return True

    def request(
        self,
        operation: str,
        arguments: Mapping[str, Any],
        timeout: float | None,
        is_cancelled: Callable[[], bool] | None = None,
        later: Callable[[Any], None] | None = None,
        client: int = 0,
    ) -> Any:
        """Carry out an operation beyond messaging; see :func:`broker_adapter.engine.operations.requests.perform`.

        One that takes effect once is not cancelled: it is asked for again under its id, and goes on meanwhile.  Where
        such a one is under way already and ``later`` is given, this returns ``UNDER_WAY``, and ``later`` is called with
        the answer or the error.
        """
        asked = request_of(operation, arguments)
        if isinstance(asked, CheckRequest):
            return self._checked(is_cancelled)
        if not asked.once:
            return perform(self, asked, timeout, is_cancelled, client)
        request_id, run = asked.request_id, asked.request_run
        if run is not None and run_of(run) != self.run:
            raise IllegalStateException(
                f"the engine was started again while the request {operation!r} was under way: check what it has done,"
                " and ask again"
            )
        if request_id is None:
            return perform(self, asked, timeout, is_cancelled)
        return self._requests.once(
            *(request_id, lambda: perform(self, asked, timeout), timeout, is_cancelled, later),
            what=asked.what,
        )

    def _checked(self, is_cancelled: Callable[[], bool] | None) -> dict[str, Any]:
        """What the store says of itself as of one commit, read beside the engine."""

        def look(*_: object) -> None:
            if is_cancelled is not None and is_cancelled():
                raise ConnectionLostException("the check was cancelled: the connection that asked for it ended")

        return as_answer(check_records(self.store, look))

    def beside(self, look: Callable[[Broker], Any]) -> Any:
        """Return what ``look`` says of this engine, which goes on meanwhile; it reads the store from a snapshot.

        Raises:
            JMSException: the engine has stopped, or what ``look`` raises.
        """
        if self.failed is not None:
            raise copied(self.failed)
        try:
            return look(self)
        except self._store_errors as error:  # also where the store was closed meanwhile
            raise self.store.as_failure(error) from error

    @property
    def is_replaced(self) -> bool:
        """Whether another one goes on after a failure: none does."""
        return False

    @property
    def policies(self) -> Policies:
        """The settings of queues; any thread may ask, and another call may have others."""
        return self._directory.policies

    def use_policies(self, policies: Policies, after: Any = 0) -> None:
        """Have other settings for the queues.  Does not wait; a few queues at a time get them.

        Args:
            policies: that give them.
            after: the last queue that has got them, or an error; None: all have.
        """
        if isinstance(after, int):
            self.submit(c.UsePolicies(policies, after, partial(self.use_policies, policies)))

    @property
    def store(self) -> LmdbStore:
        """The store on disk; raises IllegalStateException where there is none."""
        if self._disk is None:
            raise IllegalStateException("the engine has no store on disk")
        return self._disk

    def check(self) -> list[Finding]:
        """Compare every table of the stores with every other, and with what is in memory; nothing is changed.

        Nothing else is done meanwhile: a second for about 200,000 messages.  The request ``check`` of an engine that
        has to go on reads the disk only.

        Returns:
            What is wrong, harmless things included, without the changes that would repair it.

        Raises:
            IllegalStateException: the caller is a callback of the engine.
        """
        with self.reading(is_shown=False):
            stores: list[Tables] = [self._stores.memory.snapshot()]
            with ExitStack() as stack:
                if self._stores.disk is not None:
                    stores.append(stack.enter_context(self._stores.disk.snapshot()))
                found = [attrs.evolve(each, changes=()) for tables in stores for each in Check(tables).findings()]
                return found + list(check_state.findings(self._directory, stores))

    def check_may_wait(self) -> None:
        """Raises IllegalStateException where the caller is a callback of the engine, which would wait for itself."""
        if threading.get_ident() in self.callback_threads:
            raise IllegalStateException("a call that waits cannot be made from a callback of the transport")

    def learn_format(self, message_format: int, read: Read, whole: Read | None = None) -> None:
        """Tell the engine how to read messages of a format, so that selectors can be applied to them.

        Args:
            message_format: as in :class:`broker_adapter.engine.commands.messaging.NewMessage`.
            read: decodes at least headers and properties; raises MessageFormatException; called in any thread.
            whole: the same with the body, which selectors over regions can name; None: ``read`` does what can be done.
        """
        self._state.matching.formats.learn(message_format, read, whole)

    def on_gateways(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        """Call ``listener`` after each commit in which a gateway has taken a message, or was made, changed or removed.

        Args:
            listener: gets the names of these gateways; called in the thread of a cycle, so that it must return quickly.

        Returns:
            What takes the listener away.
        """

        def told(names: Any) -> None:
            if not isinstance(names, JMSException):  # the engine has stopped
                listener(names)

        return registered(told, self._state.gateways.listeners)

    def on_failure(self, listener: Callable[[JMSException], None]) -> Callable[[], None]:
        """Call ``listener`` when the engine stops because of an error; returns what takes the listener away."""
        return registered(listener, self._failure_listeners)

    def tell_failure(self) -> None:
        """Call the listeners; once the engine has stopped."""
        for listener in list(self._failure_listeners):
            tell(listener, self.failed)

    def disown(self, error: JMSException) -> None:
        """In a child made by fork: what the parent's threads were about is the parent's, and this engine has failed."""
        self._runner = threading.Lock()
        self._wake = threading.Lock()
        self._wake.acquire()
        self._inbox = Inbox(self._directory)
        self._commands = self._inbox.commands
        self._failure_listeners = []
        self._releases = None
        self.callback_threads = set()
        self._stores.region_snapshots.disown()
        self.failed = error

    def close(self) -> None:
        """Carry out what was handed over, take back what clients hold, and give the store free.

        Legal twice.  Waits for a cycle under way, and for some seconds for what is not released yet.
        """
        uninterrupted(self._close)

    def abandon(self, error: JMSException) -> None:
        """Stop where another node has taken over: nothing is written any more, and nothing taken back.

        All callers that wait get the error, which should say that the outcome is not known.
        """
        self.check_may_wait()
        uninterrupted(partial(self._close, error))

    def _close(self, error: JMSException | None = None) -> None:
        with self._runner:
            if error is None and not self._closing:
                self._finish()
            if self._closing:
                return
            self._closing = True
            has_failed = self.failed is not None
            if self.failed is None:
                self.failed = error or IllegalStateException("the engine is closed")
            with called_back(self.callback_threads):
                self._give_up(self.failed)
                self._answer_inbox(self.failed)
                self._answer_waiting(self.failed)
                if error is not None and not has_failed:
                    self.tell_failure()
        self._signal()
        self._thread.join()
        self._stores.close()

    def _finish(self) -> None:
        """Carry out what was handed over, and have it leave, as far as that is possible.  The runner is held."""
        self._retry_ms = 0
        if self.failed is None:
            self._commands.extend([c.Disconnect(client, stops=True) for client in self._directory.clients])
            self._commands.append(c.EndRun())
        releases, wait = self._releases, (self._runner, _CLOSE_SECONDS)
        while (self._commands or self._unwritten is not None) and self.failed is None:
            if releases is not None and releases.is_full and not releases.has_left(*wait):
                return
            self._cycle()
            if self._unwritten is not None:
                break
        if releases is not None and self.failed is None:
            releases.has_left(*wait)

    def go_on(self) -> None:
        """Look whether commands may be taken again."""
        self._signal()

    # The engine's thread.

    def _signal(self) -> None:
        if self._wake.locked():
            with suppress(RuntimeError):  # another thread was faster
                self._wake.release()

    def _run(self) -> None:
        while not self._closing:
            is_held = self._unwritten is not None or (self._releases is not None and self._releases.is_full)
            if is_held or not (self._commands or self._has_more):
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
                self._loading.has_more
                or self._jobs.moves
                or self._jobs.trims
                or self._browsing.waiting
                or self._state.has_more
                or (self._blocked.all and self._state.waits_engine_wide and self._room_checks.has_freed_memory)
            )
        )

    def _set_alarm(self) -> None:
        """Note when something is due without a command."""
        state, before = self._state, self._alarm_ms
        alarm_ms = self._background.next_check_ms()
        if self._blocked.all or state.endings.due:
            alarms = [alarm_ms, state.next_deadline_ms()]
            if state.waits_engine_wide and state.admission.room is not None:
                alarms.append(self._room_checks.checked_ms + ROOM_CHECK_MS)
            alarm_ms = min((each for each in alarms if each is not None), default=None)
        self._alarm_ms = alarm_ms
        if self._is_sleeping and self._alarm_ms is not None and (before is None or self._alarm_ms < before):
            self._signal()

    # One cycle.

    def _cycle(self) -> None:
        """Decide, persist, deliver.  The runner is held."""
        commands: list[c.Command] = []
        effects: Effects | None = None
        thread = threading.get_ident()
        self.callback_threads.add(thread)
        try:
            if self.failed is not None:
                self._answer_inbox(self.failed)
                return
            if self._releases is not None and self._releases.is_full:
                self._alarm_ms = None  # a release wakes the engine's thread
                return
            now_ms, elapsed_ms = _now_ms(), _elapsed_ms()
            if self._unwritten is not None:
                if elapsed_ms < self._retry_ms:
                    return
                if not self._write(*self._unwritten, now_ms):
                    if elapsed_ms - self._waits_since_ms >= self._room_wait_ms:
                        self._refuse_while_waiting()
                    return
                self._unwritten = None
            self._add_due(now_ms, elapsed_ms, commands)
            if self._blocked.changing:
                self._blocked.supply_commits(self._supply)
            incoming = self._take(
                commands, CYCLE_MESSAGES if self._state.admission.room is None else LOW_CYCLE_MESSAGES
            )
            self._measure_room(elapsed_ms, incoming)
            if NEED_NOTHING.issuperset(map(type, commands)):
                effects = self._state.decide(commands, now_ms, elapsed_ms)
            else:
                supplied = [each for each in map(self._supplied_safely, commands) if each is not None]
                effects = self._state.decide(supplied, now_ms, elapsed_ms)
                self._state.commits.trim()
                self._state.published.trim()
            self._load(effects, now_ms)
            if effects.faults or self._state.matching.selector_fault is not None:
                self._log_faults(effects)
            taken = self._read_what_is_taken(effects)
            if effects.distrusted and not self._stores.set_messages_aside(effects.distrusted):
                for number, key in effects.distrusted:
                    effects.durable.keep(number, key)
            if not self._write(effects, taken, now_ms):
                self._unwritten = effects, taken
                self._waits_since_ms = elapsed_ms
                return
        except Exception as error:
            self._fail(error, commands, effects)
            return
        finally:
            self.callback_threads.discard(thread)
        self._set_alarm()

    def _log_faults(self, effects: Effects) -> None:
        for command, cause in effects.faults:
            _log.error("! %s failed unexpectedly", type(command).__name__, exc_info=cause)
        found, self._state.matching.selector_fault = self._state.matching.selector_fault, None
        if found is not None:
            _log.error("! the selector %.200r failed unexpectedly", found[0], exc_info=found[1])

    def _write(self, effects: Effects, taken: Sequence[list[c.Handout] | None], now_ms: int) -> bool:
        """Write what was decided, and let its effects go.

        Returns False where the disk has no room for it: nothing is lost, and nothing else is decided until it has.
        """
        try:
            if self._persist(effects):
                self._state.totals.commits += 1
        except ResourceAllocationException as error:
            self._shortage = error.reason
            elapsed_ms = _elapsed_ms()
            if elapsed_ms >= self._complain_ms:
                self._complain_ms = elapsed_ms + _COMPLAIN_MS
                _log.critical("! %s; the engine waits for that, and goes on then", error)
            self._retry_ms = elapsed_ms + ROOM_CHECK_MS
            self._alarm_ms = self._retry_ms
            if self._is_sleeping:
                self._signal()
            return False
        self._deliver(effects, taken, now_ms)
        return True

    def _refuse_while_waiting(self) -> None:
        """Refuse sends and new connections: nothing of theirs is decided yet.  What is confirmed later waits on."""
        reason = f"{self._shortage}; the engine waits for that, and takes nothing new meanwhile"
        for command in self._inbox.take_refusable():
            if command.reply is not None:
                self._answer(command.reply, ResourceAllocationException(reason))
        if self._releases is not None:
            self._releases.end_cycle()

    def _supplied_safely(self, command: c.Command) -> c.Command | None:
        """The command with what it asks for; None where that fails for a fault of the command, which has its answer."""
        try:
            return self._supply(command)
        except self._fatal_errors:
            raise
        except Exception as error:
            _log.error("! %s failed unexpectedly", type(command).__name__, exc_info=error)
            if command.reply is not None:
                self._answer(command.reply, fault(command, error))
            return None

    def _read_what_is_taken(self, effects: Effects) -> list[list[c.Handout] | None]:
        """The deliveries that settle themselves, each in its place: the commit takes their messages away."""
        return [
            self._handouts(messages, None, effects, consumer.began_at) if consumer.presettled else None
            for consumer, messages in effects.deliveries
        ]

    def _deliver(self, effects: Effects, taken: Sequence[list[c.Handout] | None], now_ms: int) -> None:
        for (consumer, messages), handouts in zip(effects.deliveries, taken, strict=True):
            if handouts is None:
                handouts = self._handouts(messages, consumer.id, began_at=consumer.began_at)
                if suspects := consumer.queue.suspects:
                    handouts = [each._replace(suspect=each.position in suspects) for each in handouts]
            if handouts:
                self._state.totals.delivered += len(handouts)
                self._hand_out(consumer.sink, handouts)
        for sink, leaving in effects.events:
            self._hand_out(sink, self._event_reads.handouts(leaving))
        if effects.browsers or self._browsing.waiting:
            self._browsing.serve(effects.browsers, now_ms)
        for reply, result in effects.replies:
            self._answer(reply, result)
        if self._releases is not None:
            self._releases.end_cycle()
        for queue in effects.published:
            self._background.move(queue)
        for queue in effects.ended:
            self._background.trim(queue)
        for queue in effects.overfull:
            self._background.drop_oldest(queue)
        for kind, text, arguments in effects.warnings:
            self._warnings.write(kind, text, *arguments)
        if self._warnings.periods:
            self._warnings.report()

    def _fail(self, error: Exception, commands: Sequence[c.Command], decided: Effects | None) -> None:
        """Stop, and answer all waiting callers; ``decided``: what the cycle would have written and reported."""
        failure = self._as_failure(error)
        _log.critical("! the engine stopped: %s", error, exc_info=error)
        self.failed = failure
        self._alarm_ms = None
        self._give_up(failure)
        asked = {command.reply for command in commands}
        for reply, _ in decided.replies if decided is not None else ():
            if reply not in asked:  # what waited, and went on in this cycle
                tell(reply, failure)
        self._answer_all(commands, failure)
        self._answer_waiting(failure, asked)
        self._answer_inbox(failure)
        self.tell_failure()

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

    def _give_up(self, error: JMSException) -> None:
        """Answer what was decided and has not left."""
        if self._releases is not None:
            self._releases.fail(error)
        if self._unwritten is not None:
            effects, _ = self._unwritten
            self._unwritten = None
            for reply, _ in effects.replies:
                tell(reply, error)

    def _answer_inbox(self, error: JMSException) -> None:
        """Answer what was handed over so far: a callback may hand over more at once.  The runner is held."""
        for _ in range(len(self._commands)):
            command = self._commands.popleft()
            self._answer_all(command.take() if isinstance(command, c.DeferredCommands) else (command,), error)

    @staticmethod
    def _answer_all(commands: Sequence[c.Command], error: JMSException) -> None:
        for command in commands:
            if command.reply is not None:
                tell(command.reply, error)

    def _answer_waiting(self, error: JMSException, answered: Container[c.Reply | None] = ()) -> None:
        for reply in self._state.waiting():
            if reply not in answered:
                tell(reply, error)

    @contextmanager
    def reading(self, timeout: float | None = RELEASE_SECONDS, *, is_shown: bool = True) -> Iterator[Reader]:
        """Keep all other threads out while reading what is committed.

        Args:
            timeout: longest wait in seconds for its release, without keeping others out; None: no limit.
            is_shown: whether what is read leaves the engine, so that it must be released first.

        Raises:
            OperationTimedOutException: it was not released in time.
        """
        self.check_may_wait()
        releases = self._releases if is_shown else None
        with nullcontext() if releases is None else releases.shown(timeout), self._runner:
            if self.failed is not None:
                raise copied(self.failed)
            if self._unwritten is not None:
                raise ResourceAllocationException(f"{self._shortage}, and ask again")
            try:
                yield self._reader()
            except StoreCorruptException:
                raise  # a record is damaged
            except StoreException as error:
                with called_back(self.callback_threads):
                    self._fail(error, (), None)
                raise

    def _reader(self) -> Reader:
        return Reader(self._stores, self._state, self._reads, self._runs, self._jobs, _elapsed_ms())


def _lock_seconds(timeout: float | None) -> float:
    """A time-out in seconds (None: none) as locks take it."""
    return -1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)


#: The time of the day, which may be set back or forward.
_now_ms = epoch_ms


def _elapsed_ms() -> int:
    """A time that only goes on: how long something waits goes by it."""
    return time.monotonic_ns() // 1_000_000
