"""The links that the client of one connection sends messages on, and the credit that it has for them.

A producer's credit is given back when its messages have their answer, so what is held at a limit of the engine holds
the producer back; the larger its transfers, the fewer may be on their way.  A transfer of our own client may carry
several messages (:mod:`broker_adapter.amqp.messages.batches`); it is answered once all of them are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

import attrs

from broker_adapter.amqp.conditions import AmqpError, error_for
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    REJECTED,
    TRANSACTIONAL,
    LinkRemoteClose,
    LinkRemoteOpen,
    State,
    Terminus,
    Transfers,
)
from broker_adapter.amqp.messages.batches import is_batch, refusal_of_some, unpack_batch
from broker_adapter.amqp.messages.payloads import read_head
from broker_adapter.amqp.proton_engine.peer import Peer
from broker_adapter.destination import Destination, checked_name, resolved
from broker_adapter.engine.commands import messaging as c
from broker_adapter.errors import JMSException, MessageFormatException
from broker_adapter.server.access import permissions
from broker_adapter.server.links.budget import Budget
from broker_adapter.server.links.client import Client
from broker_adapter.server.links.coordinator import Coordinator
from broker_adapter.server.links.engine_calls import EngineCalls
from broker_adapter.server.links.links import Links
from broker_adapter.server.links.termini import (
    destination_of,
    former_name,
    temporary_kind,
    temporary_terminus,
)
from broker_adapter.settings import ServerSettings

#: What a producer's messages are taken for before one has come, in bytes.
_GUESSED_BYTES: Final = 256 * 1024
#: What a message of a batch takes beside its payload, in bytes.
_MESSAGE_BYTES: Final = 512
#: Destinations that links without one are known to be allowed to send to; beyond them it is asked again.
_MOST_ALLOWED: Final = 100


@attrs.define(eq=False)
class _Producer:
    """A link that the client sends messages on.  ``destination`` None: each message names its own."""

    link: int
    destination: Destination | None
    most: int  #: transfers that may be on their way to us
    temporary: bool = False  #: the destination ends with the link
    credit: int = 0  #: transfers that the client may still send
    unanswered: int = 0  #: transfers that came and are not answered yet
    mean_bytes: int = 0  #: of its transfers; a larger one counts at once, smaller ones bit by bit


@attrs.define(eq=False)
class _Batch:
    """A transfer of several messages."""

    number: int  #: the peer's
    left: int  #: messages that are not answered yet
    state: State = ACCEPTED_STATE  #: how those were answered that were taken
    refused: dict[int, AmqpError] = attrs.field(factory=dict)  #: those that were not, by their place in it

    def note(self, place: int, state: State) -> None:
        """One of its messages is answered."""
        self.left -= 1
        if state.code == REJECTED:
            self.refused[place] = state.error or AmqpError("amqp:internal-error")
        else:
            self.state = state

    @property
    def answer(self) -> State:
        """How the transfer is answered."""
        return State(REJECTED, error=refusal_of_some(self.refused)) if self.refused else self.state


#: A transfer: the peer's number of it, or a batch.
_Transfer = int | _Batch


@attrs.define(eq=False)
class _Run:
    """Messages of one link that went to the engine together."""

    producer: _Producer
    target: Destination  #: as the client has named it
    messages: list[c.NewMessage] = attrs.field(factory=list)
    #: Whose they are, in order: the transfer, the first place in it, and how many.
    spans: list[tuple[_Transfer, int, int]] = attrs.field(factory=list)
    size: int = 0  #: bytes of them


class Producers:
    """The producers of one connection.

    Args:
        peer: the connection's AMQP.
        calls: to the engine.
        client: the client of the connection.
        links: which links are attached.
        budget: counts messages that the engine has not answered yet.
        coordinator: takes the messages of transactions.
        settings: the server's limits.
        max_message_bytes: of the largest message that the engine takes.
        authorize: see :class:`broker_adapter.server.protocol.ServerProtocol`.
    """

    def __init__(
        self,
        peer: Peer,
        calls: EngineCalls,
        client: Client,
        links: Links,
        budget: Budget,
        coordinator: Coordinator,
        settings: ServerSettings,
        max_message_bytes: int,
        authorize: Callable[[str, Destination | None], None],
    ) -> None:
        self._peer = peer
        self._calls = calls
        self._defer = calls.defer
        self._client = client
        self._links = links
        self._budget = budget
        self._coordinator = coordinator
        self._settings = settings
        self._max_message_bytes = max_message_bytes
        self._authorize = authorize
        self._producers: dict[int, _Producer] = {}
        self._allowed: set[Destination] = set()  #: where links without a destination may send; names are checked
        self._input_bytes = settings.max_input_bytes  #: of each producer's messages on their way to us
        self._taken_numbers: list[int] = []  #: transfers of the input under way that are answered alike
        self._taken: State = ACCEPTED_STATE  #: how

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._producers)

    def __repr__(self) -> str:
        return f"<Producers {len(self)}>"

    # Links.

    def attach(self, event: LinkRemoteOpen, target: Terminus) -> None:
        """The client attached a link: to a destination, anywhere, or to a new temporary destination.

        Args:
            event: the attach.
            target: its target.

        Raises:
            JMSException: why the link is refused.
        """
        calls = self._calls
        if target.dynamic:
            kind = temporary_kind(target)
            name = former_name(target, kind)
            self._authorize(permissions.CREATE_TEMPORARY, Destination(name or "", kind))
            reply = calls.reply(self._on_temporary, event)
            self._defer(c.DeclareTemporary(calls.known_client, kind, name, reply))
        elif target.address is None:
            self._accept(event, None, target)
        else:
            destination = destination_of(target)
            self._authorize(permissions.SEND, destination)
            self._defer(c.Declare(destination, calls.reply(self._on_declared, event, destination)))

    def _on_declared(self, event: LinkRemoteOpen, destination: Destination, result: JMSException | None) -> None:
        if self._links.refused(event, result):
            return
        assert event.target is not None
        self._accept(event, destination, event.target)

    def _on_temporary(self, event: LinkRemoteOpen, result: Destination | JMSException) -> None:
        if self._links.refused(event, result):
            if isinstance(result, Destination):
                self._calls.end_temporary(result)
            return
        assert isinstance(result, Destination)
        self._accept(event, result, temporary_terminus(result), temporary=True)

    def _accept(
        self, event: LinkRemoteOpen, destination: Destination | None, target: Terminus, *, temporary: bool = False
    ) -> None:
        link = event.link
        settings = self._settings
        # Half of the budget is for all of them, so that producers that keep to their credit do not stop the reading.
        share = settings.max_connection_bytes // 2 // (len(self._producers) + 1)
        self._input_bytes = min(settings.max_input_bytes, share)
        most = max(1, min(settings.link_credit_messages, self._input_bytes // _GUESSED_BYTES))
        producer = self._producers[link] = _Producer(link, destination, most, temporary)
        self._peer.accept_link(link, event.source, target, max_message_bytes=self._max_message_bytes)
        self._allow(producer)

    def on_link_close(self, event: LinkRemoteClose) -> bool:
        """The client detached a link.

        Returns:
            True where the answer waits for the engine, which is to delete the link's temporary destination.
        """
        producer = self._producers.get(event.link)
        if producer is not None and producer.temporary and producer.destination is not None:
            del self._producers[event.link]
            reply = self._calls.reply(self._on_deleted, event.link, event.closed)
            self._defer(c.DeleteTemporary(self._calls.known_client, producer.destination, reply))
            return True
        return False

    def _on_deleted(self, link: int, closed: bool, result: JMSException | None) -> None:
        self._peer.close_link(link, None if result is None else error_for(result), closed=closed)

    def remove(self, link: int) -> None:
        """A link is gone: if there is a producer of it, its temporary destination ends."""
        producer = self._producers.pop(link, None)
        if producer is not None and producer.temporary:
            self._calls.end_temporary(producer.destination)

    def clear(self) -> None:
        """Drop everything."""
        self._producers.clear()
        self._allowed.clear()

    # Messages.

    def on_transfers(self, event: Transfers, now_ms: int) -> bool:
        """Messages came on a link.

        Args:
            event: the messages.
            now_ms: the time of day in milliseconds.

        Returns:
            False where the link is not a producer's.
        """
        producer = self._producers.get(event.link)
        if producer is None:
            return False
        runs: list[_Run] = []
        uses_batches = self._client.uses_batches
        total = 0
        for number, payload, state in event.deliveries:
            total += len(payload)
            if not (uses_batches and is_batch(payload)):
                self._take(producer, runs, number, (payload,), state, now_ms)
                continue
            try:
                payloads = unpack_batch(payload)
            except MessageFormatException as error:
                self._refuse(producer, number, 0, state, AmqpError("amqp:decode-error", error.reason))
                continue
            total += _MESSAGE_BYTES * len(payloads)
            self._take(producer, runs, _Batch(number, len(payloads)), payloads, state, now_ms)
        self._count_in(producer, len(event.deliveries), total)
        if self._taken_numbers:
            self._answer_taken(producer)
        for run in runs:
            run.size = sum([len(message.payload) for message in run.messages])
            self._budget.unanswered += run.size
        return True

    def _take(
        self,
        producer: _Producer,
        runs: list[_Run],
        transfer: _Transfer,
        payloads: Sequence[bytes],
        state: State | None,
        now_ms: int,
    ) -> None:
        """Take the messages of a transfer: for the engine, or for their transaction.

        Args:
            producer: whose they are.
            runs: of this input for the engine; the last one goes on where the destination is the same.
            transfer: which one it is.
            payloads: the messages.
            state: of the transfer: the transaction.
            now_ms: the time of day in milliseconds.
        """
        own, allowed = producer.destination, self._allowed
        run = runs[-1] if runs else None
        begin = 0  # place of the first message of the transfer that is in the run, and in no span of it yet
        is_part = state is not None and state.code == TRANSACTIONAL
        sends: list[tuple[Destination, c.NewMessage]] = []  # for the transaction, from the place ``begin`` on
        named: Destination | None = None
        for place, payload in enumerate(payloads):
            try:
                head = read_head(payload, now_ms)
                refusal = None
            except MessageFormatException as error:
                refusal = AmqpError("amqp:decode-error", error.reason)
            else:
                destination = own or head.destination
                if own is None and destination not in allowed:
                    refusal = self._allow_sending(destination)
            if refusal is None:
                assert destination is not None
                message = c.from_head(payload, head)
                if is_part:
                    if destination is not named:
                        named, target = destination, resolved(destination)
                    sends.append((target, message))
                    continue
                if run is None or (destination is not run.target and destination != run.target):
                    if run is not None and place > begin:
                        run.spans.append((transfer, begin, place - begin))
                    begin = place
                    run = self._begin_run(producer, destination)
                    runs.append(run)
                run.messages.append(message)
                continue
            if sends:
                assert state is not None
                self._add_to_transaction(producer, transfer, begin, state, sends)
                sends = []
            elif run is not None and place > begin:
                run.spans.append((transfer, begin, place - begin))
            self._refuse(producer, transfer, place, state, refusal)
            begin = place + 1
        if sends:
            assert state is not None
            self._add_to_transaction(producer, transfer, begin, state, sends)
        elif run is not None and len(payloads) > begin:
            run.spans.append((transfer, begin, len(payloads) - begin))

    def _add_to_transaction(
        self,
        producer: _Producer,
        transfer: _Transfer,
        begin: int,
        state: State,
        sends: Sequence[tuple[Destination, c.NewMessage]],
    ) -> None:
        """Put messages of a transfer, the first of them at the place ``begin``, into the transaction of its state."""
        answer = self._coordinator.add_sends(state, sends)
        for place in range(begin, begin + len(sends)):
            self._answer_with_others(producer, transfer, place, answer)

    def _begin_run(self, producer: _Producer, destination: Destination) -> _Run:
        """Begin to collect messages for the engine: they go there at the end of this input."""
        run = _Run(producer, destination)
        calls = self._calls
        reply = calls.reply(self._on_taken, run)
        self._defer(c.Enqueue(calls.known_client, resolved(destination), run.messages, reply))
        return run

    def _allow_sending(self, destination: Destination | None) -> AmqpError | None:
        """Return whether a link whose messages name their destinations may send there; else why not, and nothing is
        kept.
        """
        if destination is None:
            return AmqpError("amqp:not-found", "the message names no destination (its field 'to')")
        try:
            checked_name(destination.name)  # before anything else reads it: it may be as long as a message
            self._authorize(permissions.SEND, resolved(destination))
        except JMSException as error:
            return error_for(error)
        if len(self._allowed) >= _MOST_ALLOWED:
            self._allowed.clear()
        self._allowed.add(destination)
        return None

    def on_dropped(self, link: int, transfers: int) -> bool:
        """So many transfers of a link were given up by their sender; returns False where it is not a producer's."""
        producer = self._producers.get(link)
        if producer is None:
            return False
        producer.credit -= transfers
        self._allow(producer)
        return True

    def _on_taken(self, run: _Run, result: Any) -> None:
        """The engine has answered messages of a link."""
        producer = run.producer
        self._budget.unanswered -= run.size
        if result is None:
            taken: list[int] = []
            for transfer, _, count in run.spans:
                if not isinstance(transfer, _Batch):
                    taken.append(transfer)
                    continue
                transfer.left -= count
                if transfer.left == 0:
                    if transfer.refused:
                        self._answer(producer, (transfer.number,), transfer.answer)
                    else:
                        taken.append(transfer.number)
            if taken:
                self._answer(producer, taken, ACCEPTED_STATE)
            return
        errors = iter([result] * len(run.messages) if isinstance(result, JMSException) else result)
        for transfer, begin, count in run.spans:
            for place, error in enumerate(islice(errors, count), begin):
                state = ACCEPTED_STATE if error is None else State(REJECTED, error=error_for(error))
                self._answer_one(producer, transfer, place, state)

    def _answer_one(self, producer: _Producer, transfer: _Transfer, place: int, state: State) -> None:
        """Answer a message: its transfer, or the batch once it is the last one."""
        if not isinstance(transfer, _Batch):
            self._answer(producer, (transfer,), state)
            return
        transfer.note(place, state)
        if transfer.left == 0:
            self._answer(producer, (transfer.number,), transfer.answer)

    def _answer_with_others(self, producer: _Producer, transfer: _Transfer, place: int, state: State) -> None:
        """Answer a message: with those next to it that are answered alike, at the end of this input at the latest."""
        if isinstance(transfer, _Batch):
            self._answer_one(producer, transfer, place, state)
            return
        if self._taken_numbers and state is not self._taken:
            self._answer_taken(producer)
        self._taken = state
        self._taken_numbers.append(transfer)

    def _answer_taken(self, producer: _Producer) -> None:
        """Answer the messages that wait for others which are answered alike."""
        numbers, self._taken_numbers = self._taken_numbers, []
        self._answer(producer, numbers, self._taken)

    def _answer(self, producer: _Producer, numbers: Sequence[int], state: State) -> None:
        """Settle transfers, and give the credit for them back, now or a little later."""
        self._peer.settle(producer.link, numbers, state)
        producer.unanswered -= len(numbers)
        self._allow(producer)

    def _count_in(self, producer: _Producer, transfers: int, size: int) -> None:
        """Transfers of so many bytes have come: they use up credit, and their size says how much of it there may be."""
        producer.credit -= transfers
        producer.unanswered += transfers
        mean = size // transfers
        producer.mean_bytes = mean = max(mean, (producer.mean_bytes * 3 + mean) // 4, 1)
        producer.most = max(1, min(self._settings.link_credit_messages, self._input_bytes // mean))

    def _allow(self, producer: _Producer) -> None:
        """Let a producer have as many transfers on their way as it may, once that is worth a flow."""
        most = producer.most
        more = most - producer.credit - producer.unanswered
        if more * 4 >= most:
            producer.credit += more
            self._peer.credit(producer.link, more)

    def _refuse(
        self, producer: _Producer, transfer: _Transfer, place: int, state: State | None, error: AmqpError
    ) -> None:
        """Refuse a message, and with it the transaction that it was to be part of."""
        if self._taken_numbers:
            self._answer_taken(producer)  # the answers keep their order
        self._coordinator.refuse_named(state, error)
        self._answer_one(producer, transfer, place, State(REJECTED, error=error))
