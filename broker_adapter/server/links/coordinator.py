"""The transactions of one connection: declared, filled, and discharged or ended by a limit.

What a transaction is to send, to settle and to change is kept here until its discharge, which commits all of it as one
command.
A transaction that cannot be done is refused: it keeps nothing more, and its discharge is told why.  One that a client
leaves alone for too long is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import attrs

from ack_modes import Outcome
from broker_adapter.amqp.conditions import IN_DOUBT, AmqpError, error_for, exception_for
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    DECLARED,
    REJECTED,
    TRANSACTIONAL,
    LinkRemoteOpen,
    State,
    Transfers,
)
from broker_adapter.amqp.messages.region_changes import unpack_changes
from broker_adapter.amqp.messages.values import Described, Reader, Symbol
from broker_adapter.amqp.proton_engine.peer import Peer
from broker_adapter.amqp.wire import (
    ADD_DESCRIPTOR,
    COMMIT_CHANGES,
    COMMIT_ID,
    COMMIT_SETTLED,
    COMMIT_SIZE,
    DECLARE_CODE,
    DISCHARGE_CODE,
)
from broker_adapter.annotations import MAX_ANNOTATION_BYTES
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.operations.regions import ChangeKeysRequest, key_change
from broker_adapter.errors import (
    IllegalStateException,
    JMSException,
    ResourceAllocationException,
    StoreException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)
from broker_adapter.server.links.batched_consumers import BatchedConsumers
from broker_adapter.server.links.budget import Budget
from broker_adapter.server.links.client import Client
from broker_adapter.server.links.engine_calls import EngineCalls
from broker_adapter.server.links.outcomes import outcome_of
from broker_adapter.settings import EngineSettings

#: Most messages on their way to a coordinator.
_CREDIT: Final = 100
#: Most transactions of a connection that are open at once.
_MAX_TRANSACTIONS: Final = 1000
#: What a message, and a settlement, of a transaction takes in memory beside its payload, in bytes.
_SEND_BYTES: Final = 512
_SETTLEMENT_BYTES: Final = 128
#: Most settlements that the engine is given at once when a transaction is rolled back.
_SETTLED_AT_ONCE: Final = 2_000
#: Longest name of a session in the ids of its commits, in characters: it is kept as long as the link.
_MAX_SESSION_NAME: Final = 400
_TIMED_OUT: Final = "amqp:transaction:timeout"
_ROLLED_BACK: Final = "amqp:transaction:rollback"


@attrs.define(eq=False)
class Transaction:
    """What a client has put into a transaction so far."""

    coordinator: int  #: the link that it was declared on
    taken: State  #: answers a message that was put into it
    sends: list[tuple[Destination, c.NewMessage]] = attrs.field(factory=list)
    settlements: list[tuple[int, int, c.Ending]] = attrs.field(factory=list)
    changes: list[e.ChangeKeys] = attrs.field(factory=list)
    changed_keys: int = 0
    send_bytes: int = 0  #: of the messages alone, and of keys with their values
    annotation_bytes: int = 0  #: of what settlements add to messages, at most
    refusal: JMSException | None = None
    is_active: bool = False  #: whether something was put into it since the last check
    idle_since_ms: int = 0

    @property
    def kept_bytes(self) -> int:
        """What it takes in memory, about."""
        size = self.send_bytes + self.annotation_bytes
        sends = len(self.sends) + self.changed_keys
        return size + _SEND_BYTES * sends + _SETTLEMENT_BYTES * len(self.settlements)

    @property
    def messages(self) -> int:
        """What counts for the limit of messages."""
        return len(self.sends) + self.changed_keys + len(self.settlements)


class Coordinator:
    """The links to the coordinator, and the transactions that were declared on them.

    Args:
        peer: the connection's AMQP.
        calls: to the engine.
        client: the client of the connection.
        batched: the consumers whose deliveries a discharge settles.
        budget: counts what transactions keep.
        limits: the engine's, of one transaction.
        timeout_seconds: time after which a transaction that was left alone is rolled back; None: never.
        authorize: see :class:`broker_adapter.server.protocol.ServerProtocol`.
    """

    def __init__(
        self,
        peer: Peer,
        calls: EngineCalls,
        client: Client,
        batched: BatchedConsumers,
        budget: Budget,
        limits: EngineSettings,
        timeout_seconds: float | None,
        authorize: Callable[[str, Destination | None], None],
    ) -> None:
        self._peer = peer
        self._calls = calls
        self._defer = calls.defer
        self._client = client
        self._batched = batched
        self._budget = budget
        self._limits = limits
        self._timeout_seconds = timeout_seconds
        self._authorize = authorize
        self._links: set[int] = set()
        self._sessions: dict[int, str] = {}  # what the ids of the commits of a link name its session
        self._transactions: dict[bytes, Transaction] = {}
        self._next_transaction = 1

    def __repr__(self) -> str:
        return f"<Coordinator transactions={len(self._transactions)}>"

    # Links.

    def attach(self, event: LinkRemoteOpen) -> None:
        """The client attached a link to the coordinator."""
        self._links.add(event.link)
        self._peer.accept_link(event.link, event.source, event.target)
        self._peer.credit(event.link, _CREDIT)

    def has_link(self, link: int) -> bool:
        """Return whether a link leads to the coordinator."""
        return link in self._links

    def remove(self, link: int) -> None:
        """A link is gone: if it led to the coordinator, what was declared on it is rolled back.

        That includes a commit that waits for selectors: its end cannot be reported any more.
        """
        if link in self._links:
            self._links.discard(link)
            session = self._sessions.pop(link, None)
            if session is not None:
                self._defer(c.EndSession(session))
            for txn_id, transaction in list(self._transactions.items()):
                if transaction.coordinator == link:
                    del self._transactions[txn_id]
                    self._budget.transactions -= transaction.kept_bytes
                    self._roll_back(transaction)

    def clear(self) -> None:
        """Drop everything."""
        self._links.clear()
        self._sessions.clear()
        self._transactions.clear()

    # What belongs to a transaction.

    def add_sends(self, state: State, sends: Sequence[tuple[Destination, c.NewMessage]]) -> State:
        """Put messages into the transaction that their state names.

        Args:
            state: names the transaction.
            sends: the messages, at least one, each with the destination that :func:`resolved` returns.

        Returns:
            The state that answers each of them.  Where they make the transaction too large, its discharge is refused.
        """
        transaction = self._transactions.get(state.txn_id or b"")
        if transaction is None:
            return State(REJECTED, error=_unknown_transaction(state.txn_id))
        limits = self._limits
        if transaction.refusal is not None:
            return State(REJECTED, error=self._why_nothing(transaction.refusal))
        size = sum([len(message.payload) for _, message in sends])
        transaction.send_bytes += size
        transaction.sends += sends
        transaction.is_active = True
        self._budget.transactions += size + _SEND_BYTES * len(sends)
        if (
            len(transaction.sends) > limits.max_transaction_messages
            or transaction.send_bytes > limits.max_transaction_bytes
        ):
            self._refuse_as_too_large(transaction)
        return transaction.taken

    def _refuse_as_too_large(self, transaction: Transaction) -> None:
        limits = self._limits
        reason = (
            f"the transaction is larger than {limits.max_transaction_messages} messages (option"
            f" max_transaction_messages) or {limits.max_transaction_bytes} bytes (option max_transaction_bytes)"
        )
        self._refuse(transaction, ResourceAllocationException(reason, error_code="amqp:resource-limit-exceeded"))

    def add_settlements(self, state: State, consumer: int, numbers: Sequence[int]) -> bool:
        """Put settlements into the transaction that their state names.

        Args:
            state: names the transaction, and says how the deliveries end.
            consumer: the engine's number of the consumer.
            numbers: the engine's, of the deliveries.

        Returns:
            False where there is no such transaction, or it was refused: nothing was put into it.
        """
        transaction = self._transactions.get(state.txn_id or b"")
        if transaction is None or transaction.refusal is not None:
            return False
        outcome = outcome_of(state.outcome, in_transaction=True) if state.outcome is not None else Outcome.RELEASED
        before = transaction.kept_bytes
        transaction.settlements += [(consumer, number, outcome) for number in numbers]
        if not isinstance(outcome, Outcome):
            transaction.annotation_bytes += MAX_ANNOTATION_BYTES
        transaction.is_active = True
        self._budget.transactions += transaction.kept_bytes - before
        limit = self._limits.max_transaction_messages
        if transaction.messages > limit:
            self.give_up(transaction, _too_large(limit))
        return True

    @property
    def settlements(self) -> int:
        """How many settlements there are in all open transactions."""
        return sum([len(each.settlements) for each in self._transactions.values()])

    def refuse_named(self, state: State | None, error: AmqpError) -> None:
        """The transaction that this state of a message names, if any, cannot be done without the message."""
        if state is not None and state.code == TRANSACTIONAL:
            transaction = self._transactions.get(state.txn_id or b"")
            if transaction is not None and transaction.refusal is None:
                self._refuse(transaction, exception_for(error, "a message was refused"))

    # Limits.

    def largest(self) -> Transaction | None:
        """The transaction that keeps the most; None: there is none."""
        return max(self._transactions.values(), key=lambda each: each.kept_bytes, default=None)

    def give_up(self, transaction: Transaction, error: JMSException) -> None:
        """Undo a transaction without waiting for its discharge, which is told why."""
        self._refuse(transaction, error)
        self._roll_back(transaction)
        self._budget.transactions -= transaction.kept_bytes
        transaction.settlements.clear()
        transaction.annotation_bytes = 0

    def end_idle(self, now_ms: int) -> bool:
        """Undo what the client has left alone for too long; returns whether there is something to check again."""
        limit = self._timeout_seconds
        open_ones = False
        for transaction in self._transactions.values():
            if limit is None or not transaction.kept_bytes:
                continue  # clients declare the next one ahead, and may need it much later
            open_ones = True
            if transaction.is_active:
                transaction.is_active = False
                transaction.idle_since_ms = now_ms
            elif now_ms - transaction.idle_since_ms >= limit * 1000:
                reason = f"the transaction was left alone for {limit:g} s (option transaction_timeout_seconds)"
                self.give_up(transaction, TransactionRolledBackException(reason, error_code=_TIMED_OUT))
        return open_ones

    def _refuse(self, transaction: Transaction, error: JMSException) -> None:
        """A transaction cannot be done, which is said at its discharge; what it was to send is not kept until then."""
        self._budget.transactions -= transaction.kept_bytes
        transaction.refusal = error
        transaction.sends.clear()
        transaction.changes.clear()
        transaction.send_bytes = transaction.changed_keys = 0
        self._budget.transactions += transaction.kept_bytes

    # Declare and discharge.

    def on_transfers(self, event: Transfers) -> None:
        """Messages came on a link to the coordinator."""
        for number, payload, _ in event.deliveries:
            self._peer.credit(event.link, 1)
            try:
                annotations, body = _control(payload)
            except ValueError as error:
                bad = State(REJECTED, error=AmqpError("amqp:decode-error", str(error)))
                self._peer.settle(event.link, (number,), bad)
                continue
            if body.descriptor in (DECLARE_CODE, "amqp:declare:list"):
                self._declare(event.link, number)
            elif body.descriptor in (DISCHARGE_CODE, "amqp:discharge:list"):
                self._discharge(event.link, number, annotations, body.value)
            elif body.descriptor == ADD_DESCRIPTOR:
                self._add_ahead(event.link, number, annotations, body.value)
            else:
                other = AmqpError(
                    "amqp:not-implemented", f"a coordinator has declare and discharge, not {body.descriptor!r:.200}"
                )
                self._peer.settle(event.link, (number,), State(REJECTED, error=other))

    def _declare(self, link: int, number: int) -> None:
        if len(self._transactions) >= _MAX_TRANSACTIONS:
            error = AmqpError("amqp:resource-limit-exceeded", f"{_MAX_TRANSACTIONS} transactions are open already")
            self._peer.settle(link, (number,), State(REJECTED, error=error))
            return
        txn_id = self._next_transaction.to_bytes(8, "big")
        self._next_transaction += 1
        taken = State(TRANSACTIONAL, txn_id=txn_id, outcome=ACCEPTED_STATE)
        self._transactions[txn_id] = Transaction(link, taken)
        self._peer.settle(link, (number,), State(DECLARED, txn_id=txn_id))

    def _discharge(self, link: int, number: int, annotations: dict[Any, Any], fields: list[Any]) -> None:
        txn_id = fields[0] if fields else None
        transaction = self._transactions.pop(txn_id, None) if isinstance(txn_id, bytes) else None
        settled = annotations.get(COMMIT_SETTLED)
        if transaction is None:
            self._refuse_unknown(link, number, txn_id, settled)
            return
        self._settle_with(transaction, settled)
        self._budget.transactions -= transaction.kept_bytes
        if len(fields) > 1 and fields[1] is True:
            self._roll_back(transaction)
            self._peer.settle(link, (number,), ACCEPTED_STATE)
            return
        assert isinstance(txn_id, bytes)
        if transaction.refusal is None and self._peer.has_unfinished(txn_id):
            transaction.refusal = IllegalStateException("a message of the transaction has not come as a whole")
        if transaction.refusal is None:
            transaction.refusal = _what_is_missing(transaction, annotations.get(COMMIT_SIZE))
        if transaction.refusal is not None:
            self._on_committed(link, number, transaction, 0, transaction.refusal)
            return
        commit_id: c.CommitId | None = None
        named = annotations.get(COMMIT_ID)
        if isinstance(named, list) and len(named) == 2 and isinstance(named[0], str) and type(named[1]) is int:
            if len(named[0]) > _MAX_SESSION_NAME:
                reason = f"the session in the id of a commit has a name of {len(named[0])} characters"
                long = IllegalStateException(f"{reason}; the limit is {_MAX_SESSION_NAME}")
                self._on_committed(link, number, transaction, 0, long)
                return
            commit_id = c.CommitId(named[0], named[1])
            self._sessions[link] = named[0]
        self._budget.unanswered += transaction.kept_bytes
        calls = self._calls
        reply = calls.reply(self._on_committed, link, number, transaction, transaction.kept_bytes)
        sends, settlements, changes = transaction.sends, transaction.settlements, transaction.changes
        self._defer(c.Commit(calls.known_client, commit_id, sends, settlements, reply, changes))

    def _add_ahead(self, link: int, number: int, annotations: dict[Any, Any], fields: list[Any]) -> None:
        """Put what is settled or changed with a transaction into it, ahead of its discharge."""
        txn_id = fields[0] if fields else None
        transaction = self._transactions.get(txn_id) if isinstance(txn_id, bytes) else None
        settled = annotations.get(COMMIT_SETTLED)
        if transaction is None:
            self._refuse_unknown(link, number, txn_id, settled)
            return
        self._settle_with(transaction, settled)
        self._change_with(transaction, annotations.get(COMMIT_CHANGES))
        self._peer.settle(link, (number,), ACCEPTED_STATE)

    def _change_with(self, transaction: Transaction, changed: Any) -> None:
        """Put changes of a region into their transaction; where that cannot be, the discharge is refused."""
        if not isinstance(changed, bytes) or transaction.refusal is not None:
            return
        try:
            region, rows = unpack_changes(changed)
            self._authorize(ChangeKeysRequest.operation, Destination(region, DestinationKind.TOPIC))
            part = e.ChangeKeys(region, [key_change(*row) for row in rows])
        except JMSException as error:
            self._refuse(transaction, error)
            return
        limits, before = self._limits, transaction.kept_bytes
        transaction.changes.append(part)
        transaction.changed_keys += len(rows)
        transaction.send_bytes += part.size
        transaction.is_active = True
        self._budget.transactions += transaction.kept_bytes - before
        too_many = transaction.messages > limits.max_transaction_messages
        if too_many or transaction.send_bytes > limits.max_transaction_bytes:
            self._refuse_as_too_large(transaction)

    def _refuse_unknown(self, link: int, number: int, txn_id: Any, settled: Any) -> None:
        """There is no such transaction: what was to be settled in it is given back."""
        unknown = Transaction(link, ACCEPTED_STATE)
        self._settle_with(unknown, settled)
        self._budget.transactions -= unknown.kept_bytes
        self._roll_back(unknown)
        self._peer.settle(link, (number,), State(REJECTED, error=_unknown_transaction(txn_id)))

    def _settle_with(self, transaction: Transaction, settled: Any) -> None:
        """Put what records settle into their transaction; where that cannot be, the transaction is given up."""
        if not isinstance(settled, bytes) or not self._client.uses_batches:
            return
        refusal: JMSException | None = None
        before = transaction.kept_bytes
        try:
            self._batched.settle_in(transaction.settlements, settled)
        except JMSException as error:
            refusal = error
        self._budget.transactions += transaction.kept_bytes - before
        transaction.is_active = True
        limit = self._limits.max_transaction_messages
        if refusal is None and transaction.messages > limit:
            refusal = _too_large(limit)
        if refusal is not None and transaction.refusal is None:
            self.give_up(transaction, refusal)

    def _on_committed(
        self, link: int, number: int, transaction: Transaction, size: int, result: JMSException | None
    ) -> None:
        self._budget.unanswered -= size
        if result is None:
            self._peer.settle(link, (number,), ACCEPTED_STATE)
            return
        self._roll_back(transaction)
        self._peer.settle(link, (number,), State(REJECTED, error=self._why_nothing(result)))

    def _why_nothing(self, error: JMSException) -> AmqpError:
        """Return what a refused discharge says: the condition of its cause, since clients take ``rollback`` for a
        doubt.
        """
        if isinstance(error, StoreException | TransactionInDoubtException):  # it may have been done all the same
            return AmqpError(IN_DOUBT if self._client.is_own else _ROLLED_BACK, error.reason)
        cause = error.__cause__
        condition = error_for(error).condition
        if condition == _ROLLED_BACK and isinstance(cause, JMSException):
            condition = error_for(cause).condition
        if condition == _ROLLED_BACK and not self._client.is_own:
            condition = "amqp:precondition-failed"
        return AmqpError(condition, error.reason)

    def _roll_back(self, transaction: Transaction) -> None:
        """What was settled in it is delivered again: the client has released it."""
        for consumer, settlements in groupby(transaction.settlements, itemgetter(0)):
            numbers = [number for _, number, _ in settlements]
            for start in range(0, len(numbers), _SETTLED_AT_ONCE):
                self._calls.settle(consumer, numbers[start : start + _SETTLED_AT_ONCE], Outcome.MODIFIED)


def _unknown_transaction(txn_id: Any) -> AmqpError:
    return AmqpError("amqp:transaction:unknown-id", f"there is no transaction {txn_id!r:.100}")


def _what_is_missing(transaction: Transaction, size: Any) -> JMSException | None:
    """Why a transaction cannot be done of which not all has come; None: all has, or the client does not say.

    Args:
        transaction: what has come.
        size: how many messages and acknowledgements belong to it, as the client says.
    """
    sends, settlements, changes = len(transaction.sends), len(transaction.settlements), transaction.changed_keys
    if size is None or size == [sends, settlements, changes]:
        return None
    if (
        isinstance(size, list)
        and len(size) == 3
        and size[0] == sends
        and size[2] == changes
        and type(size[1]) is int
        and size[1] > settlements
    ):
        return IllegalStateException(
            f"{size[1] - settlements} of {size[1]} messages that the transaction has taken are not held any more:"
            " their consumer has ended, as it does where its queue is deleted"
        )
    return IllegalStateException(
        f"{sends} messages, {settlements} acknowledgements and {changes} changes of the transaction have come, and"
        f" {size!r:.100} belong to it"
    )


def _too_large(limit: int) -> JMSException:
    reason = f"the transaction has more than {limit} messages (option max_transaction_messages)"
    return ResourceAllocationException(reason, error_code="amqp:resource-limit-exceeded")


def _control(payload: bytes) -> tuple[dict[Any, Any], Any]:
    """The message annotations and the body of a message to the coordinator; raises ValueError."""
    reader = Reader(payload)
    annotations: dict[Any, Any] = {}
    while reader.position < len(payload):
        section = reader.value()
        descriptor = getattr(section, "descriptor", None)
        if descriptor in (0x72, Symbol("amqp:message-annotations:map")) and isinstance(section.value, dict):
            annotations = section.value
        elif descriptor in (0x77, Symbol("amqp:amqp-value:*")):
            body = section.value
            if not isinstance(body, Described) or not isinstance(body.value, list):
                raise ValueError("the message to the coordinator is neither a declare nor a discharge")
            return annotations, body
    raise ValueError("the message to the coordinator has no body")
