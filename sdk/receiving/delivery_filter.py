"""Decides which deliveries of a consumer the application gets.

It does not get what is stale, cannot be read, was acknowledged before a loss, was redelivered too often or has expired.
"""

from __future__ import annotations

import time

from ack_modes import DeliveryTag, Outcome
from broker_adapter import ConnectionLostException, Delivery, Envelope, MessageFormatException
from sdk.acknowledgements import Source, ack_record_for
from sdk.receiving.prefetch import Prefetch
from sdk.session_state import SessionState, log

#: Messages redelivered too often, of which one is in the log.
_REJECTIONS_PER_LINE = 100
#: Rejections of a message before it counts as one that the broker sends again after each rejection.
#: More than the limits of deliveries that brokers have by themselves (10 and 20), at which it becomes a dead letter.
_MAX_REJECTIONS = 20
#: Rejections of other messages after which the remembered one is not expected to come again.
_MAX_OTHERS = 1000


class DeliveryFilter:
    """Opens the deliveries of one consumer, and settles those that the application does not get.

    Attributes:
        ended: deliveries that ended here, and that the broker does not redeliver.
    """

    __slots__ = (
        "_comes_again",
        "_expires",
        "_max_redeliveries",
        "_others",
        "_prefetch",
        "_rejected",
        "_rejected_count",
        "_rejected_id",
        "_rejections",
        "_source",
        "_state",
        "ended",
    )

    def __init__(self, state: SessionState, prefetch: Prefetch, source: Source | None) -> None:
        """A filter that has seen nothing.

        Args:
            state: the session's.
            prefetch: the consumer's.
            source: the queue or subscription whose messages are redelivered after a loss; None: none are.
        """
        self._state = state
        self._prefetch = prefetch
        self._source = source
        self._max_redeliveries = state.settings.max_redeliveries
        self._expires = state.settings.local_message_expiry  #: whether it checks for messages that have expired
        self._rejected = 0  #: messages that were redelivered too often
        self._comes_again = False  #: whether a message came again after each rejection
        self._rejected_id: str | None = None  #: of the remembered message, if it has one
        self._rejected_count = 0  #: the delivery count at its last rejection
        self._rejections = 0  #: of it; 0: none is remembered
        self._others = 0  #: rejections of others since
        self.ended = 0

    def opened(self, delivery: Delivery, tag: DeliveryTag) -> Envelope | None:
        """The envelope of the first delivery of the buffer; None where it is not given out.

        What cannot be read, has expired, was acknowledged before or was redelivered too often is settled here.

        Args:
            delivery: the first one; the caller takes it out of the buffer.
            tag: its tag.
        """
        state = self._state
        if tag.epoch != state.epoch or tag.link <= self._prefetch.stale_link:  # is_stale, without a call
            return None  # lost with its connection: the broker redelivers it
        try:
            envelope = delivery.envelope
        except MessageFormatException as error:
            # No consumer can read it: the broker makes it a dead letter, and the exception listener is told.
            self._reject(delivery, tag, None)
            state.report(error)
            return None
        acknowledgements = state.acknowledgements
        if (
            acknowledgements is not None
            and acknowledgements.lost.knows_any
            and self._was_acknowledged(delivery, envelope)
        ):
            return None
        if self._max_redeliveries is not None and delivery.delivery_count > self._max_redeliveries:
            if self._rejected % _REJECTIONS_PER_LINE == 0:
                log.warning(
                    "! %s rejects %r after %d redeliveries (option max_redeliveries); it rejected %d others before",
                    *(self._prefetch.name, envelope.message_id, self._max_redeliveries, self._rejected),
                )
            self._rejected += 1
            self._reject(delivery, tag, envelope.message_id)
            return None
        expires_at_ms = envelope.expires_at_ms if self._expires else None
        if expires_at_ms is not None and time.time_ns() // 1_000_000 >= expires_at_ms:
            # Not rejected, because clocks differ; and not only failed, because it would come again at once.
            self._settle(tag, Outcome.UNDELIVERABLE)
            return None
        # The broker counts a delivery first that may have ended the process.
        if delivery.take_in_hand is not None and not delivery.take_in_hand():
            self.ended += 1  # it is a dead letter now
            self._prefetch.count_used()
            return None
        return envelope

    def _reject(self, delivery: Delivery, tag: DeliveryTag, message_id: str | None) -> None:
        """Reject a delivery, or leave it to other consumers if the broker sends it again after each rejection.

        The rejections of one message are counted, as the delivery count has those by other consumers as well.  It is
        recognised by its id and a greater delivery count than before.

        Args:
            delivery: what is rejected.
            tag: its tag.
            message_id: of the message; None: it has none that can be read.
        """
        count = delivery.delivery_count
        if self._rejections and message_id == self._rejected_id and count > self._rejected_count:
            self._rejected_count = count
            self._rejections += 1
            self._others = 0
            if self._rejections > _MAX_REJECTIONS:
                self._leave_to_others(tag)
                return
        else:
            self._others += 1
            if not self._rejections or self._others > _MAX_OTHERS:
                self._rejected_id, self._rejected_count = message_id, count
                self._rejections, self._others = 1, 0
        self._settle(tag, Outcome.REJECTED)

    def _leave_to_others(self, tag: DeliveryTag) -> None:
        if not self._comes_again:
            self._comes_again = True
            log.warning(
                "! %s: a message comes again after each rejection, %d times up to now, so it is left to other consumers"
                " (this is logged once); set a limit of deliveries and a dead-letter queue at the broker",
                *(self._prefetch.name, _MAX_REJECTIONS),
            )
        self._rejections = 0  # the next one is remembered
        self._settle(tag, Outcome.UNDELIVERABLE)

    def _settle(self, tag: DeliveryTag, outcome: Outcome) -> None:
        """Settle a delivery that the application does not get, and that does not come again."""
        self._state.pass_over((tag,), outcome)
        self.ended += 1
        self._prefetch.count_used()

    def _was_acknowledged(self, delivery: Delivery, envelope: Envelope) -> bool:
        """Return whether a message is redelivered only because its acknowledgement was lost; it is then acknowledged
        again.
        """
        state = self._state
        acknowledgements = state.acknowledgements
        record = ack_record_for(self._source, envelope, delivery)
        if acknowledgements is None or record is None:
            return False
        if not acknowledgements.lost.take(record):
            if acknowledgements.lost.was_seen(record):
                delivery.delivery_count = max(1, delivery.delivery_count)
            return False
        tag = delivery.tag
        with state.settling:
            try:
                if not self._prefetch.is_stale(tag):
                    acknowledgements.delivered(tag, record)  # this one may be lost as well
                    state.settle(state.policy.passed_over((tag,), Outcome.ACCEPTED))
                else:
                    acknowledgements.lost.add((record,), acknowledgements.too_late)
            except ConnectionLostException:
                acknowledgements.lost.add((record,), acknowledgements.too_late)
        self.ended += 1
        self._prefetch.count_used()
        return True
