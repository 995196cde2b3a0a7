"""The producers' links of a client's connection, and the temporary destinations that live as long as one; no I/O.

Sends wait in their link's queue for credit.  Our own server gets what has gathered there in batches
(:mod:`broker_adapter.amqp.messages.batches`), each of which takes one credit.  The answers may come in any order; they
are passed on in the order of the sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, takewhile
from typing import cast

import attrs

from broker_adapter.amqp.addresses import Addresses
from broker_adapter.amqp.client.callbacks import Done, ignore
from broker_adapter.amqp.client.links import Link, LinkTable, RequestedLink
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
from broker_adapter.amqp.messages.batches import MOST_BYTES, MOST_MESSAGES, batch_size, pack_batch, refused_in
from broker_adapter.amqp.messages.values import Described, ULong
from broker_adapter.amqp.wire import DELETE_ON_CLOSE_CODE, DESTINATION_CAPABILITIES, FORMER_NAME, OUTCOMES
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.errors import IllegalStateException, JMSException
from broker_adapter.transport import OnSettled, SenderSpec

#: A send: the link, the encoded message, and what is told when the broker has answered.
Send = tuple[int, bytes, OnSettled]


@attrs.define(eq=False)
class TransactionSend:
    """A message of a transaction on its way, or several of one link as a batch."""

    payload: bytes
    messages: int
    state: State  #: the transaction
    transmitted: Callable[[TransactionSend], None]  #: told when it is ahead of all that is sent then
    answered: Callable[[TransactionSend, JMSException | None], None]  #: told the first error, if any
    is_transmitted: bool = False  #: for its owner, who changes it

    def on_given(self) -> None:
        """The peer has all of it."""
        self.transmitted(self)

    def done(self, error: JMSException | None) -> None:
        """The broker has answered it."""
        self.answered(self, error)


class Producers:
    """What a connection sends on.

    Attributes:
        open: the links that messages may be sent on, by number.
        temporary: the links that temporary destinations live as long as, by the destination's name.
        answered: how many sends have got their answer and were not counted yet.
        failure: why nothing can be sent any more; None while the connection lives.
        batch_bytes: most bytes of a batch; 0 where the broker takes single messages only.
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
        self.batch_bytes = 0
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

    def go_round(self, done: Done) -> None:
        """Done when the broker has read all that was sent before: an anonymous link has come and gone."""
        number = self._attach(OWN_SESSION, self._table.new_name("round", None), Terminus())
        self._table.close(Link(self._table, number, OWN_SESSION), done)

    def _attach(self, session: int, name: str, target: Terminus) -> int:
        return self._peer.attach_sender(self._sessions.of(session), name, Terminus(name, outcomes=OUTCOMES), target)

    def send_all(self, sends: Sequence[Send]) -> None:
        """Send messages when there is credit, in the order of each link.

        Each is done when the broker has answered, in the order of the sends on the link.
        """
        flushed: dict[int, ProducerLink] = {}
        last, sender = 0, None
        for send in sends:
            link = send[0]
            if link != last or sender is None:
                last, sender = link, self.open.get(link)
                if sender is None:
                    send[2](self.failure or IllegalStateException(f"link {link} is closed"))
                    self._on_sends_done(1)
                    continue
                flushed[link] = sender
            sender.queue.append(send)
        for sender in flushed.values():
            sender.flush()

    def send_in_transaction(
        self,
        link: int,
        payloads: Sequence[bytes],
        state: State,
        transmitted: Callable[[TransactionSend], None],
        answered: Callable[[TransactionSend, JMSException | None], None],
    ) -> None:
        """Send messages of a transaction when there is credit.

        Args:
            link: the link's number.
            payloads: the encoded messages.
            state: the transaction.
            transmitted: told of each message, or batch of them, when nothing that is sent then overtakes it.  What is
                not sent is only answered.
            answered: called for each when the broker has answered it.
        """

        def done(send: TransactionSend, error: JMSException | None) -> None:
            self.answered -= send.messages  # these do not count for the send window
            answered(send, error)

        sender = self.open.get(link)
        if sender is None:  # lost while the messages before this one were queued
            error = self.failure or IllegalStateException(f"link {link} is closed")
            for payload in payloads:
                answered(TransactionSend(payload, 1, state, transmitted, answered), error)
            return
        for payload, messages in sender.batched(payloads):
            sender.queue.append(TransactionSend(payload, messages, state, transmitted, done))
        sender.flush()


class ProducerLink(RequestedLink):
    """A link that we send on.

    Attributes:
        credit: how many transfers may be sent.
        queue: the messages that wait for credit.
        waiting: (the peer's number, what waits for its answer) of the transfers without an answer, in order.
    """

    def __init__(self, producers: Producers, table: LinkTable, number: int, session: int, attached: Done) -> None:
        super().__init__(table, number, session, attached)
        self.credit = 0
        self.queue: deque[Send | TransactionSend] = deque()
        self.waiting: deque[tuple[int, _Waiting]] = deque()
        self._results: dict[int, State] = {}  # answers that came ahead of one before them
        self._batch_bytes = 0
        self._producers = producers
        producers.open[number] = self

    def on_open(self, event: LinkRemoteOpen) -> None:
        if event.target is None or self.attached is None:
            return  # refused: a detach with the reason follows
        attached, self.attached = self.attached, None
        if self._producers.batch_bytes:
            self._batch_bytes = min(self._producers.batch_bytes, event.max_message_bytes or MOST_BYTES)
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
        waiting, results = self.waiting, self._results
        ended = 0
        for number in event.numbers:
            if waiting and waiting[0][0] == number:
                ended += _answer(waiting.popleft()[1], state)
            else:
                results[number] = state
        while results and waiting and waiting[0][0] in results:
            number, sends = waiting.popleft()
            ended += _answer(sends, results.pop(number))
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
        queue, peer, link, waiting = self.queue, self._peer, self.number, self.waiting
        if not peer.has_link(link):
            return  # its session has ended, which is about to be reported: what waits fails then
        while queue and self.credit > 0:
            first = queue.popleft()
            self.credit -= 1
            if isinstance(first, TransactionSend):
                waiting.append((peer.send(link, first.payload, state=first.state, on_given=first.on_given), first))
                continue
            sends = self._take_batch(first) if queue and self._batch_bytes else [first]
            payload = first[1] if len(sends) == 1 else pack_batch([payload for _, payload, _ in sends])
            waiting.append((peer.send(link, payload), [done for _, _, done in sends]))

    def _take_batch(self, first: Send) -> list[Send]:
        """Take what goes with a message into its transfer out of the queue."""
        queue = self.queue
        more = takewhile(lambda send: isinstance(send, tuple), queue)
        count = batch_size((len(send[1]) for send in chain((first,), cast(Iterator[Send], more))), self._batch_bytes)
        return [first, *[cast(Send, queue.popleft()) for _ in range(count - 1)]]

    def batched(self, payloads: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
        """Messages as the payloads of transfers, each with the number of its messages."""
        start = 0
        while start < len(payloads):
            count = 1
            if self._batch_bytes:
                some = payloads[start : start + MOST_MESSAGES]
                count = batch_size([len(payload) for payload in some], self._batch_bytes)
            messages = payloads[start : start + count]
            yield (messages[0] if count == 1 else pack_batch(messages)), count
            start += count

    def _fail_sends(self, error: JMSException) -> None:
        for number, sends in self.waiting:
            state = self._results.get(number)
            self._producers.answered += _fail(sends, error) if state is None else _answer(sends, state)
        for send in self.queue:
            self._producers.answered += _fail(send if isinstance(send, TransactionSend) else [send[2]], error)
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


#: What waits for the answer to a transfer: the callbacks of its messages, or a part of a transaction.
_Waiting = list[OnSettled] | TransactionSend


def _answer(sends: _Waiting, state: State) -> int:
    """Tell what waits for it how the broker ended a transfer.

    Returns:
        the number of messages.
    """
    if isinstance(sends, TransactionSend):
        refused = _refused(state, sends.messages)
        sends.done(_send_failure(refused[min(refused)]) if refused else None)
        return sends.messages
    if state.code == ACCEPTED:
        for done in sends:
            done(None)
        return len(sends)
    refused = _refused(state, len(sends))
    for place, done in enumerate(sends):
        done(_send_failure(refused[place]) if place in refused else None)
    return len(sends)


def _fail(sends: _Waiting, error: JMSException) -> int:
    """Tell what waits for the answer to a transfer that there will be none; returns the number of messages."""
    if isinstance(sends, TransactionSend):
        sends.done(error)
        return sends.messages
    for done in sends:
        done(error)
    return len(sends)


def _refused(state: State, count: int) -> dict[int, State]:
    """Return how the broker ended those messages of a transfer that it did not take, by their place in it."""
    if state.code == TRANSACTIONAL and state.outcome is not None:
        state = state.outcome
    if state.code in (ACCEPTED, TRANSACTIONAL):
        return {}
    if state.code != REJECTED:
        return dict.fromkeys(range(count), state)
    return {place: state._replace(error=error) for place, error in refused_in(state.error, count).items()}


def _send_failure(state: State) -> JMSException:
    """Why a send failed, by how the broker ended it."""
    if state.code == REJECTED:
        return exception_for(state.error, "the broker rejected the message")
    if state.code == 0:
        return JMSException("the broker settled the message without saying how")
    return JMSException("the broker gave the message back")
