"""The consumer of a foreign broker from which a spool is filled: messages as they came, acknowledged when that is said.

It is one connection: where that is lost, or the link, all that was received and not acknowledged is sent again to the
next one.  The transport restores nothing by itself, so nothing here is stale and looks fresh.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType

from ack_modes import Outcome, Settlement
from broker_adapter import (
    LARGEST_WINDOW,
    Credentials,
    Delivery,
    Failed,
    Interrupted,
    JMSException,
    LinkInterrupted,
    LinkLost,
    ReceiverSpec,
    Subscription,
    TransportEvent,
    copied,
    transport_for,
)
from spark_connector.batch_reader import source_of
from spark_connector.connections import password_of
from spark_connector.options import SourceOptions

#: Of the transport's sessions, the only one here.
_SESSION = 1
#: Longest wait for the broker when the connection is closed, in seconds.
_CLOSE_SECONDS = 5.0


class SpoolSource:
    """Messages of a queue, or of a durable subscription, of a foreign broker.

    It holds at most as many messages as its URL's ``prefetch_messages`` says (and its options for queues and
    subscriptions), which no other consumer gets meanwhile.

    Args:
        options: which.

    Raises:
        JMSException: see ``ConnectionFactory.create_connection`` and ``Session.create_consumer``; blocks as these do.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._changed = threading.Condition()
        self._received: deque[Delivery] = deque()
        self._error: JMSException | None = None
        self._transport, settings = transport_for(options.url, restores=False)
        try:
            credentials = Credentials(options.username, password_of(options), options.client_id)
            self._transport.open(credentials, self._on_event, None)
            subscription = None
            if options.subscription is not None:
                subscription = Subscription(options.subscription, durable=True, shared=options.client_id is None)
            spec = ReceiverSpec(_SESSION, source_of(options), options.selector, subscription=subscription)
            self._link = self._transport.attach(spec, self._on_deliveries, settings.request_timeout_seconds)
            window = LARGEST_WINDOW if settings.prefetch_messages is None else max(1, settings.prefetch_messages)
            self._transport.credit(self._link, window)
        except BaseException:
            self._transport.close(_CLOSE_SECONDS)
            raise

    def __enter__(self) -> SpoolSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def take(self, most: int, seconds: float) -> list[Delivery]:
        """Messages that have come, in order; none where no message comes in time.

        Args:
            most: of them.
            seconds: longest wait for the first one.

        Raises:
            JMSException: the connection or the link is gone.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._received:
                self._check()
                left = deadline - time.monotonic()
                if left <= 0:
                    return []
                self._changed.wait(left)
            self._check()
            return [self._received.popleft() for _ in range(min(most, len(self._received)))]

    def check(self) -> None:
        """Raise where the connection or the link is gone: what was received is sent again then."""
        with self._changed:
            self._check()

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """The broker may forget these, and send as many others.  Does not wait for its answer."""
        self._transport.settle([Settlement(each.tag, Outcome.ACCEPTED) for each in deliveries])
        self._transport.credit(self._link, len(deliveries))

    def confirm(self, seconds: float) -> None:
        """Return when the broker has taken note of what was acknowledged.

        Raises:
            JMSException: it does not in time, or the connection is gone.
        """
        self._transport.confirm(seconds)

    def close(self) -> None:
        """Give back what was not acknowledged; waits for the broker a few seconds at most.  Never raises."""
        self._transport.close(_CLOSE_SECONDS)

    def _check(self) -> None:
        if self._error is not None:
            raise copied(self._error)

    # In the transport's threads.

    def _on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        with self._changed:
            self._received.extend(deliveries)
            self._changed.notify_all()

    def _on_event(self, event: TransportEvent) -> None:
        if isinstance(event, Failed | Interrupted | LinkInterrupted | LinkLost):
            with self._changed:
                self._error = self._error or event.error
                self._changed.notify_all()
