"""What a gateway fetches from its other end: consumers there, whose messages go into the queues and topics here.

Theory of operation
    A message is accepted there when it is on the disk here.  If the connection is lost in between, it comes again; the
    engine rejects it if it has the identity that our own software gives a message.

    What cannot be stored here is left there, for other consumers.  Where there is no room here, what came is kept, and
    put later.  As many messages are on their way or kept here as a batch may have.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final

from ack_modes import Outcome, Settlement
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import gateways as g
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.records.gateway_records import GatewayRecord, destination_of
from broker_adapter.envelope import pack
from broker_adapter.errors import MESSAGE_TOO_LARGE, JMSException, MessageFormatException, copied
from broker_adapter.limited_log import LimitedLog
from broker_adapter.transport import (
    Credentials,
    Delivery,
    Failed,
    LinkLost,
    ReceiverSpec,
    Subscription,
    Transport,
    TransportEvent,
)

_log = logging.getLogger(f"holdfast.{__name__}")

#: The session of all consumers.
_SESSION: Final = 1
#: Longest wait for the engine, in seconds; for room it waits ``blocked_send_timeout_seconds``.
_ENGINE_SECONDS: Final = 60.0


class Fetcher:
    """The consumers of a gateway.

    Args:
        broker: the engine.
        name: of the gateway.
        record: of the gateway.
        transport: to the other end; not open yet, and not restored.
        wake: called when there is something to do; from any thread.

    Attributes:
        options: of the gateway.
    """

    def __init__(
        self, broker: Broker, name: str, record: GatewayRecord, transport: Transport, wake: Callable[[], None]
    ) -> None:
        self.options = record.options
        self._broker = broker
        self._name = name
        self._record = record
        self._transport = transport
        self._wake = wake
        self._client: int | None = None
        self._links: dict[Destination, int] = {}
        self._came: deque[tuple[Destination, Delivery]] = deque()  # what is not settled
        self._trouble: JMSException | None = None  # why nothing more comes
        self._log = LimitedLog(_log)

    def __repr__(self) -> str:
        return f"<Fetcher {self._name!r}>"

    def open(self) -> None:
        """Connect, and begin to consume.

        Raises:
            JMSException: as :meth:`broker_adapter.transport.Transport.open` and ``attach``.
        """
        client_id = f"holdfast-gateway-{self._broker.settings.site}-{self._name}"  # of durable subscriptions
        self._transport.open(Credentials(client_id=client_id), self._listen, None)
        self._client = self._broker.call(c.Connect(None), _ENGINE_SECONDS)
        destinations = self._record.destinations
        for text in destinations:
            kind, name = destination_of(text)
            subscription = None
            if kind == "topic":
                subscription = Subscription(f"{self._name}-{name}", durable=True, shared=False)
            place = Destination(name, DestinationKind.QUEUE if kind == "queue" else DestinationKind.TOPIC)
            spec = ReceiverSpec(_SESSION, place, self._record.selector, subscription=subscription)
            link = self._transport.attach(spec, partial(self._take_in, place), None)
            self._links[place] = link
            self._transport.credit(link, max(1, self._record.batch_messages // len(destinations)))

    def close(self, seconds: float) -> None:
        """Give back what was not put, so that its delivery does not count; the transport is closed by its maker.

        Args:
            seconds: longest wait.
        """
        deadline = time.monotonic() + seconds
        with suppress(JMSException):  # the connection may be lost
            for link in self._links.values():
                self._transport.detach(link, max(0.0, deadline - time.monotonic()))
            self._transport.settle([Settlement(each.tag, Outcome.RELEASED) for _, each in self._came])
        if self._client is not None:
            self._broker.submit(c.Disconnect(self._client))

    def _listen(self, event: TransportEvent) -> None:
        if isinstance(event, LinkLost | Failed):
            self._trouble = event.error
            self._wake()

    def _take_in(self, place: Destination, deliveries: Sequence[Delivery]) -> None:
        self._came += [(place, each) for each in deliveries]
        self._wake()

    @property
    def is_lost(self) -> bool:
        """Whether the connection, or a consumer, is lost."""
        return self._trouble is not None

    def put(self) -> int:
        """Put what has come into the queues and topics here; returns how many messages that were.

        Raises:
            JMSException: the connection or a consumer is lost; or there is no room here, and the rest is kept.
        """
        if self._trouble is not None:
            raise copied(self._trouble)
        came = [self._came.popleft() for _ in range(min(len(self._came), self._record.batch_messages))]
        settlements: list[Settlement] = []
        kept: list[tuple[Destination, Delivery]] = []
        trouble = None
        for place, some in groupby(sorted(came, key=itemgetter(0)), key=itemgetter(0)):
            deliveries, settled = [each for _, each in some], len(settlements)
            for each, error in zip(deliveries, self._put(place, deliveries), strict=True):
                if error is None:
                    settlements.append(Settlement(each.tag, Outcome.ACCEPTED))
                elif isinstance(error, MessageFormatException) or error.error_code == MESSAGE_TOO_LARGE:
                    settlements.append(Settlement(each.tag, Outcome.UNDELIVERABLE))
                    text = "! gateway %r: a message of %r cannot be stored here, and is left there: %s"
                    self._log.write("unfit", text, self._name, place.name, error)
                else:
                    kept.append((place, each))
                    trouble = trouble or error
            if len(settlements) > settled:
                self._transport.credit(self._links[place], len(settlements) - settled)
        self._came.extendleft(reversed(kept))
        if settlements:
            self._transport.settle(settlements)
            refused = sum(each.outcome is Outcome.UNDELIVERABLE for each in settlements)
            self._broker.call(g.CountFetched(self._name, len(settlements) - refused, refused), _ENGINE_SECONDS)
        if trouble is not None:
            raise trouble
        return len(came)

    def _put(self, place: Destination, deliveries: Sequence[Delivery]) -> Sequence[JMSException | None]:
        """Put messages into one place; returns the error of each, or None."""
        assert self._client is not None
        messages: list[c.NewMessage] = []
        errors: list[JMSException | None] = []
        for each in deliveries:
            try:
                envelope = each.envelope._replace(destination=place)
                messages.append(c.from_envelope(pack(envelope), envelope))
                errors.append(None)
            except MessageFormatException as error:
                errors.append(error)
        if not messages:
            return errors
        wait = self._broker.settings.blocked_send_timeout_seconds + _ENGINE_SECONDS
        try:
            answer = self._broker.call(c.Enqueue(self._client, place, messages), wait)
        except JMSException as error:
            answer = [error] * len(messages)
        found = iter(answer or [None] * len(messages))
        return [next(found) if error is None else error for error in errors]
