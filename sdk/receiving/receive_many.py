"""What one call of ``receive_many`` takes from a consumer: consumed in one step, or put back.

The deliveries are taken out of the buffer one by one, since each may turn out not to be given out, and are noted with
the prefetch meanwhile.  Then all are consumed, and what that settles is handed over together.  Where the handler of a
signal raises before that, the application has got nothing, and all go back into the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from ack_modes import DeliveryTag, Outcome, Settlement
from broker_adapter import ConnectionLostException, Delivery, Envelope
from sdk.acknowledgements import Source, ack_record_for
from sdk.messages.envelopes import message_of
from sdk.messages.message import Message
from sdk.receiving.prefetch import Prefetch
from sdk.session_state import SessionState


class Several:
    """The messages of one call.

    Attributes:
        messages: those that were consumed.
    """

    def __init__(self, state: SessionState, prefetch: Prefetch, limit: int) -> None:
        """Nothing is taken.

        Args:
            state: the session's.
            prefetch: of the consumer.
            limit: most messages.
        """
        self.messages: list[Message] = []
        self._state = state
        self._prefetch = prefetch
        self._limit = limit
        self._taken: list[Delivery] = []
        self._is_consumed = False  # and what that settles was handed over
        self._opened: list[Envelope] = []  # of those that are taken
        self._pending: list[Settlement] = []  # what is to be settled
        self._unsettled: list[Settlement] = []  # the same, while it is handed over

    def take(self, opened: Callable[[Delivery, DeliveryTag], Envelope | None]) -> None:
        """Take what is in the buffer, as far as it can be given out.

        Args:
            opened: see :meth:`sdk.receiving.delivery_filter.DeliveryFilter.opened`.
        """
        state, prefetch = self._state, self._prefetch
        buffer, taken = prefetch.buffer, self._taken
        prefetch.taken = taken
        # What cannot be given out may be redelivered at once: not more than what is there now.
        for _ in range(len(buffer)):
            if len(taken) == self._limit or not state.running or prefetch.closing or prefetch.gives_back:
                return
            try:
                delivery = buffer[0]
            except IndexError:  # another thread closes it, and has taken what was there
                return
            envelope = opened(delivery, delivery.tag)
            if envelope is None:
                prefetch.drop(delivery)
                continue
            with state.settling:
                if prefetch.closing or not (buffer and buffer[0] is delivery):
                    return
                # In both for a moment: a handler of a signal may raise in between.
                self._opened.append(envelope)
                taken.append(delivery)
                buffer.popleft()

    def consume(self, acknowledge: Callable[[DeliveryTag], None], source: Source | None) -> Sequence[Settlement]:
        """Count what is taken as delivered and consumed, and settle what that ends; under ``settling``.

        Args:
            acknowledge: what ``message.acknowledge()`` calls.
            source: the queue or subscription whose messages are redelivered after a loss; None: none are.

        Returns:
            what was settled.

        Raises:
            ConnectionLostException: it was lost before that, in a mode that tells.
        """
        state, prefetch = self._state, self._prefetch
        policy, acknowledgements = state.policy, state.acknowledgements
        now = monotonic()
        if prefetch.closing or not state.running:  # by another thread
            self.put_back()
            return ()
        messages: list[Message] = []
        for delivery, envelope in zip(self._taken, self._opened, strict=False):
            tag = delivery.tag
            if prefetch.is_stale(tag):
                continue  # lost meanwhile: the broker redelivers it
            policy.delivered(tag)
            messages.append(message_of(envelope, delivery.delivery_count, acknowledge, tag))
            if acknowledgements is not None:
                acknowledgements.delivered(tag, ack_record_for(source, envelope, delivery))
            self._pending += policy.consumed(tag, now)
        if not messages:
            self._taken, prefetch.taken, self._opened = [], [], []
            return ()
        settlements = self._pending
        state.gives_out = True
        self._unsettled = settlements
        self._is_consumed = True  # from here on a handler that raises finds it so
        prefetch.taken = []
        try:
            if settlements:
                state.settle(settlements)
        except ConnectionLostException as error:
            self._unsettled = []
            if policy.tells_lost_acknowledgements:
                reason = f"{len(messages)} messages could not be acknowledged, and are redelivered: {error}"
                raise ConnectionLostException(reason) from error
        self._unsettled = []
        self.messages = messages
        return settlements

    def put_back(self) -> None:
        """The application gets nothing of this: what is not settled is the next again."""
        state, prefetch = self._state, self._prefetch
        policy = state.policy
        with state.settling:
            unsettled, self._unsettled = self._unsettled, []
            if unsettled:  # some of them may be with the broker
                with suppress(ConnectionLostException):
                    state.settle(unsettled)
            withdrawn = [each for each in reversed(self._taken) if policy.withdrawn(each.tag) or not self._is_consumed]
            if not self._is_consumed:
                # DUPS_OK: its batch had some that were returned before.
                tags = {each.tag for each in self._taken}
                with suppress(ConnectionLostException):
                    state.settle([each for each in self._pending if each.tag not in tags])
            back = [each for each in withdrawn if not prefetch.is_stale(each.tag)]
            if prefetch.closing:
                state.pass_over([each.tag for each in back], Outcome.RELEASED)
            else:
                first = prefetch.buffer[0] if prefetch.buffer else None
                prefetch.buffer.extendleft([each for each in back if each is not first])
            if prefetch.taken is self._taken:  # else another call has it, which has refused this one
                prefetch.taken = []
            self._taken, self._opened, self._pending = [], [], []
