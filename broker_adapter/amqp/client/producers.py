"""The producers' links of a client's connection, and the temporary destinations that live as long as one; no I/O.

Sends wait in their link's queue for credit.  Their answers may come in any order; they are passed on in the order of
the sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from broker_adapter.amqp.addresses import Addresses
from broker_adapter.amqp.client.callbacks import Done, ignore
from broker_adapter.amqp.client.links import LinkTable, RequestedLink
from broker_adapter.amqp.client.sessions import OWN_SESSION, Sessions
from broker_adapter.amqp.conditions import exception_for
from broker_adapter.amqp.events import (
    ACCEPTED,
    REJECTED,
    TRANSACTIONAL,
    Dispositions,
    LinkFlow,
    LinkRemoteOpen,
    State,
    Terminus,
)
from broker_adapter.amqp.values import Described, ULong
from broker_adapter.amqp.wire import DELETE_ON_CLOSE_CODE, DESTINATION_CAPABILITIES, FORMER_NAME, OUTCOMES
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.errors import IllegalStateException, JMSException
from broker_adapter.transport import OnSettled, SenderSpec


@attrs.define(eq=False)
class _Send:
    """A message on its way, until it is on the wire."""

    payload: bytes
    done: OnSettled
    state: State | None = None  #: the transaction that it belongs to
    transmitted: Callable[[], None] | None = None  #: told when it is ahead of all that is sent then


class Producers:
    """What a connection sends on.

    Attributes:
        open: the links that messages may be sent on, by number.
        temporary: the links that temporary destinations live as long as, by the destination's name.
        answered: how many sends have got their answer and were not counted yet.
        failure: why nothing can be sent any more; None while the connection lives.
    """

    def __init__(self, table: LinkTable, sessions: Sessions, on_sends_done: Callable[[int], None]) -> None:
        """No producers.

        Args:
            table: of all links.
            sessions: of the connection.
            on_sends_done: told how many sends got their answer, after their callbacks.
        """
        self.open: dict[int, ProducerLink] = {}
        self.temporary: dict[str, TemporaryLink] = {}
        self.answered = 0
        self.failure: JMSException | None = None
        self._table = table
        self._peer = table.peer
        self._sessions = sessions
        self._on_sends_done = on_sends_done

    def attach(self, spec: SenderSpec, addresses: Addresses, done: Done) -> None:
        """Attach a producer's link; done with (link, greatest message in bytes or None)."""
        name = self._table.new_name("sender", spec.destination)
        target = Terminus()
        if spec.destination is not None:
            address = addresses.of(spec.destination)
            target = Terminus(address, capabilities=(DESTINATION_CAPABILITIES[spec.destination.kind],))
        ProducerLink(self, self._table, self._attach(spec.session, name, target), spec.session, done)

    def declare_temporary(self, kind: DestinationKind, former_name: str | None, done: Done) -> None:
        """Make a temporary destination that lives as long as the link made here; done with the destination.

        With ``former_name`` our own server gives it that name, which it had on a connection that was lost.
        """
        name = self._table.new_name("temporary", None)
        target = Terminus(
            dynamic=True,
            expiry="link-detach",
            dynamic_properties={
                "lifetime-policy": Described(ULong(DELETE_ON_CLOSE_CODE), []),
                **({} if former_name is None else {FORMER_NAME: former_name}),
            },
            capabilities=(DESTINATION_CAPABILITIES[kind],),
        )
        TemporaryLink(self, self._table, self._attach(OWN_SESSION, name, target), OWN_SESSION, done, kind)

    def _attach(self, session: int, name: str, target: Terminus) -> int:
        return self._peer.attach_sender(self._sessions.of(session), name, Terminus(name, outcomes=OUTCOMES), target)

    def send(self, link: int, payload: bytes, done: OnSettled) -> None:
        """Send when there is credit; done when the broker has answered, in the order of the sends on the link."""
        sender = self.open.get(link)
        if sender is None:
            done(self.failure or IllegalStateException(f"link {link} is closed"))
            self._on_sends_done(1)
            return
        if sender.credit > 0 and not sender.queue:
            try:
                number = self._peer.send(link, payload)
            except IllegalStateException:
                pass  # its session has ended, which is about to be reported
            else:
                sender.credit -= 1
                sender.waiting.append((number, done))
                return
        sender.queue.append(_Send(payload, done))

    def send_in_transaction(
        self, link: int, payload: bytes, state: State, transmitted: Callable[[], None], done: OnSettled
    ) -> None:
        """Send a message of a transaction when there is credit.

        Args:
            link: the link's number.
            payload: the encoded message.
            state: the transaction.
            transmitted: told when nothing that is sent then overtakes the message.  One that is not sent is only
                answered.
            done: called when the broker has answered.
        """

        def answered(error: JMSException | None) -> None:
            self.answered -= 1  # these do not count for the send window
            done(error)

        sender = self.open.get(link)
        if sender is None:  # lost while the messages before this one were queued
            done(self.failure or IllegalStateException(f"link {link} is closed"))
            return
        sender.queue.append(_Send(payload, answered, state, transmitted))
        sender.flush()


class ProducerLink(RequestedLink):
    """A link that we send on.

    Attributes:
        credit: how many messages may be sent.
        queue: the messages that wait for credit.
        waiting: (the peer's number, its callback) of the messages that wait for their answer, in order.
    """

    def __init__(self, producers: Producers, table: LinkTable, number: int, session: int, attached: Done) -> None:
        super().__init__(table, number, session, attached)
        self.credit = 0
        self.queue: deque[_Send] = deque()
        self.waiting: deque[tuple[int, OnSettled]] = deque()
        self._results: dict[int, JMSException | None] = {}  # answers that came ahead of one before them
        self._producers = producers
        producers.open[number] = self

    def on_open(self, event: LinkRemoteOpen) -> None:
        if event.target is None or self.attached is None:
            return  # refused: a detach with the reason follows
        attached, self.attached = self.attached, None
        if not attached((self.number, event.max_message_bytes), None):
            self.detach(ignore)

    def on_flow(self, event: LinkFlow) -> None:
        self.credit = event.credit
        if self.queue:
            self.flush()
        if event.drain:
            self._peer.drained(self.number)
            self.credit = self._peer.remaining_credit(self.number)

    def on_dispositions(self, event: Dispositions) -> None:
        state = event.state
        error = None if state.code == ACCEPTED else _send_failure(state)
        waiting, results = self.waiting, self._results
        ended = 0
        for number in event.numbers:
            if waiting and waiting[0][0] == number:
                waiting.popleft()[1](error)
                ended += 1
            else:
                results[number] = error
        while results and waiting and waiting[0][0] in results:
            number, done = waiting.popleft()
            done(results.pop(number))
            ended += 1
        self._producers.answered += ended

    def detach(self, done: Done) -> None:
        self.end(IllegalStateException("the producer is closed"))
        self._table.close(self, done)

    def end(self, error: JMSException) -> None:
        del self._producers.open[self.number]
        super().end(error)
        self._fail_sends(error)

    def lost(self, error: JMSException) -> None:
        self._producers.open.pop(self.number, None)
        if self.attached is not None:
            self.attached(None, error)
        self._fail_sends(error)

    def flush(self) -> None:
        """Send what waits, as far as there is credit."""
        queue, peer, link = self.queue, self._peer, self.number
        if not peer.has_link(link):
            return  # its session has ended, which is about to be reported: what waits fails then
        while queue and self.credit > 0:
            send = queue.popleft()
            self.credit -= 1
            number = peer.send(link, send.payload, state=send.state, on_given=send.transmitted)
            self.waiting.append((number, send.done))

    def _fail_sends(self, error: JMSException) -> None:
        for number, done in self.waiting:
            done(self._results.get(number, error))
        for send in self.queue:
            send.done(error)
        self._producers.answered += len(self.waiting) + len(self.queue)
        self.waiting.clear()
        self.queue.clear()


class TemporaryLink(ProducerLink):
    """A link that a temporary destination lives as long as."""

    def __init__(
        self,
        producers: Producers,
        table: LinkTable,
        number: int,
        session: int,
        attached: Done,
        kind: DestinationKind,
    ) -> None:
        super().__init__(producers, table, number, session, attached)
        self._kind = kind
        self._name: str | None = None  # of the destination

    def on_open(self, event: LinkRemoteOpen) -> None:
        if event.target is None or self.attached is None:
            return
        if not event.target.address:
            self._refuse_answer(JMSException("the broker gave the temporary destination no address"))
            return
        attached, self.attached = self.attached, None
        destination = Destination(event.target.address, self._kind)
        self._name = destination.name
        self._producers.temporary[self._name] = self
        if not attached(destination, None):
            self.detach(ignore)

    def detach(self, done: Done) -> None:
        self.end(IllegalStateException("the producer is closed"))
        self._table.close(self, done, reports_errors=True)

    def end(self, error: JMSException) -> None:
        self._remove_name()
        super().end(error)

    def lost(self, error: JMSException) -> None:
        self._remove_name()
        super().lost(error)

    def _remove_name(self) -> None:
        if self._name is not None and self._producers.temporary.get(self._name) is self:
            del self._producers.temporary[self._name]


def _send_failure(state: State) -> JMSException | None:
    """Why a send failed, by how the broker ended it; None where it did not."""
    if state.code == TRANSACTIONAL:
        outcome = state.outcome
        return None if outcome is None or outcome.code == ACCEPTED else _send_failure(outcome)
    if state.code == ACCEPTED:
        return None
    if state.code == REJECTED:
        return exception_for(state.error, "the broker rejected the message")
    if state.code == 0:
        return JMSException("the broker settled the message without saying how")
    return JMSException("the broker gave the message back")
