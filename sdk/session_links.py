"""The producers, consumers and browsers of one session, and what happens to their links.

The tables keep none of them: what the application drops is closed (see :mod:`sdk.dropped`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from ack_modes import Outcome
from broker_adapter import JMSException, LinkLost
from sdk.acknowledgements import AckRecord
from sdk.browser import QueueBrowser
from sdk.consumer import MessageConsumer
from sdk.dropped import Sink, WeakTable, detach_all, stop_flows, taken_from
from sdk.producer import MessageProducer
from sdk.session_state import SessionState, log


class SessionLinks:
    """The links of one session, by their numbers.

    Attributes:
        producers: by link.
        consumers: by link.
        sinks: of the consumers, and of those that are not there any more, by link.
        browsers: by their numbers in the session.
    """

    __slots__ = ("_made", "_state", "browsers", "consumers", "producers", "sinks")

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

    def remove_consumer(self, consumer: MessageConsumer, confirmed: bool) -> None:
        """A consumer has closed; ``confirmed``: and the broker has said so."""
        self.sinks.pop(consumer._prefetch.link, None)
        if self.consumers.pop(consumer._prefetch.link) and self._state.acknowledgements is not None:
            self._state.acknowledgements.narrow(consumer._prefetch.size, confirmed=confirmed)

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
        self._state.lose(epoch)

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

    def link_interrupted(self, link: int, tag_link: int, error: JMSException) -> bool:
        """The broker closed a link, which is being attached again; returns whether it was one of this session."""
        consumer = self.consumers.get(link)
        if consumer is not None:
            consumer._prefetch.link_interrupted(tag_link)
            self._state.lose_link(tag_link, error)
        return consumer is not None or link in self.producers

    def link_restored(self, link: int) -> bool:
        """A link is attached again; returns whether it was one of this session."""
        consumer = self.consumers.get(link)
        if consumer is not None:
            consumer._prefetch.link_restored()
        return consumer is not None or link in self.producers

    def link_lost(self, event: LinkLost) -> bool:
        """The broker closed a link; returns whether it was one of this session.  In any thread, and waits for none."""
        link, error = event.link, event.error
        consumer, producer = self.consumers.get(link), self.producers.get(link)
        if consumer is not None:
            consumer._lost(error)  # first: nothing of it is received once the session has told of the loss
            self._state.lost_links.append((event.tag_link, error))
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
        with self.perhaps_without_the_broker(), state.settling, taken_from(sinks, state.epoch) as never_delivered:
            state.given_back = True
            state.settle([*state.policy.recover(), *state.policy.passed_over(never_delivered, Outcome.RELEASED)])
            state.policy.recovered()
        detach_all(state.transport, sinks, state.epoch, deadline)
        for browser in self.browsers.values():
            browser._shut(deadline)
        with self.perhaps_without_the_broker():
            state.transport.end_session(state.number, max(0.001, deadline - time.monotonic()))
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
            self._state.forget_nothing()
