"""What the producers, consumers and browsers of one session share with it.

Theory of operation: threads and locks
    ``owner`` is held by the thread that is in a call of the session.  It is never waited for: another thread that
    comes meanwhile made a mistake, and gets an IllegalStateException.  While the session has listeners and is
    started, its own thread holds it throughout.  Only closing waits for it, and a call that comes as the session's own
    thread releases it.

    ``settling`` makes one step of "tell the policy, hand its answer to the transport": the session's thread and a
    closing thread take part in that too.  It is held for microseconds.

    ``lock`` guards the listeners and what they wait for.  It is never held while the transport is called, because the
    transport's threads take it.  Waiting takes no lock: a thread that needs something to happen waits in ``waiters``,
    and a thread that makes something happen does it first and then wakes them, so a delivery costs nothing while no
    thread waits.

    Order, where two are held: owner, settling, lock.

Theory of operation: signals
    Python runs the handlers of signals in the main thread, behind any call and as any function begins.  What a handler
    raises inside a call of the session ends the session (``interrupt``): its state is not relied on any more, another
    thread closes it, and the broker has back all that was not settled.  So no call is made to be resumed.  A handler
    may also close what it interrupts, and go on; then the call finds it closed.

Long because what the children of a session share is one object.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MethodType
from typing import Any, Final, TypeVar

from ack_modes import AckPolicy, DeliveryTag, Outcome, Settlement
from broker_adapter import (
    ClientSettings,
    ConnectionLostException,
    Delivery,
    Envelope,
    IllegalStateException,
    JMSException,
    ReceiverSpec,
    RegionChange,
    ResourceAllocationException,
    SenderSpec,
    StaleAcknowledgementException,
    TransactionInDoubtException,
    Transport,
    Waiters,
    counted,
    pack,
)
from sdk.acknowledgements import Acknowledgements, LostAcknowledgements
from sdk.held_changes import Committed, HeldChanges
from sdk.lifecycle import Event, Lifecycle, State
from sdk.messages.message import Message
from sdk.redundancy import Redundancy

log: Final = logging.getLogger("holdfast.sdk")
_T = TypeVar("_T")

#: Longest wait for the session's own thread to leave a session whose listeners it serves no more, in seconds.
_LEAVING_SECONDS: Final = 1.0
#: Message ids that the text of an error names.
_NAMED_IDS: Final = 5
#: Time for a link to detach where none is left, in seconds: the broker is told, and not waited for.
_LEAST_SECONDS: Final = 0.001
#: How long a receiver or a listener waits for the start of its connection before the log says so, in seconds.
UNSTARTED_SECONDS: Final = 5.0
_CONNECTION_LOST: Final = "the connection was lost"
#: What a call of a session raises by itself.  What else comes out of one was raised by the handler of a signal.
CALL_ERRORS: Final = (JMSException, TypeError, ValueError)


def unanswered(session: str) -> str:
    """What the application is told of an asynchronous send whose session was closed before the broker answered."""
    return f"{session} was closed before the answer; the message may have been sent"


def unconfirmed(session: str, settled: Mapping[int, int], error: JMSException, rest: str) -> JMSException:
    """What the application is told of acknowledgements that the broker has not confirmed.

    Args:
        session: its name.
        settled: how many there are, by connection.
        error: why there is no confirmation.
        rest: what follows from that.
    """
    which = counted(sum(settled.values()), "acknowledgement", (f"of {session} is", f"of {session} are"))
    return type(error)(f"{which} not confirmed: {error.reason}; {rest}", error_code=error.error_code)


def too_late(session: str, message_ids: Sequence[str]) -> StaleAcknowledgementException:
    """What the application is told of messages that were acknowledged in vain: as ``late`` of ``SessionState``."""
    named = ", ".join(message_ids[:_NAMED_IDS])
    more = len(message_ids) - _NAMED_IDS
    acknowledged = f"that {session} has acknowledged "
    return StaleAcknowledgementException(
        f"{counted(len(message_ids), 'message', (acknowledged + 'is', acknowledged + 'are'))}"
        " processed twice, or dead letters: the acknowledgements were lost with the connection, and others have the"
        f" messages: {named}{f' and {more} more' if more > 0 else ''}",
        stale_count=len(message_ids),
        message_ids=tuple(message_ids),
    )


def by_epoch(settlements: Iterable[Settlement]) -> Counter[int]:
    """How many deliveries these settle, by the connection that they came on."""
    return Counter([tag.epoch for tag, _ in settlements])


#: Called when an asynchronous send has ended: with None, or with what became of it.
OnCompletion = Callable[[Message, JMSException | None], None]


class Completion:
    """The end of one asynchronous send, kept until those before it have been told."""

    __slots__ = ("_answered", "_message", "_state", "_untold", "done", "error")

    def __init__(
        self, state: SessionState, message: Message, on_completion: OnCompletion, answered: Callable[[], None]
    ) -> None:
        self._state = state
        self._message = message
        self._untold = [on_completion]  #: taken out by the thread that calls or withdraws it
        self._answered = answered
        self.done = False
        self.error: JMSException | None = None

    def __call__(self, error: JMSException | None) -> None:
        """The broker has answered; called by the transport.  What it was told first holds."""
        if not self.done:
            self.error = error
            self.done = True
        self._state.wake()

    def run(self) -> None:
        """Tell the application, unless it is withdrawn; called by the session's thread."""
        try:
            on_completion = self._untold.pop()
        except IndexError:
            return
        try:
            on_completion(self._message, self.error)
        except BaseException:  # whatever it is, it is the application's; the session's thread must go on
            log.exception("! the completion callback %r of %s raised", on_completion, self._state.name)
        finally:
            self._answered()

    def withdraw(self) -> bool:
        """Do not tell the application; returns whether that comes in time."""
        try:
            self._untold.pop()
        except IndexError:
            return False
        return True


class LostForGood:
    """Tells an application of messages that it has acknowledged in vain: others have them, or they are dead letters.

    It is called when the session may be gone, and keeps neither that nor its connection.
    """

    __slots__ = ("_is_told", "_report", "_session", "_state")

    def __init__(self, state: SessionState) -> None:
        """Nothing has been lost yet.

        Args:
            state: the session's.
        """
        policy = state.policy
        self._session = state.name
        self._is_told = policy.tells_lost_acknowledgements or policy.raises_lost_acknowledgements
        self._state = weakref.ref(state)
        report = state.report
        self._report = weakref.WeakMethod(report) if isinstance(report, MethodType) else lambda: report

    def __call__(self, message_ids: list[str]) -> None:
        """The acknowledgements of these messages were lost, and others have them, or they are dead letters."""
        state = self._state()
        if (state is None or not state.lost_for_good(message_ids)) and self._is_told:
            report = self._report()
            if report is not None:
                report(too_late(self._session, message_ids))


class SessionState:
    """The parts of a session that its children work with.  See the module's theory of operation.

    Attributes:
        running: whether the connection is started, so that messages may be given to the application.
        closes: whether its close has begun, which a start of the connection does not undo.
        is_unstarted: whether it never was, and no consumer has waited for that.
        gives_out: whether a receiver has taken a message, and is about to return it.
        listening: the consumers that have a listener, by link; under ``lock``, except where a link is lost.
        dispatching: the consumer whose listener runs now, if any.
        calling: whether a call that nothing may come into is under way, or one was interrupted.
        interruption: what the handler of a signal has raised inside a call, until the session is ended for that.
        committing: whether a commit is with the broker; it ends the sends of the transaction itself.
        given_back: whether the session is closed so far that all that it held was given back.
        served: whether the session's thread owns the session, is about to, or has left it just now.
        thread: the session's thread; None until a listener or a completion needs it.
        is_holdfast: whether the broker is ours.
        user_id: that its messages name as their sender; None: none.
        redundancy: refuses sends while too few nodes have what is confirmed; None: none is required.
        epoch: what deliveries carry that can still be settled.
        interrupted: whether the network is away, and the connection being restored.
        lost_epoch: what deliveries carry of the connection that was lost last; -1: none was.
        confirms: whether acknowledging waits for the broker, as the options say.
        acknowledgements: what was acknowledged lately; None where the connection cannot be lost.
        changes: what the transaction is to change in regions.
        late: ids of messages whose acknowledgements were lost, and that other consumers have or have processed since,
            or that are dead letters by now; under ``lock``.
    """

    def __init__(
        self,
        number: int,
        transport: Transport,
        settings: ClientSettings,
        policy: AckPolicy,
        report: Callable[[JMSException], None],
        start_thread: Callable[[], None],
        end: Callable[[], None],
        *,
        is_holdfast: bool = True,
        user_id: str | None = None,
        lost: LostAcknowledgements | None = None,
        redundancy: Redundancy | None = None,
    ) -> None:
        self.number = number
        self.name = f"session {number}"
        self.transport = transport
        self.settings = settings
        self.policy = policy
        self.report = report
        self.is_holdfast = is_holdfast
        self.user_id = user_id
        self.redundancy = redundancy
        self.confirms = settings.synchronous_acknowledge
        self.lifecycle = Lifecycle(self.name)
        self.epoch = 0
        self.interrupted = False
        self.acknowledgements = None if lost is None else Acknowledgements(lost, LostForGood(self))
        self.lost_epoch = -1
        #: Epochs and links in tags, with why they were lost, and whether for good; the policy is told later.
        self.lost_links: deque[tuple[int, int, JMSException, bool]] = deque()
        self.loss = _CONNECTION_LOST  #: what made the session dirty, for errors
        self.late: list[str] = []
        self.running = False
        self.is_unstarted = True
        self.closes = False
        self.listening: dict[int, Any] = {}
        self.dispatching: object = None
        self.calling = False
        self.interruption: BaseException | None = None
        self.served = False
        self.gives_out = False
        self.thread: threading.Thread | None = None
        self._stand_in: threading.Thread | None = None  #: calls completions, where the session has no thread of its own
        self._completing = threading.Lock()
        self.owner = threading.RLock()
        # The handler of a signal, which runs in the main thread between any two steps, may close what that thread uses.
        self.settling = threading.RLock()
        self.lock = threading.RLock()
        self.waiters = Waiters()
        #: Does what waits for the broker elsewhere, and returns at once; None: whoever calls waits (see ``sdk.aio``).
        self.in_background: Callable[[Callable[[], None]], None] | None = None
        self.making_thread = threading.Lock()  #: never held by the main thread, which a signal may interrupt
        self.completions: deque[Completion] = deque()
        self._start_thread = weakref.WeakMethod(start_thread)  # a session that is dropped ends without the collector
        self._end = weakref.WeakMethod(end)
        self._timer_at: float | None = None
        # The calls of every message, without a look-up on the way.
        self.own = self.owner.acquire
        self.disown = self.owner.release
        # The work of a transaction that is not committed.
        self.sends: list[tuple[int, Envelope]] = []
        self.changes = HeldChanges()
        self.send_completions: list[Completion] = []
        self.committing = False
        self.doubt: TransactionInDoubtException | None = None  #: a commit was interrupted
        self.given_back = False
        self._held_bytes = 0  #: of the sends and the changes

    # One thread at a time, and one call.

    def in_one_call(self, act: Callable[..., _T], *arguments: Any) -> _T:
        """Do what receives, sends or ends deliveries: owning the session, and with nothing else between its steps.

        ``receive`` and ``send`` have these lines themselves, without a call for each message.  What gives the session
        back is in no function of its own, since a handler of a signal may raise as that begins.  What is raised behind
        that, where Python returns from a call with ``*arguments``, ends the session all the same.

        Raises:
            RuntimeError: the handler of a signal has interrupted such a call in this thread.
            IllegalStateException: another thread has the session, or it has ended.
        """
        if self.calling:
            self.refuse_nested()
        try:
            return self._as_owner(act, *arguments)
        except CALL_ERRORS:
            raise
        except BaseException as error:
            self.calling, self.interruption = True, error
            self.interrupt()
            raise

    def _as_owner(self, act: Callable[..., _T], *arguments: Any) -> _T:
        entered = False
        try:
            if not self.own(False):
                self.own_or_refuse()
            entered = self.calling = True
            return act(*arguments)
        finally:
            if entered:
                self.calling = False
            try:
                self.disown()
            except RuntimeError:
                if entered:  # else it was refused
                    raise

    def beside_listeners(self, act: Callable[..., _T], *arguments: Any) -> _T:
        """Do what another thread may do, too, while the session's listeners are served; else as ``in_one_call``."""
        try:
            return self._beside_listeners(act, *arguments)
        except CALL_ERRORS:
            raise
        except BaseException as error:
            self.calling, self.interruption = True, error
            self.interrupt()
            raise

    def _beside_listeners(self, act: Callable[..., _T], *arguments: Any) -> _T:
        owned = False
        try:
            owned = self.own(False) or self.own_unless_served()
            return act(*arguments)
        finally:
            try:
                self.disown()
            except RuntimeError:
                if owned:  # else it is served, or was refused
                    raise

    def from_any_thread(self, act: Callable[..., _T], *arguments: Any) -> _T:
        """Do what any thread may do, such as closing, whatever the session does meanwhile."""
        try:
            return act(*arguments)
        except CALL_ERRORS:
            raise
        except BaseException as error:
            self.calling, self.interruption = True, error
            self.interrupt()
            raise

    def interrupt(self) -> None:
        """The handler of a signal has raised inside a call: end the session, whose state is not relied on any more.

        Another thread closes it.  Its calls raise IllegalStateException from here on.  The caller has set ``calling``,
        for good, and ``interruption``: where a second handler raises in here, the next call does this again.
        """
        error = self.interruption
        if self.lifecycle.state is State.CLOSED:
            return
        if self.committing:
            self.committing = False
            self.doubt = TransactionInDoubtException(f"the commit was interrupted by {error!r:.200}")
        self.fail(
            IllegalStateException(
                f"{self.name} has ended, because the handler of a signal raised {error!r:.200} inside one of its calls;"
                + (
                    " it is not known whether its last commit was done"
                    if self.doubt is not None
                    else " what it had not acknowledged or committed is given back; make another session"
                )
            )
        )
        end = self._end()
        if end is not None:
            end()
        self.interruption = None

    def refuse_nested(self) -> None:
        """What follows where ``calling`` says that a call is under way: in this thread, or in another; or interrupted.

        Raises:
            RuntimeError: in this one, which the handler of a signal has interrupted.
            IllegalStateException: it was interrupted, and the session has ended.
        """
        if self.interruption is not None:
            self.interrupt()
        if self.lifecycle.error is not None:
            self.lifecycle.require_usable()
        if self.owner._is_owned() and not self.in_own_thread():  # type: ignore[attr-defined]  # as Condition asks
            raise RuntimeError(
                f"{self.name} is in the middle of a call that the handler of a signal has interrupted; a handler may"
                " close it, and set a flag that the program checks afterwards"
            )

    def own_or_refuse(self) -> None:
        """What follows where ``own(False)`` said that another thread has this session.

        The session's own thread, where it serves no listener any more, is about to leave it: that is waited for.

        Raises:
            IllegalStateException: it is another thread, or listeners are served.
        """
        is_leaving = self.served and not (self.running and self.listening) and self.dispatching is None
        if self.owner.acquire(timeout=_LEAVING_SECONDS if is_leaving else 0):
            return
        self.lifecycle.require_usable()
        if self.listening and self.running:
            raise IllegalStateException(
                f"{self.name} is served by the thread of its listeners while the connection is started; "
                "other threads may only close it, and use sessions of their own"
            )
        raise IllegalStateException(
            f"{self.name} is in use by another thread; a session is for one thread at a time: make one for each, or"
            " send with connection.create_sender() (docs/faq.md)"
        )

    def own_unless_served(self) -> bool:
        """Own the session for a call that may also be made while its listeners are served; returns whether it is owned.

        Raises:
            IllegalStateException: another thread is in a call of the session.
        """
        if not self.own(False):
            if self.listening:
                return False
            self.own_or_refuse()
        return True

    def in_own_thread(self) -> bool:
        """Whether the caller is the session's thread: a listener or a completion callback."""
        thread = threading.current_thread()
        return thread is self.thread or thread is self._stand_in

    # Waiting and waking.

    def wake(self) -> None:
        """Let those that wait check again; free of cost where none waits."""
        if self.waiters:
            self.waiters.wake()

    def wait_until(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        """Wait for something; returns whether it is so, False when the deadline (monotonic seconds) passed first."""
        return self.waiters.wait(condition, deadline)

    def ensure_thread(self) -> None:
        """Start the session's thread, where it does not run; after what it is needed for, or it may end meanwhile.

        Raises:
            ResourceAllocationException: the process has as many threads as it may.
        """
        if self.thread is None:  # one that ends checks once more whether it is needed, behind this
            start = self._start_thread()
            if start is None:
                raise IllegalStateException(f"{self.name} was dropped, and starts no thread any more")
            try:
                start()
            except RuntimeError as error:  # the process has as many threads as it may
                raise ResourceAllocationException(f"{self.name} needs a thread: {error}") from error

    def attach(self, spec: SenderSpec | ReceiverSpec, sink: Callable[[Sequence[Delivery]], None] | None) -> int:
        """Attach a link, and return its number; blocks for ``request_timeout_seconds`` at most.

        Raises:
            IllegalStateException: the session was closed while this waited for the network; the link is detached.
            JMSException: as the transport says.
        """
        link = self.transport.attach(spec, sink, self.settings.request_timeout_seconds)
        if not self.lifecycle.usable:
            with suppress(JMSException):
                self.transport.detach(link, self.settings.close_timeout_seconds)
            self.lifecycle.require_usable()
        return link

    def detach(self, link: int, deadline: float) -> None:
        """Detach a link; where the network is away, that is logged: the broker ends the link by itself.

        Args:
            link: its number.
            deadline: when to stop waiting for the broker (monotonic seconds).
        """
        try:
            self.transport.detach(link, max(_LEAST_SECONDS, deadline - time.monotonic()))
        except JMSException as error:
            log.debug("! %s detaches without the broker: %s", self.name, error)

    # Settling.

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Hand the policy's answer over; under ``settling``.

        Raises:
            ConnectionLostException: the network is away.
        """
        if settlements:
            self.hand_over(settlements)
            if self.acknowledgements is not None:
                self.acknowledgements.settled(settlements)

    def hand_over(self, settlements: Sequence[Settlement]) -> None:
        """``settle``, without a word to ``acknowledgements``; under ``settling``."""
        try:
            self.transport.settle(settlements)
        except ConnectionLostException:
            # Its event is on its way; until it is here nothing more of that connection may be given out.
            if not self.interrupted:
                self._note_lost(self.epoch + 1)
            raise

    def confirm(self, settled: Mapping[int, int], link: int | None = None, *, outlasts_loss: bool = True) -> None:
        """Wait until the broker has carried out what was settled, at least one delivery; outside ``settling``.

        Args:
            settled: how much was settled, by connection.
            link: of the consumer that waits, no longer than until it is closed; None: the session waits.
            outlasts_loss: whether this waits for the network where it is away, or goes meanwhile.

        Raises:
            StaleAcknowledgementException: the connection was lost, and leads to another store now, which cannot say it;
                or the broker has refused to hear again what the loss took.
            JMSException: the broker has not said so; what was settled may have been lost.
        """
        self.transport.confirm(self.settings.request_timeout_seconds, self.number, link, outlasts_loss=outlasts_loss)
        if self.acknowledgements is None:
            return
        lost = self.acknowledgements.lost
        for since, why in (
            (lost.moved_at, "the connection leads to another broker's store now"),
            (lost.refused_at, "the broker refused to hear of them again"),
        ):
            stale_count = sum(count for epoch, count in settled.items() if epoch < since)
            if stale_count:
                raise StaleAcknowledgementException(
                    f"{counted(stale_count, 'message')} that {self.name} has acknowledged may be delivered again: the"
                    f" connection was lost before the broker confirmed them, and {why}",
                    stale_count=stale_count,
                )

    def confirm_or_report(self, settled: Mapping[int, int], link: int, *, outlasts_loss: bool) -> None:
        """``confirm``, where no caller could catch an error: the exception listener gets it.

        A caller that has a message for the application does not wait for the network: other consumers may get later
        messages of its group or exclusive queue as soon as the connection is lost.

        Args:
            settled: as in ``confirm``.
            link: of the consumer that waits.
            outlasts_loss: as in ``confirm``.
        """
        try:
            self.confirm(settled, link, outlasts_loss=outlasts_loss)
        except StaleAcknowledgementException as error:
            self.report(error)
        except JMSException as error:
            self.report(unconfirmed(self.name, settled, error, "these messages may be delivered again"))

    def lost_for_good(self, message_ids: list[str]) -> bool:
        """These were acknowledged in vain, as ``late`` says.

        Returns:
            Whether the next call that acknowledges raises that; where it does not, the exception listener is called.
        """
        with self.lock:
            if not self.policy.raises_lost_acknowledgements or not self.lifecycle.usable:
                return False
            self.late += message_ids
        return True

    def take_too_late(self) -> list[str]:
        """What is to be raised once: ``late``, which is empty then."""
        if not self.late:
            return []
        with self.lock:
            found, self.late = self.late, []
        return found

    def pass_over(self, tags: Sequence[DeliveryTag], outcome: Outcome) -> None:
        """End deliveries that the application never saw; where the network is away, they are redelivered anyway."""
        with self.settling:
            try:
                self.settle(self.policy.passed_over(tags, outcome))
            except ConnectionLostException as error:
                log.debug("! %s passes over deliveries without the broker: %s", self.name, error)

    def connection_lost(self, epoch: int) -> None:
        """The connection was lost; deliveries will carry at least this epoch."""
        with self.settling:
            self._note_lost(epoch)
        self.wake()

    def _note_lost(self, epoch: int) -> None:
        self.lost_links.clear()  # with their connection
        if self.interrupted and epoch <= self.epoch:
            return  # known, by a call that met the loss ahead of the event: what was begun since is not lost
        self.interrupted = True  # before the epoch: a thread that sees the epoch sees this as well
        self.lost_epoch = self.epoch
        self.epoch = epoch
        self.policy.interrupted(epoch)
        self.loss = _CONNECTION_LOST
        if self.acknowledgements is not None:
            self.acknowledgements.interrupted()

    def acknowledgements_in_doubt(self) -> None:
        """The session ends, and its last acknowledgements may be lost: the connection is to repeat them."""
        with self.settling:
            if self.acknowledgements is not None:
                self.acknowledgements.interrupted()

    def link_lost(self, link: int | None, error: JMSException, epoch: int, *, for_good: bool) -> None:
        """The broker took back what came on one link; ``take_lost_links`` tells the policy.  Waits for nothing.

        Args:
            link: in tags; None: nothing came on it.
            error: why it was lost.
            epoch: of its connection.
            for_good: whether it is not attached again.
        """
        if link is not None:
            self.lost_links.append((epoch, link, error, for_good))

    def take_lost_links(self) -> None:
        """Tell the policy of the links that were lost: not in the thread of the engine, which must not wait."""
        if not self.lost_links:
            return
        with self.settling:
            while self.lost_links:
                epoch, link, error, for_good = self.lost_links.popleft()
                if epoch == self.epoch:  # else it was lost with its connection, and the number may be another link's
                    self.policy.link_lost(link)
                    if self.acknowledgements is not None:
                        self.acknowledgements.link_lost(link, for_good=for_good)
                    self.loss = f"the broker closed a consumer ({error})"

    def restore(self, epoch: int) -> None:
        """The connection works again."""
        with self.settling:
            self.epoch = epoch
            self.policy.restored(epoch)
            self.interrupted = False
        self.wake()

    def keep_time(self, due_at: float) -> None:
        """See to it that the session's thread asks the policy at this instant."""
        if due_at != self._timer_at:
            try:
                self.ensure_thread()
            except JMSException as error:  # the next message asks again; what is due ends with a full batch as well
                log.warning("! %s has no thread that acknowledges in time: %s", self.name, error)
                return
            self._timer_at = due_at
            self.wake()

    # Sends and changes of a transaction.

    def keep_send(self, link: int, envelope: Envelope, completion: Completion | None) -> None:
        """Keep a send until the commit.

        Raises:
            MessageFormatException: it cannot be encoded.
            ResourceAllocationException: the transaction is as large as it may be.
        """
        self._take_room(1, len(pack(envelope)))
        self.sends.append((link, envelope))
        if completion is not None:
            self.send_completions.append(completion)
            self.wake()  # the thread has nothing to tell before the end of the transaction

    def hold_changes(self, changes: Sequence[RegionChange], committed: Committed) -> None:
        """Hold changes of a region until the commit: all of them, or none.

        Args:
            changes: at least one, in order.
            committed: called once they are done, or may be.

        Raises:
            ResourceAllocationException: the transaction is as large as it may be.
        """
        self._take_room(len(changes), sum([len(each.key) + len(each.payload) for each in changes]))
        self.changes.hold(changes, committed)

    def _take_room(self, count: int, size: int) -> None:
        """Take room in the transaction for so many sends or changes."""
        settings, held = self.settings, len(self.sends) + len(self.changes.all)
        if held + count > settings.transaction_messages:
            raise ResourceAllocationException(
                f"the transaction of {self.name} would have {held + count} sends and changes, more than the limit of"
                f" {settings.transaction_messages} (option transaction_messages); commit more often"
            )
        if self._held_bytes + size > settings.transaction_bytes:
            raise ResourceAllocationException(
                f"the transaction of {self.name} would hold {self._held_bytes + size} bytes, more than the limit of "
                f"{settings.transaction_bytes} bytes (option transaction_bytes); commit more often"
            )
        with self.settling:
            self.policy.sent()
        self._held_bytes += size

    def end_sends(self, error: JMSException | None) -> None:
        """The transaction is over: committed (None), or not."""
        self.sends = []
        self.changes = HeldChanges()
        self._held_bytes = 0
        ended, self.send_completions = self.send_completions, []
        for completion in ended:
            completion(error)
        if ended:
            try:
                self.ensure_thread()
            except JMSException as failure:  # the transaction has ended all the same
                log.warning("! %s has no thread for its completions, this one tells them: %s", self.name, failure)
                before, self._stand_in = self._stand_in, threading.current_thread()
                try:
                    self.complete()
                finally:
                    self._stand_in = before

    def end_completions(self) -> None:
        """The session ends: what the broker has not answered is told to the application, by the session's thread.

        The sends of a transaction are not: they end with it.
        """
        if self.policy.transacted:
            return
        for completion in list(self.completions):
            if not completion.done:
                completion(ConnectionLostException(unanswered(self.name)))

    def complete(self) -> None:
        """Tell of the asynchronous sends that have ended, in the order in which they were made; once at a time."""
        completions = self.completions
        told = False
        with self._completing, suppress(IndexError):  # there are none, or no more
            while (first := completions[0]).done:
                # Taken away only afterwards, so that an empty queue means that all have been told.
                first.run()
                self._remove_completion(first)
                told = True
        if told:
            self.wake()

    def withdraw(self, completion: Completion) -> bool:
        """The send of a completion has raised: it is not told of; returns whether that comes in time."""
        in_time = completion.withdraw()
        if in_time:
            self._remove_completion(completion)
            self.wake()
        return in_time

    def _remove_completion(self, completion: Completion) -> None:
        with suppress(ValueError):  # the session's thread and one that withdraws it may both be at it
            self.completions.remove(completion)

    # Start, stop, failure.

    def process(self, event: Event) -> bool:
        """Change the state of the session; returns whether it changed."""
        with self.lock:
            changed = self.lifecycle.process(event)
            self.running = self.lifecycle.state is State.STARTED
            self.is_unstarted = self.is_unstarted and not self.running
            if self.lifecycle.error is not None:  # another thread has failed it meanwhile
                self.running = False
            self.wake()
            return changed

    def start_or_stop(self, event: Event) -> bool:
        """``process`` what the connection does, where the session is not being closed; whether it changed."""
        with self.lock:
            return self.lifecycle.usable and not (self.closes and event is Event.START) and self.process(event)

    def warn_unstarted(self, consumer: str) -> None:
        """Log, once, that a consumer waits for messages of a connection that was never started."""
        if self.is_unstarted:
            self.is_unstarted = False
            log.warning("! %s gets no message before its connection is started: call connection.start()", consumer)

    def stop_listeners(self, *, closes: bool) -> None:
        """Call no listener any more; one that runs goes on.

        Args:
            closes: whether the session is closed next, so that no start of the connection starts it again.
        """
        with self.lock:
            self.closes = self.closes or closes
            if self.listening or self.dispatching is not None:
                self.start_or_stop(Event.STOP)

    def wait_for_listener(self, deadline: float) -> None:
        """Wait until no listener runs, or the session is started again, or the network is away."""
        self.wait_until(lambda: self.dispatching is None or self.running or self.interrupted, deadline)

    def wait_until_stopped(self, deadline: float) -> bool:
        """Wait until no listener runs and no receiver returns a message, or it is started again; whether that is so."""
        with self.settling:  # what is being taken out of a buffer was taken before this, or stays there
            pass
        return self.wait_until(lambda: self.running or (self.dispatching is None and not self.gives_out), deadline)

    def fail(self, error: JMSException) -> None:
        """The connection is gone for good: all calls that wait are to raise this."""
        self.lifecycle.fail(error)
        self.running = False
        self.wake()
