"""The transactions of a client's connection: declare, transfers and settlements, discharge; no I/O.

A commit is declared, filled and discharged on the session's link to the broker's coordinator.  The declare for the
next commit is written together with the discharge, so that a commit costs one round trip.  Our own server may be told
to discharge before it has answered the transfers, since it refuses the discharge where it refused a transfer; with
other brokers the discharge waits for the answers.

A commit whose discharge was sent gets no answer any more once the coordinator's link or its session has ended, by
whichever side.  Our own server is then asked what became of it; with other brokers it is in doubt.  A commit whose
discharge was not sent is rolled back.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import attrs

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.client.callbacks import Done
from broker_adapter.amqp.client.drains import Drains
from broker_adapter.amqp.client.links import Link, LinkTable, refusal
from broker_adapter.amqp.client.producers import Producers, TransactionSend
from broker_adapter.amqp.client.sessions import Sessions
from broker_adapter.amqp.client.settlements import Settlements
from broker_adapter.amqp.conditions import IN_DOUBT, exception_for
from broker_adapter.amqp.events import (
    ACCEPTED,
    DECLARED,
    TRANSACTIONAL,
    Dispositions,
    LinkFlow,
    LinkRemoteClose,
    State,
    Terminus,
)
from broker_adapter.amqp.messages.consumer_records import pack_records, split_records
from broker_adapter.amqp.messages.region_changes import pack_changes
from broker_adapter.amqp.messages.values import Described, Symbol, ULong, encode
from broker_adapter.amqp.wire import (
    ADD_DESCRIPTOR,
    COMMIT_CHANGES,
    COMMIT_ID,
    COMMIT_SETTLED,
    COMMIT_SIZE,
    DECLARE_CODE,
    DISCHARGE_CODE,
    OUTCOMES,
)
from broker_adapter.errors import (
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)
from broker_adapter.transport import RegionChange

#: What a message to the coordinator has beside changes of regions, at most, in bytes.
_AROUND_CHANGES_BYTES: Final = 200
_DECLARE: Final = b"\x00\x53\x77" + encode(Described(ULong(DECLARE_CODE), [None]))


@attrs.define(eq=False)
class Commit:
    """A commit under way.

    Attributes:
        number: counts up within the session.
        sends: (link, payload).
        settlements: of deliveries of this connection.
        changes: of regions, which go ahead of the discharge to our own server.
        done: called once, with the error where nothing was done.
        txn_id: the transaction that it is done in; None: it has not come to its discharge.
        is_in_doubt: whether it cannot be told what became of it: its discharge was sent, and is not answered.  What was
            refused since need not have been a part of it.
    """

    number: int
    sends: Sequence[tuple[int, bytes]]
    settlements: Sequence[Settlement]
    done: Callable[[Any, JMSException | None], bool]
    changes: Sequence[RegionChange] = ()
    started: bool = False
    txn_id: bytes | None = None
    untransmitted: int = 0  #: sends that a discharge would overtake
    unanswered: int = 0
    refusal: JMSException | None = None
    is_in_doubt: bool = False
    records: bytes | None = None  #: of the discharge; None: they are not taken yet


#: Has a commit of a session told what became of it; with why the broker has not answered its discharge.
Resolve = Callable[[int, Commit, JMSException], None]


class Commits:
    """The commits of a connection, each of which goes through the coordinator of its session.

    Attributes:
        discharges_early: whether the broker refuses a discharge by itself where it refused a message.
        resolve: has a commit in doubt told what became of it.
        most_bytes: returns the size of the largest message that our own server takes.
    """

    def __init__(
        self,
        table: LinkTable,
        sessions: Sessions,
        producers: Producers,
        settlements: Settlements,
        *,
        drains: Drains,
        resolve: Resolve,
        prefix: str,
        most_bytes: Callable[[], int | None],
    ) -> None:
        """No commits.

        Args:
            table: of all links.
            sessions: of the connection.
            producers: what the messages of a commit are sent on.
            settlements: what the deliveries of a commit that was rolled back are given back by.
            drains: tells links that wait for their last settlement.
            resolve: called with each commit in doubt whose coordinator the broker has ended.
            prefix: unique for ever; with a session number it names the session in commit ids.
            most_bytes: returns the size of the largest message that our own server takes; None: it is not known.
        """
        self.discharges_early = False
        self.resolve = resolve
        self.most_bytes = most_bytes
        self._table = table
        self._peer = table.peer
        self._sessions = sessions
        self._producers = producers
        self._settlements = settlements
        self._drains = drains
        self._prefix = prefix
        self._coordinators: dict[int, Coordinator] = {}  # by session of the port; the link may be gone meanwhile
        self._committed: dict[int, int] = {}  # the last commit of each session of the port that was done

    def commit(
        self,
        session: int,
        commit_number: int,
        sends: Sequence[tuple[int, bytes]],
        settlements: Sequence[Settlement],
        done: Done,
        changes: Sequence[RegionChange] = (),
    ) -> None:
        """Do all of it or nothing; ``sends`` are (link, payload)."""
        if commit_number <= self._committed.get(session, -1):
            done(None, None)  # repeated: it was done, so its deliveries are settled
            return

        def ended(result: Any, error: JMSException | None) -> bool:
            if error is None:
                if session in self._coordinators:  # otherwise it has ended
                    self._committed[session] = commit_number
                self._drains.leave()
            elif isinstance(error, TransactionRolledBackException):
                # Those that the broker has taken back already are not known any more, and are left alone.
                self._settlements.settle([Settlement(tag, Outcome.MODIFIED) for tag, _ in settlements])
            return done(result, error)

        commit = Commit(commit_number, sends, settlements, ended, changes)
        refused = self.refusal_of(commit)
        if refused is not None:
            ended(None, refused)
            return
        coordinator = self._coordinators.get(session)
        if coordinator is None or coordinator.number not in self._table.by_number:
            coordinator = self._coordinators[session] = self._attach(session)
        coordinator.commit(commit)

    def withdraw(self, session: int, commit_number: int, done: Done) -> None:
        """No caller waits for a commit any more; done with whether it is done.

        True: it is done.  False: it never will be.  None: it was sent, and has no answer.
        """
        coordinator = self._coordinators.get(session)
        if self._committed.get(session, -1) >= commit_number:
            done(True, None)
        else:
            done(False if coordinator is not None and coordinator.withdraw(commit_number) else None, None)

    def refusal_of(self, commit: Commit) -> JMSException | None:
        """Why nothing of a commit can be done, where that is clear before anything is sent."""
        for link, _ in commit.sends:
            if link not in self._producers.open:
                return TransactionRolledBackException(f"nothing was committed: link {link} is closed")
        for tag, _ in commit.settlements:
            if not self._settlements.is_unsettled(tag):
                return TransactionRolledBackException(
                    "nothing was committed: the connection or the consumer by which a message came has ended since, and"
                    " the message is redelivered"
                )
        return None

    def session_name(self, session: int) -> str:
        """Return what our own server knows the commits of a session by."""
        return f"{self._prefix}:{session}"

    def end_session(self, session: int) -> list[Commit]:
        """The application ends a session; our own server remembers its commits.

        Returns:
            The commits whose discharge has no answer, and will not have one: the caller is to end each of them.
        """
        coordinator = self._coordinators.pop(session, None)
        self._committed.pop(session, None)
        return [] if coordinator is None else coordinator.take_discharged()

    @staticmethod
    def resolved(commit: Commit, cause: JMSException, was_done: bool | None, error: JMSException | None) -> bool:
        """End a commit in doubt, as the broker says.

        Args:
            commit: one without an answer.
            cause: why it had none.
            was_done: whether it was done; None: the broker does not know.
            error: why there is no such answer.

        Returns:
            Whether a caller still waits for it.
        """
        code = cause.error_code
        if error is None and was_done:
            return commit.done(None, None)
        if error is None and was_done is not None:
            reason = f"nothing was committed: {cause.reason} before the broker had committed"
            return commit.done(None, TransactionRolledBackException(reason, error_code=code))
        why = "the broker does not know whether it was done" if error is None else error.reason
        doubt = TransactionInDoubtException(f"{cause.reason} during the commit: {why}", error_code=code)
        return commit.done(None, doubt)

    def _attach(self, session: int) -> Coordinator:
        name = self._table.new_name("coordinator", None)
        target = Terminus(capabilities=("amqp:local-transactions",), coordinator=True)
        source = Terminus(name, outcomes=OUTCOMES)
        link = self._peer.attach_sender(self._sessions.of(session), name, source, target)
        name = self.session_name(session)
        return Coordinator(self._table, link, session, self, self._producers, self._settlements, name)


class Coordinator(Link):
    """A session's link to the broker's transaction coordinator, and the transaction that is open on it."""

    def __init__(
        self,
        table: LinkTable,
        number: int,
        session: int,
        commits: Commits,
        producers: Producers,
        settlements: Settlements,
        session_name: str,
    ) -> None:
        """A coordinator whose link was just attached; declares its first transaction.

        Args:
            table: of all links.
            number: the peer's number of the link.
            session: the number of its session, of the port.
            commits: of the connection.
            producers: what the messages of a transaction are sent on.
            settlements: of the connection.
            session_name: names the session in commit ids, unique for ever.
        """
        super().__init__(table, number, session)
        table.by_number[number] = self
        self._session_name = session_name
        self._send = producers.send_in_transaction
        self._settlements = settlements
        self._refusal_of = commits.refusal_of
        self._resolve = commits.resolve
        self._most_bytes = commits.most_bytes
        self._discharges_early = commits.discharges_early
        self._credit = 0
        self._txn_id: bytes | None = None
        self._commits: deque[Commit] = deque()
        # What is to be sent: the discharge of a commit, what goes ahead of it (encoded), or None: a declare.
        self._queue: deque[Commit | bytes | None] = deque()
        self._waiting: dict[int, Commit | bytes | None] = {}  # the same, by the peer's number, until it is answered
        self._no_transaction: JMSException | None = None  # why the broker declares none any more
        self._ended = False
        self._declare()

    def commit(self, commit: Commit) -> None:
        """Do a commit once those before it are done."""
        self._commits.append(commit)
        self._start()

    def withdraw(self, number: int) -> bool:
        """No caller waits for a commit any more: returns whether nothing of it will be done."""
        commit = next((each for each in self._commits if each.number == number), None)
        if commit is None or commit.is_in_doubt:
            return False
        if not commit.started:
            self._commits.remove(commit)
        elif commit.refusal is None:
            commit.refusal = OperationTimedOutException("it was not ready in time")  # its discharge says so
        return True

    def take_discharged(self) -> list[Commit]:
        """Leave those commits whose discharge is not answered to the caller."""
        taken = [each for each in self._commits if each.is_in_doubt]
        self._commits = deque(each for each in self._commits if not each.is_in_doubt)
        return taken

    def on_flow(self, event: LinkFlow) -> None:
        self._credit = event.credit
        self._flush()

    def on_dispositions(self, event: Dispositions) -> None:
        state = event.state
        for number in event.numbers:
            if number in self._waiting:
                commit = self._waiting.pop(number)
                if commit is None:
                    self._on_declared(state)
                elif isinstance(commit, Commit):
                    self._on_discharged(commit, state)

    def on_close(self, event: LinkRemoteClose) -> None:
        self._peer.close_link(self.number, closed=event.closed)
        self.session_ended(refusal(event.error, refused=False))

    def session_ended(self, error: JMSException) -> None:
        self._leave_table()
        self._refuse(error)

    def _refuse(self, error: JMSException) -> None:
        """The coordinator is gone, and its transactions with it: what waits was not done, or the broker is asked."""
        reason = f"the transaction coordinator went away: {error.reason}"
        for commit in self._end():
            gone = TransactionRolledBackException(reason, error_code=error.error_code)
            if commit.is_in_doubt:
                self._resolve(self.session, commit, gone)
            else:
                commit.done(None, gone)

    def lost(self, error: JMSException) -> None:
        # It cannot be told what became of a commit whose discharge was written.
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
        self._queue.append(None)
        self._flush()

    def _flush(self) -> None:
        # Where the link is gone already, its loss is about to be reported.
        while self._queue and self._credit > 0 and self._peer.has_link(self.number):
            item = self._queue.popleft()
            if isinstance(item, Commit) and item.records is None:
                self._queue.extendleft(reversed([*self._take_ahead(item), item]))
                continue
            self._credit -= 1
            payload = item if isinstance(item, bytes) else _DECLARE if item is None else self._discharge_of(item)
            self._waiting[self._peer.send(self.number, payload)] = item

    def _take_ahead(self, commit: Commit) -> list[bytes]:
        """Take what goes ahead of a discharge, encoded: changes of regions, and records of what the commit settles.

        The last records stand in the discharge.
        """
        payloads = [pack_records(each) for each in split_records(self._settlements.take_records(commit.settlements))]
        commit.records = payloads.pop() if payloads else b""
        body = encode(Described(ADD_DESCRIPTOR, [commit.txn_id]))
        changes: list[bytes] = []
        if commit.refusal is None:
            try:
                packed = pack_changes(commit.changes, (self._most_bytes() or sys.maxsize) - _AROUND_CHANGES_BYTES)
                changes = [_with_annotations({COMMIT_CHANGES: each}, body) for each in packed]
            except MessageFormatException as error:
                commit.refusal = error  # its discharge says so
        return changes + [_with_annotations({COMMIT_SETTLED: each}, body) for each in payloads]

    def _on_declared(self, state: State) -> None:
        if state.code != DECLARED or state.txn_id is None:
            self._no_transaction = exception_for(state.error, "the broker refused to begin a transaction")
            self._leave_if_useless()
            return
        self._txn_id = state.txn_id
        self._start()

    def _leave_if_useless(self) -> None:
        """Close the link where the broker declares no transaction, once it has answered what was discharged."""
        error = self._no_transaction
        if error is not None and not any(each.is_in_doubt for each in self._commits):
            self._peer.close_link(self.number)  # that it is closed is told as of any other link
            self._refuse(error)

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
        states = {outcome: transaction._replace(outcome=state) for outcome, state in self._settlements.states.items()}
        self._settlements.settle_in_transaction(commit.settlements, states)
        commit.untransmitted = commit.unanswered = len(commit.sends)
        transmitted, answered = partial(self._on_transmitted, commit), partial(self._on_answered, commit)
        for link, sends in groupby(commit.sends, itemgetter(0)):
            self._send(link, [payload for _, payload in sends], transaction, transmitted, answered)
        self._maybe_discharge(commit)

    def _on_transmitted(self, commit: Commit, send: TransactionSend) -> None:
        self._note_transmitted(commit, send)
        self._maybe_discharge(commit)

    def _on_answered(self, commit: Commit, send: TransactionSend, error: JMSException | None) -> None:
        commit.unanswered -= send.messages
        if error is not None and commit.refusal is None:
            commit.refusal = error
        self._note_transmitted(commit, send)
        self._maybe_discharge(commit)

    @staticmethod
    def _note_transmitted(commit: Commit, send: TransactionSend) -> None:
        if not send.is_transmitted:
            send.is_transmitted = True
            commit.untransmitted -= send.messages

    def _maybe_discharge(self, commit: Commit) -> None:
        if self._ended or commit.txn_id is not None or commit.untransmitted or self._txn_id is None:
            return
        if commit.unanswered and not self._discharges_early:
            return
        commit.txn_id, self._txn_id = self._txn_id, None
        self._queue.append(commit)
        self._declare()

    def _discharge_of(self, commit: Commit) -> bytes:
        """The discharge of a commit, which is sent now: it fails where something of it was refused until now."""
        commit.is_in_doubt = commit.refusal is None
        body = encode(Described(ULong(DISCHARGE_CODE), [commit.txn_id, commit.refusal is not None]))
        size = [len(commit.sends), len(commit.settlements), len(commit.changes)]
        annotations: dict[Symbol, Any] = {COMMIT_ID: [self._session_name, commit.number], COMMIT_SIZE: size}
        if commit.records:
            annotations[COMMIT_SETTLED] = commit.records
        return _with_annotations(annotations, body)

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
            refusal, cause = kind(reason, error_code=code), exception_for(error, reason)
            if type(cause) is not kind:
                refusal.__cause__ = cause
            commit.done(None, refusal)
        self._start()
        self._leave_if_useless()


def _with_annotations(annotations: dict[Symbol, Any], body: bytes) -> bytes:
    """A message to the coordinator."""
    return b"\x00\x53\x72" + encode(annotations) + b"\x00\x53\x77" + body
