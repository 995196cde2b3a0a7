"""The transactions of one session at the client: declare, transfers and settlements, discharge; no I/O.

A commit is declared, filled and discharged on the session's link to the broker's coordinator.  The declare for the
next commit is written together with the discharge, so that a commit costs one round trip.  Our own server may be told
to discharge before it has answered the transfers, since it refuses the discharge where it refused a transfer; with
other brokers the discharge waits for the answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.client.brokers import STATES
from broker_adapter.amqp.conditions import IN_DOUBT, exception_for
from broker_adapter.amqp.events import (
    ACCEPTED,
    DECLARED,
    TRANSACTIONAL,
    State,
)
from broker_adapter.amqp.peer import Peer
from broker_adapter.amqp.values import Described, ULong, encode
from broker_adapter.amqp.wire import COMMIT_ID, DECLARE_CODE, DISCHARGE_CODE
from broker_adapter.errors import (
    JMSException,
    OperationTimedOutException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)
from broker_adapter.transport import OnSettled

_DECLARE: Final = b"\x00\x53\x77" + encode(Described(ULong(DECLARE_CODE), [None]))


def settle_runs(peer: Peer, settlements: Iterable[Settlement], states: Mapping[Outcome, State]) -> None:
    """Settle in order, neighbours of one link that end alike in one call."""
    link = -1
    outcome: Outcome | None = None
    numbers: list[int] = []
    for tag, ending in settlements:
        if tag.link != link or ending is not outcome:
            if outcome is not None:
                peer.settle(link, numbers, states[outcome])
            link, outcome, numbers = tag.link, ending, []
        numbers.append(tag.number)
    if outcome is not None:
        peer.settle(link, numbers, states[outcome])


@attrs.define(eq=False)
class Commit:
    """A commit under way.

    Attributes:
        number: counts up within the session.
        sends: (link, payload).
        settlements: of deliveries of this connection.
        done: called once, with the error where nothing was done.
        is_in_doubt: whether nobody can tell what became of it: its discharge is to be written, or was, and is not
            answered.  What was refused since need not have been a part of it.
    """

    number: int
    sends: Sequence[tuple[int, bytes]]
    settlements: Sequence[Settlement]
    done: Callable[[Any, JMSException | None], bool]
    started: bool = False
    discharged: bool = False
    untransmitted: set[int] = attrs.field(factory=set)  #: indexes of sends that a discharge would overtake
    unanswered: int = 0
    refusal: JMSException | None = None
    is_in_doubt: bool = False


#: Queues a message of a transaction: (link, payload, state, called when nothing that is sent then overtakes it,
#: answered).  One that is not sent any more is only answered.
SendInTransaction = Callable[[int, bytes, State, Callable[[], None], OnSettled], None]


class Coordinator:
    """A session's link to the broker's transaction coordinator, and the transaction that is open on it."""

    def __init__(
        self,
        peer: Peer,
        link: int,
        session_name: str,
        send: SendInTransaction,
        refusal_of: Callable[[Commit], JMSException | None],
        *,
        discharges_early: bool,
    ) -> None:
        """A coordinator whose link was just attached; declares its first transaction.

        Args:
            peer: the connection's.
            link: the link to the coordinator.
            session_name: names the session in commit ids, unique for ever.
            send: queues a message of a transaction.
            refusal_of: why nothing of a commit can be done, where that is clear before anything is sent.
            discharges_early: whether the broker refuses a discharge by itself where it refused a message.
        """
        self.link = link
        self._peer = peer
        self._session_name = session_name
        self._send = send
        self._refusal_of = refusal_of
        self._discharges_early = discharges_early
        self._credit = 0
        self._txn_id: bytes | None = None
        self._commits: deque[Commit] = deque()
        self._queue: deque[tuple[bytes, Callable[[State], None]]] = deque()
        self._waiting: dict[int, Callable[[State], None]] = {}
        self._ended = False
        self._declare()

    def commit(self, commit: Commit) -> None:
        """Do a commit once those before it are done."""
        self._commits.append(commit)
        self._start()

    def withdraw(self, number: int) -> bool:
        """Nobody waits for a commit any more: returns whether nothing of it will be done."""
        commit = next((each for each in self._commits if each.number == number), None)
        if commit is None or commit.is_in_doubt:
            return False
        if not commit.started:
            self._commits.remove(commit)
        elif commit.refusal is None:
            commit.refusal = OperationTimedOutException("it was not ready in time")  # its discharge says so
        return True

    def on_credit(self, credit: int) -> None:
        """The coordinator's credit changed."""
        self._credit = credit
        self._flush()

    def on_answers(self, numbers: Sequence[int], state: State) -> None:
        """The coordinator answered."""
        for number in numbers:
            answered = self._waiting.pop(number, None)
            if answered is not None:
                answered(state)

    def refuse(self, error: JMSException) -> None:
        """The coordinator is gone, and its transactions with it: what waits was not done, if it can be told."""
        reason = f"the transaction coordinator went away: {error}"
        for commit in self._end():
            kind = TransactionInDoubtException if commit.is_in_doubt else TransactionRolledBackException
            commit.done(None, kind(reason, error_code=error.error_code))

    def lose(self, error: JMSException) -> None:
        """The connection is gone: nobody can tell what became of a commit whose discharge was written."""
        for commit in self._end():
            if commit.is_in_doubt:
                reason = f"the connection was lost during the commit: {error}"
                commit.done(None, TransactionInDoubtException(reason))
            else:
                commit.done(None, error)

    def _end(self) -> deque[Commit]:
        self._ended = True
        self._queue.clear()
        self._waiting.clear()
        commits, self._commits = self._commits, deque()
        return commits

    def _declare(self) -> None:
        self._queue.append((_DECLARE, self._on_declared))
        self._flush()

    def _flush(self) -> None:
        # Where the link is gone already, we are about to hear why.
        while self._queue and self._credit > 0 and self._peer.has_link(self.link):
            payload, answered = self._queue.popleft()
            self._credit -= 1
            self._waiting[self._peer.send(self.link, payload)] = answered

    def _on_declared(self, state: State) -> None:
        if state.code != DECLARED or state.txn_id is None:
            # A coordinator that declares nothing is of no use; its close is told like any other.
            self._peer.close_link(self.link)
            self.refuse(exception_for(state.error, "the broker refused to begin a transaction"))
            return
        self._txn_id = state.txn_id
        self._start()

    def _start(self) -> None:
        """Start the first commit that waits, once the one before has its answer and a transaction is open."""
        while self._commits and not self._commits[0].started and self._txn_id is not None:
            commit = self._commits[0]
            commit.started = True
            refusal = self._refusal_of(commit)
            if refusal is None:
                self._fill(commit, State(TRANSACTIONAL, txn_id=self._txn_id))
                return
            self._commits.popleft()  # it became stale while it waited
            commit.done(None, refusal)

    def _fill(self, commit: Commit, transaction: State) -> None:
        states = {outcome: transaction._replace(outcome=state) for outcome, state in STATES.items()}
        settle_runs(self._peer, commit.settlements, states)
        commit.untransmitted.update(range(len(commit.sends)))
        commit.unanswered = len(commit.sends)
        for index, (link, payload) in enumerate(commit.sends):
            transmitted = partial(self._on_transmitted, commit, index)
            answered = partial(self._on_answered, commit, index)
            self._send(link, payload, transaction, transmitted, answered)
        self._maybe_discharge(commit)

    def _on_transmitted(self, commit: Commit, index: int) -> None:
        commit.untransmitted.discard(index)
        self._maybe_discharge(commit)

    def _on_answered(self, commit: Commit, index: int, error: JMSException | None) -> None:
        commit.unanswered -= 1
        if error is not None and commit.refusal is None:
            commit.refusal = error
        commit.untransmitted.discard(index)
        self._maybe_discharge(commit)

    def _maybe_discharge(self, commit: Commit) -> None:
        if self._ended or commit.discharged or commit.untransmitted or self._txn_id is None:
            return
        if commit.unanswered and not self._discharges_early:
            return
        commit.discharged = True
        commit.is_in_doubt = commit.refusal is None
        body = encode(Described(ULong(DISCHARGE_CODE), [self._txn_id, commit.refusal is not None]))
        annotations = encode({COMMIT_ID: [self._session_name, commit.number]})
        self._txn_id = None
        payload = b"\x00\x53\x72" + annotations + b"\x00\x53\x77" + body
        self._queue.append((payload, partial(self._on_discharged, commit)))
        self._declare()

    def _on_discharged(self, commit: Commit, state: State) -> None:
        self._commits.remove(commit)
        if commit.refusal is not None:
            reason = f"the broker refused a message of it: {commit.refusal}"
            kind: type[JMSException] = TransactionRolledBackException
            if commit.is_in_doubt and state.code == ACCEPTED:  # a broker that keeps to the protocol does not
                kind, reason = TransactionInDoubtException, f"{reason}; and it committed the others"
            refusal = kind(reason)
            refusal.__cause__ = commit.refusal
            commit.done(None, refusal)
        elif state.code == ACCEPTED:
            commit.done(None, None)
        else:
            error = state.error
            reason = (error.description if error is not None else None) or "the broker refused to commit"
            code = None if error is None else error.condition
            kind = TransactionInDoubtException if code == IN_DOUBT else TransactionRolledBackException
            commit.done(None, kind(reason, error_code=code))
        self._start()
