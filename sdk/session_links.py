"""The producers, consumers and browsers of one session, and what happens to their links.

The tables keep none of them: what the application drops is closed (see :mod:`sdk.finalizers`).

Theory of operation: events of links
    The broker may close a link as soon as it is attached, when its producer, consumer or browser is not in the tables
    yet.  So while anything is being attached, an event is kept until its producer, consumer or browser is found, or
    nothing is being attached any more.  One thread at a time handles the events, in their order.  A thread with an
    event leaves it to the thread that is handling others, and does not wait for it.

    So the connection may be lost, and restored, before an event is handled.  Links are attached again with the
    connection, and have other numbers in tags then.  Therefore an event has the epoch of the connection that it came
    on: a link that was interrupted or restored on an earlier one is left as it is.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from ack_modes import Outcome, Settlement
from broker_adapter import JMSException, LinkInterrupted, LinkLost, LinkRestored
from sdk.acknowledgements import AckRecord
from sdk.finalizers import Sink, WeakTable, detach_all, stop_flows, taken_from
from sdk.producer import MessageProducer
from sdk.receiving.browser import QueueBrowser
from sdk.receiving.consumer import MessageConsumer
from sdk.session_state import SessionState, log

_T = TypeVar("_T")

LinkEvent = LinkInterrupted | LinkLost | LinkRestored
#: Most events of links that are kept; the oldest is dropped.
MAX_KEPT_EVENTS: Final = 1000


class _Arrived(NamedTuple):
    """What became of a link, and on which connection."""

    event: LinkEvent
    epoch: int


class SessionLinks:
    """The links of one session, by their numbers.

    Attributes:
        producers: by link.
        consumers: by link.
        sinks: of the consumers, and of those that are not there any more, by link.
        browsers: by their numbers in the session.
    """

    __slots__ = (
        "_attaching",
        "_events",
        "_handling",
        "_kept",
        "_made",
        "_state",
        "browsers",
        "consumers",
        "producers",
        "sinks",
    )

    def __init__(self, state: SessionState) -> None:
        """No links yet.

        Args:
            state: the session's.
        """
        self._state = state
        self.producers: WeakTable[MessageProducer] = WeakTable()
        self.consumers: WeakTable[MessageConsumer] = WeakTable()
        self.sinks: dict[int, Sink] = {}
        self.browsers: WeakTable[QueueBrowser] = WeakTable()
        self._made = 0  #: producers, consumers and browsers so far
        self._attaching: dict[object, None] = {}  #: what is being attached
        #: To be handled; None: something is in its table, or will never be.
        self._events: deque[_Arrived | None] = deque()
        self._kept: list[_Arrived] = []  #: their links are in no table so far; for the thread that handles events
        self._handling = threading.Lock()  #: held by that thread; no thread waits for it

    def remove_consumer(self, consumer: MessageConsumer, confirmed: bool) -> None:
        """A consumer has closed; ``confirmed``: and the broker has said so."""
        self.sinks.pop(consumer._prefetch.link, None)
        if self.consumers.pop(consumer._prefetch.link) and self._state.acknowledgements is not None:
            self._state.acknowledgements.narrow(consumer._prefetch.most, confirmed=confirmed)

    def open_credit(self) -> None:
        """Let messages through to the consumers."""
        for consumer in self.consumers.values():
            consumer._prefetch.open_credit()

    def next_number(self) -> int:
        """The number of the next producer, consumer or browser."""
        with self._state.lock:
            self._made += 1
            return self._made

    def interrupted(self, epoch: int) -> None:
        """The connection was lost and is being restored."""
        for browser in self.browsers.values():
            browser._interrupted()
        self._state.connection_lost(epoch)

    def never_delivered(self) -> list[tuple[AckRecord, int]]:
        """What its consumers had prefetched on a connection that is lost, with the failures."""
        found: list[tuple[AckRecord, int]] = []
        for consumer in self.consumers.values():
            if consumer._source is not None:
                found += consumer._prefetch.never_delivered(consumer._source)
        return found

    def restored(self, epoch: int) -> None:
        """The connection works again."""
        for consumer in self.consumers.values():
            consumer._prefetch.restored()
        self._state.restore(epoch)

    def attach(self, make: Callable[[], _T]) -> _T:
        """Do what attaches something and puts it into its table: no event of its link is lost."""
        this = object()
        try:
            self._attaching[this] = None
            return make()
        finally:
            self._attaching.pop(this, None)
            if self._keeps_any:
                self._events.append(None)
                self._handle()

    def came(self, event: LinkEvent, epoch: int) -> bool:
        """Handle an event of a link, in any thread; returns whether its link is known to be of this session.

        Args:
            event: what became of the link.
            epoch: of the connection that it came on.
        """
        arrived = _Arrived(event, epoch)
        if not (self._attaching or self._keeps_any):
            return self._handled(arrived)
        self._events.append(arrived)
        self._handle()
        return False

    @property
    def _keeps_any(self) -> bool:
        return bool(self._events or self._kept) or self._handling.locked()

    def _handle(self) -> None:
        while self._events and self._handling.acquire(blocking=False):
            try:
                while self._events:
                    is_attaching = bool(self._attaching)  # first: what is not by now is in its table
                    arrived, kept = self._events.popleft(), self._kept
                    if arrived is not None:
                        kept = [*kept, arrived]
                    kept = [each for each in kept if not self._handled(each)]
                    self._kept = kept[-MAX_KEPT_EVENTS:] if is_attaching else []
            finally:
                self._handling.release()

    def _handled(self, arrived: _Arrived) -> bool:
        """Tell the producer, consumer or browser of a link; returns whether there is one in this session."""
        event, epoch = arrived
        if isinstance(event, LinkLost):
            return self._link_lost(event, epoch)
        consumer = self.consumers.get(event.link)
        if consumer is None:
            return event.link in self.producers
        if isinstance(event, LinkInterrupted):
            consumer._prefetch.link_interrupted(event.tag_link, epoch)
            self._state.link_lost(event.tag_link, event.error, epoch, for_good=False)
            self._state.take_lost_links()
        else:
            consumer._prefetch.link_restored(epoch)
        return True

    def _link_lost(self, event: LinkLost, epoch: int) -> bool:
        """The broker closed a link for good.  Waits for no other thread."""
        link, error = event.link, event.error
        consumer, producer = self.consumers.get(link), self.producers.get(link)
        if consumer is not None:
            consumer._lost(error)  # first: nothing of it is received once the session has told of the loss
            self._state.link_lost(event.tag_link, error, epoch, for_good=True)
            self.sinks.pop(link, None)  # the broker has taken back what it held
        elif producer is not None:
            producer._lost(error)
        else:
            return any(browser._lost(link, error) for browser in self.browsers.values())
        return True

    def end_all(self, deadline: float) -> None:
        """End all links, and give back what came on them.

        Args:
            deadline: when to stop waiting for the broker (monotonic seconds).
        """
        state = self._state
        consumers = self.consumers.values()
        for consumer in consumers:
            consumer._begin_close(deadline)
        # Once a link is gone, another consumer of its group or exclusive queue gets what comes next: all that comes
        # back has to be there before that.
        sinks = list(self.sinks.values())
        stop_flows(state.transport, sinks, deadline)
        with self.perhaps_without_the_broker(), state.settling:
            state.given_back = True
            never_delivered = taken_from(sinks, state.epoch)
            # Modified: what did not fail waits for nothing once its consumer is gone.
            held = [
                each if each.outcome is Outcome.ACCEPTED else Settlement(each.tag, Outcome.MODIFIED)
                for each in state.policy.recover()
            ]
            state.settle([*held, *state.policy.passed_over(never_delivered, Outcome.RELEASED)])
        detach_all(state.transport, sinks, state.epoch, deadline)
        for browser in self.browsers.values():
            browser._shut(deadline)
        with self.perhaps_without_the_broker():
            if not state.transport.end_session(state.number, max(0.001, deadline - time.monotonic())):
                state.acknowledgements_in_doubt()
        for consumer in consumers:
            consumer._end_close(confirmed=False)
        for producer in self.producers.values():
            producer._end()
        self.producers.clear()

    @contextlib.contextmanager
    def perhaps_without_the_broker(self) -> Iterator[None]:
        """A step of closing: where the network is away, what comes after it is done all the same."""
        try:
            yield
        except JMSException as error:
            log.debug("! %s closes without the broker: %s", self._state.name, error)
            self._state.acknowledgements_in_doubt()
