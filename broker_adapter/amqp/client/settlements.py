"""How a client settles what it got: in order, in as few frames as that allows; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ack_modes import DeliveryTag, Failure, Outcome, Settlement
from broker_adapter.amqp.client.batched_consumers import BatchedConsumers
from broker_adapter.amqp.client.brokers import STATES
from broker_adapter.amqp.client.drains import Drains
from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import REJECTED, State
from broker_adapter.amqp.messages.consumer_records import Settled
from broker_adapter.amqp.messages.values import ULong
from broker_adapter.amqp.proton_engine.peer import Peer
from broker_adapter.amqp.wire import EXCEPTION, REJECTED_CONDITION, RETRY_DELAY


class Settlements:
    """Settles the deliveries of a connection.

    Attributes:
        states: how an outcome is written for this broker.
    """

    def __init__(self, peer: Peer, drains: Drains, batched: BatchedConsumers, epoch: int) -> None:
        """Nothing is settled yet.

        Args:
            peer: the connection's.
            drains: tells links that wait for their last settlement.
            batched: the consumers whose deliveries are settled by records.
            epoch: what the deliveries of this connection carry.
        """
        self.states: Mapping[Outcome, State] = STATES
        self._peer = peer
        self._drains = drains
        self._leaving = drains.leaving
        self._batched = batched
        self._epoch = epoch

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Settle deliveries, in order; those of another epoch are ignored."""
        epoch, batched, states = self._epoch, self._batched, self.states
        ours = [each for each in settlements if each.tag.epoch == epoch]
        goes_back = False
        for link, outcome, numbers in _runs(ours):
            if not batched.settle(link, outcome, numbers):
                self._peer.settle(link, numbers, state_of(outcome, states))
                goes_back = goes_back or outcome is not Outcome.ACCEPTED
        if goes_back:
            self._peer.write_out()  # proton writes credit ahead of it, and what is later would come before it
        if self._leaving:
            self._drains.leave()

    def settle_in_transaction(self, settlements: Iterable[Settlement], states: Mapping[Outcome, State]) -> None:
        """Settle deliveries in a transaction; those that are settled by records are left to its discharge.

        Args:
            settlements: of this connection, in order.
            states: how an outcome is written in the transaction.
        """
        for link, outcome, numbers in _runs(settlements):
            if not self._batched.is_batched(link):
                self._peer.settle(link, numbers, state_of(outcome, states))

    def take_records(self, settlements: Iterable[Settlement]) -> list[Settled]:
        """The records of those settlements of a transaction that its discharge has; the deliveries are settled now."""
        taken = [self._batched.take(link, outcome, numbers) for link, outcome, numbers in _runs(settlements)]
        return [each for each in taken if each is not None]

    def is_unsettled(self, tag: DeliveryTag) -> bool:
        """Return whether a delivery of this connection is known and not settled."""
        return tag.epoch == self._epoch and (
            self._batched.is_unsettled(tag) or self._peer.is_unsettled(tag.link, tag.number)
        )


def state_of(outcome: Outcome | Failure, states: Mapping[Outcome, State]) -> State:
    """Return how an outcome is written for a broker; only our own is told why a listener failed."""
    if isinstance(outcome, Outcome):
        return states[outcome]
    state = states[outcome.outcome]
    if state.outcome is not None:  # in a transaction
        return state._replace(outcome=_with_failure(state.outcome, outcome))
    return _with_failure(state, outcome)


def _with_failure(state: State, failure: Failure) -> State:
    if state.code == REJECTED:
        return state._replace(error=AmqpError(REJECTED_CONDITION, failure.reason))
    if failure.delay_ms:
        return state._replace(annotations={**(state.annotations or {}), RETRY_DELAY: ULong(failure.delay_ms)})
    if failure.reason and state.annotations:
        return state._replace(annotations={**state.annotations, EXCEPTION: failure.reason})
    return state


def _runs(settlements: Iterable[Settlement]) -> Iterator[tuple[int, Outcome | Failure, list[int]]]:
    """Settlements in order; neighbours of one link that end alike are together: (link, outcome, numbers)."""
    link = -1
    outcome: Outcome | Failure | None = None
    numbers: list[int] = []
    for tag, ending in settlements:
        if tag.link != link or ending is not outcome:
            if outcome is not None:
                yield link, outcome, numbers
            link, outcome, numbers = tag.link, ending, []
        numbers.append(tag.number)
    if outcome is not None:
        yield link, outcome, numbers
