"""Ends the deliveries and the transactions of one session.

Theory of operation
    What becomes of deliveries is for the acknowledge mode's policy to say; nothing here asks which mode it is.

    *Giving back* keeps the order of the queue: what was prefetched must not be delivered before what is redelivered.
    So the flow of each consumer is stopped first (a drain), then all that was prefetched is released together with what
    is given back, and only then the broker may send again, by position.

    The policy forgets what it answers, so nothing is settled twice.  What was not handed over, because the network is
    away or a call was interrupted, the broker has back when the link or the session ends.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

from ack_modes import AcknowledgeMode, DeliveryTag, Ending, Failure, Outcome, Settlement
from broker_adapter import (
    ConnectionLostException,
    IllegalStateException,
    JMSException,
    OperationTimedOutException,
    StaleAcknowledgementException,
    StoreException,
    TransactionInDoubtException,
    TransactionRolledBackException,
    UnsupportedOperationException,
    counted,
    in_seconds,
)
from sdk.finalizers import WeakTable
from sdk.receiving.consumer import MessageConsumer
from sdk.session_state import SessionState, by_epoch, log, too_late, unconfirmed


class Endings:
    """Commits, rolls back, recovers and acknowledges, for the thread that owns the session."""

    __slots__ = ("_commits", "_consumers", "_detach_later", "_mode", "_state", "_unconfirmed")

    def __init__(self, state: SessionState, mode: AcknowledgeMode, consumers: WeakTable[MessageConsumer]) -> None:
        """Nothing has ended yet.

        Args:
            state: the session's.
            mode: the session's, for errors.
            consumers: the session's.
        """
        self._state = state
        self._mode = mode
        self._consumers = consumers
        self._commits = 0
        self._detach_later: list[int] = []  #: links of producers that closed in the transaction
        #: How much was acknowledged, by connection, that the broker was not asked for.
        self._unconfirmed: Counter[int] = Counter()

    def detach_later(self, link: int) -> None:
        """Detach a producer's link when the transaction has ended, whose sends it has to make."""
        self._detach_later.append(link)

    def commit(self) -> None:
        """``Session.commit``."""
        self._require("commit", transacted=True)
        self._commit_now()

    def rollback(self) -> None:
        """``Session.rollback``."""
        self._require("rollback", transacted=True)
        self._roll_back()

    def recover(self) -> None:
        """``Session.recover``."""
        self._require("recover", transacted=False)
        self._take_back()

    def acknowledge(self, tag: DeliveryTag, failure: Failure | None = None) -> None:
        """``message.acknowledge()`` of the delivery with this tag; with ``failure``, ``reject()`` or ``retry()``."""
        state = self._state
        state.lifecycle.require_usable()
        policy = state.policy
        with state.settling:
            if state.lost_links:
                state.take_lost_links()
            ending = policy.acknowledge(tag) if failure is None else self._settled(tag, failure)
            if ending.settlements and not ending.dirty:
                try:
                    state.settle(ending.settlements)
                    if state.confirms:
                        self._unconfirmed.update(by_epoch(ending.settlements))
                except ConnectionLostException:  # before the session was told, as it is now
                    ending = Ending((), dirty=True, stale_count=len(ending.settlements))
        if state.given_back:  # by the handler of a signal, before this was with the broker, or just behind it
            raise IllegalStateException(
                f"{state.name} was closed while it acknowledged; these messages may be delivered again"
            )
        if ending.dirty:
            error = StaleAcknowledgementException(
                f"cannot acknowledge: {state.loss} while"
                f" {counted(ending.stale_count, 'message', ('was', 'were'))} held by {state.name};"
                " those that the broker still has will be redelivered",
                stale_count=ending.stale_count,
            )
            if state.in_background is None:
                self.give_back(ending.settlements)
            else:
                state.in_background(partial(self.give_back, ending.settlements))
            raise error
        if self._unconfirmed:
            self._confirm()
        late = state.late and state.take_too_late()
        if late:
            raise too_late(state.name, late)

    def _settled(self, tag: DeliveryTag, failure: Failure) -> Ending:
        """What the policy answers to ``reject()`` or ``retry()``; under ``settling``."""
        state = self._state
        if failure.delay_ms and not state.is_holdfast:
            raise UnsupportedOperationException(
                f"cannot retry after {in_seconds(failure.delay_ms / 1000)}: a delay needs a Holdfast server; retry()"
                " without one works with every broker"
            )
        ending = state.policy.settle(tag, failure)
        if ending is None:
            what = "reject" if failure.outcome is Outcome.REJECTED else "retry"
            raise IllegalStateException(
                f"cannot {what}: the message has ended, or was given back; a message of a session in"
                f" {self._mode.name} can be rejected or retried {state.policy.settles}"
            )
        return ending

    def accept(self, tag: DeliveryTag) -> None:
        """Accept the last delivery, which the application did not receive but the SDK, and nothing else.

        Where the network is away the broker redelivers it, to any consumer.
        """
        state = self._state
        policy = state.policy
        with state.settling:
            if policy.withdrawn(tag):  # first: a loss of it makes no session dirty
                with contextlib.suppress(ConnectionLostException):
                    state.settle(policy.passed_over((tag,), Outcome.ACCEPTED))

    def give_back(
        self,
        settlements: Sequence[Settlement],
        consumers: Sequence[MessageConsumer] | None = None,
        deadline: float = math.inf,
    ) -> None:
        """Settle, such that what is redelivered precedes what these consumers (None: all) have prefetched.

        Where the network is away there is nothing to give back: the broker redelivers all that was held.  Where it is
        silent, this waits for ``poll_timeout_seconds`` at most, or until the deadline (monotonic seconds).
        """
        state = self._state
        if state.interrupted:
            return
        if {outcome for _, outcome in settlements} <= {Outcome.ACCEPTED}:
            with state.settling, contextlib.suppress(ConnectionLostException):
                state.settle(settlements)
            return
        if consumers is None:
            consumers = self._consumers.values()
        # A consumer that is being closed gives back the rest itself.
        consumers = [consumer for consumer in consumers if not consumer._prefetch.closing]
        deadline = min(deadline, time.monotonic() + state.settings.poll_timeout_seconds)
        try:
            for consumer in consumers:
                consumer._prefetch.hold_flow(deadline)
            with state.settling:
                prefetched = [tag for each in consumers for tag in each._prefetch.take_all()]
                state.settle([*settlements, *state.policy.passed_over(prefetched, Outcome.RELEASED)])
        except JMSException as error:
            # The network is away: the broker redelivers everything that was held, and recovering has succeeded.
            log.debug("! %s gives back without the broker: %s", state.name, error)
        for consumer in consumers:
            consumer._prefetch.resume_flow()

    def _require(self, what: str, *, transacted: bool) -> None:
        """Raise where a call of the application is not for this session, or not now."""
        state = self._state
        state.lifecycle.require_usable()
        if state.policy.transacted != transacted:
            raise IllegalStateException(
                f"cannot {what}: session is {self._mode.name}, not TRANSACTED"
                if transacted
                else f"cannot {what}: session is {self._mode.name}, use rollback()"
            )
        if state.in_own_thread() and state.dispatching is None:
            raise IllegalStateException(f"cannot {what}: a completion callback runs, which must not end a transaction")

    def _commit_now(self) -> None:
        state = self._state
        if state.redundancy is not None and (state.sends or state.changes.all):
            state.redundancy.require()  # the transaction stays as it is
        limit = state.settings.request_timeout_seconds
        deadline = time.monotonic() + limit  # of the commit, and of what it gives back
        with state.settling:
            state.take_lost_links()
            ending = state.policy.commit()
            # Where the handler of a signal closes it from here on, the broker refuses these.
            sends, changes = state.sends, state.changes
            is_closed = state.given_back
        if is_closed:  # by the handler of a signal; what was received is given back already
            error = TransactionRolledBackException(f"nothing was committed: {state.name} was closed meanwhile")
            self._end_sends(error)
            raise error
        if ending.dirty:
            error = TransactionRolledBackException(
                f"the transaction of {state.name} is rolled back: {state.loss} during it, with"
                f" {counted(ending.stale_count, 'received message')} and {counted(len(sends), 'sent message')}"
                + (f" and {counted(len(changes.all), 'change')} of regions" if changes.all else "")
            )
            self._end_sends(error)
            self.give_back(ending.settlements, deadline=deadline)
            raise error
        if not sends and not ending.settlements and not changes.all:
            return
        self._commits += 1
        doubt: JMSException | None = None
        state.committing = True  # until it is known what became of it
        try:
            state.transport.commit(state.number, self._commits, sends, ending.settlements, limit, changes.all)
        except (TransactionInDoubtException, OperationTimedOutException, StoreException) as error:
            doubt = error
        except JMSException as error:  # nothing was done
            state.committing = False
            received = [Settlement(each, Outcome.MODIFIED) for each, _ in ending.settlements]
            self._roll_back(error, deadline, received)
            if isinstance(error, TransactionRolledBackException):
                raise
            raise TransactionRolledBackException(f"the commit could not be done: {error}") from error
        state.committing = False
        if state.acknowledgements is not None:
            with state.settling:
                state.acknowledgements.committed(ending.settlements)
        self._end_sends(doubt)
        changes.tell_committed()
        if isinstance(doubt, TransactionInDoubtException):
            raise doubt
        if doubt is not None:
            raise TransactionInDoubtException(f"it is not known whether the commit was done: {doubt.reason}") from doubt

    def _roll_back(
        self, error: JMSException | None = None, deadline: float = math.inf, received: Sequence[Settlement] = ()
    ) -> None:
        """Drop what was sent, and give back what was received: ``received`` of a commit that was not done."""
        self._end_sends(
            error or TransactionRolledBackException(f"the transaction of {self._state.name} was rolled back")
        )
        self._take_back(deadline, received)

    def _end_sends(self, error: JMSException | None) -> None:
        state = self._state
        state.end_sends(error)
        # Jakarta Messaging 3.1 section 7.3.4: a transaction has ended when its completion callbacks have returned.
        if not state.in_own_thread() and not state.wait_until(
            lambda: not state.completions, time.monotonic() + state.settings.request_timeout_seconds
        ):
            log.warning("! a completion callback of %s has not returned in time", state.name)
        deadline = time.monotonic() + state.settings.close_timeout_seconds  # for all of them
        links, self._detach_later = self._detach_later, []
        for link in links:
            state.detach(link, deadline)

    def _take_back(self, deadline: float = math.inf, received: Sequence[Settlement] = ()) -> None:
        """Give back what the session has."""
        state = self._state
        with state.settling:
            # What came on a connection that is lost, the broker has back.
            settlements = [each for each in received if each.tag.epoch == state.epoch]
            settlements += state.policy.recover()
        self.give_back(settlements, deadline=deadline)

    def _confirm(self) -> None:
        """Ask for what is unconfirmed.  It stays so where there is no answer: the next call asks again."""
        try:
            self._state.confirm(self._unconfirmed)
        except StaleAcknowledgementException:  # there is nothing more to learn
            self._unconfirmed.clear()
            raise
        except OperationTimedOutException as error:
            text = "the next acknowledge() asks again"
            raise unconfirmed(self._state.name, self._unconfirmed, error, text) from error
        self._unconfirmed.clear()
