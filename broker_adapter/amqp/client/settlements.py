"""How a client settles what it got: in order, in as few frames as that allows; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.client.brokers import STATES
from broker_adapter.amqp.client.drains import Drains
from broker_adapter.amqp.events import State
from broker_adapter.amqp.peer import Peer


class Settlements:
    """Settles the deliveries of a connection.

    Attributes:
        states: how an outcome is written for this broker.
    """

    def __init__(self, peer: Peer, drains: Drains, epoch: int) -> None:
        """Nothing is settled yet.

        Args:
            peer: the connection's.
            drains: tells links that wait for their last settlement.
            epoch: what the deliveries of this connection carry.
        """
        self.states: Mapping[Outcome, State] = STATES
        self._peer = peer
        self._drains = drains
        self._leaving = drains.leaving
        self._epoch = epoch

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Settle deliveries, in order; those of another epoch are ignored."""
        epoch = self._epoch
        ours = [each for each in settlements if each.tag.epoch == epoch]
        settle_runs(self._peer, ours, self.states)
        if any(outcome is not Outcome.ACCEPTED for _, outcome in ours):
            self._peer.write_out()  # proton writes credit ahead of it, and what is later would come before it
        if self._leaving:
            self._drains.leave()


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
