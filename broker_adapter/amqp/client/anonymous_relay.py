"""Anonymous producers at a broker that has no anonymous relay: a link for each destination, made when it is needed.

The reference client calls this the fallback; a broker that offers the connection capability ``ANONYMOUS-RELAY`` needs
none of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import attrs

from broker_adapter.destination import Destination

#: Most links of one anonymous producer; beyond it the one that was not used for the longest time is detached.
MAX_RELAY_LINKS = 32


@attrs.define(eq=False)
class _Producer:
    session: int
    links: dict[Destination, int] = attrs.field(factory=dict)  #: the one used last is the last


class AnonymousRelay:
    """The anonymous producers of a connection.  Their link numbers are negative.  For any thread."""

    def __init__(self, attach: Callable[[int, Destination], int], detach: Callable[[int], None]) -> None:
        """A relay without producers.

        Args:
            attach: makes a link for a session and a destination; may wait for the broker.
            detach: ends a link.
        """
        self._attach = attach
        self._detach = detach
        self._lock = threading.RLock()  # the handler of a signal may close what it interrupts
        self._producers: dict[int, _Producer] = {}
        self._next = -1

    def add(self, session: int) -> int:
        """A new producer; returns its link's number."""
        with self._lock:
            number = self._next
            self._next -= 1
            self._producers[number] = _Producer(session)
            return number

    def link(self, number: int, destination: Destination) -> int | None:
        """The link by which a producer sends to a destination; None where it is closed.

        Raises:
            JMSException: the broker refuses the link.
        """
        with self._lock:
            producer = self._producers.get(number)
            if producer is None:
                return None
            link = producer.links.pop(destination, None)
            if link is not None:
                producer.links[destination] = link
                return link
        link = self._attach(producer.session, destination)
        unused = None
        with self._lock:
            if len(producer.links) >= MAX_RELAY_LINKS:
                unused = producer.links.pop(next(iter(producer.links)))
            producer.links[destination] = link
        if unused is not None:
            self._detach(unused)
        return link

    def lost(self, link: int) -> bool:
        """The broker closed a link; returns whether it was one of ours.  The next send makes another one."""
        with self._lock:
            for producer in self._producers.values():
                for destination, each in producer.links.items():
                    if each == link:
                        del producer.links[destination]
                        return True
        return False

    def close(self, number: int) -> None:
        """End a producer with its links."""
        with self._lock:
            producer = self._producers.pop(number, None)
        for link in () if producer is None else tuple(producer.links.values()):
            self._detach(link)

    def end_session(self, session: int) -> None:
        """Remove the producers of a session, whose links end with it."""
        with self._lock:
            self._producers = {
                number: producer for number, producer in self._producers.items() if producer.session != session
            }
